//! Snapshots on their way to and from peers played by hand.
#![allow(clippy::unwrap_used)]

use nowserving_line::{Op, Settings};
use nowserving_replica::{ConfState, SnapshotMeta};
use nowserving_shard::snapshot::DIGEST_BYTES;
use prost::Message as _;
use protobuf::Message as _;
use raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType, Message, MessageType,
    Snapshot,
};

use crate::envelope::{SnapshotChunk, SnapshotRequest};
use crate::io::{Input, NotInstalled, Output, ReceivedState};
use crate::rig::{Rig, config, message, name};
use crate::snapshots::file::SnapshotFile;

const FILE: SnapshotFile = SnapshotFile {
    bytes: 10,
    digest: [7; DIGEST_BYTES],
};

fn meta(index: u64, term: u64) -> SnapshotMeta {
    SnapshotMeta {
        index,
        term,
        conf_state: ConfState::of_voters(&[1, 2, 3]),
    }
}

fn request(offset: u64) -> SnapshotRequest {
    SnapshotRequest {
        shard: 0,
        digest: FILE.digest.to_vec().into(),
        offset,
        refused: false,
    }
}

fn part(offset: u64, bytes: usize) -> SnapshotChunk {
    SnapshotChunk {
        shard: 0,
        digest: FILE.digest.to_vec().into(),
        offset,
        data: vec![1; bytes].into(),
    }
}

fn pass_ms(rig: &mut Rig, ms: u64) {
    rig.now += ms * 1_000;
    rig.input(Input::ProbeEchoed { sent_at: rig.now });
    rig.turn();
}

fn log_has(rig: &mut Rig, log_bytes: u64) {
    let shards = vec![0];
    rig.input(Input::FilesPinned { shards, log_bytes });
    pass_ms(rig, 300);
}

/// Peer 3 has the log through `index`, and nothing behind it.
fn third_has(rig: &mut Rig, index: u64) {
    let mut have = message(MessageType::MsgAppendResponse, 3, rig.replica().term());
    have.index = index;
    rig.hears(3, "", vec![have]);
    pass_ms(rig, 300);
}

/// How many snapshots were begun since the last call.
fn made(rig: &mut Rig) -> usize {
    let made = |job: &Output| matches!(job, Output::WriteSnapshot { .. });
    let jobs = std::mem::take(&mut rig.jobs);
    jobs.iter().filter(|job| made(job)).count()
}

/// A leader with a snapshot, and the log compacted through it, which peer 3 fetches. The index in it.
pub fn leader_with_a_slow_peer() -> (Rig, u64) {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    let (line, settings) = (name("shop"), Settings::new(1, 1_000));
    rig.write(Op::Create { line, settings });
    rig.turn();
    rig.acknowledge();
    let (index, term) = (rig.replica().applied(), rig.replica().term());
    log_has(&mut rig, config(&[]).log_bytes_max + 1);
    assert_eq!(made(&mut rig), 1);
    let written = Some((meta(index, term), FILE));
    rig.input(Input::SnapshotWritten { shard: 0, written });
    log_has(&mut rig, config(&[]).log_bytes_max + 1);
    let heard = message(MessageType::MsgHeartbeatResponse, 3, term);
    rig.hears(3, "", vec![heard]);
    assert!(
        rig.replica().awaits_install(3),
        "it was offered the snapshot"
    );
    rig.is_asked(3, request(0));
    assert!(matches!(
        rig.jobs.pop(),
        Some(Output::ReadSnapshot { to: 3, .. })
    ));
    rig.jobs.clear();
    (rig, index)
}

fn enter(rig: &mut Rig, count: u64) {
    for nth in 0..count {
        rig.enter(&nth.to_string());
        rig.turn();
    }
    rig.acknowledge();
}

