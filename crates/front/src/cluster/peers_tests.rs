#![allow(clippy::unwrap_used)]
use nowserving_engine::envelope::FrameKey;
use nowserving_protocol::keys::{ClusterKey, LoadedKeys};

use super::*;

fn origin() -> Origin {
    Origin {
        cluster: "c".into(),
        me: 1,
        disk_id: 10,
        boots: 1,
        starts: vec![11],
        metrics_addr: String::new(),
        link_addr: String::new(),
        shards: 16,
        prefix: "nowserving".into(),
        nodes: vec![1, 2, 3],
        election_ms: 750,
        version: String::new(),
    }
}

fn prints() -> Vec<KeyPrint> {
    LoadedKeys::from(ClusterKey::new([1; 32])).prints()
}

fn checked(frame: Frame, peers: &PeerList, known: &mut KnownPeers) -> Result<PeerFrame, NotOurs> {
    let (of, out) = ((&origin(), &prints()[..]), &mut Vec::new());
    check(frame, of, (peers, true), known, out)
}

fn facts() -> NodeFacts {
    NodeFacts {
        shards: 16,
        prefix: "nowserving".into(),
        nodes: vec![1, 2, 3],
        election_ms: 750,
        ..NodeFacts::default()
    }
}

fn peers() -> PeerList {
    PeerList {
        ids: [2, 3].into(),
        members: Members::default(),
    }
}

fn frame() -> Frame {
    Frame {
        cluster: "c".into(),
        from: 2,
        to: 1,
        disk_id: 20,
        boots: 5,
        starts: vec![25],
        seq: 1,
        facts: Some(facts()),
        ..Frame::default()
    }
}

#[test]
fn a_node_that_was_told_other_facts_is_refused_and_its_disk_not_remembered() {
    let mut known = KnownPeers::default();
    let others = [
        (
            NodeFacts {
                shards: 8,
                ..facts()
            },
            "node 2 has 8 shards, node 1 has 16",
        ),
        (
            NodeFacts {
                prefix: "other".into(),
                ..facts()
            },
            "\"other\"",
        ),
        (
            NodeFacts {
                nodes: vec![1, 2],
                ..facts()
            },
            "[1, 2]",
        ),
        (
            NodeFacts {
                election_ms: 1_500,
                ..facts()
            },
            "the election timeout 1500 ms, node 1 has 750 ms",
        ),
        (
            NodeFacts {
                key_id: Some(0),
                ..facts()
            },
            "node 2 has a key file with the key id 0, that of node 1 has 1",
        ),
        (NodeFacts::default(), "0 shards"),
    ];
    for (other, named) in others {
        let strange = Frame {
            disk_id: 99,
            facts: Some(other),
            ..frame()
        };
        let Err(NotOurs::Refused(refused)) = checked(strange, &peers(), &mut known) else {
            panic!("{named}: taken or dropped");
        };
        assert_eq!(refused.header.start, Some(25));
        assert!(reason(&refused).contains(named), "{}", reason(&refused));
    }
    // An older build does not say its key's id.
    let same_key = NodeFacts {
        key_id: Some(1),
        ..facts()
    };
    for (seq, facts) in [(1, facts()), (2, same_key)] {
        let frame = Frame {
            seq,
            facts: Some(facts),
            ..frame()
        };
        let taken = checked(frame, &peers(), &mut known).unwrap();
        assert!(taken.body.is_ok());
    }
}

#[test]
fn a_node_of_another_identity_is_refused_and_its_disk_not_remembered() {
    let mut known = KnownPeers::default();
    let peers = PeerList {
        members: Members::begin(&[1, 2, 3], 7),
        ..peers()
    };
    let foreign = Frame {
        cluster_id: 8,
        disk_id: 99,
        members: Members::begin(&[1, 2, 3], 8).to_bytes().into(),
        ..frame()
    };
    let Err(NotOurs::Refused(refused)) = checked(foreign, &peers, &mut known) else {
        panic!("taken or dropped");
    };
    assert!(reason(&refused).contains("another cluster"));
    assert_eq!(refused.header.members, None);
    // 0: its sender does not know it yet.
    for (seq, cluster_id) in [(1, 0), (2, 7)] {
        let frame = Frame {
            seq,
            cluster_id,
            ..frame()
        };
        assert!(checked(frame, &peers, &mut known).is_ok());
    }
}

#[test]
fn while_the_key_is_rotated_a_peer_may_have_either_in_force() {
    let both = LoadedKeys::from(ClusterKey::new([1; 32])).with_next([2; 32]);
    let both = both.unwrap().prints();
    let theirs = |id: u8, keys: &[LoadedKey]| NodeFacts {
        key_id: Some(id.into()),
        keys: keys.to_vec(),
        ..facts()
    };
    let named: Vec<LoadedKey> = both.iter().map(loaded_key).collect();
    for id in [1, 2] {
        assert_eq!(origin().agrees(2, &theirs(id, &named), &both), Ok(()));
        assert_eq!(origin().agrees(2, &theirs(id, &[]), &both), Ok(()));
    }
    let other = LoadedKey {
        id: 2,
        fingerprint: 5,
    };
    for facts in [theirs(3, &named), theirs(2, &[other])] {
        let refused = origin().agrees(2, &facts, &both).unwrap_err();
        assert!(refused.ends_with("that of node 1 has 1 and 2"), "{refused}");
    }
}

