//! Advice to the operator of a damaged data directory, shown together with the damage.

use nowserving_log::LogError;
use nowserving_replica::NewError;
use nowserving_shard::snapshot::SnapshotError;

use crate::data_dir::DataDirError;
use nowserving_engine::agreement::StateDiffers;
use nowserving_front::cluster::File;
use nowserving_front::cluster::checked_file::Unusable;

/// The way out without any copy; `$advice` is the other one.
macro_rules! or_replace {
    ($advice:literal) => {
        concat!(
            $advice,
            " Or move the directory away, start the node with an empty one, and run `nowserving \
             cluster replace-node <node>`, while a majority of the other nodes is well."
        )
    };
}

const LOG: &str = or_replace!(
    "The other nodes have everything that was acknowledged, and serve without this \
    one. Keep this directory: the others refuse a node that comes back without it, or with a copy \
    made before its last start. If you have a copy made since then while the node was stopped, put \
    the file back from it and start again. Check the disk first."
);

const SNAPSHOT: &str = or_replace!(
    "Copy snap/shard-<shard>.snap from the data directory of another node of this \
    cluster (it may be running) over this node's own and start again. One that ends before the log of this \
    node begins is refused: try the other nodes. Check the disk first."
);

const SNAPSHOT_FORMAT: &str = "Start the build that wrote it.";

const SNAPSHOT_EARLIER: &str = "Start with an empty data directory.";

const IDENTITY: &str = or_replace!(
    "Put the file back from a copy made since the last start of this node. \
    Without it the other nodes refuse this one. Check the disk first."
);

const MEMBERS: &str = or_replace!(
    "Copy members.toml from the data directory of another node of this cluster (it may be \
    running) over this node's own and start again. Check the disk first."
);

const STATE: &str = "This node has stopped, the others serve. Start it again: it reads its state anew \
    from its disk. If that ends here again, its snapshot is wrong: copy snap/shard-<shard>.snap from \
    another node over its own and start again. (A snapshot that does not fit this node's log is refused: try the \
    other nodes.) Check its memory and disk.";

const PEERS: &str = "Delete the file, on no more than one node at a time: it is made anew from what the others send. Check \
    the disk first.";

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
    if let Some(DataDirError::File { source, .. }) = cause.downcast_ref() {
        return match source {
            Unusable::Damaged { file, .. } => Some(match file {
                File::Identity => IDENTITY,
                File::Members => MEMBERS,
                File::Peers => PEERS,
            }),
            _ => None,
        };
    }
    match cause.downcast_ref() {
        Some(SnapshotError::Format { .. }) => return Some(SNAPSHOT_FORMAT),
        Some(SnapshotError::Earlier) => return Some(SNAPSHOT_EARLIER),
        _ => {}
    }
    match cause.downcast_ref::<NewError>() {
        Some(NewError::LogLost { .. }) => Some(LOG),
        Some(NewError::ForeignSnapshot { .. }) => Some(SNAPSHOT),
        Some(NewError::Config { .. } | NewError::Read(_)) => None,
        None => cause.is::<SnapshotError>().then_some(SNAPSHOT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_goes_by_what_is_damaged() {
        let damaged = |file| DataDirError::File {
            path: "data".into(),
            source: Unusable::Damaged {
                file,
                what: "its checksum does not hold".to_owned(),
            },
        };
        for (error, advice) in [
            (SnapshotError::Digest.into(), SNAPSHOT),
            (SnapshotError::Earlier.into(), SNAPSHOT_EARLIER),
            (
                SnapshotError::Format {
                    format: 99,
                    newest: 7,
                }
                .into(),
                SNAPSHOT_FORMAT,
            ),
            (damaged(File::Identity).into(), IDENTITY),
            (damaged(File::Peers).into(), PEERS),
            (damaged(File::Members).into(), MEMBERS),
        ] {
            let error: anyhow::Error = error;
            assert_eq!(advice_for(&error), Some(advice), "{error}");
        }
    }
}
