//! A line that is put back through the log: the same on every replica, whatever is repeated, and refused whole if
//! it is not whole.

mod long;

use bytes::Bytes;
use nowserving_line::{
    Admission, AdmissionRate, Arrivals, BOOST_MS_MAX, CALL_AHEAD_MAX, CALLBACK_LIMIT_MAX, Change,
    FORECAST_WINDOWS, LABEL_BYTES_MAX, LABELS_MAX, LANE_TABLE_MAX, LANES_MAX, LaneName,
    LaneSettings, Limits, Line, LineName, Lines, NUMBER_MAX, Offers, Op, POSITION_CAP_MAX,
    POSITION_EVENT_MAX, POSITION_EVENTS_MAX, Phase, QUEUE_LIMIT_MAX, QUOTA_TOTAL_MAX, Quota,
    RATE_BURST_MAX, RATE_MICRO_MAX, Reason, Refused, Renew, Reply, Restore, RestoreRefused,
    SCHEDULE_BYTES_MAX, SCHEDULE_MAX, SEATS_MAX, STANDBY_PERCENT_MAX, ScheduledChange, Settings,
    SettingsPatch, TIMEOUT_MS_MAX, TokenRef, Told, WALL_MS_MAX, Window, ZONE_BYTES_MAX, ZoneName,
};
use nowserving_shard::command::{self, Command, Entry};
use nowserving_shard::restore::{
    Discarded, PART_BYTES_MAX, RestoreCommand, RestoreError, RestoreReply, RestoreStep,
    UPLOAD_KEPT_MS, UPLOADS_MAX, parts_of,
};
use nowserving_shard::snapshot::{Header, decode, encode, hash_part};
use nowserving_shard::state::{AppliedRestore, AppliedToLine, Observer, State};

/// Of the last command.
#[derive(Default)]
struct Last {
    token: Option<TokenRef>,
    restore: Option<Result<RestoreReply, RestoreError>>,
    events: usize,
    discarded: Vec<Discarded>,
}

impl Observer for Last {
    fn line(&mut self, _state: &State, applied: AppliedToLine<'_>) {
        if let Ok(Reply::Token(at)) = applied.result {
            self.token = Some(at);
        }
    }

    fn restore(&mut self, _state: &State, applied: AppliedRestore<'_>) {
        self.events = applied.events.len();
        self.restore = Some(applied.result);
    }

    fn discard(&mut self, discarded: Discarded) {
        self.discarded.push(discarded);
    }
}

/// A shard on two replicas: the second one is written to a snapshot and read back before each step of a restore,
/// and now and then.
struct Shard {
    state: State,
    twin: State,
    index: u64,
    now_ms: u64,
}

fn header() -> Header {
    Header {
        cluster: "prod".to_owned(),
        ..Header::default()
    }
}

fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

impl Shard {
    fn new(now_ms: u64) -> Shard {
        Shard {
            state: State::default(),
            twin: State::default(),
            index: 0,
            now_ms,
        }
    }

    fn propose(&mut self, command: Command) -> Last {
        self.index += 1;
        let entry = Entry {
            format: nowserving_shard::command::FORMAT,
            now_ms: self.now_ms,
            wall_ms: self.index,
            compact_floor: 0,
            commands: vec![command],
        };
        let decoded = command::decode(&command::encode(&entry), command::FORMAT).unwrap();
        assert_eq!(decoded, entry);
        let mut last = Last::default();
        self.state.apply_entry(self.index, &entry, &mut last);
        let restores = matches!(entry.commands[..], [Command::Restore(_)]);
        if restores || self.index.is_multiple_of(64) {
            let bytes = encode(&header(), &self.twin);
            self.twin = decode(bytes.into(), command::FORMAT, "prod", 0).unwrap().1;
        }
        self.twin.apply_entry(self.index, &decoded, &mut ());
        for nth in 0..2 {
            assert_eq!(hash_part(&self.state, nth), hash_part(&self.twin, nth));
        }
        last
    }

    fn apply(&mut self, op: Op) -> Option<TokenRef> {
        self.propose(Command::Line(op)).token
    }

    fn enter(&mut self, line: &str, key: u64, lane: &str) -> TokenRef {
        self.apply(Op::Enter {
            line: name(line),
            key: Some(key.to_be_bytes().into()),
            lane: Some(LaneName::try_from(lane).unwrap()),
        })
        .unwrap()
    }

    fn restore(&mut self, line: &str, upload: u128, step: RestoreStep) -> Last {
        self.propose(Command::Restore(RestoreCommand {
            line: name(line),
            upload,
            step,
        }))
    }

