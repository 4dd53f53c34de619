//! The result of a rehearsal in words: one sentence, then the reasons for caution.

use std::cmp::Reverse;

use nowserving_adapt::AutoSeats;
use nowserving_line::{Admission, Phase, Reason, Settings};
use nowserving_protocol::error::Code;

use crate::figures::{ARTICLE, FIXED};
use crate::report::{LaneSummary, Report, Run, Summary};
use crate::text::{count, duration, many, round_above, whole_percent};

/// Seats are called idle if at least so many percent are held and not in checkout while people
/// wait, and free if so many are not even held.
const IDLE_PERCENT: f64 = 5.0;
const FREE_PERCENT: f64 = 1.0;
/// Transactions are called slow if half of the checkouts queue for so long.
const SLOW_TRANSACTION_MS: u64 = 1_000;
/// Forecasts are called off if for fewer of them the truth was within 15 %, or within the 90 %.
const WITHIN_15_PERCENT: f64 = 50.0;
const P90_COVERAGE_PERCENT: f64 = 85.0;
/// Forecasts are called rare if a smaller share of the shoppers that had to wait got one.
const TOLD_PERCENT: f64 = 50.0;

/// The weight of a finding, in the order in which they are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tone {
    /// The line broke its rules.
    Bad,
    /// Important before the figures are trusted.
    Caution,
    Good,
    /// Of the compared algorithm, not of the line.
    Compared,
}

/// A sentence of the verdict with its tone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) tone: Tone,
    pub(crate) text: String,
}

impl Tone {
    fn finding(self, text: String) -> Finding {
        Finding { tone: self, text }
    }
}

impl Report {
    /// The verdict in one line: `80 seats: median wait 6 min 41 s, 99 % under 12 min, seats busy
    /// 97 %`.
    pub fn headline(&self) -> String {
        let summary = &self.real.summary;
        let seats = match self.config.auto_seats {
            Some(_) => seats_there_were(summary),
            None => many(self.config.settings.seats.into(), "seat"),
        };
        let busy = summary.seat_busy_percent;
        let busy = busy.map_or(String::new(), |busy| {
            format!(", seats busy {}", whole_percent(busy))
        });
        format!("{seats}: {}{busy}", waits(summary))
    }

    /// If a run ended before everybody had gone home: its summary is of a part only.
    pub fn cut_off(&self, summary: &Summary) -> Option<String> {
        let shoppers = u64::from(self.config.crowd.shoppers);
        let to_come = shoppers.saturating_sub(summary.entered + summary.turned_away);
        (summary.still_live + to_come > 0).then(|| {
            format!(
                "ended after {} with {} still in the line and {} yet to come",
                duration(self.config.until_ms),
                count(summary.still_live),
                count(to_come)
            )
        })
    }

    /// Further findings, the gravest first.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let summary = &self.real.summary;
        let settings = &self.config.settings;
        let shoppers = u64::from(self.config.crowd.shoppers);
        let cut_off = self.cut_off(summary);
        let is_opened = self.config.open_at_ms.is_some() || self.config.is_opened_by_schedule();
        let never_open = settings.phase != Phase::Open && !is_opened;
        let cautions = [
            cut_off.map(|how| format!("The rehearsal {how}: all figures are of that part.")),
            never_open.then(|| {
                format!(
                    "The line was never open: its phase is {}.",
                    settings.phase.as_str()
                )
            }),
            never_full(settings, summary).filter(|_| self.config.auto_seats.is_none()),
            self.config
                .auto_seats
                .and_then(|auto| at_a_bound(&auto, summary)),
            free_seats(settings, summary),
            idle_seats(summary),
            slow_transactions(summary),
            turned_away(shoppers, summary),
            not_served(summary),
            rare_forecasts(settings, summary),
        ];
        let failed = summary.schedule_failed.iter();
        let failed = failed.map(|change| format!("In the rehearsal {change}."));
        let are_fixed = settings.schedule.is_empty() && self.config.auto_seats.is_none();
        let mut findings = vec![
            rules(settings, summary, are_fixed),
            served(shoppers, summary),
        ];
        findings.extend(self.config.auto_seats.and_then(|_| followed(summary)));
        if summary.lanes.len() > 1 {
            findings.extend(summary.lanes.iter().map(of_lane));
        }
        let caution = |text| Tone::Caution.finding(text);
        findings.extend(failed.map(caution));
        findings.extend(cautions.into_iter().flatten().map(caution));
        findings.extend(forecasts(summary));
        findings.extend(short_forecasts(summary).map(caution));
        findings.extend(self.naive.as_ref().map(compared));
        findings.extend(
            self.fixed
                .as_ref()
                .map(|fixed| compared_fixed(settings, fixed)),
        );
        // Stable: within a tone, in the order above.
        findings.sort_by_key(|finding| finding.tone);
        findings
    }
}

