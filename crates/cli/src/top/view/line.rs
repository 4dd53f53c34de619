//! One line: its board, lanes, tokens and journal.

use std::collections::BTreeMap;
use std::time::Instant;

use nowserving_client::{JournalEntryReply, LineReply, ListedToken, State, TokenOrder};
use ratatui::style::Style;
use ratatui::text::Line;

use super::trouble;
use crate::gauge::Gauge;
use crate::tables;
use crate::top::cell::{self, Palette, Row, left, rate, right, row, span};
use crate::top::model::{InLine, Model, Part};
use nowserving_insight::lines::Known;

/// Rows of a screen that are neither lanes nor tokens: the title, the board, the names of the columns, the keys.
const AROUND: usize = 13;
/// The view has so many lanes at most.
const LANES_MAX: usize = 8;
/// How wide the bars of seats and queue are.
const BAR: usize = 24;

/// How many tokens or entries fit a screen of this size, below so many lanes.
pub fn room((_, height): (u16, u16), lanes: usize) -> usize {
    let rest = usize::from(height).saturating_sub(AROUND + lanes.min(LANES_MAX));
    rest.max(1)
}

/// All but the title and the keys.
pub fn body(model: &Model, inside: &InLine, palette: Palette, now: Instant) -> Vec<Row> {
    let trouble = trouble(model, palette, now).unwrap_or_default();
    let Some(known) = model.lines.get(&inside.name) else {
        let text = "  the line is gone; Esc: back to the list";
        return vec![trouble, row(text, palette.warn())];
    };
    let Some(shown) = known.detail.as_ref().map(|detail| &detail.shown) else {
        return vec![trouble, row("  asking the line's leader …", palette.dim())];
    };
    let mut drawn = vec![trouble];
    drawn.extend(board(known, shown, palette));
    drawn.extend(lanes(shown, palette));
    drawn.push(Row::default());
    drawn.push(parts(model, inside, palette));
    let room = room(model.size, shown.board.lanes.len());
    drawn.extend(match inside.part {
        Part::Tokens => tokens(model, room, palette),
        Part::Journal => journal(model, inside, palette),
    });
    drawn
}

fn board(known: &Known, shown: &LineReply, palette: Palette) -> Vec<Row> {
    let (summary, board) = (&known.summary, &shown.board);
    let leader = shown.leader.map_or("no leader known".to_owned(), |id| {
        format!("led by node {id}")
    });
    let labels = summary
        .labels
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let labels: Vec<String> = labels.collect();
    let gate = known.open_gate();
    let gate = gate.map_or(String::new(), |gate| format!(", gate {gate}"));
    let head = format!(
        "{}{gate}, version {}, shard {} {leader}   {}",
        board.phase,
        board.version,
        shown.shard,
        labels.join(" ")
    );
    let pace = known.pace;
    let eta = known.newcomer_eta_ms();
    let eta = eta.map_or("no forecast yet".to_owned(), tables::duration);
    let held = format!(
        ": {} admitted, {} in checkout",
        board.admitted, board.in_checkout
    );
    let style = if known.is_stuck() {
        palette.bad()
    } else {
        Style::new()
    };
    vec![
        row(head, style),
        gauge(&Gauge::seats(board), &held, palette.good()),
        gauge(
            &Gauge::waiting(board, Some(summary.queue_limit)),
            &format!("; a newcomer: {eta}"),
            palette.warn(),
        ),
        row(
            format!(
                "a second: {} enter, {} are admitted, {} complete;  pressure {:.1}",
                rate(pace.map(|it| it.entered)),
                rate(pace.map(|it| it.admitted)),
                rate(pace.map(|it| it.done)),
                known.pressure()
            ),
            Style::new(),
        ),
        row(
            format!(
                "{};  refused: {}",
                tables::held_back(&shown.held_back_by),
                counts(&shown.counts.refused)
            ),
            style,
        ),
        row(
            format!("gone: {}", counts(&shown.counts.gone)),
            palette.dim(),
        ),
    ]
}

fn gauge(it: &Gauge, more: &str, style: Style) -> Row {
    Line::from(vec![
        span(it.label(), Style::new()),
        span(it.bar(BAR), style),
        span(it.words() + more, Style::new()),
    ])
}

/// Those that are not 0: `3 idle, 17 left`.
fn counts(counts: &BTreeMap<String, u64>) -> String {
    let some = counts.iter().filter(|(_, count)| **count > 0);
    let words: Vec<String> = some
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    match words.is_empty() {
        true => "none".to_owned(),
        false => words.join(", "),
    }
}

fn lanes(shown: &LineReply, palette: Palette) -> Vec<Row> {
    let pointers = ["WAITING", "NEXT", "DONE THR.", "ADMITTED", "ACCEPTS"];
    let heads: String = pointers.iter().map(|head| right(head, 12)).collect();
    let mut drawn = vec![row(left("LANE", 18) + &heads, palette.selected())];
    let lanes = shown.board.lanes.iter().take(LANES_MAX);
    drawn.extend(lanes.map(|lane| {
        let numbers = [
            lane.waiting,
            lane.next_token,
            lane.done_through,
            lane.admitted_through,
            lane.accepts_through,
        ];
        let numbers = numbers.iter().map(|number| right(&number.to_string(), 12));
        Line::from(vec![
            span(left(lane.lane.as_str(), 18), palette.name()),
            span(numbers.collect::<String>(), Style::new()),
        ])
    }));
    drawn
}

