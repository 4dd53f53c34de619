//! What a client asks.

use std::rc::Rc;

use nowserving_kv as kv;
use nowserving_line::{LineName, Op, OperatorNote, TokenBy};
use nowserving_protocol::admin::{ConfigureLines, ListTokens};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::kick::Kick;
use nowserving_protocol::kv::{KvGet, KvList};
use nowserving_protocol::limits::Descriptor;
use nowserving_protocol::operation::{On, Operation, Request};
use nowserving_protocol::user::Consistency;
use nowserving_shard::limits::LimitAsk;
use nowserving_shard::members::{MembersChange, MembersRequest};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};

/// Hits on a rate limit.
#[derive(Clone, Debug)]
pub struct Hits {
    /// What the rules are asked for.
    pub counter: Descriptor,
    /// Where the rule stands, in words.
    pub rule: String,
    /// The limit by the rules, and the hits.
    pub ask: LimitAsk,
    /// They go through the log.
    pub exact: bool,
    /// The shard of the counter.
    pub shard: u32,
}

/// What is asked, as a client means it.
#[derive(Clone, Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "as large as the operation that makes a line"
)]
pub enum What {
    /// A change.
    Write(Op),
    /// The status of a token.
    Status {
        /// Which token.
        token: TokenBy,
        /// How fresh.
        consistency: Consistency,
    },
    /// Who has this key?
    Find(Box<[u8]>),
    /// A page of a line's live tokens.
    Tokens(Rc<ListTokens>),
    /// Tokens of a line are to end.
    Kick(Rc<Kick>),
    /// A change of the cluster's members.
    Members(Rc<MembersRequest>),
    /// What a request of the contract reads.
    Read {
        /// Its operation.
        op: Operation,
        /// Its bytes.
        payload: Vec<u8>,
    },
    /// A snapshot of a shard.
    Backup {
        /// With all entries through this one.
        index: Option<u64>,
    },
    /// A part of it.
    BackupChunk {
        /// The name under which the node keeps it.
        id: String,
        /// Where the part begins.
        offset: u64,
    },
    /// A step of putting a line back.
    Restore(Rc<RestoreCommand>),
    /// A change of a key-value.
    Kv(kv::Op),
    /// The value of a key.
    KvGet(KvGet),
    /// A page of the keys of a bucket.
    KvList {
        /// Which page.
        ask: KvList,
    },
    /// One change of settings of all lines with a label.
    ConfigureLines(Rc<ConfigureLines>),
    /// The rules of a domain of rate limits are to be these; `None`: there are to be none.
    LimitRules {
        /// Which one.
        domain: LineName,
        /// They are YAML.
        text: Option<Rc<str>>,
    },
    /// Whether hits pass rate limits: all of these.
    Limit(Rc<[Hits]>),
    /// The same in the domain whose rules change: for each counter, the limits that it may have.
    LimitChanging(Rc<[Vec<Hits>]>),
    /// Forgets what a counter of a rate limit has.
    LimitReset {
        /// Of its rule.
        domain: LineName,
        /// What the rules are asked for.
        counter: Descriptor,
        /// Their counter.
        key: Box<[u8]>,
    },
}

impl What {
    /// A request that needs no words of its own here.
    pub fn read<Q: Request>(request: &Q) -> What {
        What::Read {
            op: Q::OPERATION,
            payload: encode(request, Format::MsgPack),
        }
    }

    /// Whether any node may answer from its own state.
    #[must_use]
    pub fn is_local(&self) -> bool {
        let consistency = match self {
            What::Status { consistency, .. } => Some(*consistency),
            What::KvGet(ask) => ask.consistency,
            What::KvList { .. } => Some(Consistency::Local),
            _ => None,
        };
        consistency == Some(Consistency::Local)
    }

