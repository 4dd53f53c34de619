//! The operations of the contract. Each is defined here, once: its subjects, whether it changes anything, its name in
//! metrics and between nodes, its request and its reply follow.

use std::fmt;

use serde::Serialize;

use crate::admin::{
    CallNext, CalledReply, CapacityTold, ClusterStatus, ClusterStatusRequest, Configure,
    ConfigureLines, ConfigureLinesReply, Create, Delete, DeleteReply, Import, Journal,
    JournalReply, Kick, KickReply, LineList, LineReply, ListLines, ListMembersChanges, ListTokens,
    MembersChangesReply, Move, Show, ShowJwks, Take, TokensReply,
};
use crate::backup::{
    Backup, BackupChunk, BackupChunkReply, BackupReply, RestoreLine, RestorePart, RestorePartReply,
};
use crate::codec::{MAX_REQUEST_BYTES, Payload, read_request};
use crate::error::ApiError;
use crate::kv::{KvDelete, KvGet, KvGetReply, KvList, KvListReply, KvPut, KvReply, KvRestore};
use crate::limits::{
    APPLY_BYTES_MAX, ApplyRules, Check, CheckReply, DeleteRules, LimitChangesReply, LimitStats,
    LimitStatsReply, ListLimitChanges, ResetLimit, ResetReply, RulesChanged, RulesReply, ShowRules,
    TestLimits,
};
use crate::pass::Jwks;
use crate::subject::unknown_op;
use crate::user::{
    Callback, CallbackReply, Claim, Complete, Enter, Find, Info, InfoReply, Jump, Leave, Renew,
    Seen, SeenReply, StatusReply, StatusRequest,
};
use crate::wrong::nearest;

/// The subjects of an operation, below the prefix. On those with a shard the whole name stands, on others what follows
/// `kv_`, `limit_` or `cluster_` in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// None: the operation of a request is not known.
    Nothing,
    /// `line.<line>.<op>`, `shard.<n>.<line>.<op>`.
    Line,
    /// `admin.line.<line>.<op>`, `admin.shard.<n>.<line>.<op>`.
    AdminLine,
    /// `admin.cluster.<op>`, for any node.
    Cluster,
    /// `admin.cluster.<op>`, for the leader of shard 0.
    Members,
    /// `kv.<bucket>.<op>`, `shard.<n>.kv.<bucket>.<op>`.
    Kv,
    /// `admin.kv.<bucket>.<op>`, `admin.shard.<n>.kv.<bucket>.<op>`.
    AdminKv,
    /// `limit.<domain>.<op>`, `leader.<n>.limit.<domain>.<op>`.
    Limit,
    /// `admin.limit.<op>`; between nodes `admin.shard.<n>.<domain>.<op>`.
    AdminLimit,
    /// Between nodes: `shard.<n>.<domain>.<op>`.
    LimitShard,
    /// Between nodes: `forward.shard.<n>.<domain>.<op>`, to which the leader alone subscribes.
    LimitLeader,
}

impl On {
    /// Whether operators alone have the right.
    pub fn is_admin(self) -> bool {
        use On::{AdminKv, AdminLimit, AdminLine, Cluster, Members};
        matches!(self, AdminLine | Cluster | Members | AdminKv | AdminLimit)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing. Its outcome is never unknown.
    Read,
    /// A change.
    Write,
    /// A change, unless the request is a `dry_run`.
    Try,
}

/// A request that names its operation.
pub trait Request: Serialize + Payload {
    /// The operation.
    const OPERATION: Operation;
    /// Its answer.
    type Reply: Payload;

