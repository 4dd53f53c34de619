//! Every kind of message that would make raft panic, or believe what it should not.

use nowserving_replica::{Replica, Role, StepRefused};
use raft::eraftpb::{ConfState, Entry, EntryType, Message, MessageType, Snapshot};

use crate::common::{Cluster, ELECTION_US};

pub fn message(kind: MessageType, from: u64, to: u64, term: u64) -> Message {
    let mut message = Message {
        from,
        to,
        term,
        ..Message::default()
    };
    message.set_msg_type(kind);
    message
}

pub fn entries(of: &[(u64, u64)]) -> protobuf::RepeatedField<Entry> {
    of.iter()
        .map(|&(term, index)| Entry {
            term,
            index,
            ..Entry::default()
        })
        .collect::<Vec<_>>()
        .into()
}

/// A cluster led by node 1, with some entries committed.
fn cluster() -> (Cluster, u64) {
    let mut cluster = Cluster::led_by_1(1);
    for at in 0..5 {
        cluster.commit(1, &format!("{at}"));
    }
    // So that node 3 would vote, were it asked properly.
    let term = cluster.node(1).view().term();
    (cluster, term)
}

/// The message is refused for this reason, and nothing changed.
fn refuses(cluster: &mut Cluster, to: u64, message: Message, why: StepRefused) {
    let now = cluster.clock(to);
    let replica = cluster.node(to).replica();
    let state = |replica: &Replica| {
        (
            replica.term(),
            replica.role(),
            replica.leader(),
            replica.last_index(),
            replica.committed(),
        )
    };
    let before = state(replica);
    assert_eq!(
        replica.step(message.clone().into(), now),
        Err(why),
        "{message:?}"
    );
    assert_eq!(state(replica), before);
    assert!(!replica.has_ready());
}

#[test]
fn wrong_address_or_sender() {
    let (mut cluster, term) = cluster();
    for to in [0, 2, 9] {
        refuses(
            &mut cluster,
            3,
            message(MessageType::MsgHeartbeat, 1, to, term),
            StepRefused::WrongTo(to),
        );
    }
    for from in [0, 3] {
        let message = message(MessageType::MsgHeartbeat, from, 3, term);
        refuses(&mut cluster, 3, message, StepRefused::WrongFrom(from));
    }
    // These may be members whose addition is not applied here yet; but another node leads this term.
    for from in [4, u64::MAX] {
        let refused = StepRefused::SecondLeader {
            claims: from,
            leads: 1,
        };
        let message = message(MessageType::MsgHeartbeat, from, 3, term);
        refuses(&mut cluster, 3, message, refused);
    }
}

#[test]
fn kinds_that_peers_do_not_send() {
    let (mut cluster, term) = cluster();
    for kind in [
        MessageType::MsgHup,
        MessageType::MsgBeat,
        MessageType::MsgUnreachable,
        MessageType::MsgSnapStatus,
        MessageType::MsgCheckQuorum,
        MessageType::MsgTransferLeader,
        // Empty ones of these two make a leader panic.
        MessageType::MsgPropose,
        MessageType::MsgReadIndex,
        MessageType::MsgReadIndexResp,
    ] {
        refuses(
            &mut cluster,
            3,
            message(kind, 1, 3, term),
            StepRefused::Kind(kind),
        );
        refuses(
            &mut cluster,
            1,
            message(kind, 3, 1, term),
            StepRefused::Kind(kind),
        );
        refuses(
            &mut cluster,
            1,
            message(kind, 3, 1, 0),
            StepRefused::Kind(kind),
        );
    }
}

