//! Checked requests and their outcomes.

use bytes::Bytes;
use nowserving_kv as kv;
use nowserving_line::{LineName, Op, OperatorNote, Status, Timestamp, Token, TokenBy};
use nowserving_protocol::admin::{
    CalledReply, ClusterStatus, Configure, DeleteReply, Journal, JournalReply, LineList, LineReply,
    ListLines, ListTokens, MembersChangesReply, MembersReply, TokensReply,
};
use nowserving_protocol::backup::RestorePartReply;
use nowserving_protocol::codec::Format;
use nowserving_protocol::header::TraceContext;
use nowserving_protocol::kick::{Kick, KickReply};
use nowserving_protocol::kv::{KvGet, KvGetReply, KvList, KvListReply, KvReply};
use nowserving_protocol::limits::{
    LimitChangesReply, PartReply, ResetReply, RulesChanged, ShardLimitStats,
};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::user::{CallbackReply, Consistency, InfoReply, SeenReply};
use nowserving_shard::clock::Micros;
use nowserving_shard::limits::{LimitAsk, LimitCommand};
use nowserving_shard::members::MembersRequest;
use nowserving_shard::requests::RequestId;
use nowserving_shard::restore::RestoreCommand;
use serde::Serialize;

/// Where an answer goes.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Inbox {
    /// Nowhere: the requester did not ask for one.
    #[default]
    None,
    /// To this NATS subject.
    Subject(Box<str>),
    /// To a task of this node.
    Task(u64),
}

impl Inbox {
    /// The NATS subject, if it is one.
    #[must_use]
    pub fn subject(&self) -> Option<&str> {
        match self {
            Inbox::Subject(subject) => Some(subject),
            Inbox::None | Inbox::Task(_) => None,
        }
    }
}

/// The destination and form of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyTo {
    pub inbox: Inbox,
    /// The format of the request.
    pub format: Format,
    /// For metrics, and for the subject on which it is forwarded.
    pub op: Operation,
    /// The answer is a status to which a signed pass is added, if the token holds a seat.
    pub pass: bool,
    /// When it was read (monotonic).
    pub taken: Micros,
    /// The trace that it is a part of, if it is recorded. The engine passes it on.
    pub trace: Option<Box<TraceContext>>,
}

/// A checked request about one line, or one key-value.
#[derive(Debug, PartialEq)]
pub struct Request {
    pub shard: u32,
    /// Or the bucket.
    pub line: LineName,
    pub ask: Ask,
    pub reply: ReplyTo,
    /// The answer must leave before this time.
    pub deadline: Micros,
    /// The id of its call; `None`: no other node can have a copy, and the sender gave no id.
    pub id: Option<RequestId>,
    /// The time of sending by the sender's clock, in milliseconds since 1970, if it gave one.
    pub sent_ms: Option<u64>,
    /// Who asked, if an operator said so or the NATS server did, and why.
    pub note: Option<Box<OperatorNote>>,
    /// The original bytes, for a forward.
    pub payload: Bytes,
}

/// An operation on a line.
#[derive(Debug, PartialEq)]
#[allow(
    clippy::large_enum_variant,
    reason = "as large as the operation that makes a line"
)]
pub enum Ask {
    /// An operation that goes through the log.
    Write(Op),
    /// A change of the cluster's members: its request is for shard 0, and has no line.
    Members(Box<MembersRequest>),
    /// `status` of a token.
    Status {
        token: TokenBy,
        consistency: Consistency,
        /// List the holes before it too.
        holes: bool,
    },
    /// `seen` of the tokens of so many tickets; `None` for what is no ticket of the line.
    Seen(Vec<Option<TokenBy>>),
    /// `find` by key.
    Find(Box<[u8]>),
    Info(Consistency),
    Show,
    /// A change of settings that is only tried.
    TryConfigure(Box<Configure>),
    Journal(Journal),
    ListTokens(Box<ListTokens>),
    /// Tokens end, over several entries of the log; or are only counted.
    Kick(Box<Kick>),
    /// A snapshot of the shard through this entry of the log, or through all that are applied.
    Backup {
        index: Option<u64>,
    },
    /// A part of a snapshot that this node keeps.
    BackupChunk {
        id: String,
        offset: u64,
    },
    /// A step of putting a line back; it goes through the log.
    Restore(Box<RestoreCommand>),
    /// An operation on a key-value; it goes through the log.
    Kv(kv::Op),
    KvGet(KvGet),
    /// About rate limits. The request's line is the domain.
    Limit(Box<LimitRequest>),
}

/// What is asked of a shard about rate limits.
#[derive(Debug, PartialEq)]
pub enum LimitRequest {
    /// Decides by the counters in the leader's memory.
    Check {
        asks: Vec<LimitAsk>,
        dry_run: bool,
        /// Names the hits, if another limit of the check is decided elsewhere: they may be given back.
        hold: Option<u128>,
    },
    /// Decides by counters that all nodes have, in the log.
    Exact {
        asks: Vec<LimitAsk>,
        dry_run: bool,
    },
    /// Another limit of the check refused it: gives back what was counted under this name, once, if this leader knows it.
    GiveBack {
        name: u128,
        /// It was counted in the log, and is given back there: the name is the key of that request.
        exact: bool,
    },
    /// An operator's: rules, which are in shard 0, or a reset.
    Command(LimitCommand),
    Stats,
    /// What operators changed lately, of one domain or of all.
    Changes {
        domain: Option<LineName>,
    },
}

