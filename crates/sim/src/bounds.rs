//! The bounds of lines, the same on all nodes: small ones, so that work of a few tokens takes several log entries.

use bytes::Bytes;
use nowserving_line::Limits;
use nowserving_shard::snapshot::{self, Header, SnapshotError};
use nowserving_shard::state::State;

use crate::disk::CLUSTER;
use crate::upgrade::NEXT_FORMAT;

/// Tokens that background work ends, admits or draws in one log entry.
const WORK_MAX: u32 = 12;

/// The seed of hashes differs from one restored state to the next, as it does between nodes: nothing depends on it. Few
/// tokens have a table of their keys.
fn limits(hash_seed: usize) -> Limits {
    Limits {
        work_max: WORK_MAX,
        keys_read: 3,
        hash_seed: hash_seed as u64,
        ..Limits::default()
    }
}

/// The state of a shard before its first entry.
pub fn first_state() -> State {
    State::with_limits(limits(0))
}

/// The state in a snapshot.
pub fn decode(bytes: Bytes, shard: u32) -> Result<(Header, State), SnapshotError> {
    snapshot::decode_with(limits(bytes.len()), bytes, NEXT_FORMAT, CLUSTER, shard)
}
