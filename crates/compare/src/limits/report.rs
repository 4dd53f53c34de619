//! How the measurement of rate limits ends: a table for people, one line of JSON for programs.

use std::fmt;

use comfy_table::Table;
use serde::Serialize;

use nowserving_rehearse::count;
use nowserving_terminal::duration;
use nowserving_tools::bench::machine::Machine;
use nowserving_tools::bench::report::{Failures, Spread, Timed, table};

use super::{Bench, LimitsArgs, Measured, Rounds, What};

/// How many nodes the cluster has.
const NODES: usize = 3;

/// The line of JSON; its fields in this order.
#[derive(Debug, Serialize)]
pub struct Report {
    pub machine: Machine,
    /// Version of redis-server.
    pub redis_server: String,
    /// Nodes of the cluster.
    pub nodes: usize,
    /// Counters that each of them has.
    pub keys: u64,
    pub rounds: u32,
    /// How long each cell was measured each time, in milliseconds.
    pub measured_ms: u64,
    /// Size of a check; the echo's request is the same.
    pub request_bytes: usize,
    /// Size of its answer; the echo's is as long.
    pub answer_bytes: usize,
    pub cells: Vec<Cell>,
    /// Requests that failed, and why; empty if all went well.
    pub failures: Failures,
}

/// One kind of request at one concurrency.
#[derive(Debug, PartialEq, Serialize)]
pub struct Cell {
    pub what: What,
    /// Requests under way at once.
    pub in_flight: u32,
    #[serde(flatten)]
    pub timed: Timed,
    /// Processor time of all servers for one request; null where the system does not tell.
    pub cpu_us: Option<Spread>,
    /// Requests a second of `check`, by those of this one in the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check_ratio: Option<Spread>,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            What::Echo => "NATS echo",
            What::Check => "check",
            What::RedisFixedWindow => "Redis, INCRBY + EXPIRE",
            What::RedisGcra => "Redis, GCRA script",
        })
    }
}

impl Report {
    pub(super) fn new(
        machine: Machine,
        args: &LimitsArgs,
        bench: &Bench,
        rounds: &Rounds,
    ) -> Report {
        let cells = rounds.iter().filter_map(|(&(in_flight, what), measured)| {
            let check = rounds.get(&(in_flight, What::Check));
            Cell::new(what, in_flight, measured, check.map(Vec::as_slice))
        });
        Report {
            machine,
            redis_server: bench.server.version.clone(),
            nodes: NODES,
            keys: args.keys,
            rounds: args.pace.rounds,
            measured_ms: args.pace.measure_ms,
            request_bytes: bench.request_bytes,
            answer_bytes: bench.answer_bytes,
            cells: cells.collect(),
            failures: failures(rounds),
        }
    }

    pub fn text(&self) -> String {
        format!(
            "{}\n{}, redis-server {}\n{} nodes, nats-server, redis-server and requester share the machine; median \
             (min–max) of rounds: {} × {};\n{} counters; check and echo: {} bytes asked, {} answered. CPU: user and \
             system time of the servers\n(the echo and nats-server; nats-server and all nodes, checkpoints included; \
             redis-server, which keeps nothing on disk)",
            self.table(),
            self.machine.text(),
            self.redis_server,
            self.nodes,
            self.rounds,
            duration::typed(self.measured_ms),
            count(self.keys),
            self.request_bytes,
            self.answer_bytes,
        )
    }

    fn table(&self) -> Table {
        table(
            &["CPU µs", "check by this"],
            self.cells.iter().map(Cell::row),
        )
    }
}

fn failures(rounds: &Rounds) -> Failures {
    let mut failures = Failures::new();
    for ((_, what), measured) in rounds {
        for (failure, count) in measured.iter().flat_map(|it| &it.sample.tally.failures) {
            *failures.entry(format!("{what}: {failure}")).or_default() += count;
        }
    }
    failures
}

impl Cell {
    fn new(
        what: What,
        in_flight: u32,
        measured: &[Measured],
        check: Option<&[Measured]>,
    ) -> Option<Cell> {
        let rate = |it: &Measured| it.sample.per_second;
        let check_ratio = check
            .filter(|_| what != What::Check)
            .and_then(|check| Spread::of_ratios(check.iter().map(rate), measured.iter().map(rate)));
        Some(Cell {
            what,
            in_flight,
            timed: Timed::of(measured.iter().map(|it| &it.sample))?,
            cpu_us: Spread::of(measured.iter().filter_map(|it| it.cpu_us), 1),
            check_ratio,
        })
    }

    fn row(&self) -> Vec<String> {
        let cpu = Spread::text_or_nothing(self.cpu_us.as_ref(), |us| format!("{us:.1}"));
        let ratio = self.check_ratio.as_ref();
        let ratio = Spread::text_or_nothing(ratio, |ratio| format!("{ratio:.2}"));
        self.timed.row(self.in_flight, self.what, [cpu, ratio])
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use nowserving_tools::bench::load::{Sample, Tally};

    fn measured(per_second: f64, cpu_us: Option<f64>) -> Measured {
        let mut tally = Tally::new().unwrap();
        tally.count(Duration::from_micros(10)).unwrap();
        Measured {
            sample: Sample { per_second, tally },
            cpu_us,
        }
    }

    #[test]
    fn all_are_compared_with_the_check_of_their_own_round() {
        let check = [measured(50.0, None), measured(100.0, None)];
        let redis = [measured(100.0, Some(7.04)), measured(200.0, Some(9.0))];
        let cell = Cell::new(What::RedisGcra, 64, &redis, Some(&check)).unwrap();
        let ratio = cell.check_ratio.unwrap();
        assert_eq!((ratio.min, ratio.max), (0.5, 0.5));
        assert_eq!(cell.cpu_us.map(|cpu| cpu.min), Some(7.0));
        let own = Cell::new(What::Check, 64, &check, Some(&check)).unwrap();
        assert_eq!((own.check_ratio, own.cpu_us), (None, None));
        assert_eq!(own.row()[5], "");
    }
}
