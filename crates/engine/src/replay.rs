//! Committed entries applied while no engine runs: by a start, by the thread that makes snapshots.

use nowserving_replica::{Committed, EntryReader, Payload, ReadFailed};
use nowserving_shard::command::{self, Entry, EntryError};
use nowserving_shard::state::State;

use crate::io::RestoredShard;

/// The part of the log in memory at once.
const READ_BYTES_MAX: u64 = 4 << 20;
const READ_ENTRIES_MAX: u64 = 1_024;
/// A start applies no more than this, as [`State::apply_entry`] counts it, of each shard: some tenths of a second. The
/// engine applies the rest, and takes part in the group meanwhile.
const AT_START_WORK_MAX: usize = 200_000;

/// Why an entry could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Unreadable(#[from] ReadFailed),
    #[error("shard {shard}: entry {index} is not readable: {error}")]
    Unknown {
        shard: u32,
        index: u64,
        error: EntryError,
    },
}

/// What to replay.
#[derive(Debug, Clone, Copy)]
pub struct Replay {
    pub shard: u32,
    /// The newest format of entries that this build reads.
    pub format: u32,
    /// The state has the entries through this one.
    pub after: u64,
    /// Through this one it is to have them; they are committed.
    pub through: u64,
}

impl Replay {
    /// Applies the entries that are commands.
    ///
    /// # Errors
    /// [`ReplayError`]; the state is of no use then.
    pub fn run(self, log: &dyn EntryReader, state: &mut State) -> Result<(), ReplayError> {
        self.each(log, |entry| {
            if let Payload::Command(data) = &entry.payload {
                state.apply_entry(entry.index, &self.decode(entry.index, data)?, &mut ());
            }
            Ok(true)
        })
    }

    fn decode(self, index: u64, data: &[u8]) -> Result<Entry, ReplayError> {
        decode(data, self.format).map_err(|error| ReplayError::Unknown {
            shard: self.shard,
            index,
            error,
        })
    }

    /// Calls this with each entry, until it returns false.
    fn each(
        self,
        log: &dyn EntryReader,
        mut take: impl FnMut(Committed) -> Result<bool, ReplayError>,
    ) -> Result<(), ReplayError> {
        let mut next = self.after + 1;
        while next <= self.through {
            let high = (self.through + 1).min(next + READ_ENTRIES_MAX);
            for entry in log.entries(self.shard, next, high, READ_BYTES_MAX)? {
                next = entry.index + 1;
                if !take(entry.into())? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl RestoredShard {
    /// Applies what is known to be committed, as far as no entry changes the members of the group, and not for long. The
    /// engine would do the same, but of all shards in one thread, and among its other duties.
    ///
    /// # Errors
    /// [`ReplayError`]
    pub fn replay(&mut self, log: &dyn EntryReader, format: u32) -> Result<(), ReplayError> {
        let Some((after, through)) = self.restored.to_replay(self.shard, log)? else {
            return Ok(());
        };
        let replay = Replay {
            shard: self.shard,
            format,
            after,
            through,
        };
        let (state, replayed) = (&mut self.state, &mut self.replayed);
        let applied = &mut self.restored.applied;
        replay.each(log, |entry| {
            match &entry.payload {
                Payload::Command(data) => {
                    let decoded = replay.decode(entry.index, data)?;
                    replayed.compact_floor = decoded.compact_floor.max(replayed.compact_floor);
                    replayed.work += state.apply_entry(entry.index, &decoded, &mut ());
                }
                Payload::ConfChange(_) => return Ok(false),
                Payload::Empty => {}
            }
            *applied = entry.index;
            Ok(replayed.work < AT_START_WORK_MAX)
        })
    }
}

/// Decodes an entry of this node's log.
pub(crate) fn decode(data: &[u8], format: u32) -> Result<Entry, EntryError> {
    command::decode(data, format).map(misread)
}

/// Breaks a rule about what this entry says.
fn misread(mut entry: Entry) -> Entry {
    use nowserving_bite::{Break, is};
    use nowserving_line::Op;
    use nowserving_shard::command::Command;
    if is(Break::S4) {
        let is_touch = |it: &Command| matches!(it, Command::Line(Op::Touch { .. }));
        entry.commands.retain(|command| !is_touch(command));
    }
    for command in &mut entry.commands {
        if let Command::Once(_, inner) = command
            && is(Break::S4Requests)
        {
            *command = Command::clone(inner);
        }
    }
    entry
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_log::{LogStore as _, MemoryLog};
    use nowserving_replica::{BOOTSTRAP_INDEX, Restored, Write};
    use nowserving_shard::command::EntryBuilder;
    use raft::eraftpb::{Entry as RaftEntry, EntryType, HardState};

    use super::*;

    /// A stamp with this reading of the clock, and a floor as large.
    fn stamp(index: u64) -> RaftEntry {
        let builder = EntryBuilder::new(command::FORMAT);
        RaftEntry {
            term: 1,
            index,
            data: builder.finish(index, 0, index).1.into(),
            ..RaftEntry::default()
        }
    }

    /// What becomes of these entries behind the first one, if they are committed through this one.
    fn replayed(entries: Vec<RaftEntry>, commit: u64) -> Result<[u64; 3], ReplayError> {
        let log = MemoryLog::new();
        log.write(&[
            Write::bootstrap(7, &[1]),
            Write {
                shard: 7,
                number: 1,
                entries,
                hard_state: Some(HardState {
                    term: 1,
                    commit,
                    ..HardState::default()
                }),
                must_sync: true,
                start: None,
            },
        ])
        .unwrap();
        let mut restored = RestoredShard {
            shard: 7,
            restored: Restored {
                log: log.load(7).unwrap(),
                ..Restored::default()
            },
            ..RestoredShard::default()
        };
        restored.replay(&log, command::FORMAT)?;
        let applied = restored.restored.applied;
        Ok([
            applied,
            restored.state.now_ms(),
            restored.replayed.compact_floor,
        ])
    }

    #[test]
    fn what_is_committed_is_applied_up_to_a_change_of_members() {
        let first = BOOTSTRAP_INDEX + 1;
        let many: Vec<_> = (first..=first + 3_000).map(stamp).collect();
        let last = first + 2_000;
        assert_eq!(replayed(many.clone(), last).unwrap(), [last; 3]);
        assert_eq!(replayed(many.clone(), 0).unwrap(), [0; 3]);
        let mut changed = many;
        changed[2].entry_type = EntryType::EntryConfChangeV2;
        assert_eq!(replayed(changed, last).unwrap(), [first + 1; 3]);
    }

    #[test]
    fn an_entry_of_another_build_is_named() {
        let mut unknown = stamp(BOOTSTRAP_INDEX + 1);
        unknown.data = vec![1, 2, 3].into();
        let error = replayed(vec![unknown], BOOTSTRAP_INDEX + 1).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("shard 7: entry 2 is not readable"),
            "{text}"
        );
    }
}
