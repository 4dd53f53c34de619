//! How old a request is, and how much of its time is left.
//!
//! A write must not be executed long after it was sent: its sender may have repeated it elsewhere and
//! gone on. So a late write is never executed, whether a stopped process, a stalled connection or another node's
//! buffers delayed it.

use std::time::Duration;

use nowserving_bite::{Break, is};
use nowserving_shard::clock::Micros;

use crate::delivery::{Delivery, Via};
use crate::io::Now;
use crate::request::{Ask, Request};

/// A write is not executed later than this after the deadline that its sender set.
pub const LATE_MAX_US: Micros = 1_000_000;
/// Clocks of clients may differ from ours by this much.
pub const CLOCK_TOLERANCE_MS: u64 = 5_000;

/// The age of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    Fresh,
    /// NATS may have routed it before this node knew the present leader.
    BeforeLeader,
    /// Its sender may have given up on it.
    Late,
    /// Its deadline has passed.
    Over,
    /// It was forwarded to another start of this node, which answers it.
    ForAnother,
}

/// `leader_since`: when this node learned of the shard's present leader, if it knows one.
#[must_use]
pub fn age(
    request: &Request,
    delivery: Delivery,
    now: Now,
    start: u64,
    leader_since: Option<Micros>,
) -> Age {
    let forwarded = delivery.via == Via::Forwarded;
    if forwarded && delivery.forwarded_at.is_some_and(|at| at.start != start) {
        return Age::ForAnother;
    }
    let late_by_sender = request_left_ms(request, now).is_none();
    let late = late_by_sender || was_held_back(request, delivery, now);
    let late = late && !is(Break::S14Late);
    if request.deadline <= now.us {
        Age::Over
    } else if late {
        Age::Late
    } else if !forwarded && leader_since.is_some_and(|since| delivery.routed_after < since) {
        // The node that forwards a request checks that itself.
        Age::BeforeLeader
    } else {
        Age::Fresh
    }
}

/// Whether a node or NATS held a request back for too long, whatever its sender says.
fn was_held_back(request: &Request, delivery: Delivery, now: Now) -> bool {
    let timeout_us = timeout_us(request);
    let late_by_forwarder = delivery.via == Via::Forwarded
        && (delivery.forwarded_at).is_none_or(|at| now.us >= at.us.saturating_add(timeout_us));
    let late_by_forwarder = late_by_forwarder && !is(Break::S14Forwarded);
    late_by_forwarder || lay_unread(request.reply.taken, delivery.routed_after)
}

/// How long ago a request was sent, in ms, if it is late by its sender's word alone.
#[must_use]
pub fn late_by_sender_alone(request: &Request, delivery: Delivery, now: Now) -> Option<u64> {
    let late = request_left_ms(request, now).is_none();
    let alone = late && !was_held_back(request, delivery, now);
    request
        .sent_ms
        .filter(|_| alone)
        .map(|sent_ms| now.wall_ms.saturating_sub(sent_ms))
}

/// Whether a message that was routed to this node after this moment was read too late.
#[must_use]
pub fn lay_unread(taken: Micros, routed_after: Micros) -> bool {
    taken.saturating_sub(routed_after) > LATE_MAX_US
}

/// For how much longer a request that its sender sent then may wait for its place, by the sender's clock. `None`: it is
/// late.
#[must_use]
pub fn left_by_sender_ms(sent_ms: Option<u64>, timeout: Duration, now: Now) -> Option<u64> {
    let Some(sent_ms) = sent_ms else {
        return Some(u64::MAX);
    };
    let timeout_us = timeout.as_micros() as Micros;
    let most_ms = (timeout_us + LATE_MAX_US) / 1_000 + CLOCK_TOLERANCE_MS;
    sent_ms.saturating_add(most_ms).checked_sub(now.wall_ms)
}

fn request_left_ms(request: &Request, now: Now) -> Option<u64> {
    let timeout = Duration::from_micros(timeout_us(request));
    left_by_sender_ms(request.sent_ms, timeout, now)
}

fn timeout_us(request: &Request) -> Micros {
    request.deadline.saturating_sub(request.reply.taken)
}

