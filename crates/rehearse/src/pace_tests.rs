//! The poll rate of a crowd that follows `poll_after_ms`: never above the bound of docs/protocol/users.md, "When
//! to ask again", whatever holds the line back.
#![allow(clippy::unwrap_used)]

use nowserving_line::{Admission, AdmissionRate, LaneName, LaneSettings, Phase, Quota};
use proptest::prelude::*;

use crate::config::{Arrival, Calls, Config, Crowd, Polls, Service};
use crate::report::{Row, Run, SAMPLE_EVERY_MS};

/// The bound holds over any ten seconds. (Over single ones chance would show.)
const WINDOW_ROWS: usize = 10_000_u64.div_ceil(SAMPLE_EVERY_MS) as usize;
/// The line's assumption for the time that a seat is held, until it has measured it.
const HOLD_S_GUESSED: f64 = 4.0;
const TOLERANCE: f64 = 1.2;

fn rehearsed(config: &Config) -> Run {
    crate::run(config, |_| {}).unwrap().real
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}

/// The formula of the protocol, in polls a second.
fn bound(admissions_per_s: f64, hold_s: f64, cap_s: f64, waiting: f64) -> f64 {
    let step_s = (hold_s / 20.0).max(0.1).min(cap_s);
    let approach = admissions_per_s * (1.0 + (cap_s / step_s).ln());
    2.5 * approach + 4.0 / step_s + 2.0 * waiting / cap_s
}

/// After how many releases a line has a forecast.
fn warm_after(seats: u32) -> u64 {
    3 * u64::from(seats / 4).clamp(8, 4_096)
}

/// How long seats are held when it goes quickest: the mean over so many releases.
fn quickest_hold_s(rows: &[Row], releases: u64) -> f64 {
    let released = |row: &Row| row.completed + row.gone.seated();
    let mut held_ms = vec![0];
    for row in rows {
        let more_ms = (row.admitted + row.in_checkout) * SAMPLE_EVERY_MS;
        held_ms.push(held_ms[held_ms.len() - 1] + more_ms);
    }
    let mut quickest_s = f64::INFINITY;
    let mut to = 0;
    for (from, row) in rows.iter().enumerate() {
        while to < rows.len() && released(&rows[to]) < released(row) + releases {
            to += 1;
        }
        if to == rows.len() {
            break;
        }
        let count = released(&rows[to]) - released(row);
        let mean_ms = (held_ms[to] - held_ms[from]) as f64 / count as f64;
        quickest_s = quickest_s.min(mean_ms / 1_000.0);
    }
    quickest_s
}

/// The inputs of an operator's estimate: the settings, and how long seats are held.
struct Known<'a> {
    config: &'a Config,
    hold_s: f64,
    cap_s: f64,
}

impl<'a> Known<'a> {
    fn of(config: &'a Config, run: &Run) -> Self {
        let settings = &config.settings;
        let cap_ms = (settings.waiting_idle_timeout_ms / 3).min(settings.claim_timeout_ms / 2);
        Self {
            config,
            hold_s: quickest_hold_s(&run.rows, warm_after(settings.seats)),
            cap_s: seconds(cap_ms.min(30_000)),
        }
    }

    /// The most polls a second while these rows were written, when at most so many waited.
    fn bound(&self, rows: &[Row], waiting: f64) -> f64 {
        let settings = &self.config.settings;
        let seats = f64::from(settings.seats);
        let released = rows[0].completed + rows[0].gone.seated();
        let is_warm = released >= warm_after(settings.seats);
        let guess_s = if is_warm {
            f64::INFINITY
        } else {
            HOLD_S_GUESSED
        };
        let hold_s = self.hold_s.min(guess_s);
        let by_seats = seats / hold_s;
        let by_rate = settings
            .admission_rate
            .map(|rate| rate.per_second_micro as f64 / 1e6 + f64::from(rate.burst) / 10.0);
        // Until all seats are taken, the rate alone says how fast they are.
        let all_taken = rows
            .iter()
            .all(|row| row.admitted + row.in_checkout >= row.seats);
        let admissions_per_s = match by_rate {
            Some(by_rate) if all_taken => by_rate.min(by_seats),
            Some(by_rate) => by_rate,
            None => by_seats,
        };
        bound(admissions_per_s, hold_s, self.cap_s, waiting)
    }
}