#[test]
fn of_what_cannot_be_opened_the_subject_says_where_it_is_from() {
    let keys = [[1; 32], [2; 32]].map(|secret| FrameKey::of(&ClusterKey::new(secret)));
    let ours = FrameKeys::new(keys[0].clone(), None);
    let open = |cluster: &str, from: Option<u64>, key: &FrameKey| {
        let from = from.map_or("x".to_owned(), |from| from.to_string());
        let message = Message {
            subject: &format!("nowserving.raft.{cluster}.1.{from}"),
            reply: None,
            headers: &(),
            payload: &envelope::seal(key, &frame()).into(),
        };
        let keys = PeerKeys {
            frames: &ours,
            in_force: 1,
            prints: &prints(),
        };
        open(&message, &origin(), keys)
    };
    assert_eq!(open("c", Some(2), &keys[0]).unwrap(), frame());
    assert_eq!(open("c", None, &keys[0]).unwrap(), frame());
    for (cluster, key, named) in [
        ("c", &keys[1], "node 2 fail authentication"),
        ("d", &keys[0], "of cluster \"d\""),
        ("d", &keys[1], "of cluster \"d\""),
    ] {
        let Err(NotOurs::Refused(refused)) = open(cluster, Some(2), key) else {
            panic!("{named}: opened or dropped");
        };
        assert_eq!((refused.from, refused.header.start), (2, None));
        assert!(reason(&refused).contains(named), "{}", reason(&refused));
        let dropped = open(cluster, None, key);
        assert!(matches!(dropped, Err(NotOurs::Dropped(_))));
    }
}

#[test]
fn frames_of_strangers_replays_and_wiped_disks_are_refused() {
    let mut known = KnownPeers::default();
    let mut refused = |frame: Frame| {
        checked(frame, &peers(), &mut known)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    assert_eq!(refused(frame()), "");
    assert!(refused(frame()).contains("double"));
    assert_eq!(refused(Frame { seq: 2, ..frame() }), "");
    assert!(
        refused(Frame {
            cluster: "d".into(),
            seq: 3,
            ..frame()
        })
        .contains("cluster")
    );
    assert!(
        refused(Frame {
            from: 9,
            seq: 3,
            ..frame()
        })
        .contains("no member")
    );
    assert!(
        refused(Frame {
            to: 3,
            seq: 3,
            ..frame()
        })
        .contains("meant for")
    );
    assert!(
        refused(Frame {
            disk_id: 21,
            seq: 3,
            ..frame()
        })
        .contains("another disk")
    );
    // A restart of the process begins a new sequence.
    assert_eq!(
        refused(Frame {
            boots: 6,
            starts: vec![26, 25],
            ..frame()
        }),
        ""
    );
    let message = raft::eraftpb::Message {
        from: 3,
        ..Default::default()
    };
    let forged = ShardMessage {
        shard: 0,
        raft: RaftMessage::from(message).encode().unwrap().into(),
    };
    let frame = Frame {
        boots: 6,
        starts: vec![26, 25],
        seq: 2,
        messages: vec![forged],
        ..frame()
    };
    assert!(refused(frame).contains("message of node 3"));
}

/// Sealed by a member, whatever is in it: a faulty release must not end the others.
#[test]
fn fuzz_a_frame() {
    use prost::Message as _;

    let message = raft::eraftpb::Message {
        from: 2,
        to: 1,
        ..Default::default()
    };
    let whole = Frame {
        members: Members::begin(&[1, 2, 3], 9).to_bytes().into(),
        messages: vec![ShardMessage {
            shard: 3,
            raft: RaftMessage::from(message).encode().unwrap().into(),
        }],
        ..frame()
    };
    let seeds = vec![frame().encode_to_vec(), whole.encode_to_vec()];
    nowserving_testkit::target!(seeds, |bytes| {
        let Ok(frame) = Frame::decode(bytes) else {
            return;
        };
        let mut known = KnownPeers::default();
        let _ = checked(frame, &peers(), &mut known);
    });
}

/// A refusal is reported so often at most, and by the file of peers only a frame whose disk is news.
#[test]
fn what_is_refused_is_reported_now_and_then_and_a_new_disk_is_written_first() {
    let keys = FrameKeys::new(FrameKey::of(&ClusterKey::new([1; 32])), None);
    let mut incoming = Incoming::new(origin(), KnownPeers::default());
    let mut come = |now, from: u64, frame: Frame| {
        let message = Message {
            subject: &format!("nowserving.raft.c.1.{from}"),
            reply: None,
            headers: &(),
            payload: &envelope::seal(keys.current(), &Frame { from, ..frame }).into(),
        };
        let of = PeerKeys {
            frames: &keys,
            in_force: 1,
            prints: &prints(),
        };
        let mut out = Vec::new();
        incoming.on_message(now, &message, of, (&peers(), true), &mut out);
        let kinds = out.iter().map(|it| match it {
            Out::Write(File::Peers, _) => 'w',
            Out::Engine(Input::Frame(frame)) if frame.body.is_ok() => 'f',
            Out::Engine(_) => 'r',
            _ => 'n',
        });
        kinds.collect::<String>()
    };
    assert_eq!(come(0, 2, frame()), "wf");
    assert_eq!(come(1, 2, Frame { seq: 2, ..frame() }), "f");
    assert_eq!(come(2, 9, frame()), "nr");
    assert_eq!(come(3, 9, frame()), "n");
    assert_eq!(come(2 + REFUSAL_INTERVAL_US, 9, frame()), "nr");
}
