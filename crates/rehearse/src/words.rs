//! A rehearsal in words: what was rehearsed, and the summary of a run.

use nowserving_line::{LaneSettings, Settings};

use crate::config::{Arrival, Config, Crowd, Polls, Service};
use crate::report::{LaneSummary, Summary};
use crate::text::{count, duration, many};

impl Summary {
    /// Names and values, in order, for a table.
    pub fn rows(&self) -> Vec<(String, String)> {
        let gone = self.gone.iter();
        let gone: Vec<String> = gone
            .map(|(reason, n)| format!("{reason} {}", count(*n)))
            .collect();
        let mut rows = named([
            (
                "seats held while anybody waits",
                percent(self.seat_held_percent),
            ),
            (
                "seats in checkout while anybody waits",
                percent(self.seat_busy_percent),
            ),
            ("overtakes against the rules", count(self.overtakes)),
            ("most seats over the limit", count(self.over_limit_max)),
            ("contradictions", count(self.contradictions)),
            ("wait, median", wait(self.wait_p50_ms)),
            ("wait, 99 %", wait(self.wait_p99_ms)),
        ]);
        if self.lanes.len() > 1 {
            rows.extend(self.lanes.iter().flat_map(LaneSummary::rows));
        }
        rows.extend(named([
            (
                "told a forecast on entering",
                percent(self.eta_told_percent),
            ),
            (
                "forecast within 15 % of the truth",
                judged(self.eta_within_15_percent),
            ),
            (
                "wait within the 90 % forecast",
                judged(self.eta_p90_coverage_percent),
            ),
            ("completed", count(self.completed)),
            ("gone otherwise", gone.join(", ")),
            ("turned away", count(self.turned_away)),
            ("still in the line at the end", count(self.still_live)),
            ("polls a second, mean", self.polls_per_second.to_string()),
            ("polls a second, most", count(self.polls_per_second_max)),
            ("virtual time", duration(self.virtual_ms)),
        ]));
        rows
    }
}

impl LaneSummary {
    fn rows(&self) -> [(String, String); 3] {
        let lane = &self.lane;
        [
            (format!("lane {lane}: completed"), count(self.completed)),
            (format!("lane {lane}: wait, median"), wait(self.wait_p50_ms)),
            (format!("lane {lane}: wait, 99 %"), wait(self.wait_p99_ms)),
        ]
    }
}

impl Config {
    /// What was rehearsed, for a table: names and values.
    pub(crate) fn rows(&self) -> Vec<(String, String)> {
        let crowd = &self.crowd;
        let mut rows = vec![
            (
                "crowd",
                format!(
                    "{}, {}",
                    many(crowd.shoppers.into(), "shopper"),
                    arrivals(crowd)
                ),
            ),
            ("checkout", service(crowd.service)),
            ("asking again", polls(crowd)),
            ("going home", going_home(crowd)),
            ("line", line(&self.settings)),
            ("lanes", lanes(&self.settings.lanes, &crowd.lane_mix)),
        ];
        if let Some(limits) = limits(&self.settings) {
            rows.push(("limits", limits));
        }
        let phase = self.settings.phase.as_str();
        rows.push(match self.open_at_ms {
            Some(open_at_ms) => (
                "phase",
                format!("{phase}, open at {}", duration(open_at_ms)),
            ),
            None => ("phase", phase.to_owned()),
        });
        let (net_ms, until) = (self.net_delay_ms, duration(self.until_ms));
        let run = format!(
            "seed {}, a message takes {net_ms} ms each way, {until} at most",
            self.seed
        );
        rows.push(("run", run));
        named(rows)
    }
}

fn arrivals(crowd: &Crowd) -> String {
    let within = duration(crowd.arrival.within_ms());
    let early = crowd.early_percent;
    let how = match crowd.arrival {
        Arrival::Burst { waves, .. } => format!("in {waves} waves"),
        Arrival::Steady { .. } => "steadily".to_owned(),
        Arrival::Ramp { .. } => "ever more".to_owned(),
    };
    format!("{how} within {within}, {early} % of them at the door at 0")
}

fn service(service: Service) -> String {
    match service {
        Service::Uniform { max_ms } => format!("up to {}", duration(max_ms)),
        Service::LogNormal { median_ms, sigma } => {
            format!("log-normal, median {}, sigma {sigma}", duration(median_ms))
        }
    }
}

fn polls(crowd: &Crowd) -> String {
    let how = match crowd.polls {
        Polls::Random { max_ms } => format!("at random up to {} later", duration(max_ms)),
        Polls::Told => "when told".to_owned(),
    };
    format!("{how}; {} % watch", crowd.watch_percent)
}

fn going_home(crowd: &Crowd) -> String {
    let patience = crowd.patience_ms;
    let patience = patience.map_or("without end".to_owned(), |ms| {
        format!("{} (mean)", duration(ms))
    });
    format!(
        "patience {patience}, {} % give up at a poll, {} % of both without a word; \
         {} % don't come when called, {} % vanish from checkout",
        crowd.give_up_percent, crowd.vanish_percent, crowd.no_show_percent, crowd.abandon_percent
    )
}

fn line(settings: &Settings) -> String {
    format!(
        "{}, queue limit {}; recycled after {} unheard of, {} without a claim, \
         {} in checkout without renewal",
        many(settings.seats.into(), "seat"),
        count(settings.queue_limit.into()),
        duration(settings.waiting_idle_timeout_ms),
        duration(settings.claim_timeout_ms),
        duration(settings.checkout_timeout_ms)
    )
}

fn lanes(lanes: &[LaneSettings], mix: &[f64]) -> String {
    let lanes = lanes.iter().enumerate().map(|(no, lane)| {
        let mut words = lane.name.to_string();
        if lane.boost_ms > 0 {
            words += &format!(", boost {}", duration(lane.boost_ms));
        }
        if lane.absolute {
            words += ", absolute";
        }
        if let Some(limit) = lane.queue_limit {
            words += &format!(", limit {limit}");
        }
        let part = mix.get(no).copied().unwrap_or(1.0);
        format!("{words} (part {part} of the crowd)")
    });
    lanes.collect::<Vec<_>>().join("; ")
}

fn limits(settings: &Settings) -> Option<String> {
    let rate = settings.admission_rate.map(|rate| {
        let per_second = rate.per_second_micro as f64 / 1e6;
        format!("{per_second} admissions a second, burst {}", rate.burst)
    });
    let quota = settings.quota.map(|quota| {
        let (total, standby) = (quota.total, quota.standby_percent);
        format!("{total} can complete, standby {standby} %")
    });
    let claim = settings
        .release_on_claim
        .then(|| "a claim also completes".to_owned());
    let words: Vec<String> = [rate, quota, claim].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join("; "))
}

fn named<'a>(rows: impl IntoIterator<Item = (&'a str, String)>) -> Vec<(String, String)> {
    let rows = rows.into_iter();
    rows.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn percent(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value} %"))
}

fn judged(value: Option<f64>) -> String {
    value.map_or("none judged".to_owned(), |value| format!("{value} %"))
}

fn wait(ms: Option<u64>) -> String {
    ms.map_or("-".to_owned(), duration)
}