/// A request as it is taken now: one that was held back on its way does not have its whole timeout again. A kick goes on
/// for [`LATE_MAX_US`] after its deadline, which ends so much earlier; it can be past.
#[must_use]
pub fn taken_now(request: Request, now: Now) -> Request {
    let left_ms = request_left_ms(&request, now).unwrap_or(u64::MAX);
    let latest = now.us.saturating_add(left_ms.saturating_mul(1_000));
    let goes_on = matches!(&request.ask, Ask::Kick(kick) if !kick.dry_run);
    let latest = match goes_on && left_ms < u64::MAX {
        true => latest.saturating_sub(LATE_MAX_US),
        false => latest,
    };
    Request {
        deadline: request.deadline.min(latest),
        ..request
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::{LeaderTime, ShardDelivery};

    /// All that come by NATS itself.
    const UNFORWARDED: [Via; 4] = [
        Via::Plain,
        Via::Shard(ShardDelivery::Leader),
        Via::Shard(ShardDelivery::Leaderless),
        Via::Shard(ShardDelivery::Draining),
    ];

    const START: u64 = 7;
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
                inbox: crate::request::Inbox::None,
                format: nowserving_protocol::codec::Format::Json,
                op: nowserving_protocol::operation::Operation::Enter,
                pass: false,
                taken: TAKEN,
                trace: None,
            },
            deadline: TAKEN + 2 * SECOND,
            id: None,
            sent_ms,
            note: None,
            payload: bytes::Bytes::new(),
        }
    }

    fn delivery(via: Via, routed_after: Micros, forwarded_at: Option<LeaderTime>) -> Delivery {
        Delivery {
            via,
            routed_after,
            forwarded_at,
            shared: false,
            term: None,
        }
    }

    fn is_late(request: &Request, delivery: Delivery) -> bool {
        age(request, delivery, NOW, START, None) == Age::Late
    }

    #[test]
    fn what_lay_unread_for_longer_than_a_second_is_late() {
        for via in UNFORWARDED {
            for (routed_after, late) in [(TAKEN - SECOND, false), (TAKEN - SECOND - 1, true)] {
                let delivery = delivery(via, routed_after, None);
                assert_eq!(is_late(&write(None), delivery), late, "{via:?}");
            }
        }
    }

    #[test]
    fn a_forward_is_late_past_its_timeout_on_the_clock_of_the_start_that_it_is_for() {
        let sent = |start, us| Some(LeaderTime { start, us });
        for (forwarded_at, late) in [
            (None, true),
            (sent(START, NOW.us), false),
            (sent(START, NOW.us - 2 * SECOND + 1), false),
            (sent(START, NOW.us - 2 * SECOND), true),
        ] {
            let delivery = delivery(Via::Forwarded, TAKEN, forwarded_at);
            assert_eq!(is_late(&write(None), delivery), late, "{forwarded_at:?}");
            let elsewhere = age(&write(None), delivery, NOW, START + 1, None);
            assert_eq!(elsewhere == Age::ForAnother, forwarded_at.is_some());
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
            assert_eq!(is_late(&write(Some(sent_ms)), delivery), late, "{sent_ms}");
        }
    }

    #[test]
    fn a_wrong_header_is_told_from_what_was_held_back() {
        let in_seconds = NOW.wall_ms / 1_000;
        let plain = |routed_after| delivery(Via::Plain, routed_after, None);
        let ago = |sent_ms, delivery| late_by_sender_alone(&write(sent_ms), delivery, NOW);
        assert_eq!(
            ago(Some(in_seconds), plain(TAKEN)),
            Some(NOW.wall_ms - in_seconds)
        );
        assert_eq!(ago(Some(NOW.wall_ms), plain(TAKEN)), None);
        assert_eq!(ago(None, plain(TAKEN)), None);
        assert_eq!(ago(Some(in_seconds), plain(TAKEN - SECOND - 1)), None);
    }

    #[test]
    fn what_was_held_back_on_its_way_has_the_less_time_left() {
        let oldest_ms = NOW.wall_ms - 2_000 - 1_000 - CLOCK_TOLERANCE_MS;
        let whole = TAKEN + 2 * SECOND;
        for (sent_ms, deadline) in [
            (None, whole),
            (Some(NOW.wall_ms), whole),
            (Some(NOW.wall_ms + 3_600_000), whole),
            (Some(oldest_ms + 2_000), whole),
            (Some(oldest_ms + 500), NOW.us + SECOND / 2),
            (Some(oldest_ms), NOW.us),
        ] {
            assert_eq!(
                taken_now(write(sent_ms), NOW).deadline,
                deadline,
                "{sent_ms:?}"
            );
        }
    }

    #[test]
    fn a_kick_that_was_held_back_ends_with_the_others() {
        let oldest_ms = NOW.wall_ms - 2_000 - 1_000 - CLOCK_TOLERANCE_MS;
        let kick = |sent_ms, dry_run| {
            let ask = nowserving_protocol::kick::Kick {
                dry_run,
                ..Default::default()
            };
            let request = Request {
                ask: Ask::Kick(Box::new(ask)),
                ..write(sent_ms)
            };
            taken_now(request, NOW).deadline
        };
        let whole = TAKEN + 2 * SECOND;
        assert_eq!(kick(None, false), whole);
        assert_eq!(kick(Some(NOW.wall_ms), false), whole);
        assert_eq!(kick(Some(oldest_ms + 1_500), false), NOW.us + SECOND / 2);
        assert_eq!(kick(Some(oldest_ms), false), NOW.us - SECOND);
        assert_eq!(kick(Some(oldest_ms + 500), true), NOW.us + SECOND / 2);
    }

    #[test]
    fn what_may_have_been_routed_before_the_leader_led_is_of_before_it() {
        for (routed_after, since, expected) in [
            (TAKEN - 10, None, Age::Fresh),
            (TAKEN - 10, Some(TAKEN - 10), Age::Fresh),
            (TAKEN - 10, Some(TAKEN - 9), Age::BeforeLeader),
        ] {
            for via in UNFORWARDED.into_iter().chain([Via::Forwarded]) {
                let forwarded_at = Some(LeaderTime {
                    start: START,
                    us: TAKEN,
                });
                let delivery = delivery(via, routed_after, forwarded_at);
                let found = age(&write(None), delivery, NOW, START, since);
                let forwarded = via == Via::Forwarded;
                assert_eq!(found, if forwarded { Age::Fresh } else { expected });
            }
        }
    }

    #[test]
    fn past_its_deadline_it_is_over() {
        let mut request = write(None);
        request.deadline = NOW.us;
        let delivery = delivery(Via::Plain, TAKEN, None);
        assert_eq!(age(&request, delivery, NOW, START, None), Age::Over);
    }
}
