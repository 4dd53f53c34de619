//! What a client asks.

use std::rc::Rc;

use nowserving_kv as kv;
use nowserving_line::{LineName, Op, TokenBy};
use nowserving_protocol::admin::ListTokens;
use nowserving_protocol::kick::Kick;
use nowserving_protocol::kv::{KvGet, KvList};
use nowserving_protocol::limits::Descriptor;
use nowserving_protocol::user::Consistency;
use nowserving_shard::limits::LimitAsk;
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
        /// Which page.
        ask: KvList,
    },
    /// The rules of rate limits are to be as they are here.
    LimitRules,
    /// Whether hits pass a rate limit.
    Limit {
        /// What the rules are asked for.
        counter: Descriptor,
        /// The limit by the rules, and the hits.
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
        /// What the rules are asked for.
        counter: Descriptor,
        /// Their counter.
        key: Box<[u8]>,
    },
}

impl What {
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
                | What::LimitRules
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

    /// Its operation's name in the contract, and whether it is one of `admin`.
    pub(super) fn name(&self) -> (&'static str, bool) {
        match self {
            What::Members(request) => match request.change {
                MembersChange::Add { .. } => ("add_node", true),
                MembersChange::Remove { .. } => ("remove_node", true),
                MembersChange::Replace { .. } => ("replace_node", true),
                MembersChange::Drain { .. } => ("drain", true),
                MembersChange::Prefer { .. } => ("transfer", true),
                MembersChange::RotateKey(_) => ("rotate_key", true),
            },
            What::Kv(kv::Op::Put { above: 1.., .. }) => ("kv_restore", true),
            What::Kv(kv::Op::Put { .. }) => ("kv_put", false),
            What::Kv(kv::Op::Delete { .. }) => ("kv_delete", false),
            What::KvGet(_) => ("kv_get", false),
            What::KvList { .. } => ("kv_list", false),
            What::LimitRules => ("limit_apply", true),
            What::Limit { exact: true, .. } => ("limit_exact", false),
            What::Limit { exact: false, .. } => ("limit_check", false),
            What::LimitGiveBack { exact: true, .. } => ("limit_exact_give_back", false),
            What::LimitGiveBack { exact: false, .. } => ("limit_give_back", false),
            What::LimitReset { .. } => ("limit_reset", true),
            What::Status { .. } => ("status", false),
            What::Find(_) => ("find", false),
            What::Tokens(_) => ("list_tokens", true),
            What::Kick(_) => ("kick", true),
            What::Cluster => ("status", true),
            What::Lines => ("list_lines", true),
            What::Backup { .. } => ("backup", true),
            What::BackupChunk { .. } => ("backup_chunk", true),
            What::Restore(command) => match command.step {
                RestoreStep::Part { .. } => ("restore_part", true),
                RestoreStep::Finish { .. } => ("restore", true),
            },
            What::Write(op) => match op {
                Op::Enter { .. } => ("enter", false),
                Op::Callback { .. } => ("callback", false),
                Op::Claim { .. } => ("claim", false),
                Op::Renew { .. } => ("renew", false),
                Op::Complete { .. } => ("complete", false),
                Op::Leave { .. } => ("leave", false),
                Op::Jump { .. } => ("jump", false),
                Op::Create { .. } => ("create", true),
                Op::Configure { .. } => ("configure", true),
                Op::Delete { .. } => ("delete", true),
                Op::CapacityTold { .. } => ("capacity_told", true),
                Op::Import { .. } => ("import", true),
                Op::CallNext { .. } => ("call_next", true),
                Op::Take { .. } => ("take", true),
                _ => ("move", true),
            },
        }
    }
}
