//! Changes of the members, and a node that does not know its peers.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_line::{Op, Settings};
use nowserving_log::MemoryLog;

use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::members::{Members, MembersChange, MembersRefused, MembersRequest};
use nowserving_shard::requests::{Origin, RequestId};
use raft::eraftpb::MessageType;

use crate::delivery::{ShardDelivery, Via};
use crate::envelope::Candidate;
use crate::envelope::Verdict;
use crate::frames::{PeerBatch, PeerFrame};
use crate::io::{ExitReason, ForwardResult, Input, Now, Output, RelayedAnswer};
use crate::peers::contact::{PeerHeader, Refusal, Standing};
use crate::request::{Ask, Outcome, ReplyBody};
use crate::rig::{BOOT, ELECTION_MS, Rig, START, enter, message, name};
use crate::snapshots::LAG_MAX;

/// A frame of node 4, which is no member; returns the frames that node 1 sends to it.
fn frame(rig: &mut Rig, members: Option<Members>, refused: &str) -> Vec<PeerBatch> {
    refused_frame(rig, members, refused, Refusal::of_stranger(4))
}

/// A frame of node 4 that is not taken.
fn refused_frame(
    rig: &mut Rig,
    members: Option<Members>,
    refused: &str,
    why: Refusal,
) -> Vec<PeerBatch> {
    rig.now += 1_000_000;
    let verdict = Verdict {
        start: START,
        refused: refused.to_owned(),
        ..Verdict::default()
    };
    let frame = PeerFrame {
        from: 4,
        header: PeerHeader {
            cluster_id: 0,
            start: Some(4),
            in_touch: true,
            in_no_group: false,
            verdicts: vec![verdict],
            members_version: 5,
            members,
        },
        body: Err(why),
    };
    let now = Now {
        us: rig.now,
        wall_ms: 0,
    };
    let mut outputs = Vec::new();
    let input = Input::Frame(Box::new(frame));
    rig.engine.step(now, input, &mut outputs);
    let to_4 = |output| match output {
        Output::Frame { to: 4, batch } => Some(batch),
        _ => None,
    };
    outputs.into_iter().filter_map(to_4).collect()
}

/// Its disk is empty, and the nodes in its configuration are gone.
#[test]
fn a_node_learns_of_its_peers_from_nodes_that_it_does_not_know() {
    let mut rig = Rig::waiting(&[1, 2, 3], None, Arc::new(MemoryLog::new()), BOOT);
    let asked = frame(&mut rig, None, "another disk");
    let versions: Vec<u64> = asked.iter().map(|it| it.members_version).collect();
    assert_eq!(versions, [0], "it says how old its members are");
    let members = Members {
        version: 5,
        ..Members::begin(&[1, 4, 5], 0)
    };
    frame(&mut rig, Some(members), "another disk");
    assert!(rig.engine.membership.peers.contains(&4));
    let of_disk = Refusal::of_disk("another disk".to_owned());
    refused_frame(&mut rig, None, "another disk", of_disk);
    assert!(matches!(
        rig.engine.contact.standing(rig.now),
        Standing::Refused(_)
    ));
}

/// Its frames are checked by another thread, which learns of new members later. A node that is told that it is none
/// would take no part until it hears otherwise.
#[test]
fn a_new_member_whose_frame_was_checked_before_it_was_known_is_not_refused() {
    let mut rig = Rig::new(&[1, 2, 3]);
    let members = Members {
        version: 5,
        ..Members::begin(&[1, 3, 4], 0)
    };
    frame(&mut rig, Some(members), "");
    frame(&mut rig, None, "");
    let verdicts = rig.engine.contact.verdicts(4, rig.now);
    assert!(verdicts.is_empty(), "{verdicts:?}");
}

/// The leader of three nodes, which have written down their members.
pub fn of_three() -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    while rig.state().members().wanted().version == 0 {
        rig.now += 1_000_000;
        rig.hears(3, "", Vec::new());
        commit(&mut rig);
    }
    for peer in [2, 3] {
        rig.hears(peer, "", Vec::new());
    }
    rig
}

pub fn commit(rig: &mut Rig) {
    rig.turn();
    rig.acknowledge();
}