fn waits(summary: &Summary) -> String {
    let (Some(p50_ms), Some(p99_ms)) = (summary.wait_p50_ms, summary.wait_p99_ms) else {
        return "nobody got a seat".to_owned();
    };
    let under = duration(round_above(p99_ms));
    match (p50_ms, p99_ms) {
        (_, 0) if summary.contended_ms == 0 => "nobody had to wait".to_owned(),
        (_, 0) => "99 % got a seat at once".to_owned(),
        (0, _) => format!("half got a seat at once, 99 % waited under {under}"),
        _ => format!("median wait {}, 99 % under {under}", duration(p50_ms)),
    }
}

fn rules(settings: &Settings, summary: &Summary, are_fixed: bool) -> Finding {
    if summary.is_sound() {
        let seats = match are_fixed {
            true => format!("{} were", many(settings.seats.into(), "seat")),
            false => "the seats that there were at that time were".to_owned(),
        };
        return Tone::Good.finding(format!(
            "The rules held: nobody was admitted out of turn, and no more than {seats} ever held at \
             once."
        ));
    }
    Tone::Bad.finding(format!(
        "The line broke its rules: {} admitted out of turn, {} held beyond those there are, {}.",
        count(summary.overtakes),
        many(summary.over_limit_max, "seat"),
        many(summary.contradictions, "contradiction")
    ))
}

fn served(shoppers: u64, summary: &Summary) -> Finding {
    let text = format!(
        "{} of {} were served within {}.",
        count(summary.completed),
        many(shoppers, "shopper"),
        duration(summary.virtual_ms)
    );
    match summary.completed {
        0 => Tone::Caution.finding(text),
        _ => Tone::Good.finding(text),
    }
}

fn of_lane(lane: &LaneSummary) -> Finding {
    let (name, served) = (&lane.lane, count(lane.completed));
    let (Some(p50_ms), Some(p99_ms)) = (lane.wait_p50_ms, lane.wait_p99_ms) else {
        return Tone::Caution.finding(format!("Lane {name}: nobody was admitted."));
    };
    let (median, under) = (duration(p50_ms), duration(round_above(p99_ms)));
    Tone::Good.finding(format!(
        "Lane {name}: {served} served, median wait {median}, 99 % under {under}."
    ))
}

fn never_full(settings: &Settings, summary: &Summary) -> Option<String> {
    let seats = u64::from(settings.seats);
    (settings.schedule.is_empty() && summary.seats_held_max < seats).then(|| {
        format!(
            "The seats were never all taken: at most {} of {} were held at once.",
            count(summary.seats_held_max),
            count(seats)
        )
    })
}

