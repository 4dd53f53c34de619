//! One refresh as JSON, or as a screen without a terminal.

use std::collections::BTreeMap;
use std::time::Instant;

use nowserving_client::{ClusterStatus, HeldBackReply, LaneReply};
use serde::Serialize;

use super::cell::{Palette, Row};
use super::lines::Known;
use super::model::Model;
use super::pace::Pace;
use super::view;

/// What `--json` prints. Of lines whose details were not asked for, those are null.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    cluster: Option<&'a ClusterStatus>,
    lines: Vec<LineReport<'a>>,
    /// The cluster has more lines than were listed.
    more_lines: bool,
}

#[derive(Debug, Serialize)]
struct LineReport<'a> {
    line: &'a str,
    phase: &'a str,
    pressure: f64,
    stuck: bool,
    seats: u32,
    queue_limit: u32,
    waiting: u64,
    admitted: u64,
    in_checkout: u64,
    labels: &'a BTreeMap<String, String>,
    /// With the four pointers of each.
    lanes: Option<&'a [LaneReply]>,
    held_back_by: Option<&'a HeldBackReply>,
    /// `shadow` or `off`: it holds nobody back.
    open_gate: Option<&'a str>,
    newcomer_eta_ms: Option<u64>,
    /// Requests to enter that were refused so far.
    refused: Option<u64>,
    per_second: Option<Pace>,
}

impl<'a> Report<'a> {
    pub fn of(model: &'a Model) -> Report<'a> {
        Report {
            cluster: model.cluster.as_ref(),
            lines: model.sorted().into_iter().map(LineReport::of).collect(),
            more_lines: model.lines.more,
        }
    }
}

impl<'a> LineReport<'a> {
    fn of(known: &'a Known) -> LineReport<'a> {
        let line = &known.summary;
        let shown = known.detail.as_ref().map(|detail| &detail.shown);
        LineReport {
            line: line.line.as_str(),
            phase: &line.phase,
            pressure: known.pressure(),
            stuck: known.is_stuck(),
            seats: line.seats,
            queue_limit: line.queue_limit,
            waiting: line.waiting,
            admitted: line.admitted,
            in_checkout: line.in_checkout,
            labels: &line.labels,
            lanes: shown.map(|shown| shown.board.lanes.as_slice()),
            held_back_by: shown.map(|shown| &shown.held_back_by),
            open_gate: known.open_gate(),
            newcomer_eta_ms: known.newcomer_eta_ms(),
            refused: known.refused(),
            per_second: known.pace,
        }
    }
}

/// The screen as text, no row wider than it.
pub fn text(model: &Model, now: Instant) -> String {
    let rows = view::rows(model, Palette { colour: false }, now);
    let columns = usize::from(model.size.0);
    let lines: Vec<String> = rows.iter().map(|row| line(row, columns)).collect();
    lines.join("\n")
}

fn line(row: &Row, columns: usize) -> String {
    let text = row.iter().flat_map(|span| span.content.chars());
    let text: String = text.take(columns).collect();
    text.trim_end().to_owned()
}
