//! Requests that another node must execute: forwarded to the leader of their shard, tried again while that
//! may help, and answered by the deadline in any case.
//!
//! The client's inbox is not forwarded: nats-server says "no responders" only to the publisher of the
//! request itself, so the leader's answer comes here and goes back from here.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_protocol::error::{ApiError, Code};
use nowserving_shard::clock::Micros;
use nowserving_shard::requests::{Origin, RequestId};

use super::waiter::Waiter;
use crate::delivery::LeaderTime;
use crate::io::{ForwardId, ForwardResult, ForwardTry, Output};
use crate::outbox::Outbox;
use crate::refusals::{outcome_unknown, overloaded, unavailable};

/// Requests under way to leaders at most; more are refused as overloaded.
const UNDER_WAY_MAX: usize = 4_096;
/// Between two tries while nobody leads.
const PAUSE_US: Micros = 40_000;
/// A try without an answer for longer is repeated: the leader may have died. All tries of a write have the
/// same id, so it is executed once.
const TRY_MAX_US: Micros = 700_000;

/// This node's knowledge of the leader of a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Leader {
    /// The time on its clock; `None` without a leader, or without a recent frame from it.
    pub time: Option<LeaderTime>,
    pub term: u64,
    /// When this node learned that it leads in its term. The leases of all earlier leaders had ended by
    /// then.
    pub since: Micros,
}

#[derive(Debug)]
struct Forward {
    waiter: Waiter,
    /// A write that the leader may have too.
    shared: bool,
    /// A try that may have reached a leader was not answered.
    maybe_executed: bool,
    stage: Stage,
    due: Micros,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A try is under way.
    Asked,
    /// The next try is made when it is due.
    Pausing,
}

impl Forward {
    fn is_write(&self) -> bool {
        self.waiter.effect.is_write()
    }

    fn is_named_write(&self) -> bool {
        let named = (self.waiter.id).is_some_and(|id| id.origin == Origin::Client);
        named && self.is_write()
    }

    /// Whether an earlier leader may have refused this request, or another copy of the call, from its
    /// state. The next leader does not know that.
    fn may_be_refused(&self, leader: Leader) -> bool {
        if nowserving_bite::is(nowserving_bite::Break::S14Refused) {
            return false;
        }
        let copies = self.shared || self.is_named_write();
        copies && self.waiter.delivery.routed_after < leader.since
    }

