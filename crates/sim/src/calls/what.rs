//! What a client asks, and what the engine gets of it.

use std::rc::Rc;

use nowserving_engine::{Ask, LimitRequest, Question};
use nowserving_kv as kv;
use nowserving_line::{LineName, Op, TokenBy};
use nowserving_protocol::admin::{ListLines, ListTokens};
use nowserving_protocol::kick::Kick;
use nowserving_protocol::kv::{KvGet, KvList};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::user::Consistency;
use nowserving_shard::limits::{LimitAsk, LimitCommand, ResetCounter};
use nowserving_shard::members::{MembersChange, MembersRequest};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};

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
    /// What the cluster is like.
    Cluster,
    /// Which lines there are.
    Lines,
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
        /// The bucket.
        bucket: LineName,
        /// Which page.
        ask: KvList,
    },
    /// Whether hits pass a rate limit.
    Limit {
        /// The limit, and the hits.
        ask: Box<LimitAsk>,
        /// They go through the log.
        exact: bool,
    },
    /// Gives back the hits of a check, as another limit has refused it.
    LimitGiveBack {
        /// The call that counted them.
        call: usize,
        /// They went through the log.
        exact: bool,
    },
    /// Forgets what a counter of a rate limit has.
    LimitReset {
        /// Of its rule.
        domain: LineName,
        /// The counter.
        key: Box<[u8]>,
    },
}

/// What is asked, as the engine has it.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "as large as the operation that makes a line"
)]
pub enum Asked {
    /// Of a line.
    Line(Ask),
    /// Of the cluster.
    Cluster(Question),
}

impl What {
    /// As the engine has it, of the call of this number.
    #[must_use]
    pub fn ask(&self, number: usize) -> Asked {
        Asked::Line(match self {
            What::Write(op) => Ask::Write(op.clone()),
            What::Status { token, consistency } => Ask::Status {
                token: token.clone(),
                consistency: *consistency,
                holes: false,
            },
            What::Find(key) => Ask::Find(key.clone()),
            What::Tokens(list) => Ask::ListTokens(Box::new(list.as_ref().clone())),
            What::Kick(kick) => Ask::Kick(Box::new(kick.as_ref().clone())),
            What::Members(request) => Ask::Members(Box::new(request.as_ref().clone())),
            What::Backup { index } => Ask::Backup { index: *index },
            What::BackupChunk { id, offset } => Ask::BackupChunk {
                id: id.clone(),
                offset: *offset,
            },
            What::Restore(command) => Ask::Restore(Box::new(command.as_ref().clone())),
            What::Limit { ask, exact } => {
                let (asks, dry_run) = (vec![ask.as_ref().clone()], false);
                Ask::Limit(Box::new(match exact {
                    true => LimitRequest::Exact { asks, dry_run },
                    false => LimitRequest::Check {
                        asks,
                        dry_run,
                        hold: Some(number as u128),
                    },
                }))
            }
            What::LimitGiveBack { call, exact, .. } => {
                let (name, exact) = (*call as u128, *exact);
                Ask::Limit(Box::new(LimitRequest::GiveBack { name, exact }))
            }
            What::LimitReset { domain, key } => {
                let reset = LimitCommand::Reset(ResetCounter {
                    domain: domain.clone(),
                    key: key.clone(),
                    descriptor: "a counter".into(),
                    by: "sim".into(),
                    reason: String::new(),
                });
                Ask::Limit(Box::new(LimitRequest::Command(reset)))
            }
            What::Kv(op) => Ask::Kv(op.clone()),
            What::KvGet(ask) => Ask::KvGet(ask.clone()),
            What::KvList { bucket, ask } => {
                return Asked::Cluster(Question::KvList {
                    bucket: bucket.clone(),
                    ask: ask.clone(),
                });
            }
            What::Cluster => return Asked::Cluster(Question::ClusterStatus),
            What::Lines => {
                return Asked::Cluster(Question::ListLines(ListLines::default()));
            }
        })
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
        !matches!(
            self,
            What::Members(_)
                | What::Backup { .. }
                | What::BackupChunk { .. }
                | What::Restore(_)
                | What::Kv(_)
                | What::KvGet(_)
                | What::KvList { .. }
                | What::Limit { .. }
                | What::LimitGiveBack { .. }
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
                | What::Restore(_)
                | What::Kv(_)
                | What::Limit { exact: true, .. }
                | What::LimitGiveBack { exact: true, .. }
                | What::LimitReset { .. }
        )
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
            What::Limit { exact: true, .. } => Operation::LimitExact,
            What::Limit { exact: false, .. } => Operation::LimitPart,
            What::LimitGiveBack { exact: true, .. } => Operation::LimitExactGiveBack,
            What::LimitGiveBack { exact: false, .. } => Operation::LimitGiveBack,
            What::LimitReset { .. } => Operation::LimitReset,
            What::Status { .. } => Operation::Status,
            What::Find(_) => Operation::Find,
            What::Tokens(_) => Operation::ListTokens,
            What::Kick(_) => Operation::Kick,
            What::Cluster => Operation::ClusterStatus,
            What::Lines => Operation::ListLines,
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
