//! The thread that drives the engine, and the two that do its disk work: they read the clock, wait and
//! write; what is done is the [`Engine`]'s decision.

pub mod persist;
pub mod restore;
pub mod snapshots;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, TryRecvError};
use nowserving_engine::{
    Engine, ExitReason, ForwardId, ForwardResult, ForwardTry, Input, Now, Output, PeerBatch,
    PeerFrame, ReplyTo, Standing, Subscription,
};
use nowserving_engine::{Outcome, RelayedAnswer};
use nowserving_protocol::error::ApiError;
use nowserving_shard::published::OutEvent;

use self::persist::{Persister, Written};
use self::snapshots::Done;
use crate::clock::{monotonic_us, wall_ms};
use crate::health::Health;

/// Requests that wait for the loop at most.
pub const REQUESTS_MAX: usize = 8_192;
/// Frames that wait for the loop at most; Raft repeats what is dropped.
pub const FRAMES_MAX: usize = 4_096;
/// Inputs of one kind taken in one turn at most, so that no kind starves another.
const DRAIN_MAX: usize = 4_096;
/// When the loop ends, requests that were on their way in come within this time.
const LAST_REQUESTS: Duration = Duration::from_millis(20);

/// What is said to a request.
#[derive(Debug)]
pub struct Answer {
    /// To whom.
    pub to: ReplyTo,
    /// What.
    pub body: AnswerBody,
}

/// Whose answer it is.
#[derive(Debug)]
pub enum AnswerBody {
    /// This node's.
    Own(Result<Outcome, ApiError>),
    /// The leader's.
    Relayed(RelayedAnswer),
}

/// Everything that flows into the loop.
#[derive(Debug)]
pub struct Inputs {
    /// From clients.
    pub requests: Receiver<Input>,
    /// From peers.
    pub frames: Receiver<PeerFrame>,
    /// From the rest of the node.
    pub control: Receiver<Input>,
    /// What came of requests that were passed on. Not bounded here: the engine has so many under way
    /// at most.
    pub forwarded: Receiver<(ForwardId, ForwardResult)>,
}

/// Everything that flows out of it.
#[derive(Debug)]
pub struct Outputs {
    /// Answers, a turn's at a time. Not bounded here: each belongs to a request that was counted
    /// against a bound when it was taken in.
    pub answers: tokio::sync::mpsc::UnboundedSender<Vec<Answer>>,
    /// Events, a turn's at a time; dropped when full (subscribers see the gap).
    pub events: tokio::sync::mpsc::Sender<Vec<OutEvent>>,
    /// To each peer; dropped when full (Raft repeats).
    pub peers: BTreeMap<u64, tokio::sync::mpsc::Sender<PeerBatch>>,
    /// Requests to pass on. Not bounded here, as `forwarded`.
    pub forwards: tokio::sync::mpsc::UnboundedSender<ForwardTry>,
    /// How to listen on each shard's subject.
    pub subscriptions: tokio::sync::watch::Sender<BTreeMap<u32, Subscription>>,
    /// Whether to serve at all.
    pub standing: tokio::sync::watch::Sender<Standing>,
    /// For whoever watches over this process.
    pub health: Arc<Health>,
}

/// Drives an engine.
pub struct EngineLoop {
    /// What decides.
    pub engine: Engine,
    /// Where inputs come from.
    pub inputs: Inputs,
    /// Where outputs go.
    pub outputs: Outputs,
    /// Writes the log.
    pub persister: Persister,
    /// Writes snapshots.
    pub snapshots: snapshots::Writer,
    /// The turn's answers, sent at its end so that their receiver is woken once.
    pub answers: Vec<Answer>,
    /// The turn's events.
    pub events: Vec<OutEvent>,
}

fn now() -> Now {
    Now {
        us: monotonic_us(),
        wall_ms: wall_ms(),
    }
}

impl EngineLoop {
    /// Runs until the engine ends.
    ///
    /// # Errors
    /// A log entry that this build cannot read, a state that is wrong, or a thread that died.
    pub fn run(mut self) -> anyhow::Result<()> {
        let result = loop {
            self.sleep();
            match self.turn() {
                Ok(None) => {}
                Ok(Some(reason)) => break ended(reason),
                Err(error) => break Err(error),
            }
        };
        // What was on its way in is still to come: left in the inbox it would never be answered.
        let requests = self.inputs.requests.clone();
        let on_the_way = std::iter::from_fn(|| requests.recv_timeout(LAST_REQUESTS).ok());
        for request in on_the_way.take(REQUESTS_MAX) {
            if self.step(request).is_err() {
                break;
            }
        }
        self.hand_out();
        self.persister.join();
        self.snapshots.join();
        result
    }

    /// Waits for any input or the next thing due.
    fn sleep(&self) {
        let due = self.engine.next_due();
        let timeout = Duration::from_micros(due.saturating_sub(monotonic_us()));
        let mut select = Select::new();
        select.recv(&self.inputs.requests);
        select.recv(&self.inputs.frames);
        select.recv(&self.inputs.control);
        select.recv(&self.inputs.forwarded);
        select.recv(&self.persister.done);
        select.recv(&self.snapshots.done);
        // Which one it is doesn't matter: a turn drains them all.
        let _ = select.ready_timeout(timeout);
    }

