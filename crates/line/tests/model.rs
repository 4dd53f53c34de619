//! Random operations against a naive model that recounts everything, checked after every step.
//!
//! It must be able to fail: the last test breaks a rule, and requires that.
#![allow(clippy::unwrap_used)]

#[path = "model/check.rs"]
mod check;
#[path = "model/command.rs"]
mod command;
mod common;
#[path = "model/held_back.rs"]
mod held_back;
#[path = "model/movement.rs"]
mod movement;
#[path = "model/naive.rs"]
mod naive;
#[path = "model/naive_callers.rs"]
mod naive_callers;
#[path = "model/naive_calls.rs"]
mod naive_calls;
#[path = "model/naive_draw.rs"]
mod naive_draw;
#[path = "model/naive_gate.rs"]
mod naive_gate;
#[path = "model/naive_moves.rs"]
mod naive_moves;
#[path = "model/naive_notices.rs"]
mod naive_notices;
#[path = "model/naive_ops.rs"]
mod naive_ops;
#[path = "model/naive_quota.rs"]
mod naive_quota;
#[path = "model/put_back.rs"]
mod put_back;
#[path = "model/rules.rs"]
mod rules;
#[path = "model/shard.rs"]
mod shard;
#[path = "model/story.rs"]
mod story;

use std::collections::BTreeMap;

