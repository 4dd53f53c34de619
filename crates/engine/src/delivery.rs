//! What is done about a request: one decision, from what this node is, how the request came, and what
//! it does.
//!
//! A write must not be done long after it was sent: its sender may have repeated it elsewhere and gone
//! on. So a late one is not done at all ([`is_late`]), whatever delayed it: a stopped process, a
//! stalled connection, a forward that lay in another node's buffers.

use nowserving_shard::clock::Micros;

use crate::io::Now;
use crate::request::{Effect, Request};

/// A write is not done later than this after the deadline that its sender set.
pub const LATE_MAX_US: Micros = 1_000_000;
/// Clocks of clients may differ from ours by this much.
pub const CLOCK_TOLERANCE_MS: u64 = 5_000;

/// How a request reached this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// By which subscription.
    pub via: Via,
    /// NATS routed it to this node after this moment, on this node's monotonic clock: a probe that
    /// this node had sent then came back before it.
    pub routed_after: Micros,
    /// With a forwarded request: when it was sent, on the leader's clock.
    pub forwarded_at: Option<LeaderTime>,
}

/// A moment on the monotonic clock of a leader, as another node knows it: not later than the moment
/// that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderTime {
    /// The start of the leader's process ([`crate::Boot::start`]): another start, another clock.
    pub start: u64,
    /// Its clock's reading.
    pub us: Micros,
}

/// By which subscription a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Via {
    /// On a subject of all nodes: no other node has it.
    Plain,
    /// On its shard's own subject.
    Shard(ShardDelivery),
    /// Passed on by a node, on the subject where only a leader listens. Never passed on again.
    Forwarded,
}

/// By which of the subscriptions that a node can have on a shard's subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardDelivery {
    /// The leader's.
    Leader,
    /// That of a group of all nodes while nobody leads, as far as they know.
    Leaderless,
    /// One that is about to end. Its replacement, here or on another node, gets the message too.
    Draining,
}

/// What this node is for the shard of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It takes no part in the cluster (yet, or any more).
    OutOfTouch,
    /// It leads, and listens as the leader.
    Leader,
    /// Another node leads, or none.
    NotLeader,
}

/// What is done about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Answered from this node's own state.
    AnswerLocally,
    /// Done here, as the leader.
    Take,
    /// Passed on to the leader until the deadline.
    Forward {
        /// Another node may have it too: that the leader does not do it here proves nothing.
        in_doubt: bool,
    },
    /// Not answered: it was passed on to another node, which listens on the same subject for a moment, and
    /// its answer is the one that counts.
    Ignore,
    /// Refused: nothing happened.
    RefuseUnavailable,
    /// Refused, as it came too late: nothing happened.
    RefuseLate,
    /// Refused: the node that passed it on tries again.
    RefuseNotLeader,
    /// Answered `outcome_unknown` at once.
    RefuseUnknown,
}

/// Whether a request that was passed on was meant for another node, or another start of this one.
#[must_use]
pub fn is_for_another(delivery: Delivery, start: u64) -> bool {
    let meant_for = delivery.forwarded_at.map(|sent| sent.start);
    delivery.via == Via::Forwarded && meant_for.is_some_and(|it| it != start)
}

/// Whether a write may have been sent so long ago that its sender has given up on it.
#[must_use]
pub fn is_late(request: &Request, delivery: Delivery, now: Now) -> bool {
    let timeout_us = request.deadline.saturating_sub(request.reply.taken);
    let by_client = request.sent_ms.is_some_and(|sent_ms| {
        let tolerance_ms = LATE_MAX_US / 1_000 + CLOCK_TOLERANCE_MS;
        now.wall_ms > sent_ms.saturating_add(timeout_us / 1_000 + tolerance_ms)
    });
    let by_forwarder = delivery.via == Via::Forwarded
        && (delivery.forwarded_at).is_none_or(|sent| now.us >= sent.us.saturating_add(timeout_us));
    let by_nats = request.reply.taken.saturating_sub(delivery.routed_after) > LATE_MAX_US;
    by_client || by_forwarder || by_nats
}

