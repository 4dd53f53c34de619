//! The thread that drives the engine, and the three that do its disk work. They read the clock, wait and
//! write; the [`Engine`] decides.

pub mod persist;
pub mod recover;
pub mod snapshots;
pub mod transfers;
pub mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Select};
use nowserving_engine::envelope::Welcome;
use nowserving_engine::{
    Dropped, Engine, ExitReason, ForwardTry, Input, Output, Standing, Subscription,
};
use nowserving_log::DiskLog;
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::published::OutEvent;

use self::worker::Worker;
use crate::Removed;
use crate::clock::{monotonic_us, now, thread_cpu_time};
use crate::health::Health;
use crate::nats::connect::ConnectionNumber;
use crate::nats::payload_limit::Limits;
use crate::nats::peers::{PeerList, Senders};

/// Requests that wait for the loop at most.
pub const REQUESTS_MAX: usize = 8_192;
/// Frames that wait for the loop at most; Raft repeats dropped ones.
pub const FRAMES_MAX: usize = 4_096;
/// Inputs of one kind taken in one turn at most, so that no kind starves another.
const DRAIN_MAX: usize = 4_096;
/// After the loop ends, requests on their way to it arrive within this time.
const LAST_REQUESTS: Duration = Duration::from_millis(20);

/// Everything that flows into the loop.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// From clients.
    pub requests: Receiver<Input>,
    /// Frames from peers.
    pub frames: Receiver<Input>,
    /// Outcomes of forwarded requests, and a few inputs a second from the rest of the node. Not bounded here:
    /// the engine bounds the requests under way.
    pub control: Receiver<Input>,
}

/// Everything that flows out of it.
#[derive(Debug)]
pub struct Outputs {
    /// Answers ([`Output::Reply`], [`Output::RelayReply`]), a turn's at a time. Not bounded here: each belongs to a
    /// request that was counted against a bound when it was taken in.
    pub answers: tokio::sync::mpsc::UnboundedSender<Vec<Output>>,
    /// Events, a turn's at a time; dropped when full (subscribers see the gap).
    pub events: tokio::sync::mpsc::Sender<Vec<OutEvent>>,
    pub peers: Senders,
    /// The nodes that frames are taken from.
    pub peer_list: tokio::sync::watch::Sender<PeerList>,
    /// Of rate limits.
    pub rules: tokio::sync::watch::Sender<Option<RuleTexts>>,
    /// Candidates that were added.
    pub welcomes: tokio::sync::mpsc::Sender<Welcome>,
    /// Requests to forward. Not bounded here, like their outcomes.
    pub forwards: tokio::sync::mpsc::UnboundedSender<ForwardTry>,
    pub subscriptions: tokio::sync::watch::Sender<BTreeMap<u32, Subscription>>,
    pub standing: tokio::sync::watch::Sender<Standing>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
}

