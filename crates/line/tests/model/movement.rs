//! Invariants over every step: the state changed only as the rules allow.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_line::{
    AdmittedBy, Event, Line, LineChange, LineName, Lines, Op, State, TokenChange,
};

use crate::naive::Id;
use crate::shard::Naive;

/// A line before the step.
#[derive(Debug, Clone)]
pub struct Seen {
    incarnation: u64,
    version: u64,
    epoch: u64,
    pointers: BTreeMap<u8, (u64, u64, u64, u64)>,
    held: u64,
    seats: u64,
    holds_back: bool,
    /// How often its gate was set to hold nobody back.
    opened: u64,
    positions: BTreeMap<Id, u64>,
    /// The last number ever admitted, by lane.
    admitted: BTreeMap<u8, u64>,
    /// Those that were admitted out of order.
    taken: BTreeSet<Id>,
    /// The last number ever called, by lane.
    called: BTreeMap<u8, u64>,
    /// The smallest position that a token was told.
    told: BTreeMap<Id, u64>,
}

/// How a line moved by one step.
pub fn movement(
    before: &BTreeMap<LineName, Seen>,
    (lines, naive): (&Lines, &Naive),
    op: Option<&Op>,
    events: &[Event],
) -> BTreeMap<LineName, Seen> {
    let scheduled = |event: &Event| {
        let phase = matches!(
            event,
            Event::Line {
                what: LineChange::Phase { .. },
                ..
            }
        );
        // What is free in the new window is free at once.
        let renewed = matches!(
            event,
            Event::Line {
                what: LineChange::QuotaRenewed,
                ..
            }
        );
        let seats = matches!(
            event,
            Event::Line {
                what: LineChange::Seats { .. },
                ..
            }
        );
        phase
            || renewed
            || seats
            || matches!(
                event,
                Event::Line {
                    what: LineChange::Configured,
                    ..
                }
            )
    };
    let by_word = matches!(
        op,
        Some(Op::Configure { .. } | Op::Delete { .. } | Op::CapacityTold { .. })
    );
    let operator = by_word || events.iter().any(scheduled);
    let mut after = BTreeMap::new();
    for line in lines.iter() {
        let same = |seen: &&Seen| seen.incarnation == line.incarnation();
        let old = before.get(line.name()).filter(same);
        let opened = naive.lines[line.name()].opened;
        let mut seen = see(line, opened, old, lines.now_ms());
        for event in events.iter().filter(|event| event.line() == line.name()) {
            assert!(event.version() <= seen.version);
            in_order(event, &mut seen);
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

/// Rule 3: within a lane the next one admitted has the larger number. So has the next one called,
/// and nobody is called twice.
fn in_order(event: &Event, seen: &mut Seen) {
    let Event::Token {
        lane_id,
        token,
        what,
        ..
    } = event
    else {
        return;
    };
    let last = match what {
        // Out of order.
        TokenChange::Admitted {
            by: AdmittedBy::Take,
            ..
        } => {
            seen.taken.insert((*lane_id, *token));
            return;
        }
        TokenChange::Admitted { .. } => seen.admitted.entry(*lane_id).or_default(),
        TokenChange::Position { position } => {
            let least = seen.told.entry((*lane_id, *token)).or_insert(u64::MAX);
            assert!(
                position < least,
                "{token} comes to {position} after {least}"
            );
            *least = *position;
            return;
        }
        TokenChange::CallAhead => seen.called.entry(*lane_id).or_default(),
        _ => return,
    };
    assert!(*token > *last, "{token} {what:?} after {last}");
    assert!(!seen.taken.contains(&(*lane_id, *token)), "it was taken");
    *last = *token;
}

fn see(line: &Line, opened: u64, old: Option<&Seen>, now_ms: u64) -> Seen {
    let waiting = line.live_from((0, 0)).filter_map(|(lane, token, live)| {
        if live.state() != State::Waiting {
            return None;
        }
        let before = line.live_from((lane, 0));
        let before = before.take_while(|(l, t, _)| (*l, *t) < (lane, token));
        let ahead = before
            .filter(|(_, _, live)| live.state() == State::Waiting)
            .count();
        Some(((lane, token), ahead as u64 + 1))
    });
    let epochs = line
        .live_from((0, 0))
        .filter_map(|(_, _, live)| live.epoch());
    let counts = line.counts();
    let board = line.board(now_ms);
    let pointers = board.lanes.iter().map(|lane| {
        let pointers = (
            lane.done_through,
            lane.admitted_through,
            lane.accepts_through,
            lane.next_token,
        );
        (lane.lane_id, pointers)
    });
    Seen {
        incarnation: line.incarnation(),
        version: line.version(),
        epoch: epochs
            .max()
            .unwrap_or(0)
            .max(old.map_or(0, |old| old.epoch)),
        pointers: pointers.collect(),
        held: counts.admitted + counts.in_checkout,
        seats: line.seats().into(),
        holds_back: line.settings().gate.holds_back(),
        opened,
        positions: waiting.collect(),
        admitted: old.map(|old| old.admitted.clone()).unwrap_or_default(),
        taken: old.map(|old| old.taken.clone()).unwrap_or_default(),
        called: old.map(|old| old.called.clone()).unwrap_or_default(),
        told: old.map(|old| old.told.clone()).unwrap_or_default(),
    }
}

fn compare(old: &Seen, new: &Seen, line: &Line, operator: bool) {
    // Rule 1: never over the limit, but for seats held already when it was lowered.
    // They may fall after the operation has admitted somebody: a backend was found silent.
    let seats = match operator {
        true => new.seats.max(old.seats),
        false => new.seats,
    };
    // Or when the gate held nobody back.
    let gated = old.holds_back && new.holds_back && old.opened == new.opened;
    assert!(
        !gated || new.held <= seats.max(old.held),
        "{} hold {seats} seats",
        new.held
    );
    assert!(new.version >= old.version && new.epoch >= old.epoch);
    // Under a rate what a lane of a limit of its own accepts grows by itself.
    let paced = line.settings().admission_rate.is_some();
    if (new.pointers != old.pointers && !paced) || new.held != old.held {
        assert!(new.version > old.version, "a change has a version");
    }
    for (lane, old) in &old.pointers {
        let Some(new) = new.pointers.get(lane) else {
            assert!(operator, "only operators remove lanes");
            continue;
        };
        pointers_moved(*old, *new, line, operator);
    }
    // Rule 5: a position never grows.
    for (id, position) in &new.positions {
        let was = old.positions.get(id).copied().unwrap_or(*position);
        assert!(*position <= was, "position of {id:?} grew");
    }
}

/// Rule 4: pointers never fall but over numbers that nobody holds, and then by an operator, or what
/// a lane accepts by what others take.
fn pointers_moved(
    (done, admitted, accepts, next): (u64, u64, u64, u64),
    (new_done, new_admitted, new_accepts, new_next): (u64, u64, u64, u64),
    line: &Line,
    operator: bool,
) {
    let others = line.settings().lanes.len() > 1 || line.settings().quota.is_some();
    assert!(new_done >= done && new_next >= next);
    let least = |pointer: u64, may_fall: bool| {
        if may_fall {
            pointer.min(next - 1)
        } else {
            pointer
        }
    };
    assert!(new_admitted >= least(admitted, operator), "pointer fell");
    assert!(
        new_accepts >= least(accepts, operator || others),
        "pointer fell"
    );
}
