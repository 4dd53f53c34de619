//! The shoppers, with the random choices made for each before the start.

use crate::config::{Arrival, Config, Crowd, Service};
use crate::dice::Dice;

/// One shopper's nature. All of it is drawn before the run, whatever the line does: two algorithms
/// meet the same crowd.
#[derive(Debug, Clone)]
pub(crate) struct Nature {
    pub(crate) arrives_ms: u64,
    pub(crate) lane: u8,
    pub(crate) service_ms: u64,
    pub(crate) patience_ms: Option<u64>,
    /// Watches the line's events.
    pub(crate) watches: bool,
    /// When it gives up, it doesn't say so.
    pub(crate) vanishes: bool,
    /// Never claims its seat.
    pub(crate) no_show: bool,
    /// Stops in the middle of checkout, without a word.
    pub(crate) abandons: bool,
    /// How many units of a quota it wants.
    pub(crate) basket: u32,
    /// Random choices during the run: pauses between polls, and giving up at them.
    pub(crate) dice: Dice,
}

/// The first of the streams of chance that fill baskets: all else is drawn as it was before there were any.
const BASKETS: u64 = 1 << 32;

/// How quickly a wave of a burst ebbs away, as a part of the time between two waves.
const EBB_PART: f64 = 0.15;

/// Everybody, in the order of their numbers (not of arrival).
pub(crate) fn gather(config: &Config) -> Vec<Nature> {
    let even = vec![1.0; config.settings.lanes.len()];
    let given = &config.crowd.lane_mix;
    let mix = if given.is_empty() { &even } else { given };
    let draw = |no: u32| {
        let dice = |stream: u64| Dice::new(config.seed, u64::from(no) + stream);
        nature(&config.crowd, mix, dice(1), dice(BASKETS))
    };
    (0..config.crowd.shoppers).map(draw).collect()
}

fn nature(crowd: &Crowd, mix: &[f64], mut dice: Dice, mut baskets: Dice) -> Nature {
    // Every draw is made for everybody, in this order, so that changing one setting of the crowd
    // leaves all else about it as it was.
    let early = dice.percent(crowd.early_percent);
    let arrives_ms = arrival_ms(crowd.arrival, &mut dice);
    let service_ms = service_ms(crowd.service, &mut dice);
    let patience = dice.exponential(1.0);
    let lane = lane(mix, dice.unit());
    let mean_ms = crowd.patience_ms;
    Nature {
        arrives_ms: if early { 0 } else { arrives_ms },
        lane,
        service_ms,
        patience_ms: mean_ms.map(|mean_ms| (patience * mean_ms as f64) as u64),
        watches: dice.percent(crowd.watch_percent),
        vanishes: dice.percent(crowd.vanish_percent),
        no_show: dice.percent(crowd.no_show_percent),
        abandons: dice.percent(crowd.abandon_percent),
        basket: 1 + baskets.below(crowd.basket_max.into()) as u32,
        dice,
    }
}

fn arrival_ms(arrival: Arrival, dice: &mut Dice) -> u64 {
    let (place, depth) = (dice.unit(), dice.exponential(1.0));
    let part = match arrival {
        Arrival::Burst { waves, .. } => {
            let waves = f64::from(waves);
            ((place * waves).floor() + depth * EBB_PART) / waves
        }
        Arrival::Steady { .. } => place,
        // Its density grows in proportion to the time.
        Arrival::Ramp { .. } => libm::sqrt(place),
    };
    let within_ms = arrival.within_ms();
    ((part * within_ms as f64) as u64).min(within_ms)
}

fn service_ms(service: Service, dice: &mut Dice) -> u64 {
    match service {
        Service::Uniform { max_ms } => dice.below(max_ms.saturating_add(1)),
        Service::LogNormal { median_ms, sigma } => dice.log_normal(median_ms as f64, sigma) as u64,
    }
}

fn lane(mix: &[f64], chance: f64) -> u8 {
    let mut left = chance * mix.iter().sum::<f64>();
    for (lane, part) in (0..).zip(mix) {
        if left < *part {
            return lane;
        }
        left -= part;
    }
    0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{LaneName, LaneSettings};

    use super::*;

    #[test]
    fn a_crowd_comes_when_it_should_and_mixes_as_asked() {
        let mut config = Config::poc();
        config.crowd.lane_mix = vec![3.0, 0.0, 1.0]; // not validated: it has one lane only
        let crowd = gather(&config);
        assert_eq!(crowd.len(), 10_000);
        assert!(crowd.iter().all(|one| one.arrives_ms <= 10_000));
        assert!(crowd.iter().all(|one| one.service_ms <= 5_000));
        let just_after = crowd.iter().filter(|one| one.arrives_ms % 1_000 < 500);
        assert!(just_after.count() > 9_000, "in waves");
        let lanes = [0, 1, 2].map(|lane| crowd.iter().filter(|one| one.lane == lane).count());
        assert!(
            (7_300..7_700).contains(&lanes[0]) && lanes[1] == 0,
            "{lanes:?}"
        );
    }

    #[test]
    fn without_a_mix_every_lane_gets_as_many() {
        let mut config = Config::poc();
        let lane = |name: &str| LaneSettings::new(LaneName::try_from(name).unwrap());
        config.settings.lanes = ["a", "b", "c", "d"].map(lane).into();
        let crowd = gather(&config);
        for no in 0..4 {
            let many = crowd.iter().filter(|one| one.lane == no).count();
            assert!((2_400..2_600).contains(&many), "lane {no}: {many}");
        }
    }

    #[test]
    fn a_ramp_rises() {
        let mut config = Config::poc();
        config.crowd.arrival = Arrival::Ramp { within_ms: 1_000 };
        let late = gather(&config)
            .iter()
            .filter(|one| one.arrives_ms >= 500)
            .count();
        assert!((7_300..7_700).contains(&late), "three quarters: {late}");
    }
}
