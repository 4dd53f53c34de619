//! What flows out of the engine, other than work for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_engine::envelope::Welcome;
use nowserving_engine::{Dropped, ForwardTry, Input, Output, Standing, Subscription};
use nowserving_shard::limits::RuleTexts;
use nowserving_shard::published::OutEvent;
use tokio::sync::{mpsc, watch};

use crate::health::Health;
use crate::nats::peers::{PeerList, Senders};

/// Everything that flows out of the engine to the rest of the node.
#[derive(Debug)]
pub struct Outputs {
    /// Answers ([`Output::Reply`], [`Output::RelayReply`]), a turn's at a time. Not bounded here: each belongs to a
    /// request that was counted against a bound when it was taken in.
    pub answers: mpsc::UnboundedSender<Vec<Output>>,
    /// Events, a turn's at a time; dropped when full (subscribers see the gap).
    pub events: mpsc::Sender<Vec<OutEvent>>,
    /// Requests to forward. Not bounded here, like their outcomes.
    pub forwards: mpsc::UnboundedSender<ForwardTry>,
    pub subscriptions: watch::Sender<BTreeMap<u32, Subscription>>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
    pub beyond: Beyond,
    /// The turn's, sent at its end so that their receiver is woken once.
    pub turn: OfTurn,
}

/// Where goes what is not for this loop's own clients. What loops tell each other may be lost, so it is dropped when too
/// much waits.
#[derive(Debug)]
pub enum Beyond {
    /// Of the first loop.
    Node(Box<OfNode>),
    /// Of another one: to the first.
    FirstLoop(mpsc::Sender<Input>),
}

/// What a node has once, and the first loop drives.
#[derive(Debug)]
pub struct OfNode {
    /// To the other loops, by their indexes from 1.
    pub loops: Vec<mpsc::Sender<Input>>,
    pub peers: Senders,
    /// The nodes that frames are taken from.
    pub peer_list: watch::Sender<PeerList>,
    /// Of rate limits.
    pub rules: watch::Sender<Option<RuleTexts>>,
    /// Candidates that were added.
    pub welcomes: mpsc::Sender<Welcome>,
    pub standing: watch::Sender<Standing>,
}

/// The answers and events of a turn.
#[derive(Debug, Default)]
pub struct OfTurn {
    answers: Vec<Output>,
    events: Vec<OutEvent>,
}

impl Outputs {
    /// Hands one on. Those for the disk, and the last, come back.
    pub fn take(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Reply { .. } | Output::RelayReply { .. } => self.turn.answers.push(output),
            Output::Event(event) => self.turn.events.push(event),
            Output::Drop(dropped) => drop_elsewhere(dropped),
            // Closed only while the node ends.
            Output::Forward(it) => drop(self.forwards.send(it)),
            Output::Subscribe {
                shard,
                subscription,
            } => self.subscriptions.send_modify(|all| {
                all.insert(shard, subscription);
            }),
            Output::Serves(serves) => self.health.set_serves(serves),
            other => return self.beyond.take(other),
        }
        None
    }

    /// Sends the answers and events of the turn.
    pub fn end_turn(&mut self) {
        let OfTurn { answers, events } = std::mem::take(&mut self.turn);
        if !answers.is_empty() {
            // Closed only while the node ends.
            let _ = self.answers.send(answers);
        }
        if !events.is_empty() {
            let count = events.len() as u64;
            if self.events.try_send(events).is_err() {
                metrics::counter!("nowserving_events_dropped_total").increment(count);
            }
        }
    }
}

impl Beyond {
    /// Hands one on. Those for the disk, and the last, come back.
    fn take(&mut self, output: Output) -> Option<Output> {
        match (self, output) {
            (Beyond::Node(node), output) => return node.take(output),
            (Beyond::FirstLoop(first), Output::FromLoop(told)) => {
                tell(first, Input::ToldByLoop(told));
            }
            (_, of_disk) => return Some(of_disk),
        }
        None
    }
}

impl OfNode {
    fn take(&mut self, output: Output) -> Option<Output> {
        match output {
            Output::Frame { to, batch } => self.peers.send(to, batch),
            Output::ToLoop { index, told } => {
                let other = (index as usize).checked_sub(1);
                if let Some(other) = other.and_then(|it| self.loops.get(it)) {
                    tell(other, Input::Told(told));
                }
            }
            Output::Members { wanted, peers } => {
                let list = PeerList {
                    ids: peers,
                    members: wanted,
                };
                self.peer_list.send_replace(list);
            }
            Output::Rules(rules) => drop(self.rules.send_replace(Some(rules))),
            // Full: it asks again.
            Output::Welcome(welcome) => drop(self.welcomes.try_send(welcome)),
            Output::Standing(standing) => drop(self.standing.send_replace(standing)),
            of_disk => return Some(of_disk),
        }
        None
    }
}

fn tell(other: &mpsc::Sender<Input>, word: Input) {
    if other.try_send(word).is_err() {
        metrics::counter!("nowserving_loop_messages_dropped_total").increment(1);
    }
}

/// If there is no thread to be had, it is dropped here.
fn drop_elsewhere(dropped: Dropped) {
    let thread = std::thread::Builder::new().name("drop".to_owned());
    let _ = thread.spawn(move || drop(dropped));
}
