//! Log entries: the commands that a leader folded into one proposal.
//!
//! An entry that is committed must mean the same to every node. So everything that a
//! reader does not understand is an error, on which a node has to stop; nothing
//! is skipped. Protobuf itself skips fields that it does not know, so entries have a
//! format, which changes with every addition. Nodes tell each other the newest format that they read, and a
//! leader writes the newest that every member of its group reads: builds of two formats run side by side.

use nowserving_kv as kv;
use nowserving_line::{self as line, CALL_MAX, OPS_PER_ENTRY_MAX, OperatorNote};
use prost::Message;

use crate::journal_pb::{operator_note_from_pb, operator_note_to_pb};
use crate::kv_pb::{kv_op_from_pb, kv_op_to_pb};
use crate::limits::LimitCommand;
use crate::limits::pb::{limit_command_from_pb, limit_command_to_pb};
use crate::members::MembersCommand;
use crate::members_pb::{members_command_from_pb, members_command_to_pb};
use crate::op_pb::{op_format, op_from_pb, op_to_pb};
use crate::pb;
use crate::pb::command::Command as Kind;
use crate::pb::{Malformed, all};
use crate::requests::RequestId;
use crate::requests_pb::{id_from_pb, id_to_pb};
use crate::restore::RestoreCommand;
use crate::restore_pb::{restore_from_pb, restore_to_pb};

/// The most commands in one entry: more would make incarnations ambiguous.
pub const COMMANDS_MAX: usize = OPS_PER_ENTRY_MAX as usize;

/// Commands folded into one entry by [`EntryBuilder`].
const FOLDED_MAX: usize = 1_024;
/// Their encoded size, so that an entry stays well below the limit of one frame.
const FOLDED_BYTES_MAX: usize = 256 * 1_024;
/// The number of `Entry.commands`.
const COMMANDS_TAG: u32 = 4;
/// The oldest format that this build reads.
pub const FORMAT_MIN: u32 = 6;
/// The newest format that this build reads. A command that it adds may be proposed only in entries of it.
pub const FORMAT: u32 = 8;
/// The first format whose entries can say who asked for a command, and why.
const NOTES_FORMAT: u32 = 8;

/// A change of a shard's replicated state, by kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "as large as the operation that makes a line"
)]
pub enum Command {
    /// Nothing but that the entry's reading of the service clock is replicated.
    Stamp,
    /// An operation on a line.
    Line(line::Op),
    /// About the members of the cluster.
    Members(MembersCommand),
    /// A step of putting a line back from a backup.
    Restore(RestoreCommand),
    /// An operation on a key-value.
    Kv(kv::Op),
    /// About rate limits.
    Limit(LimitCommand),
    /// Done unless a request with this id was done lately: a [`Command::Line`], [`Command::Kv`] or
    /// [`Command::Limit`], or a [`Command::Members`] of an operator.
    Once(RequestId, Box<Command>),
    /// A [`Command::Line`] or [`Command::Restore`] of an operator who gave a name or a reason.
    Noted(Box<OperatorNote>, Box<Command>),
}

impl From<line::Op> for Command {
    fn from(op: line::Op) -> Self {
        Command::Line(op)
    }
}

impl Command {
    /// How many tokens it may admit as an operator's call, or let enter: an entry's work is bounded.
    fn calls(&self) -> u32 {
        match self {
            Command::Line(line::Op::CallNext { n, .. }) => *n,
            Command::Line(line::Op::Import { rows, .. }) => {
                u32::try_from(rows.len()).unwrap_or(u32::MAX)
            }
            Command::Once(_, command) | Command::Noted(_, command) => command.calls(),
            _ => 0,
        }
    }

    /// The command without an operator's note.
    #[must_use]
    pub fn unnoted(&self) -> &Command {
        match self {
            Command::Noted(_, command) => command.as_ref(),
            command => command,
        }
    }

    /// The command as entries of this format can have it: an earlier one has no notes of operators.
    #[must_use]
    pub fn fitted(self, format: u32) -> Command {
        match self {
            Command::Once(id, command) => Command::Once(id, Box::new(command.fitted(format))),
            Command::Noted(_, command) if format < NOTES_FORMAT => *command,
            command => command,
        }
    }

