//! What is done about a request: one decision, from what this node is, how the request came, and what
//! it does.

use crate::request::Effect;

/// How a request reached this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// By which subscription.
    pub via: Via,
    /// It may have lain unread while this process stood still: another node may have answered it.
    pub stale: bool,
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
    /// That of a group of all nodes while nobody leads. It usually gets the message exclusively.
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
    /// Answered `outcome_unknown` at its deadline: another node may have it too, and will have
    /// answered by then.
    Hold,
    /// Refused: nothing happened.
    RefuseUnavailable,
    /// Refused: the node that passed it on tries again.
    RefuseNotLeader,
    /// Answered `outcome_unknown` at once.
    RefuseUnknown,
}

/// What is done about a request with this `effect`.
#[must_use]
pub fn decide(role: Role, delivery: Delivery, effect: Effect) -> Action {
    let Delivery { via, stale } = delivery;
    match (role, via) {
        (Role::OutOfTouch, _) => Action::RefuseUnavailable,
        (_, Via::Shard(_)) if stale && effect.is_write() => Action::RefuseUnknown,
        _ if effect == Effect::ReadLocal => Action::AnswerLocally,
        (
            Role::Leader,
            Via::Plain
            | Via::Forwarded
            | Via::Shard(ShardDelivery::Leader | ShardDelivery::Leaderless),
        ) => Action::Take,
        (_, Via::Forwarded) => Action::RefuseNotLeader,
        (_, Via::Plain) => Action::Forward { in_doubt: false },
        (_, Via::Shard(delivery)) => match effect {
            // Tried twice it could take two numbers, or refuse itself.
            Effect::EnterKeyless | Effect::WriteOnce => Action::Hold,
            Effect::WriteAgain => Action::Forward {
                in_doubt: delivery != ShardDelivery::Leaderless,
            },
            Effect::ReadLocal | Effect::Read => Action::Forward { in_doubt: false },
        },
    }
}

/// What is done about a request that this node had taken as the leader when it leads no more, and
/// of which nothing happened here.
#[must_use]
pub fn decide_after_lead(delivery: Delivery, effect: Effect) -> Action {
    let via = match delivery.via {
        // As leadership changes hands two nodes listen for a moment: the next leader may have it.
        Via::Shard(_) => Via::Shard(ShardDelivery::Draining),
        via => via,
    };
    decide(Role::NotLeader, Delivery { via, ..delivery }, effect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::*;
    use ShardDelivery::*;

    const EFFECTS: [Effect; 5] = [ReadLocal, Read, WriteAgain, EnterKeyless, WriteOnce];
    const VIAS: [Via; 5] = [
        Via::Plain,
        Via::Forwarded,
        Via::Shard(Leader),
        Via::Shard(Leaderless),
        Via::Shard(Draining),
    ];

    fn row(role: Role, via: Via, stale: bool) -> String {
        let word = |effect| match decide(role, Delivery { via, stale }, effect) {
            Action::AnswerLocally => "local",
            Action::Take => "take",
            Action::Forward { in_doubt: false } => "forward",
            Action::Forward { in_doubt: true } => "forward?",
            Action::Hold => "hold",
            Action::RefuseUnavailable => "unavailable",
            Action::RefuseNotLeader => "not_leader",
            Action::RefuseUnknown => "unknown",
        };
        EFFECTS.map(word).join(" ")
    }

    #[test]
    fn every_combination() {
        //            ReadLocal Read WriteAgain EnterKeyless WriteOnce
        let fresh = [
            (Role::Leader, Via::Plain, "local take take take take"),
            (Role::Leader, Via::Forwarded, "local take take take take"),
            (
                Role::Leader,
                Via::Shard(Leader),
                "local take take take take",
            ),
            (
                Role::Leader,
                Via::Shard(Leaderless),
                "local take take take take",
            ),
            (
                Role::Leader,
                Via::Shard(Draining),
                "local forward forward? hold hold",
            ),
            (
                Role::NotLeader,
                Via::Plain,
                "local forward forward forward forward",
            ),
            (
                Role::NotLeader,
                Via::Forwarded,
                "local not_leader not_leader not_leader not_leader",
            ),
            (
                Role::NotLeader,
                Via::Shard(Leader),
                "local forward forward? hold hold",
            ),
            (
                Role::NotLeader,
                Via::Shard(Leaderless),
                "local forward forward hold hold",
            ),
            (
                Role::NotLeader,
                Via::Shard(Draining),
                "local forward forward? hold hold",
            ),
        ];
        let refused = ["unavailable"; 5].join(" ");
        for via in VIAS {
            for stale in [false, true] {
                assert_eq!(row(Role::OutOfTouch, via, stale), refused, "{via:?}");
            }
            for role in [Role::Leader, Role::NotLeader] {
                let row_of = fresh.iter().find(|it| (it.0, it.1) == (role, via));
                let Some((_, _, expected)) = row_of else {
                    panic!("no row for {role:?} {via:?}");
                };
                assert_eq!(row(role, via, false), *expected, "{role:?} {via:?}");
                let stale = match via {
                    // Nobody else has it, or the sender knows what became of it.
                    Via::Plain | Via::Forwarded => (*expected).to_owned(),
                    Via::Shard(_) => {
                        let reads: Vec<&str> = expected.split(' ').take(2).collect();
                        format!("{} unknown unknown unknown", reads.join(" "))
                    }
                };
                assert_eq!(row(role, via, true), stale, "{role:?} {via:?} stale");
            }
        }
    }

    #[test]
    fn what_was_taken_and_not_done_is_passed_on_or_in_doubt() {
        for (via, expected) in [
            (Via::Plain, "local forward forward forward forward"),
            (
                Via::Forwarded,
                "local not_leader not_leader not_leader not_leader",
            ),
            (Via::Shard(Leader), "local forward forward? hold hold"),
            (Via::Shard(Leaderless), "local forward forward? hold hold"),
        ] {
            for effect in EFFECTS {
                let delivery = Delivery { via, stale: false };
                let after = match via {
                    Via::Shard(_) => Via::Shard(Draining),
                    via => via,
                };
                assert_eq!(row(Role::NotLeader, after, false), expected);
                let direct = decide(
                    Role::NotLeader,
                    Delivery {
                        via: after,
                        stale: false,
                    },
                    effect,
                );
                assert_eq!(decide_after_lead(delivery, effect), direct);
            }
        }
    }
}