    /// Whether it may change anything.
    fn is_write(&self) -> bool;
}

/// Whether a request with this effect may change anything.
macro_rules! is_write {
    (Read, $request:expr) => {
        false
    };
    (Write, $request:expr) => {
        true
    };
    (Try, $request:expr) => {
        !$request.dry_run
    };
}

/// The largest request, in bytes.
macro_rules! bytes_max {
    () => {
        MAX_REQUEST_BYTES
    };
    ($bytes_max:ident) => {
        $bytes_max
    };
}

/// `On { Name Effect "name in metrics": request [its largest size] => reply }`. Where several operations share a request, it
/// does not name its operation.
macro_rules! operations {
    ($($on:ident {$($name:ident $effect:ident $text:literal $(: $request:ident $([$bytes_max:ident])? => $reply:ty)?,)*})*) => {
        /// An operation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Operation {
            /// Of a request that names none of the others.
            #[default]
            Unknown,
            $($(#[doc = concat!("`", $text, "`")] $name,)*)*
        }

        const TABLE: &[(Operation, On, Effect, &str)] = &[
            (Operation::Unknown, On::Nothing, Effect::Read, "unknown"),
            $($((Operation::$name, On::$on, Effect::$effect, $text),)*)*
        ];

        $($($(impl Request for $request {
            const OPERATION: Operation = Operation::$name;
            type Reply = $reply;

            fn is_write(&self) -> bool {
                is_write!($effect, self)
            }
        }

        impl Payload for $request {
            fn read(payload: &[u8]) -> Result<Self, ApiError> {
                read_request(payload, bytes_max!($($bytes_max)?))
            }
        })?)*)*

        /// The schemas of the request and the reply of each operation whose request names it.
        #[cfg(feature = "schema")]
        pub(crate) fn payloads(
            requests: &mut schemars::SchemaGenerator,
            replies: &mut schemars::SchemaGenerator,
        ) -> Vec<(Operation, schemars::Schema, schemars::Schema)> {
            vec![$($($((
                Operation::$name,
                requests.subschema_for::<$request>(),
                replies.subschema_for::<$reply>(),
            ),)?)*)*]
        }
    };
}

operations! {
    Line {
        Status Read "status": StatusRequest => StatusReply,
        Enter Write "enter": Enter => StatusReply,
        Callback Write "callback": Callback => CallbackReply,
        Find Read "find": Find => StatusReply,
        Claim Write "claim": Claim => StatusReply,
        Renew Write "renew": Renew => StatusReply,
        Complete Write "complete": Complete => StatusReply,
        Leave Write "leave": Leave => StatusReply,
        Jump Write "jump": Jump => StatusReply,
        Seen Read "seen": Seen => SeenReply,
        Info Read "info": Info => InfoReply,
    }
    AdminLine {
        Create Write "create": Create => LineReply,
        Configure Try "configure": Configure => LineReply,
        Show Read "show": Show => LineReply,
        Delete Write "delete": Delete => DeleteReply,
        Move Write "move": Move => StatusReply,
        CapacityTold Write "capacity_told": CapacityTold => LineReply,
        Kick Try "kick": Kick => KickReply,
        Import Write "import": Import => LineReply,
        Journal Read "journal": Journal => JournalReply,
        CallNext Write "call_next": CallNext => CalledReply,
        Take Write "take": Take => CalledReply,
        ListTokens Read "list_tokens": ListTokens => TokensReply,
        Backup Read "backup": Backup => BackupReply,
        BackupChunk Read "backup_chunk": BackupChunk => BackupChunkReply,
        RestorePart Write "restore_part": RestorePart => RestorePartReply,
        Restore Write "restore": RestoreLine => LineReply,
    }
    Cluster {
        ClusterStatus Read "cluster_status": ClusterStatusRequest => ClusterStatus,
        ListLines Read "list_lines": ListLines => LineList,
        MembersChanges Read "members_changes": ListMembersChanges => MembersChangesReply,
        Jwks Read "jwks": ShowJwks => Jwks,
        ConfigureLines Try "configure_lines": ConfigureLines => ConfigureLinesReply,
    }
    Members {
        AddNode Write "add_node",
        RemoveNode Write "remove_node",
        ReplaceNode Write "replace_node",
        Drain Write "drain",
        Transfer Write "transfer",
        RotateKey Write "rotate_key",
    }
    Kv {
        KvGet Read "kv_get": KvGet => KvGetReply,
        KvPut Write "kv_put": KvPut => KvReply,
        KvDelete Write "kv_delete": KvDelete => KvReply,
        KvList Read "kv_list": KvList => KvListReply,
    }
    AdminKv {
        KvRestore Write "kv_restore": KvRestore => KvReply,
    }
    Limit {
        LimitCheck Try "limit_check": Check => CheckReply,
    }
    AdminLimit {
        LimitApply Try "limit_apply": ApplyRules [APPLY_BYTES_MAX] => RulesChanged,
        LimitDelete Try "limit_delete": DeleteRules => RulesChanged,
        LimitShow Read "limit_show": ShowRules => RulesReply,
        LimitStats Read "limit_stats": LimitStats => LimitStatsReply,
        LimitChanges Read "limit_changes": ListLimitChanges => LimitChangesReply,
        LimitReset Write "limit_reset": ResetLimit => ResetReply,
        LimitTest Read "limit_test": TestLimits => CheckReply,
    }
    LimitShard {
        LimitExact Try "limit_exact",
        LimitExactGiveBack Write "limit_exact_give_back",
    }
    LimitLeader {
        LimitPart Try "limit_part",
        LimitGiveBack Write "limit_give_back",
    }
}

impl Operation {
    /// All of them, in the order of the table.
    pub fn all() -> impl Iterator<Item = Operation> {
        let known = TABLE.iter().filter(|row| row.1 != On::Nothing);
        known.map(|row| row.0)
    }

    fn row(self) -> &'static (Operation, On, Effect, &'static str) {
        // Both follow one list.
        &TABLE[self as usize]
    }

    /// Its name in metrics and spans, and on the subjects of a shard.
    pub fn name(self) -> &'static str {
        self.row().3
    }

