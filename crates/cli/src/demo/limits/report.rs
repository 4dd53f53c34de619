//! How the show of rate limits ends: a table for people, one line of JSON for programs.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::book::{Pages, Track};
use super::plan::{CLIENTS, EXACT, PER_SECOND, Shown};
use crate::embedded::NODES;

/// The line of JSON; its fields in this order.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Nodes of the cluster.
    pub nodes: usize,
    pub clients: u32,
    pub limits: Vec<Row>,
    /// From the kill to the first answer to a request that was sent after it, in milliseconds.
    pub failover_ms: Option<u64>,
    /// How many hits of one counter the next leader did not know.
    pub forgotten: Option<u64>,
    /// All of them were answered so many milliseconds before the kill, or later.
    pub forgotten_ms: Option<u64>,
    /// Requests without an answer.
    pub errors: usize,
    pub duration_ms: u64,
    #[serde(skip)]
    first_errors: Vec<String>,
}

/// One limit.
#[derive(Debug, Serialize)]
pub struct Row {
    pub limit: &'static str,
    pub asked: u64,
    pub allowed: u64,
    pub refused: u64,
    /// More can't have been allowed by a limit that holds, also through the crash.
    pub allowed_max: u64,
}

/// Errors that are printed; there may be many of one kind.
const ERRORS_SHOWN: usize = 5;

impl Report {
    /// `duration`: from the first request to the last answer.
    pub fn new(pages: &Pages, duration: Duration) -> Report {
        let tracks = Shown::ALL.into_iter().zip(&pages.tracks);
        let rows = tracks.filter_map(|(shown, track)| Row::new(shown, track, duration));
        let forgotten = pages.forgotten();
        let ms = |duration: Duration| duration.as_millis() as u64;
        Report {
            nodes: NODES.len(),
            clients: CLIENTS,
            limits: rows.collect(),
            failover_ms: pages.failover.map(ms),
            forgotten: forgotten.map(|forgotten| forgotten.hits),
            forgotten_ms: forgotten.map(|forgotten| ms(forgotten.within)),
            errors: pages.errors.len(),
            duration_ms: ms(duration),
            first_errors: pages.errors.iter().take(ERRORS_SHOWN).cloned().collect(),
        }
    }

    /// The limits that did not hold, one sentence each.
    fn faults(&self) -> Vec<String> {
        let broken = self
            .limits
            .iter()
            .filter(|row| row.allowed > row.allowed_max);
        let fault = |row: &Row| {
            let (limit, allowed, most) = (row.limit, row.allowed, row.allowed_max);
            format!("{limit}: {allowed} were allowed, {most} at most may be")
        };
        broken.map(fault).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        table.set_header(["limit", "asked", "allowed", "refused", "at most"]);
        for row in &self.limits {
            let numbers = [row.asked, row.allowed, row.refused, row.allowed_max];
            let cells = numbers.iter().map(u64::to_string);
            table.add_row(std::iter::once(row.limit.to_owned()).chain(cells));
        }
        for column in 1..5 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// Prints the table (not with `json`) and the line of JSON. The exit code is 1 unless all limits held and all
    /// requests were answered.
    ///
    /// # Errors
    /// stdout is closed.
    pub fn tell(&self, json: bool) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        if !json {
            writeln!(out, "{}", self.table())?;
        }
        writeln!(out, "{}", serde_json::to_string(self)?)?;
        let faults = self.faults();
        for fault in &faults {
            eprintln!("FAULT: {fault}");
        }
        if self.errors > 0 {
            eprintln!("{} requests were not answered, among them:", self.errors);
            for error in &self.first_errors {
                eprintln!("  {error}");
            }
        }
        Ok(match faults.is_empty() && self.errors == 0 {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        })
    }
}

impl Row {
    fn new(shown: Shown, track: &Track, duration: Duration) -> Option<Row> {
        let allowed_max = match shown {
            Shown::Counted => return None,
            Shown::Exact => EXACT.into(),
            // The windows that were begun, a burst, and as much again for the hits that a leader forgot.
            Shown::Of(_) => (duration.as_secs() + 3) * u64::from(PER_SECOND),
        };
        Some(Row {
            limit: shown.name(),
            asked: track.asked,
            allowed: track.allowed,
            refused: track.refused,
            allowed_max,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::demo::limits::book::Book;

    #[test]
    fn a_limit_that_did_not_hold_is_a_fault() {
        let mut pages = Book::new().read();
        let exact = Shown::ALL
            .iter()
            .position(|shown| *shown == Shown::Exact)
            .unwrap();
        pages.tracks[exact].allowed = EXACT.into();
        let report = Report::new(&pages, Duration::from_secs(40));
        assert!(report.faults().is_empty());
        pages.tracks[exact].allowed += 1;
        pages.tracks[0].allowed = 4_301;
        let faults = Report::new(&pages, Duration::from_secs(40)).faults();
        assert_eq!(faults.len(), 2, "{faults:?}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["limits"].as_array().unwrap().len(),
            Shown::ALL.len() - 1
        );
        assert!(json["forgotten"].is_null());
    }
}