/// What is done about a request with this `effect`; `late` as [`is_late`] says.
#[must_use]
pub fn decide(role: Role, via: Via, late: bool, effect: Effect) -> Action {
    match (role, via) {
        (Role::OutOfTouch, _) => Action::RefuseUnavailable,
        _ if late && effect.is_write() => match via {
            // Another node may have it too, and have answered.
            Via::Shard(_) => Action::RefuseUnknown,
            // The node that passed it on tries again, if there is time.
            Via::Forwarded => Action::RefuseNotLeader,
            Via::Plain => Action::RefuseLate,
        },
        _ if effect == Effect::ReadLocal => Action::AnswerLocally,
        (
            Role::Leader,
            Via::Plain
            | Via::Forwarded
            | Via::Shard(ShardDelivery::Leader | ShardDelivery::Leaderless),
        ) => Action::Take,
        (_, Via::Forwarded) => Action::RefuseNotLeader,
        (_, Via::Plain) => Action::Forward { in_doubt: false },
        // A node that is cut off from its peers listens beside the leader that it does not know of.
        (_, Via::Shard(_)) => Action::Forward {
            in_doubt: effect.is_write(),
        },
    }
}

/// What is done about a request that this node had taken as the leader when it leads no more, and
/// of which nothing happened here.
#[must_use]
pub fn decide_after_lead(via: Via, effect: Effect) -> Action {
    let via = match via {
        // As leadership changes hands two nodes listen for a moment: the next leader may have it.
        Via::Shard(_) => Via::Shard(ShardDelivery::Draining),
        via => via,
    };
    // It was not late when it was taken, and its deadline has not come.
    decide(Role::NotLeader, via, false, effect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::*;
    use ShardDelivery::*;

    const EFFECTS: [Effect; 3] = [ReadLocal, Read, Write];
    const VIAS: [Via; 5] = [
        Via::Plain,
        Via::Forwarded,
        Via::Shard(Leader),
        Via::Shard(Leaderless),
        Via::Shard(Draining),
    ];

    fn row(role: Role, via: Via, late: bool) -> String {
        let word = |effect| match decide(role, via, late, effect) {
            Action::AnswerLocally => "local",
            Action::Take => "take",
            Action::Forward { in_doubt: false } => "forward",
            Action::Forward { in_doubt: true } => "forward?",
            Action::Ignore => "ignore",
            Action::RefuseUnavailable => "unavailable",
            Action::RefuseLate => "late",
            Action::RefuseNotLeader => "not_leader",
            Action::RefuseUnknown => "unknown",
        };
        EFFECTS.map(word).join(" ")
    }

    #[test]
    fn every_combination() {
        //            ReadLocal Read Write
        let fresh = [
            (Role::Leader, Via::Plain, "local take take"),
            (Role::Leader, Via::Forwarded, "local take take"),
            (Role::Leader, Via::Shard(Leader), "local take take"),
            (Role::Leader, Via::Shard(Leaderless), "local take take"),
            (Role::Leader, Via::Shard(Draining), "local forward forward?"),
            (Role::NotLeader, Via::Plain, "local forward forward"),
            (
                Role::NotLeader,
                Via::Forwarded,
                "local not_leader not_leader",
            ),
            (
                Role::NotLeader,
                Via::Shard(Leader),
                "local forward forward?",
            ),
            (
                Role::NotLeader,
                Via::Shard(Leaderless),
                "local forward forward?",
            ),
            (
                Role::NotLeader,
                Via::Shard(Draining),
                "local forward forward?",
            ),
        ];
        let refused = ["unavailable"; 3].join(" ");
        for via in VIAS {
            for late in [false, true] {
                assert_eq!(row(Role::OutOfTouch, via, late), refused, "{via:?}");
            }
            for role in [Role::Leader, Role::NotLeader] {
                let row_of = fresh.iter().find(|it| (it.0, it.1) == (role, via));
                let Some((_, _, expected)) = row_of else {
                    panic!("no row for {role:?} {via:?}");
                };
                assert_eq!(row(role, via, false), *expected, "{role:?} {via:?}");
                let write = match via {
                    Via::Plain => "late",
                    Via::Forwarded => "not_leader",
                    Via::Shard(_) => "unknown",
                };
                let reads: Vec<&str> = expected.split(' ').take(2).collect();
                let late = format!("{} {write}", reads.join(" "));
                assert_eq!(row(role, via, true), late, "{role:?} {via:?} late");
            }
        }
    }

    #[test]
    fn what_was_taken_and_not_done_is_passed_on_or_in_doubt() {
        for (via, expected) in [
            (Via::Plain, "local forward forward"),
            (Via::Forwarded, "local not_leader not_leader"),
            (Via::Shard(Leader), "local forward forward?"),
            (Via::Shard(Leaderless), "local forward forward?"),
        ] {
            for effect in EFFECTS {
                let after = match via {
                    Via::Shard(_) => Via::Shard(Draining),
                    via => via,
                };
                assert_eq!(row(Role::NotLeader, after, false), expected);
                let direct = decide(Role::NotLeader, after, false, effect);
                assert_eq!(decide_after_lead(via, effect), direct);
            }
        }
    }

    const SECOND: Micros = 1_000_000;
    const TAKEN: Micros = 100 * SECOND;
    const NOW: Now = Now {
        us: TAKEN + SECOND / 10,
        wall_ms: 1_766_222_333_444,
    };

    /// A write with a timeout of two seconds, taken at [`TAKEN`].
    fn write(sent_ms: Option<u64>) -> Request {
        let line = nowserving_line::LineName::try_from("shop").unwrap_or_else(|_| unreachable!());
        Request {
            shard: 0,
            ask: crate::request::Ask::Write(nowserving_line::Op::Enter {
                line: line.clone(),
                key: None,
                lane: None,
            }),
            line,
            reply: crate::request::ReplyTo {
                inbox: None,
                format: nowserving_protocol::codec::Format::Json,
                op: "enter",
                admin: false,
                taken: TAKEN,
            },
            deadline: TAKEN + 2 * SECOND,
            id: None,
            sent_ms,
            payload: bytes::Bytes::new(),
        }
    }

    fn delivery(via: Via, routed_after: Micros, forwarded_at: Option<LeaderTime>) -> Delivery {
        Delivery {
            via,
            routed_after,
            forwarded_at,
        }
    }

    #[test]
    fn what_lay_unread_for_longer_than_a_second_is_late() {
        for via in VIAS.into_iter().filter(|via| *via != Via::Forwarded) {
            for (routed_after, late) in [(TAKEN - SECOND, false), (TAKEN - SECOND - 1, true)] {
                let delivery = delivery(via, routed_after, None);
                assert_eq!(is_late(&write(None), delivery, NOW), late, "{via:?}");
            }
        }
    }

    #[test]
    fn a_forward_is_late_past_its_timeout_on_the_clock_of_the_start_that_it_is_for() {
        let sent = |start, us| Some(LeaderTime { start, us });
        for (forwarded_at, late) in [
            (None, true),
            (sent(7, NOW.us), false),
            (sent(7, NOW.us - 2 * SECOND + 1), false),
            (sent(7, NOW.us - 2 * SECOND), true),
        ] {
            let delivery = delivery(Via::Forwarded, TAKEN, forwarded_at);
            assert!(!is_for_another(delivery, 7));
            assert_eq!(is_for_another(delivery, 6), forwarded_at.is_some());
            assert_eq!(
                is_late(&write(None), delivery, NOW),
                late,
                "{forwarded_at:?}"
            );
        }
    }

    #[test]
    fn what_its_sender_dates_too_far_back_is_late() {
        let oldest_ms = NOW.wall_ms - 2_000 - 1_000 - CLOCK_TOLERANCE_MS;
        for (sent_ms, late) in [
            (NOW.wall_ms, false),
            (NOW.wall_ms + 3_600_000, false),
            (oldest_ms, false),
            (oldest_ms - 1, true),
        ] {
            let delivery = delivery(Via::Plain, TAKEN, None);
            assert_eq!(
                is_late(&write(Some(sent_ms)), delivery, NOW),
                late,
                "{sent_ms}"
            );
        }
    }
}