#[test]
fn snapshots() {
    let (mut cluster, term) = cluster();
    let mut snapshot = Snapshot::default();
    snapshot.mut_metadata().index = 1_000;
    snapshot.mut_metadata().term = term;
    // Overlapping members: raft panics on these.
    let conf = ConfState {
        voters: vec![3, 3],
        learners: vec![3],
        ..ConfState::default()
    };
    snapshot.mut_metadata().set_conf_state(conf);
    let mut offer = message(MessageType::MsgSnapshot, 1, 3, term);
    offer.set_snapshot(snapshot);
    refuses(&mut cluster, 3, offer, StepRefused::Members);
    let mut request = message(MessageType::MsgAppendResponse, 3, 1, term);
    (request.reject, request.request_snapshot) = (true, 5);
    refuses(&mut cluster, 1, request, StepRefused::Snapshot);
}

#[test]
fn absurd_numbers() {
    let (mut cluster, term) = cluster();
    for absurd in [0, term + (1 << 32) + 1, u64::MAX] {
        for kind in [
            MessageType::MsgAppend,
            MessageType::MsgHeartbeat,
            MessageType::MsgRequestVote,
        ] {
            refuses(
                &mut cluster,
                3,
                message(kind, 1, 3, absurd),
                StepRefused::AbsurdTerm(absurd),
            );
        }
    }
    let mut later = message(MessageType::MsgAppend, 1, 3, term);
    (later.index, later.log_term) = (1, term + 1);
    refuses(&mut cluster, 3, later, StepRefused::AbsurdTerm(term + 1));
    for absurd in [1 << 62, u64::MAX] {
        let base = message(MessageType::MsgAppendResponse, 3, 1, term);
        for bad in [
            Message {
                index: absurd,
                ..base.clone()
            },
            Message {
                commit: absurd,
                ..base.clone()
            },
            Message {
                reject: true,
                reject_hint: absurd,
                ..base.clone()
            },
        ] {
            refuses(&mut cluster, 1, bad, StepRefused::AbsurdIndex(absurd));
        }
    }
}

#[test]
fn commit_past_the_log() {
    let (mut cluster, term) = cluster();
    let last = cluster.node(3).view().last_index();
    let mut beat = message(MessageType::MsgHeartbeat, 1, 3, term);
    beat.commit = last + 1;
    refuses(
        &mut cluster,
        3,
        beat,
        StepRefused::CommitPastLog {
            commit: last + 1,
            last,
        },
    );
}

#[test]
fn malformed_entries() {
    let (mut cluster, term) = cluster();
    let last = cluster.node(3).view().last_index();
    let base = Message {
        index: last,
        log_term: term,
        ..message(MessageType::MsgAppend, 1, 3, term)
    };
    for (bad, at) in [
        // Past the end, with the term that raft believes is there.
        (
            Message {
                index: last + 50,
                log_term: 0,
                ..base.clone()
            },
            last + 50,
        ),
        (
            Message {
                index: 0,
                log_term: term,
                ..base.clone()
            },
            0,
        ),
        (
            Message {
                entries: entries(&[(term, last + 2)]),
                ..base.clone()
            },
            last + 1,
        ),
        (
            Message {
                entries: entries(&[(term, last + 1), (term, last + 1)]),
                ..base.clone()
            },
            last + 2,
        ),
        (
            Message {
                entries: entries(&[(term, last + 1), (term, last + 3)]),
                ..base.clone()
            },
            last + 2,
        ),
        (
            Message {
                entries: entries(&[(0, last + 1)]),
                ..base.clone()
            },
            last + 1,
        ),
        (
            Message {
                entries: entries(&[(term + 1, last + 1)]),
                ..base.clone()
            },
            last + 1,
        ),
    ] {
        refuses(&mut cluster, 3, bad, StepRefused::MalformedEntries(at));
    }
    let mut falling = Message {
        term: term + 2,
        entries: entries(&[(term + 2, last + 1), (term, last + 2)]),
        ..base
    };
    refuses(
        &mut cluster,
        3,
        falling.clone(),
        StepRefused::MalformedEntries(last + 2),
    );
    falling.entries = entries(&[(term + 2, last + 1)]);
    for (kind, data) in [
        (EntryType::EntryConfChange, &b""[..]),
        (EntryType::EntryConfChangeV2, b"no message"),
    ] {
        falling.entries[0].set_entry_type(kind);
        falling.entries[0].data = data.into();
        let refused = StepRefused::ConfChange(last + 1);
        refuses(&mut cluster, 3, falling.clone(), refused);
    }
}