    /// Its last word on a subject without a shard, and on those of key-values and of limits for clients.
    pub fn word(self) -> &'static str {
        let name = self.name();
        let prefix = match self.on() {
            On::Kv | On::AdminKv => "kv_",
            On::Limit | On::AdminLimit => "limit_",
            On::Cluster => "cluster_",
            _ => "",
        };
        name.strip_prefix(prefix).unwrap_or(name)
    }

    /// Its subjects.
    pub fn on(self) -> On {
        self.row().1
    }

    /// What it does.
    pub fn effect(self) -> Effect {
        self.row().2
    }

    /// Whether operators alone have the right.
    pub fn is_admin(self) -> bool {
        self.on().is_admin()
    }

    /// The one with this word on these subjects.
    pub(crate) fn with_word(on: &[On], word: &str) -> Result<Operation, ApiError> {
        find(on, word, Operation::word)
    }

    /// The one with this name on these subjects.
    pub(crate) fn with_name(on: &[On], name: &str) -> Result<Operation, ApiError> {
        find(on, name, Operation::name)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn find(on: &[On], text: &str, by: fn(Operation) -> &'static str) -> Result<Operation, ApiError> {
    let all = TABLE.iter().filter(|row| on.contains(&row.1));
    if let Some(row) = all.clone().find(|row| by(row.0) == text) {
        return Ok(row.0);
    }
    let names: Vec<&str> = all.map(|row| by(row.0)).collect();
    let mut error = unknown_op(text);
    if let Some(near) = nearest(text, &names) {
        error.message.push_str(&format!(": did you mean {near:?}?"));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_operation_has_a_name_of_its_own() {
        let names: BTreeSet<_> = Operation::all().map(Operation::name).collect();
        assert_eq!(names.len(), Operation::all().count());
        for op in Operation::all() {
            assert_eq!(Operation::with_word(&[op.on()], op.word()), Ok(op));
            assert_eq!(op.row().0, op);
        }
        assert_eq!(Operation::ClusterStatus.word(), "status");
        assert_eq!(Operation::KvPut.word(), "put");
        assert_eq!(Operation::LimitGiveBack.word(), "limit_give_back");
    }

    #[test]
    fn the_nearest_operation_is_named() {
        let said = |word| Operation::with_word(&[On::Line], word).map_err(|error| error.message);
        let near = "op: there is no operation \"entr\": did you mean \"enter\"?";
        assert_eq!(said("entr"), Err(near.to_owned()));
        let none = "op: there is no operation \"frobnicate\"";
        assert_eq!(said("frobnicate"), Err(none.to_owned()));
    }

    /// In tables whose first cell names them.
    #[test]
    fn the_contract_lists_all_operations() {
        let pages = |on| match on {
            On::Line => [include_str!("../../../docs/protocol/users.md"), ""],
            On::Kv => [include_str!("../../../docs/protocol/key-values.md"), ""],
            On::AdminLimit => [include_str!("../../../docs/protocol/limits.md"), ""],
            On::AdminLine | On::AdminKv => [
                include_str!("../../../docs/protocol/operators.md"),
                include_str!("../../../docs/protocol/backups.md"),
            ],
            _ => [
                include_str!("../../../docs/protocol/operators.md"),
                include_str!("../../../docs/protocol/nodes.md"),
            ],
        };
        // A check has a page of its own, and nodes' questions to each other a sentence.
        let without_row = [On::Limit, On::LimitShard, On::LimitLeader];
        for op in Operation::all().filter(|op| !without_row.contains(&op.on())) {
            let cell = format!("`{}`", op.word());
            let named = |text: &str| {
                let mut rows = text.lines().filter_map(|line| line.strip_prefix("| "));
                rows.any(|row| row.split(" |").next().is_some_and(|it| it.contains(&cell)))
            };
            assert!(pages(op.on()).into_iter().any(named), "{op} has no row");
        }
    }
}