/// Its leader makes the next one soon: the node can get nothing else.
#[test]
fn a_snapshot_that_could_not_be_written_is_tried_again_soon_and_then_less_often() {
    let mut rig = Rig::new(&[1]);
    rig.lead();
    let mut pauses_ms = Vec::new();
    for _ in 0..6 {
        let failed_at = rig.now;
        while made(&mut rig) == 0 {
            log_has(&mut rig, config(&[]).log_bytes_max + 1);
        }
        // They are due every 250 ms, and looked for every 300 ms here.
        pauses_ms.push((rig.now - failed_at) / 1_000);
        let written = None;
        rig.input(Input::SnapshotWritten { shard: 0, written });
    }
    assert_eq!(pauses_ms, [300, 1_200, 2_100, 4_200, 8_100, 10_200]);
}

#[test]
fn a_transfer_that_comes_further_keeps_the_log_up_to_twice_its_bound() {
    let (mut rig, _) = leader_with_a_slow_peer();
    let max = config(&[]).log_bytes_max;
    for offset in 1..5 {
        let chunk = part(offset, 1);
        rig.input(Input::SnapshotRead { to: 3, chunk });
        enter(&mut rig, 1);
        log_has(&mut rig, 2 * max);
        assert_eq!(made(&mut rig), 0, "peer 3 fetches the one that is there");
    }
    let sent = rig.engine.snapshots_sent(|to| to == 3, rig.now);
    let sent = sent.map(|it| (it.sent_bytes, it.total_bytes));
    assert_eq!(sent, Some((5, FILE.bytes)), "operators see it");
    log_has(&mut rig, 2 * max + 1);
    assert_eq!(made(&mut rig), 1);
}

#[test]
fn a_peer_that_has_installed_a_snapshot_finds_the_log_behind_it() {
    let (mut rig, index) = leader_with_a_slow_peer();
    let max = config(&[]).log_bytes_max;
    let chunk = part(0, 10);
    rig.input(Input::SnapshotRead { to: 3, chunk });
    enter(&mut rig, 200);
    let last = rig.replica().last_index();
    for matched in [index, index + 50, index + 100] {
        third_has(&mut rig, matched);
        enter(&mut rig, 1);
        log_has(&mut rig, max + 1);
        assert_eq!(made(&mut rig), 0, "it lacks many entries");
    }
    third_has(&mut rig, last);
    log_has(&mut rig, max + 1);
    assert_eq!(made(&mut rig), 1);
}

/// A follower that is offered a snapshot by peer 2.
fn offered(rig: &mut Rig) {
    offer(rig, meta(100, 4), FILE);
}

fn offer(rig: &mut Rig, meta: SnapshotMeta, file: SnapshotFile) {
    let mut offer: Message = message(MessageType::MsgSnapshot, 2, 5);
    let mut snapshot = Snapshot::default();
    snapshot.set_metadata(meta.into());
    snapshot.set_data(file.to_data().into());
    offer.set_snapshot(snapshot);
    rig.step(offer);
}

fn stored(rig: &mut Rig, offset: u64) {
    rig.input(Input::SnapshotStored {
        shard: 0,
        file: FILE,
        offset: Some(offset),
    });
    pass_ms(rig, 20);
}

fn received(rig: &mut Rig, state: Result<ReceivedState, NotInstalled>) {
    rig.input(Input::SnapshotReceived {
        shard: 0,
        file: FILE,
        state,
    });
    rig.turn();
}

fn follower_with_the_file(there: u64) -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    offered(&mut rig);
    assert!(matches!(
        rig.jobs.pop(),
        Some(Output::OpenIncoming { shard: 0, .. })
    ));
    stored(&mut rig, there);
    assert_eq!(rig.asked.pop(), Some(request(there)));
    rig.gets(part(there, 10 - there as usize));
    assert!(matches!(rig.jobs.pop(), Some(Output::StoreIncoming { .. })));
    stored(&mut rig, 10);
    assert!(matches!(
        rig.jobs.pop(),
        Some(Output::InstallSnapshot { .. })
    ));
    rig
}

