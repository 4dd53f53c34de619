//! The result of the demo: a table for people, one line of JSON for programs.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::ledger::Tally;

/// The line of JSON; its fields in this order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Shoppers that came.
    pub shoppers: u32,
    /// Numbers handed out to them.
    pub issued: u64,
    /// Of these, completed.
    pub completed: u64,
    /// Of these, gone, by reason; `completed` is one of the reasons, as everywhere in the contract.
    pub gone: BTreeMap<String, u64>,
    /// Shoppers turned away.
    pub refused: u64,
    /// Seats of the line.
    pub seats: u32,
    /// Most seats held at once.
    pub held_max: u32,
    /// See [`super::ledger`].
    pub overtakes: u64,
    /// See [`super::ledger`].
    pub duplicates: u64,
    /// See [`super::ledger`].
    pub lost: u64,
    /// From the kill to the first acknowledged write, in milliseconds; null if the crowd was gone
    /// before that.
    pub failover_ms: Option<u64>,
    /// Share of seats in checkout while anybody waited, in percent; null if nobody ever waited.
    pub seat_use_percent: Option<f64>,
    /// From the first arrival until the last token's end was confirmed, in milliseconds.
    pub duration_ms: u64,
}

impl Report {
    /// From the crowd's record.
    pub fn new(tally: &Tally, nodes: usize, shoppers: u32, seats: u32, took: Duration) -> Report {
        Report {
            nodes,
            shoppers,
            issued: tally.issued,
            completed: tally.completed,
            gone: tally.gone.clone(),
            refused: tally.refused,
            seats,
            held_max: tally.held_max,
            overtakes: tally.overtakes,
            duplicates: tally.duplicates,
            lost: tally.lost,
            failover_ms: tally.failover.map(whole_ms),
            seat_use_percent: tally
                .seat_use_percent
                .map(|percent| (percent * 10.0).round() / 10.0),
            duration_ms: whole_ms(took),
        }
    }

    /// For people.
    pub fn table(&self) -> Table {
        let gone = self
            .gone
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"));
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let rows: [(&str, String, &str); 12] = [
            ("shoppers", self.shoppers.to_string(), ""),
            ("issued", self.issued.to_string(), "numbers handed out"),
            (
                "refused",
                self.refused.to_string(),
                "turned away at the door",
            ),
            ("completed", self.completed.to_string(), "bought"),
            (
                "gone",
                gone.collect::<Vec<_>>().join("\n"),
                "how their visits ended",
            ),
            (
                "seats held",
                format!("{} of {}", self.held_max, self.seats),
                "most at once",
            ),
            ("overtakes", self.overtakes.to_string(), "must be 0"),
            ("duplicates", self.duplicates.to_string(), "must be 0"),
            ("lost", self.lost.to_string(), "must be 0"),
            (
                "failover",
                or_none(self.failover_ms.map(|ms| format!("{ms} ms"))),
                "kill -9 to an acknowledged write",
            ),
            (
                "seat use",
                or_none(
                    self.seat_use_percent
                        .map(|percent| format!("{percent:.1} %")),
                ),
                "in checkout while anybody waited",
            ),
            (
                "duration",
                format!("{:.1} s", self.duration_ms as f64 / 1000.0),
                "",
            ),
        ];
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        for (name, value, meaning) in rows {
            table.add_row([name, &value, meaning]);
        }
        if let Some(values) = table.column_mut(1) {
            values.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_line_of_json_has_these_fields_in_this_order() {
        let tally = Tally {
            issued: 2,
            completed: 1,
            gone: BTreeMap::from([("completed".to_owned(), 1), ("idle".to_owned(), 1)]),
            refused: 0,
            held_max: 1,
            overtakes: 0,
            duplicates: 0,
            lost: 0,
            failover: Some(Duration::from_micros(1_234_567)),
            seat_use_percent: Some(66.666),
        };
        let report = Report::new(&tally, 3, 2, 5, Duration::from_secs(60));
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"nodes":3,"shoppers":2,"issued":2,"completed":1,"gone":{"completed":1,"idle":1},"refused":0,"seats":5,"held_max":1,"overtakes":0,"duplicates":0,"lost":0,"failover_ms":1234,"seat_use_percent":66.7,"duration_ms":60000}"#
        );
        assert!(report.table().to_string().contains("1 of 5"));
    }

    #[test]
    fn the_table_fits_a_terminal_of_80_columns() {
        let many = [("checkout_expired", 1_000_000), ("completed", 1_000_000)];
        let tally = Tally {
            issued: 1_000_000,
            completed: 1_000_000,
            gone: many
                .map(|(reason, count)| (reason.to_owned(), count))
                .into(),
            refused: 1_000_000,
            held_max: 1_000_000,
            overtakes: 0,
            duplicates: 0,
            lost: 0,
            failover: Some(Duration::from_secs(1_000)),
            seat_use_percent: Some(100.0),
        };
        let hour = Duration::from_secs(3_600);
        let text = Report::new(&tally, 3, 1_000_000, 1_000_000, hour)
            .table()
            .to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{text}");
    }
}
