//! Advice to the operator of a damaged data directory, shown together with the damage.

use nowserving_log::LogError;
use nowserving_replica::NewError;
use nowserving_shard::snapshot::SnapshotError;

use crate::checked_file::Damaged;
use crate::identity::IdentityError;
use nowserving_engine::agreement::StateDiffers;

const LOG: &str = "The other nodes have everything that was acknowledged, and serve without this \
    one. Keep this directory: the others refuse a node that comes back without it, or with a copy \
    made before its last start. If you have a copy made since then while the node was stopped, put \
    the file back from it and start again. Check the disk first.";

const SNAPSHOT: &str = "Copy snap/shard-<shard>.snap from the data directory of another node of this \
    cluster (it may be running) over this node's own and start again. One that ends before the log of this \
    node begins is refused: try the other nodes. Check the disk first.";

const IDENTITY: &str = "Put the file back from a copy made since the last start of this node. \
    Without it the other nodes refuse this one. Check the disk first.";

const STATE: &str = "This node has stopped, the others serve. Start it again: it reads its state anew \
    from its disk. If that ends here again, its snapshot is wrong: copy snap/shard-<shard>.snap from \
    another node over its own and start again. (A snapshot that does not fit this node's log is refused: try the \
    other nodes.) Check its memory and disk.";

const PEERS: &str = "Put the file back from a copy. Or, if you are sure that no other node of this \
    cluster has lost its disk, delete it: it is made anew from what the others send. Check the disk \
    first.";

/// Adds what can be done, if `error` is damage on this node's disk.
#[must_use]
pub fn advise(error: anyhow::Error) -> anyhow::Error {
    match advice_for(&error) {
        Some(advice) => anyhow::anyhow!("{error:#}. {advice}"),
        None => error,
    }
}

/// Whether `error` is damage on this node's disk.
#[must_use]
pub fn is_damage(error: &anyhow::Error) -> bool {
    advice_for(error).is_some()
}

/// What can be done about `error`, if it is damage on this node's disk.
#[must_use]
pub fn advice_for(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(advice)
}

fn advice(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(LogError::Lost { .. }) = cause.downcast_ref() {
        return Some(LOG);
    }
    if cause.is::<StateDiffers>() {
        return Some(STATE);
    }
    if let Some(IdentityError::Unreadable(error)) = cause.downcast_ref() {
        return error.is::<Damaged>().then_some(IDENTITY);
    }
    if cause.is::<Damaged>() {
        return Some(PEERS);
    }
    match cause.downcast_ref::<NewError>() {
        Some(NewError::LogLost { .. }) => Some(LOG),
        Some(NewError::ForeignSnapshot { .. }) => Some(SNAPSHOT),
        Some(NewError::Config { .. } | NewError::Read(_)) => None,
        None => cause.is::<SnapshotError>().then_some(SNAPSHOT),
    }
}