#[test]
fn a_snapshot_is_fetched_and_installed() {
    let mut rig = follower_with_the_file(0);
    let state = ReceivedState(Box::default());
    received(&mut rig, Ok(state));
    assert_eq!(rig.replica().applied(), 100);
}

/// How many parts are asked for in a tenth of a second if each comes at once.
fn parts_in_100_ms(max_payload: usize) -> usize {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.input(Input::MaxPayload(max_payload));
    let file = SnapshotFile {
        bytes: 1 << 40,
        ..FILE
    };
    offer(&mut rig, meta(100, 4), file);
    let mut through = 0;
    for _ in 0..100 {
        for _ in 0..100 {
            let (shard, offset) = (0, Some(through));
            rig.input(Input::SnapshotStored {
                shard,
                file,
                offset,
            });
            rig.turn();
            if rig.asked.last().is_some_and(|it| it.offset == through) {
                rig.gets(part(through, 1));
                through += 1;
            }
        }
        rig.now += 1_000;
        rig.turn();
    }
    rig.asked.len()
}

/// 256 KiB in 20 ms.
#[test]
fn a_snapshot_is_fetched_as_fast_in_small_parts() {
    assert_eq!(parts_in_100_ms(1 << 20), 5 + 1);
    assert_eq!(parts_in_100_ms(64 << 10), 5 * 5 + 1);
}

/// Peer 2 sends committed entries, the last of which makes node 4 a learner. They are more than two turns apply.
fn has_unapplied_change_of_members(rig: &mut Rig) {
    let (last, term) = (rig.replica().last_index(), 3);
    let mut append = message(MessageType::MsgAppend, 2, 5);
    append.index = last;
    append.log_term = rig.replica().term_at(last).unwrap();
    append.entries = (last + 1..last + 5_000)
        .map(|index| Entry {
            term,
            index,
            ..Entry::default()
        })
        .collect();
    let mut learner = ConfChangeSingle::default();
    learner.set_change_type(ConfChangeType::AddLearnerNode);
    learner.node_id = 4;
    let mut change = ConfChangeV2::default();
    change.set_changes(vec![learner].into());
    let entry = append.entries.last_mut().unwrap();
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    entry.data = change.write_to_bytes().unwrap().into();
    append.commit = entry.index;
    let frame = rig.frame(2, "", vec![append]);
    rig.input(Input::Frame(Box::new(frame)));
    rig.input(Input::EndTurn { inbox_empty: true });
    assert!(!rig.shard().committed.is_empty());
    assert_eq!(rig.replica().voters(), [1, 2, 3]);
}

#[test]
fn no_older_change_of_members_is_applied_to_those_of_a_snapshot() {
    let mut rig = Rig::new(&[1, 2, 3]);
    let later = SnapshotMeta {
        conf_state: ConfState::of_voters(&[1, 2, 3, 4, 5]),
        ..meta(10_000, 4)
    };
    offer(&mut rig, later.clone(), FILE);
    stored(&mut rig, 10);
    has_unapplied_change_of_members(&mut rig);
    let state = ReceivedState(Box::default());
    received(&mut rig, Ok(state));
    assert_eq!(rig.replica().applied(), later.index);
    assert_eq!(rig.replica().voters(), [1, 2, 3, 4, 5]);
    assert_eq!(rig.replica().members().learners, [0; 0]);
}

#[test]
fn a_file_that_was_refused_is_not_fetched_again_for_a_minute() {
    let mut rig = follower_with_the_file(0);
    received(&mut rig, Err(NotInstalled::Refused));
    assert!(rig.asked.pop().unwrap().refused);
    assert_eq!(rig.engine.refuses_snapshots(rig.now), 1);
    offered(&mut rig);
    pass_ms(&mut rig, 59_000);
    offered(&mut rig);
    assert_eq!(rig.jobs, []);
    pass_ms(&mut rig, 2_000);
    assert_eq!(rig.engine.refuses_snapshots(rig.now), 0);
    offered(&mut rig);
    assert_eq!(rig.jobs.len(), 1);
}

