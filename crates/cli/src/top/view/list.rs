//! The list of lines.

use std::time::Instant;

use nowserving_client::{LaneReply, LineReply};
use nowserving_insight::words::wrong;
use ratatui::text::Line;

use super::{cluster, trouble};
use crate::tables;
use crate::top::cell::{self, Palette, Row, row, short, span};
use crate::top::model::Model;
use nowserving_insight::lines::Known;

/// Rows around the list: the title, two of the cluster, the names of the columns, the keys.
const AROUND: u16 = 5;
/// A screen with so many rows has the nodes below the list.
const WITH_NODES: u16 = 32;
/// An empty row, the names of the columns, and so many nodes.
const NODES: u16 = 7;

/// A column beside that of the name.
struct Column {
    head: &'static str,
    width: usize,
    /// It is shown on screens with so many columns.
    from: u16,
    text: fn(&Known) -> String,
}

static COLUMNS: [Column; 14] = [
    column("PHASE", 6, 0, |it| phase(&it.summary.phase).to_owned()),
    column("PRESS", 5, 0, |it| cell::rate(Some(it.pressure()))),
    column("WAITING", 7, 0, |it| short(it.summary.waiting)),
    column("ADM+CHK/OF", 11, 0, seats),
    column("IN/S", 5, 80, |it| cell::rate(it.pace.map(|it| it.entered))),
    column("ADM/S", 5, 80, |it| {
        cell::rate(it.pace.map(|it| it.admitted))
    }),
    column("DONE/S", 6, 80, |it| cell::rate(it.pace.map(|it| it.done))),
    column("ETA", 6, 0, |it| {
        or_dash(it.newcomer_eta_ms().map(cell::wait))
    }),
    column("REFUSED", 7, 80, |it| or_dash(it.refused().map(short))),
    column("NEXT", 7, 120, |it| pointer(it, |lane| lane.next_token)),
    column("DONE", 7, 120, |it| pointer(it, |lane| lane.done_through)),
    column("ADMITTED", 8, 120, |it| {
        pointer(it, |lane| lane.admitted_through)
    }),
    column("ACCEPTS", 7, 120, |it| {
        pointer(it, |lane| lane.accepts_through)
    }),
    column("HELD BY", 14, 136, |it| {
        it.held_back_by().unwrap_or("-").to_owned()
    }),
];

const fn column(head: &'static str, width: usize, from: u16, text: fn(&Known) -> String) -> Column {
    Column {
        head,
        width,
        from,
        text,
    }
}

fn phase(phase: &str) -> &str {
    match phase {
        "pre_open" => "pre",
        "draining" => "drain",
        other => other,
    }
}

fn seats(it: &Known) -> String {
    let line = &it.summary;
    let seats = u64::from(line.seats);
    let [admitted, in_checkout, seats] = [line.admitted, line.in_checkout, seats].map(short);
    format!("{admitted}+{in_checkout}/{seats}")
}

