//! A leader's snapshot on its way to this node, which lacks entries that the leader has dropped.
//!
//! Raft's message about it is kept back while this node fetches the file, part by part: it asks for one
//! part at a time, and asks again if that is lost. The parts are kept on disk under the file's digest, so
//! the fetching goes on where it was after a restart of either node, and with any leader that offers the
//! same file. The whole file is verified and decoded by another thread and becomes this node's snapshot.
//! Only then does raft get the message, and once the log begins anew behind the snapshot, the state in it
//! becomes the shard's.

use nowserving_replica::{Message, SnapshotMeta, StepRefused};
use nowserving_shard::clock::Micros;
use nowserving_shard::state::State;

use crate::envelope::{SnapshotChunk, SnapshotRequest};
use crate::io::{Dropped, ExitReason, NotInstalled, Output, ReceivedState};
use crate::outbox::NodeCtx;
use crate::refusals::outcome_unknown;
use crate::shard::Shard;
use crate::snapshot_file::SnapshotFile;

/// A part that did not come within this time is asked for again.
const ASK_AGAIN_US: Micros = 1_000_000;
/// Without a new part for this long, the next offer begins anew.
const PROGRESS_US: Micros = 10_000_000;
/// A file that was refused is not fetched again for this long: another try costs as much and ends the same way, unless
/// this node is upgraded or the other one's disk mended.
const REFUSED_US: Micros = 60_000_000;

/// A snapshot that is being fetched.
#[derive(Debug)]
pub(crate) struct Receive {
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
pub(crate) struct Received {
    pub meta: SnapshotMeta,
    state: Box<State>,
}

impl Shard {
    /// Takes a peer's Raft message.
    ///
    /// # Errors
    /// [`StepRefused`]
    pub fn step(&mut self, message: Message, ctx: &mut NodeCtx) -> Result<(), StepRefused> {
        let now = ctx.now.us;
        let Some((meta, data)) = message.snapshot() else {
            return self.replica.step(message, now);
        };
        #[cfg(feature = "bite")]
        if nowserving_bite::is(nowserving_bite::Break::L3Snapshot) {
            return Ok(());
        }
        if !self.replica.needs_snapshot(&message) {
            return self.replica.step(message, now);
        }
        self.replica.check_snapshot(&message, now)?;
        let file = SnapshotFile::from_data(data).ok_or(StepRefused::Snapshot)?;
        if self.received.is_some() {
            // Whatever is offered: what was received is committed, and on disk. A newer one comes after it.
            return self.step_received(message, now);
        }
        if ctx.disk_full || self.refuses(file, now) {
            return Ok(());
        }
        match &mut self.receive {
            Some(known) if known.file == file => known.offer = message,
            // A replica that installs one goes on from there first.
            Some(known) if known.step == Step::Install => {}
            _ => {
                tracing::info!(
                    shard = self.id,
                    from = message.sender(),
                    index = meta.index,
                    bytes = file.bytes,
                    "fetching a snapshot"
                );
                self.receive = Some(Receive {
                    offer: message,
                    meta,
                    file,
                    step: Step::Open,
                    resumed: false,
                    progress_at: now,
                });
                let shard = self.id;
                ctx.out.outputs.push(Output::OpenIncoming { shard, file });
            }
        }
        Ok(())
    }

    /// The next part to ask for, and whom, if one is due.
    pub fn ask_for_snapshot(&mut self, now: Micros) -> Option<(u64, SnapshotRequest)> {
        let shard = self.id;
        let receive = self.receive.as_mut()?;
        let Step::Fetch { offset, asked_at } = &mut receive.step else {
            return None;
        };
        if asked_at.is_some_and(|at| now < at + ASK_AGAIN_US) {
            return None;
        }
        *asked_at = Some(now);
        let request = SnapshotRequest {
            shard,
            digest: receive.file.digest.to_vec().into(),
            offset: *offset,
            refused: false,
        };
        Some((receive.offer.sender(), request))
    }

    /// A peer sends a part.
    pub fn snapshot_part(&mut self, chunk: SnapshotChunk, ctx: &mut NodeCtx) {
        let Some(receive) = &mut self.receive else {
            return;
        };
        let file = receive.file;
        let wanted = matches!(receive.step, Step::Fetch { offset, .. } if offset == chunk.offset);
        let fits = (chunk.data.len() as u64) <= file.bytes.saturating_sub(chunk.offset);
        if wanted && fits && !chunk.data.is_empty() && chunk.digest[..] == file.digest[..] {
            let through = chunk.offset + chunk.data.len() as u64;
            receive.step = Step::Store { through };
            ctx.out.outputs.push(Output::StoreIncoming { file, chunk });
        }
    }

    /// The disk has a file through `offset`; `None`: it could not be written.
    pub fn snapshot_stored(&mut self, file: SnapshotFile, offset: Option<u64>, ctx: &mut NodeCtx) {
        // The answer to a job of an earlier fetch of the same file may still come.
        let awaited = |step: &Step| match step {
            Step::Open => true,
            Step::Store { through } => offset.is_none_or(|offset| offset == *through),
            Step::Fetch { .. } | Step::Install => false,
        };
        let receive = self.receive.as_mut();
        let Some(receive) = receive.filter(|it| it.file == file && awaited(&it.step)) else {
            return;
        };
        let Some(offset) = offset else {
            return self.end_receive("not_stored");
        };
        receive.resumed |= receive.step == Step::Open && offset > 0;
        receive.progress_at = ctx.now.us;
        if offset < file.bytes {
            receive.step = Step::Fetch {
                offset,
                asked_at: None,
            };
            return;
        }
        receive.step = Step::Install;
        ctx.out.outputs.push(Output::InstallSnapshot {
            shard: self.id,
            meta: receive.meta.clone(),
            file,
        });
    }