    /// One turn; why the engine ended, if it has.
    fn turn(&mut self) -> anyhow::Result<Option<ExitReason>> {
        self.outputs.health.turned(monotonic_us());
        // A full inbox has turned polls away.
        let crowded = self.inputs.requests.is_full();
        let (inbox_empty, mut exit) = self.drain()?;
        if crowded {
            exit = exit.or(self.step(Input::RequestsDropped)?);
        }
        exit = exit.or(self.step(Input::EndTurn { inbox_empty })?);
        self.hand_out();
        Ok(exit)
    }

    /// Takes everything in. The first: whether the requests' inbox is empty now.
    fn drain(&mut self) -> anyhow::Result<(bool, Option<ExitReason>)> {
        let mut exit = None;
        for _ in 0..DRAIN_MAX {
            match self.persister.done.try_recv() {
                Ok(Written { jobs, numbers }) => {
                    let writes = jobs;
                    exit = exit.or(self.step(Input::Persisted { numbers, writes })?);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("the persister thread died"),
            }
        }
        loop {
            let input = match self.snapshots.done.try_recv() {
                Ok(Done::Snapshot { shard, index }) => Input::SnapshotWritten { shard, index },
                Ok(Done::Pinned(shards)) => Input::FilesPinned(shards),
                Ok(Done::Damaged(error)) => return Err(error),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("the snapshot thread died"),
            };
            exit = exit.or(self.step(input)?);
        }
        for _ in 0..DRAIN_MAX {
            let Ok(frame) = self.inputs.frames.try_recv() else {
                break;
            };
            exit = exit.or(self.step(Input::Frame(frame))?);
        }
        while let Ok(input) = self.inputs.control.try_recv() {
            exit = exit.or(self.step(input)?);
        }
        while let Ok((id, result)) = self.inputs.forwarded.try_recv() {
            exit = exit.or(self.step(Input::Forwarded { id, result })?);
        }
        for _ in 0..DRAIN_MAX {
            let Ok(request) = self.inputs.requests.try_recv() else {
                return Ok((true, exit));
            };
            exit = exit.or(self.step(request)?);
        }
        Ok((self.inputs.requests.is_empty(), exit))
    }

    /// One step of the engine. The clock is read for each: a turn may be longer than a lease.
    fn step(&mut self, input: Input) -> anyhow::Result<Option<ExitReason>> {
        let mut exit = None;
        for output in self.engine.step(now(), input) {
            match output {
                Output::Reply { to, result } => self.answers.push(Answer {
                    to,
                    body: AnswerBody::Own(result),
                }),
                Output::RelayReply { to, answer } => self.answers.push(Answer {
                    to,
                    body: AnswerBody::Relayed(answer),
                }),
                Output::Event(event) => self.events.push(event),
                Output::Frame { to, batch } => self.send(to, batch),
                Output::Persist(writes) => {
                    if self
                        .persister
                        .jobs
                        .send(persist::Job::Write(writes))
                        .is_err()
                    {
                        anyhow::bail!("the persister thread died");
                    }
                }
                Output::Compact { shard, through } => {
                    // Full: the next snapshot cuts further.
                    let job = persist::Job::Compact { shard, through };
                    let _ = self.persister.jobs.try_send(job);
                }
                Output::WriteSnapshot { shard, index } => {
                    if self
                        .snapshots
                        .jobs
                        .send(snapshots::Job { shard, index })
                        .is_err()
                    {
                        anyhow::bail!("the snapshot thread died");
                    }
                }
                // Closed only while the node ends.
                Output::Forward(it) => drop(self.outputs.forwards.send(it)),
                Output::Subscribe {
                    shard,
                    subscription,
                } => self.outputs.subscriptions.send_modify(|all| {
                    all.insert(shard, subscription);
                }),
                Output::Standing(standing) => {
                    self.outputs.standing.send_replace(standing);
                }
                Output::Serves(serves) => self.outputs.health.set_serves(serves),
                Output::Exit(reason) => exit = Some(reason),
            }
        }
        Ok(exit)
    }

    fn send(&self, to: u64, batch: PeerBatch) {
        let Some(link) = self.outputs.peers.get(&to) else {
            return;
        };
        if link.try_send(batch).is_err() {
            metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
        }
    }

    fn hand_out(&mut self) {
        if !self.answers.is_empty() {
            // Closed only while the node ends.
            let _ = self.outputs.answers.send(std::mem::take(&mut self.answers));
        }
        if !self.events.is_empty() {
            let count = self.events.len() as u64;
            let events = std::mem::take(&mut self.events);
            if self.outputs.events.try_send(events).is_err() {
                metrics::counter!("nowserving_events_dropped_total").increment(count);
            }
        }
    }
}

fn ended(reason: ExitReason) -> anyhow::Result<()> {
    match reason {
        ExitReason::Stopped => Ok(()),
        ExitReason::ReadFailed(failure) => Err(anyhow::Error::new(failure)),
        ExitReason::EntryUnreadable(error) => Err(anyhow::anyhow!(error)),
        ExitReason::StateDiffers(differs) => Err(differs.into()),
    }
}
