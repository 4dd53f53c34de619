//! The head of a snapshot file as Raft describes snapshots, and back.

use nowserving_replica::{ConfState, SnapshotMeta};
use nowserving_shard::snapshot::Header;

/// The head of a shard's snapshot.
#[must_use]
pub fn header_of(cluster: &str, shard: u32, meta: SnapshotMeta) -> Header {
    let members = meta.conf_state;
    Header {
        cluster: cluster.to_owned(),
        shard,
        index: meta.index,
        term: meta.term,
        voters: members.voters,
        learners: members.learners,
        voters_outgoing: members.voters_outgoing,
        learners_next: members.learners_next,
        auto_leave: members.auto_leave,
    }
}

/// The same for Raft.
#[must_use]
pub fn meta_of(header: Header) -> SnapshotMeta {
    SnapshotMeta {
        index: header.index,
        term: header.term,
        conf_state: ConfState {
            voters: header.voters,
            learners: header.learners,
            voters_outgoing: header.voters_outgoing,
            learners_next: header.learners_next,
            auto_leave: header.auto_leave,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_keeps_all_members() {
        let conf_state = ConfState {
            voters: vec![1, 2],
            learners: vec![3],
            voters_outgoing: vec![2, 4],
            learners_next: vec![4],
            auto_leave: true,
        };
        let meta = SnapshotMeta {
            index: 7,
            term: 3,
            conf_state,
        };
        let header = header_of("test", 5, meta.clone());
        assert_eq!((header.cluster.as_str(), header.shard), ("test", 5));
        assert_eq!(meta_of(header), meta);
    }
}
