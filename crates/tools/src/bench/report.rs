//! How the benchmark ends: a table for people, one line of JSON for programs.

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::lines::{POLLED, Polled};
use super::load::Sample;
use super::machine::Machine;
use super::plan::{Plan, What};
use nowserving_rehearse::count;
use nowserving_terminal::duration;

/// The samples of each cell, round by round.
pub type Rounds = BTreeMap<(u32, What), Vec<Sample>>;
/// How often each failure occurred, by its message.
pub type Failures = BTreeMap<String, u64>;

/// Says which requests failed; the exit code follows from that.
pub fn told(failures: &Failures) -> ExitCode {
    for (failure, count) in failures {
        eprintln!("FAILED: {count} requests: {failure}");
    }
    match failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// The line of JSON; its fields in this order.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// How often each cell was measured.
    pub rounds: u32,
    /// How long each time, in milliseconds.
    pub measured_ms: u64,
    /// Tokens that waited and were asked for.
    pub polled_tokens: usize,
    /// Size of a request for a status; the echo's is the same.
    pub request_bytes: usize,
    /// Size of a status; the echo's answer is as long.
    pub answer_bytes: usize,
    /// The kind of request.
    pub cells: Vec<Cell>,
    /// Requests that failed, and why; empty if all went well.
    pub failures: Failures,
}

/// One measured operation at one concurrency.
#[derive(Debug, PartialEq, Serialize)]
pub struct Cell {
    pub what: What,
    /// Requests under way at once.
    pub in_flight: u32,
    #[serde(flatten)]
    pub timed: Timed,
    /// Of `status`: its requests a second by those of the echo in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_echo: Option<Spread>,
}

/// What is measured of every operation.
#[derive(Debug, PartialEq, Serialize)]
pub struct Timed {
    /// Successful replies only.
    pub requests_per_s: Spread,
    /// Half of the answers came within this many microseconds.
    pub median_us: Spread,
    /// 99 of 100 did.
    pub p99_us: Spread,
    pub failed: u64,
}

/// A number over all rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// `None` if there are no values.
    pub fn of(values: impl Iterator<Item = f64>, digits: i32) -> Option<Spread> {
        let scale = 10_f64.powi(digits);
        let mut values: Vec<f64> = values.map(|v| (v * scale).round() / scale).collect();
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            (values[middle - 1] + values[middle]) / 2.0
        };
        Some(Spread { median, min, max })
    }

    /// Of the rates of two cells, round by round.
    pub fn of_ratios(
        rates: impl Iterator<Item = f64>,
        to: impl Iterator<Item = f64>,
    ) -> Option<Spread> {
        let ratios = rates.zip(to).map(|(rate, to)| rate / to);
        Spread::of(ratios.filter(|ratio| ratio.is_finite()), 3)
    }

    pub fn text_or_nothing(spread: Option<&Spread>, show: impl Fn(f64) -> String) -> String {
        spread.map_or(String::new(), |spread| spread.text(show))
    }

    pub fn text(&self, show: impl Fn(f64) -> String) -> String {
        let Spread { median, min, max } = *self;
        if min == max {
            return show(median);
        }
        format!("{} ({}–{})", show(median), show(min), show(max))
    }
}

impl Report {
    pub fn new(
        machine: Machine,
        plan: &Plan,
        polled: &Polled,
        rounds: &Rounds,
        failures: Failures,
        nodes: &[u64],
    ) -> Report {
        let cells = rounds.iter().filter_map(|(&(in_flight, what), samples)| {
            let echo = rounds.get(&(in_flight, What::Echo));
            Cell::new(what, in_flight, samples, echo.map(Vec::as_slice))
        });
        Report {
            machine,
            nodes: nodes.len(),
            rounds: plan.rounds,
            measured_ms: plan.measured.as_millis() as u64,
            polled_tokens: POLLED,
            request_bytes: polled.request_bytes,
            answer_bytes: polled.answer_bytes,
            cells: cells.collect(),
            failures,
        }
    }

    pub fn text(&self) -> String {
        format!(
            "{}\n{}\n{} nodes, nats-server and requester share the machine; median (min–max) of \
             rounds: {} × {};\nstatus over {} waiting tokens; status and echo: {} bytes asked, {} \
             answered",
            self.table(),
            self.machine.text(),
            self.nodes,
            self.rounds,
            duration::typed(self.measured_ms),
            self.polled_tokens,
            self.request_bytes,
            self.answer_bytes,
        )
    }

