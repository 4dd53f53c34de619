//! What must hold after every step: the state is what a recount says, and moved only as the rules
//! allow.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{Event, Line, LineName, Lines, Op, Reason, Refused, State, TokenChange};

use crate::command::{KEYS, key};
use crate::naive::NaiveLine;
use crate::shard::Naive;

/// What was seen of a line before the step.
#[derive(Debug, Clone)]
pub struct Seen {
    incarnation: u64,
    version: u64,
    epoch: u64,
    pointers: (u64, u64, u64, u64),
    held: u64,
    positions: BTreeMap<u64, u64>,
    /// The last number ever admitted.
    admitted: u64,
}

/// Everything about the shard, against the model.
pub fn against_recount(lines: &Lines, naive: &Naive) {
    assert_eq!(lines.now_ms(), naive.now_ms, "clock");
    let names: Vec<_> = lines.iter().map(Line::name).collect();
    assert_eq!(names, naive.lines.keys().collect::<Vec<_>>(), "lines");
    let mut jobs = Vec::new();
    for (name, model) in &naive.lines {
        let Some(line) = lines.get(name) else {
            panic!("line {name} is missing");
        };
        line_against_recount(line, model, naive);
        if model.deleting || (model.free() > 0 && model.first_waiting().is_some()) {
            jobs.push((name, model.incarnation));
        }
    }
    assert_eq!(lines.jobs().collect::<Vec<_>>(), jobs, "jobs");
}

fn line_against_recount(line: &Line, model: &NaiveLine, naive: &Naive) {
    assert_eq!(line.incarnation(), model.incarnation);
    assert_eq!(line.version(), model.version, "version");
    assert_eq!(line.settings(), &model.settings);
    assert_eq!(line.settings_version(), model.settings_version);
    assert_eq!(line.deleting(), model.deleting.then(|| model.live()));
    let board = line.board(naive.now_ms);
    assert_eq!(board.admitted, model.count(State::Admitted), "admitted");
    assert_eq!(
        board.in_checkout,
        model.count(State::InCheckout),
        "in checkout"
    );
    assert_eq!(board.lanes.len(), 1);
    assert_eq!(
        board.lanes[0].waiting,
        model.count(State::Waiting),
        "waiting"
    );
    assert_eq!(pointers(line), model.pointers(), "the four pointers");
    counts(line, model);
    keys(line, model);
    for token in 1..=model.tokens.len() as u64 {
        token_against_recount(line, model, token, naive);
    }
    for token in [0, model.tokens.len() as u64 + 1] {
        let status = line.status(at(line, token), 0);
        assert_eq!(status, Err(Refused::TicketInvalid));
    }
}

/// S10: what was issued is somewhere, once.
fn counts(line: &Line, model: &NaiveLine) {
    let counts = line.counts();
    assert_eq!(counts.issued, model.tokens.len() as u64, "issued");
    let gone: u64 = counts.gone.iter().sum();
    let sum = counts.waiting + counts.admitted + counts.in_checkout + gone;
    assert_eq!(
        counts.issued, sum,
        "issued = waiting + admitted + in_checkout + gone"
    );
    for reason in Reason::ALL {
        let gone = model.tokens.iter().filter(|t| t.reason == Some(reason));
        assert_eq!(counts.gone_for(reason), gone.count() as u64, "{reason:?}");
    }
}

/// A key has at most one live token, and it is found.
fn keys(line: &Line, model: &NaiveLine) {
    for k in 0..KEYS {
        let key = key(k);
        let found = line.find(&key).map(|at| at.token);
        assert_eq!(found, model.find(&key), "key {k}");
    }
    let live = line.live_from((0, 0)).filter_map(|(_, _, live)| live.key());
    let live: Vec<&[u8]> = live.collect();
    let distinct: BTreeSet<_> = live.iter().collect();
    assert_eq!(live.len(), distinct.len(), "one live token a key");
}

fn token_against_recount(line: &Line, model: &NaiveLine, token: u64, naive: &Naive) {
    let tok = &model.tokens[token as usize - 1];
    let at = at(line, token);
    let status = match line.status(at, naive.now_ms) {
        Ok(status) => status,
        Err(refused) => panic!("status of {token}: {refused}"),
    };
    assert_eq!(status.state, tok.state, "state of {token}");
    let position = (tok.state == State::Waiting).then(|| model.position(token));
    assert_eq!(status.position, position, "position of {token}");
    assert_eq!(status.ahead, position.map(|p| p - 1));
    assert_eq!(status.admitted_through, model.pointers().1);
    assert_eq!((status.at, status.version), (at, model.version));
    let live = line.live(0, token);
    assert_eq!(
        live.map(|live| live.stage()),
        model.stage(token),
        "stage of {token}"
    );
    if tok.state == State::Gone {
        let remembered = model.remembers(tok, naive.gone_kept);
        let reason = tok.reason.filter(|_| remembered);
        assert_eq!(status.reason, Some(reason), "reason of {token}");
        assert_eq!(status.epoch, tok.epoch.filter(|_| remembered));
        assert_eq!(status.expires_at_ms, None);
    } else {
        let held = tok.state != State::Waiting;
        assert_eq!(status.reason, None);
        assert_eq!(status.epoch, tok.epoch);
        assert_eq!(status.entered_at_ms, Some(tok.entered_at_ms));
        assert_eq!(status.expires_at_ms, held.then_some(tok.deadline_ms));
        assert_eq!(live.and_then(|live| live.key()), tok.key.as_deref());
    }
    if let Some(position) = position {
        holes(line, model, token, position);
    }
}

