//! What one turn of the loop sends out, collected so that each receiver is woken once a turn.

use std::collections::BTreeMap;

use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::frame::StateHash;
use nowserving_replica::Write;
use nowserving_shard::clock::Micros;
use nowserving_shard::published::OutEvent;
use protobuf::Message as _;
use raft::eraftpb::Message;

use crate::request::{Answer, Outcome, ReplyTo};

/// A Raft message, encoded.
#[derive(Debug)]
pub struct OutMessage {
    /// Which shard.
    pub shard: u32,
    /// Protobuf.
    pub raft: Vec<u8>,
    /// Carries log entries (for the metrics that show what polls cost).
    pub append: bool,
}

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
            let append = !message.entries.is_empty();
            match message.write_to_bytes() {
                Ok(raft) => self
                    .messages
                    .entry(message.to)
                    .or_default()
                    .push(OutMessage {
                        shard,
                        raft,
                        append,
                    }),
                // Only a message past protobuf's 2 GiB can fail, and entries are capped far below.
                Err(error) => tracing::error!(shard, %error, "raft message not encodable"),
            }
        }
    }
}

/// Nothing happened, and it may be tried again.
pub fn unavailable() -> ApiError {
    ApiError::new(
        Code::Unavailable,
        "no quorum answered in time; nothing happened",
    )
    .retry_after_ms(250)
}

/// It may or may not have happened.
pub fn outcome_unknown() -> ApiError {
    ApiError::new(
        Code::OutcomeUnknown,
        "the deadline passed before the outcome was known; repeat it with the same key or ticket",
    )
}

/// A bounded queue is full.
pub fn overloaded() -> ApiError {
    ApiError::new(
        Code::Overloaded,
        "too many requests wait here; nothing happened",
    )
    .retry_after_ms(250)
}
