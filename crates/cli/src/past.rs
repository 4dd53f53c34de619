//! Scheduled changes whose time is past: the line makes them at once (docs/protocol/settings.md).

use std::time::{SystemTime, UNIX_EPOCH};

use nowserving_client::{Change, ScheduledChange, SettingsPatch};
use nowserving_protocol::admin::ScheduledChangeReply;
use nowserving_protocol::time;

use crate::{confirm, tables};
use nowserving_terminal::output::Output;

/// So many changes are named in a question.
const NAMED_MAX: usize = 3;

/// The changes that the line makes at once: the patch itself, and those of its schedule that are past.
pub fn made_at_once(set: &SettingsPatch) -> impl Iterator<Item = &SettingsPatch> {
    std::iter::once(set).chain(by(set, now_ms()).map(|it| &it.set))
}

/// Asks before changes are made at once because their times are past: a mistyped year would open a sale. `unasked`: only
/// notes them.
///
/// # Errors
/// The user does not agree, or cannot be asked.
pub fn ask(
    set: &SettingsPatch,
    unasked: bool,
    dry_run: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let past: Vec<&ScheduledChange> = by(set, now_ms()).collect();
    if !past.is_empty() && !unasked && !dry_run {
        return confirm::ask(&question(&past), output);
    }
    let made = if dry_run { "would be made" } else { "is made" };
    for at_ms in past.iter().map(|it| it.at_ms).filter(|_| !output.json) {
        let at = time::text(at_ms);
        eprintln!("note: the time {at} of the schedule is past: its change {made} at once");
    }
    Ok(())
}

/// Notes which changes to come a new schedule drops: it replaces the one before whole.
pub fn note_dropped(set: &SettingsPatch, before: &[ScheduledChangeReply], output: &Output) {
    for dropped in dropped(set, before).filter(|_| !output.json) {
        let dropped = tables::scheduled(dropped);
        eprintln!("note: this replaces the whole schedule, which no longer has {dropped}");
    }
}

fn dropped<'a>(
    set: &SettingsPatch,
    before: &'a [ScheduledChangeReply],
) -> impl Iterator<Item = &'a ScheduledChangeReply> {
    let kept: Option<Vec<_>> = match &set.schedule {
        Some(Change::Set(schedule)) => {
            Some(schedule.iter().map(ScheduledChangeReply::from).collect())
        }
        // Who unsets it wants it gone.
        Some(Change::Unset) | None => None,
    };
    let before = before.iter();
    before.filter(move |it| kept.as_ref().is_some_and(|kept| !kept.contains(it)))
}

/// `make at once what the schedule has for times that are past (2020-01-01T00:00:00Z phase open)`
fn question(past: &[&ScheduledChange]) -> String {
    let named = past.iter().take(NAMED_MAX);
    let mut named: Vec<String> = named
        .map(|it| tables::scheduled(&ScheduledChangeReply::from(*it)))
        .collect();
    if past.len() > NAMED_MAX {
        named.push(format!("{} more", past.len() - NAMED_MAX));
    }
    let named = named.join("; ");
    format!("make at once what the schedule has for times that are past ({named})")
}

/// What is scheduled for a time until `now_ms`.
fn by(set: &SettingsPatch, now_ms: u64) -> impl Iterator<Item = &ScheduledChange> {
    let schedule = match &set.schedule {
        Some(Change::Set(schedule)) => schedule.as_slice(),
        _ => &[],
    };
    schedule.iter().filter(move |it| it.at_ms <= now_ms)
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_client::Phase;

    use super::*;
    use nowserving_terminal::output::WrongUsage;

    const PLAIN: Output = Output {
        json: false,
        colour: false,
        live: false,
    };

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
        let found: Vec<_> = by(&set, 2_000).map(|it| it.at_ms).collect();
        assert_eq!(found, [1_000]);
        let at_once: Vec<_> = made_at_once(&set).collect();
        assert_eq!(at_once, [&set, &closes, &closes]);
    }

    /// Tests have no terminal.
    #[test]
    fn what_is_past_needs_yes_where_nobody_can_be_asked() {
        let opens = |at_ms| ScheduledChange {
            at_ms,
            set: SettingsPatch {
                phase: Some(Change::Set(Phase::Open)),
                ..SettingsPatch::default()
            },
        };
        let set = |schedule| SettingsPatch {
            schedule: Some(Change::Set(schedule)),
            ..SettingsPatch::default()
        };
        let past = set(vec![opens(0), opens(u64::MAX)]);
        let refused = ask(&past, false, false, &PLAIN).unwrap_err();
        let refused = refused.downcast::<WrongUsage>().unwrap().to_string();
        assert!(
            refused.contains("1970-01-01T00:00:00Z phase open)") && refused.contains("--yes"),
            "{refused}"
        );
        ask(&past, true, false, &PLAIN).unwrap();
        ask(&past, false, true, &PLAIN).unwrap();
        ask(&set(vec![opens(u64::MAX)]), false, false, &PLAIN).unwrap();
        let five: Vec<_> = (0..5).map(opens).collect();
        let five: Vec<_> = five.iter().collect();
        assert!(question(&five).ends_with("; 2 more)"));
    }

    #[test]
    fn a_new_schedule_drops_changes_to_come() {
        let before: Vec<ScheduledChangeReply> = serde_json::from_value(serde_json::json!([
            {"at": "1970-01-01T00:00:01Z", "set": {"seats": 5}},
            {"at": "9000-01-01T00:00:00Z", "set": {"phase": "closed"}},
        ]))
        .unwrap();
        let seats = ScheduledChange {
            at_ms: 1_000,
            set: SettingsPatch {
                seats: Some(Change::Set(5)),
                ..SettingsPatch::default()
            },
        };
        let found = |change| {
            let set = SettingsPatch {
                schedule: change,
                ..SettingsPatch::default()
            };
            let found = dropped(&set, &before).map(|it| it.at.clone());
            found.collect::<Vec<_>>()
        };
        let set = Some(Change::Set(vec![seats]));
        assert_eq!(found(set), ["9000-01-01T00:00:00Z"]);
        assert_eq!(found(Some(Change::Unset)), Vec::<String>::new());
        assert_eq!(found(None), Vec::<String>::new());
    }
}
