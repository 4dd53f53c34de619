//! How the show of rate limits ends: a table for people, one line of JSON for programs.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::book::{Pages, Track};
use super::plan::{CLIENTS, EXACT, Shown};
use super::verdict::{FORGOTTEN_MAX, Kill, Peak, SECONDS};
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
    /// Of the limit on all requests together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_max: Option<u64>,
    /// Of a limit on each second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peaks: Vec<Peak>,
}

/// Errors that are printed; there may be many of one kind.
const ERRORS_SHOWN: usize = 5;

impl Report {
    /// `duration`: from the first request to the last answer.
    pub fn new(pages: &Pages, duration: Duration) -> Report {
        let tracks = Shown::ALL.into_iter().zip(&pages.tracks);
        let kill = pages.kill();
        let rows = tracks.filter_map(|(shown, track)| Row::new(shown, track, kill));
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

    /// What did not hold, one sentence each.
    fn faults(&self) -> Vec<String> {
        let forgotten_max_ms = FORGOTTEN_MAX.as_millis() as u64;
        let forgotten_ms = self.forgotten_ms.filter(|ms| *ms > forgotten_max_ms);
        let late = forgotten_ms.map(|ms| {
            format!("the next leader forgot the hits of {ms} ms, {forgotten_max_ms} at most may be")
        });
        let faults = self.limits.iter().flat_map(Row::faults);
        faults.chain(late).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let peaks = SECONDS.map(|seconds| match seconds {
            1 => "in any second".to_owned(),
            _ => format!("in any {seconds} s"),
        });
        let columns = ["limit", "asked", "refused", "allowed"].map(str::to_owned);
        table.set_header(columns.into_iter().chain(peaks));
        for row in &self.limits {
            table.add_row(row.cells());
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Prints the table, or with `json` the line of JSON. The exit code is 1 unless all limits held and all
    /// requests were answered.
    ///
    /// # Errors
    /// stdout is closed.
    pub fn tell(&self, json: bool) -> anyhow::Result<ExitCode> {
        let mut out = std::io::stdout().lock();
        match json {
            true => writeln!(out, "{}", serde_json::to_string(self)?)?,
            false => writeln!(out, "{}", self.table())?,
        }
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
    fn new(shown: Shown, track: &Track, kill: Option<Kill>) -> Option<Row> {
        let (allowed_max, peaks) = match shown {
            Shown::Counted => return None,
            Shown::Exact => (Some(EXACT.into()), Vec::new()),
            Shown::Of(algorithm) => (None, Peak::of(algorithm, &track.hits, kill)),
        };
        Some(Row {
            limit: shown.name(),
            asked: track.asked,
            allowed: track.allowed,
            refused: track.refused,
            allowed_max,
            peaks,
        })
    }

    fn faults(&self) -> Vec<String> {
        let (limit, allowed) = (self.limit, self.allowed);
        let in_all = self.allowed_max.filter(|most| allowed > *most);
        let in_all =
            in_all.map(|most| format!("{limit}: {allowed} were allowed, {most} at most may be"));
        let broken = self.peaks.iter().filter(|peak| !peak.holds());
        let broken = broken.map(|peak| {
            let (seconds, most, at_most) = (peak.seconds, peak.most, peak.at_most);
            format!("{limit}: {most} went on within {seconds} s, {at_most} at most may")
        });
        in_all.into_iter().chain(broken).collect()
    }

    /// In the order of the table's columns.
    fn cells(&self) -> Vec<String> {
        let of = |most: u64, at_most: u64| format!("{most} of {at_most}");
        let allowed = match self.allowed_max {
            Some(most) => of(self.allowed, most),
            None => self.allowed.to_string(),
        };
        let mut cells = vec![
            self.limit.to_owned(),
            self.asked.to_string(),
            self.refused.to_string(),
            allowed,
        ];
        cells.extend(self.peaks.iter().map(|peak| of(peak.most, peak.at_most)));
        cells
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use nowserving_limit::Algorithm;

    use crate::demo::limits::book::Book;
    use crate::demo::limits::verdict::Hit;

    fn place(limit: Shown) -> usize {
        Shown::ALL.iter().position(|shown| *shown == limit).unwrap()
    }

    #[test]
    fn a_limit_that_did_not_hold_is_a_fault() {
        let mut pages = Book::new().read();
        let exact = place(Shown::Exact);
        pages.tracks[exact].allowed = EXACT.into();
        let report = Report::new(&pages, Duration::from_secs(40));
        assert!(report.faults().is_empty());
        pages.tracks[exact].allowed += 1;
        let log = place(Shown::Of(Algorithm::SlidingWindowLog));
        let at = Duration::from_secs(3);
        let hit = Hit {
            asked_at: at,
            answered_at: at,
            delay: Duration::ZERO,
        };
        pages.tracks[log].hits = vec![hit; 101];
        let broken = Report::new(&pages, Duration::from_secs(40));
        let faults = broken.faults();
        let expected = [
            "sliding_window_log: 101 went on within 1 s, 100 at most may",
            "exact: 1801 were allowed, 1800 at most may be",
        ];
        assert_eq!(faults, expected);
        assert!(broken.table().to_string().contains("101 of 100"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            json["limits"].as_array().unwrap().len(),
            Shown::ALL.len() - 1
        );
        assert!(json["forgotten"].is_null());
    }

    #[test]
    fn a_leader_that_forgot_more_than_a_checkpoint_is_a_fault() {
        let mut report = Report::new(&Book::new().read(), Duration::from_secs(40));
        report.forgotten_ms = Some(1_000);
        assert!(report.faults().is_empty());
        report.forgotten_ms = Some(1_001);
        assert_eq!(report.faults().len(), 1);
    }
}
