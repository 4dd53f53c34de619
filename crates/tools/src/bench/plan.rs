//! The cells of a measurement, and their order.

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
use nowserving_line::LineName;
use serde::Serialize;

use super::{BenchArgs, WARM_UP};

/// Lines that `enter` is spread over.
pub const MANY_LINES: usize = 1_000;
/// Making and clearing lines around a cell takes far less.
const AROUND_A_CELL: Duration = Duration::from_secs(5);
/// The default of lines.
const IDLE_TIMEOUT_MIN: Duration = Duration::from_secs(300);

/// The kind of request of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A bare NATS responder that answers with as many bytes as `status` does.
    Echo,
    /// `status` of the waiting tokens of one line.
    Status,
    /// `enter` on one line.
    EnterOne,
    /// `enter` spread over many lines.
    EnterMany,
}

impl What {
    /// In the order of a round.
    pub const ALL: [What; 4] = [What::Echo, What::Status, What::EnterOne, What::EnterMany];

    /// The lines that it enters.
    pub fn entered_lines(self) -> Vec<LineName> {
        let count = match self {
            What::Echo | What::Status => 0,
            What::EnterOne => 1,
            What::EnterMany => MANY_LINES,
        };
        (0..count)
            .filter_map(|i| LineName::try_from(format!("bench-enter-{i}").as_str()).ok())
            .collect()
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Echo => f.write_str("NATS echo"),
            What::Status => f.write_str("status"),
            What::EnterOne => f.write_str("enter, 1 line"),
            What::EnterMany => write!(f, "enter, {MANY_LINES} lines"),
        }
    }
}

#[derive(Debug)]
pub struct Plan {
    /// How long a cell is measured in a round.
    pub measured: Duration,
    /// How often the whole list is measured; the report gives medians over the rounds.
    pub rounds: u32,
    in_flight: Vec<u32>,
    whats: Vec<What>,
}

impl Plan {
    /// As the command line says.
    pub fn new(args: &BenchArgs) -> Plan {
        let mut whats = args.only.clone();
        whats.sort_unstable();
        whats.dedup();
        Plan {
            measured: args.pace.measured(),
            rounds: args.pace.rounds,
            in_flight: args.pace.in_flight(),
            whats,
        }
    }

    /// One round: all that is compared with each other stands side by side.
    pub fn cells(&self) -> impl Iterator<Item = (u32, What)> + '_ {
        self.in_flight
            .iter()
            .flat_map(|&in_flight| self.whats.iter().map(move |&what| (in_flight, what)))
    }

    /// The idle timeout of the lines: no requests come for their tokens while other cells run, and the
    /// tokens must live.
    pub fn idle_timeout(&self) -> Duration {
        let cells = u32::try_from(self.cells().count()).unwrap_or(u32::MAX);
        let cell = self.measured + WARM_UP + AROUND_A_CELL;
        let run = cell.saturating_mul(cells).saturating_mul(self.rounds);
        run.max(IDLE_TIMEOUT_MIN)
    }
}
