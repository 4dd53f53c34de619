//! Invariants after every step: the state agrees with a recount.

use std::collections::BTreeSet;

use nowserving_line::{
    Board, GoneFrom, Line, LineName, Lines, ListOrder, ListedThrough, Reason, Refused, RefusedCode,
    State, TokenRef, Totals,
};

use crate::command::{CALLS, KEYS, key};
use crate::naive::{Id, NaiveLine, UNIT};
use crate::shard::Naive;
use crate::story;

/// Everything about the shard, against the model.
pub fn against_recount(lines: &Lines, naive: &Naive) {
    assert_eq!(lines.now_ms(), naive.now_ms, "clock");
    let names: Vec<_> = lines.iter().map(Line::name).collect();
    assert_eq!(names, naive.lines.keys().collect::<Vec<_>>(), "lines");
    let (mut jobs, mut wake_ms) = (BTreeSet::new(), None);
    for (name, model) in &naive.lines {
        let Some(line) = lines.get(name) else {
            panic!("line {name} is missing");
        };
        line_against_recount(line, model, naive);
        if has_job(model, naive.now_ms) {
            jobs.insert((name, model.incarnation));
        } else if let Some(ms) = wakes(line, model, naive.now_ms) {
            wake_ms = Some(wake_ms.map_or(ms, |least: u64| least.min(ms)));
        }
    }
    let listed: Vec<(&LineName, u64)> = lines.background_work(naive.now_ms).collect();
    assert_eq!(listed.len(), jobs.len(), "jobs");
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), jobs, "jobs");
    by_wall_clock(lines, naive);
    totals_against_recount(lines, naive);
    if let Some(wake_ms) = wake_ms {
        assert!(
            lines.next_background_ms().is_some_and(|ms| ms <= wake_ms),
            "wake"
        );
    }
}

/// Every line with something on its schedule, or a quota to renew, is listed from that time on.
fn by_wall_clock(lines: &Lines, naive: &Naive) {
    let due = naive.lines.iter().filter_map(|(name, model)| {
        let due_ms = model.next_by_wall_ms()?;
        Some((due_ms, name, model.incarnation))
    });
    let due: BTreeSet<(u64, &LineName, u64)> = due.collect();
    assert_eq!(lines.next_by_wall_clock_ms(), due.first().map(|it| it.0));
    for at_ms in due.iter().map(|it| it.0) {
        let listed = lines.due_by_wall_clock(at_ms);
        let until = due.iter().filter(|it| it.0 <= at_ms);
        assert!(listed.eq(until.map(|it| (it.1, it.2))), "due at {at_ms}");
    }
}

fn totals_against_recount(lines: &Lines, naive: &Naive) {
    let count = |state| naive.lines.values().map(|model| model.count(state)).sum();
    let recount = Totals {
        waiting: count(State::Waiting),
        admitted: count(State::Admitted),
        in_checkout: count(State::InCheckout),
    };
    assert_eq!(*lines.totals(), recount, "totals");
}

fn has_job(model: &NaiveLine, now_ms: u64) -> bool {
    if model
        .silence_due_ms()
        .is_some_and(|due_ms| due_ms <= now_ms)
    {
        return true;
    }
    if model.phase() == nowserving_line::Phase::Closed {
        return model.deleting || model.live() > 0;
    }
    if model.has_to_draw() || model.callers_due_ms.is_some_and(|due_ms| due_ms <= now_ms) {
        return true;
    }
    let waiting = model.count(State::Waiting) > 0;
    let admits = model.may_admit() && !model.is_called();
    waiting
        && (model.sold_out() || admits || !model.to_call().is_empty() || model.to_tell().is_some())
}

/// When a line that waits for nothing but its rate has something to do.
fn wakes(line: &Line, model: &NaiveLine, now_ms: u64) -> Option<u64> {
    let waits = model.count(State::Waiting) > 0 && !model.is_called() && model.holds_back();
    let paced = waits && model.may_admit_but_for_rate();
    let rate = model.settings.admission_rate.filter(|_| paced);
    let wake_ms = rate.map(|rate| {
        let missing = UNIT.saturating_sub(model.saved);
        now_ms + missing.div_ceil(rate.per_second_micro.into()) as u64
    });
    assert_eq!(
        line.next_by_rate_ms(),
        wake_ms,
        "the rate allows the next one"
    );
    let due = [wake_ms, model.callers_due_ms, model.silence_due_ms()];
    due.into_iter().flatten().min()
}