/// The window that comes closest to its bound: polls a second, the bound, and when (ms).
fn worst_window(config: &Config, run: &Run) -> (f64, f64, u64) {
    let known = Known::of(config, run);
    let cap_rows = (known.cap_s * 1_000.0) as usize / SAMPLE_EVERY_MS as usize + 1;
    let windows = (0..run.rows.len().saturating_sub(WINDOW_ROWS)).map(|begin| {
        let rows = &run.rows[begin..=begin + WINDOW_ROWS];
        let (first, last) = (&rows[0], &rows[WINDOW_ROWS]);
        // Those sent away while they waited find out at their next poll.
        let since = &run.rows[begin.saturating_sub(cap_rows)..=begin + WINDOW_ROWS];
        let waiting = since.iter().map(|row| row.waiting).max().unwrap_or(0) as f64;
        let polls = (last.polls - first.polls) as f64;
        let per_s = polls / seconds(last.at_ms - first.at_ms);
        (per_s, known.bound(rows, waiting), first.at_ms)
    });
    let share = |(per_s, bound, _): &(f64, f64, u64)| per_s / bound;
    let worst = windows.max_by(|a, b| share(a).total_cmp(&share(b)));
    worst.unwrap_or((0.0, 1.0, 0))
}

#[test]
fn a_line_held_back_by_its_admission_rate_is_asked_seldom() {
    let mut config = Config::steady();
    config.crowd.shoppers = 2_000;
    config.crowd.arrival = Arrival::Burst {
        waves: 1,
        within_ms: 1_000,
    };
    config.crowd.watch_percent = 0.0;
    config.settings.seats = 1_000;
    config.settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 2_000_000,
        burst: 4,
    });
    let run = rehearsed(&config);
    let (per_s, bound, at_ms) = worst_window(&config, &run);
    assert!(
        per_s <= bound * TOLERANCE,
        "{per_s} of {bound} at {at_ms} ms"
    );
    // The unavoidable polls: two admissions a second, and 2,000 tokens that must be seen.
    assert!(run.summary.polls_per_second <= 100.0, "{:?}", run.summary);
    assert!(run.summary.polls_per_second_max <= 250, "{:?}", run.summary);
}

#[test]
fn nobody_asks_in_vain_while_a_line_is_paused() {
    let mut config = Config::poc();
    config.crowd.shoppers = 1_500;
    config.crowd.polls = Polls::AsAnswered;
    config.settings.phase = Phase::Paused;
    config.until_ms = 600_000;
    let run = rehearsed(&config);
    // The cap is 20 s here, and pauses are up to half of it shorter.
    let most = 1_500 * (600 / 10);
    let usual = 1_500 * 600 * 14 / 10 / 20;
    assert!(run.summary.polls <= most.min(usual), "{:?}", run.summary);
}

#[test]
fn seats_that_are_held_for_long_are_not_asked_for_all_the_time() {
    let mut config = Config::poc();
    config.crowd.polls = Polls::AsAnswered;
    config.crowd.shoppers = 1_200;
    config.crowd.service = Service::LogNormal {
        median_ms: 600_000,
        sigma: 0.2,
    };
    config.settings.seats = 1_000;
    config.settings.waiting_idle_timeout_ms = 120_000;
    config.settings.checkout_timeout_ms = 3_600_000;
    config.until_ms = 300_000;
    let run = rehearsed(&config);
    let (per_s, bound, at_ms) = worst_window(&config, &run);
    assert!(
        per_s <= bound * TOLERANCE,
        "{per_s} of {bound} at {at_ms} ms"
    );
    // No seat has been given back yet, so no answer has an ETA: the polls become rarer.
    let polls = |from_ms: u64, to_ms: u64| {
        let at = |ms: u64| run.rows[(ms / SAMPLE_EVERY_MS) as usize].polls;
        at(to_ms) - at(from_ms)
    };
    assert!(polls(240_000, 300_000) * 4 < polls(0, 60_000));
}

/// From 1 to `most`, each order of magnitude as likely.
fn magnitude(most: f64) -> impl Strategy<Value = f64> {
    (0.0..=1.0f64).prop_map(move |part| libm::pow(most, part))
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let within_ms = prop_oneof![Just(0), Just(1_000), 0..120_000u64];
    (within_ms, 0..3u8, 1..5u32).prop_map(|(within_ms, curve, waves)| match curve {
        0 => Arrival::Burst { waves, within_ms },
        1 => Arrival::Steady { within_ms },
        _ => Arrival::Ramp { within_ms },
    })
}

fn service() -> impl Strategy<Value = Service> {
    prop_oneof![
        magnitude(60_000.0).prop_map(|ms| Service::Uniform { max_ms: ms as u64 }),
        (magnitude(120_000.0), 0.0..1.0f64).prop_map(|(ms, sigma)| Service::LogNormal {
            median_ms: ms as u64,
            sigma,
        }),
    ]
}

