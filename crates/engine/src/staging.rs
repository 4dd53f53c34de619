//! The bound on lines that are being restored, for all shards of a node.

use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};

use crate::engine::Engine;

/// The most bytes of parts of lines that are being restored, in all shards: a node has them in memory, and in its
/// snapshots.
const STAGED_BYTES_MAX: u64 = 2 << 30;

impl Engine {
    /// Parts of lines are kept in memory, in each shard up to a bound of its own that must be the same on all nodes.
    pub(crate) fn check_staging(&self, command: &RestoreCommand) -> Result<(), ApiError> {
        let shards = self.shards.values();
        let staged: u64 = shards.map(|shard| shard.state.staged_bytes()).sum();
        let is_part = matches!(command.step, RestoreStep::Part { .. });
        match is_part && staged >= STAGED_BYTES_MAX {
            true => Err(ApiError::new(
                Code::Overloaded,
                format!(
                    "the parts of all lines that are being restored have {STAGED_BYTES_MAX} bytes already"
                ),
            )),
            false => Ok(()),
        }
    }
}
