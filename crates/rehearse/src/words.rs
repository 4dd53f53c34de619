//! A rehearsal in words: its parameters, and the summary of a run.

use nowserving_line::{LaneSettings, Settings};

use nowserving_adapt::{AutoSeats, Target};

use crate::config::{Arrival, Calls, Config, Crowd, Polls, Service, Slowdown};
use crate::figures::{ARTICLE, FIXED};
use crate::report::{Report, Stages, Summary};
use crate::text::{count, duration, many};

/// The rows of a table: names and values.
#[derive(Default)]
struct Rows(Vec<(String, String)>);

impl Rows {
    fn add(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }
}

impl Summary {
    /// Names and values, in order, for a table.
    fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Rows::default();
        let held = percent(self.seat_held_percent);
        rows.add("seats held while anybody waits", held);
        let busy = percent(self.seat_busy_percent);
        rows.add("seats in checkout while anybody waits", busy);
        if self.seats_told > 0 || self.seats_least < self.seats_most {
            rows.add("seats while anybody waits, mean", plain(self.seats_mean));
            let (least, most) = (count(self.seats_least), count(self.seats_most));
            rows.add("seats, fewest to most", format!("{least} to {most}"));
            rows.add("seats told anew", count(self.seats_told));
        }
        rows.add("overtakes against the rules", count(self.overtakes));
        rows.add("most seats over the limit", count(self.over_limit_max));
        rows.add("contradictions", count(self.contradictions));
        rows.add("wait, median", wait(self.wait_p50_ms));
        rows.add("wait, 99 %", wait(self.wait_p99_ms));
        if self.lanes.len() > 1 {
            for lane in &self.lanes {
                let name = &lane.lane;
                rows.add(format!("lane {name}: completed"), count(lane.completed));
                rows.add(format!("lane {name}: wait, median"), wait(lane.wait_p50_ms));
                rows.add(format!("lane {name}: wait, 99 %"), wait(lane.wait_p99_ms));
            }
        }
        let given = percent(self.eta_told_percent);
        rows.add("told a forecast on entering", given);
        let within = judged(self.eta_within_15_percent);
        rows.add("forecast within 15 % of the truth", within);
        let bound = judged(self.eta_within_15_bound_percent);
        rows.add("… had it known the mean pace", bound);
        let later = judged(self.later_eta_within_15_percent);
        rows.add(
            "the same, of forecasts after the first turn of seats",
            later,
        );
        let bound = judged(self.later_eta_within_15_bound_percent);
        rows.add("… had they known the mean pace", bound);
        let first = percent(self.first_turn_eta_told_percent);
        rows.add("came in the first turn of seats: told a forecast", first);
        let within = percent(self.first_turn_eta_within_35_percent);
        rows.add("… within 35 % of the truth", within);
        let covered = judged(self.eta_p90_coverage_percent);
        rows.add("wait within the 90 % forecast", covered);
        rows.add("completed", count(self.completed));
        if self.units_used > 0 {
            let last = wait(self.last_unit_at_ms);
            let used = count(self.units_used);
            rows.add("units used", format!("{used}, the last after {last}"));
        }
        rows.add("gone while waiting", self.gone_at(|at| at.waiting));
        rows.add("gone before checkout", self.gone_at(|at| at.admitted));
        rows.add("gone from checkout", self.gone_at(|at| at.in_checkout));
        let refused = self.refused.iter();
        let refused = refused.map(|(code, count)| (code.as_str(), *count));
        rows.add("turned away without a number", itemised(refused));
        if let Some(median_ms) = self.service_p50_ms {
            rows.add("checkout, median", duration(median_ms));
            rows.add("checkout, 99 %", wait(self.service_p99_ms));
        }
        if let Some(median_ms) = self.transaction_wait_p50_ms {
            rows.add("queued for a transaction, median", duration(median_ms));
            rows.add(
                "queued for a transaction, 99 %",
                wait(self.transaction_wait_p99_ms),
            );
            let most = count(self.transactions_queued_max);
            rows.add("queued for a transaction, most", most);
        }
        if self.calls > 0 {
            rows.add("calls of the dispatcher", count(self.calls));
            rows.add("admitted by them", count(self.called));
        }
        rows.add("still in the line at the end", count(self.still_live));
        rows.add("polls a second, mean", self.polls_per_second.to_string());
        rows.add("polls a second, most", count(self.polls_per_second_max));
        rows.add("virtual time", duration(self.virtual_ms));
        rows.0
    }

    /// Those who left from a stage, by reason.
    fn gone_at(&self, stage: fn(&Stages) -> u64) -> String {
        let gone = self.gone_from.iter();
        itemised(gone.map(|(reason, stages)| (reason.as_str(), stage(stages))))
    }
}

/// `12: idle 4, left 8`
fn itemised<'a>(items: impl Iterator<Item = (&'a str, u64)>) -> String {
    let items: Vec<(&str, u64)> = items.filter(|(_, many)| *many > 0).collect();
    let sum = count(items.iter().map(|(_, many)| many).sum());
    let items = items.iter();
    let items: Vec<String> = items
        .map(|(name, many)| format!("{name} {}", count(*many)))
        .collect();
    match items.is_empty() {
        true => sum,
        false => format!("{sum}: {}", items.join(", ")),
    }
}

