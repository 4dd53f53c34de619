//! The flags of `nowserving rehearse`, and the rehearsal that they ask for.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nowserving_client::{CALL_NEXT_MAX, Change, Phase};
use nowserving_line::PER_VISIT_MAX;
use nowserving_rehearse::{
    Arrival, AutoSeats, Calls, Config, Crowd, DURATION_MS_MAX, Polls, SHOPPERS_MAX, Service,
    Slowdown, Target,
};

use crate::settings::{SettingsFlags, wall_clock};
use nowserving_terminal::duration;
use nowserving_terminal::number;
use nowserving_terminal::output::WrongUsage;

/// Simulates a crowd against the real line, in virtual time: an hour in seconds.
///
/// Everything follows from --seed: the same flags give the same output. No cluster is needed.
/// Exit code 1 if a token was admitted against the rules (before an earlier one of its lane, or before
/// the first of another lane that goes first with both lanes' boosts), if a seat too many was held, or
/// if the events contradict each other (a token admitted twice). None of these may ever happen.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving rehearse --seats 80 --shoppers 8000
  nowserving rehearse --seed 7 --html report.html --csv report.csv
  nowserving rehearse --preset poc --compare naive
  nowserving rehearse --preset poc --watch-percent 100 --json
  nowserving rehearse --knee 40 --auto-seats 5..200 --target-latency 75s --compare fixed")]
pub struct RehearseArgs {
    /// Where to start from; every other flag changes it.
    #[arg(long, value_enum, default_value = "steady")]
    preset: Preset,
    /// Everything left to chance follows from this.
    #[arg(long, value_name = "N", value_parser = number::between::<u64>(0..=u64::MAX))]
    seed: Option<u64>,
    /// Also runs on the same crowd: the seed article's algorithm, in one lane (of the line's settings it knows --seats,
    /// --queue-limit and --waiting-idle-timeout); or, with --auto-seats, the line with its --seats.
    #[arg(long, value_enum, value_name = "WHAT")]
    compare: Option<Compare>,
    /// How long a message takes, each way.
    #[arg(
        long = "net-delay",
        value_name = "TIME",
        value_parser = duration::between(0..=60_000)
    )]
    net_delay_ms: Option<u64>,
    /// Ends it here at the latest, in virtual time (poc: 1h, steady: 4h);
    /// it ends before if everybody has gone home.
    #[arg(long = "until", value_name = "TIME", value_parser = time(1))]
    until_ms: Option<u64>,
    /// The wall clock at the start, such as 2026-11-22T11:55:00+08:00: the times of --schedule are of
    /// that clock.
    #[arg(long = "starts-at", value_name = "TIME", value_parser = wall_clock)]
    starts_at_ms: Option<u64>,
    /// Opens the line only then; until then it is in the phase given by --phase (default then
    /// pre_open: numbers are given, no seats).
    #[arg(long = "open-at", value_name = "TIME", value_parser = time(0))]
    open_at_ms: Option<u64>,
    /// The backend behind the checkout makes so many transactions a second (such as 5 or 0.5): a
    /// checkout queues for its own, in order, and holds its seat meanwhile.
    #[arg(long, value_name = "PER_SECOND")]
    transaction_rate: Option<f64>,
    #[command(flatten)]
    service: ServiceFlags,
    #[command(flatten)]
    pub files: Files,
    #[command(flatten)]
    calls: CallFlags,
    #[command(flatten)]
    crowd: CrowdFlags,
    #[command(flatten, next_help_heading = "The line's settings")]
    settings: SettingsFlags,
}

/// What is written besides the summary.
#[derive(Debug, Clone, Args)]
pub struct Files {
    /// Writes one row per 300 ms of virtual time, as the seed article's test does.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Writes a page with pictures that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// A service that gets slower by its load, and seats that follow it.
#[derive(Debug, Args)]
#[command(next_help_heading = "The service behind the checkout")]
struct ServiceFlags {
    /// It serves so many checkouts at full speed. With more, each has (knee / checkouts) of it.
    #[arg(long, value_name = "N", value_parser = number::between::<u32>(1..=1_000_000))]
    knee: Option<u32>,
    /// … to this power, 1 to 4 (default 1): from 2 on it serves fewer the more there are at once.
    #[arg(
        long, value_name = "N", requires = "knee", value_parser = number::between::<u32>(1..=4)
    )]
    knee_power: Option<u32>,
    /// The seats follow the service between these, such as 5..200. They begin with --seats.
    #[arg(long, value_name = "MIN..MAX", value_parser = bounds, requires = "knee", requires = "target")]
    auto_seats: Option<(u32, u32)>,
    /// … so that checkouts take this on average.
    #[arg(long = "target-latency", value_name = "TIME", value_parser = time(1), group = "target", requires = "auto_seats")]
    target_latency_ms: Option<u64>,
    /// … so that so much of the service works: 70 for 70 % of --knee; below 100.
    #[arg(
        long,
        value_name = "PERCENT",
        group = "target",
        requires = "auto_seats"
    )]
    target_load: Option<f64>,
}

