//! Log entries: the commands that a leader folded into one proposal.
//!
//! An entry that is committed must mean the same to every node. So everything that a
//! reader does not understand is an error, on which a node has to stop; nothing
//! is skipped. Entries have a format, which changes with every addition. Nodes tell each other the newest format that
//! they read, and a leader writes the newest that every member of its group reads: builds of two formats run side by
//! side.
//!
//! ```text
//! magic, 1 byte │ format │ for each command: 1, the command │ 0 │ now_ms │ wall_ms │ compact_floor
//! ```

use nowserving_codec::{Codec, Malformed, Reader, Writer};
use nowserving_kv as kv;
use nowserving_line::{self as line, CALL_MAX, OPS_PER_ENTRY_MAX, OperatorNote};

use crate::limits::LimitCommand;
use crate::members::MembersCommand;
use crate::requests::RequestId;
use crate::restore::RestoreCommand;

/// The most commands in one entry: more would make incarnations ambiguous.
pub const COMMANDS_MAX: usize = OPS_PER_ENTRY_MAX as usize;

/// Commands folded into one entry by [`EntryBuilder`].
const FOLDED_MAX: usize = 1_024;
/// Their encoded size, so that an entry stays well below the limit of one frame.
const FOLDED_BYTES_MAX: usize = 256 * 1_024;
/// No entry of a build before the first release begins with it: those were protobuf.
const MAGIC: u8 = 0xe1;
/// The oldest format that this build reads.
pub const FORMAT_MIN: u32 = 1;
/// The newest format that this build reads. A command that it adds may be proposed only in entries of it.
pub const FORMAT: u32 = 1;

/// A change of a shard's replicated state, by kind of object.
#[derive(Codec, Clone, Debug, PartialEq, Eq)]
#[codec(check = Command::check)]
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

    /// The first format of entries that has this command with all its parts. It may not be proposed in others.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.first_format()
    }

    /// Which commands can stand within others.
    fn check(&self) -> Result<(), &'static str> {
        let (Command::Once(_, inner) | Command::Noted(_, inner)) = self else {
            return Ok(());
        };
        match (self, inner.as_ref()) {
            (Command::Noted(..), Command::Line(_) | Command::Restore(_)) => Ok(()),
            (Command::Noted(..), _) => Err("a note of a command that has none"),
            (_, Command::Once(..)) => Err("a request within a request"),
            (_, Command::Members(MembersCommand::Begin { .. } | MembersCommand::Adopt(_))) => {
                Err("a request with an id that is no operator's")
            }
            (_, Command::Limit(LimitCommand::Checkpoint { .. })) => {
                Err("a request with an id that is a checkpoint of limits")
            }
            _ if matches!(inner.unnoted(), Command::Restore(_)) => {
                Err("a request with an id to put a line back")
            }
            _ => Ok(()),
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
    /// Of a build before the first release, or no entry at all.
    #[error(
        "a log entry is of no kind that this build knows: if the data directory is that of a build before the first \
         release, start with an empty one"
    )]
    Magic,
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
    Malformed(#[from] Malformed),
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
    let mut to = begin(entry.format);
    for command in &entry.commands {
        put(&mut to, command);
    }
    end(to, entry)
}

fn begin(format: u32) -> Writer {
    let mut to = Writer::new(format);
    to.byte(MAGIC);
    format.encode(&mut to);
    to
}

/// As `Some(command)`, and after the last one is a `None`: their number is not known before.
fn put(to: &mut Writer, command: &Command) {
    true.encode(to);
    command.encode(to);
}

fn end(mut to: Writer, entry: &Entry) -> Vec<u8> {
    false.encode(&mut to);
    entry.now_ms.encode(&mut to);
    entry.wall_ms.encode(&mut to);
    entry.compact_floor.encode(&mut to);
    to.into_bytes()
}

/// Folds commands into one entry. Each is encoded once, as it comes, so that the size is known while
/// there is still a choice.
#[derive(Debug)]
pub struct EntryBuilder {
    bytes: Writer,
    commands: Vec<Command>,
    /// How many tokens its commands may call or import.
    called: u32,
}

impl EntryBuilder {
    /// An entry of this format, without commands.
    #[must_use]
    pub fn new(format: u32) -> Self {
        EntryBuilder {
            bytes: begin(format),
            commands: Vec::new(),
            called: 0,
        }
    }

    /// The format of the entry.
    #[must_use]
    pub fn format(&self) -> u32 {
        self.bytes.format()
    }

    /// Adds a command, or gives it back if the entry is full. The first one always fits.
    #[must_use]
    pub fn push(&mut self, command: Command) -> Option<Command> {
        let length = self.bytes.bytes().len();
        let called = self.called.saturating_add(command.calls());
        let is_much = called > CALL_MAX && !self.commands.is_empty();
        if self.commands.len() >= FOLDED_MAX || is_much {
            return Some(command);
        }
        put(&mut self.bytes, &command);
        if self.bytes.bytes().len() > FOLDED_BYTES_MAX && !self.commands.is_empty() {
            self.bytes.truncate(length);
            return Some(command);
        }
        self.commands.push(command);
        self.called = called;
        None
    }

    /// The entry and its bytes.
    #[must_use]
    pub fn finish(self, now_ms: u64, wall_ms: u64, compact_floor: u64) -> (Entry, Vec<u8>) {
        let entry = Entry {
            format: self.format(),
            now_ms,
            wall_ms,
            compact_floor,
            commands: self.commands,
        };
        let bytes = end(self.bytes, &entry);
        (entry, bytes)
    }
}

/// Reads an entry of a format up to `newest`: [`FORMAT`], except where a simulation has the next build, too.
pub fn decode(bytes: &[u8], newest: u32) -> Result<Entry, EntryError> {
    let mut from = Reader::new(bytes, FORMAT_MIN);
    if from.byte() != Ok(MAGIC) {
        return Err(EntryError::Magic);
    }
    let format = u32::decode(&mut from)?;
    if format < FORMAT_MIN {
        return Err(EntryError::TooOld(format));
    }
    if format > newest {
        return Err(EntryError::TooNew { format, newest });
    }
    from.set_format(format);
    let mut commands = Vec::new();
    while let Some(command) = Option::decode(&mut from)? {
        if commands.len() == COMMANDS_MAX {
            return Err(Malformed("more commands than an entry can have").into());
        }
        commands.push(command);
    }
    let entry = Entry {
        format,
        now_ms: Codec::decode(&mut from)?,
        wall_ms: Codec::decode(&mut from)?,
        compact_floor: Codec::decode(&mut from)?,
        commands,
    };
    from.end()?;
    Ok(entry)
}