/// A node with another id for each message passes it on.
pub fn ask(rig: &mut Rig, change: MembersChange, id: u128) {
    let ask = Ask::Members(Box::new(MembersRequest {
        change,
        if_version: None,
        by: String::new(),
        reason: String::new(),
    }));
    let (mut request, delivery) = rig.message(ask, rig.now + 1_000_000_000, Via::Forwarded);
    request.id = Some(RequestId {
        key: id,
        origin: Origin::Forwarder,
    });
    rig.input(Input::Request { request, delivery });
}

/// For each answer the version that has the change, or the code of its error.
pub fn answers(rig: &mut Rig) -> Vec<Result<u64, Code>> {
    let version = |result: Result<Outcome, ApiError>| match result {
        Ok(Outcome::Reply(ReplyBody::MembersChanged(reply))) => Ok(reply.members_version),
        other => Err(other.unwrap_err().code),
    };
    rig.answers().into_iter().map(version).collect()
}

fn drain(drained: bool) -> MembersChange {
    MembersChange::Drain { id: 2, drained }
}

/// The new node would be the only member, with number 0.
#[test]
fn no_node_is_added_before_the_first_members_are_written_down() {
    let mut rig = Rig::new(&[1, 2, 3]);
    asks(&mut rig, 7);
    let mut request = MembersRequest {
        change: MembersChange::Add { disk_id: 7 },
        if_version: None,
        by: String::new(),
        reason: String::new(),
    };
    let checked = rig
        .engine
        .check_members_request(&mut request, None, rig.now);
    assert_eq!(checked, Err(MembersRefused::NotBegun));
}

#[test]
fn of_two_changes_in_one_turn_the_log_takes_one() {
    let mut rig = of_three();
    ask(&mut rig, MembersChange::Remove { id: 2 }, 1);
    ask(&mut rig, MembersChange::Remove { id: 3 }, 2);
    commit(&mut rig);
    assert_eq!(answers(&mut rig), [Ok(2), Err(Code::VersionConflict)]);
    let wanted = rig.state().members().wanted();
    assert_eq!(wanted.nodes.keys().collect::<Vec<_>>(), [&1, &3]);
}

#[test]
fn a_late_copy_of_a_change_has_no_effect() {
    let mut rig = of_three();
    for (drained, id) in [(true, 1), (false, 2), (true, 1)] {
        ask(&mut rig, drain(drained), id);
        commit(&mut rig);
    }
    assert_eq!(answers(&mut rig), [Ok(2), Ok(3), Ok(2)]);
    assert!(!rig.state().members().wanted().nodes[&2].drained);
}

/// Leads for so long, with frames of these peers.
fn lead_for(rig: &mut Rig, us: u64, peers: &[u64]) {
    let until = rig.now + us;
    while rig.now < until {
        for peer in peers {
            rig.hears(*peer, "", Vec::new());
        }
        rig.lead();
    }
}

#[test]
fn a_node_is_preferred_for_shards_that_it_can_take_over_now() {
    let prefer = |to| MembersChange::Prefer {
        shards: vec![0],
        to: Some(to),
    };
    let mut rig = of_three();
    lead_for(&mut rig, 1_500_000, &[2, 3]);
    // Node 3 sends frames, and acknowledges no entry.
    let caught_up = |rig: &Rig, id| {
        let (shards, clocks) = (&rig.engine.shards, &rig.engine.ctx.clocks);
        rig.engine.lagging.caught_up_in(id, shards, clocks, rig.now)
    };
    assert_eq!([1, 2, 3].map(|id| caught_up(&rig, id)), [1, 1, 0]);
    ask(&mut rig, prefer(2), 1);
    commit(&mut rig);
    rig.peer_disk(2, true);
    ask(&mut rig, prefer(2), 2);
    // Repeated, it has the answer of the first.
    ask(&mut rig, prefer(2), 1);
    commit(&mut rig);
    rig.peer_disk(2, false);
    ask(&mut rig, prefer(9), 3);
    let refused = Err(Code::MembersRefused);
    let unknown = Err(Code::NodeNotFound);
    assert_eq!(answers(&mut rig), [Ok(2), refused, Ok(2), unknown]);
    rig.hears(3, "", Vec::new());
    ask(&mut rig, prefer(3), 5);
    let lags = rig.answers().remove(0).unwrap_err();
    let passes = (Code::MembersRefused, Some(1_000));
    assert_eq!((lags.code, lags.retry_after_ms), passes, "{lags}");
    // Silent.
    lead_for(&mut rig, 2_000_000, &[2]);
    ask(&mut rig, prefer(3), 4);
    assert_eq!(answers(&mut rig), [refused]);
}

