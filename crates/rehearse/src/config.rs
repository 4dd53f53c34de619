//! The configuration of a rehearsal: the crowd, the line, the network between them.

use nowserving_adapt::{AutoSeats, Target};
use nowserving_line::{Admission, BadField, CALL_MAX, Change, PER_VISIT_MAX, Phase, Settings};

/// The most shoppers of one rehearsal.
pub const SHOPPERS_MAX: u32 = 1_000_000;
/// The longest virtual time of one rehearsal, in milliseconds: seven days.
pub const DURATION_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;

/// The arrival times of the crowd.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrival {
    /// In this many waves, evenly within `within_ms`; each wave swells at once and ebbs away.
    Burst {
        /// How many waves, at least 1.
        waves: u32,
        /// The time from the first wave to after the last.
        within_ms: u64,
    },
    /// At random, equally likely at any time within `within_ms` (a Poisson stream).
    Steady {
        /// The time from the first to the last.
        within_ms: u64,
    },
    /// At random, ever more of them until `within_ms`.
    Ramp {
        /// The time from the first to the last.
        within_ms: u64,
    },
}

impl Arrival {
    /// From the first to the last, in milliseconds.
    pub fn within_ms(self) -> u64 {
        match self {
            Arrival::Burst { within_ms, .. }
            | Arrival::Steady { within_ms }
            | Arrival::Ramp { within_ms } => within_ms,
        }
    }
}

/// How long a shopper is in checkout, from the answer to its claim until it is done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Service {
    /// Anything from 0 to `max_ms`, equally likely.
    Uniform { max_ms: u64 },
    /// Log-normal: most are quick, a few take very long.
    LogNormal {
        /// Half of them are quicker than this.
        median_ms: u64,
        /// The spread of the logarithm, 0 to 5.
        sigma: f64,
    },
}

/// When shoppers that don't watch ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Polls {
    /// At random up to `max_ms` after the last answer, whatever that says.
    Random { max_ms: u64 },
    /// When the answer says: `poll_after_ms`.
    AsAnswered,
}

/// When the dispatcher of a line with `admission` `called` calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// The next one, for each seat that is free while anybody waits, so long after that began.
    PerSeat {
        /// 0 to [`DURATION_MS_MAX`].
        after_ms: u64,
    },
    /// In rounds.
    Rounds {
        /// The time between two calls, 1 to [`DURATION_MS_MAX`].
        every_ms: u64,
        /// How many tokens a call admits at most, 1 to 1,024.
        n: u32,
    },
}

/// A service that gets slower by its load: it serves so many checkouts at once at full speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slowdown {
    /// 1 to 1,000,000.
    pub knee: u32,
    /// With `c` checkouts, more than these, each has (knee / c) to this power of its speed. 1: they share what there is.
    /// From 2 on the service serves fewer the more there are at once. 1 to 4.
    pub power: u32,
}

/// The behaviour of the crowd.
#[derive(Debug, Clone, PartialEq)]
pub struct Crowd {
    /// How many shoppers, 1 to [`SHOPPERS_MAX`].
    pub shoppers: u32,
    pub arrival: Arrival,
    /// How many of them stand at the door when it opens, 0 to 100 percent: at time 0, before
    /// `arrival` begins.
    pub early_percent: f64,
    /// How long they are in checkout.
    pub service: Service,
    /// The chance to give up at each answer that says to wait, 0 to 100 percent.
    pub give_up_percent: f64,
    /// Gives up when it has waited for longer; drawn for each shopper, with this mean. `None`:
    /// never for that reason.
    pub patience_ms: Option<u64>,
    /// How many of the shoppers that give up don't say so, 0 to 100 percent.
    pub vanish_percent: f64,
    /// How many don't claim the seat that they get, 0 to 100 percent.
    pub no_show_percent: f64,
    /// How many vanish from checkout without a word, 0 to 100 percent.
    pub abandon_percent: f64,
    /// How many units of a quota a shopper wants: anything from 1 to this, equally likely. It uses as many of them as its
    /// seat reserves. 1 to [`PER_VISIT_MAX`].
    pub basket_max: u32,
    /// When shoppers that don't watch ask again.
    pub polls: Polls,
    /// How many watch the line's events, 0 to 100 percent. They also ask when the answers say, so that
    /// their tokens live on, as the SDK does.
    pub watch_percent: f64,
    /// The share of the crowd for each lane, in the order of the line's lanes. Shares are relative.
    /// Empty: equal shares.
    pub lane_mix: Vec<f64>,
}