/// Which part is shown below, and which can be.
fn parts(model: &Model, inside: &InLine, palette: Palette) -> Row {
    let order = match inside.order {
        TokenOrder::Number => "by number",
        TokenOrder::Service => "as they would be admitted",
    };
    let pages = |turned: usize, more: bool| {
        let more = if more { ", n: next" } else { "" };
        format!(", page {}{more}", turned + 1)
    };
    let more = model.shown_tokens().is_some_and(|it| it.next.is_some());
    let tokens = format!("TOKENS {order}{}", pages(inside.turned.len(), more));
    let mut journal = "JOURNAL, newest first".to_owned();
    let (of_tokens, of_journal) = match inside.part {
        Part::Tokens => (palette.title(), palette.dim()),
        Part::Journal => {
            let more = model.next_entries().is_some();
            journal.push_str(&pages(inside.journal_from.len(), more));
            (palette.dim(), palette.title())
        }
    };
    Line::from(vec![
        span(tokens, of_tokens),
        span("   ", Style::new()),
        span(journal, of_journal),
    ])
}

fn tokens(model: &Model, room: usize, palette: Palette) -> Vec<Row> {
    let problem = model.looked_into.as_ref();
    if let Some(why) = problem.and_then(|it| it.tokens.as_ref().err()) {
        return vec![row(why, palette.bad())];
    }
    let Some(page) = model.shown_tokens() else {
        return vec![row("  asking …", palette.dim())];
    };
    let head = "LANE               TOKEN  STATE          PLACE     TURN  SEEN    KEY";
    let mut drawn = vec![row(head, palette.selected())];
    let shown = page.tokens.iter().take(room);
    drawn.extend(shown.map(|it| token(it, palette)));
    if page.tokens.is_empty() {
        drawn.push(row("  no tokens", palette.dim()));
    }
    drawn
}

fn token(it: &ListedToken, palette: Palette) -> Row {
    let number = |number: Option<u64>| number.map_or("-".to_owned(), |it| it.to_string());
    let style = match it.state {
        State::Waiting => palette.warn(),
        State::Admitted | State::InCheckout => palette.good(),
        State::Gone => palette.dim(),
    };
    let key = it.key.as_ref().map(tables::key_text);
    let text = [
        left(it.lane.as_str(), 12),
        right(&it.token.to_string(), 10),
        left(it.state.as_str(), 11),
        right(&number(it.position), 7),
        right(&number(it.turn), 7),
        left(&it.last_seen_ms.map_or("-".to_owned(), cell::wait), 6),
        // Last, as it may have wide characters.
        key.unwrap_or_else(|| "-".to_owned()),
    ];
    row(text.join("  "), style)
}

fn journal(model: &Model, inside: &InLine, palette: Palette) -> Vec<Row> {
    let entries = match model.looked_into.as_ref().map(|it| &it.journal) {
        None => return vec![row("  asking …", palette.dim())],
        Some(Err(why)) => return vec![row(why, palette.bad())],
        Some(Ok(entries)) => entries,
    };
    let time = left("TIME (UTC)", time_width(model.size));
    let mut drawn = vec![row(format!("{time}  WHAT"), palette.selected())];
    let lanes = model.lanes_of(inside);
    let (rows, _) = entries_page(entries, inside.journal_from.last(), model.size, lanes);
    drawn.extend(rows.into_iter().map(|text| row(text, Style::new())));
    if entries.is_empty() {
        drawn.push(row("  nothing is in the journal", palette.dim()));
    }
    drawn
}

/// The rows of the page that begins with the entry of this version, else with the newest, and the version that the next page
/// begins with. An entry has as many rows as it needs, so that who and why can be read on a narrow screen.
pub fn entries_page(
    entries: &[JournalEntryReply],
    from: Option<&u64>,
    size: (u16, u16),
    lanes: usize,
) -> (Vec<String>, Option<u64>) {
    let room = room(size, lanes);
    let mut page = Vec::new();
    let newer = |it: &&JournalEntryReply| from.is_some_and(|from| it.version > *from);
    for it in entries.iter().skip_while(newer) {
        let mut rows = entry(it, size);
        if page.is_empty() && rows.len() > room {
            rows.truncate(room);
            if let Some(last) = rows.last_mut() {
                last.push('…');
            }
        }
        if page.len() + rows.len() > room {
            return (page, Some(it.version));
        }
        page.extend(rows);
    }
    (page, None)
}

/// Wide screens have the year and milliseconds, too.
fn time_width((columns, _): (u16, u16)) -> usize {
    if columns < 120 { 14 } else { 23 }
}

fn entry(it: &JournalEntryReply, size: (u16, u16)) -> Vec<String> {
    let width = time_width(size);
    let clock = tables::clock(it.at_ms);
    let time = match width {
        // `2026-11-22 04:00:00.000` without the year and the milliseconds.
        14 => clock.get(5..19).unwrap_or(&clock),
        _ => &clock,
    };
    let what = tables::journaled(it);
    let what = match (&it.lane, it.token) {
        (Some(lane), Some(token)) => format!("{lane} {token} {what}"),
        (Some(lane), None) => format!("{lane} {what}"),
        (None, _) => what,
    };
    // One column less, for the mark of an entry that is cut.
    let rest = usize::from(size.0).saturating_sub(width + 3);
    let rows = cell::wrapped(&what, rest);
    let times = std::iter::once(time).chain(std::iter::repeat(""));
    let rows = times.zip(rows);
    rows.map(|(time, what)| format!("{}  {what}", left(time, width)))
        .collect()
}