/// Under load a peer always lacks the newest entries.
#[test]
fn a_peer_keeps_up_that_has_what_the_log_had_at_the_last_look() {
    let mut rig = of_three();
    let keeps_up = |rig: &Rig, id| {
        let progress = rig.replica().progress_of(id).unwrap();
        (
            progress.lag > LAG_MAX,
            rig.shard().leading.keeps_up(&progress),
        )
    };
    rig.engine.lagging.find(&mut rig.engine.shards);
    for nth in 0..=LAG_MAX {
        let (line, settings) = (name(&format!("line-{nth}")), Settings::new(1, 1));
        rig.write(Op::Create { line, settings });
        rig.turn();
    }
    assert_eq!(keeps_up(&rig, 2), (true, true));
    assert_eq!(keeps_up(&rig, 3), (true, false), "it acknowledges nothing");
    rig.engine.lagging.find(&mut rig.engine.shards);
    assert_eq!(keeps_up(&rig, 2), (true, false));
    rig.acknowledge();
    assert_eq!(keeps_up(&rig, 2), (false, true));
}

/// The disk of the first one hangs: it answers heartbeats, and never stands for election.
#[test]
fn a_hand_over_that_failed_is_tried_with_another_peer() {
    let mut rig = of_three();
    ask(
        &mut rig,
        MembersChange::Drain {
            id: 1,
            drained: true,
        },
        1,
    );
    commit(&mut rig);
    let mut offered = Vec::new();
    let until = rig.now + 3 * ELECTION_MS * 1_000;
    while rig.now < until && rig.is_leader() {
        rig.now += 100_000;
        rig.engine.ctx.reachability.skip(rig.now);
        rig.input(Input::ProbeEchoed { sent_at: rig.now });
        let mut has_all = message(MessageType::MsgAppendResponse, 3, rig.replica().term());
        has_all.index = rig.replica().last_index();
        rig.hears(2, "", Vec::new());
        rig.hears(3, "", vec![has_all]);
        rig.turn();
        rig.answer_for_peer_2();
        offered.extend(rig.shard().offer_of_term().map(|it| it.to));
    }
    offered.dedup();
    assert!(offered.starts_with(&[2, 3]), "{offered:?}");
}

#[test]
fn a_drained_node_is_preferred_for_nothing() {
    let mut rig = of_three();
    ask(&mut rig, drain(true), 1);
    commit(&mut rig);
    let prefer = MembersChange::Prefer {
        shards: vec![0],
        to: Some(2),
    };
    ask(&mut rig, prefer, 2);
    assert_eq!(answers(&mut rig), [Ok(2), Err(Code::MembersRefused)]);
}

fn asks(rig: &mut Rig, disk_id: u64) {
    rig.input(Input::Candidate(Candidate {
        disk_id,
        ..Candidate::default()
    }));
}

/// With an empty disk a machine knows only the number in its configuration, which may have been removed.
#[test]
fn of_a_candidate_only_the_number_of_a_member_is_shown() {
    let mut rig = of_three();
    // Node 3 is silent by then.
    rig.now += 60_000_000;
    for (disk_id, number) in [(40, 3), (50, 9), (60, 0)] {
        rig.input(Input::Candidate(Candidate {
            disk_id,
            number,
            ..Candidate::default()
        }));
    }
    let shown = rig
        .engine
        .candidates
        .status(&rig.engine.membership.wanted, rig.now)
        .into_iter();
    let shown: Vec<_> = shown.map(|it| (it.disk.0, it.node)).collect();
    assert_eq!(shown, [(40, Some(3)), (50, None), (60, None)]);
}

#[test]
fn a_node_without_a_vote_is_preferred_for_nothing() {
    let mut rig = of_three();
    asks(&mut rig, 40);
    ask(&mut rig, MembersChange::Add { disk_id: 40 }, 1);
    while rig.replica().members().learners.is_empty() {
        lead_for(&mut rig, 1_000_000, &[3]);
    }
    answers(&mut rig);
    let term = rig.replica().term();
    let mut has_all = message(MessageType::MsgAppendResponse, 4, term);
    has_all.index = rig.replica().last_index();
    rig.hears(4, "", vec![has_all]);
    assert_eq!(rig.replica().members().learners, [4]);
    let prefer = MembersChange::Prefer {
        shards: vec![0],
        to: Some(4),
    };
    ask(&mut rig, prefer, 2);
    assert_eq!(answers(&mut rig), [Err(Code::MembersRefused)]);
}

