//! A report as tables.

use std::collections::BTreeMap;

use comfy_table::Cell;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::gaps::{Gap, MissingNumbers};
use super::report::{Report, TokenRow, Totals};
use crate::tables::{Sheet, duration, key_text, many, number};
use nowserving_terminal::output::Output;

/// The report for people.
pub fn report(report: &Report, zone: &TimeZone, output: &Output) -> String {
    let mut parts = Vec::new();
    let of_day = report.day.as_ref();
    let of_day = of_day.map_or(String::new(), |day| format!(" on {day} ({})", report.zone));
    let entered = report.total.entered + report.total.without_entered;
    parts.push(format!("{} entered{of_day}", many(entered, "token")));
    if !report.lines.is_empty() {
        parts.push(totals(report, output));
    }
    for line in &report.lines {
        if let Some(tokens) = &line.tokens {
            parts.push(format!("{}, incarnation {}:", line.line, line.incarnation));
            parts.push(rows(tokens, zone, output));
        }
    }
    parts.extend(remarks(report, zone));
    parts.join("\n")
}

fn totals(report: &Report, output: &Output) -> String {
    let header = "line, lane, entered, admitted, claimed, gone, live, wait:\nmedian, 90 %, 99 %";
    let mut sheet = Sheet::new(header, output);
    for line in &report.lines {
        for lane in &line.lanes {
            sheet.row(total(&line.line, &lane.lane, &lane.totals));
        }
        if line.lanes.len() > 1 {
            sheet.row(total(&line.line, "all", &line.totals));
        }
    }
    if report.lines.len() > 1 {
        sheet.row(total("all", "", &report.total));
    }
    sheet.text()
}

fn total(line: &str, lane: &str, totals: &Totals) -> Vec<Cell> {
    let wait = |ms: Option<u64>| number(ms.map_or_else(|| "-".to_owned(), duration));
    let waits = &totals.waits;
    vec![
        Cell::new(line),
        Cell::new(lane),
        number(totals.entered + totals.without_entered),
        number(admitted(totals)),
        number(totals.claimed),
        Cell::new(counted(&totals.gone)),
        Cell::new(counted(&totals.live)),
        wait(waits.median_ms),
        wait(waits.p90_ms),
        wait(waits.p99_ms),
    ]
}

/// `12`, and `3 taken` of these
fn admitted(totals: &Totals) -> String {
    match totals.taken {
        0 => totals.admitted.to_string(),
        taken => format!("{}\n{taken} taken", totals.admitted),
    }
}

/// `3 completed, 1 left`
fn counted(counts: &BTreeMap<String, u64>) -> String {
    if counts.is_empty() {
        return "-".to_owned();
    }
    let words = counts.iter().map(|(word, count)| format!("{count} {word}"));
    words.collect::<Vec<_>>().join("\n")
}

fn rows(tokens: &[TokenRow], zone: &TimeZone, output: &Output) -> String {
    let header = "lane, token, key, entered, position, waited, admitted, claimed, gone, state";
    let mut sheet = Sheet::new(header, output);
    for row in tokens {
        let at =
            |ms: Option<u64>| Cell::new(ms.map_or_else(|| "-".to_owned(), |ms| clock(ms, zone)));
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let key = row.key.as_ref().map(key_text);
        let mut state = row.reason.as_deref().unwrap_or(row.state).to_owned();
        if row.taken {
            state.push_str(", taken");
        }
        if let Some(former) = row.former.first() {
            state.push_str(&format!(", was {} {}", former.lane, former.token));
        }
        sheet.row(vec![
            Cell::new(&row.lane),
            number(row.token),
            Cell::new(or_dash(key)),
            at(row.entered_at_ms),
            number(or_dash(row.position.map(|n| n.to_string()))),
            number(or_dash(row.waited_ms.map(duration))),
            at(row.admitted_at_ms),
            at(row.claimed_at_ms),
            at(row.gone_at_ms),
            Cell::new(state),
        ]);
    }
    sheet.text()
}

/// What is wrong with the archive.
fn remarks(report: &Report, zone: &TimeZone) -> Vec<String> {
    let mut remarks = Vec::new();
    if report.total.without_entered > 0 {
        let count = many(report.total.without_entered, "token");
        remarks.push(format!("{count} without an event `entered`"));
    }
    remarks.extend(report.gaps.iter().map(|gap| gap_text(gap, zone)));
    remarks.extend(report.missing_numbers.iter().map(missing));
    remarks.extend(report.differing.iter().map(|it| {
        let (line, version) = (&it.line, it.version);
        format!("gap: {line}: two events of version {version} differ, and the first one counts")
    }));
    for it in &report.restored {
        let at = clock(it.at_ms, zone);
        remarks.push(format!(
            "{} was put back from a backup at {at}: no event says what that has undone",
            it.line
        ));
    }
    if report.duplicates > 0 {
        let dropped = many(report.duplicates, "event");
        remarks.push(format!("{dropped} came more than once and were dropped"));
    }
    remarks
}

/// Of rows that are no events.
pub fn unreadable(report: &Report) -> Option<String> {
    let first = report.first_unreadable?;
    let rows = many(report.unreadable, "row");
    let of = report.first_unreadable_in.as_deref().unwrap_or_default();
    let all = report.rows;
    Some(format!(
        "{rows} of {all} are no events, the first is row {first} of {of}"
    ))
}

fn gap_text(gap: &Gap, zone: &TimeZone) -> String {
    let from = gap.after_at_ms.map_or_else(
        || "before".to_owned(),
        |ms| format!("between {} and", clock(ms, zone)),
    );
    format!(
        "gap: {}: events may be missing {from} {} (versions {} to {})",
        gap.line,
        clock(gap.before_at_ms, zone),
        gap.after_version + 1,
        gap.through_version,
    )
}

fn missing(it: &MissingNumbers) -> String {
    let count = many(it.count, "token");
    let (line, lane, first) = (&it.line, &it.lane, it.first);
    format!("gap: {line}: {count} of lane {lane} are missing, first number {first}")
}

/// A date and time of day in this zone.
fn clock(ms: u64, zone: &TimeZone) -> String {
    let time = i64::try_from(ms).ok();
    let time = time.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.map_or_else(
        || ms.to_string(),
        |time| {
            let time = time.to_zoned(zone.clone());
            time.strftime("%Y-%m-%d %H:%M:%S%.3f").to_string()
        },
    )
}