fn line_against_recount(line: &Line, model: &NaiveLine, naive: &Naive) {
    assert_eq!(line.incarnation(), model.incarnation);
    assert_eq!(line.version(), model.version, "version");
    assert_eq!(line.settings(), &model.settings);
    assert_eq!(line.settings_version(), model.settings_version);
    assert_eq!(
        line.deleting(),
        model.deleting.then(|| model.left_to_delete())
    );
    assert_eq!(line.phase(), model.phase());
    let board = line.board(naive.now_ms);
    assert_eq!(u64::from(board.seats), model.seats(), "seats");
    assert_eq!(board.admitted, model.count(State::Admitted), "admitted");
    let in_checkout = model.count(State::InCheckout);
    assert_eq!(board.in_checkout, in_checkout, "in checkout");
    assert_eq!(board.lanes.len(), model.lanes().len());
    for (shown, (lane, set)) in board.lanes.iter().zip(model.lanes()) {
        assert_eq!((&shown.lane, shown.lane_id), (&set.name, lane));
        assert_eq!(shown.waiting, model.waiting(lane).len() as u64, "waiting");
        let pointers = (
            shown.done_through,
            shown.admitted_through,
            shown.accepts_through,
            shown.next_token,
        );
        assert_eq!(pointers, model.pointers(lane, &set), "the four pointers");
    }
    lane_uses(line, model, &board, naive.now_ms);
    assert!(line.lane_names().eq(&model.table));
    assert_eq!(line.shadow(), model.shadow, "shadow");
    let imported = line.imported();
    let imported = imported.map(|it| (it.id.to_string(), it.rows, it.entered));
    assert_eq!(imported, model.imported, "import");
    counts(line, model);
    keys(line, model);
    calls(line, model);
    for id in model.tokens.keys() {
        token_against_recount(line, model, *id, naive);
    }
    turns(line, model, naive.now_ms);
    for lane in 0..=model.table.len() as u8 {
        for token in [0, model.issued(lane) + 1] {
            let status = line.status(at(line, (lane, token)), 0);
            assert_eq!(status, Err(Refused::TicketInvalid));
        }
    }
    story::journal(line, model, naive.gone_kept);
    pace(model);
}

fn lane_uses(line: &Line, model: &NaiveLine, board: &Board, now_ms: u64) {
    let uses: Vec<_> = line.lane_uses(now_ms).collect();
    assert_eq!(uses.len(), board.lanes.len());
    for (used, shown) in uses.iter().zip(&board.lanes) {
        assert_eq!((used.id, used.lane), (shown.lane_id, &shown.lane));
        let tokens = model.tokens.iter();
        let of_lane: Vec<_> = tokens.filter(|(id, _)| id.0 == used.id).collect();
        let count = |state| of_lane.iter().filter(|(_, it)| it.state == state).count() as u64;
        let counted = [State::Waiting, State::Admitted, State::InCheckout].map(count);
        let found = [used.waiting, used.admitted, used.in_checkout];
        assert_eq!(found, counted, "tokens of lane {}", used.id);
        let fills_up = model.holds_back() && model.phase().gives_numbers();
        assert_eq!(used.room.is_some(), fills_up, "room");
        let takes = shown.accepts_through + 1 - shown.next_token;
        // A quota can refuse sooner, with another error.
        let has_quota = model.settings.quota.is_some();
        let agrees = |room: u64| room == takes || (has_quota && room > takes);
        assert!(used.room.is_none_or(agrees), "{used:?}, not {takes}");
    }
    let into = line.newcomers_lane_id(None);
    let into = uses.iter().find(|used| Some(used.id) == into).unwrap();
    // Sold out comes first.
    if into.room.is_some() && model.settings.quota.is_none() {
        assert_eq!(line.is_full(now_ms), into.room == Some(0), "full");
    }
}

/// Every waiting token knows how many of all lanes go before it.
fn turns(line: &Line, model: &NaiveLine, now_ms: u64) {
    if model.is_undrawn() {
        for (lane, token, _) in line.live_from((0, 0)) {
            assert_eq!(line.place_of(lane, token), None, "no place before the draw");
        }
        return;
    }
    let order = model.service_order();
    assert_eq!(order.first().copied(), model.next(), "who is next");
    let cap = model.settings.position_cap.map_or(u64::MAX, u64::from);
    for (turn, id) in (1..).zip(order.iter().copied()) {
        let status = line.status(at(line, id), now_ms).unwrap();
        let shown = (turn <= cap).then_some(turn);
        assert_eq!(status.turn, shown, "turn of {id:?}");
        let place = Some((model.position(id), turn));
        assert_eq!(line.place_of(id.0, id.1), place, "place of {id:?}");
    }
    lists(line, model, &order);
}

