//! What a crowd went through: a table for people, one line of JSON for programs.

use std::collections::BTreeMap;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// The line of JSON; its fields in this order.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Report {
    /// Nodes of the cluster.
    pub nodes: usize,
    pub shoppers: u32,
    /// Their writes that were acknowledged.
    pub acknowledged: u64,
    /// Numbers handed out to them.
    pub issued: u64,
    /// Of these, completed.
    pub completed: u64,
    /// Of these, gone, by reason; `completed` is one of the reasons, as everywhere in the contract.
    pub gone: BTreeMap<String, u64>,
    pub refused: u64,
    /// Seats of the line.
    pub seats: u32,
    /// Most visits in checkout at once, as the shoppers know it. The line holds more seats: also those that were given and not
    /// yet claimed.
    pub in_checkout_max: u32,
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
    /// The violated rules, one sentence each; empty if none was.
    pub fn faults(&self) -> Vec<String> {
        let Report {
            in_checkout_max,
            seats,
            ..
        } = self;
        let oversold = (in_checkout_max > seats)
            .then(|| format!("{in_checkout_max} were in checkout at once, with {seats} seats"));
        let counts = [
            (self.overtakes, "overtakes"),
            (self.duplicates, "duplicates"),
            (self.lost, "lost tokens"),
        ];
        let counted = counts.into_iter().filter(|(count, _)| *count > 0);
        let counted = counted.map(|(count, what)| format!("{count} {what}"));
        oversold.into_iter().chain(counted).collect()
    }

    pub fn table(&self) -> Table {
        let gone = self.gone.iter();
        let gone: Vec<String> = gone.map(|(why, count)| format!("{why} {count}")).collect();
        let failover = self.failover_ms.map(|ms| format!("{ms} ms"));
        let seat_use = self
            .seat_use_percent
            .map(|percent| format!("{percent:.1} %"));
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let mut table = Table::new();
        table.load_style(presets::UTF8_BORDERS_ONLY);
        let mut row = |name: &str, value: String, meaning: &str| {
            table.add_row([name, &value, meaning]);
        };
        row("shoppers", self.shoppers.to_string(), "");
        row(
            "acknowledged",
            self.acknowledged.to_string(),
            "writes that were answered",
        );
        row("issued", self.issued.to_string(), "numbers handed out");
        row(
            "refused",
            self.refused.to_string(),
            "turned away at the door",
        );
        row("completed", self.completed.to_string(), "bought");
        row("gone", gone.join("\n"), "how their visits ended");
        let in_checkout = format!("{} of {}", self.in_checkout_max, self.seats);
        row("in checkout", in_checkout, "most at once");
        row("overtakes", self.overtakes.to_string(), "must be 0");
        row("duplicates", self.duplicates.to_string(), "must be 0");
        row("lost", self.lost.to_string(), "must be 0");
        row(
            "failover",
            or_none(failover),
            "kill -9 to an acknowledged write",
        );
        row(
            "seat use",
            or_none(seat_use),
            "in checkout while anybody waited",
        );
        let duration = format!("{:.1} s", self.duration_ms as f64 / 1000.0);
        row("duration", duration, "");
        if let Some(values) = table.column_mut(1) {
            values.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_line_of_json_has_these_fields_in_this_order() {
        let report = Report {
            nodes: 3,
            shoppers: 2,
            acknowledged: 5,
            issued: 2,
            completed: 1,
            gone: BTreeMap::from([("completed".to_owned(), 1), ("idle".to_owned(), 1)]),
            seats: 5,
            in_checkout_max: 1,
            failover_ms: Some(1_234),
            seat_use_percent: Some(66.7),
            duration_ms: 60_000,
            ..Report::default()
        };
        assert_eq!(
            serde_json::to_string(&report).unwrap(),
            r#"{"nodes":3,"shoppers":2,"acknowledged":5,"issued":2,"completed":1,"gone":{"completed":1,"idle":1},"refused":0,"seats":5,"in_checkout_max":1,"overtakes":0,"duplicates":0,"lost":0,"failover_ms":1234,"seat_use_percent":66.7,"duration_ms":60000}"#
        );
        assert!(report.table().to_string().contains("1 of 5"));
    }

    #[test]
    fn the_table_fits_a_terminal_of_80_columns() {
        let many = [("checkout_expired", 1_000_000), ("completed", 1_000_000)];
        let report = Report {
            nodes: 3,
            shoppers: 1_000_000,
            acknowledged: 1_000_000,
            issued: 1_000_000,
            completed: 1_000_000,
            gone: many
                .map(|(reason, count)| (reason.to_owned(), count))
                .into(),
            refused: 1_000_000,
            seats: 1_000_000,
            in_checkout_max: 1_000_000,
            failover_ms: Some(1_000_000),
            seat_use_percent: Some(100.0),
            duration_ms: 3_600_000,
            ..Report::default()
        };
        let text = report.table().to_string();
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest.is_some_and(|widest| widest <= 80), "{text}");
    }
}
