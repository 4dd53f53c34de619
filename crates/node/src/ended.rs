//! How a node ends.

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to.
    Stopped,
    /// It was added under a new number, and must be started again.
    Renumbered,
}

/// This node was removed from its cluster.
#[derive(Debug, thiserror::Error)]
#[error(
    "this node was removed from the cluster, and no shard has it any more: its data directory can be \
     deleted. To add the machine again, start it with an empty data directory and --join, without id, nodes, \
     cluster and shards in its configuration; then run `nowserving cluster add-node`, or `replace-node` with the \
     number that it had last"
)]
pub struct Removed;
