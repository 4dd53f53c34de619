//! A leader's snapshot on its way to this node, which lacks entries that the leader has dropped.
//!
//! Raft's message about it is kept back while this node fetches the file, part by part: it asks for one
//! part at a time, and asks again if that is lost. The parts are kept on disk under the file's digest, so
//! the fetching goes on where it was after a restart of either node, and with any leader that offers the
//! same file. The whole file is verified and decoded by another thread and becomes this node's snapshot.
//! Only then does raft get the message, and once the log begins anew behind the snapshot, the state in it
//! becomes the shard's.

use nowserving_replica::{Message, Replica, SnapshotMeta, StepRefused};
use nowserving_shard::clock::Micros;
use nowserving_shard::state::State;

use super::file::SnapshotFile;
use super::own::OwnSnapshot;
use crate::envelope::{SnapshotChunk, SnapshotRequest};
use crate::io::{NotInstalled, Output, ReceivedState};
use crate::outbox::Outbox;

/// A part that did not come within this time is asked for again.
const ASK_AGAIN_US: Micros = 1_000_000;
/// Without a new part for this long, the next offer begins anew.
const PROGRESS_US: Micros = 10_000_000;
/// A file that was refused is not fetched again for this long: another try costs as much and ends the same way, unless
/// this node is upgraded or the other one's disk mended.
const REFUSED_US: Micros = 60_000_000;

/// A snapshot that is being fetched.
#[derive(Debug)]
struct Receive {
    /// The newest message that offers it.
    offer: Message,
    meta: SnapshotMeta,
    file: SnapshotFile,
    step: Step,
    /// Parts of it were there when it was opened.
    resumed: bool,
    /// When a part was stored last.
    progress_at: Micros,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The next part is to be asked for, or was.
    Fetch {
        offset: u64,
        asked_at: Option<Micros>,
    },
    /// The disk's thread opens the file.
    Open,
    /// It stores a part, which ends at this offset.
    Store { through: u64 },
    /// The whole file is verified and becomes this node's snapshot. No limit of time: another try would wait for the
    /// same thread.
    Install,
}

/// A snapshot that is on this node's disk and not yet in place of its log.
#[derive(Debug)]
struct Received {
    meta: SnapshotMeta,
    state: Box<State>,
}

/// What one shard fetches, and has fetched.
#[derive(Debug, Default)]
pub(crate) struct Receiving {
    fetch: Option<Receive>,
    received: Option<Received>,
    /// A peer's snapshot that this node did not take, and when.
    refused: Option<(SnapshotFile, Micros)>,
}

impl Receiving {
    pub fn is_under_way(&self) -> bool {
        self.fetch.is_some()
    }

    /// Takes a peer's Raft message.
    ///
    /// # Errors
    /// [`StepRefused`]
    pub fn step(
        &mut self,
        shard: u32,
        message: Message,
        replica: &mut Replica,
        disk_full: bool,
        now: Micros,
        out: &mut Outbox,
    ) -> Result<(), StepRefused> {
        let Some((meta, data)) = message.snapshot() else {
            return replica.step(message, now);
        };
        if nowserving_bite::is(nowserving_bite::Break::L3Snapshot) {
            return Ok(());
        }
        if !replica.needs_snapshot(&message) {
            return replica.step(message, now);
        }
        replica.check_snapshot(&message, now)?;
        let file = SnapshotFile::from_data(data).ok_or(StepRefused::Snapshot)?;
        if let Some(received) = &self.received {
            // Whatever is offered: what was received is committed, and on disk. A newer one comes after it.
            return received.step(message, replica, now);
        }
        if disk_full || self.refuses(file, now) {
            return Ok(());
        }
        match &mut self.fetch {
            Some(known) if known.file == file => known.offer = message,
            // A replica that installs one goes on from there first.
            Some(known) if known.step == Step::Install => {}
            _ => {
                tracing::info!(
                    shard,
                    from = message.sender(),
                    index = meta.index,
                    bytes = file.bytes,
                    "fetching a snapshot"
                );
                self.fetch = Some(Receive {
                    offer: message,
                    meta,
                    file,
                    step: Step::Open,
                    resumed: false,
                    progress_at: now,
                });
                out.outputs.push(Output::OpenIncoming { shard, file });
            }
        }
        Ok(())
    }

    /// The next part to ask for, and whom, if one is due.
    pub fn ask(&mut self, shard: u32, now: Micros) -> Option<(u64, SnapshotRequest)> {
        let fetch = self.fetch.as_mut()?;
        let Step::Fetch { offset, asked_at } = &mut fetch.step else {
            return None;
        };
        if asked_at.is_some_and(|at| now < at + ASK_AGAIN_US) {
            return None;
        }
        *asked_at = Some(now);
        let request = SnapshotRequest {
            shard,
            digest: fetch.file.digest.to_vec().into(),
            offset: *offset,
            refused: false,
        };
        Some((fetch.offer.sender(), request))
    }

    /// A peer sends a part.
    pub fn part(&mut self, chunk: SnapshotChunk, out: &mut Outbox) {
        let Some(fetch) = &mut self.fetch else {
            return;
        };
        let file = fetch.file;
        let wanted = matches!(fetch.step, Step::Fetch { offset, .. } if offset == chunk.offset);
        let fits = (chunk.data.len() as u64) <= file.bytes.saturating_sub(chunk.offset);
        if wanted && fits && !chunk.data.is_empty() && chunk.digest[..] == file.digest[..] {
            let through = chunk.offset + chunk.data.len() as u64;
            fetch.step = Step::Store { through };
            out.outputs.push(Output::StoreIncoming { file, chunk });
        }
    }

