//! The bounds of lines, the same on all nodes: small ones, so that work of a few tokens takes several log entries.

use bytes::Bytes;
use nowserving_line::Limits;
use nowserving_shard::snapshot::{self, Header, SnapshotError};
use nowserving_shard::state::State;

use crate::disk::CLUSTER;
use crate::upgrade::NEXT_FORMAT;

/// Tokens that background work ends, admits or draws in one log entry.
const WORK_MAX: u32 = 12;

fn limits() -> Limits {
    Limits {
        work_max: WORK_MAX,
        ..Limits::default()
    }
}

/// The state of a shard before its first entry.
pub fn first_state() -> State {
    State::with_limits(limits())
}

/// The state in a snapshot.
pub fn decode(bytes: Bytes, shard: u32) -> Result<(Header, State), SnapshotError> {
    snapshot::decode_with(limits(), bytes, NEXT_FORMAT, CLUSTER, shard)
}