/// A crash may have torn what an earlier start fetched.
#[test]
fn a_refused_file_that_was_there_in_part_is_fetched_again_at_once() {
    let mut rig = follower_with_the_file(4);
    received(&mut rig, Err(NotInstalled::Refused));
    offered(&mut rig);
    assert_eq!(rig.jobs.len(), 1);
}

#[test]
fn a_full_disk_gets_no_snapshot_until_there_is_room() {
    let mut rig = Rig::new(&[1, 2, 3]);
    offered(&mut rig);
    stored(&mut rig, 4);
    rig.jobs.clear();
    rig.input(Input::DiskFull(true));
    assert_eq!(rig.jobs, [Output::DropIncoming { shard: 0 }]);
    rig.jobs.clear();
    offered(&mut rig);
    // The part that was on its way, and the answer to a job that the disk's thread had.
    rig.gets(part(4, 6));
    stored(&mut rig, 10);
    assert_eq!(rig.jobs, []);
    rig.input(Input::DiskFull(false));
    offered(&mut rig);
    assert_eq!(rig.jobs.len(), 1);
    rig.asked.clear();
    stored(&mut rig, 0);
    assert_eq!(rig.asked, [request(0)]);
}

#[test]
fn what_an_earlier_start_or_an_ended_fetch_left_makes_room_on_a_full_disk() {
    let full = |mut rig: Rig| {
        rig.jobs.clear();
        rig.input(Input::DiskFull(true));
        rig.jobs
    };
    let drop = || Output::DropIncoming { shard: 0 };
    let mut ended = Rig::new(&[1, 2, 3]);
    offered(&mut ended);
    stored(&mut ended, 4);
    pass_ms(&mut ended, 11_000);
    assert_eq!(full(ended), [drop()]);
    assert_eq!(full(Rig::new(&[1, 2, 3])), [drop()]);
    let whole = follower_with_the_file(4);
    assert_eq!(full(whole), [], "it becomes this node's snapshot");
}

/// That is what makes room.
#[test]
fn a_node_with_a_full_disk_that_was_fetching_a_snapshot_makes_its_own() {
    let mut rig = Rig::new(&[1, 2, 3]);
    offered(&mut rig);
    stored(&mut rig, 4);
    rig.input(Input::DiskFull(true));
    rig.overwrite(5, 2, 2);
    log_has(&mut rig, config(&[]).log_bytes_max + 1);
    assert_eq!(made(&mut rig), 1);
}

#[test]
fn the_answer_to_an_earlier_job_is_not_taken_for_that_of_a_later_one() {
    let mut rig = Rig::new(&[1, 2, 3]);
    offered(&mut rig);
    stored(&mut rig, 4);
    rig.gets(part(4, 6));
    rig.asked.clear();
    // Of an earlier fetch of the same file.
    stored(&mut rig, 4);
    assert_eq!(rig.asked, [], "the part is being stored");
    stored(&mut rig, 10);
    assert!(matches!(
        rig.jobs.pop(),
        Some(Output::InstallSnapshot { .. })
    ));
}

/// Whatever a peer sends as parts of a file: only parts of this file are stored, where they belong.
#[test]
fn fuzz_parts_of_a_snapshot() {
    let seeds = [part(0, 4), part(0, 10), part(4, 6)].map(|part| part.encode_to_vec());
    nowserving_fuzz::target!(seeds.into(), |bytes| {
        let Ok(chunk) = SnapshotChunk::decode(bytes) else {
            return;
        };
        let mut rig = Rig::new(&[1, 2, 3]);
        offered(&mut rig);
        stored(&mut rig, 0);
        rig.jobs.clear();
        rig.gets(chunk);
        for job in &rig.jobs {
            let Output::StoreIncoming { file, chunk } = job else {
                panic!("{job:?}");
            };
            assert_eq!((*file, chunk.offset), (FILE, 0));
            assert!((1..=FILE.bytes).contains(&(chunk.data.len() as u64)));
        }
    });
}
