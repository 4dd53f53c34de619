//! The output of the current turn.

use std::collections::BTreeMap;

use crate::envelope::StateHash;
use nowserving_protocol::error::ApiError;
use nowserving_replica::{Message, Write};
use nowserving_shard::published::OutEvent;

use crate::frames::OutMessage;
use crate::io::Output;
use crate::request::{Outcome, ReplyTo};

/// Collected output. Writes and messages wait for the end of the turn, so that each receiver is
/// woken once.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// The list of this step's caller.
    pub outputs: Vec<Output>,
    /// By peer.
    pub messages: BTreeMap<u64, Vec<OutMessage>>,
    pub writes: Vec<Write>,
    /// Hashes of shards' states, to every peer and to be compared with theirs.
    pub state_hashes: Vec<StateHash>,
    /// Of the shards of other loops, to every peer.
    pub hashes_of_loops: Vec<StateHash>,
}

impl Outbox {
    /// Answers a request.
    pub fn answer(&mut self, to: ReplyTo, result: Result<Outcome, ApiError>) {
        self.outputs.push(Output::Reply { to, result });
    }

    /// Refuses a request.
    pub fn refuse(&mut self, to: ReplyTo, error: ApiError) {
        self.answer(to, Err(error));
    }

    /// Publishes events.
    pub fn publish(&mut self, events: impl IntoIterator<Item = OutEvent>) {
        self.outputs.extend(events.into_iter().map(Output::Event));
    }

    /// Queues Raft messages of a shard for their peers.
    pub fn send(&mut self, shard: u32, messages: Vec<Message>) {
        for message in messages {
            if let Some(encoded) = OutMessage::encode(shard, &message) {
                let to = self.messages.entry(message.receiver()).or_default();
                to.push(encoded);
            }
        }
    }
}