/// The parameters of a rehearsal. Equal parameters give equal results.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Everything that is left to chance follows from this.
    pub seed: u64,
    /// The line's settings.
    pub settings: Settings,
    pub crowd: Crowd,
    /// How long a message takes, each way, 0 to 60,000.
    pub net_delay_ms: u64,
    /// The rehearsal ends when everybody has gone home, and here at the latest (milliseconds of
    /// virtual time, 1 to [`DURATION_MS_MAX`]).
    pub until_ms: u64,
    /// The wall clock at the start: the times of the line's `schedule` are of that clock.
    pub starts_at_ms: u64,
    /// When the line is put in phase `open`; `None`: it stays in the phase of its settings.
    pub open_at_ms: Option<u64>,
    /// How many transactions a second the backend behind the checkout makes: a checkout queues for
    /// its own and holds its seat meanwhile. `None`: no limit.
    pub transaction_rate: Option<f64>,
    /// Checkouts take longer while there are many. `None`: each takes its time.
    pub slowdown: Option<Slowdown>,
    /// The seats follow the service, which is told by `slowdown`. `None`: they are those of the settings.
    pub auto_seats: Option<AutoSeats>,
    /// Who calls while the line's `admission` is `called`; needed exactly if it is at any time.
    pub calls: Option<Calls>,
    /// Also run the seed article's algorithm on the same crowd.
    pub compare_naive: bool,
    /// Also run the same crowd with the seats of the settings. Only with `auto_seats`.
    pub compare_fixed: bool,
}

/// A rehearsal that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadConfig {
    /// A field is out of its range.
    #[error(transparent)]
    Field(#[from] BadField),
    /// The line did not take what the rehearsal needs.
    #[error("the line cannot be made: {0}")]
    Line(String),
}

impl Config {
    /// The seed article's test: 500 seats, a crowd within ten seconds, checkout of up to five,
    /// polls at random up to 30 s apart whatever is told, one in a thousand giving up at each.
    pub fn poc() -> Self {
        let mut settings = Settings::new(500, 20_000);
        // The article's one timeout must outlast its polls; ours are the same for comparison.
        settings.waiting_idle_timeout_ms = 60_000;
        settings.claim_timeout_ms = 60_000;
        Self {
            seed: 1,
            settings,
            crowd: Crowd {
                shoppers: 10_000,
                arrival: Arrival::Burst {
                    waves: 10,
                    within_ms: 10_000,
                },
                service: Service::Uniform { max_ms: 5_000 },
                give_up_percent: 0.1,
                polls: Polls::Random { max_ms: 30_000 },
                ..Crowd::patient(10_000)
            },
            net_delay_ms: 20,
            until_ms: 3_600_000,
            starts_at_ms: 0,
            open_at_ms: None,
            transaction_rate: None,
            slowdown: None,
            auto_seats: None,
            calls: None,
            compare_naive: false,
            compare_fixed: false,
        }
    }

    /// A line for forecasts: doors open on a crowd of a few hundred, then as many come as are
    /// served, for an hour; checkouts as varied as people are; some lose patience.
    pub fn steady() -> Self {
        let mut settings = Settings::new(100, 5_000);
        settings.waiting_idle_timeout_ms = 120_000;
        settings.claim_timeout_ms = 60_000;
        settings.checkout_timeout_ms = 600_000;
        Self {
            seed: 1,
            settings,
            crowd: Crowd {
                shoppers: 10_000,
                arrival: Arrival::Steady {
                    within_ms: 3_600_000,
                },
                early_percent: 4.0,
                service: Service::LogNormal {
                    median_ms: 30_000,
                    sigma: 0.7,
                },
                patience_ms: Some(1_800_000),
                vanish_percent: 30.0,
                no_show_percent: 0.5,
                abandon_percent: 0.5,
                watch_percent: 50.0,
                ..Crowd::patient(10_000)
            },
            net_delay_ms: 20,
            until_ms: 4 * 3_600_000,
            starts_at_ms: 0,
            open_at_ms: None,
            transaction_rate: None,
            slowdown: None,
            auto_seats: None,
            calls: None,
            compare_naive: false,
            compare_fixed: false,
        }
    }

    /// Whether the line's schedule changes its phase.
    pub(crate) fn is_opened_by_schedule(&self) -> bool {
        let mut changes = self.settings.schedule.iter();
        changes.any(|change| change.set.phase.is_some())
    }

