//! Snapshots: a restored state equals the saved one, and a file that is not whole, or
//! not the one asked for, is refused.

mod busy;

use bytes::Bytes;
use nowserving_line::{
    self as line, AdmissionRate, Change, Head, Journaled, JournaledToken, KickItem, KickNote,
    KickSelector, LaneName, LaneSettings, Line, LineName, Op, Phase, Quota, Reason, Renew, Reply,
    ScheduledChange, Settings, SettingsPatch, TokenRef, ZoneName,
};
use nowserving_shard::command::{Command, Entry, FORMAT};
use nowserving_shard::members::{MembersChange, MembersCommand, MembersRequest};
use nowserving_shard::snapshot::{HASH_FORMAT, Header, SnapshotError, decode, encode, hash_part};
use nowserving_shard::state::{AppliedToLine, Observer, State};
use proptest::prelude::*;

fn header() -> Header {
    Header {
        cluster: "prod".to_owned(),
        shard: 7,
        index: 1_234,
        term: 5,
        voters: vec![1, 2, 3],
        ..Header::default()
    }
}

fn name(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

/// Of the last answer.
struct Token(Option<TokenRef>);

impl Observer for Token {
    fn line(&mut self, _state: &State, applied: AppliedToLine<'_>) {
        if let Ok(Reply::Token(at)) = applied.result {
            self.0 = Some(at);
        }
    }
}

struct Shard {
    state: State,
    index: u64,
}

impl Shard {
    fn new() -> Shard {
        Shard {
            state: State::default(),
            index: 0,
        }
    }

    fn apply(&mut self, op: Op) -> Option<TokenRef> {
        self.propose(Command::Line(op))
    }

    fn propose(&mut self, command: Command) -> Option<TokenRef> {
        self.index += 1;
        let entry = Entry {
            format: FORMAT,
            now_ms: self.index * 10,
            wall_ms: self.index * self.index * 10,
            compact_floor: 0,
            commands: vec![command],
        };
        let mut token = Token(None);
        self.state.apply_entry(self.index, &entry, &mut token);
        token.0
    }

    fn create(&mut self, line: &str, seats: u32) {
        let mut settings = Settings::new(seats, 1_000);
        settings.labels.insert("city".to_owned(), "台北".to_owned());
        self.apply(Op::Create {
            line: name(line),
            settings,
        });
    }

    fn enter(&mut self, line: &str, key: Option<&[u8]>) -> TokenRef {
        self.apply(Op::Enter {
            line: name(line),
            key: key.map(Into::into),
            lane: None,
        })
        .unwrap()
    }
}

/// Two lines with tokens in every state, one line that was deleted.
fn a_shard() -> State {
    let mut shard = Shard::new();
    shard.create("old", 1);
    shard.apply(Op::Delete {
        line: name("old"),
        force: false,
        incarnation: None,
    });
    shard.create("empty", 5);
    shard.create("shop-1", 3);
    let tokens: Vec<_> = (0..8_u8)
        .map(|n| shard.enter("shop-1", (n % 2 == 0).then_some(&[n, 0xff])))
        .collect();
    let line = || name("shop-1");
    for at in [tokens[0], tokens[1]] {
        let line = line();
        shard.apply(Op::Claim { line, at });
    }
    shard.apply(Op::Complete {
        units: None,
        line: line(),
        at: tokens[0],
        epoch: None,
    });
    shard.apply(Op::Leave {
        line: line(),
        at: tokens[5],
    });
    let state = shard.state;
    let lines = state.lines();
    let states: Vec<_> = tokens
        .iter()
        .map(|at| lines.get(&line()).unwrap().status(*at, 0).unwrap().state)
        .collect();
    assert_eq!(
        [
            line::State::Gone,
            line::State::InCheckout,
            line::State::Admitted,
            line::State::Admitted,
            line::State::Waiting,
            line::State::Gone
        ],
        states[..6]
    );
    assert_eq!(
        lines.get(&line()).unwrap().counts().gone_for(Reason::Left),
        1
    );
    state
}

/// A line with every setting, and with everything that comes of them: a bucket that is not full,
/// tokens called ahead, moved and live, moved and gone, released by their claim; a lane that was
/// removed; a journal with every kind of entry.
fn a_shard_with_everything() -> State {
    let mut shard = Shard::new();
    let line = || name("all");
    let lane = |name: &str| LaneName::try_from(name).unwrap();
    let mut settings = Settings::new(3, 100);
    settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 1_500,
        burst: 3,
    });
    settings.lanes = ["normal", "vip", "old"]
        .map(|n| LaneSettings::new(lane(n)))
        .to_vec();
    settings.lanes[1].boost_ms = 5;
    settings.lanes[2].queue_limit = Some(9);
    settings.call_ahead = 2;
    settings.quota = Some(Quota {
        total: 50,
        standby_percent: 10,
        renew: None,
        per_visit: 1,
    });
    settings.position_cap = Some(2);
    settings.default_lane = Some(lane("normal"));
    settings.release_on_claim = true;
    shard.apply(Op::Create {
        line: line(),
        settings: settings.clone(),
    });
    let tokens: Vec<_> = (0..9_u8).map(|n| shard.enter("all", Some(&[n]))).collect();
    shard.apply(Op::Claim {
        line: line(),
        at: tokens[0],
    });
    for (token, to) in [(8, "old"), (8, "vip"), (7, "vip"), (6, "vip")] {
        shard.apply(Op::Move {
            line: line(),
            lane: lane("normal"),
            token,
            to: lane(to),
        });
    }
    shard.apply(Op::Leave {
        line: line(),
        at: tokens[6],
    });
    settings.lanes.truncate(2);
    settings.lanes.reverse();
    settings.lanes[1].absolute = true;
    shard.apply(Op::Configure {
        line: line(),
        patch: Box::new(SettingsPatch {
            lanes: Some(Change::Set(settings.lanes)),
            phase: Some(Change::Set(Phase::Paused)),
            ..SettingsPatch::default()
        }),
        if_version: None,
        incarnation: None,
    });
    let dump = shard.state.lines().get(&line()).unwrap().dump();
    assert!(
        dump.bucket
            .is_some_and(|bucket| bucket.level_nano < 3_000_000_000)
    );
    assert_eq!((dump.lanes.len(), dump.settings.lanes.len()), (3, 2));
    assert!(dump.lanes[0].called_through > 0 && dump.lanes[1].called_through > 0);
    let mut live = dump.lanes[1].live.iter();
    assert!(live.any(|(_, live)| live.moved_from.len() == 2));
    assert!(dump.gone.iter().any(|(_, _, gone)| gone.moved_to.is_some()));
    assert!(
        dump.gone
            .iter()
            .any(|(_, _, gone)| gone.released && gone.epoch.is_some())
    );
    let configured =
        |entry: &&nowserving_line::JournalEntry| matches!(entry.what, Journaled::Configured { .. });
    assert!(dump.journal.iter().filter(configured).count() > 0 && dump.journal.len() > 8);
    let claimed = |entry: &nowserving_line::JournalEntry| {
        let Journaled::Token { what, .. } = entry.what else {
            return false;
        };
        matches!(what, JournaledToken::Claimed { .. })
    };
    assert!(dump.journal.iter().any(claimed) && !dump.settings_changes.is_empty());
    busy::fill(&mut shard);
    shard.state
}

