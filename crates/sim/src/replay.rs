//! Applying log entries to a state, by the same code as nodes.

use nowserving_kv as kv;
use nowserving_line::{Event, Line, Op, Refused, Reply, Status};
use nowserving_replica::{Committed, Payload};
use nowserving_shard::command::{self, Command};
use nowserving_shard::restore::RestoreCommand;
pub use nowserving_shard::state::State;
use nowserving_shard::state::{AppliedLimit, AppliedRestore, AppliedToLine, Observer};

use crate::upgrade::NEXT_FORMAT;

/// One operation of an entry, right after it was applied.
pub struct Applied<'a> {
    /// The operation.
    pub op: &'a Op,
    /// What it was answered.
    pub result: &'a Result<Reply, Refused>,
    /// If the reply names a token: its status right after the operation, as a leader would answer.
    pub status: Option<Status>,
    /// What happened.
    pub events: &'a [Event],
    /// The state after it.
    pub state: &'a State,
    /// The line's version before it; 0 if there was no such line.
    pub version_before: u64,
    /// The wall clock of the leader that wrote the entry.
    pub wall_ms: u64,
}

/// A line that was put back, right after that.
pub struct PutBack<'a> {
    /// The step that did it.
    pub command: &'a RestoreCommand,
    /// What happened.
    pub events: &'a [Event],
    /// The state after it.
    pub state: &'a State,
}

/// What an entry did to a line.
pub enum Change<'a> {
    /// An operation.
    Operation(&'a Applied<'a>),
    /// A restore.
    PutBack(PutBack<'a>),
    /// An operation on a key-value, at this time of the service clock.
    Kv(&'a kv::Op, Result<kv::Reply, kv::Refused>, u64),
    /// Key-values have changed, at this time of the leader's wall clock.
    KvEvents(&'a [kv::Event], u64),
    /// A command about rate limits, and what it was answered.
    Limit(&'a AppliedLimit<'a>),
}

struct Watch<'a> {
    version_before: u64,
    now_ms: u64,
    wall_ms: u64,
    after: &'a mut dyn FnMut(Change<'_>),
}

impl Observer for Watch<'_> {
    fn before(&mut self, state: &State, command: &Command) {
        self.now_ms = state.now_ms();
        if let Command::Line(op) = command {
            let line = state.lines().get(op.line());
            self.version_before = line.map_or(0, Line::version);
        }
    }

    fn line(&mut self, state: &State, applied: AppliedToLine<'_>) {
        let lines = state.lines();
        let status = match applied.result {
            Ok(Reply::Token(at)) => lines
                .get(applied.op.line())
                .and_then(|line| line.status(at, lines.now_ms()).ok()),
            _ => None,
        };
        (self.after)(Change::Operation(&Applied {
            op: applied.op,
            result: &applied.result,
            status,
            events: applied.events,
            state,
            version_before: self.version_before,
            wall_ms: self.wall_ms,
        }));
    }

    fn kv(&mut self, _: usize, op: &kv::Op, result: Result<kv::Reply, kv::Refused>) {
        (self.after)(Change::Kv(op, result, self.now_ms));
    }

    fn kv_events(&mut self, events: &[kv::Event], wall_ms: u64) {
        (self.after)(Change::KvEvents(events, wall_ms));
    }

    fn limit(&mut self, _: &State, applied: AppliedLimit<'_>) {
        (self.after)(Change::Limit(&applied));
    }

    fn restore(&mut self, state: &State, applied: AppliedRestore<'_>) {
        if !applied.events.is_empty() {
            (self.after)(Change::PutBack(PutBack {
                command: applied.command,
                events: applied.events,
                state,
            }));
        }
    }
}

/// Applies an entry; tells `after` of each change of a line.
///
/// # Errors
/// This build cannot read it.
pub fn apply(
    state: &mut State,
    entry: &Committed,
    after: &mut dyn FnMut(Change<'_>),
) -> Result<(), String> {
    let Payload::Command(data) = &entry.payload else {
        return Ok(());
    };
    let read = command::decode(data, NEXT_FORMAT).map_err(|error| error.to_string())?;
    let mut watch = Watch {
        version_before: 0,
        now_ms: 0,
        wall_ms: read.wall_ms,
        after,
    };
    state.apply_entry(entry.index, &read, &mut watch);
    Ok(())
}
