//! Archives that a line makes, whole or damaged, against the line's own journal and counts.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use nowserving_line::{
    Admission, AdmittedBy, Change, Event, Journaled, JournaledToken, LaneSettings, Lines, Op,
    Reason, Settings, SettingsPatch, Stamp, State, TakeBy, TokenRef,
};
use nowserving_protocol::event::{LineEvent, TokenEvent};
use proptest::prelude::*;

use super::events::Archive;
use super::report::{Number, Report, Scope, TokenRow};

/// A line, and its archive so far.
struct Day {
    lines: Lines,
    index: u64,
    now_ms: u64,
    /// Of the last event of a token, as the leader knows it.
    prev_version: u64,
    rows: Vec<String>,
}

#[derive(Debug, Clone)]
enum Step {
    Enter(Option<u8>, bool),
    Claim(u64),
    Complete(u64),
    Leave(u64),
    Move(u64),
    Admission(Admission),
    Call(u32),
    Take(u64),
    Wait(u16),
    NewLeader,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::option::of(0..6u8), any::<bool>()).prop_map(|(key, vip)| Step::Enter(key, vip)),
        3 => (0..40u64).prop_map(Step::Claim),
        2 => (0..40u64).prop_map(Step::Complete),
        2 => (0..40u64).prop_map(Step::Leave),
        2 => (0..40u64).prop_map(Step::Move),
        1 => prop::sample::select(&Admission::ALL[..]).prop_map(Step::Admission),
        1 => (1..3u32).prop_map(Step::Call),
        2 => (0..40u64).prop_map(Step::Take),
        2 => any::<u16>().prop_map(Step::Wait),
        1 => Just(Step::NewLeader),
    ]
}

const LANES: [&str; 2] = ["normal", "vip"];

impl Day {
    fn new() -> Day {
        let mut day = Day {
            lines: Lines::new(),
            index: 0,
            now_ms: 1_700_000_000_000,
            prev_version: 0,
            rows: Vec::new(),
        };
        let lanes = LANES.map(|lane| LaneSettings::new(lane.try_into().unwrap()));
        let settings = Settings {
            lanes: lanes.to_vec(),
            event_key: true,
            ..Settings::new(2, 50)
        };
        let line = "shop".try_into().unwrap();
        day.apply(&Op::Create { line, settings });
        day
    }

    fn apply(&mut self, op: &Op) {
        self.index += 1;
        let stamp = Stamp {
            index: self.index,
            op_no: 0,
            now_ms: self.now_ms,
            wall_ms: self.now_ms,
        };
        let mut events = Vec::new();
        let _ = self.lines.apply(stamp, op, Some(&mut events));
        for event in &events {
            let row = match event {
                Event::Token { version, .. } => {
                    let prev = std::mem::replace(&mut self.prev_version, *version);
                    serde_json::to_string(&TokenEvent::new(event, prev).unwrap())
                }
                Event::Line { .. } => serde_json::to_string(&LineEvent::new(event, 0).unwrap()),
            };
            self.rows.push(row.unwrap());
        }
    }

    fn line(&self) -> &nowserving_line::Line {
        self.lines.iter().next().unwrap()
    }

    fn at(&self, pick: u64) -> TokenRef {
        let live: Vec<_> = self.line().live_from((0, 0)).collect();
        let (lane, token) = match live.get(pick as usize % live.len().max(1)) {
            Some((lane, token, _)) => (*lane, *token),
            None => (0, 1),
        };
        TokenRef {
            incarnation: self.line().incarnation(),
            lane,
            token,
        }
    }