    /// The disk has a file through `offset`; `None`: it could not be written.
    pub fn stored(
        &mut self,
        shard: u32,
        file: SnapshotFile,
        offset: Option<u64>,
        now: Micros,
        out: &mut Outbox,
    ) {
        // The answer to a job of an earlier fetch of the same file may still come.
        let awaited = |step: &Step| match step {
            Step::Open => true,
            Step::Store { through } => offset.is_none_or(|offset| offset == *through),
            Step::Fetch { .. } | Step::Install => false,
        };
        let fetch = self.fetch.as_mut();
        let Some(fetch) = fetch.filter(|it| it.file == file && awaited(&it.step)) else {
            return;
        };
        let Some(offset) = offset else {
            return self.end("not_stored");
        };
        fetch.resumed |= fetch.step == Step::Open && offset > 0;
        fetch.progress_at = now;
        if offset < file.bytes {
            fetch.step = Step::Fetch {
                offset,
                asked_at: None,
            };
            return;
        }
        fetch.step = Step::Install;
        out.outputs.push(Output::InstallSnapshot {
            shard,
            meta: fetch.meta.clone(),
            file,
        });
    }

    /// A fetched file is this node's own snapshot, with this state in it; or it is not. Returns whether raft was given
    /// it.
    ///
    /// # Errors
    /// It is not what was offered: the refusal, and for whom.
    pub fn received(
        &mut self,
        shard: u32,
        file: SnapshotFile,
        state: Result<ReceivedState, NotInstalled>,
        (own, replica): (&mut OwnSnapshot, &mut Replica),
        now: Micros,
    ) -> Result<bool, (u64, SnapshotRequest)> {
        let Some(fetch) = self.fetch.take_if(|fetch| fetch.file == file) else {
            return Ok(false);
        };
        let state = match state {
            Ok(ReceivedState(state)) => state,
            Err(NotInstalled::NotStored) => {
                self.end("not_stored");
                return Ok(false);
            }
            Err(NotInstalled::Refused) => {
                self.end("refused");
                // A crash may have torn what an earlier start fetched of it.
                if !fetch.resumed {
                    self.refused = Some((file, now));
                }
                let request = SnapshotRequest {
                    shard,
                    digest: file.digest.to_vec().into(),
                    offset: 0,
                    refused: true,
                };
                return Err((fetch.offer.sender(), request));
            }
        };
        own.on_disk(fetch.meta.clone(), file, replica);
        let received = self.received.insert(Received {
            meta: fetch.meta,
            state,
        });
        // If raft ignores it, as there is a new term, the next offer comes soon.
        let _ = received.step(fetch.offer, replica, now);
        Ok(true)
    }

    /// The log begins anew behind a snapshot: returns the state in it, if it is the one that was received.
    pub fn take_installed(&mut self, shard: u32, meta: &SnapshotMeta) -> Option<State> {
        let received = self.received.take();
        let received = received.filter(|received| received.meta.index == meta.index)?;
        tracing::info!(shard, index = meta.index, "snapshot installed");
        count("installed", 1);
        self.refused = None;
        Some(*received.state)
    }

    /// Whether this node has just refused this file.
    fn refuses(&self, file: SnapshotFile, now: Micros) -> bool {
        self.has_refused(now) && self.refused.is_some_and(|(it, _)| it == file)
    }

    /// Whether this node lacks entries that are in a snapshot which it has just refused.
    pub fn has_refused(&self, now: Micros) -> bool {
        self.refused.is_some_and(|(_, at)| now < at + REFUSED_US)
    }

    /// Ends what makes no progress, or is not needed any more as all of it is `applied`.
    pub fn check(&mut self, applied: u64, now: Micros) {
        let stuck =
            |fetch: &Receive| fetch.step != Step::Install && now >= fetch.progress_at + PROGRESS_US;
        if self.fetch.as_ref().is_some_and(stuck) {
            self.end("timed_out");
        }
        self.received
            .take_if(|received| received.meta.index <= applied);
    }

    /// The disk is full: what was fetched makes room, also by a fetch that has ended or in an earlier start, unless it
    /// is whole. The leader offers it again until then.
    pub fn make_room(&mut self, shard: u32, out: &mut Outbox) {
        match &self.fetch {
            Some(fetch) if fetch.step == Step::Install => return,
            Some(_) => self.end("disk_full"),
            None => {}
        }
        out.outputs.push(Output::DropIncoming { shard });
    }

    fn end(&mut self, outcome: &'static str) {
        self.fetch = None;
        count(outcome, 1);
    }
}

impl Received {
    /// Gives raft this snapshot in place of the one that is offered.
    fn step(&self, offer: Message, replica: &mut Replica, now: Micros) -> Result<(), StepRefused> {
        replica.step(offer.with_snapshot(self.meta.clone()), now)
    }
}

const OUTCOMES: [&str; 5] = [
    "installed",
    "refused",
    "timed_out",
    "not_stored",
    "disk_full",
];

pub fn begin_counters() {
    for outcome in OUTCOMES {
        count(outcome, 0);
    }
}

fn count(outcome: &'static str, by: u64) {
    nowserving_bite::require(OUTCOMES.contains(&outcome), outcome);
    metrics::counter!("nowserving_snapshots_received_total", "outcome" => outcome).increment(by);
}
