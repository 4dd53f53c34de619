//! The journal of a line as tables.

use std::time::{Duration, UNIX_EPOCH};

use comfy_table::Cell;
use nowserving_client::{
    Explained, JournalEntryReply, JournalReply, KickSelectorReply, LaneName, LineReply,
    OvertakerReply, SettingChangeReply, SettingsReply,
};
use nowserving_line::Settings;

use super::{Sheet, duration, number, settings};
use nowserving_insight::settings::shown_name;
use nowserving_terminal::output::Output;

/// The last moment that has a date of four digits: 9999-12-31.
const DATE_MS_MAX: u64 = 253_402_300_799_999;

/// The entries; with a token, then the tokens admitted before it.
pub fn journal(journal: &JournalReply, output: &Output) -> String {
    let mut text = if journal.entries.is_empty() {
        "nothing is in the journal".to_owned()
    } else {
        entries(&journal.entries, output)
    };
    if let Some(next) = journal.next {
        text.push_str(&format!("\nmore with --after {next}"));
    }
    if let Some(explained) = &journal.explain {
        text.push('\n');
        text.push_str(&explain(explained, &journal.entries, output));
    }
    text
}

fn entries(entries: &[JournalEntryReply], output: &Output) -> String {
    let header = "version, time (UTC), lane, token, what, after";
    let mut sheet = Sheet::new(header, output);
    for entry in entries {
        let since = entry.entered_at_ms.map(|ms| entry.at_ms.saturating_sub(ms));
        sheet.row(vec![
            number(entry.version),
            Cell::new(clock(entry.at_ms)),
            Cell::new(entry.lane.as_ref().map_or("-", LaneName::as_str)),
            number(or_dash(entry.token)),
            Cell::new(what(entry)),
            number(or_dash(since.map(duration))),
        ]);
    }
    sheet.text()
}

/// What an entry is about, in words.
pub fn what(entry: &JournalEntryReply) -> String {
    let mut text = entry.what.clone();
    if let Some(ms) = entry.scheduled_at_ms {
        text.push_str(&format!(" of {}", clock(ms)));
    }
    if let Some(changes) = &entry.changes {
        text.push_str(&format!(": {}", self::changes(changes)));
    }
    if entry.what == "capacity_told" {
        let seats = entry.seats.map(|seats| format!(": {seats} seats"));
        text.push_str(
            seats
                .as_deref()
                .unwrap_or(": the setting is in force again"),
        );
    }
    if let Some(took_part) = entry.took_part {
        text.push_str(&format!(": {took_part} took part"));
    }
    if let (Some(rows), Some(entered)) = (entry.rows, entry.entered) {
        text.push_str(&format!(": {rows} rows done, {entered} entered"));
    }
    if let Some(position) = entry.position {
        text.push_str(&format!(" at position {position}"));
    }
    if let (Some(lane), Some(token)) = (&entry.to_lane, entry.to_token) {
        text.push_str(&format!(" to {lane} {token}"));
    }
    if let Some(epoch) = entry.epoch {
        text.push_str(&format!(", epoch {epoch}"));
    }
    if let Some(selector) = &entry.selector {
        text.push_str(&format!(": {}", kicked(selector)));
    }
    if let Some(by) = &entry.by {
        text.push_str(&format!(", by {by}"));
    }
    if let Some(reason) = &entry.reason {
        text.push_str(&format!(", {reason}"));
    }
    if let Some(units) = entry.units.filter(|units| *units != 1) {
        text.push_str(&format!(", {units} units"));
    }
    if let Some(operator) = &entry.operator {
        text.push_str(&format!(", asked for by {operator}"));
    }
    if let Some(reason) = &entry.operator_reason {
        text.push_str(&format!(", {reason}"));
    }
    if entry.absolute {
        text.push_str(", lane absolute");
    }
    if let Some(boost_ms) = entry.boost_ms {
        text.push_str(&format!(", lane boost {}", duration(boost_ms)));
    }
    text
}