fn free_seats(settings: &Settings, summary: &Summary) -> Option<String> {
    let free = 100.0 - summary.seat_held_percent?;
    let called = settings.admission == Admission::Called;
    let reasons = [
        (called, "the dispatcher"),
        (settings.admission_rate.is_some(), "the admission rate"),
        (settings.quota.is_some(), "the quota"),
    ];
    let reasons = reasons.iter().filter(|(is_set, _)| *is_set);
    let reasons: Vec<&str> = reasons.map(|(_, words)| *words).collect();
    let why = match reasons.is_empty() {
        true => "the line".to_owned(),
        false => reasons.join(" or "),
    };
    (free >= FREE_PERCENT).then(|| {
        format!(
            "While people waited, {} of the seats were free: {why} let nobody in sooner.",
            whole_percent(free)
        )
    })
}

fn idle_seats(summary: &Summary) -> Option<String> {
    let idle = summary.seat_held_percent? - summary.seat_busy_percent?;
    (idle >= IDLE_PERCENT).then(|| {
        format!(
            "While people waited, {} of the seats were held and not in checkout: their holders \
             learned of it late, or never came. Shoppers who watch the line, or ask again when \
             told to, come sooner.",
            whole_percent(idle)
        )
    })
}

fn turned_away(shoppers: u64, summary: &Summary) -> Option<String> {
    (summary.turned_away > 0).then(|| {
        format!(
            "{} of {} were turned away without a number: {}.",
            count(summary.turned_away),
            many(shoppers, "shopper"),
            refusals(summary).join(", ")
        )
    })
}

fn refusals(summary: &Summary) -> Vec<String> {
    let refused = summary.refused.iter();
    let refused = refused.map(|(code, people)| {
        let words = match Code::parse(code) {
            Some(Code::LineFull) => "as the queue was full",
            Some(Code::SoldOut) => "as it was sold out",
            Some(Code::LineClosed) => "as it was closed",
            _ => code.as_str(),
        };
        format!("{} {words}", count(*people))
    });
    refused.collect()
}

/// If checkouts queue for the backend, more seats serve nobody sooner.
fn slow_transactions(summary: &Summary) -> Option<String> {
    let p50_ms = summary.transaction_wait_p50_ms?;
    let p99_ms = summary.transaction_wait_p99_ms?;
    (p50_ms >= SLOW_TRANSACTION_MS).then(|| {
        format!(
            "Checkouts queued for their transactions, half of them for {} and longer, 99 % under \
             {}: more seats would serve nobody sooner.",
            duration(p50_ms),
            duration(round_above(p99_ms))
        )
    })
}

fn not_served(summary: &Summary) -> Option<String> {
    let all: u64 = summary.gone.values().sum();
    let mut gone: Vec<(&String, &u64)> = summary.gone.iter().collect();
    gone.sort_by_key(|(_, people)| Reverse(**people));
    let reasons = gone.into_iter().map(|(reason, people)| {
        let words = match Reason::parse(reason) {
            Some(Reason::Left) => "gave up",
            Some(Reason::Idle) => "vanished while they waited",
            Some(Reason::NoShow) => "did not come when called",
            Some(Reason::CheckoutExpired) => "vanished from checkout",
            Some(Reason::WaitExpired) => "waited too long",
            Some(Reason::SoldOut) => "found it sold out",
            _ => reason.as_str(),
        };
        format!("{} {words}", count(*people))
    });
    let reasons: Vec<String> = reasons.collect();
    (all > 0).then(|| {
        format!(
            "{} had a number and were not served: {}.",
            count(all),
            reasons.join(", ")
        )
    })
}

fn rare_forecasts(settings: &Settings, summary: &Summary) -> Option<String> {
    let told = summary.eta_told_percent?;
    if settings.admission == Admission::Called && told == 0.0 {
        return Some(
            "There were no forecasts: no line knows when its dispatcher calls.".to_owned(),
        );
    }
    (told < TOLD_PERCENT).then(|| {
        format!(
            "Forecasts were rare: {} of those who had to wait were told one on entering.",
            whole_percent(told)
        )
    })
}

