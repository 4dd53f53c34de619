//! What a run found: JSON for programs, tables for people.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::machine::Machine;
use super::spread::{Spread, Timed, shown};

/// The JSON; its fields in this order.
#[derive(Debug, Serialize)]
pub struct Report {
    /// When the run ended, in UTC.
    pub date: String,
    pub machine: Machine,
    /// Versions of all that was measured.
    pub versions: Vec<String>,
    /// What could not be had, and why.
    pub missing: Vec<String>,
    pub rounds: u32,
    /// How long each cell was measured in each round, in milliseconds.
    pub measured_ms: u64,
    /// All sizes are a hundredth: nothing is compared with its goal in earnest.
    pub quick: bool,
    pub sections: Vec<Section>,
    /// How long all of it took, in seconds.
    pub took_s: u64,
}

/// One row of the command line.
#[derive(Debug, Default, Serialize)]
pub struct Section {
    pub name: String,
    /// What is measured.
    pub about: String,
    pub cells: Vec<Cell>,
    pub values: Vec<Value>,
    pub goals: Vec<Goal>,
    /// Requests that failed, and why.
    pub failures: BTreeMap<String, u64>,
}

/// One system at one concurrency.
#[derive(Debug, Serialize)]
pub struct Cell {
    pub system: String,
    /// Requests under way at once.
    pub in_flight: u32,
    #[serde(flatten)]
    pub timed: Timed,
    /// Processor time of its servers for one answer.
    pub servers_cpu_us: Option<Spread>,
    /// The same of the nats-server between requester and servers.
    pub nats_cpu_us: Option<Spread>,
    /// The same of the requester.
    pub requester_cpu_us: Option<Spread>,
    /// What the requester took of the machine.
    pub requester_cores: Option<Spread>,
}

/// Anything else that was measured.
#[derive(Debug, Serialize)]
pub struct Value {
    pub what: String,
    pub unit: &'static str,
    #[serde(flatten)]
    pub spread: Spread,
}

/// What a number should be.
#[derive(Debug, Serialize)]
pub struct Goal {
    pub what: String,
    pub unit: &'static str,
    pub bound: Bound,
    pub limit: f64,
    /// None where a system that it is compared with could not be had.
    pub measured: Option<Spread>,
    pub met: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    AtLeast,
    AtMost,
}

impl Goal {
    pub fn at_least(
        what: impl Into<String>,
        limit: f64,
        unit: &'static str,
        measured: Option<Spread>,
    ) -> Goal {
        Goal::new(what.into(), Bound::AtLeast, limit, unit, measured)
    }

    pub fn at_most(
        what: impl Into<String>,
        limit: f64,
        unit: &'static str,
        measured: Option<Spread>,
    ) -> Goal {
        Goal::new(what.into(), Bound::AtMost, limit, unit, measured)
    }

    /// Its median decides.
    fn new(
        what: String,
        bound: Bound,
        limit: f64,
        unit: &'static str,
        measured: Option<Spread>,
    ) -> Goal {
        let met = measured.map(|measured| match bound {
            Bound::AtLeast => measured.median >= limit,
            Bound::AtMost => measured.median <= limit,
        });
        Goal {
            what,
            unit,
            bound,
            limit,
            measured,
            met,
        }
    }
}

impl Section {
    pub fn value(&mut self, what: impl Into<String>, unit: &'static str, spread: Option<Spread>) {
        self.values.extend(spread.map(|spread| Value {
            what: what.into(),
            unit,
            spread,
        }));
    }

    /// Its tables, each with its header first.
    pub fn tables(&self) -> Vec<Vec<Vec<String>>> {
        let cells = self.cells.iter().map(Cell::row);
        let values = self.values.iter().map(Value::row);
        let goals = self.goals.iter().map(Goal::row);
        let tables = [
            with_header(&CELL, cells),
            with_header(&["measured", ""], values),
            with_header(&["goal", "", "measured", "met"], goals),
        ];
        tables.into_iter().filter(|rows| rows.len() > 1).collect()
    }