    fn part(&mut self, upload: u128, number: u32, data: &Bytes) -> Result<u32, RestoreError> {
        let data = data.clone();
        let last = self.restore(
            "shop",
            upload,
            RestoreStep::Part {
                number,
                data: data.into(),
            },
        );
        match last.restore.unwrap()? {
            RestoreReply::Staged { parts } => Ok(parts),
            RestoreReply::Done => panic!("a part puts nothing in place"),
        }
    }

    fn finish(&mut self, upload: u128, backup: &Backup, overwrite: bool) -> Last {
        let step = RestoreStep::Finish {
            parts: backup.parts.len() as u32,
            digest: backup.digest,
            how: Restore {
                clock_ms: backup.clock_ms,
                overwrite,
            },
        };
        self.restore("shop", upload, step)
    }

    fn send(&mut self, upload: u128, backup: &Backup) {
        for (number, data) in (0..).zip(&backup.parts) {
            assert_eq!(self.part(upload, number, data).unwrap(), number + 1);
        }
    }

    fn back_up(&self) -> Backup {
        let (parts, digest) = parts_of(self.line());
        assert!(parts.iter().all(|part| part.len() <= PART_BYTES_MAX));
        Backup {
            parts,
            digest,
            clock_ms: self.state.now_ms(),
        }
    }

    fn line(&self) -> &Line {
        self.state.lines().get(&name("shop")).unwrap()
    }
}

struct Backup {
    parts: Vec<Bytes>,
    digest: [u8; 32],
    clock_ms: u64,
}

/// A line in two lanes with `count` tokens in all states.
fn a_shop(count: u64) -> Shard {
    let mut shard = Shard::new(1_000_000);
    let mut settings = Settings::new(3, u32::try_from(count).unwrap());
    let lanes = ["normal", "vip"].map(|lane| LaneSettings::new(LaneName::try_from(lane).unwrap()));
    settings.lanes = lanes.to_vec();
    shard.apply(Op::Create {
        line: name("shop"),
        settings,
    });
    for key in 0..count {
        let lane = if key % 3 == 0 { "vip" } else { "normal" };
        let at = shard.enter("shop", key, lane);
        let line = name("shop");
        match key {
            0 => drop(shard.apply(Op::Claim { line, at })),
            5 => drop(shard.apply(Op::Leave { line, at })),
            7 => drop(shard.apply(Op::Move {
                line,
                lane: LaneName::try_from("normal").unwrap(),
                token: at.token,
                to: LaneName::try_from("vip").unwrap(),
            })),
            _ => {}
        }
    }
    shard
}

fn done(last: Last) {
    assert_eq!(last.restore, Some(Ok(RestoreReply::Done)));
}

#[test]
fn a_line_comes_back_in_another_shard_with_what_was_left_of_its_times() {
    let shard = a_shop(2_000);
    let backup = shard.back_up();
    assert!(backup.parts.len() > 3);
    let mut other = Shard::new(5_000);
    other.send(9, &backup);
    let last = other.finish(9, &backup, false);
    assert_eq!(last.events, 1);
    done(last);
    let (old, new) = (shard.line(), other.line());
    assert_eq!(new.counts(), old.counts());
    assert_eq!(new.incarnation(), old.incarnation());
    assert!(new.version() > old.version());
    for (lane, token, live) in old.live_from((0, 0)) {
        let at = TokenRef {
            incarnation: old.incarnation(),
            lane,
            token,
        };
        let now = new.live(lane, token).unwrap();
        let left = |line: &Line, live, now_ms: u64| line.due_at_ms(live) - now_ms;
        assert_eq!(left(new, now, 5_000), left(old, live, 1_000_000));
        let position = |line: &Line, now_ms| line.status(at, now_ms).unwrap().position;
        assert_eq!(position(new, 5_000), position(old, 1_000_000));
        assert_eq!(now.key, live.key);
    }
    // The next one gets the next number.
    let next = other.enter("shop", 1 << 40, "normal");
    assert_eq!(next.token, old.board(0).lanes[0].next_token);
}