fn forecasts(summary: &Summary) -> Option<Finding> {
    let within = summary.eta_within_15_percent?;
    let share = whole_percent(within);
    Some(match within >= WITHIN_15_PERCENT {
        true => Tone::Good.finding(format!(
            "Forecasts told on entering were right: {share} within 15 % of the true wait."
        )),
        false => Tone::Caution.finding(format!(
            "Forecasts told on entering were off: {share} were within 15 % of the true wait{}.",
            known_pace(summary)
        )),
    })
}

/// What the forecasts could have been at best, and what they became.
fn known_pace(summary: &Summary) -> String {
    let bound = summary.eta_within_15_bound_percent;
    let bound = bound.map_or(String::new(), |bound| {
        let bound = whole_percent(bound);
        format!(" ({bound} had they known the mean pace)")
    });
    let later = summary.later_eta_within_15_percent;
    let later = later.map_or(String::new(), |later| {
        let later = whole_percent(later);
        format!("; after the first turn of seats, {later} of those told")
    });
    format!("{bound}{later}")
}

fn short_forecasts(summary: &Summary) -> Option<String> {
    let coverage = summary.eta_p90_coverage_percent?;
    (coverage < P90_COVERAGE_PERCENT).then(|| {
        format!(
            "The forecast that 90 of 100 should keep to was too short: {} kept to it.",
            whole_percent(coverage)
        )
    })
}

/// `9 to 21 seats`
fn seats_there_were(summary: &Summary) -> String {
    let (least, most) = (summary.seats_least, summary.seats_most);
    match least == most {
        true => many(most, "seat"),
        false => format!("{} to {}", count(least), many(most, "seat")),
    }
}

fn followed(summary: &Summary) -> Option<Finding> {
    let (mean, median_ms) = (summary.seats_mean?, summary.service_p50_ms?);
    let under = duration(round_above(summary.service_p99_ms?));
    Some(Tone::Good.finding(format!(
        "The seats followed the service: {mean} on average while people waited. Half of the checkouts took {} and \
         less, 99 % under {under}.",
        duration(median_ms)
    )))
}

/// Where the seats end up at a bound, the target was not what decided.
fn at_a_bound(auto: &AutoSeats, summary: &Summary) -> Option<String> {
    let mean = summary.seats_mean?;
    let near = |bound: u32| (mean - f64::from(bound)).abs() < 0.5;
    let (bound, seats) = match auto {
        // With two there is none but the bounds.
        auto if auto.max() - auto.min() <= 1 => return None,
        auto if near(auto.min()) => ("the fewest", auto.min()),
        auto if near(auto.max()) => ("the most", auto.max()),
        _ => return None,
    };
    Some(format!(
        "The seats were almost always {bound} allowed, {}: their target was out of reach.",
        count(seats.into())
    ))
}

fn compared_fixed(settings: &Settings, fixed: &Run) -> Finding {
    let summary = &fixed.summary;
    let checkout = summary.service_p50_ms.map_or(String::new(), |median_ms| {
        format!(
            "half of the checkouts took {} and less; ",
            duration(median_ms)
        )
    });
    Tone::Compared.finding(format!(
        "For comparison, {FIXED} on the same crowd, {}: {checkout}{}, {} served within {}.",
        many(settings.seats.into(), "seat"),
        waits(summary),
        count(summary.completed),
        duration(summary.virtual_ms)
    ))
}

fn compared(naive: &Run) -> Finding {
    let summary = &naive.summary;
    let seats = match summary.over_limit_max {
        0 => "no seat too many".to_owned(),
        most => format!(
            "up to {} too many, over the limit for {}, which shortens its waits",
            many(most, "seat"),
            duration(naive.over_limit_ms())
        ),
    };
    Tone::Compared.finding(format!(
        "For comparison, {ARTICLE} on the same crowd: {seats}; {}, {} served.",
        waits(summary),
        count(summary.completed)
    ))
}