/// The answers of the newest calls are kept, and no others.
fn calls(line: &Line, model: &NaiveLine) {
    for (id, admitted) in &model.calls {
        let called = line.called(id).map(|tokens| {
            let ids = tokens.iter().map(|it| {
                let tok = &model.tokens[&(it.lane, it.token)];
                assert_eq!(it.key.as_deref(), tok.key.as_deref());
                (it.lane, it.token)
            });
            ids.collect::<Vec<_>>()
        });
        assert_eq!(called.as_ref(), Some(admitted), "call {id}");
    }
    for id in CALLS {
        let known = model.calls.iter().any(|(of, _)| of == id);
        assert_eq!(line.called(id).is_some(), known, "call {id}");
    }
}

/// Pages of every list, each begun where the last one ended.
fn lists(line: &Line, model: &NaiveLine, by_service: &[Id]) {
    let lanes: Vec<u8> = model.lanes().into_iter().map(|(lane, _)| lane).collect();
    let of_lane = |lane: &u8| {
        let tokens = model.tokens.iter().filter(|(id, _)| id.0 == *lane);
        let live = tokens.filter(|(_, tok)| tok.state != State::Gone);
        live.map(|(id, tok)| (*id, tok.state)).collect::<Vec<_>>()
    };
    let live: Vec<(Id, State)> = lanes.iter().flat_map(of_lane).collect();
    let waiting = live.iter().filter(|(_, state)| *state == State::Waiting);
    let waiting: Vec<Id> = waiting.map(|(id, _)| *id).collect();
    let live: Vec<Id> = live.iter().map(|(id, _)| *id).collect();
    let (number, service) = (ListOrder::Number, ListOrder::Service);
    assert_eq!(paged(|after| line.live_after(None, after)), live);
    assert_eq!(
        paged(|after| line.waiting_after(number, None, after)),
        waiting
    );
    assert_eq!(
        paged(|after| line.waiting_after(service, None, after)),
        by_service
    );
    let last = lanes.last().copied();
    let of_last: Vec<Id> = by_service
        .iter()
        .copied()
        .filter(|id| Some(id.0) == last)
        .collect();
    assert_eq!(
        paged(|after| line.waiting_after(service, last, after)),
        of_last
    );
}

/// Three tokens a page.
fn paged<I: Iterator<Item = Id>>(page: impl Fn(&ListedThrough) -> I) -> Vec<Id> {
    let (mut all, mut through) = (Vec::new(), ListedThrough::new());
    loop {
        let some: Vec<Id> = page(&through).take(3).collect();
        if some.is_empty() {
            return all;
        }
        through.extend(some.iter().copied());
        all.extend(some);
    }
}

/// S10: every issued number is in one place, once.
fn counts(line: &Line, model: &NaiveLine) {
    let counts = line.counts();
    assert_eq!(counts.issued, model.tokens.len() as u64, "issued");
    let gone: u64 = counts.gone.iter().sum();
    assert_eq!(counts.drawn, model.took_part(), "drawn");
    let live = counts.waiting + counts.admitted + counts.in_checkout;
    assert_eq!(
        counts.issued,
        counts.drawn + live + gone,
        "issued = drawn + waiting + admitted + in_checkout + gone"
    );
    for code in RefusedCode::ALL {
        let refused = model.refused.get(code.as_str()).copied().unwrap_or(0);
        assert_eq!(counts.refused.get(code), refused, "{code:?}");
    }
    for reason in Reason::ALL {
        let gone = model.gone_for(reason);
        assert_eq!(counts.gone_for(reason), gone, "{reason:?}");
        for state in GoneFrom::STATES {
            let (from, expected) = (
                counts.gone_from.get(state, reason),
                model.gone_from(state, reason),
            );
            assert_eq!(from, expected, "{reason:?} from {state:?}");
        }
    }
}

/// A key has at most one live token, and it is found.
fn keys(line: &Line, model: &NaiveLine) {
    for k in 0..KEYS {
        let key = key(k);
        let found = line.find(&key).map(|at| (at.lane, at.token));
        assert_eq!(found, model.find(&key), "key {k}");
    }
    let live = line.live_from((0, 0)).filter_map(|(_, _, live)| live.key);
    let live: Vec<&[u8]> = live.collect();
    let distinct: BTreeSet<_> = live.iter().collect();
    assert_eq!(live.len(), distinct.len(), "one live token a key");
}

