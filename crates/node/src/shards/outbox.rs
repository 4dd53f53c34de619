//! What one turn of the loop sends out, collected so that each receiver is woken once a turn.

use std::collections::BTreeMap;

use nowserving_engine::{OutMessage, Outcome};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::frame::StateHash;
use nowserving_replica::Write;
use nowserving_shard::clock::Micros;
use nowserving_shard::published::OutEvent;
use raft::eraftpb::Message;

use crate::request::{Answer, ReplyTo};

/// One turn's output.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To requesters.
    pub answers: Vec<Answer>,
    /// To subscribers.
    pub events: Vec<OutEvent>,
    /// To peers.
    pub messages: BTreeMap<u64, Vec<OutMessage>>,
    /// To the disk.
    pub writes: Vec<Write>,
    /// Hashes of shards' states, to every peer and to be compared with theirs.
    pub state_hashes: Vec<StateHash>,
}

impl Outbox {
    /// Answers a request.
    pub fn answer(&mut self, reply: ReplyTo, deadline: Micros, result: Result<Outcome, ApiError>) {
        self.answers.push(Answer {
            reply,
            result,
            deadline,
        });
    }

    /// Refuses a request.
    pub fn refuse(&mut self, reply: ReplyTo, deadline: Micros, error: ApiError) {
        self.answer(reply, deadline, Err(error));
    }

    /// Queues Raft messages of a shard for their peers.
    pub fn send(&mut self, shard: u32, messages: Vec<Message>) {
        for message in messages {
            if let Some(encoded) = OutMessage::encode(shard, &message) {
                self.messages.entry(message.to).or_default().push(encoded);
            }
        }
    }
}