    /// Whether what it is refused for is said of a line.
    #[must_use]
    pub fn is_of_a_line(&self) -> bool {
        if let What::Read { op, .. } = self {
            return op.on() != On::AdminLimit;
        }
        !matches!(
            self,
            What::Members(_)
                | What::ConfigureLines(_)
                | What::Backup { .. }
                | What::BackupChunk { .. }
                | What::Restore(_)
                | What::Kv(_)
                | What::KvGet(_)
                | What::KvList { .. }
                | What::LimitRules { .. }
                | What::Limit(_)
                | What::LimitChanging(_)
                | What::LimitReset { .. }
        )
    }

    /// Whether it may have an effect.
    pub(super) fn is_change(&self) -> bool {
        matches!(
            self,
            What::Write(_)
                | What::Kick(_)
                | What::Members(_)
                | What::ConfigureLines(_)
                | What::Restore(_)
                | What::Kv(_)
                | What::LimitRules { .. }
                | What::Limit(_)
                | What::LimitChanging(_)
                | What::LimitReset { .. }
        )
    }

    /// Who asks for a change of the members, and why: the checkers know a recorded change by that.
    pub(super) fn note(&self) -> Option<OperatorNote> {
        match self {
            What::Members(request) => Some(OperatorNote {
                by: Some(request.by.as_str().into()),
                reason: Some(request.reason.as_str().into()),
            }),
            _ => None,
        }
    }

    /// Its operation.
    pub(super) fn operation(&self) -> Operation {
        match self {
            What::Members(request) => match request.change {
                MembersChange::Add { .. } => Operation::AddNode,
                MembersChange::Remove { .. } => Operation::RemoveNode,
                MembersChange::Replace { .. } => Operation::ReplaceNode,
                MembersChange::Drain { .. } => Operation::Drain,
                MembersChange::Prefer { .. } => Operation::Transfer,
                MembersChange::RotateKey(_) => Operation::RotateKey,
            },
            What::Kv(kv::Op::Put { above: 1.., .. }) => Operation::KvRestore,
            What::Kv(kv::Op::Put { .. }) => Operation::KvPut,
            What::Kv(kv::Op::Delete { .. }) => Operation::KvDelete,
            What::KvGet(_) => Operation::KvGet,
            What::KvList { .. } => Operation::KvList,
            What::ConfigureLines(_) => Operation::ConfigureLines,
            What::LimitRules { text: Some(_), .. } => Operation::LimitApply,
            What::LimitRules { text: None, .. } => Operation::LimitDelete,
            What::Limit(_) | What::LimitChanging(_) => Operation::LimitCheck,
            What::LimitReset { .. } => Operation::LimitReset,
            What::Status { .. } => Operation::Status,
            What::Find(_) => Operation::Find,
            What::Tokens(_) => Operation::ListTokens,
            What::Kick(_) => Operation::Kick,
            What::Read { op, .. } => *op,
            What::Backup { .. } => Operation::Backup,
            What::BackupChunk { .. } => Operation::BackupChunk,
            What::Restore(command) => match command.step {
                RestoreStep::Part { .. } => Operation::RestorePart,
                RestoreStep::Finish { .. } => Operation::Restore,
            },
            What::Write(op) => match op {
                Op::Enter { .. } => Operation::Enter,
                Op::Callback { .. } => Operation::Callback,
                Op::Claim { .. } => Operation::Claim,
                Op::Renew { .. } => Operation::Renew,
                Op::Complete { .. } => Operation::Complete,
                Op::Leave { .. } => Operation::Leave,
                Op::Jump { .. } => Operation::Jump,
                Op::Create { .. } => Operation::Create,
                Op::Configure { .. } => Operation::Configure,
                Op::Delete { .. } => Operation::Delete,
                Op::CapacityTold { .. } => Operation::CapacityTold,
                Op::Import { .. } => Operation::Import,
                Op::CallNext { .. } => Operation::CallNext,
                Op::Take { .. } => Operation::Take,
                _ => Operation::Move,
            },
        }
    }
}
