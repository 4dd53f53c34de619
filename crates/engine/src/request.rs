//! Checked requests, and what is answered.

use bytes::Bytes;
use nowserving_line::{LineName, Op, Status, Timestamp, Token, TokenRef};
use nowserving_protocol::admin::{
    ClusterStatus, Journal, JournalReply, LineList, LineReply, ListLines,
};
use nowserving_protocol::codec::Format;
use nowserving_protocol::user::{Consistency, InfoReply};
use nowserving_shard::clock::Micros;
use nowserving_shard::requests::RequestId;

/// Where an answer goes, and in which form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyTo {
    /// The requester's inbox; `None`: it did not ask for an answer.
    pub inbox: Option<Box<str>>,
    /// The format of the request.
    pub format: Format,
    /// The operation, for metrics and for the subject on which it is passed on.
    pub op: &'static str,
    /// Whether it came on an operators' subject.
    pub admin: bool,
    /// When it was read (monotonic).
    pub taken: Micros,
}

/// A checked request about one line.
#[derive(Debug, PartialEq)]
pub struct Request {
    /// The shard that holds the line.
    pub shard: u32,
    /// The line.
    pub line: LineName,
    /// What is asked.
    pub ask: Ask,
    /// Who wants to know.
    pub reply: ReplyTo,
    /// When an answer must be on its way.
    pub deadline: Micros,
    /// Which call it belongs to; `None`: no other node can have it, and its sender did not say.
    pub id: Option<RequestId>,
    /// When its sender says that it sent it: milliseconds since 1970 by the sender's clock.
    pub sent_ms: Option<u64>,
    /// As it came, to be passed on.
    pub payload: Bytes,
}

/// What is asked of a line.
#[derive(Debug, PartialEq)]
pub enum Ask {
    /// Goes through the log.
    Write(Op),
    /// `status` of a token.
    Status {
        /// Which token.
        at: TokenRef,
        /// How fresh.
        consistency: Consistency,
        /// List the holes before it too.
        holes: bool,
    },
    /// `find` by key.
    Find(Box<[u8]>),
    /// `info`.
    Info(Consistency),
    /// `admin.line.show`.
    Show,
    /// `admin.line.journal`.
    Journal(Journal),
}

/// What a request does, for the decision where it is done. Nothing else asks what an operation
/// changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Reads what any node has.
    ReadLocal,
    /// Reads what the leader has.
    Read,
    /// Writes. Every write may be passed on more than once: with its id it is done once.
    Write,
}

impl Effect {
    /// Whether it may change something.
    #[must_use]
    pub fn is_write(self) -> bool {
        self == Effect::Write
    }
}

impl Ask {
    /// What it does.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Ask::Status { consistency, .. } | Ask::Info(consistency) => match consistency {
                Consistency::Local => Effect::ReadLocal,
                Consistency::Leader | Consistency::Linearizable => Effect::Read,
            },
            Ask::Find(_) | Ask::Show | Ask::Journal(_) => Effect::Read,
            Ask::Write(_) => Effect::Write,
        }
    }

    /// Whether it must be confirmed by a quorum even under a lease.
    #[must_use]
    pub fn is_linearizable(&self) -> bool {
        matches!(
            self,
            Ask::Status {
                consistency: Consistency::Linearizable,
                ..
            } | Ask::Info(Consistency::Linearizable)
        )
    }
}

/// A question about the whole cluster, as this node sees it.
#[derive(Debug, PartialEq)]
pub enum Question {
    /// `admin.cluster.status`.
    ClusterStatus,
    /// `admin.cluster.list_lines`.
    ListLines(ListLines),
}

/// A successful answer, not yet encoded.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// A status, with the ticket where the operation gives one.
    Status {
        /// The status.
        status: Box<Status>,
        /// The moment of the answer.
        now: Timestamp,
        /// Sign and add the ticket.
        with_ticket: bool,
        /// `Some` if asked for; inside, `None` if there are too many, or they are not to be known.
        holes: Option<Option<Vec<(Token, Token)>>>,
    },
    /// `info`.
    Info(Box<InfoReply>),
    /// `show`, `create`, `configure`.
    Line(Box<LineReply>),
    /// `journal`.
    Journal(Box<JournalReply>),
    /// `delete`.
    Deleted {
        /// Which line.
        line: LineName,
        /// Live tokens still to be ended.
        remaining: u64,
    },
    /// `admin.cluster.status`.
    Cluster(Box<ClusterStatus>),
    /// `admin.cluster.list_lines`.
    Lines(Box<LineList>),
}
