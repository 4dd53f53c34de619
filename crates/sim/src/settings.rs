//! What operators set: settings of new lines, and changes of them.

use nowserving_line::{
    AdmissionRate, Change, LANE_DEFAULT, LaneName, LaneSettings, Opening, Phase, Quota, Renew,
    ScheduledChange, Settings, SettingsPatch,
};

use crate::clock::wall_ms;
use crate::random::Random;
use crate::timeline::Time;

/// The name of a lane besides the default one.
const SECOND_LANE: &str = "vip";
/// The label that tells which call made a change.
const CHANGE_LABEL: &str = "change";

/// Of the next seconds.
pub fn schedule(now: Time, settings: &Settings, random: &mut Random) -> Vec<ScheduledChange> {
    let mut at_ms = wall_ms(now, 0);
    let changes = (0..random.between(1, 3)).map(|_| {
        at_ms += random.below(4_000);
        let seats = random.between(1, u64::from(settings.seats) + 2) as u32;
        ScheduledChange {
            at_ms,
            set: SettingsPatch {
                seats: Some(Change::Set(seats)),
                ..SettingsPatch::default()
            },
        }
    });
    changes.collect()
}

pub fn settings(random: &mut Random) -> Settings {
    let mut settings = Settings::new(random.between(2, 8) as u32, random.between(4, 40) as u32);
    settings.labels = common_label().into();
    settings.waiting_idle_timeout_ms = random.between(2_500, 8_000);
    settings.claim_timeout_ms = random.between(1_500, 4_000);
    settings.checkout_timeout_ms = random.between(2_000, 5_000);
    settings.checkout_max_ms = 20_000;
    if random.below(4) == 0 {
        settings.max_wait_ms = Some(random.between(3_000, 12_000));
    }
    if random.below(4) == 0 {
        settings.checkout_expected_ms = Some(random.between(500, 4_000));
    }
    settings.call_ahead = random.below(4) as u32;
    settings.event_key = settings.call_ahead == 1;
    if random.below(4) == 0 {
        settings.call_ahead_ms = random.between(500, 5_000);
    }
    if random.below(4) == 0 {
        settings.position_events = vec![5, 2, 1];
    }
    if random.below(6) == 0 {
        settings.poll_min_ms = random.between(100, 1_000);
    }
    settings.release_on_claim = random.below(6) == 0;
    if random.below(4) == 0 {
        settings.position_cap = Some(random.between(2, 6) as u32);
    }
    if random.below(4) == 0 {
        settings.admission_rate = Some(AdmissionRate {
            per_second_micro: random.between(3_000_000, 12_000_000),
            burst: random.between(1, 5) as u32,
        });
    }
    if random.below(8) == 0 {
        settings.quota = Some(Quota {
            total: random.between(50, 400),
            standby_percent: 20,
            renew: (random.below(2) == 0).then(|| Renew::Every {
                ms: random.between(1_000, 8_000),
            }),
            per_visit: random.between(1, 4) as u32,
        });
    }
    if random.below(3) == 0 {
        let opens_at = random.between(2_000_000, 10_000_000);
        settings.opening = Opening::Draw;
        settings.phase = Phase::PreOpen;
        settings.schedule = vec![ScheduledChange {
            at_ms: wall_ms(opens_at, 0),
            set: SettingsPatch {
                phase: Some(Change::Set(Phase::Open)),
                ..SettingsPatch::default()
            },
        }];
    }
    if random.below(2) == 0 {
        settings.callback_limit = random.between(1, 20) as u32;
    }
    if random.below(2) == 0 {
        settings.seats_when_silent = Some(random.between(1, 3) as u32);
    }
    if random.below(2) == 0
        && let (Ok(first), Ok(second)) = (
            LaneName::try_from(LANE_DEFAULT),
            LaneName::try_from(SECOND_LANE),
        )
    {
        let lane = |name, boost_ms, jump| LaneSettings {
            name,
            boost_ms,
            jump,
            ..LaneSettings::default()
        };
        let back = random.below(3) == 0;
        let boost_ms = random.below(3) * 1_500;
        settings.lanes = vec![lane(first, 0, back), lane(second, boost_ms, true)];
        settings.jumps_max = random.below(4) as u32;
    }
    settings
}

/// Of all lines.
pub fn common_label() -> [(String, String); 1] {
    [("of".to_owned(), "simulation".to_owned())]
}

/// A change that no other is like: its call's number is in it.
pub fn unique_patch(call: usize) -> SettingsPatch {
    let [common] = common_label();
    let labels = [(CHANGE_LABEL.to_owned(), call.to_string()), common];
    SettingsPatch {
        labels: Some(Change::Set(labels.into())),
        ..SettingsPatch::default()
    }
}

/// The number of its call.
pub fn call_of(patch: &SettingsPatch) -> Option<usize> {
    match &patch.labels {
        Some(Change::Set(labels)) => labels.get(CHANGE_LABEL)?.parse().ok(),
        _ => None,
    }
}

pub fn patch(settings: &Settings, call: usize, random: &mut Random) -> SettingsPatch {
    let seats = u64::from(settings.seats);
    let mut patch = unique_patch(call);
    match random.below(6) {
        0 => patch.phase = Some(Change::Set(Phase::Paused)),
        1 => patch.phase = Some(Change::Set(Phase::Draining)),
        2..4 => {
            patch.seats = Some(Change::Set(random.between(1, seats + 2) as u32));
            patch.phase = Some(Change::Set(Phase::Open));
        }
        _ => {
            patch.queue_limit = Some(Change::Set(random.between(4, 40) as u32));
            patch.phase = Some(Change::Set(Phase::Open));
        }
    }
    patch
}