    /// The first format of entries that has this command with all its fields. It may not be proposed in others.
    ///
    /// A loop: of the recursion, rustc 1.95 makes code in which a format of 7 is not equal to 7 when optimised.
    #[must_use]
    pub fn format(&self) -> u32 {
        let (mut command, mut least) = (self, FORMAT_MIN);
        loop {
            command = match command {
                Command::Once(_, inner) => inner,
                Command::Noted(_, inner) => {
                    least = NOTES_FORMAT;
                    inner
                }
                Command::Line(op) => return op_format(op).max(least),
                Command::Members(command) => return command.format().max(least),
                Command::Stamp => return least,
                // Its parts may be of a backup of this very format: a member that does not read all of them would keep
                // other lines than the rest.
                Command::Restore(_) => return FORMAT,
                Command::Kv(_) | Command::Limit(_) => return least.max(7),
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// [`FORMAT_MIN`] to [`FORMAT`].
    pub format: u32,
    /// The leader's reading of the shard's service clock.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970: it is shown, and schedules go by it.
    pub wall_ms: u64,
    /// Every member has the log up to this index, so that all may compact it.
    pub compact_floor: u64,
    /// The commands, in order; at most [`COMMANDS_MAX`].
    pub commands: Vec<Command>,
}

impl Default for Entry {
    fn default() -> Self {
        Entry {
            format: FORMAT,
            now_ms: 0,
            wall_ms: 0,
            compact_floor: 0,
            commands: Vec::new(),
        }
    }
}

/// Why an entry cannot be applied by this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Not protobuf, or not an entry.
    #[error("a log entry does not decode: {0}")]
    Decode(String),
    /// Written by an earlier build, whose entries are no longer read.
    #[error("a log entry has format {0}, and this build reads {FORMAT_MIN} and later")]
    TooOld(u32),
    /// Written by a later build.
    #[error(
        "a log entry has format {format}, and this build reads up to {newest}: start a newer build"
    )]
    TooNew { format: u32, newest: u32 },
    /// An entry, and something in it makes no sense.
    #[error("a log entry contains {0}")]
    Malformed(&'static str),
}

/// The entry's bytes. Equal entries are equal bytes.
///
/// # Panics
///
/// If there are more than [`COMMANDS_MAX`] commands: rather here, before anything is
/// proposed, than on every node once it is committed.
pub fn encode(entry: &Entry) -> Vec<u8> {
    assert!(
        entry.commands.len() <= COMMANDS_MAX,
        "more commands than an entry can have"
    );
    let mut bytes = begin(entry.format);
    for command in &entry.commands {
        put(&mut bytes, command);
    }
    end(&mut bytes, entry);
    bytes
}

fn begin(format: u32) -> Vec<u8> {
    let head = pb::Entry {
        format,
        ..pb::Entry::default()
    };
    head.encode_to_vec()
}

fn put(bytes: &mut Vec<u8>, command: &Command) {
    prost::encoding::message::encode(COMMANDS_TAG, &command_to_pb(command), bytes);
}

fn end(bytes: &mut Vec<u8>, entry: &Entry) {
    let head = pb::Entry {
        now_ms: entry.now_ms,
        wall_ms: entry.wall_ms,
        compact_floor: entry.compact_floor,
        ..pb::Entry::default()
    };
    head.encode_raw(bytes);
}

/// Folds commands into one entry. Each is encoded once, as it comes, so that the size is known while
/// there is still a choice.
#[derive(Debug)]
pub struct EntryBuilder {
    format: u32,
    bytes: Vec<u8>,
    commands: Vec<Command>,
    /// How many tokens its commands may call or import.
    called: u32,
}

impl EntryBuilder {
    /// An entry of this format, without commands.
    #[must_use]
    pub fn new(format: u32) -> Self {
        EntryBuilder {
            format,
            bytes: begin(format),
            commands: Vec::new(),
            called: 0,
        }
    }

    /// The format of the entry.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.format
    }

    /// Adds a command, or gives it back if the entry is full. The first one always fits.
    #[must_use]
    pub fn push(&mut self, command: Command) -> Option<Command> {
        let length = self.bytes.len();
        let called = self.called.saturating_add(command.calls());
        let is_much = called > CALL_MAX && !self.commands.is_empty();
        if self.commands.len() >= FOLDED_MAX || is_much {
            return Some(command);
        }
        put(&mut self.bytes, &command);
        if self.bytes.len() > FOLDED_BYTES_MAX && !self.commands.is_empty() {
            self.bytes.truncate(length);
            return Some(command);
        }
        self.commands.push(command);
        self.called = called;
        None
    }