use command::{Command, LINES, command};
use common::Restart;
use movement::Seen;
use naive::Answer;
use nowserving_line::{
    BadField, Event, Limits, LineChange, LineName, Lines, Op, Refused, Reply, Stamp, TokenChange,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use shard::Naive;

/// Small, so that a handful of tokens runs into them.
const LIMITS: Limits = Limits {
    hash_seed: 7,
    keys_read: 2,
    work_max: 3,
    gone_kept: 6,
    journal_kept: 20,
    journal_changes_bytes: 4_000,
    calls_kept: 4,
    called_kept: 6,
};
/// The follower reads the keys of all its tokens one after the other.
const LIMITS_OF_FOLLOWER: Limits = Limits {
    keys_read: u8::MAX,
    ..LIMITS
};

struct Run {
    lines: Lines,
    /// A follower, which makes no events and is never restarted.
    follower: Lines,
    naive: Naive,
    index: u64,
    /// The operation's place in its entry; `None` if the next one begins another entry.
    op_no: Option<u32>,
    now_ms: u64,
    /// Goes on by itself from entry to entry and jumps about: nothing must depend on it.
    wall_ms: u64,
    seen: BTreeMap<LineName, Seen>,
    backups: BTreeMap<LineName, put_back::Backup>,
    /// Versions and epochs of a name only grow, over all its incarnations.
    newest: BTreeMap<LineName, (u64, u64)>,
}

impl Run {
    fn new() -> Self {
        Self {
            lines: Lines::with_limits(LIMITS),
            follower: Lines::with_limits(LIMITS_OF_FOLLOWER),
            naive: Naive {
                work_max: LIMITS.work_max,
                gone_kept: LIMITS.gone_kept,
                ..Naive::default()
            },
            index: 0,
            op_no: None,
            now_ms: 10_000,
            wall_ms: 70_000,
            seen: BTreeMap::new(),
            backups: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    /// `joins`: if it can, it goes into the entry of the one before.
    fn step(&mut self, line: usize, command: &Command, joins: bool) {
        let clock = matches!(command, Command::Clock { .. });
        if !joins || clock {
            self.op_no = None;
        }
        let line = LineName::try_from(LINES[line]).unwrap();
        if let Command::Clock { forward, wall, .. } = command {
            self.now_ms += u64::from(*forward);
            self.wall_ms = wall.map_or(self.wall_ms, u64::from);
        }
        let back = matches!(command, Command::Clock { back: true, .. });
        let op = command.to_op(line.clone(), &self.naive);
        let mut events = Vec::new();
        match (&op, command) {
            (Some(op), _) => self.apply(op, back, &mut events),
            (None, Command::Backup) => self.back_up(&line),
            (None, Command::PutBack { overwrite }) => self.put_back(&line, *overwrite, &mut events),
            (None, _) => self.restart(),
        }
        if clock || op.is_none() {
            // An entry has one time, and a dump is taken between entries.
            self.op_no = None;
        }
        check::against_recount(&self.lines, &self.naive);
        held_back::by_taking_it_away(&self.lines, &self.naive);
        self.seen =
            movement::movement(&self.seen, (&self.lines, &self.naive), op.as_ref(), &events);
        self.over_incarnations(&events);
    }

    fn apply(&mut self, op: &Op, back: bool, events: &mut Vec<Event>) {
        let op_no = match self.op_no {
            Some(op_no) => op_no + 1,
            None => {
                self.index += 1;
                self.wall_ms += 3;
                self.naive.begin_entry();
                7
            }
        };
        self.op_no = Some(op_no);
        // A new leader's clock can start behind: the shard's must not follow.
        let now_ms = if back { self.now_ms / 2 } else { self.now_ms };
        let stamp = Stamp {
            index: self.index,
            op_no,
            now_ms,
            wall_ms: self.wall_ms,
        };
        let (mut expected_events, incarnation) =
            (Vec::new(), self.index * 4_096 + u64::from(op_no));
        let before = self.lines.dump();
        let refusal = self.expected_refusal(op);
        let reply = self.lines.apply(stamp, op, Some(events));
        if reply.is_ok() && !self.is_astray(op) {
            self.tell_etas(op.line().clone());
        }
        let followed = self.follower.apply(stamp, op, None);
        assert_eq!(reply, followed, "the follower's reply");
        let expected = self.naive.apply(
            incarnation,
            (now_ms, self.wall_ms),
            op,
            &mut expected_events,
        );
        if let Some(refusal) = refusal {
            assert_eq!(reply.as_ref().err(), refusal.as_ref(), "as expected");
        }
        self.compare_reply(op, reply.clone(), expected);
        let events_made: Vec<Event> = events.iter().cloned().map(without_words).collect();
        assert_eq!(events_made, expected_events, "events of {op:?}");
        if reply.is_err() {
            let mut after = self.lines.dump();
            after.head.now_ms = before.head.now_ms;
            assert_eq!(before, after, "an error means no effect");
        }
    }

    /// Whether the operation names a line that is not there, so that it does nothing.
    fn is_astray(&self, op: &Op) -> bool {
        let line = self.naive.lines.get(op.line());
        let known = line.map(|line| line.incarnation);
        match op {
            Op::Recycle { incarnation, .. }
            | Op::Touch { incarnation, .. }
            | Op::Kick { incarnation, .. }
            | Op::RenewQuota { incarnation, .. }
            | Op::SealDraw { incarnation, .. }
            | Op::RunBackground { incarnation, .. } => Some(*incarnation) != known,
            _ => false,
        }
    }

    /// The model takes ETAs from the line.
    pub fn tell_etas(&mut self, name: LineName) {
        let (line, model) = (self.lines.get(&name), self.naive.lines.get_mut(&name));
        let (Some(line), Some(model)) = (line, model) else {
            return;
        };
        let etas = line.live_from((0, 0)).filter_map(|(lane, token, _)| {
            let at = check::at(line, (lane, token));
            let status = line.status(at, self.lines.now_ms()).unwrap();
            Some(((lane, token), status.eta_ms?))
        });
        model.etas = etas.collect();
    }

    /// The refusal with which a leader answers an `enter` or a `callback` without a log entry.
    fn expected_refusal(&self, op: &Op) -> Option<Option<Refused>> {
        let line = self.lines.get(op.line())?;
        let now_ms = self.now_ms.max(self.lines.now_ms());
        match op {
            Op::Enter { key, lane, .. } => {
                Some(line.would_refuse_enter(key.as_deref(), lane.as_ref(), now_ms))
            }
            Op::Callback { key, lane, .. } => {
                Some(line.would_refuse_callback(key, lane.as_ref(), now_ms))
            }
            _ => None,
        }
    }

    fn compare_reply(
        &self,
        op: &Op,
        reply: Result<Reply, Refused>,
        expected: Result<Answer, Refused>,
    ) {
        let reply = reply.map(|reply| match reply {
            Reply::Token(at) => {
                let line = self.lines.get(op.line()).unwrap();
                let status = line.status(at, self.naive.now_ms).unwrap();
                assert_eq!(status.at, at, "a reply names the token as it is called now");
                Answer::Token((at.lane, at.token))
            }
            Reply::Line {
                incarnation,
                version,
            } => Answer::Line {
                incarnation,
                version,
            },
            Reply::Callback { position } => Answer::Callback(position),
            Reply::Deleted { remaining } => Answer::Remaining(remaining),
            Reply::Recycled { count } => Answer::Recycled(count),
            Reply::Kicked { ended, taken } => Answer::Kicked(ended, taken),
            Reply::Called => Answer::Called,
            Reply::Nothing => Answer::Nothing,
        });
        let reply = reply.map_err(|refused| match refused {
            // In which words is the crate's own.
            Refused::BadField(bad) => BadField::new(bad.field, "").into(),
            refused => refused,
        });
        assert_eq!(reply, expected);
    }

    fn restart(&mut self) {
        let dump = self.lines.dump();
        self.lines = Lines::restore_with(LIMITS, dump.clone()).unwrap();
        assert_eq!(self.lines.dump(), dump, "nothing is lost over a restart");
        for name in LINES {
            self.tell_etas(name.try_into().unwrap());
        }
        for line in self.naive.lines.values_mut() {
            line.note_callers_due(self.naive.now_ms);
        }
    }

    fn over_incarnations(&mut self, events: &[Event]) {
        for event in events {
            let (version, epoch) = self.newest.entry(event.line().clone()).or_default();
            assert!(
                event.version() > *version,
                "versions grow over incarnations"
            );
            *version = event.version();
            if let Event::Token {
                lane_id,
                token,
                what: nowserving_line::TokenChange::Claimed { .. },
                ..
            } = event
            {
                let line = self.lines.get(event.line()).unwrap();
                let status = line.status(check::at(line, (*lane_id, *token)), 0).unwrap();
                let given = status.epoch;
                assert!(given > Some(*epoch), "epochs grow over incarnations");
                *epoch = given.unwrap();
            }
        }
    }

    /// Jobs end, and then nobody waits for a seat that is free.
    fn finish(&mut self) {
        for _ in 0..100 {
            let job = self
                .lines
                .background_work(self.lines.now_ms())
                .next()
                .map(|(line, _)| line.as_str().to_owned());
            let Some(job) = job else {
                assert_eq!(
                    self.lines.dump(),
                    self.follower.dump(),
                    "the follower's state"
                );
                return;
            };
            let line = LINES.iter().position(|line| **line == *job).unwrap();
            self.step(line, &Command::Step, false);
        }
        panic!("a job never ends");
    }
}

/// Why a scheduled change failed is in the crate's own words, and forecasts are not in the model.
fn without_words(mut event: Event) -> Event {
    match &mut event {
        Event::Line {
            what: LineChange::ScheduleFailed { wrong, .. },
            ..
        } => *wrong = BadField::new("", ""),
        Event::Token {
            what: TokenChange::Admitted { eta, .. },
            ..
        } => *eta = None,
        _ => {}
    }
    event
}

/// Seats and bound of the lines, after how many commands a line opens by lot, and the commands.
type Case = ((u8, u8), Option<usize>, Vec<(usize, Command, bool)>);

fn case() -> impl Strategy<Value = Case> {
    (
        (1..5u8, 0..12u8),
        prop::option::weighted(0.4, 5..60usize),
        prop::collection::vec(command(), 1..120),
    )
}

fn agrees(((seats, queue_limit), opens_by_lot_after, commands): Case) {
    let mut run = Run::new();
    for line in 0..LINES.len() {
        run.step(line, &Command::Create { seats, queue_limit }, false);
    }
    if opens_by_lot_after.is_some() {
        run.step(0, &Command::awaiting_a_draw(), false);
        run.step(0, &Command::Seal { seed: seats }, false);
    }
    for (done, (line, command, joins)) in commands.iter().enumerate() {
        if opens_by_lot_after == Some(done) {
            run.step(0, &Command::open(), false);
        }
        run.step(*line, command, *joins);
    }
    run.finish();
}

/// A failing case is kept beside the source and run first from then on.
fn with_regressions() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        max_shrink_iters: 4_096,
        ..ProptestConfig::with_cases(10_000)
    }
}

proptest! {
    #![proptest_config(with_regressions())]

    #[test]
    fn agrees_with_a_recount(case in case()) {
        agrees(case);
    }
}

/// With a rule broken: a token that leaves while waiting admits another, as if it had made a seat free.
#[test]
fn without_the_hole_rule_it_does_not_agree() {
    use proptest::test_runner::{TestError, TestRunner};

    if !nowserving_bite::POSSIBLE {
        return;
    }
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        max_shrink_iters: 0,
        ..ProptestConfig::with_cases(10_000)
    });
    nowserving_bite::set(Some(nowserving_bite::Break::S10Holes));
    let ran = runner.run(&case(), |case| {
        agrees(case);
        Ok(())
    });
    nowserving_bite::set(None);
    assert!(matches!(ran, Err(TestError::Fail(..))), "{ran:?}");
}