fn token_against_recount(line: &Line, model: &NaiveLine, asked: Id, naive: &Naive) {
    let id = model.resolve(asked, naive.gone_kept);
    let tok = &model.tokens[&id];
    assert_eq!(
        line.resolve(at(line, asked)),
        at(line, id),
        "what {asked:?} is"
    );
    let status = match line.status(at(line, asked), naive.now_ms) {
        Ok(status) => status,
        Err(refused) => panic!("status of {asked:?}: {refused}"),
    };
    assert_eq!(status.state, tok.state, "state of {id:?}");
    let is_placed = tok.state == State::Waiting && !model.is_undrawn();
    let position = is_placed.then(|| model.position(id));
    let cap = model.settings.position_cap.map_or(u64::MAX, u64::from);
    let shown = position.map(|position| position.min(cap));
    assert_eq!(status.position, shown, "position of {id:?}");
    assert_eq!(status.ahead, shown.map(|p| p - 1));
    assert_eq!(status.position_capped, position > Some(cap));
    assert!(position.is_some() || status.turn.is_none(), "{id:?}");
    let by_place = |p: u64| p <= model.settings.call_ahead.into();
    let by_time = tok.called && model.settings.call_ahead_ms > 0;
    let called = position.is_some_and(|p| by_time || by_place(p));
    assert_eq!(status.call_ahead, called, "call_ahead of {id:?}");
    assert_eq!(status.admitted_through, model.admitted_through(id.0));
    assert_eq!((status.at, status.version), (at(line, id), model.version));
    let live = line.live(id.0, id.1);
    assert_eq!(
        live.map(|live| live.stage),
        model.stage(id),
        "stage of {id:?}"
    );
    if tok.state == State::Gone {
        let remembered = model.remembers(tok, naive.gone_kept);
        let reason = tok.reason.filter(|_| remembered);
        assert_eq!(status.reason, Some(reason), "reason of {id:?}");
        assert_eq!(status.epoch, tok.epoch.filter(|_| remembered));
        assert_eq!(status.deadline_ms, None);
    } else {
        let held = tok.state != State::Waiting;
        assert_eq!(status.reason, None);
        assert_eq!(status.epoch, tok.epoch);
        assert_eq!(status.entered_at_ms, Some(tok.entered.wall_ms));
        assert_eq!(status.deadline_ms, held.then_some(tok.deadline_ms));
        assert_eq!(live.and_then(|live| live.key), tok.key.as_deref());
    }
    if let Some(position) = position {
        holes(line, model, id, position);
    }
}

/// A watcher's arithmetic gives the position too.
fn holes(line: &Line, model: &NaiveLine, id: Id, position: u64) {
    let poll = line.poll(at(line, id), 0, true).unwrap();
    let Some(holes) = poll.holes.unwrap() else {
        assert!(poll.status.position_capped, "only a cap hides holes");
        return;
    };
    assert!(!poll.status.position_capped, "holes reveal the position");
    let through = model.admitted_through(id.0);
    let mut missing = 0;
    let mut last = through + 1;
    for (from, to) in holes {
        assert!(last < from && from <= to && to < id.1, "ranges in order");
        let waits = |n: u64| model.tokens[&(id.0, n)].state == State::Waiting;
        assert!(!(from..=to).any(waits), "nobody waits in a hole");
        missing += to - from + 1;
        last = to;
    }
    assert_eq!(id.1 - through - missing, position, "by holes");
}

/// Between any two admissions under one rate there were no more than it allows.
fn pace(model: &NaiveLine) {
    let Some(rate) = model.settings.admission_rate else {
        return;
    };
    let Some(last_ms) = model.admissions.last() else {
        return;
    };
    for (i, first_ms) in model.admissions.iter().enumerate() {
        let admitted = (model.admissions.len() - i) as u128 * UNIT;
        let gained = u128::from(last_ms - first_ms) * u128::from(rate.per_second_micro);
        let most = u128::from(rate.burst) * UNIT + gained;
        assert!(admitted <= most, "too fast since {first_ms}");
    }
}

pub fn at(line: &Line, (lane, token): Id) -> TokenRef {
    TokenRef {
        incarnation: line.incarnation(),
        lane,
        token,
    }
}
