//! The readers of replies and events, and of requests that several operations share. Those of one operation stand with it.

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

macro_rules! replies_and_events {
    ($($type:ident)*) => {$(
        impl Payload for $type {
            fn read(payload: &[u8]) -> Result<Self, ApiError> {
                read(payload)
            }
        }
    )*};
}

requests! {
    ChangeMembers GiveBackHits
}

replies_and_events! {
    BackupChunkReply BackupReply BoardEvent CallbackReply CalledReply CheckReply ClusterStatus ConfigureLinesReply DeleteReply
    ErrorReply InfoReply Jwks JournalReply KickReply KvEvent KvGetReply KvListReply KvReply LimitChangesReply LimitStatsReply
    LineEvent LineList LineReply MembersChangesReply MembersReply NodeHits PartReply ResetReply RestorePartReply RulesChanged
    RulesReply SeenReply ShardLimitStats StatusReply TokenEvent TokensReply
}