/// Drives an engine.
pub struct EngineLoop {
    pub engine: Engine,
    pub inputs: Inputs,
    pub outputs: Outputs,
    /// Of the service connection.
    pub connection: ConnectionNumber,
    /// The number that the engine knows.
    pub known_connection: u64,
    /// What NATS takes in one message.
    pub payload: Limits,
    /// The bytes that the engine knows.
    pub known_max_payload: usize,
    /// Writes the log.
    pub persister: Worker<persist::Job, Input>,
    /// Writes snapshots.
    pub snapshots: Worker<snapshots::Job, snapshots::Done>,
    /// Reads and stores parts of snapshots.
    pub transfers: Worker<transfers::Job, Input>,
    /// Writes for which there is no room must not keep the node from ending.
    pub log: Arc<DiskLog>,
    /// The turn's answers, sent at its end so that their receiver is woken once.
    pub answers: Vec<Output>,
    /// The turn's events.
    pub events: Vec<OutEvent>,
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
        // Requests that are still on their way in would never be answered if they were left in the inbox.
        let requests = self.inputs.requests.clone();
        let on_the_way = std::iter::from_fn(|| requests.recv_timeout(LAST_REQUESTS).ok());
        for request in on_the_way.take(REQUESTS_MAX) {
            if self.step(request).is_err() {
                break;
            }
        }
        self.hand_out();
        self.persister.stop();
        self.log.wait_for_room(None);
        self.persister.join();
        self.snapshots.join();
        self.transfers.join();
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
        select.recv(&self.persister.done);
        select.recv(&self.snapshots.done);
        select.recv(&self.transfers.done);
        // The index does not matter: a turn drains all channels.
        let _ = select.ready_timeout(timeout);
    }

    /// One turn; why the engine ended, if it has.
    fn turn(&mut self) -> anyhow::Result<Option<ExitReason>> {
        let (began, cpu_before) = (Instant::now(), thread_cpu_time());
        self.outputs.health.turned(monotonic_us());
        // A full inbox has turned polls away.
        let crowded = self.inputs.requests.is_full();
        let (inbox_empty, mut exit) = self.drain()?;
        if crowded {
            exit = exit.or(self.step(Input::RequestsDropped)?);
        }
        exit = exit.or(self.step(Input::EndTurn { inbox_empty })?);
        self.hand_out();
        let facts = &self.outputs.health.facts;
        if facts.are_wanted() {
            let gathered = self.engine.gather(monotonic_us());
            gathered.into_iter().for_each(|it| facts.take(it));
        }
        metrics::histogram!("nowserving_turn_seconds").record(began.elapsed());
        let cpu_time = thread_cpu_time().saturating_sub(cpu_before);
        metrics::histogram!("nowserving_turn_cpu_seconds").record(cpu_time);
        Ok(exit)
    }

    /// Takes everything in. The first: whether the requests' inbox is empty now.
    fn drain(&mut self) -> anyhow::Result<(bool, Option<ExitReason>)> {
        let mut exit = None;
        let written = self.persister.done.clone();
        let snapshots = self.snapshots.done.clone();
        let parts = self.transfers.done.clone();
        let Inputs {
            requests,
            frames,
            control,
        } = self.inputs.clone();
        let of_disk = written.try_iter().chain(parts.try_iter()).map(Ok);
        let of_disk = of_disk.chain(snapshots.try_iter());
        let of_nodes = frames.try_iter().take(DRAIN_MAX).chain(control.try_iter());
        let of_clients = requests.try_iter().take(DRAIN_MAX);
        for input in of_disk.chain(of_nodes.chain(of_clients).map(Ok)) {
            exit = exit.or(self.step(input?)?);
        }
        Ok((requests.is_empty(), exit))
    }

    /// Gives the engine an input; before that, if it came by another service connection than the engine knows,
    /// the number of that, and what NATS takes in one message.
    fn step(&mut self, input: Input) -> anyhow::Result<Option<ExitReason>> {
        let (number, max_payload) = (self.connection.now(), self.payload.bytes());
        let mut exit = None;
        if max_payload != self.known_max_payload {
            self.known_max_payload = max_payload;
            exit = self.step_one(Input::MaxPayload(max_payload))?;
        }
        if number != self.known_connection {
            self.known_connection = number;
            exit = exit.or(self.step_one(Input::ConnectionNumber(number))?);
        }
        Ok(exit.or(self.step_one(input)?))
    }

    /// One step of the engine. The clock is read for each: a turn may be longer than a lease.
    fn step_one(&mut self, input: Input) -> anyhow::Result<Option<ExitReason>> {
        let mut exit = None;
        for output in self.engine.step(now(), input) {
            match output {
                Output::Reply { .. } | Output::RelayReply { .. } => self.answers.push(output),
                Output::Event(event) => self.events.push(event),
                Output::Frame { to, batch } => self.outputs.peers.send(to, batch),
                Output::Members { wanted, peers } => {
                    let list = PeerList {
                        ids: peers,
                        members: wanted,
                    };
                    self.outputs.peer_list.send_replace(list);
                }
                Output::Rules(rules) => drop(self.outputs.rules.send_replace(Some(rules))),
                Output::Drop(dropped) => drop_elsewhere(dropped),
                // Full: it asks again.
                Output::Welcome(welcome) => drop(self.outputs.welcomes.try_send(welcome)),
                Output::Persist(writes) => self.persister.give(persist::Job::Write(writes))?,
                Output::Compact { shard, through } => {
                    // Full: the next snapshot cuts further.
                    let job = persist::Job::Compact { shard, through };
                    let _ = self.persister.jobs.try_send(job);
                }
                Output::WriteSnapshot {
                    shard,
                    index,
                    members,
                } => {
                    let make = snapshots::Make {
                        shard,
                        index,
                        members,
                    };
                    self.snapshots.give(snapshots::Job::Make(make))?;
                }
                Output::InstallSnapshot { shard, meta, file } => {
                    let install = snapshots::Job::Install { shard, meta, file };
                    self.snapshots.give(install)?;
                }
                Output::OpenIncoming { shard, file } => {
                    self.transfers.give(transfers::Job::Open { shard, file })?;
                }
                Output::StoreIncoming { file, chunk } => {
                    self.transfers.give(transfers::Job::Store { file, chunk })?;
                }
                Output::DropIncoming { shard } => {
                    self.transfers.give(transfers::Job::Drop { shard })?;
                }
                Output::ReadSnapshot {
                    to,
                    request,
                    bytes_max,
                } => {
                    // Full: the peer asks again.
                    let job = transfers::Job::Read {
                        to,
                        request,
                        bytes_max,
                    };
                    let _ = self.transfers.jobs.try_send(job);
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

/// If there is no thread to be had, it is dropped here.
fn drop_elsewhere(dropped: Dropped) {
    let thread = std::thread::Builder::new().name("drop".to_owned());
    let _ = thread.spawn(move || drop(dropped));
}

fn ended(reason: ExitReason) -> anyhow::Result<()> {
    match reason {
        ExitReason::Stopped => Ok(()),
        ExitReason::ReadFailed(failure) => Err(anyhow::Error::new(failure)),
        ExitReason::EntryUnreadable(error) => Err(anyhow::anyhow!(error)),
        ExitReason::Removed => Err(Removed.into()),
        ExitReason::StateDiffers(differs) => Err(differs.into()),
    }
}
