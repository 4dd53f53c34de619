//! What passes between the NATS side and the shard loop: checked requests in, answers out.

use async_nats::Subject;
use nowserving_engine::{Ask, Outcome, Question};
use nowserving_line::LineName;
use nowserving_protocol::codec::Format;
use nowserving_protocol::error::ApiError;
use nowserving_shard::clock::Micros;

/// Where an answer goes, and in which form.
#[derive(Debug)]
pub struct ReplyTo {
    /// The requester's inbox; `None`: it did not ask for an answer.
    pub subject: Option<Subject>,
    /// The format of the request.
    pub format: Format,
    /// The operation, for metrics.
    pub op: &'static str,
    /// Whether it came on an operators' subject.
    pub admin: bool,
    /// When it was read (monotonic).
    pub taken: Micros,
    /// How to pass the request on if it turns out that this node does not lead; `None`: it is
    /// refused then, or left in doubt.
    pub plain: Option<Box<Plain>>,
    /// Another node may have taken this request too: that this one does not lead, or cannot pass
    /// it on, then says nothing about its outcome.
    pub doubtful: bool,
}

/// A request, kept so that it can be passed on.
#[derive(Debug, Clone)]
pub struct Plain {
    /// Where the leader takes such requests from other nodes.
    pub leader_subject: String,
    /// As it came (an `enter` without a key got one, so that it can be tried twice).
    pub payload: bytes::Bytes,
}

/// A checked request about one line.
#[derive(Debug)]
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
}

/// Everything a client can ask of the shard loop.
#[derive(Debug)]
pub enum Inbound {
    /// About one line. Boxed, as all settings of a line have their place in one.
    Line(Box<Request>),
    /// About the cluster.
    Cluster(Question, ReplyTo),
}

/// What the shard loop says to a request.
#[derive(Debug)]
pub struct Answer {
    /// To whom.
    pub reply: ReplyTo,
    /// What.
    pub result: Result<Outcome, ApiError>,
    /// The request's deadline, for passing it on.
    pub deadline: Micros,
}