#[test]
fn a_copy_of_a_refused_change_is_refused() {
    let mut rig = of_three();
    let add = MembersChange::Add { disk_id: 40 };
    ask(&mut rig, add.clone(), 1);
    asks(&mut rig, 40);
    ask(&mut rig, add.clone(), 1);
    ask(&mut rig, add, 2);
    commit(&mut rig);
    let refused = Err(Code::NodeNotFound);
    assert_eq!(answers(&mut rig), [refused, refused, Ok(2)]);
}

#[test]
fn a_change_that_came_too_early_is_made_when_it_is_repeated() {
    let mut rig = of_three();
    asks(&mut rig, 40);
    ask(&mut rig, MembersChange::Add { disk_id: 40 }, 1);
    commit(&mut rig);
    asks(&mut rig, 50);
    let add = MembersChange::Add { disk_id: 50 };
    ask(&mut rig, add.clone(), 2);
    ask(&mut rig, MembersChange::Remove { id: 4 }, 3);
    commit(&mut rig);
    ask(&mut rig, add, 2);
    commit(&mut rig);
    let changing = Err(Code::MembersChanging);
    assert_eq!(answers(&mut rig), [Ok(2), changing, Ok(3), Ok(4)]);
}

#[test]
fn a_replacement_that_never_came_is_replaced_and_not_removed() {
    let mut rig = of_three();
    asks(&mut rig, 40);
    ask(&mut rig, MembersChange::Replace { id: 3, disk_id: 40 }, 1);
    commit(&mut rig);
    ask(&mut rig, MembersChange::Remove { id: 4 }, 2);
    asks(&mut rig, 50);
    ask(&mut rig, MembersChange::Replace { id: 4, disk_id: 50 }, 3);
    commit(&mut rig);
    let changing = Err(Code::MembersChanging);
    assert_eq!(answers(&mut rig), [Ok(2), changing, Ok(3)]);
}

/// The members of a cluster with these nodes.
fn members_of(version: u64, cluster_id: u64) -> Members {
    Members {
        version,
        ..Members::begin(&[1, 2, 3], cluster_id)
    }
}

/// A frame of that cluster, from node 2, which is no member here.
fn other_cluster(rig: &mut Rig, version: u64, cluster_id: u64) {
    let frame = PeerFrame {
        from: 2,
        header: PeerHeader {
            cluster_id,
            start: Some(2),
            in_touch: true,
            members_version: version,
            members: Some(members_of(version, cluster_id)),
            ..PeerHeader::default()
        },
        body: Err(Refusal::of_stranger(2)),
    };
    rig.input(Input::Frame(Box::new(frame)));
}

/// The only node that the cluster began with lost its disk while all others were away.
#[test]
fn a_cluster_that_was_founded_twice_gives_way() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    while rig.state().members().wanted().version == 0 {
        rig.now += 1_000_000;
        commit(&mut rig);
    }
    let own = rig.state().members().wanted().cluster_id;
    let mut stays = |version, cluster_id| {
        let members = members_of(version, cluster_id);
        rig.input(Input::OtherCluster(Box::new(members)));
        rig.engine.contact.is_in_touch()
    };
    assert!(stays(1, own ^ 1), "it is not older");
    assert!(stays(5, 0), "of no identity");
    assert!(!stays(5, own ^ 1));
    assert!(rig.engine.membership.is_candidate());
    let standing = rig.engine.contact.standing(rig.now);
    assert!(matches!(standing, Standing::Refused(_)));
    commit(&mut rig);
    assert!(!rig.engine.contact.is_in_touch());
}

/// It hears of the other cluster before its own has an id.
#[test]
fn a_cluster_gives_way_also_if_it_learned_of_the_other_first() {
    let mut rig = Rig::new(&[1]);
    other_cluster(&mut rig, 5, 9);
    assert_eq!(rig.engine.membership.wanted.cluster_id, 9);
    rig.lead();
    for _ in 0..20 {
        rig.now += 1_000_000;
        commit(&mut rig);
    }
    assert!(!rig.engine.contact.is_in_touch());
}