    fn step(&mut self, step: &Step) {
        let line = || "shop".try_into().unwrap();
        let op = match step {
            Step::Enter(key, vip) => Op::Enter {
                line: line(),
                key: key.map(|key| [b'k', key].into()),
                lane: Some(LANES[usize::from(*vip)].try_into().unwrap()),
            },
            Step::Claim(pick) => {
                let at = self.at(*pick);
                Op::Claim { line: line(), at }
            }
            Step::Complete(pick) => Op::Complete {
                units: None,
                line: line(),
                at: self.at(*pick),
                epoch: None,
            },
            Step::Leave(pick) => {
                let at = self.at(*pick);
                Op::Leave { line: line(), at }
            }
            Step::Move(pick) => {
                let at = self.at(*pick);
                let lane = |id: u8| LANES[usize::from(id)].try_into().unwrap();
                Op::Move {
                    line: line(),
                    lane: lane(at.lane),
                    token: at.token,
                    to: lane(1 - at.lane),
                }
            }
            Step::Admission(admission) => {
                let patch = SettingsPatch {
                    admission: Some(Change::Set(*admission)),
                    ..SettingsPatch::default()
                };
                Op::Configure {
                    line: line(),
                    patch: patch.into(),
                    if_version: None,
                    incarnation: None,
                }
            }
            Step::Call(n) => Op::CallNext {
                line: line(),
                n: *n,
                lane: None,
                call_id: self.index.to_string().into(),
            },
            Step::Take(pick) => {
                let TokenRef { lane, token, .. } = self.at(*pick);
                let lane = LANES[usize::from(lane)].try_into().unwrap();
                Op::Take {
                    line: line(),
                    by: TakeBy::Number { lane, token },
                    call_id: None,
                }
            }
            Step::Wait(ms) => {
                self.now_ms += u64::from(*ms);
                return;
            }
            // It does not know what was published last.
            Step::NewLeader => {
                self.prev_version = self.line().version();
                return;
            }
        };
        self.apply(&op);
    }

    fn archive<'a>(rows: impl IntoIterator<Item = &'a String>) -> Archive {
        let mut archive = Archive::default();
        rows.into_iter().for_each(|row| archive.add(row.as_bytes()));
        archive
    }
}

/// A row for each token, from the line's journal.
fn by_the_journal(day: &Day) -> Vec<TokenRow> {
    let mut rows: Vec<TokenRow> = Vec::new();
    let mut places = BTreeMap::new();
    let named = |lane: u8, token| Number {
        lane: LANES[usize::from(lane)].to_owned(),
        token,
    };
    for entry in day.line().journal_after(0) {
        let Journaled::Token {
            lane,
            token,
            entered,
            what,
        } = entry.what
        else {
            continue;
        };
        let id = (lane, token);
        if let JournaledToken::Entered { position } = what {
            places.insert(id, rows.len());
            let Number { lane, token } = named(lane, token);
            rows.push(TokenRow {
                lane,
                token,
                key: None,
                former: Vec::new(),
                state: "waiting",
                entered_at_ms: Some(entered.at.wall_ms),
                position: Some(position),
                admitted_at_ms: None,
                taken: false,
                claimed_at_ms: None,
                gone_at_ms: None,
                reason: None,
                left: None,
                waited_ms: None,
            });
        }
        let place = places[&id];
        let row = &mut rows[place];
        match what {
            JournaledToken::Entered { .. } => {}
            JournaledToken::Admitted { by, .. } => {
                row.state = "admitted";
                row.taken = by == AdmittedBy::Take;
                row.admitted_at_ms = Some(entry.at_ms);
                row.waited_ms = Some(entry.at_ms - entered.at.wall_ms);
            }
            JournaledToken::Claimed { .. } => {
                row.state = "in_checkout";
                row.claimed_at_ms = Some(entry.at_ms);
            }
            JournaledToken::Gone { reason, .. } => {
                row.left = Some(row.state);
                row.state = "gone";
                row.gone_at_ms = Some(entry.at_ms);
                row.reason = Some(reason.as_str().into());
            }
            JournaledToken::Moved { to_lane, to, .. } => {
                row.former.push(named(lane, token));
                let now = named(to_lane, to);
                (row.lane, row.token) = (now.lane, now.token);
                places.insert((to_lane, to), place);
            }
        }
    }
    rows
}