    /// Whether tokens are called at any time.
    pub fn is_called(&self) -> bool {
        let mut changes = self.settings.schedule.iter();
        let called = Some(Change::Set(Admission::Called));
        self.settings.admission == Admission::Called
            || changes.any(|change| change.set.admission == called)
    }

    /// Whether every field is within its range.
    pub fn validate(&self) -> Result<(), BadConfig> {
        self.settings.validate()?;
        let crowd = &self.crowd;
        within(
            "shoppers",
            u64::from(crowd.shoppers),
            1,
            SHOPPERS_MAX.into(),
        )?;
        within("net_delay_ms", self.net_delay_ms, 0, 60_000)?;
        within("until_ms", self.until_ms, 1, DURATION_MS_MAX)?;
        if let Some(open_at_ms) = self.open_at_ms {
            within("open_at_ms", open_at_ms, 0, self.until_ms)?;
            if self.settings.phase == Phase::Open {
                return Err(BadField::new("phase", "not open, with open_at_ms").into());
            }
        }
        if let Some(rate) = self.transaction_rate
            && !(0.001..=1e6).contains(&rate)
        {
            return Err(BadField::new("transaction_rate", "0.001 to 1,000,000").into());
        }
        within(
            "basket_max",
            crowd.basket_max.into(),
            1,
            PER_VISIT_MAX.into(),
        )?;
        if crowd.basket_max > 1 && self.settings.quota.is_none() {
            return Err(BadField::new("basket_max", "only with a quota").into());
        }
        self.validate_auto_seats()?;
        self.validate_calls()?;
        within("within_ms", crowd.arrival.within_ms(), 0, DURATION_MS_MAX)?;
        if let Arrival::Burst { waves, .. } = crowd.arrival {
            within("waves", waves.into(), 1, 1_000_000)?;
        }
        for (field, percent) in [
            ("early_percent", crowd.early_percent),
            ("give_up_percent", crowd.give_up_percent),
            ("vanish_percent", crowd.vanish_percent),
            ("no_show_percent", crowd.no_show_percent),
            ("abandon_percent", crowd.abandon_percent),
            ("watch_percent", crowd.watch_percent),
        ] {
            if !(0.0..=100.0).contains(&percent) {
                return Err(BadField::new(field, "0 to 100").into());
            }
        }
        match crowd.service {
            Service::Uniform { max_ms } => within("service_max_ms", max_ms, 0, DURATION_MS_MAX)?,
            Service::LogNormal { median_ms, sigma } => {
                within("service_median_ms", median_ms, 0, DURATION_MS_MAX)?;
                if !(0.0..=5.0).contains(&sigma) {
                    return Err(BadField::new("service_sigma", "0 to 5").into());
                }
            }
        }
        if let Polls::Random { max_ms } = crowd.polls {
            within("poll_max_ms", max_ms, 1, DURATION_MS_MAX)?;
        }
        if let Some(mean_ms) = crowd.patience_ms {
            within("patience_ms", mean_ms, 1, DURATION_MS_MAX)?;
        }
        self.validate_lane_mix()
    }

    fn validate_auto_seats(&self) -> Result<(), BadField> {
        if let Some(Slowdown { knee, power }) = self.slowdown {
            within("knee", knee.into(), 1, 1_000_000)?;
            within("knee_power", power.into(), 1, 4)?;
            if self.settings.release_on_claim {
                // Nobody is in checkout.
                return Err(BadField::new("knee", "not with release_on_claim"));
            }
        }
        if self.auto_seats.is_some() && self.slowdown.is_none() {
            return Err(BadField::new("auto_seats", "only with knee"));
        }
        let target = self.auto_seats.map(|auto| auto.target());
        if matches!(target, Some(Target::Load(load)) if load >= 1.0) {
            // A service has no more load than all of it, so the seats could only grow.
            return Err(BadField::new("auto_seats", "a load below 100 % of knee"));
        }
        if self.compare_fixed && self.auto_seats.is_none() {
            return Err(BadField::new("compare", "fixed only with auto_seats"));
        }
        Ok(())
    }

