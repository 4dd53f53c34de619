//! Backups: shards are downloaded from their leaders, and a line is put back in parts, as the command line does.
//! One at a time; what is interrupted is begun anew.

use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{Line, LineName, Restore};
use nowserving_protocol::backup::RestorePartReply;
use nowserving_protocol::subject::shard_of;
use nowserving_shard::restore::{RestoreCommand, RestoreStep, parts_of};

use crate::calls::{Answer, Ended, Manner, What};
use crate::env::Env;
use crate::faults::Fault;
use crate::node::Node;
use crate::world::{Event, World};

/// The client number of the operator who makes backups.
pub const RESTORER: usize = usize::MAX - 2;

/// The size of parts of downloads: a few parts each.
const CHUNK_BYTES: usize = 8 << 10;
/// Calls that lead nowhere before a backup or restore is given up.
const FAILURES_MAX: u32 = 12;

/// A backup that is made, or a line that is put back.
#[derive(Debug, Default)]
pub struct Restorer {
    step: Option<Step>,
    failures: u32,
}

#[derive(Debug)]
enum Step {
    Snapshot {
        shard: u32,
        /// The entry that must be in it, of an earlier answer.
        index: Option<u64>,
    },
    Download {
        shard: u32,
        id: String,
        length: u64,
        bytes: Vec<u8>,
    },
    Send(Box<Upload>),
}

#[derive(Debug)]
struct Upload {
    shard: u32,
    line: LineName,
    incarnation: u64,
    id: u128,
    parts: Vec<Bytes>,
    digest: [u8; 32],
    clock_ms: u64,
    /// The next part to send; past the last one the line is put in place.
    next: usize,
}

impl Upload {
    fn command(&self) -> RestoreCommand {
        let step = match self.parts.get(self.next) {
            Some(data) => RestoreStep::Part {
                number: self.next as u32,
                data: data.clone().into(),
            },
            None => RestoreStep::Finish {
                parts: self.parts.len() as u32,
                digest: self.digest,
                how: Restore {
                    clock_ms: self.clock_ms,
                    overwrite: true,
                },
            },
        };
        RestoreCommand {
            line: self.line.clone(),
            upload: self.id,
            step,
        }
    }
}

/// A name for requests about a shard: its leader takes them.
fn line_in(shard: u32, shards: u32) -> Option<LineName> {
    let names = (0_u32..).map(|number| format!("any-{number}"));
    let mut names = names.filter(|name| shard_of(name, shards) == shard);
    LineName::try_from(names.next()?.as_str()).ok()
}

impl World {
    /// The operator begins a backup, of which a line is put back.
    pub fn back_up(&mut self) {
        if self.restorer.step.is_none() {
            let shard = self.env.random.below(self.setup.shards.into()) as u32;
            let index = None;
            self.env.counts.add(Fault::OperatorRestores);
            self.restorer.failures = 0;
            self.restorer_goes_on(Step::Snapshot { shard, index }, 0);
        }
    }

    fn restorer_goes_on(&mut self, step: Step, delay_us: u64) {
        self.restorer.step = Some(step);
        let delay = self.env.random.around(delay_us);
        self.env.timeline.after(delay, Event::RestorerActs);
    }

    /// The next request.
    pub fn restorer_acts(&mut self) {
        let (shard, line, what) = match &self.restorer.step {
            None => return,
            Some(Step::Snapshot { shard, index }) => {
                let what = What::Backup { index: *index };
                (*shard, None, what)
            }
            Some(Step::Download {
                shard, id, bytes, ..
            }) => {
                let what = What::BackupChunk {
                    id: id.clone(),
                    offset: bytes.len() as u64,
                };
                (*shard, None, what)
            }
            Some(Step::Send(upload)) => {
                let command = upload.command();
                if let RestoreStep::Finish { .. } = command.step {
                    self.clients.restored(&upload.line, upload.incarnation);
                }
                let what = What::Restore(Rc::new(command));
                (upload.shard, Some(upload.line.clone()), what)
            }
        };
        let shards = self.setup.shards;
        let any = || line_in(shard, shards);
        if let Some(line) = line.or_else(any) {
            let time_us = self.env.random.between(1_000_000, 4_000_000);
            self.env
                .call(RESTORER, (line, shard), what, Manner::SDK, time_us);
        }
    }

    /// A request is over.
    pub fn restorer_called(&mut self, ended: &Ended) {
        let Some(step) = self.restorer.step.take() else {
            return;
        };
        let Ended::Ok(answer) = ended else {
            return self.restorer_failed(step, ended);
        };
        match step {
            Step::Snapshot { shard, .. } => self.snapshot_answered(shard, answer),
            Step::Download {
                shard,
                id,
                length,
                bytes,
            } => self.chunk_came((shard, id, length), bytes, answer),
            Step::Send(upload) => self.part_taken(upload, answer),
        }
    }