fn everything() -> Scope {
    Scope {
        tokens: true,
        ..Scope::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Twice, out of order and by several leaders, it says what the journal says.
    #[test]
    fn an_archive_agrees_with_the_journal(
        steps in prop::collection::vec(step(), 1..120), twice in any::<prop::sample::Index>(), turned: bool,
    ) {
        let mut day = Day::new();
        steps.iter().for_each(|step| day.step(step));
        let again = day.rows[twice.index(day.rows.len())].clone();
        let mut rows: Vec<&String> = day.rows.iter().chain([&again]).collect();
        if turned {
            rows.reverse();
        }
        let report = Report::new(&Day::archive(rows), &everything());
        prop_assert_eq!(report.duplicates, 1);
        prop_assert_eq!((&report.gaps[..], &report.missing_numbers[..]), (&[][..], &[][..]));
        let expected = by_the_journal(&day);
        let mut found = report.lines.into_iter().flat_map(|line| line.tokens.unwrap()).collect::<Vec<_>>();
        for row in &mut found {
            row.key = None;
        }
        prop_assert_eq!(&found, &expected);
        let taken = found.iter().filter(|row| row.taken).count() as u64;
        prop_assert_eq!(report.total.taken, taken);

        let counts = day.line().counts();
        let total = report.total;
        let moved = counts.gone_for(Reason::Moved);
        prop_assert_eq!(total.entered + moved, counts.issued);
        prop_assert_eq!(total.without_entered, 0);
        for reason in Reason::ALL {
            let expected = if reason == Reason::Moved { 0 } else { counts.gone_for(reason) };
            prop_assert_eq!(total.gone.get(reason.as_str()).copied().unwrap_or(0), expected);
        }
        for (state, count) in [
            (State::Waiting, counts.waiting),
            (State::Admitted, counts.admitted),
            (State::InCheckout, counts.in_checkout),
        ] {
            prop_assert_eq!(total.live.get(state.as_str()).copied().unwrap_or(0), count);
        }
    }

    /// Whatever event is missing, the report says so; only what comes after the last event can be lost silently.
    #[test]
    fn no_gap_looks_like_none(
        steps in prop::collection::vec(step(), 1..80), lost in any::<prop::sample::Index>(),
    ) {
        let mut day = Day::new();
        steps.iter().for_each(|step| day.step(step));
        let of_tokens = |row: &&String| row.contains("\"token\":");
        let count = day.rows.iter().filter(of_tokens).count();
        prop_assume!(count > 1);
        let nth = lost.index(count - 1);
        let mut seen = 0;
        let rows = day.rows.iter().filter(|row| {
            let this = of_tokens(row) && seen == nth;
            seen += usize::from(of_tokens(row));
            !this
        });
        let report = Report::new(&Day::archive(rows), &everything());
        prop_assert!(!report.gaps.is_empty());
    }
}

#[test]
fn a_day_has_those_who_entered_on_it() {
    let mut day = Day::new();
    day.step(&Step::Enter(Some(1), false));
    let noon = day.now_ms + 1;
    day.now_ms = noon;
    day.step(&Step::Enter(Some(2), true));
    day.step(&Step::Leave(0));
    let archive = Day::archive(&day.rows);
    let within = |from, until| {
        let scope = Scope {
            within_ms: Some((from, until)),
            ..everything()
        };
        Report::new(&archive, &scope)
    };
    let (morning, evening) = (within(0, noon), within(noon, u64::MAX));
    assert_eq!((morning.total.entered, evening.total.entered), (1, 1));
    // It ended later, but it is the morning's.
    assert_eq!(morning.total.gone.get("left"), Some(&1));
    assert_eq!(evening.total.live.get("admitted"), Some(&1));
    let tokens = evening.lines[0].tokens.as_ref().unwrap();
    assert_eq!(tokens[0].key.as_ref().unwrap().as_bytes(), b"k\x02");
    assert!(within(5, 6).lines.is_empty());
    let other = Scope {
        lines: vec!["other".try_into().unwrap()],
        ..Scope::default()
    };
    assert!(Report::new(&archive, &other).lines.is_empty());
}

#[test]
fn an_archive_that_begins_late_says_so() {
    let mut day = Day::new();
    for n in 0..4 {
        day.step(&Step::Enter(Some(n), false));
    }
    // The line's event and the first two tokens' are gone: of number 2 there is what comes later.
    let begin = day.rows.iter().position(|row| row.contains("\"token\":3"));
    day.step(&Step::Claim(1));
    let report = Report::new(&Day::archive(&day.rows[begin.unwrap()..]), &everything());
    assert_eq!((report.total.entered, report.total.without_entered), (2, 1));
    assert_eq!(report.gaps.len(), 1);
    assert_eq!(report.gaps[0].after_at_ms, None);
    let missing = &report.missing_numbers[0];
    assert_eq!((missing.count, missing.first), (1, 1));
    let rows = report.lines[0].tokens.as_ref().unwrap();
    let late = rows.iter().find(|row| row.token == 2).unwrap();
    assert_eq!((late.entered_at_ms, late.waited_ms), (None, None));
    assert_eq!(late.state, "in_checkout");
}

#[test]
fn two_events_of_one_version_that_differ_are_a_gap() {
    let mut day = Day::new();
    day.step(&Step::Enter(Some(1), false));
    let event = day.rows.last().unwrap().clone();
    // A new leader may know of another event before it.
    let mut repeated: TokenEvent = serde_json::from_str(&event).unwrap();
    repeated.prev_version = 0;
    day.rows.push(serde_json::to_string(&repeated).unwrap());
    let report = Report::new(&Day::archive(&day.rows), &everything());
    assert_eq!((report.duplicates, &report.differing[..]), (1, &[][..]));
    repeated.at_ms += 1;
    day.rows.push(serde_json::to_string(&repeated).unwrap());
    let created: LineEvent = serde_json::from_str(&day.rows[0]).unwrap();
    day.rows.push(day.rows[0].replace("created", "deleted"));
    let report = Report::new(&Day::archive(&day.rows), &everything());
    assert_eq!(report.duplicates, 3);
    let versions: Vec<u64> = report.differing.iter().map(|it| it.version).collect();
    assert_eq!(versions, [created.version, repeated.version]);
}

#[test]
fn what_the_subject_and_other_rows_are() {
    let mut day = Day::new();
    day.step(&Step::Enter(None, false));
    let event = day.rows.last().unwrap();
    let mut archive = Archive::default();
    archive.add(format!("nowserving.event.shop.token.normal.1 {event}").as_bytes());
    archive.add(br#"{"line": "shop", "lanes": [], "prev_version": 3}"#);
    archive.add(br#"{"line": "s p", "event": "created", "token": 1}"#);
    archive.add(b"[]");
    assert_eq!((archive.rows, archive.unreadable), (4, 2));
    assert_eq!(archive.first_unreadable.unwrap().row, 3);
    assert_eq!(archive.lines.len(), 1);
}

#[test]
fn fuzz_a_row() {
    let rows = [
        r#"{"line": "shop", "incarnation": 1, "version": 5, "prev_version": 4, "at_ms": 9, "lane": "normal", "token": 3,
            "event": "entered", "position": 2, "key": "k"}"#,
        r#"{"line": "shop", "incarnation": 1, "version": 6, "at_ms": 9, "event": "phase", "phase": "open"}"#,
        r#"nowserving.event.shop.line {"line": "shop", "event": "created"}"#,
    ];
    let seeds = rows.iter().map(|row| row.as_bytes().to_vec()).collect();
    nowserving_testkit::target!(seeds, |bytes| {
        let mut archive = Archive::default();
        archive.begin("fuzz");
        archive.add(bytes);
    });
}
