//! The readers of all that is no request of one operation, whose readers stand with the operation.

use crate::admin::{
    CalledReply, ChangeMembers, ClusterStatus, ConfigureLinesReply, DeleteReply, JournalReply,
    KickReply, LineList, LineReply, MembersChangesReply, MembersReply, TokensReply,
};
use crate::backup::{BackupChunkReply, BackupReply, RestorePartReply};
use crate::codec::{MAX_REQUEST_BYTES, Payload, read, read_request};
use crate::error::{ApiError, ErrorReply};
use crate::event::{BoardEvent, LineEvent, TokenEvent};
use crate::kv::{KvEvent, KvGetReply, KvListReply, KvReply};
use crate::limits::{
    CheckReply, GiveBackHits, LimitChangesReply, LimitStatsReply, NodeHits, PartReply, ResetReply,
    RulesChanged, RulesReply, ShardLimitStats,
};
use crate::pass::Jwks;
use crate::user::{CallbackReply, InfoReply, SeenReply, StatusReply};

macro_rules! requests {
    ($($type:ident)*) => {$(
        impl Payload for $type {
            fn read(payload: &[u8]) -> Result<Self, ApiError> {
                read_request(payload, MAX_REQUEST_BYTES)
            }
        }
    )*};
}

macro_rules! others {
    ($($type:ident)*) => {$(
        impl Payload for $type {
            fn read(payload: &[u8]) -> Result<Self, ApiError> {
                read(payload)
            }
        }
    )*};
}

// Of several operations.
requests! {
    ChangeMembers GiveBackHits
}

// Replies and events.
others! {
    BackupChunkReply BackupReply BoardEvent CallbackReply CalledReply CheckReply ClusterStatus ConfigureLinesReply DeleteReply
    ErrorReply InfoReply Jwks JournalReply KickReply KvEvent KvGetReply KvListReply KvReply LimitChangesReply LimitStatsReply
    LineEvent LineList LineReply MembersChangesReply MembersReply NodeHits PartReply ResetReply RestorePartReply RulesChanged
    RulesReply SeenReply ShardLimitStats StatusReply TokenEvent TokensReply
}