#[test]
fn conflicts_with_what_is_committed() {
    let (mut cluster, term) = cluster();
    let committed = cluster.node(3).view().committed();
    let base = Message {
        log_term: term,
        ..message(MessageType::MsgAppend, 1, 3, term + 1)
    };
    let conflict = Message {
        index: 2,
        entries: entries(&[(term + 1, 3)]),
        ..base.clone()
    };
    refuses(
        &mut cluster,
        3,
        conflict,
        StepRefused::ConflictsWithCommitted(3),
    );
    let conflict = Message {
        index: committed,
        log_term: term + 1,
        ..base.clone()
    };
    refuses(
        &mut cluster,
        3,
        conflict,
        StepRefused::ConflictsWithCommitted(committed),
    );
    let within = Message {
        index: committed - 1,
        entries: entries(&[(term + 1, committed)]),
        ..base
    };
    refuses(
        &mut cluster,
        3,
        within,
        StepRefused::ConflictsWithCommitted(committed),
    );
}

#[test]
fn acknowledgements_of_what_does_not_exist() {
    let (mut cluster, term) = cluster();
    let last = cluster.node(1).view().last_index();
    let base = message(MessageType::MsgAppendResponse, 3, 1, term);
    let why = StepRefused::AckPastLog {
        index: last + 1,
        last,
    };
    refuses(
        &mut cluster,
        1,
        Message {
            index: last + 1,
            ..base.clone()
        },
        why,
    );
    refuses(
        &mut cluster,
        1,
        Message {
            reject: true,
            reject_hint: last + 1,
            ..base
        },
        why,
    );
}

#[test]
fn a_second_leader_of_a_term() {
    let (mut cluster, term) = cluster();
    let why = StepRefused::SecondLeader {
        claims: 2,
        leads: 1,
    };
    for kind in [
        MessageType::MsgAppend,
        MessageType::MsgHeartbeat,
        MessageType::MsgTimeoutNow,
    ] {
        refuses(&mut cluster, 3, message(kind, 2, 3, term), why);
        refuses(&mut cluster, 1, message(kind, 2, 1, term), why);
    }
}

#[test]
fn votes_that_nobody_asked_for() {
    let (mut cluster, _) = cluster();
    cluster.isolate(3);
    cluster.filter = Some(Box::new(|_| false));
    // A pre-vote that is granted makes it a candidate, whose own vote is not on disk before the turn.
    cluster.run_until("3 tries", |cluster| {
        cluster.node(3).view().role() == Role::Candidate
    });
    let now = cluster.clock(3);
    let next = cluster.node(3).view().term() + 1;
    let granted = message(MessageType::MsgRequestPreVoteResponse, 2, 3, next);
    cluster.node(3).replica().step(granted.into(), now).unwrap();
    assert_eq!(cluster.node(3).view().term(), next);
    let vote = message(MessageType::MsgRequestVoteResponse, 2, 3, next);
    assert_eq!(
        cluster.node(3).replica().step(vote.clone().into(), now),
        Err(StepRefused::UnaskedVote)
    );
    cluster.run(5_000);
    cluster.node(3).replica().step(vote.into(), now).unwrap();
    assert_eq!(
        cluster.node(3).view().role(),
        Role::Leader,
        "after that it counts"
    );
}

#[test]
fn votes_while_a_leader_is_alive() {
    let (mut cluster, term) = cluster();
    cluster.run(ELECTION_US + ELECTION_US / 2);
    for kind in [MessageType::MsgRequestPreVote, MessageType::MsgRequestVote] {
        let request = Message {
            index: 99,
            log_term: term,
            ..message(kind, 2, 3, term + 1)
        };
        refuses(&mut cluster, 3, request, StepRefused::LeaderAlive);
    }
    assert!(StepRefused::LeaderAlive.is_expected() && !StepRefused::Snapshot.is_expected());
}