    fn table(&self) -> Table {
        let rows = self.cells.iter().map(|cell| {
            let ratio = cell.ratio_to_echo.as_ref();
            let ratio = Spread::text_or_nothing(ratio, |ratio| format!("{ratio:.2}"));
            cell.timed.row(cell.in_flight, cell.what, [ratio])
        });
        table(&["of echo"], rows)
    }
}

impl Cell {
    fn new(
        what: What,
        in_flight: u32,
        samples: &[Sample],
        echo: Option<&[Sample]>,
    ) -> Option<Cell> {
        let rate = |it: &Sample| it.per_second;
        let ratio_to_echo = echo
            .filter(|_| what == What::Status)
            .and_then(|echo| Spread::of_ratios(samples.iter().map(rate), echo.iter().map(rate)));
        Some(Cell {
            what,
            in_flight,
            timed: Timed::of(samples.iter())?,
            ratio_to_echo,
        })
    }
}

impl Timed {
    /// The samples of all rounds; `None` if there are none.
    pub fn of<'a>(samples: impl Iterator<Item = &'a Sample> + Clone) -> Option<Timed> {
        let quantile = |q: f64| {
            let times = samples.clone().map(|it| &it.tally.latency_us);
            Spread::of(times.map(|times| times.value_at_quantile(q) as f64), 0)
        };
        let failures = samples.clone().flat_map(|it| it.tally.failures.values());
        Some(Timed {
            requests_per_s: Spread::of(samples.clone().map(|it| it.per_second), 0)?,
            median_us: quantile(0.5)?,
            p99_us: quantile(0.99)?,
            failed: failures.sum(),
        })
    }

    /// Of a [`table`] with so many columns of its own.
    pub fn row<const N: usize>(
        &self,
        in_flight: u32,
        what: impl fmt::Display,
        own: [String; N],
    ) -> Vec<String> {
        let ms = |us: f64| format!("{:.2}", us / 1_000.0);
        let mut row = vec![
            in_flight.to_string(),
            what.to_string(),
            self.requests_per_s.text(grouped),
            self.median_us.text(ms),
            self.p99_us.text(ms),
        ];
        row.extend(own);
        row.push(self.failed.to_string());
        row
    }
}

/// All cells, by [`Timed::row`].
pub fn table(own: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    let before = ["in flight", "what", "requests/s", "median ms", "99 % ms"];
    table.set_header(before.iter().chain(own).chain(&["failed"]));
    table.add_rows(rows);
    for column in table.column_iter_mut().filter(|it| it.index != 1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// A whole number with its thousands apart.
pub fn grouped(number: f64) -> String {
    count(number.round_ties_even() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::super::load::Tally;
    use super::*;

    fn sample(per_second: f64, times_us: &[u64], failed: u64) -> Sample {
        let mut tally = Tally::new().unwrap();
        for time in times_us {
            tally.count(Duration::from_micros(*time)).unwrap();
        }
        (0..failed).for_each(|_| tally.fail("no answer".to_owned()));
        Sample { per_second, tally }
    }

    #[test]
    fn a_spread_is_the_middle_and_the_ends() {
        let of = |values: &[f64]| Spread::of(values.iter().copied(), 0);
        let spread = of(&[30.0, 10.0, 20.4]).unwrap();
        assert_eq!((spread.median, spread.min, spread.max), (20.0, 10.0, 30.0));
        assert_eq!(of(&[1.0, 3.0]).unwrap().median, 2.0);
        assert!(of(&[]).is_none());
        assert_eq!(spread.text(grouped), "20 (10–30)");
    }

    #[test]
    fn a_status_is_compared_with_the_echo_of_its_own_round() {
        let echo = [sample(100.0, &[1], 0), sample(200.0, &[1], 0)];
        let status = [sample(50.0, &[10, 20, 90], 0), sample(100.0, &[20], 2)];
        let cell = Cell::new(What::Status, 64, &status, Some(&echo)).unwrap();
        let ratio = cell.ratio_to_echo.unwrap();
        assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
        assert_eq!(cell.timed.failed, 2);
        assert_eq!(cell.timed.p99_us.max, 90.0);
        let enter = Cell::new(What::EnterOne, 64, &status, Some(&echo)).unwrap();
        assert!(enter.ratio_to_echo.is_none());
    }

    #[test]
    fn a_dead_echo_gives_no_ratio() {
        let cell = Cell::new(
            What::Status,
            1,
            &[sample(9.0, &[1], 0)],
            Some(&[sample(0.0, &[], 9)]),
        );
        assert!(cell.unwrap().ratio_to_echo.is_none());
    }
}
