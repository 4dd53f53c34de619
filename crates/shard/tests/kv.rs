//! Key-values in entries, snapshots, hashes and among remembered requests.

use std::collections::BTreeSet;

use nowserving_kv::{BadEntry, Change, EXPIRE_MAX, Event, Op, Refused, Reply};
use nowserving_shard::command::{Command, Entry, FORMAT, decode, encode};
use nowserving_shard::requests::{Answer, Origin, RequestId};
use nowserving_shard::snapshot::{self, Header, SnapshotError, hash_part};
use nowserving_shard::state::{Observer, State};
use proptest::prelude::*;

fn put(key: &str, value: &[u8], ttl_ms: Option<u64>) -> Op {
    Op::Put {
        bucket: "visits".into(),
        key: key.into(),
        value: value.into(),
        if_revision: None,
        ttl_ms,
        above: 0,
    }
}

fn once(key: u128, op: Op) -> Command {
    let origin = Origin::Client;
    Command::Once(RequestId { key, origin }, Box::new(Command::Kv(op)))
}

fn entry(now_ms: u64, commands: Vec<Command>) -> Entry {
    Entry {
        now_ms,
        wall_ms: now_ms.saturating_add(1_766_222_333_444),
        commands,
        ..Entry::default()
    }
}

#[derive(Default)]
struct Watch {
    results: Vec<Result<Reply, Refused>>,
    copies: Vec<Answer>,
    events: Vec<Event>,
}

impl Observer for Watch {
    fn kv(&mut self, _place: usize, _op: &Op, result: Result<Reply, Refused>) {
        self.results.push(result);
    }

    fn kv_events(&mut self, events: &[Event], _wall_ms: u64) {
        self.events.extend_from_slice(events);
    }

    fn copy(&mut self, _state: &State, _place: usize, _command: &Command, answer: &Answer) {
        self.copies.push(answer.clone());
    }
}

fn apply(state: &mut State, now_ms: u64, commands: Vec<Command>) -> Watch {
    let mut watch = Watch::default();
    let entry = entry(now_ms, commands);
    // What followers read.
    let entry = decode(&encode(&entry), FORMAT).unwrap();
    state.apply_entry(1, &entry, &mut watch);
    watch
}

fn header() -> Header {
    Header {
        cluster: "prod".to_owned(),
        shard: 7,
        index: 4,
        term: 3,
        voters: vec![1, 2, 3],
        ..Header::default()
    }
}

fn restored(state: &State) -> State {
    let bytes = snapshot::encode(&header(), state);
    let (_, restored) = snapshot::decode(bytes.clone().into(), FORMAT, "prod", 7).unwrap();
    assert!(snapshot::encode(&header(), &restored) == bytes);
    restored
}

#[test]
fn the_newest_revision_is_kept_without_keys_too() {
    let mut state = State::default();
    apply(&mut state, 0, vec![Command::Kv(put("a", b"1", Some(1)))]);
    apply(&mut state, 1, vec![Command::Stamp]);
    let restored = restored(&state);
    assert!(restored.kv().is_empty());
    assert_eq!(restored.kv().revision(), 2);
}

#[test]
fn a_copy_of_a_request_is_answered_and_not_done() {
    let mut state = State::default();
    let first = apply(&mut state, 0, vec![once(1, put("a", b"1", None))]);
    let done = Ok(Reply { revision: 1 });
    assert_eq!(first.results, [done]);
    apply(&mut state, 0, vec![Command::Kv(put("a", b"2", None))]);
    for mut state in [restored(&state), state] {
        let again = apply(&mut state, 0, vec![once(1, put("a", b"1", None))]);
        assert_eq!(again.copies, [Answer::Kv(done)]);
        assert!(again.results.is_empty() && again.events.is_empty());
        let entry = state.kv().get(0, "visits", "a").unwrap();
        assert_eq!((entry.revision, &entry.value[..]), (2, &b"2"[..]));
        // A refusal is remembered, too.
        let refused = Err(Refused::VersionConflict { revision: 2 });
        let wanted = || {
            let Op::Put {
                bucket, key, value, ..
            } = put("a", b"3", None)
            else {
                unreachable!()
            };
            once(
                2,
                Op::Put {
                    bucket,
                    key,
                    value,
                    if_revision: Some(1),
                    ttl_ms: None,
                    above: 0,
                },
            )
        };
        assert_eq!(apply(&mut state, 0, vec![wanted()]).results, [refused]);
        let copies = apply(&mut state, 0, vec![wanted()]).copies;
        assert_eq!(copies, [Answer::Kv(refused)]);
    }
}