    pub fn text(&self) -> String {
        let mut text = format!("\n{}: {}\n", self.name, self.about);
        for rows in self.tables() {
            let mut table = Table::new();
            table.load_style(presets::UTF8_FULL_CONDENSED);
            let mut rows = rows.into_iter();
            table.set_header(rows.next().unwrap_or_default());
            table.add_rows(rows);
            for column in table.column_iter_mut().skip(1) {
                column.set_cell_alignment(CellAlignment::Right);
            }
            text.push_str(&format!("{table}\n"));
        }
        for (failure, count) in &self.failures {
            text.push_str(&format!("FAILED: {count} requests: {failure}\n"));
        }
        text
    }
}

const CELL: [&str; 10] = [
    "system",
    "in flight",
    "a second",
    "median ms",
    "99 % ms",
    "slowest ms",
    "CPU µs, servers",
    "NATS",
    "requester",
    "its cores",
];

fn with_header(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Vec<Vec<String>> {
    let header = header.iter().map(|&name| name.to_owned()).collect();
    std::iter::once(header).chain(rows).collect()
}

fn text(spread: Option<&Spread>) -> String {
    spread.map_or_else(|| "–".to_owned(), Spread::text)
}

impl Cell {
    fn row(&self) -> Vec<String> {
        let median = |spread: &Option<Spread>| spread.map_or(String::new(), |it| shown(it.median));
        vec![
            self.system.clone(),
            self.in_flight.to_string(),
            self.timed.requests_per_s.text(),
            self.timed.median_us.times(1e-3).text(),
            self.timed.p99_us.times(1e-3).text(),
            shown(self.timed.max_us.max / 1e3),
            text(self.servers_cpu_us.as_ref()),
            median(&self.nats_cpu_us),
            median(&self.requester_cpu_us),
            median(&self.requester_cores),
        ]
    }
}

impl Value {
    fn row(&self) -> Vec<String> {
        let text = format!("{} {}", self.spread.text(), self.unit);
        vec![self.what.clone(), text.trim().to_owned()]
    }
}

impl Goal {
    fn row(&self) -> Vec<String> {
        let sign = match self.bound {
            Bound::AtLeast => "≥",
            Bound::AtMost => "≤",
        };
        let limit = format!("{sign} {} {}", self.limit, self.unit);
        let met = match self.met {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "not measured",
        };
        vec![
            self.what.clone(),
            limit.trim().to_owned(),
            text(self.measured.as_ref()),
            met.to_owned(),
        ]
    }
}

impl Report {
    /// What was measured with, line by line.
    pub fn circumstances(&self) -> Vec<String> {
        let mut lines = vec![
            format!("{}, {}", self.date, self.machine.text()),
            self.versions.join(", "),
            format!(
                "servers, clients and requester share the machine; median (min–max) of {} rounds of {} ms a cell; {} \
                 min in all",
                self.rounds,
                self.measured_ms,
                self.took_s.div_ceil(60)
            ),
        ];
        if self.quick {
            lines.push("--quick: all sizes are a hundredth, the goals are not".to_owned());
        }
        let missing = self.missing.iter().map(|it| format!("missing: {it}"));
        lines.extend(missing);
        lines
    }

    /// How many goals were measured, and how many of these are met.
    pub fn goals(&self) -> (usize, usize) {
        let all = self.sections.iter().flat_map(|section| &section.goals);
        let met: Vec<bool> = all.filter_map(|goal| goal.met).collect();
        (met.len(), met.iter().filter(|met| **met).count())
    }

    pub fn failed(&self) -> bool {
        self.sections.iter().any(|it| !it.failures.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_median_decides_whether_a_goal_is_met() {
        let measured = Spread::of([0.7, 0.95, 2.0].into_iter(), 2);
        let goal = Goal::at_least("ratio", 0.9, "", measured);
        assert_eq!(goal.row()[1..], ["≥ 0.9", "0.95 (0.70–2.00)", "yes"]);
        assert_eq!(Goal::at_most("ratio", 0.9, "", measured).met, Some(false));
        assert_eq!(
            Goal::at_most("ratio", 0.9, "", None).row()[3],
            "not measured"
        );
    }
}