    fn restorer_failed(&mut self, step: Step, ended: &Ended) {
        self.restorer.failures += 1;
        let failures = self.restorer.failures;
        self.env
            .note(format_args!("restorer: failure {failures}: {ended:?}"));
        match (step, ended) {
            _ if failures > FAILURES_MAX => {}
            // Of another line, or parts that are no longer there.
            (Step::Send(_), Ended::Refused(_)) => {}
            (step, _) => self.restorer_goes_on(step, 300_000),
        }
    }

    fn snapshot_answered(&mut self, shard: u32, answer: &Answer) {
        match answer.as_ref() {
            Ok(Outcome::Backup { index, .. }) => {
                let index = Some(*index);
                self.restorer_goes_on(Step::Snapshot { shard, index }, 100_000);
            }
            Ok(Outcome::BackupChunk { id, offset }) => {
                let step = Step::Download {
                    shard,
                    id: id.clone(),
                    length: *offset,
                    bytes: Vec::new(),
                };
                self.restorer_goes_on(step, 1_000);
            }
            _ => {}
        }
    }

    fn chunk_came(
        &mut self,
        (shard, id, length): (u32, String, u64),
        mut bytes: Vec<u8>,
        answer: &Answer,
    ) {
        let kept = match answer.as_ref() {
            Ok(Outcome::BackupChunk { id, .. }) => self.env.downloads.get(id),
            _ => None,
        };
        let Some(kept) = kept else {
            // Another node leads now.
            let index = None;
            return self.restorer_goes_on(Step::Snapshot { shard, index }, 100_000);
        };
        let chunk = kept.iter().skip(bytes.len()).take(CHUNK_BYTES);
        let before = bytes.len();
        bytes.extend(chunk);
        if bytes.len() > before {
            let step = Step::Download {
                shard,
                id,
                length,
                bytes,
            };
            return self.restorer_goes_on(step, 1_000);
        }
        if bytes.len() as u64 != length {
            let what = format!("{} bytes came of a backup of {length}", bytes.len());
            return self.env.violated("S17", what);
        }
        self.backed_up(shard, bytes.into());
    }

    /// A shard is downloaded: one of its lines is put back later.
    fn backed_up(&mut self, shard: u32, bytes: Bytes) {
        let id = u128::from(self.env.random.next()) << 64 | u128::from(self.env.random.next());
        let backup = self.checks.backed_up(&mut self.env, shard, bytes, id);
        let Some(state) = backup.as_ref().map(|it| &it.state) else {
            return;
        };
        let lines = state.lines().iter().filter(|it| it.deleting().is_none());
        let lines: Vec<&Line> = lines.collect();
        let Some(line) = self.env.random.pick(&lines) else {
            return;
        };
        let (parts, digest) = parts_of(line);
        let upload = Upload {
            shard,
            line: line.name().clone(),
            incarnation: line.incarnation(),
            id,
            parts,
            digest,
            clock_ms: state.now_ms(),
            next: 0,
        };
        self.env.note(format_args!(
            "restorer: puts {} back in {} parts",
            upload.line,
            upload.parts.len()
        ));
        self.restorer.failures = 0;
        self.restorer_goes_on(Step::Send(Box::new(upload)), 2_000_000);
    }

    fn part_taken(&mut self, mut upload: Box<Upload>, answer: &Answer) {
        match answer.as_ref() {
            Ok(Outcome::Reply(ReplyBody::RestorePart(RestorePartReply { parts, .. }))) => {
                upload.next = *parts as usize;
                self.restorer_goes_on(Step::Send(upload), 5_000);
            }
            _ => self.env.counts.add(Fault::LineRestored),
        }
    }
}

impl Node {
    /// What the node adds to the engine's answers about backups: it keeps the snapshot that there is, and says
    /// under which name; and it has a part, or (an empty name) does not keep that snapshot.
    pub fn backup_outcome(&mut self, env: &mut Env, outcome: Outcome) -> Outcome {
        let (id, start) = (self.id, self.starts);
        let Some(running) = &mut self.running else {
            return outcome;
        };
        match outcome {
            Outcome::Backup {
                shard, ready: true, ..
            } => {
                let bytes = self.disk.snapshot_bytes(shard);
                let name = format!("{id}.{start}.{}", env.downloads.len());
                let offset = bytes.len() as u64;
                env.downloads.insert(name.clone(), bytes);
                running.downloads.insert(name.clone());
                Outcome::BackupChunk { id: name, offset }
            }
            Outcome::BackupChunk { id, offset } => Outcome::BackupChunk {
                id: running.downloads.get(&id).cloned().unwrap_or_default(),
                offset,
            },
            outcome => outcome,
        }
    }
}
