//! A Raft message as the owners of replicas see it. What is in it only this crate and the log know.

use std::fmt;

use bytes::Bytes;
use protobuf::{Message as _, ProtobufError};
use raft::eraftpb::{self, MessageType};

use crate::SnapshotMeta;

/// A message from one member of a group to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Message(pub(crate) eraftpb::Message);

/// What its sender must have on disk before a message leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The log of this term, through this entry.
    Log { term: u64, through: u64 },
    /// Its vote of this term, for this node.
    Vote { term: u64, candidate: u64 },
}

impl Message {
    /// # Errors
    /// The bytes are no message.
    pub fn decode(bytes: &[u8]) -> Result<Message, ProtobufError> {
        eraftpb::Message::parse_from_bytes(bytes).map(Message)
    }

    /// # Errors
    /// It is past protobuf's 2 GiB; entries are capped far below.
    pub fn encode(&self) -> Result<Vec<u8>, ProtobufError> {
        self.0.write_to_bytes()
    }

    pub fn sender(&self) -> u64 {
        self.0.from
    }

    pub fn receiver(&self) -> u64 {
        self.0.to
    }

    pub fn has_entries(&self) -> bool {
        !self.0.entries.is_empty()
    }

    /// Of a message about a snapshot: which one, and the data of [`crate::Replica::offer_snapshot`].
    pub fn snapshot(&self) -> Option<(SnapshotMeta, &Bytes)> {
        let snapshot = self.0.get_snapshot();
        let meta = || snapshot.get_metadata().clone().into();
        (self.kind() == MessageType::MsgSnapshot).then(|| (meta(), &snapshot.data))
    }

    /// The same message about another snapshot.
    #[must_use]
    pub fn with_snapshot(mut self, meta: SnapshotMeta) -> Message {
        self.0.mut_snapshot().set_metadata(meta.into());
        self
    }

    /// The term of a leader that tells the receiver to take over.
    pub fn hands_over(&self) -> Option<u64> {
        (self.kind() == MessageType::MsgTimeoutNow).then_some(self.0.term)
    }

    /// For checkers.
    pub fn promise(&self) -> Option<Promise> {
        let message = &self.0;
        let term = message.term;
        let vote = |candidate| Some(Promise::Vote { term, candidate });
        match self.kind() {
            _ if message.reject => None,
            MessageType::MsgAppendResponse => Some(Promise::Log {
                term,
                through: message.index,
            }),
            MessageType::MsgRequestVote => vote(message.from),
            MessageType::MsgRequestVoteResponse => vote(message.to),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> MessageType {
        self.0.get_msg_type()
    }
}

impl From<eraftpb::Message> for Message {
    fn from(message: eraftpb::Message) -> Message {
        Message(message)
    }
}

impl From<Message> for eraftpb::Message {
    fn from(message: Message) -> eraftpb::Message {
        message.0
    }
}

/// In few words, for traces.
impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let eraftpb::Message { term, index, .. } = self.0;
        let no = if self.0.reject { " rejects" } else { "" };
        write!(f, "{:?}{no} t{term} i{index}", self.kind())?;
        match self.0.entries.len() {
            0 => Ok(()),
            count => write!(f, "+{count}"),
        }
    }
}