    fn validate_calls(&self) -> Result<(), BadField> {
        match self.calls {
            Some(_) if !self.is_called() => Err(BadField::new("calls", "none: nobody is called")),
            None if self.is_called() => Err(BadField::new("calls", "required: nobody calls")),
            Some(Calls::PerSeat { after_ms }) => {
                within("call_after_ms", after_ms, 0, DURATION_MS_MAX)
            }
            Some(Calls::Rounds { every_ms, n }) => {
                within("call_every_ms", every_ms, 1, DURATION_MS_MAX)?;
                within("call_n", n.into(), 1, CALL_MAX.into())
            }
            None => Ok(()),
        }
    }

    fn validate_lane_mix(&self) -> Result<(), BadConfig> {
        let mix = &self.crowd.lane_mix;
        let sane = mix.iter().all(|part| part.is_finite() && *part >= 0.0);
        if !sane || (!mix.is_empty() && mix.iter().sum::<f64>() <= 0.0) {
            return Err(BadField::new("lane_mix", "parts from 0, not all 0").into());
        }
        let (parts, lanes) = (mix.len(), self.settings.lanes.len());
        if parts != 0 && parts != lanes {
            let plural = |n: usize| if n == 1 { "" } else { "s" };
            let (s_parts, s_lanes) = (plural(parts), plural(lanes));
            let wrong = format!("{parts} part{s_parts}, but {lanes} lane{s_lanes}");
            return Err(BadField::new("lane_mix", wrong).into());
        }
        Ok(())
    }
}

impl Crowd {
    /// All at once, one minute each, no shopper gives up, all follow `poll_after_ms`.
    pub fn patient(shoppers: u32) -> Self {
        Self {
            shoppers,
            arrival: Arrival::Steady { within_ms: 0 },
            early_percent: 0.0,
            service: Service::Uniform { max_ms: 120_000 },
            give_up_percent: 0.0,
            patience_ms: None,
            vanish_percent: 0.0,
            no_show_percent: 0.0,
            abandon_percent: 0.0,
            basket_max: 1,
            polls: Polls::AsAnswered,
            watch_percent: 0.0,
            lane_mix: Vec::new(),
        }
    }
}

fn within(field: &'static str, value: u64, least: u64, most: u64) -> Result<(), BadField> {
    if (least..=most).contains(&value) {
        Ok(())
    } else {
        Err(BadField::new(field, format!("{least} to {most}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_valid() {
        assert_eq!(Config::poc().validate(), Ok(()));
        assert_eq!(Config::steady().validate(), Ok(()));
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::poc();
            change(&mut config);
            config.validate().is_err()
        };
        assert!(refused(|c| c.settings.seats = 0));
        assert!(refused(|c| c.crowd.shoppers = 0));
        assert!(refused(|c| c.crowd.shoppers = SHOPPERS_MAX + 1));
        assert!(refused(|c| c.crowd.watch_percent = 100.1));
        assert!(refused(|c| c.crowd.no_show_percent = f64::NAN));
        assert!(refused(|c| c.until_ms = 0));
        assert!(refused(|c| c.crowd.lane_mix = vec![0.0]));
        assert!(refused(|c| c.crowd.lane_mix = vec![1.0; 9]));
        assert!(refused(|c| c.crowd.lane_mix = vec![f64::INFINITY]));
        assert!(refused(|c| c.crowd.polls = Polls::Random { max_ms: 0 }));
        assert!(refused(|c| c.transaction_rate = Some(0.0)));
        assert!(refused(|c| c.transaction_rate = Some(f64::NAN)));
        let slowdown = |knee, power| Some(Slowdown { knee, power });
        let target = Target::Load(0.7);
        let auto = AutoSeats::new(1, 9, target).ok();
        assert!(auto.is_some());
        let all_of_it = AutoSeats::new(1, 9, Target::Load(1.0)).ok();
        assert!(all_of_it.is_some());
        for (slowdown, auto, is_refused) in [
            (slowdown(8, 1), auto, false),
            (slowdown(0, 1), auto, true),
            (slowdown(8, 5), None, true),
            (None, auto, true),
            (slowdown(8, 1), all_of_it, true),
        ] {
            let mut config = Config::steady();
            (config.slowdown, config.auto_seats) = (slowdown, auto);
            assert_eq!(config.validate().is_err(), is_refused, "{slowdown:?}");
            config.compare_fixed = true;
            assert_eq!(config.validate().is_err(), is_refused || auto.is_none());
        }
        assert!(refused(|c| c.open_at_ms = Some(1)), "it is open");
        assert!(refused(|c| {
            c.settings.phase = Phase::PreOpen;
            c.open_at_ms = Some(c.until_ms + 1);
        }));
    }
}