    /// The answer if nothing better is known.
    fn fallback_error(&self) -> ApiError {
        let maybe_executed = self.maybe_executed || self.shared || self.stage == Stage::Asked;
        match maybe_executed && self.is_write() {
            true => outcome_unknown(),
            false => unavailable(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Forwards {
    /// For the ids of writes that came without one.
    seed: u64,
    last_id: u64,
    under_way: BTreeMap<ForwardId, Forward>,
    due: BTreeSet<(Micros, ForwardId)>,
}

impl Forwards {
    pub fn new(seed: u64) -> Self {
        Forwards {
            seed,
            last_id: 0,
            under_way: BTreeMap::new(),
            due: BTreeSet::new(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    pub fn next_due(&self) -> Option<Micros> {
        self.due.first().map(|(due, _)| *due)
    }

    pub fn start(
        &mut self,
        mut waiter: Waiter,
        shared: bool,
        leader: Leader,
        now: Micros,
        out: &mut Outbox,
    ) {
        if self.under_way.len() >= UNDER_WAY_MAX {
            let error = if shared {
                outcome_unknown()
            } else {
                overloaded()
            };
            return out.refuse(waiter.reply, error);
        }
        let id = self.next_id();
        if waiter.effect.is_write() {
            waiter.id = Some(match waiter.id {
                Some(it) if it.origin == Origin::Client => it,
                known => RequestId {
                    key: known.map_or_else(|| self.key(id), |it| it.key),
                    origin: Origin::Forwarder,
                },
            });
        }
        let forward = Forward {
            waiter,
            shared,
            maybe_executed: false,
            stage: Stage::Pausing,
            due: now,
        };
        self.try_once(id, forward, leader, now, out);
    }

    pub fn result(
        &mut self,
        id: ForwardId,
        result: ForwardResult,
        leader: impl Fn(u32) -> Leader,
        now: Micros,
        out: &mut Outbox,
    ) {
        // An unknown one was answered at its deadline.
        let Some(mut forward) = self.take(id) else {
            return;
        };
        let (maybe_executed, pause_us) = match result {
            ForwardResult::TooLarge { bytes, bytes_max } if !forward.maybe_executed => {
                let error = ApiError::bad_request(format!(
                    "the request has {bytes} bytes with its headers, the NATS server takes {bytes_max} (max_payload)"
                ));
                out.refuse(forward.waiter.reply, error);
                return self.run_due(leader, now, out);
            }
            ForwardResult::TooLarge { .. } => (false, PAUSE_US),
            ForwardResult::NoResponders
            | ForwardResult::Answered {
                error: Some(Code::NotLeader | Code::Unavailable),
                ..
            } => (false, PAUSE_US),
            // The leader did not know the outcome by the deadline of this try, or had no room for it.
            ForwardResult::Failed
            | ForwardResult::Answered {
                error: Some(Code::OutcomeUnknown),
                ..
            } => (true, PAUSE_US),
            ForwardResult::TimedOut => (true, 0),
            // This holds for every try: a leader gives all copies of a request the same answer.
            ForwardResult::Answered { error, answer } => {
                if nowserving_bite::is(nowserving_bite::Break::L2) {
                    return;
                }
                let to = forward.waiter.reply;
                out.outputs.push(Output::RelayReply { to, error, answer });
                return self.run_due(leader, now, out);
            }
        };
        forward.maybe_executed |= maybe_executed;
        self.keep(id, forward, Stage::Pausing, now + pause_us);
        self.run_due(leader, now, out);
    }

    /// Tries requests again after their pause, and refuses those at their deadline.
    pub fn run_due(&mut self, leader: impl Fn(u32) -> Leader, now: Micros, out: &mut Outbox) {
        while let Some((_, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let Some(forward) = self.take(id) else {
                continue;
            };
            if forward.stage == Stage::Pausing && now < forward.waiter.deadline {
                let leader = leader(forward.waiter.shard);
                self.try_once(id, forward, leader, now, out);
            } else {
                let error = forward.fallback_error();
                out.refuse(forward.waiter.reply, error);
            }
        }
    }

    /// Refuses all requests, as the node ends.
    pub fn refuse_all(&mut self, out: &mut Outbox) {
        self.due.clear();
        for forward in std::mem::take(&mut self.under_way).into_values() {
            let error = forward.fallback_error();
            out.refuse(forward.waiter.reply, error);
        }
    }

    fn try_once(
        &mut self,
        id: ForwardId,
        forward: Forward,
        leader: Leader,
        now: Micros,
        out: &mut Outbox,
    ) {
        if forward.may_be_refused(leader) {
            return out.refuse(forward.waiter.reply, outcome_unknown());
        }
        if leader.time.is_none() && forward.is_write() {
            // The leader would refuse it, as it could not tell how old it is.
            return self.keep(id, forward, Stage::Pausing, now + PAUSE_US);
        }
        let waiter = &forward.waiter;
        let left_us = waiter.deadline.saturating_sub(now);
        let timeout_us = left_us.min(TRY_MAX_US);
        out.outputs.push(Output::Forward(ForwardTry {
            id,
            shard: waiter.shard,
            line: waiter.line.clone(),
            op: waiter.reply.op,
            note: waiter.note.clone(),
            payload: waiter.payload.clone(),
            timeout_ms: (timeout_us / 1_000).max(1),
            request_id: waiter.id,
            sent_at: leader.time,
            shared: forward.shared,
            term: forward.is_named_write().then_some(leader.term),
            trace: waiter.reply.trace.clone(),
        }));
        let deadline = waiter.deadline;
        self.keep(id, forward, Stage::Asked, deadline);
    }

    fn keep(&mut self, id: ForwardId, mut forward: Forward, stage: Stage, due: Micros) {
        forward.stage = stage;
        forward.due = due.min(forward.waiter.deadline);
        self.due.insert((forward.due, id));
        self.under_way.insert(id, forward);
    }

    fn take(&mut self, id: ForwardId) -> Option<Forward> {
        let forward = self.under_way.remove(&id)?;
        self.due.remove(&(forward.due, id));
        Some(forward)
    }

    fn next_id(&mut self) -> ForwardId {
        self.last_id += 1;
        ForwardId(self.last_id)
    }

    /// An id that no other request has.
    fn key(&self, id: ForwardId) -> u128 {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes());
        hasher.update(&id.0.to_le_bytes());
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        u128::from_be_bytes(key)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use bytes::Bytes;
    use nowserving_line::LineName;
    use nowserving_protocol::codec::Format;

    use super::*;
    use crate::delivery::{Delivery, Via};
    use crate::io::RelayedAnswer;
    use crate::request::{Effect, Inbox, ReplyTo};

    const SECOND: Micros = 1_000_000;
    const NOW: Micros = 50 * SECOND;
    const DEADLINE: Micros = NOW + 2 * SECOND;

    fn waiter(effect: Effect) -> Waiter {
        Waiter {
            shard: 3,
            line: LineName::try_from("shop").unwrap(),
            effect,
            delivery: Delivery {
                via: Via::Plain,
                routed_after: NOW,
                forwarded_at: None,
                shared: false,
                term: None,
            },
            reply: ReplyTo {
                inbox: Inbox::Subject("inbox".into()),
                format: Format::Json,
                op: nowserving_protocol::operation::Operation::Enter,
                pass: false,
                taken: NOW,
                trace: None,
            },
            deadline: DEADLINE,
            id: None,
            note: None,
            payload: br#"{"anonymous":true}"#.as_slice().into(),
        }
    }

    fn answered(error: Option<Code>) -> ForwardResult {
        let answer = RelayedAnswer {
            headers: Vec::new(),
            payload: Bytes::from_static(b"answer"),
        };
        ForwardResult::Answered { error, answer }
    }

    const LEADER: Leader = Leader {
        time: Some(LeaderTime { start: 2, us: 7 }),
        term: 4,
        since: NOW,
    };

    struct Run {
        leader: Leader,
        forwards: Forwards,
        out: Outbox,
    }

    impl Run {
        fn of(effect: Effect, shared: bool) -> Run {
            Run::start(waiter(effect), shared, LEADER)
        }

        fn start(waiter: Waiter, shared: bool, leader: Leader) -> Run {
            let mut run = Run {
                leader,
                forwards: Forwards::new(1),
                out: Outbox::default(),
            };
            run.forwards
                .start(waiter, shared, leader, NOW, &mut run.out);
            run
        }

        /// The try that went out, if one did: its id and timeout.
        fn tried(&mut self) -> Option<(ForwardId, u64)> {
            match self.out.outputs.pop() {
                Some(Output::Forward(it)) => Some((it.id, it.timeout_ms)),
                None => None,
                other => panic!("{other:?}"),
            }
        }

        fn result(&mut self, result: ForwardResult, now: Micros) {
            let id = *self.forwards.under_way.keys().next().unwrap();
            let leader = self.leader;
            self.forwards
                .result(id, result, |_| leader, now, &mut self.out);
        }

        fn at(&mut self, now: Micros) {
            let leader = self.leader;
            self.forwards.run_due(|_| leader, now, &mut self.out);
        }

        /// How the request was answered: the code of an error of ours, or `None` for the leader's.
        fn answer(&mut self) -> Option<Code> {
            assert!(self.forwards.is_empty() && self.forwards.due.is_empty());
            match self.out.outputs.pop() {
                Some(Output::Reply { result, .. }) => Some(result.unwrap_err().code),
                Some(Output::RelayReply { .. }) => None,
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_leaders_answer_is_relayed() {
        for effect in [Effect::Read, Effect::Write] {
            for error in [None, Some(Code::LineNotFound), Some(Code::LineFull)] {
                let mut run = Run::of(effect, false);
                assert!(run.tried().is_some());
                run.result(answered(error), NOW + 1);
                assert_eq!(run.answer(), None, "{effect:?} {error:?}");
            }
        }
    }

    #[test]
    fn while_nobody_leads_it_is_tried_again_until_the_deadline() {
        let mut run = Run::of(Effect::Write, false);
        let mut now = NOW;
        let mut tries = 0;
        while let Some((_, timeout_ms)) = run.tried() {
            assert_eq!(timeout_ms, (DEADLINE - now).min(TRY_MAX_US) / 1_000);
            tries += 1;
            let nobody = [ForwardResult::NoResponders, answered(Some(Code::NotLeader))];
            run.result(nobody[tries % 2].clone(), now);
            assert_eq!(
                run.forwards.next_due(),
                Some((now + PAUSE_US).min(DEADLINE))
            );
            now += PAUSE_US;
            if now >= DEADLINE {
                break;
            }
            run.at(now);
        }
        assert_eq!(tries, 50);
        run.at(DEADLINE);
        assert_eq!(run.answer(), Some(Code::Unavailable), "nothing happened");
    }

    #[test]
    fn what_was_not_answered_is_tried_again() {
        let mut run = Run::of(Effect::Write, false);
        assert_eq!(run.tried().unwrap().1, TRY_MAX_US / 1_000);
        run.result(ForwardResult::TimedOut, NOW + TRY_MAX_US);
        assert_eq!(run.tried().unwrap().1, TRY_MAX_US / 1_000);
        run.result(answered(Some(Code::OutcomeUnknown)), NOW + TRY_MAX_US);
        assert!(run.tried().is_none());
        run.at(NOW + TRY_MAX_US + PAUSE_US);
        assert!(run.tried().is_some());
        // Nobody answers any more, but the first try may sit in the log.
        run.result(ForwardResult::NoResponders, NOW + TRY_MAX_US + PAUSE_US);
        run.leader.time = None;
        run.at(DEADLINE);
        assert_eq!(run.answer(), Some(Code::OutcomeUnknown));

        let mut run = Run::of(Effect::Read, false);
        run.tried();
        run.at(DEADLINE);
        assert_eq!(run.answer(), Some(Code::Unavailable));
    }

    #[test]
    fn shared_no_answer_does_not_mean_that_nothing_happened() {
        for (shared, code) in [(true, Code::OutcomeUnknown), (false, Code::Unavailable)] {
            let mut run = Run::of(Effect::Write, shared);
            run.tried();
            run.result(ForwardResult::NoResponders, NOW + 1);
            run.at(DEADLINE);
            assert_eq!(run.answer(), Some(code));
        }
    }

    #[test]
    fn every_try_of_a_write_has_the_same_id() {
        let tried = |run: &mut Run| match run.out.outputs.pop() {
            Some(Output::Forward(it)) => it.request_id,
            other => panic!("{other:?}"),
        };
        let own = |origin| Some(RequestId { key: 7, origin });
        let forwarder = own(Origin::Forwarder);
        for (id, expected) in [
            (own(Origin::Client), own(Origin::Client)),
            (own(Origin::Direct), forwarder),
            (None, None),
        ] {
            let mut waiter = waiter(Effect::Write);
            waiter.id = id;
            let mut run = Run::start(waiter, false, LEADER);
            let first = tried(&mut run);
            assert!(first.is_some() && (expected.is_none() || first == expected));
            run.result(ForwardResult::TimedOut, NOW + 1);
            assert_eq!(tried(&mut run), first);
        }
        assert_eq!(tried(&mut Run::of(Effect::Read, false)), None);
        let forwards = Forwards::new(1);
        assert_ne!(forwards.key(ForwardId(1)), forwards.key(ForwardId(2)));
        assert_ne!(
            forwards.key(ForwardId(1)),
            Forwards::new(2).key(ForwardId(1))
        );
    }

    #[test]
    fn a_write_goes_only_to_a_leader_whose_clock_is_known() {
        let unknown = Leader {
            time: None,
            ..LEADER
        };
        let mut read = Run::start(waiter(Effect::Read), false, unknown);
        assert!(read.tried().is_some());
        {
            let effect = Effect::Write;
            let mut run = Run::start(waiter(effect), false, unknown);
            assert!(run.tried().is_none());
            run.leader = LEADER;
            run.at(NOW + PAUSE_US);
            let Some(Output::Forward(it)) = run.out.outputs.pop() else {
                panic!("not tried");
            };
            assert_eq!(it.sent_at, LEADER.time);

            let mut run = Run::start(waiter(effect), false, unknown);
            for at in (NOW..=DEADLINE).step_by(PAUSE_US as usize) {
                run.at(at);
            }
            assert_eq!(run.answer(), Some(Code::Unavailable), "nothing happened");
        }
    }

    #[test]
    fn what_an_earlier_leader_may_have_refused_is_not_executed_by_the_next() {
        let named = |effect| {
            let id = RequestId {
                key: 5,
                origin: Origin::Client,
            };
            Waiter {
                id: Some(id),
                ..waiter(effect)
            }
        };
        let mut run = Run::start(named(Effect::Write), false, LEADER);
        let Some(Output::Forward(it)) = run.out.outputs.pop() else {
            panic!("not tried");
        };
        assert_eq!(it.term, Some(LEADER.term), "so that the leader knows");
        let later = Leader {
            since: NOW + 1,
            ..LEADER
        };
        for (waiter, shared) in [(waiter(Effect::Write), true), (named(Effect::Write), false)] {
            let mut run = Run::start(waiter, shared, later);
            assert_eq!(run.answer(), Some(Code::OutcomeUnknown));
        }
        // Between two tries another leader was elected.
        let mut run = Run::start(waiter(Effect::Write), true, LEADER);
        assert!(run.tried().is_some());
        run.leader = later;
        run.result(ForwardResult::NoResponders, NOW + 1);
        run.at(NOW + 1 + PAUSE_US);
        assert_eq!(run.answer(), Some(Code::OutcomeUnknown));
        // It reads, or there is no other copy.
        for waiter in [
            waiter(Effect::Read),
            named(Effect::Read),
            waiter(Effect::Write),
        ] {
            let mut run = Run::start(waiter, false, later);
            assert!(run.tried().is_some());
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut forwards = Forwards::new(1);
        let mut out = Outbox::default();
        for _ in 0..UNDER_WAY_MAX {
            forwards.start(waiter(Effect::Write), false, LEADER, NOW, &mut out);
        }
        assert_eq!(out.outputs.len(), UNDER_WAY_MAX);
        out.outputs.clear();
        let codes = [
            (Effect::Write, false, Code::Overloaded),
            (Effect::Write, true, Code::OutcomeUnknown),
            (Effect::Read, false, Code::Overloaded),
        ];
        for (effect, shared, code) in codes {
            forwards.start(waiter(effect), shared, LEADER, NOW, &mut out);
            let Some(Output::Reply { result, .. }) = out.outputs.pop() else {
                panic!("no answer");
            };
            assert_eq!(result.unwrap_err().code, code);
        }
        forwards.run_due(|_| LEADER, DEADLINE, &mut out);
        assert_eq!(out.outputs.len(), UNDER_WAY_MAX);
        assert!(forwards.is_empty());
    }
}