impl Report {
    /// The rows of the summary: name, value and, with a comparison, the other run's value.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let pairs = self.real.summary.rows().into_iter();
        let mut rows: Vec<Vec<String>> = pairs.map(|(name, value)| vec![name, value]).collect();
        for run in self.naive.iter().chain(&self.fixed) {
            // A row that only this run has is not shown, and one that it lacks is empty.
            let others = run.summary.rows();
            for row in &mut rows {
                let other = others.iter().find(|(name, _)| *name == row[0]);
                row.push(other.map_or("-".to_owned(), |(_, value)| value.clone()));
            }
        }
        rows
    }

    /// What the columns of [`Report::rows`] are about, after the names.
    pub(crate) fn columns(&self) -> Vec<&'static str> {
        let naive = self.naive.iter().map(|_| ARTICLE);
        let fixed = self.fixed.iter().map(|_| FIXED);
        std::iter::once("nowserving")
            .chain(naive)
            .chain(fixed)
            .collect()
    }
}

impl Config {
    /// The parameters of the rehearsal for a table: names and values.
    pub(crate) fn rows(&self) -> Vec<(String, String)> {
        let (crowd, settings) = (&self.crowd, &self.settings);
        let mut rows = Rows::default();
        let shoppers = many(crowd.shoppers.into(), "shopper");
        rows.add("crowd", format!("{shoppers}, {}", arrivals(crowd)));
        rows.add("checkout", service(crowd.service));
        if let Some(slowdown) = self.slowdown {
            rows.add("service", slowed(slowdown));
        }
        if let Some(auto) = &self.auto_seats {
            rows.add("seats", follows(auto));
        }
        if let Some(rate) = self.transaction_rate {
            rows.add("transactions", format!("{rate} a second at most"));
        }
        if let Some(calls) = self.calls {
            rows.add("dispatcher", dispatcher(calls));
        }
        rows.add("asking again", polls(crowd));
        rows.add("going home", going_home(crowd));
        rows.add("line", line(settings));
        rows.add("lanes", lanes(&settings.lanes, &crowd.lane_mix));
        if let Some(limits) = limits(settings) {
            rows.add("limits", limits);
        }
        let after = |at_ms: u64| duration(at_ms.saturating_sub(self.starts_at_ms));
        let changes = settings.schedule.iter().map(|change| after(change.at_ms));
        let changes: Vec<String> = changes.collect();
        if !changes.is_empty() {
            rows.add("schedule", format!("changes at {}", changes.join(", ")));
        }
        let open = self.open_at_ms.map(duration);
        let open = open.map_or(String::new(), |at| format!(", open at {at}"));
        rows.add("phase", format!("{}{open}", settings.phase.as_str()));
        let (seed, net_ms, until) = (self.seed, self.net_delay_ms, duration(self.until_ms));
        rows.add(
            "run",
            format!("seed {seed}, a message takes {net_ms} ms each way, {until} at most"),
        );
        rows.0
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

fn slowed(Slowdown { knee, power }: Slowdown) -> String {
    let at_once = count(knee.into());
    let power = match power {
        1 => String::new(),
        _ => format!(" to the power of {power}"),
    };
    format!(
        "{at_once} checkouts at full speed; with c of them each at ({at_once} / c){power} of it"
    )
}

fn follows(auto: &AutoSeats) -> String {
    let (min, max) = (count(auto.min().into()), count(auto.max().into()));
    let target = match auto.target() {
        Target::Latency(mean) => {
            let mean_ms = mean.as_millis().try_into().unwrap_or(u64::MAX);
            format!("checkouts take {} on average", duration(mean_ms))
        }
        Target::Load(load) => format!("{} % of the service work", load * 100.0),
        // There is no other.
        _ => "their target".to_owned(),
    };
    format!("{min} to {max}, so that {target}")
}

fn dispatcher(calls: Calls) -> String {
    match calls {
        Calls::PerSeat { after_ms } => {
            let after = duration(after_ms);
            format!("calls the next one {after} after a seat is free for it")
        }
        Calls::Rounds { every_ms, n } => {
            format!("calls up to {n} every {}", duration(every_ms))
        }
    }
}

fn polls(crowd: &Crowd) -> String {
    let how = match crowd.polls {
        Polls::Random { max_ms } => format!("at random up to {} later", duration(max_ms)),
        Polls::AsAnswered => "when told".to_owned(),
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
        match quota.per_visit {
            1 => format!("{total} can complete, standby {standby} %"),
            most => format!("{total} units, up to {most} a visit, standby {standby} %"),
        }
    });
    let claim = settings
        .release_on_claim
        .then(|| "a claim also completes".to_owned());
    let words: Vec<String> = [rate, quota, claim].into_iter().flatten().collect();
    (!words.is_empty()).then(|| words.join("; "))
}

fn plain(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
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