fn states() -> [State; 5] {
    [
        State::default(),
        a_shard(),
        busy::a_shard_with_a_kick(),
        busy::a_shard_with_calls(),
        a_shard_with_everything(),
    ]
}

#[test]
fn a_shard_comes_back_as_it_was() {
    for state in states() {
        let bytes = encode(&header(), &state);
        let (found, restored) = decode(bytes.clone().into(), FORMAT, "prod", 7).unwrap();
        assert_eq!(found, header());
        assert_eq!(restored.now_ms(), state.now_ms());
        assert_eq!(restored.lines().head(), state.lines().head());
        let dumps = |state: &State| state.lines().iter().map(Line::dump).collect::<Vec<_>>();
        assert_eq!(dumps(&restored), dumps(&state));
        assert_eq!(
            encode(&header(), &restored),
            bytes,
            "equal states are equal bytes"
        );
    }
}

#[test]
fn every_cut_and_every_flipped_bit_is_refused() {
    let bytes = encode(&header(), &a_shard());
    for length in 0..bytes.len() {
        let error =
            decode(Bytes::copy_from_slice(&bytes[..length]), FORMAT, "prod", 7).unwrap_err();
        let clear = matches!(
            error,
            SnapshotError::Magic | SnapshotError::Short(_) | SnapshotError::Digest
        );
        assert!(clear, "cut at {length}: {error}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut altered = bytes.clone();
        altered[bit / 8] ^= 1 << (bit % 8);
        let error = decode(altered.into(), FORMAT, "prod", 7).unwrap_err();
        let clear = match bit / 8 {
            0..8 => error == SnapshotError::Magic,
            // Another format that is known is found out by the digest.
            8..12 => matches!(error, SnapshotError::Format { .. } | SnapshotError::Digest),
            _ => error == SnapshotError::Digest,
        };
        assert!(clear, "bit {bit}: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(
        decode(longer.into(), FORMAT, "prod", 7).unwrap_err(),
        SnapshotError::Digest
    );
}

#[test]
fn another_cluster_shard_or_file_is_refused() {
    let bytes = Bytes::from(encode(&header(), &a_shard()));
    let error = decode(bytes.clone(), FORMAT, "test", 7).unwrap_err();
    assert!(
        matches!(error, SnapshotError::Cluster { .. }) && error.to_string().contains("prod"),
        "{error}"
    );
    let error = decode(bytes, FORMAT, "prod", 8).unwrap_err();
    assert_eq!(
        error,
        SnapshotError::Shard {
            found: 7,
            expected: 8
        }
    );
    assert_eq!(
        decode(Bytes::from_static(b"#!/bin/sh\n"), FORMAT, "prod", 7).unwrap_err(),
        SnapshotError::Magic
    );
    assert_eq!(
        decode(Bytes::new(), FORMAT, "prod", 7).unwrap_err(),
        SnapshotError::Magic
    );
}

/// A file with this body, and a digest that holds.
fn sealed(body: &[u8]) -> Bytes {
    let mut bytes = encode(&header(), &State::default());
    bytes.truncate(12);
    bytes.extend_from_slice(body);
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    bytes.into()
}

#[test]
fn a_whole_file_that_makes_no_sense_is_refused() {
    for state in states() {
        let file = encode(&header(), &state);
        let body = &file[12..file.len() - 32];
        assert!(decode(sealed(body), FORMAT, "prod", 7).is_ok());
        for length in 0..body.len() {
            let error = decode(sealed(&body[..length]), FORMAT, "prod", 7).unwrap_err();
            assert!(
                matches!(error, SnapshotError::Malformed(_)),
                "{length}: {error}"
            );
        }
        let longer = [body, &[0]].concat();
        let error = decode(sealed(&longer), FORMAT, "prod", 7).unwrap_err();
        assert_eq!(error.to_string(), "a snapshot has bytes after its end");
        // Whatever else stands there is refused, or it is another state, which has these bytes.
        for bit in 0..body.len() * 8 {
            let mut altered = body.to_vec();
            altered[bit / 8] ^= 1 << (bit % 8);
            if let Ok((header, state)) = decode(sealed(&altered), FORMAT, "prod", 7) {
                let again = encode(&header, &state);
                assert_eq!(&again[12..again.len() - 32], altered, "bit {bit}");
            }
        }
    }
    // A service clock that no shard can have.
    let head = Head {
        now_ms: u64::MAX,
        ..Head::default()
    };
    let mut body = nowserving_codec::encode(&header(), FORMAT);
    body.extend(nowserving_codec::encode(&(1_u64, head), FORMAT));
    body.push(0);
    assert!(matches!(
        decode(sealed(&body), FORMAT, "prod", 7).unwrap_err(),
        SnapshotError::Contradiction(_)
    ));
}

#[test]
fn a_file_of_a_build_before_the_first_release_is_told_apart() {
    let mut file = encode(&header(), &State::default());
    file[..8].copy_from_slice(b"NSSNAP\r\n");
    let error = decode(file.into(), FORMAT, "prod", 7).unwrap_err();
    assert_eq!(error, SnapshotError::Earlier);
}

#[test]
fn members_come_back_and_are_in_the_hash() {
    let mut shard = Shard::new();
    let without = hash_part(&shard.state, 0);
    shard.propose(Command::Members(MembersCommand::Begin {
        nodes: vec![1, 2, 3],
        cluster_id: 5,
    }));
    shard.propose(Command::Members(MembersCommand::Request(MembersRequest {
        change: MembersChange::Replace { id: 2, disk_id: 7 },
        if_version: Some(1),
        by: "ops".to_owned(),
        reason: "a dead disk".to_owned(),
    })));
    let bytes = encode(&header(), &shard.state);
    let (_, restored) = decode(bytes.into(), FORMAT, "prod", 7).unwrap();
    assert_eq!(restored.members(), shard.state.members());
    assert_eq!(restored.members().changes().count(), 1);
    assert_ne!(hash_part(&restored, 0), without);
}

/// Builds with the same format compare their hashes: another hash needs another format.
#[test]
fn the_hash_of_a_format_stays_the_same() {
    let state = a_shard_with_everything();
    let hash = blake3::Hash::from(hash_part(&state, 0));
    let then = "ebb7ddfe990d06aca308446fec014ddce433806621af446c1efde94134b6727b";
    assert_eq!((HASH_FORMAT, hash.to_hex().as_str()), (1, then));
}

#[test]
fn the_hash_tells_states_apart() {
    let mut shard = Shard::new();
    let mut seen = vec![hash_part(&shard.state, 0)];
    let mut step = |shard: &Shard| {
        let now = hash_part(&shard.state, 0);
        assert!(!seen.contains(&now));
        seen.push(now);
    };
    shard.create("a", 1);
    step(&shard);
    let at = shard.enter("a", Some(b"k"));
    step(&shard);
    shard.apply(Op::Claim {
        line: name("a"),
        at,
    });
    step(&shard);
    shard.apply(Op::Leave {
        line: name("a"),
        at,
    });
    step(&shard);
    shard.propose(Command::Stamp);
    step(&shard);
    shard.apply(Op::Delete {
        line: name("a"),
        force: false,
        incarnation: None,
    });
    step(&shard);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Snapshot and the rest of the log give the state that the whole log gives.
    #[test]
    fn going_on_from_a_snapshot_changes_nothing(
        steps in proptest::collection::vec((0_u8..8, 0_usize..40, any::<u8>()), 1..120), cut: usize,
    ) {
        let mut whole = Shard::new();
        whole.create("a", 3);
        let mut twin = Shard::new();
        twin.create("a", 3);
        let mut tokens = Vec::new();
        for (number, (what, which, key)) in steps.iter().enumerate() {
            if number == cut % steps.len() {
                let bytes = encode(&header(), &twin.state);
                twin.state = decode(bytes.into(), FORMAT, "prod", 7).unwrap().1;
            }
            let line = name("a");
            let Some(at) = tokens.get(which % tokens.len().max(1)).copied() else {
                tokens.push(whole.enter("a", None));
                twin.enter("a", None);
                continue;
            };
            let op = match what {
                0..=2 => Op::Enter { line, key: Some([*key].into()), lane: None },
                3 | 4 => Op::Claim { line, at },
                5 => Op::Complete { line, at, epoch: None, units: None },
                6 => Op::Leave { line, at },
                _ => {
                    whole.propose(Command::Stamp);
                    twin.propose(Command::Stamp);
                    continue;
                }
            };
            let entered = whole.apply(op.clone());
            prop_assert_eq!(twin.apply(op), entered);
            tokens.extend(entered);
        }
        prop_assert_eq!(encode(&header(), &whole.state), encode(&header(), &twin.state));
    }
}

/// Lines of several lanes' worth of parts; in the second one the key of token 2,000 may be another.
fn large_shard(key: &[u8]) -> State {
    let mut shard = Shard::new();
    for line in ["a", "b", "c"] {
        shard.apply(Op::Create {
            line: name(line),
            settings: Settings::new(2, 10_000),
        });
        for nth in 1..=3_000 {
            let other = line == "b" && nth == 2_000;
            let own = format!("k{nth}").into_bytes();
            shard.enter(line, Some(if other { key } else { &own }));
        }
    }
    shard.state
}

#[test]
fn the_parts_of_equal_states_are_equal_and_one_token_shows_in_one_part_of_a_round() {
    let lines = large_shard(b"k2000");
    let bytes = encode(&header(), &lines);
    let (_, restored) = decode(bytes.into(), FORMAT, "prod", 7).unwrap();
    let other = large_shard(b"kX000");
    // Windows of 1,024 / 3 tokens: 9 of them hold 3,000.
    let mut differing = Vec::new();
    for nth in 0..18 {
        assert_eq!(hash_part(&lines, nth), hash_part(&restored, nth), "{nth}");
        if hash_part(&lines, nth) != hash_part(&other, nth) {
            differing.push(nth);
        }
    }
    assert_eq!(differing, [5, 14]);
    assert_eq!(
        hash_part(&State::default(), 0),
        hash_part(&State::default(), 1)
    );
}

#[test]
fn the_parts_of_many_lines_follow_each_other() {
    let mut shard = Shard::new();
    let mut other = Shard::new();
    for nth in 0..40 {
        let line = format!("l{nth:02}");
        shard.create(&line, 2);
        other.create(&line, if nth == 20 { 3 } else { 2 });
    }
    let differing: Vec<u64> = (0..10)
        .filter(|nth| hash_part(&shard.state, *nth) != hash_part(&other.state, *nth))
        .collect();
    // 16 lines a part: line 20 is in the second, then at 60, 100 and 140 of those that come by.
    assert_eq!(differing, [1, 3, 6, 8]);
}