#[test]
fn every_step_can_be_repeated() {
    let backup = a_shop(1_500).back_up();
    let mut other = Shard::new(5_000);
    assert_eq!(other.part(1, 1, &backup.parts[1]), Ok(0), "not begun");
    for (number, data) in (0..).zip(&backup.parts) {
        for _ in 0..2 {
            assert_eq!(other.part(1, number, data), Ok(number + 1));
        }
        let ahead = other.part(1, number + 2, data);
        assert_eq!(ahead, Ok(number + 1), "a part was left out");
    }
    done(other.finish(1, &backup, false));
    let events = other.enter("shop", 77_777, "vip");
    let repeated = other.finish(1, &backup, false);
    assert_eq!(repeated.events, 0, "it has no second effect");
    done(repeated);
    let status = other.line().status(events, 5_000).unwrap();
    assert_eq!(status.reason, None);
    assert_eq!(
        other.part(1, 0, &backup.parts[0]),
        Ok(backup.parts.len() as u32)
    );
}

#[test]
fn an_upload_that_was_broken_off_is_replaced_or_forgotten() {
    let backup = a_shop(1_500).back_up();
    let mut other = Shard::new(5_000);
    other.part(1, 0, &backup.parts[0]).unwrap();
    other.part(1, 1, &backup.parts[1]).unwrap();
    // The command was started again: another upload of the line.
    other.send(2, &backup);
    assert_eq!(other.part(1, 2, &backup.parts[2]), Ok(0));
    other.now_ms += UPLOAD_KEPT_MS - 1;
    assert_eq!(
        other.part(2, 0, &backup.parts[0]),
        Ok(backup.parts.len() as u32)
    );
    other.now_ms += UPLOAD_KEPT_MS;
    let forgotten = other.finish(2, &backup, false).restore.unwrap();
    let asked = backup.parts.len() as u32;
    assert_eq!(forgotten, Err(RestoreError::Parts { staged: 0, asked }));
}

#[test]
fn what_is_not_whole_is_refused_and_changes_nothing() {
    let backup = a_shop(1_500).back_up();
    let mut other = Shard::new(5_000);
    let refused = |last: Last| last.restore.unwrap().unwrap_err();
    // A part is missing.
    for (number, data) in (0..2).zip(&backup.parts) {
        other.part(1, number, data).unwrap();
    }
    let error = refused(other.finish(1, &backup, false));
    assert!(
        matches!(error, RestoreError::Parts { staged: 2, .. }),
        "{error}"
    );
    let two = Backup {
        parts: backup.parts[..2].to_vec(),
        ..backup
    };
    assert_eq!(refused(other.finish(1, &two, false)), RestoreError::Digest);
    // Its tokens do not add up without the others.
    let mut prefix = blake3::Hasher::new();
    prefix.update(&[0; 32]).update(&two.parts[0]);
    let first: [u8; 32] = prefix.finalize().into();
    let mut whole = blake3::Hasher::new();
    whole.update(&first).update(&two.parts[1]);
    let forged = Backup {
        digest: whole.finalize().into(),
        ..two
    };
    let error = refused(other.finish(1, &forged, false));
    assert!(error.to_string().contains("don't add up"), "{error}");
    // Altered parts.
    for number in [0, 1] {
        let mut altered = backup.parts[number].to_vec();
        altered[0] ^= 0xff;
        if number == 1 {
            other.part(3, 0, &backup.parts[0]).unwrap();
        }
        let error = other.part(3, number as u32, &altered.into()).unwrap_err();
        assert!(
            error.to_string().contains(&format!("part {number}")),
            "{error}"
        );
    }
    // Another line's.
    let data = backup.parts[0].clone();
    let last = other.restore(
        "other",
        4,
        RestoreStep::Part {
            number: 0,
            data: data.into(),
        },
    );
    let error = refused(last);
    assert!(error.to_string().contains("line shop"), "{error}");
    assert!(other.state.lines().is_empty());
}

#[test]
fn so_many_at_once_and_no_more() {
    let mut shard = Shard::new(1_000);
    let settings = Settings::new(1, 1);
    let names: Vec<String> = (0..=UPLOADS_MAX).map(|n| format!("line-{n}")).collect();
    for line in &names {
        shard.apply(Op::Create {
            line: name(line),
            settings: settings.clone(),
        });
    }
    let mut other = Shard::new(5_000);
    for (n, line) in names.iter().enumerate() {
        let data = parts_of(shard.state.lines().get(&name(line)).unwrap()).0[0].clone();
        let last = other.restore(
            line,
            1,
            RestoreStep::Part {
                number: 0,
                data: data.into(),
            },
        );
        let refused = (n == UPLOADS_MAX).then_some(RestoreError::TooMany);
        assert_eq!(last.restore.unwrap().err(), refused);
    }
}