/// `lane vip, waiting`
fn kicked(selector: &KickSelectorReply) -> String {
    let parts = [
        selector.tokens.map(|count| format!("{count} by number")),
        selector.keys.map(|count| format!("{count} by key")),
        selector
            .idle_over_ms
            .map(|ms| format!("idle over {}", duration(ms))),
        selector.lane.as_ref().map(|lane| format!("lane {lane}")),
        selector.all.then(|| "all".to_owned()),
        selector.state.clone(),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join(", ")
}

/// `seats 5 → 7; call_ahead 0 → 3`
pub fn changes(changes: &[SettingChangeReply]) -> String {
    let changes: Vec<String> = changes.iter().map(change).collect();
    match changes.is_empty() {
        true => "nothing".to_owned(),
        false => changes.join("; "),
    }
}

/// What a new line has that is not default, after what it must have: `seats 50, queue_limit 10000, phase pre_open`.
pub fn created(made: &LineReply) -> String {
    let given = &made.settings;
    let least = Settings::new(given.seats, given.queue_limit);
    let more = SettingChangeReply::between(&SettingsReply::from(&least), given);
    let must = ["seats", "queue_limit"]
        .into_iter()
        .zip([given.seats, given.queue_limit]);
    let must = must.map(|(name, number)| format!("{} {number}", shown_name(name)));
    let more = more.iter().map(|it| {
        let value = settings::text(&it.setting, &it.to);
        format!("{} {value}", shown_name(&it.setting))
    });
    let all: Vec<String> = must.chain(more).collect();
    format!("created {}: {}", made.line.as_str(), all.join(", "))
}

fn change(change: &SettingChangeReply) -> String {
    let name = shown_name(&change.setting);
    let value = |value| settings::text(&change.setting, value);
    format!("{name} {} → {}", value(&change.from), value(&change.to))
}

fn explain(explained: &Explained, entries: &[JournalEntryReply], output: &Output) -> String {
    let name = format!("{} {}", explained.lane, explained.token);
    let Some(entered_at_ms) = explained.entered_at_ms else {
        return format!("{name}: its entries are no longer kept");
    };
    let admitted = entries
        .iter()
        .find(|entry| ["admitted", "taken"].contains(&entry.what.as_str()));
    let until = match admitted {
        Some(entry) => {
            let waited_ms = entry.at_ms.saturating_sub(entered_at_ms);
            format!("admitted {} later", duration(waited_ms))
        }
        None => "not admitted".to_owned(),
    };
    let mut text = format!(
        "{name} entered at {}, {until}\nadmitted before it: {} earlier tokens of its lane, \
         {} later tokens",
        clock(entered_at_ms),
        explained.own_lane_before,
        explained.overtakers_total,
    );
    if !explained.overtakers.is_empty() {
        text.push('\n');
        text.push_str(&overtakers(explained, entered_at_ms, output));
    }
    let listed = explained.overtakers.len() as u64;
    let unlisted = explained.overtakers_total.saturating_sub(listed);
    if unlisted > 0 {
        text.push_str(&format!("\nand {unlisted} more"));
    }
    if explained.cut {
        text.push_str("\nthe journal does not reach back to when it entered: there may be more");
    }
    text
}

fn overtakers(explained: &Explained, entered_at_ms: u64, output: &Output) -> String {
    let header = "lane, token, entered\nlater by, admitted at, because";
    let mut sheet = Sheet::new(header, output);
    for overtaker in &explained.overtakers {
        let later_ms = overtaker.entered_at_ms.saturating_sub(entered_at_ms);
        sheet.row(vec![
            Cell::new(overtaker.lane.as_str()),
            number(overtaker.token),
            number(duration(later_ms)),
            Cell::new(clock(overtaker.admitted_at_ms)),
            Cell::new(because(overtaker, explained)),
        ]);
    }
    sheet.text()
}

fn because(overtaker: &OvertakerReply, explained: &Explained) -> String {
    let Explained {
        lane: own, token, ..
    } = explained;
    match (overtaker.by.as_str(), overtaker.boost_ms) {
        ("absolute", _) => "its lane was absolute".to_owned(),
        ("boost", Some(ms)) => format!("its lane's boost was larger by {}", duration(ms)),
        ("listed_first", _) => "they tied, and its lane is listed first".to_owned(),
        ("call", _) => "an operator called its lane alone".to_owned(),
        ("draw", _) => "the draw at the opening put it first".to_owned(),
        ("take", _) => "an operator took it out of order".to_owned(),
        ("behind_its_lane", _) if overtaker.lane == *own => {
            format!("a move had put {token} behind it")
        }
        ("behind_its_lane", _) => {
            format!("those before {token} in {own} were not first yet, or the boosts were others")
        }
        (other, _) => other.to_owned(),
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A date and time of day, UTC.
pub fn clock(ms: u64) -> String {
    if ms > DATE_MS_MAX {
        return ms.to_string();
    }
    let time = UNIX_EPOCH + Duration::from_millis(ms);
    let text = humantime::format_rfc3339_millis(time).to_string();
    text.replace('T', " ").trim_end_matches('Z').to_owned()
}