fn crowd() -> impl Strategy<Value = Crowd> {
    let percent = || prop_oneof![2 => Just(0.0), 1 => 0.0..20.0f64];
    let patience_ms = prop_oneof![2 => Just(None), 1 => (5_000..300_000u64).prop_map(Some)];
    let watch_percent = prop_oneof![Just(0.0), Just(100.0), 0.0..100.0f64];
    let leaving = (percent(), patience_ms, percent(), percent(), percent());
    let shoppers = prop_oneof![magnitude(1_000.0), 1_000.0..3_000.0f64];
    let coming = (shoppers, arrival(), service(), watch_percent);
    (coming, leaving).prop_map(|(coming, leaving)| Crowd {
        arrival: coming.1,
        service: coming.2,
        watch_percent: coming.3,
        give_up_percent: leaving.0,
        patience_ms: leaving.1,
        vanish_percent: leaving.2,
        no_show_percent: leaving.3,
        basket_max: 1,
        abandon_percent: leaving.4,
        ..Crowd::patient(coming.0 as u32)
    })
}

fn lanes() -> impl Strategy<Value = Vec<LaneSettings>> {
    let lane = (prop_oneof![Just(0), 0..120_000u64], any::<bool>());
    prop::collection::vec(lane, 1..5).prop_map(|lanes| {
        let lanes = lanes.into_iter().enumerate();
        let lanes = lanes.map(|(no, (boost_ms, absolute))| LaneSettings {
            boost_ms,
            absolute,
            ..LaneSettings::new(LaneName::try_from(format!("lane{no}").as_str()).unwrap())
        });
        lanes.collect()
    })
}

fn calls() -> impl Strategy<Value = Option<Calls>> {
    let per_seat = (0..10_000u64).prop_map(|after_ms| Some(Calls::PerSeat { after_ms }));
    let rounds = (1..60_000u64, magnitude(1_024.0)).prop_map(|(every_ms, n)| {
        let n = n as u32;
        Some(Calls::Rounds { every_ms, n })
    });
    prop_oneof![4 => Just(None), 1 => per_seat, 1 => rounds]
}

fn config() -> impl Strategy<Value = Config> {
    let rate = (magnitude(100_000.0), magnitude(1_000.0)).prop_map(|(hundredths, burst)| {
        Some(AdmissionRate {
            per_second_micro: (hundredths * 10_000.0) as u64,
            burst: burst as u32,
        })
    });
    let rate = prop_oneof![Just(None), rate];
    let quota = (magnitude(2_000.0), 0..=1_000u32).prop_map(|(total, standby_percent)| {
        Some(Quota {
            total: total as u64,
            standby_percent,
            renew: None,
            per_visit: 1,
        })
    });
    let quota = prop_oneof![2 => Just(None), 1 => quota];
    let phase = prop_oneof![
        4 => Just((Phase::Open, None)),
        1 => Just((Phase::Paused, None)),
        2 => (0..120_000u64).prop_map(|open_at_ms| (Phase::PreOpen, Some(open_at_ms))),
    ];
    let timeouts = (15_000..300_000u64, 10_000..120_000u64);
    let line = (magnitude(3_000.0), rate, quota, lanes(), phase, timeouts);
    let run = (any::<u64>(), 0..200u64, calls());
    (crowd(), line, run).prop_map(|(crowd, line, (seed, net_delay_ms, calls))| {
        let mut config = Config::poc();
        let (seats, rate, quota, lanes, (phase, open_at_ms), timeouts) = line;
        config.settings.seats = seats as u32;
        config.settings.admission_rate = rate;
        config.settings.quota = quota;
        config.settings.lanes = lanes;
        config.settings.phase = phase;
        config.settings.waiting_idle_timeout_ms = timeouts.0;
        config.settings.claim_timeout_ms = timeouts.1;
        if calls.is_some() {
            config.settings.admission = Admission::Called;
        }
        Config {
            seed,
            crowd,
            net_delay_ms,
            until_ms: 180_000,
            open_at_ms,
            calls,
            ..config
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn polls_keep_to_the_bound_whatever_the_settings_and_the_crowd(config in config()) {
        let run = rehearsed(&config);
        prop_assert!(run.summary.is_sound());
        let (per_s, bound, at_ms) = worst_window(&config, &run);
        prop_assert!(
            per_s <= bound * TOLERANCE,
            "{per_s} polls/s, bound {bound}, in the ten seconds from {at_ms} ms"
        );
    }
}