    /// A fetched file is this node's snapshot, with this state in it; or it is not. Returns the refusal and for whom,
    /// if it is not what was offered.
    pub fn snapshot_received(
        &mut self,
        file: SnapshotFile,
        state: Result<ReceivedState, NotInstalled>,
        ctx: &mut NodeCtx,
    ) -> Option<(u64, SnapshotRequest)> {
        let receive = self.receive.take_if(|receive| receive.file == file)?;
        let state = match state {
            Ok(ReceivedState(state)) => state,
            Err(NotInstalled::NotStored) => {
                self.end_receive("not_stored");
                return None;
            }
            Err(NotInstalled::Refused) => {
                self.end_receive("refused");
                // A crash may have torn what an earlier start fetched of it.
                if !receive.resumed {
                    self.refused_snapshot = Some((file, ctx.now.us));
                }
                let request = SnapshotRequest {
                    shard: self.id,
                    digest: file.digest.to_vec().into(),
                    offset: 0,
                    refused: true,
                };
                return Some((receive.offer.sender(), request));
            }
        };
        self.snapshot_on_disk(receive.meta.clone(), file);
        self.received = Some(Received {
            meta: receive.meta,
            state,
        });
        // If raft ignores it, as there is a new term, the next offer comes soon.
        let _ = self.step_received(receive.offer, ctx.now.us);
        None
    }

    /// Gives raft the received snapshot in place of the one that is offered.
    fn step_received(&mut self, mut offer: Message, now: Micros) -> Result<(), StepRefused> {
        if let Some(received) = &self.received {
            offer = offer.with_snapshot(received.meta.clone());
        }
        self.dirty = true;
        self.replica.step(offer, now)
    }

    /// The log begins anew behind the received snapshot: the state in it is the shard's now.
    ///
    /// # Errors
    /// Raft installed another one, which is a bug; this node's state would be wrong.
    pub fn install(&mut self, meta: &SnapshotMeta, ctx: &mut NodeCtx) -> Result<(), ExitReason> {
        let received = self.received.take();
        let Some(received) = received.filter(|received| received.meta.index == meta.index) else {
            let (shard, index) = (self.id, meta.index);
            let what = format!("shard {shard}: no state for the snapshot through {index}");
            return Err(ExitReason::EntryUnreadable(what));
        };
        ctx.rules_changed = true;
        tracing::info!(shard = self.id, index = meta.index, "snapshot installed");
        count("installed", 1);
        self.refused_snapshot = None;
        let old = std::mem::replace(&mut self.state, *received.state);
        #[cfg(feature = "bite")]
        let old = match nowserving_bite::is(nowserving_bite::Break::S17Install) {
            true => std::mem::replace(&mut self.state, old),
            false => old,
        };
        ctx.out.outputs.push(Output::Drop(Dropped(Box::new(old))));
        ctx.members_changed = true;
        // Whether these were executed, this node can't tell.
        let later = self.proposed.split_off(&(meta.index + 1, 0));
        for proposed in std::mem::replace(&mut self.proposed, later).into_values() {
            self.left_log(&proposed.entry.commands);
            for waiter in proposed.waiters.into_iter().flatten() {
                ctx.out.refuse(waiter.reply, outcome_unknown());
            }
        }
        Ok(())
    }

    /// Whether this node has just refused this file.
    fn refuses(&self, file: SnapshotFile, now: Micros) -> bool {
        self.refuses_snapshot(now) && self.refused_snapshot.is_some_and(|(it, _)| it == file)
    }

    /// Whether this node lacks entries that are in a snapshot which it has just refused.
    pub fn refuses_snapshot(&self, now: Micros) -> bool {
        self.refused_snapshot
            .is_some_and(|(_, at)| now < at + REFUSED_US)
    }

    /// Ends what makes no progress, or is not needed any more.
    pub fn check_snapshot_receive(&mut self, now: Micros) {
        let stuck = |receive: &Receive| {
            receive.step != Step::Install && now >= receive.progress_at + PROGRESS_US
        };
        if self.receive.as_ref().is_some_and(stuck) {
            self.end_receive("timed_out");
        }
        let applied = self.replica.applied();
        self.received
            .take_if(|received| received.meta.index <= applied);
    }

    /// The disk is full: what was fetched makes room, also by a fetch that has ended or in an earlier start, unless it
    /// is whole. The leader offers it again until then.
    pub fn drop_incoming(&mut self, ctx: &mut NodeCtx) {
        match &self.receive {
            Some(receive) if receive.step == Step::Install => return,
            Some(_) => self.end_receive("disk_full"),
            None => {}
        }
        let shard = self.id;
        ctx.out.outputs.push(Output::DropIncoming { shard });
    }

    fn end_receive(&mut self, outcome: &'static str) {
        self.receive = None;
        count(outcome, 1);
    }
}

const OUTCOMES: [&str; 5] = [
    "installed",
    "refused",
    "timed_out",
    "not_stored",
    "disk_full",
];

/// All outcomes begin at 0, so that an alarm sees the first of each.
pub(crate) fn begin_counters() {
    for outcome in OUTCOMES {
        count(outcome, 0);
    }
}

fn count(outcome: &'static str, by: u64) {
    debug_assert!(OUTCOMES.contains(&outcome), "{outcome}");
    metrics::counter!("nowserving_snapshots_received_total", "outcome" => outcome).increment(by);
}