/// A watcher's arithmetic gives the position too.
fn holes(line: &Line, model: &NaiveLine, token: u64, position: u64) {
    let Some(holes) = line.holes_before(at(line, token)) else {
        panic!("too many holes among {}", model.tokens.len());
    };
    let mut missing = 0;
    let mut last = model.pointers().1 + 1;
    for (from, to) in holes {
        assert!(last < from && from <= to && to < token, "ranges in order");
        let waits = |n: u64| model.tokens[n as usize - 1].state == State::Waiting;
        assert!(!(from..=to).any(waits), "nobody waits in a hole");
        missing += to - from + 1;
        last = to;
    }
    assert_eq!(token - model.pointers().1 - missing, position, "by holes");
}

/// How a line moved by one step.
pub fn movement(
    before: &BTreeMap<LineName, Seen>,
    lines: &Lines,
    op: Option<&Op>,
    events: &[Event],
) -> BTreeMap<LineName, Seen> {
    let operator = matches!(op, Some(Op::Configure { .. } | Op::Delete { .. }));
    let mut after = BTreeMap::new();
    for line in lines.iter() {
        let same = |seen: &&Seen| seen.incarnation == line.incarnation();
        let old = before.get(line.name()).filter(same);
        let mut seen = see(line, old);
        for event in events.iter().filter(|event| event.line() == line.name()) {
            assert!(event.version() <= seen.version);
            seen.admitted = admission_order(event, seen.admitted);
        }
        if let Some(old) = old {
            compare(old, &seen, line, operator);
        }
        after.insert(line.name().clone(), seen);
    }
    let versions: Vec<u64> = events.iter().map(Event::version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "one version an event");
    after
}

/// Rule 3: within a lane the next one admitted has the larger number.
fn admission_order(event: &Event, last: u64) -> u64 {
    match event {
        Event::Token {
            token,
            what: TokenChange::Admitted,
            ..
        } => {
            assert!(*token > last, "{token} admitted after {last}");
            *token
        }
        _ => last,
    }
}

fn see(line: &Line, old: Option<&Seen>) -> Seen {
    let waiting = line.live_from((0, 0)).filter_map(|(_, token, _)| {
        let status = line.status(at(line, token), 0).ok()?;
        Some((token, status.position?))
    });
    let epochs = line
        .live_from((0, 0))
        .filter_map(|(_, _, live)| live.epoch());
    let counts = line.counts();
    Seen {
        incarnation: line.incarnation(),
        version: line.version(),
        epoch: epochs
            .max()
            .unwrap_or(0)
            .max(old.map_or(0, |old| old.epoch)),
        pointers: pointers(line),
        held: counts.admitted + counts.in_checkout,
        positions: waiting.collect(),
        admitted: old.map_or(0, |old| old.admitted),
    }
}

fn compare(old: &Seen, new: &Seen, line: &Line, operator: bool) {
    // Rule 1: never over the limit, but for seats held already when it was lowered.
    let seats = u64::from(line.settings().seats);
    assert!(
        new.held <= seats.max(old.held),
        "{} hold {seats} seats",
        new.held
    );
    assert!(new.version >= old.version && new.epoch >= old.epoch);
    if new.pointers != old.pointers || new.held != old.held {
        assert!(new.version > old.version, "a change has a version");
    }
    // Rule 4: pointers never fall but over numbers that nobody holds, and then by an operator.
    let (done, admitted, accepts, next) = old.pointers;
    let (new_done, new_admitted, new_accepts, new_next) = new.pointers;
    assert!(new_done >= done && new_next >= next);
    let admitted = if operator {
        admitted.min(next - 1)
    } else {
        admitted
    };
    let accepts = if operator {
        accepts.min(next - 1)
    } else {
        accepts
    };
    assert!(
        new_admitted >= admitted && new_accepts >= accepts,
        "pointers fell"
    );
    // Rule 5: a position never grows.
    for (token, position) in &new.positions {
        let was = old.positions.get(token).copied().unwrap_or(*position);
        assert!(*position <= was, "position of {token} grew");
    }
}

fn pointers(line: &Line) -> (u64, u64, u64, u64) {
    let lane = line.board(0).lanes[0].clone();
    (
        lane.done_through,
        lane.admitted_through,
        lane.accepts_through,
        lane.next_token,
    )
}

fn at(line: &Line, token: u64) -> nowserving_line::TokenRef {
    nowserving_line::TokenRef {
        incarnation: line.incarnation(),
        lane: 0,
        token,
    }
}