#[test]
fn any_number_of_lines_one_after_the_other() {
    let mut shard = Shard::new(1_000);
    let mut other = Shard::new(5_000);
    for n in 0..3 * UPLOADS_MAX {
        let line = format!("line-{n}");
        shard.apply(Op::Create {
            line: name(&line),
            settings: Settings::new(1, 1),
        });
        let (parts, digest) = parts_of(shard.state.lines().get(&name(&line)).unwrap());
        let last = parts.len() as u32;
        for (number, data) in (0..).zip(parts) {
            other.restore(
                &line,
                1,
                RestoreStep::Part {
                    number,
                    data: data.into(),
                },
            );
        }
        let step = RestoreStep::Finish {
            parts: last,
            digest,
            how: Restore {
                clock_ms: 1_000,
                overwrite: false,
            },
        };
        let done = other.restore(&line, 1, step);
        assert_eq!(done.restore.unwrap(), Ok(RestoreReply::Done), "{line}");
    }
}

#[test]
fn the_same_line_is_replaced_if_asked_for_and_no_number_comes_again() {
    let mut shard = a_shop(1_000);
    let backup = shard.back_up();
    let issued = shard.line().counts().issued;
    let late = shard.enter("shop", 9_999_999, "normal");
    shard.now_ms += 60_000;
    shard.send(1, &backup);
    let refused = shard
        .finish(1, &backup, false)
        .restore
        .unwrap()
        .unwrap_err();
    let exists = RestoreRefused::Line(Refused::LineExists);
    assert_eq!(refused, RestoreError::Line(exists));
    let before = shard.line().version();
    done(shard.finish(1, &backup, true));
    let line = shard.line();
    assert!(line.version() > before && line.settings_version() > before);
    assert_eq!(line.counts().issued, issued + 1);
    assert_eq!(line.counts().gone_for(Reason::Kicked), 1);
    assert_eq!(
        line.status(late, 0).unwrap().reason,
        Some(None),
        "forgotten"
    );
    let next = shard.enter("shop", 9_999_999, "normal");
    assert_eq!(next.token, late.token + 1);
}

/// Those who completed after the backup are in line again. If they complete once more, so much the less is sold.
#[test]
fn what_was_completed_after_the_backup_is_not_sold_again() {
    let mut shard = Shard::new(1_000_000);
    let mut settings = Settings::new(3, 10);
    settings.quota = Some(Quota {
        total: 3,
        standby_percent: 200,
        renew: None,
        per_visit: 1,
    });
    let line = || name("shop");
    shard.apply(Op::Create {
        line: line(),
        settings,
    });
    let tokens = [1, 2, 3, 4].map(|key| shard.enter("shop", key, "normal"));
    let complete = |shard: &mut Shard, at: TokenRef| {
        shard.apply(Op::Claim { line: line(), at });
        shard.apply(Op::Complete {
            units: None,
            line: line(),
            at,
            epoch: None,
        });
    };
    let backup = shard.back_up();
    complete(&mut shard, tokens[0]);
    complete(&mut shard, tokens[1]);
    for upload in [1, 2] {
        // The second time, the backup is older than a restore.
        shard.send(upload, &backup);
        let last = shard.finish(upload, &backup, true);
        assert_eq!(last.discarded.len(), 1, "the line that was there");
        done(last);
        assert_eq!(shard.line().counts().gone_for(Reason::Completed), 0);
    }
    complete(&mut shard, tokens[2]);
    let counts = shard.line().counts();
    assert_eq!(counts.gone_for(Reason::Completed), 1);
    assert_eq!(
        counts.gone_for(Reason::SoldOut),
        1,
        "three units are sold in all"
    );
}

#[test]
fn a_line_of_another_incarnation_is_left_alone() {
    let mut shard = a_shop(1_000);
    let backup = shard.back_up();
    shard.apply(Op::Configure {
        line: name("shop"),
        patch: Box::new(SettingsPatch {
            phase: Some(Change::Set(Phase::Closed)),
            ..SettingsPatch::default()
        }),
        if_version: None,
        incarnation: None,
    });
    shard.apply(Op::Delete {
        line: name("shop"),
        force: true,
        incarnation: None,
    });
    shard.apply(Op::Create {
        line: name("shop"),
        settings: Settings::new(1, 1),
    });
    shard.send(1, &backup);
    let refused = shard.finish(1, &backup, true).restore.unwrap().unwrap_err();
    let another = RestoreRefused::Line(Refused::AnotherIncarnation);
    assert_eq!(refused, RestoreError::Line(another));
    let incarnation = Some(shard.line().incarnation());
    shard.apply(Op::Delete {
        line: name("shop"),
        force: true,
        incarnation,
    });
    // The parts are still there.
    done(shard.finish(1, &backup, false));
    // Some of its numbers may have been issued before it was deleted.
    let gone = shard.line().counts().gone_for(Reason::Kicked);
    assert!(gone > 0);
}

