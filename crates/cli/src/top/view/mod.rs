//! The screen as rows of text, from the model alone.

pub mod cluster;
mod help;
pub mod line;
pub mod list;

use std::time::Instant;

use ratatui::text::Line;

use super::cell::{self, Palette, Row, row, span};
use super::model::{Model, Place};

/// A smaller screen says so and shows nothing else.
const LEAST: (u16, u16) = (60, 10);

/// The rows of the whole screen, as many as it has.
pub fn rows(model: &Model, palette: Palette, now: Instant) -> Vec<Row> {
    let (columns, height) = model.size;
    let height = usize::from(height);
    if columns < LEAST.0 || model.size.1 < LEAST.1 {
        let (width, most) = LEAST;
        let text = format!("too small: at least {width} x {most}");
        return vec![Line::from(cell::cut(&text, columns.into()))];
    }
    let mut rows = vec![title(model, palette, now)];
    if model.help {
        rows.extend(help::rows());
    } else {
        match &model.place {
            Place::List => rows.extend(list::body(model, palette, now)),
            Place::Cluster => rows.extend(cluster::body(model, palette, now)),
            Place::Line(inside) => rows.extend(line::body(model, inside, palette, now)),
        }
    }
    rows.truncate(height - 1);
    rows.resize_with(height - 1, Row::default);
    rows.push(footer(model, palette));
    rows
}

fn title(model: &Model, palette: Palette, now: Instant) -> Row {
    let cluster = model.cluster.as_ref();
    let cluster = cluster.map_or("…", |status| status.cluster.as_str());
    let place = match &model.place {
        Place::List if model.reverse => format!("lines by {}, reversed", model.sort.name()),
        Place::List => format!("lines by {}", model.sort.name()),
        Place::Cluster => "nodes and shards".to_owned(),
        Place::Line(inside) => inside.name.to_string(),
    };
    let (state, style) = state(model, palette, now);
    let name = format!("nowserving top  {cluster}  ");
    let used = name.chars().count() + state.chars().count() + 1;
    let width = usize::from(model.size.0).saturating_sub(used);
    Line::from(vec![
        span(name, palette.title()),
        span(cell::left(&place, width), palette.name()),
        span(format!(" {state}"), style),
    ])
}

/// How old the data is.
fn state(model: &Model, palette: Palette, now: Instant) -> (String, ratatui::style::Style) {
    let Some(at) = model.refreshed else {
        return ("asking".to_owned(), palette.warn());
    };
    let seconds = now.saturating_duration_since(at).as_secs();
    let age = format!("{} old", cell::wait(seconds * 1_000));
    match (model.paused, model.old(now)) {
        (true, _) => (format!("paused, {age}"), palette.warn()),
        (false, Some(_)) => (format!("OLD, {age}"), palette.bad()),
        (false, None) => (age, palette.dim()),
    }
}

/// Why the screen is old; empty if it is not.
fn trouble(model: &Model, palette: Palette, now: Instant) -> Option<Row> {
    let why = model.old(now)?;
    Some(row(format!("no contact: {why}"), palette.bad()))
}

fn footer(model: &Model, palette: Palette) -> Row {
    if model.typing {
        let typed = format!("/{}▏", model.filter);
        return Line::from(vec![
            span(typed, palette.title()),
            span(
                "  Enter: keep, Esc: drop; words, or label=value",
                palette.dim(),
            ),
        ]);
    }
    let keys = match (model.help, &model.place) {
        (true, _) => "any key: back",
        (false, Place::List) => {
            "q quit  ? help  s sort  r reverse  / filter  Enter look into  Tab nodes  p pause"
        }
        (false, Place::Cluster) => "q quit  ? help  Tab lines  ↑↓ scroll  p pause",
        (false, Place::Line(_)) => {
            "q quit  ? help  Esc back  Tab journal/tokens  n b pages  o order  p pause"
        }
    };
    row(keys, palette.dim())
}