    /// The entry and its bytes.
    #[must_use]
    pub fn finish(mut self, now_ms: u64, wall_ms: u64, compact_floor: u64) -> (Entry, Vec<u8>) {
        let entry = Entry {
            format: self.format,
            now_ms,
            wall_ms,
            compact_floor,
            commands: self.commands,
        };
        end(&mut self.bytes, &entry);
        (entry, self.bytes)
    }
}

/// Reads an entry of a format up to `newest`: [`FORMAT`], except where a simulation has the next build, too.
pub fn decode(bytes: &[u8], newest: u32) -> Result<Entry, EntryError> {
    let entry = pb::Entry::decode(bytes).map_err(|error| EntryError::Decode(error.to_string()))?;
    match entry.format {
        0 => return Err(EntryError::Malformed("no format")),
        format if format < FORMAT_MIN => return Err(EntryError::TooOld(format)),
        format if format > newest => return Err(EntryError::TooNew { format, newest }),
        _ => {}
    }
    if entry.commands.len() > COMMANDS_MAX {
        return Err(EntryError::Malformed(
            "more commands than an entry can have",
        ));
    }
    Ok(Entry {
        format: entry.format,
        now_ms: entry.now_ms,
        wall_ms: entry.wall_ms,
        compact_floor: entry.compact_floor,
        commands: all(entry.commands, command_from_pb).map_err(EntryError::Malformed)?,
    })
}

fn command_to_pb(command: &Command) -> pb::Command {
    let kind = match command {
        Command::Stamp => Kind::Stamp(pb::Stamp {}),
        Command::Line(op) => Kind::Line(op_to_pb(op)),
        Command::Members(command) => Kind::Members(members_command_to_pb(command)),
        Command::Restore(command) => Kind::Restore(restore_to_pb(command)),
        Command::Kv(op) => Kind::Kv(kv_op_to_pb(op)),
        Command::Limit(command) => Kind::Limit(limit_command_to_pb(command)),
        Command::Noted(note, command) => Kind::Noted(Box::new(pb::NotedCommand {
            note: Some(operator_note_to_pb(note)),
            command: Some(Box::new(command_to_pb(command))),
        })),
        Command::Once(id, command) => Kind::Once(Box::new(pb::Once {
            id: Some(id_to_pb(*id)),
            command: Some(Box::new(command_to_pb(command))),
        })),
    };
    pb::Command {
        command: Some(kind),
    }
}

fn command_from_pb(command: pb::Command) -> Result<Command, Malformed> {
    match command.command {
        Some(Kind::Stamp(pb::Stamp {})) => Ok(Command::Stamp),
        Some(Kind::Line(op)) => Ok(Command::Line(op_from_pb(op)?)),
        Some(Kind::Members(command)) => Ok(Command::Members(members_command_from_pb(command)?)),
        Some(Kind::Restore(command)) => Ok(Command::Restore(restore_from_pb(command)?)),
        Some(Kind::Kv(op)) => Ok(Command::Kv(kv_op_from_pb(op)?)),
        Some(Kind::Limit(command)) => Ok(Command::Limit(limit_command_from_pb(command)?)),
        Some(Kind::Noted(noted)) => {
            let note = operator_note_from_pb(noted.note.ok_or("a noted command without a note")?);
            match command_from_pb(*noted.command.ok_or("a note without a command")?)? {
                command @ (Command::Line(_) | Command::Restore(_)) => {
                    Ok(Command::Noted(Box::new(note), Box::new(command)))
                }
                _ => Err("a note of a command that has none"),
            }
        }
        Some(Kind::Once(once)) => {
            let id = id_from_pb(&once.id.ok_or("a request without an id")?)?;
            match command_from_pb(*once.command.ok_or("a request without a command")?)? {
                Command::Once(..) => Err("a request within a request"),
                Command::Members(MembersCommand::Begin { .. } | MembersCommand::Adopt(_)) => {
                    Err("a request with an id that is no operator's")
                }
                Command::Restore(_) => Err("a request with an id to put a line back"),
                Command::Noted(_, it) if matches!(*it, Command::Restore(_)) => {
                    Err("a request with an id to put a line back")
                }
                Command::Limit(LimitCommand::Checkpoint { .. }) => {
                    Err("a request with an id that is a checkpoint of limits")
                }
                command => Ok(Command::Once(id, Box::new(command))),
            }
        }
        None => Err("a command that this build does not know"),
    }
}