/// With `NOWSERVING_RESTORE_TOKENS=1000000` and `--no-capture` it prints how long the steps of such a line take.
#[test]
fn a_large_line_comes_back() {
    use std::time::{Duration, Instant};
    let count = std::env::var("NOWSERVING_RESTORE_TOKENS").ok();
    let count: u64 = count.map_or(80_000, |count| count.parse().unwrap());
    let mut state = State::default();
    let mut settings = Settings::new(1_000, 1_000_000);
    settings.token_events = false;
    let apply = |index, state: &mut State, op: Op| {
        let entry = Entry {
            format: nowserving_shard::command::FORMAT,
            now_ms: index,
            wall_ms: index,
            compact_floor: 0,
            commands: vec![Command::Line(op)],
        };
        state.apply_entry(index, &entry, &mut ());
    };
    let line = || name("shop");
    let create = Op::Create {
        line: line(),
        settings,
    };
    apply(1, &mut state, create);
    for index in 2..count + 2 {
        let key = Some(format!("customer-{index}").into_bytes().into());
        let lane = None;
        apply(
            index,
            &mut state,
            Op::Enter {
                line: line(),
                key,
                lane,
            },
        );
    }
    let began = Instant::now();
    let (parts, digest) = parts_of(state.lines().get(&line()).unwrap());
    let bytes: usize = parts.iter().map(Bytes::len).sum();
    println!(
        "{} parts, {bytes} bytes, cut in {:?}",
        parts.len(),
        began.elapsed()
    );
    let (parts_count, clock_ms) = (parts.len() as u32, state.now_ms());
    let finish = RestoreStep::Finish {
        parts: parts_count,
        digest,
        how: Restore {
            clock_ms,
            overwrite: true,
        },
    };
    let mut other = State::default();
    let mut index = 0;
    let mut apply = |other: &mut State, upload, step| {
        index += 1;
        let command = Command::Restore(RestoreCommand {
            line: line(),
            upload,
            step,
        });
        let entry = Entry {
            format: nowserving_shard::command::FORMAT,
            now_ms: 1_000_000,
            wall_ms: index,
            compact_floor: 0,
            commands: vec![command],
        };
        let began = Instant::now();
        let mut last = Last::default();
        other.apply_entry(index, &entry, &mut last);
        (began.elapsed(), last.restore.unwrap())
    };
    // The second time, it replaces the first one.
    for upload in [1, 2] {
        let (mut slowest, total) = (Duration::ZERO, Instant::now());
        for (number, data) in (0..).zip(parts.clone()) {
            let (took, reply) = apply(
                &mut other,
                upload,
                RestoreStep::Part {
                    number,
                    data: data.into(),
                },
            );
            reply.unwrap();
            slowest = slowest.max(took);
        }
        println!("slowest part {slowest:?}, all in {:?}", total.elapsed());
        let (mut slowest, mut unfinished) = (Duration::ZERO, 0);
        loop {
            let (took, reply) = apply(&mut other, upload, finish.clone());
            slowest = slowest.max(took);
            if reply == Ok(RestoreReply::Done) {
                break;
            }
            assert_eq!(reply, Err(RestoreError::Unfinished));
            unfinished += 1;
            // What was begun is in snapshots, and takes no more parts.
            if unfinished == 1 {
                let bytes = encode(&header(), &other);
                other = decode(bytes.into(), command::FORMAT, "prod", 0).unwrap().1;
                let data = parts[0].clone();
                let number = parts_count;
                let step = RestoreStep::Part {
                    number,
                    data: data.into(),
                };
                let staged = RestoreReply::Staged { parts: number };
                assert_eq!(apply(&mut other, upload, step).1, Ok(staged));
            }
        }
        println!("{unfinished} last commands before the last, slowest {slowest:?}");
        assert!(unfinished > 0);
        assert_eq!(other.lines().totals().waiting, count - 1_000);
    }
    let (old, new) = (state.lines().get(&line()), other.lines().get(&line()));
    for ((_, token, old), (_, _, new)) in old
        .unwrap()
        .live_from((0, 0))
        .zip(new.unwrap().live_from((0, 0)))
    {
        assert_eq!(
            new.clock_ms() + clock_ms,
            old.clock_ms() + 1_000_000,
            "{token}"
        );
    }
}