#[test]
fn each_entry_removes_a_bounded_number_of_expired_keys() {
    let mut state = State::default();
    let keys = (0..EXPIRE_MAX + 10).map(|n| Command::Kv(put(&format!("k{n}"), b"", Some(10))));
    apply(&mut state, 0, keys.collect());
    let first = apply(&mut state, 10, vec![Command::Stamp]);
    assert_eq!(first.events.len(), EXPIRE_MAX);
    assert!(first.events.iter().all(|it| it.what == Change::Expired));
    // They are gone all the same.
    assert_eq!(state.kv().len(), 10);
    assert_eq!(state.kv().list(10, "visits", "", None).count(), 0);
    let second = apply(&mut state, 10, vec![Command::Stamp]);
    assert_eq!(second.events.len(), 10);
    assert_eq!(apply(&mut state, 10, vec![Command::Stamp]).events, []);
}

#[test]
fn hashes_cover_every_key_in_turn() {
    let mut state = State::default();
    let keys = (0..500_u32).map(|n| Command::Kv(put(&format!("k{n:03}"), b"1", None)));
    apply(&mut state, 0, keys.collect());
    let hashes = |state: &State| -> Vec<_> { (0..11).map(|n| hash_part(state, n)).collect() };
    let before = hashes(&state);
    assert_eq!(before.iter().collect::<BTreeSet<_>>().len(), 11);
    assert_eq!(hashes(&restored(&state)), before);
    assert_eq!(hash_part(&state, 11), before[0]);
    for key in ["k000", "k047", "k048", "k250", "k499"] {
        let mut other = restored(&state);
        // The revision is in each part: so only the value of the key differs.
        let bytes = snapshot::encode(&header(), &other);
        let value = find(&bytes, key.as_bytes()) + key.len() + 1;
        let mut altered = bytes[..bytes.len() - 32].to_vec();
        altered[value] = b'2';
        let digest = *blake3_of(&altered).as_bytes();
        altered.extend(digest);
        other = snapshot::decode(altered.into(), FORMAT, "prod", 7)
            .unwrap()
            .1;
        let after = hashes(&other);
        let differ = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 1, "{key}");
    }
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|it| it == what).unwrap()
}

fn blake3_of(bytes: &[u8]) -> blake3::Hash {
    blake3::hash(bytes)
}

#[test]
fn a_snapshot_that_has_a_key_twice_is_refused() {
    let mut state = State::default();
    let keys = ["aa", "bb"].map(|key| Command::Kv(put(key, b"1", None)));
    apply(&mut state, 0, keys.into());
    let bytes = snapshot::encode(&header(), &state);
    let mut altered = bytes[..bytes.len() - 32].to_vec();
    let at = find(&altered, b"bb");
    altered[at..at + 2].copy_from_slice(b"aa");
    let digest = *blake3_of(&altered).as_bytes();
    altered.extend(digest);
    let error = snapshot::decode(altered.into(), FORMAT, "prod", 7).unwrap_err();
    assert_eq!(error, SnapshotError::Key(BadEntry::Order));
}

fn op() -> impl Strategy<Value = Op> {
    let name = || ".{0,20}".prop_map(|text| text.into_boxed_str());
    let value = prop::collection::vec(any::<u8>(), 0..50);
    let put = (
        name(),
        name(),
        value,
        any::<(Option<u64>, Option<u64>, u64)>(),
    );
    let put = put.prop_map(
        |(bucket, key, value, (if_revision, ttl_ms, above))| Op::Put {
            bucket,
            key,
            value: value.into(),
            if_revision,
            ttl_ms,
            above,
        },
    );
    let delete = (name(), name(), any::<Option<u64>>());
    let delete = delete.prop_map(|(bucket, key, if_revision)| Op::Delete {
        bucket,
        key,
        if_revision,
    });
    prop_oneof![put, delete]
}

proptest! {
    #[test]
    fn every_operation_comes_back_and_none_panics(ops in prop::collection::vec(op(), 0..20)) {
        let commands: Vec<_> = ops.into_iter().map(Command::Kv).collect();
        let mut state = State::default();
        let watch = apply(&mut state, u64::MAX, commands.clone());
        prop_assert_eq!(watch.results.len(), commands.len());
        let entry = entry(5, commands);
        prop_assert_eq!(decode(&encode(&entry), FORMAT), Ok(entry));
        restored(&state);
    }
}
