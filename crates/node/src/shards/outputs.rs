//! What flows out of the engine, other than work for the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_engine::envelope::Welcome;
use nowserving_engine::{Dropped, ForwardTry, Output, Standing, Subscription};
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
    pub peers: Senders,
    /// The nodes that frames are taken from.
    pub peer_list: watch::Sender<PeerList>,
    /// Of rate limits.
    pub rules: watch::Sender<Option<RuleTexts>>,
    /// Candidates that were added.
    pub welcomes: mpsc::Sender<Welcome>,
    /// Requests to forward. Not bounded here, like their outcomes.
    pub forwards: mpsc::UnboundedSender<ForwardTry>,
    pub subscriptions: watch::Sender<BTreeMap<u32, Subscription>>,
    pub standing: watch::Sender<Standing>,
    /// For `/healthz` and `/readyz`.
    pub health: Arc<Health>,
    /// The turn's, sent at its end so that their receiver is woken once.
    pub turn: OfTurn,
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
            Output::Frame { to, batch } => self.peers.send(to, batch),
            Output::Members { wanted, peers } => {
                let list = PeerList {
                    ids: peers,
                    members: wanted,
                };
                self.peer_list.send_replace(list);
            }
            Output::Rules(rules) => drop(self.rules.send_replace(Some(rules))),
            Output::Drop(dropped) => drop_elsewhere(dropped),
            // Full: it asks again.
            Output::Welcome(welcome) => drop(self.welcomes.try_send(welcome)),
            // Closed only while the node ends.
            Output::Forward(it) => drop(self.forwards.send(it)),
            Output::Subscribe {
                shard,
                subscription,
            } => self.subscriptions.send_modify(|all| {
                all.insert(shard, subscription);
            }),
            Output::Standing(standing) => drop(self.standing.send_replace(standing)),
            Output::Serves(serves) => self.health.set_serves(serves),
            of_disk => return Some(of_disk),
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

/// If there is no thread to be had, it is dropped here.
fn drop_elsewhere(dropped: Dropped) {
    let thread = std::thread::Builder::new().name("drop".to_owned());
    let _ = thread.spawn(move || drop(dropped));
}