fn pointer(it: &Known, of: fn(&LaneReply) -> u64) -> String {
    let first = |shown: &LineReply| shown.board.lanes.first().map(of);
    let pointer = it.detail.as_ref().and_then(|detail| first(&detail.shown));
    or_dash(pointer.map(|number| match number {
        0..10_000_000 => number.to_string(),
        _ => short(number),
    }))
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// How many lines a screen of this size shows.
pub fn rows((_, height): (u16, u16)) -> usize {
    let nodes = if height >= WITH_NODES { NODES } else { 0 };
    height.saturating_sub(AROUND + nodes).into()
}

/// All but the title and the keys.
pub fn body(model: &Model, palette: Palette, now: Instant) -> Vec<Row> {
    let sorted = model.sorted();
    let mut drawn = vec![totals(model, &sorted, palette)];
    drawn.push(trouble(model, palette, now).unwrap_or_else(|| health(model, palette)));
    drawn.push(heads(model.size.0, palette));
    let rows = rows(model.size);
    let selected = model.selected(&sorted);
    let first = model.first_row(selected, rows);
    let shown = sorted.iter().enumerate().skip(first).take(rows);
    drawn.extend(shown.map(|(at, it)| line(it, model.size.0, palette, at == selected)));
    if sorted.is_empty() && model.refreshed.is_some() {
        let text = match model.filter.is_empty() {
            true => "  no lines",
            false => "  no line fits the filter",
        };
        drawn.push(row(text, palette.dim()));
    }
    if let Some(status) = model
        .cluster
        .as_ref()
        .filter(|_| model.size.1 >= WITH_NODES)
    {
        drawn.resize_with(rows + usize::from(AROUND) - 2, Row::default);
        drawn.push(Row::default());
        drawn.extend(cluster::nodes(status, palette));
    }
    drawn
}

fn totals(model: &Model, sorted: &[&Known], palette: Palette) -> Row {
    let waiting: u64 = sorted.iter().map(|it| it.summary.waiting).sum();
    let held: u64 = sorted.iter().map(|it| it.held()).sum();
    let seats: u64 = sorted.iter().map(|it| u64::from(it.summary.seats)).sum();
    let stuck = sorted.iter().filter(|it| it.is_stuck()).count();
    let more = if model.lines.more { "+" } else { "" };
    let mut spans = vec![span(
        format!(
            "{}{more}: {} waiting, {} of {} seats held",
            tables::many(sorted.len() as u64, "line"),
            short(waiting),
            short(held),
            short(seats)
        ),
        palette.title(),
    )];
    if stuck > 0 {
        spans.push(span(format!(", {stuck} stuck"), palette.bad()));
    }
    if !model.filter.is_empty() {
        spans.push(span(format!("   filter: {}", model.filter), palette.warn()));
    }
    Line::from(spans)
}

/// What is wrong with the nodes and shards, or how the shards are spread.
fn health(model: &Model, palette: Palette) -> Row {
    let Some(status) = &model.cluster else {
        return Row::default();
    };
    let wrong = wrong(status);
    if wrong.is_empty() {
        let leads = status.nodes.iter().map(|node| node.leads.to_string());
        let leads: Vec<String> = leads.collect();
        let text = format!(
            "{} alive and caught up, {} led {}",
            tables::many(status.nodes.len() as u64, "node"),
            tables::many(status.shards.len() as u64, "shard"),
            leads.join("/")
        );
        return row(text, palette.good());
    }
    row(wrong.join("; "), palette.bad())
}

fn shown(columns: u16) -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(move |it| it.from <= columns)
}

/// What the other columns leave to the name.
fn name_width(columns: u16) -> usize {
    let others: usize = shown(columns).map(|it| it.width + 1).sum();
    usize::from(columns).saturating_sub(others)
}

fn heads(columns: u16, palette: Palette) -> Row {
    let mut text = cell::left("  LINE", name_width(columns));
    for column in shown(columns) {
        text.push(' ');
        text.push_str(&cell::right(column.head, column.width));
    }
    row(text, palette.selected())
}

fn line(it: &Known, columns: u16, palette: Palette, selected: bool) -> Row {
    let (mark, style) = match (it.is_stuck(), it.full() >= 1.0) {
        (true, _) => ('!', palette.bad()),
        // It refuses nobody for want of room.
        (false, _) if it.open_gate().is_some() => ('G', ratatui::style::Style::new()),
        (false, true) => ('F', palette.warn()),
        (false, false) => (' ', ratatui::style::Style::new()),
    };
    let name = format!("{mark} {}", it.summary.line);
    let mut rest = String::new();
    for column in shown(columns) {
        rest.push(' ');
        rest.push_str(&cell::right(&(column.text)(it), column.width));
    }
    let name_style = match mark {
        ' ' => palette.name(),
        _ => style,
    };
    let drawn = Line::from(vec![
        span(cell::left(&name, name_width(columns)), name_style),
        span(rest, style),
    ]);
    match selected {
        true => drawn.style(palette.selected()),
        false => drawn,
    }
}