/// As above, but the other one is no older: otherwise this node would take its own peers for foreign ones.
#[test]
fn the_members_of_its_own_groups_count_before_those_of_another_cluster() {
    let mut rig = Rig::new(&[1]);
    other_cluster(&mut rig, 1, 9);
    assert_eq!(rig.engine.membership.wanted.cluster_id, 9);
    rig.lead();
    while rig.state().members().wanted().version == 0 {
        rig.now += 1_000_000;
        commit(&mut rig);
    }
    rig.turn();
    let own = rig.state().members().wanted().clone();
    assert_ne!(own.cluster_id, 9);
    assert_eq!(rig.engine.membership.wanted, own);
}

/// It was founded by mistake, with the same name, key and numbers.
#[test]
fn a_second_cluster_is_not_believed_in_anything() {
    let mut rig = of_three();
    let own = rig.state().members().wanted().clone();
    let foreign = own.cluster_id ^ 1;
    let mut without_1 = members_of(9, foreign);
    without_1.nodes.remove(&1);
    for peer in [2, 3] {
        let later = message(MessageType::MsgHeartbeat, peer, 99);
        let mut frame = rig.frame(peer, "node 1 was removed from the cluster", vec![later]);
        frame.header.cluster_id = foreign;
        frame.header.verdicts[0].removed = true;
        frame.header.members_version = 9;
        frame.header.members = Some(without_1.clone());
        rig.receive(frame);
    }
    assert_eq!(rig.exit, None);
    assert!(rig.engine.contact.is_in_touch());
    assert!(rig.shard().serves_as_leader());
    assert_eq!(rig.engine.membership.wanted, own);
    for node in &rig.engine.cluster_status(rig.now).nodes[1..] {
        let refused = node.refused.as_deref().unwrap_or_default();
        assert!(refused.contains("another cluster"), "{refused:?}");
    }
}

#[test]
fn a_node_that_was_added_and_never_came_is_taken_back() {
    let mut rig = of_three();
    asks(&mut rig, 40);
    ask(&mut rig, MembersChange::Add { disk_id: 40 }, 1);
    commit(&mut rig);
    asks(&mut rig, 50);
    for (change, id) in [
        (MembersChange::Remove { id: 3 }, 2),
        (MembersChange::Add { disk_id: 50 }, 3),
        (MembersChange::Replace { id: 4, disk_id: 50 }, 4),
        (MembersChange::Remove { id: 5 }, 5),
    ] {
        ask(&mut rig, change, id);
        commit(&mut rig);
    }
    let changing = Err(Code::MembersChanging);
    assert_eq!(answers(&mut rig), [Ok(2), changing, changing, Ok(3), Ok(4)]);
}

/// It may lead a group of which this node has nothing yet, and count there.
#[test]
fn a_removed_node_stays_a_peer_until_every_group_is_known_to_be_without_it() {
    let mut rig = Rig::waiting(&[1, 2, 3], None, Arc::new(MemoryLog::new()), BOOT);
    let mut members = Members::begin(&[1, 4, 5, 6], 0);
    members.version = 5;
    members.nodes.remove(&4);
    let answers = frame(&mut rig, Some(members), "");
    let farewell = |batch: &PeerBatch| batch.verdicts.iter().any(|verdict| verdict.removed);
    assert!(!answers.iter().any(farewell));
    assert!(rig.engine.membership.peers.contains(&4));
}

/// Requests that were routed to it before it unsubscribed are still answered.
#[test]
fn a_removed_node_drains_before_it_ends() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.step(message(MessageType::MsgHeartbeat, 2, 5));
    let mut farewell = rig.frame(2, "node 1 was removed from the cluster", Vec::new());
    farewell.header.verdicts[0].removed = true;
    let mut members = Members::begin(&[1, 2, 3], 0);
    members.version = 5;
    members.nodes.remove(&1);
    farewell.header.members = Some(members);
    rig.receive(farewell);
    assert_eq!(rig.exit, None);
    let far = rig.now + 10_000_000;
    let draining = Via::Shard(ShardDelivery::Draining);
    rig.request(Ask::Write(enter("late")), far, draining);
    let id = rig.forwards.pop().unwrap().id;
    rig.now += 600_000;
    rig.turn();
    assert_eq!(rig.exit, None, "it waits for the leader's answer");
    let result = ForwardResult::Answered {
        error: None,
        answer: RelayedAnswer {
            headers: Vec::new(),
            payload: Vec::new().into(),
        },
    };
    rig.input(Input::Forwarded { id, result });
    rig.turn();
    assert_eq!(rig.exit, Some(ExitReason::Removed));
}
