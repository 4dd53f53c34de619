//! Scheduled changes whose time is past: the line makes them at once (docs/protocol.md, "Line settings").

use std::time::{SystemTime, UNIX_EPOCH};

use nowserving_client::{Change, SettingsPatch};
use nowserving_protocol::time;

use crate::output::Output;

/// The changes that the line makes at once: the patch itself, and those of its schedule that are past.
pub fn made_at_once(set: &SettingsPatch) -> impl Iterator<Item = &SettingsPatch> {
    by(set, now_ms()).map(|(_, set)| set)
}

/// Notes which times of the schedule are past: a mistyped year would open a sale at once.
pub fn note(set: &SettingsPatch, dry_run: bool, output: &Output) {
    let made = if dry_run { "would be made" } else { "is made" };
    for (at_ms, _) in by(set, now_ms()) {
        if let Some(at_ms) = at_ms
            && !output.json
        {
            let at = time::text(at_ms);
            eprintln!("note: the time {at} of the schedule is past: its change {made} at once");
        }
    }
}

/// The patch itself, without a time, and what was scheduled for a time until `now_ms`.
fn by(set: &SettingsPatch, now_ms: u64) -> impl Iterator<Item = (Option<u64>, &SettingsPatch)> {
    let schedule = match &set.schedule {
        Some(Change::Set(schedule)) => schedule.as_slice(),
        _ => &[],
    };
    let past = schedule.iter().filter(move |it| it.at_ms <= now_ms);
    let past = past.map(|it| (Some(it.at_ms), &it.set));
    std::iter::once((None, set)).chain(past)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use nowserving_client::{Phase, ScheduledChange};

    use super::*;

    #[test]
    fn what_is_past_is_made_at_once() {
        let closes = SettingsPatch {
            phase: Some(Change::Set(Phase::Closed)),
            ..SettingsPatch::default()
        };
        let scheduled = |at_ms| ScheduledChange {
            at_ms,
            set: closes.clone(),
        };
        let set = SettingsPatch {
            schedule: Some(Change::Set(vec![scheduled(1_000), scheduled(3_000)])),
            ..SettingsPatch::default()
        };
        let found: Vec<_> = by(&set, 2_000).collect();
        assert_eq!(found, [(None, &set), (Some(1_000), &closes)]);
    }
}