/// The dispatcher of a line with `--admission called`.
#[derive(Debug, Args)]
#[command(next_help_heading = "The dispatcher, with --admission called")]
struct CallFlags {
    /// Calls the next one so long after a seat is free for somebody who waits (default 1s).
    #[arg(long = "call-after", value_name = "TIME", value_parser = time(0), conflicts_with = "call_every_ms")]
    call_after_ms: Option<u64>,
    /// Calls in rounds, at this interval.
    #[arg(long = "call-every", value_name = "TIME", value_parser = time(1))]
    call_every_ms: Option<u64>,
    /// With --call-every: how many it calls at most, 1 to 1,024 (default 1).
    #[arg(
        long, value_name = "N", requires = "call_every_ms",
        value_parser = number::between::<u32>(1..=CALL_NEXT_MAX.into())
    )]
    call_n: Option<u32>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "The crowd")]
struct CrowdFlags {
    /// How many shoppers.
    #[arg(
        long, value_name = "N", value_parser = number::between::<u32>(1..=SHOPPERS_MAX.into())
    )]
    shoppers: Option<u32>,
    /// When they come: in waves, at a steady pace, or ever more.
    #[arg(long, value_enum, value_name = "CURVE")]
    arrival: Option<Curve>,
    /// From the first to the last.
    #[arg(long = "within", value_name = "TIME", value_parser = time(0))]
    within_ms: Option<u64>,
    /// With --arrival burst: how many waves (default 10).
    #[arg(long, value_name = "N", value_parser = number::between::<u32>(1..=1_000_000))]
    waves: Option<u32>,
    /// How many stand at the door at time 0.
    #[arg(long, value_name = "PERCENT")]
    early_percent: Option<f64>,
    /// Checkout takes anything up to this, equally likely.
    #[arg(
        long = "service-max",
        value_name = "TIME",
        conflicts_with = "service_median_ms",
        value_parser = time(0)
    )]
    service_max_ms: Option<u64>,
    /// Checkout is log-normal: half are quicker than this.
    #[arg(long = "service-median", value_name = "TIME", value_parser = time(0))]
    service_median_ms: Option<u64>,
    /// … and this is the spread of the logarithm (default 0.7).
    #[arg(long, value_name = "X", requires = "service_median_ms")]
    service_sigma: Option<f64>,
    /// How often somebody gives up at a poll.
    #[arg(long, value_name = "PERCENT")]
    give_up_percent: Option<f64>,
    /// How long they wait on average before they give up.
    #[arg(long = "patience", value_name = "TIME", value_parser = time(1))]
    patience_ms: Option<u64>,
    /// How many of the shoppers that give up just stop asking.
    #[arg(long, value_name = "PERCENT")]
    vanish_percent: Option<f64>,
    /// How many don't claim the seat that they get.
    #[arg(long, value_name = "PERCENT")]
    no_show_percent: Option<f64>,
    /// How many vanish from checkout.
    #[arg(long, value_name = "PERCENT")]
    abandon_percent: Option<f64>,
    /// How many units of --quota a shopper wants: 1 to this, equally likely (default 1). See --quota-per-visit.
    #[arg(long, value_name = "UNITS", value_parser = number::between::<u32>(1..=PER_VISIT_MAX.into()))]
    basket_max: Option<u32>,
    /// When shoppers that do not watch ask again.
    #[arg(long, value_enum, value_name = "HOW")]
    poll: Option<Poll>,
    /// With --poll random: the longest pause (default 30s).
    #[arg(long = "poll-max", value_name = "TIME", value_parser = time(1))]
    poll_max_ms: Option<u64>,
    /// How many watch the line's events.
    #[arg(long, value_name = "PERCENT")]
    watch_percent: Option<f64>,
    /// What part of the crowd goes to which lane: one part for each, in the order of the line's.
    /// Without it the crowd is spread evenly.
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    lane_mix: Vec<f64>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Preset {
    /// The seed article's test: 500 seats, 10,000 within ten seconds, polls up to 30 s apart.
    Poc,
    /// An hour of a line with a few hundred waiting, to judge forecasts by.
    Steady,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Compare {
    /// Every departure moves admission on, and one timeout counts for all.
    Naive,
    /// The seats stay as they are set.
    Fixed,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Curve {
    Burst,
    Steady,
    Ramp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Poll {
    /// Up to --poll-max after the last answer, whatever `poll_after_ms` says.
    Random,
    /// As the answer says.
    #[value(name = "told")]
    AsAnswered,
}

/// A duration of at least so many milliseconds.
fn time(least_ms: u64) -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    duration::between(least_ms..=DURATION_MS_MAX)
}

/// `5..200`
fn bounds(text: &str) -> Result<(u32, u32), String> {
    let bounds = text.split_once("..");
    let bounds = bounds.and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
    bounds.ok_or_else(|| format!("{text:?} is not of the form 5..200"))
}

const CALL_AFTER_MS: u64 = 1_000;
const WAVES: u32 = 10;
const SIGMA: f64 = 0.7;
const POLL_MAX_MS: u64 = 30_000;

impl RehearseArgs {
    /// The rehearsal that the flags ask for, not yet checked but for the settings.
    ///
    /// # Errors
    /// A setting is out of its range.
    pub fn config(self) -> Result<Config, WrongUsage> {
        let mut config = match self.preset {
            Preset::Poc => Config::poc(),
            Preset::Steady => Config::steady(),
        };
        let mut patch = self.settings.patch(&[])?;
        if self.open_at_ms.is_some() && patch.phase.is_none() {
            patch.phase = Some(Change::Set(Phase::PreOpen));
        }
        let settings = config.settings.with(&patch);
        config.settings = settings.map_err(|field| WrongUsage(field.to_string()))?;
        config.compare_naive = matches!(self.compare, Some(Compare::Naive));
        config.compare_fixed = matches!(self.compare, Some(Compare::Fixed));
        self.service.change(&mut config)?;
        if config.compare_fixed && config.auto_seats.is_none() {
            return Err(without_effect("--compare fixed", "--auto-seats"));
        }
        set(&mut config.seed, self.seed);
        set(&mut config.net_delay_ms, self.net_delay_ms);
        set(&mut config.until_ms, self.until_ms);
        config.open_at_ms = self.open_at_ms;
        match (self.starts_at_ms, config.settings.schedule.is_empty()) {
            (Some(_), true) => return Err(without_effect("--starts-at", "--schedule")),
            (None, false) => {
                let wrong = "--schedule needs --starts-at, the wall clock at the start";
                return Err(WrongUsage(wrong.to_owned()));
            }
            (given, _) => set(&mut config.starts_at_ms, given),
        }
        if self.transaction_rate.is_some() && config.settings.release_on_claim {
            // Nobody is in checkout.
            let needed = "--release-on-claim false";
            return Err(without_effect("--transaction-rate", needed));
        }
        config.transaction_rate = self.transaction_rate;
        config.calls = self.calls.calls(&config)?;
        if self.open_at_ms.is_some_and(|at_ms| at_ms > config.until_ms) {
            let until = duration::typed(config.until_ms);
            return Err(WrongUsage(format!("--open-at: at most --until, {until}")));
        }
        self.crowd.change(&mut config.crowd)?;
        Ok(config)
    }
}

impl ServiceFlags {
    fn change(self, config: &mut Config) -> Result<(), WrongUsage> {
        if self.knee.is_some() && config.settings.release_on_claim {
            // Nobody is in checkout.
            return Err(without_effect("--knee", "--release-on-claim false"));
        }
        config.slowdown = self.knee.map(|knee| Slowdown {
            knee,
            power: self.knee_power.unwrap_or(1),
        });
        let latency = self.target_latency_ms.map(Duration::from_millis);
        let target = latency.map(Target::Latency);
        let target = target.or(self
            .target_load
            .map(|percent| Target::Load(percent / 100.0)));
        if let (Some((min, max)), Some(target)) = (self.auto_seats, target) {
            let auto = AutoSeats::new(min, max, target);
            config.auto_seats =
                Some(auto.map_err(|bad| WrongUsage(format!("--auto-seats: {bad}")))?);
        }
        Ok(())
    }
}

impl CallFlags {
    fn calls(&self, config: &Config) -> Result<Option<Calls>, WrongUsage> {
        let given = [
            (self.call_after_ms.is_some(), "--call-after"),
            (self.call_every_ms.is_some(), "--call-every"),
        ];
        let given = given.into_iter().find(|(is_given, _)| *is_given);
        match (given, config.is_called()) {
            (Some((_, flag)), false) => Err(without_effect(flag, "--admission called")),
            (None, false) => Ok(None),
            (_, true) => Ok(Some(match self.call_every_ms {
                Some(every_ms) => Calls::Rounds {
                    every_ms,
                    n: self.call_n.unwrap_or(1),
                },
                None => Calls::PerSeat {
                    after_ms: self.call_after_ms.unwrap_or(CALL_AFTER_MS),
                },
            })),
        }
    }
}

impl CrowdFlags {
    fn change(self, crowd: &mut Crowd) -> Result<(), WrongUsage> {
        crowd.arrival = self.arrival(crowd.arrival)?;
        if let Some(max_ms) = self.service_max_ms {
            crowd.service = Service::Uniform { max_ms };
        }
        if let Some(median_ms) = self.service_median_ms {
            let sigma = self.service_sigma.unwrap_or(SIGMA);
            crowd.service = Service::LogNormal { median_ms, sigma };
        }
        crowd.polls = self.polls(crowd.polls)?;
        crowd.patience_ms = self.patience_ms.or(crowd.patience_ms);
        set(&mut crowd.shoppers, self.shoppers);
        set(&mut crowd.early_percent, self.early_percent);
        set(&mut crowd.give_up_percent, self.give_up_percent);
        set(&mut crowd.vanish_percent, self.vanish_percent);
        set(&mut crowd.no_show_percent, self.no_show_percent);
        set(&mut crowd.abandon_percent, self.abandon_percent);
        set(&mut crowd.basket_max, self.basket_max);
        set(&mut crowd.watch_percent, self.watch_percent);
        if !self.lane_mix.is_empty() {
            crowd.lane_mix = self.lane_mix;
        }
        Ok(())
    }

    /// The curve of the flags, or else of the preset.
    fn arrival(&self, preset: Arrival) -> Result<Arrival, WrongUsage> {
        let within_ms = self.within_ms.unwrap_or(preset.within_ms());
        let (curve, waves) = match preset {
            Arrival::Burst { waves, .. } => (Curve::Burst, waves),
            Arrival::Steady { .. } => (Curve::Steady, WAVES),
            Arrival::Ramp { .. } => (Curve::Ramp, WAVES),
        };
        match (self.arrival.unwrap_or(curve), self.waves) {
            (Curve::Burst, given) => Ok(Arrival::Burst {
                waves: given.unwrap_or(waves),
                within_ms,
            }),
            (_, Some(_)) => Err(without_effect("--waves", "--arrival burst")),
            (Curve::Steady, None) => Ok(Arrival::Steady { within_ms }),
            (Curve::Ramp, None) => Ok(Arrival::Ramp { within_ms }),
        }
    }

    fn polls(&self, preset: Polls) -> Result<Polls, WrongUsage> {
        let (how, max_ms) = match preset {
            Polls::Random { max_ms } => (Poll::Random, max_ms),
            Polls::AsAnswered => (Poll::AsAnswered, POLL_MAX_MS),
        };
        match (self.poll.unwrap_or(how), self.poll_max_ms) {
            (Poll::Random, given) => Ok(Polls::Random {
                max_ms: given.unwrap_or(max_ms),
            }),
            (Poll::AsAnswered, Some(_)) => Err(without_effect("--poll-max", "--poll random")),
            (Poll::AsAnswered, None) => Ok(Polls::AsAnswered),
        }
    }
}

fn without_effect(flag: &str, needed: &str) -> WrongUsage {
    WrongUsage(format!("{flag} has no effect without {needed}"))
}

fn set<T>(value: &mut T, flag: Option<T>) {
    if let Some(flag) = flag {
        *value = flag;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Probe {
        #[command(flatten)]
        args: RehearseArgs,
    }

    fn config(words: &str) -> Config {
        let words = std::iter::once("probe").chain(words.split_whitespace());
        Probe::try_parse_from(words).unwrap().args.config().unwrap()
    }

    #[test]
    fn without_flags_it_is_the_preset() {
        assert_eq!(config(""), Config::steady());
        assert_eq!(config("--preset poc"), Config::poc());
    }

    #[test]
    fn flags_change_the_preset() {
        let config = config(
            "--preset poc --seats 7 --poll told --arrival ramp --service-median 900ms \
             --watch-percent 12.5 --compare naive --seed 9 --lane-mix 1,2 --transaction-rate 2.5",
        );
        assert_eq!((config.settings.seats, config.seed), (7, 9));
        assert_eq!(config.crowd.polls, Polls::AsAnswered);
        assert_eq!(config.crowd.arrival, Arrival::Ramp { within_ms: 10_000 });
        let service = Service::LogNormal {
            median_ms: 900,
            sigma: 0.7,
        };
        assert_eq!(config.crowd.service, service);
        assert_eq!(config.crowd.lane_mix, [1.0, 2.0]);
        assert_eq!(config.transaction_rate, Some(2.5));
        assert!(config.compare_naive && config.crowd.watch_percent == 12.5);
    }

    #[test]
    fn a_dispatcher_calls_where_tokens_are_called() {
        assert_eq!(config("").calls, None);
        for (words, calls) in [
            ("", Calls::PerSeat { after_ms: 1_000 }),
            ("--call-after 0s", Calls::PerSeat { after_ms: 0 }),
            (
                "--call-every 2s",
                Calls::Rounds {
                    every_ms: 2_000,
                    n: 1,
                },
            ),
            (
                "--call-every 1m --call-n 7",
                Calls::Rounds {
                    every_ms: 60_000,
                    n: 7,
                },
            ),
        ] {
            let config = config(&format!("--admission called {words}"));
            assert_eq!(config.calls, Some(calls), "{words}");
        }
    }

    #[test]
    fn seats_follow_a_service() {
        let knee = |words: &str| config(words).slowdown;
        assert_eq!(knee(""), None);
        assert_eq!(knee("--knee 8"), Some(Slowdown { knee: 8, power: 1 }));
        assert_eq!(
            knee("--knee 8 --knee-power 2"),
            Some(Slowdown { knee: 8, power: 2 })
        );
        for (words, target) in [
            (
                "--target-latency 2s",
                Target::Latency(Duration::from_secs(2)),
            ),
            ("--target-load 70", Target::Load(0.7)),
        ] {
            let config = config(&format!(
                "--knee 8 --auto-seats 2..64 {words} --compare fixed"
            ));
            assert_eq!(config.auto_seats, AutoSeats::new(2, 64, target).ok());
            assert!(config.compare_fixed && !config.compare_naive);
        }
    }

    #[test]
    fn flags_that_need_others_are_refused_without_them() {
        for words in [
            "--knee-power 2",
            "--auto-seats 2..64 --target-load 70",
            "--knee 8 --auto-seats 2..64",
            "--knee 8 --target-load 70",
            "--knee 8 --auto-seats 2..64 --target-load 70 --target-latency 1s",
            "--knee 8 --auto-seats 2-64 --target-load 70",
        ] {
            let words = std::iter::once("probe").chain(words.split_whitespace());
            assert!(Probe::try_parse_from(words.clone()).is_err(), "{words:?}");
        }
    }

    #[test]
    fn a_line_that_opens_later_is_pre_open_by_default() {
        let phase = |words| config(words).settings.phase;
        assert_eq!(phase("--open-at 5s"), Phase::PreOpen);
        assert_eq!(phase("--open-at 5s --phase closed"), Phase::Closed);
        assert_eq!(config("--open-at 5s").open_at_ms, Some(5_000));
    }

    #[test]
    fn flags_without_effect_and_settings_out_of_range_are_wrong_usage() {
        for words in [
            "--until 1m --open-at 61s",
            "--arrival steady --waves 3",
            "--preset steady --waves 3",
            "--poll told --poll-max 500ms",
            "--call-after 5s",
            "--call-every 5s --admission auto",
            "--transaction-rate 5 --release-on-claim true",
            "--starts-at 2026-11-22T12:00:00+08:00",
            "--preset steady --poll-max 500ms",
            "--compare fixed",
            "--knee 8 --release-on-claim true",
            "--knee 8 --auto-seats 9..8 --target-load 70",
            "--knee 8 --auto-seats 2..64 --target-load 0",
        ] {
            let words = std::iter::once("probe").chain(words.split_whitespace());
            let probe = Probe::try_parse_from(words.clone()).unwrap();
            assert!(probe.args.config().is_err(), "{words:?}");
        }
        let steady = config("--preset steady --poll random --poll-max 500ms");
        assert_eq!(steady.crowd.polls, Polls::Random { max_ms: 500 });
    }
}