/// The part of a request that decides where it is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Reads the state of any node.
    ReadLocal,
    /// Reads the state of the leader.
    Read,
    /// Every write may be forwarded more than once: its id lets it be executed only once.
    Write,
}

impl Effect {
    #[must_use]
    pub fn is_write(self) -> bool {
        self == Effect::Write
    }
}

impl Ask {
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Ask::Status { consistency, .. } | Ask::Info(consistency) => match consistency {
                Consistency::Local => Effect::ReadLocal,
                Consistency::Leader | Consistency::Linearizable => Effect::Read,
            },
            Ask::KvGet(ask) => match ask.consistency.unwrap_or_default() {
                Consistency::Local => Effect::ReadLocal,
                Consistency::Leader | Consistency::Linearizable => Effect::Read,
            },
            Ask::Kick(ask) if !ask.dry_run => Effect::Write,
            Ask::Seen(_)
            | Ask::Find(_)
            | Ask::Kick(_)
            | Ask::Show
            | Ask::TryConfigure(_)
            | Ask::Journal(_)
            | Ask::ListTokens(_)
            | Ask::Backup { .. }
            | Ask::BackupChunk { .. } => Effect::Read,
            Ask::Limit(request) => match **request {
                // A check writes nothing. It counts each time that it is taken, so it comes only where the leader alone
                // gets it (see `delivery`); one that is repeated counts too much, never too little.
                LimitRequest::Check { .. }
                | LimitRequest::Exact { dry_run: true, .. }
                | LimitRequest::GiveBack { exact: false, .. }
                | LimitRequest::Stats
                | LimitRequest::Changes { .. } => Effect::Read,
                LimitRequest::Exact { dry_run: false, .. }
                | LimitRequest::GiveBack { exact: true, .. }
                | LimitRequest::Command(_) => Effect::Write,
            },
            Ask::Write(_) | Ask::Members(_) | Ask::Restore(_) | Ask::Kv(_) => Effect::Write,
        }
    }

    /// The tokens that it marks as seen.
    pub fn seen(&self) -> impl Iterator<Item = &TokenBy> {
        let (one, many) = match self {
            Ask::Status { token, .. } => (Some(token), &[][..]),
            Ask::Seen(tokens) => (None, &tokens[..]),
            _ => (None, &[][..]),
        };
        let many = match nowserving_bite::is(nowserving_bite::Break::S12Seen) {
            true => many.get(..1).unwrap_or_default(),
            false => many,
        };
        one.into_iter().chain(many.iter().flatten())
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
                | Ask::KvGet(KvGet {
                    consistency: Some(Consistency::Linearizable),
                    ..
                })
        )
    }
}

/// An operator's question about the whole cluster, answered from this node's view.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    ClusterStatus,
    ListLines(ListLines),
    /// About a bucket; it is no operator's.
    KvList {
        bucket: LineName,
        ask: KvList,
    },
    /// The newest changes of the members.
    MembersChanges,
}

/// A successful answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// A status, with the ticket where the operation gives one.
    Status {
        status: Box<Status>,
        /// The time of the answer.
        now: Timestamp,
        /// Sign and add the ticket.
        with_ticket: bool,
        /// `Some` if asked for; the inner `None`: too many, or not disclosed.
        holes: Option<Option<Vec<(Token, Token)>>>,
    },
    /// The node keeps the newest snapshot of the shard for its download, if it is `ready`: has all entries
    /// through `index`.
    Backup { shard: u32, index: u64, ready: bool },
    /// The node reads it from the snapshot.
    BackupChunk { id: String, offset: u64 },
    /// What a shard's counters say: the node that asked makes an answer of it.
    LimitPart(Box<PartReply>),
    /// Sent as it is.
    Reply(ReplyBody),
}

/// The reply of an operation whose answer the engine knows whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ReplyBody {
    Info(Box<InfoReply>),
    Line(Box<LineReply>),
    Journal(Box<JournalReply>),
    Tokens(Box<TokensReply>),
    Kicked(Box<KickReply>),
    Callback(CallbackReply),
    Seen(SeenReply),
    Called(Box<CalledReply>),
    Deleted(DeleteReply),
    Cluster(Box<ClusterStatus>),
    Lines(Box<LineList>),
    MembersChanged(MembersReply),
    MembersChanges(Box<MembersChangesReply>),
    RestorePart(RestorePartReply),
    KvGot(Box<KvGetReply>),
    KvDone(KvReply),
    KvListed(Box<KvListReply>),
    LimitRules(RulesChanged),
    LimitReset(ResetReply),
    LimitStats(ShardLimitStats),
    LimitChanges(LimitChangesReply),
}
