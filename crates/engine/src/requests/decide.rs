//! Decides whether a node executes, forwards or refuses a request, from the node's role, the request's way
//! and age, and the kind of its operation.
//!
//! A late write is never executed ([`super::age`]).
//!
//! Two nodes can get one message on a shard's own subject while leadership changes. The leader's own
//! copy alone is executed. The other node forwards its copy, marked as shared, to learn the leader's
//! answer; if the leader has not got the message, nobody executes it.
//!
//! A check of a rate limit counts in the leader's memory, and leaves no id by which a copy were known. So the engine takes it only
//! from the subject of forwards, to which nobody but the leader subscribes, or from its own node, and no node forwards it.

use nowserving_bite::{Break, is};
use nowserving_protocol::error::ApiError;

use super::age::{Age, late_by_sender_alone};
use crate::delivery::{Delivery, ShardDelivery, Via};
use crate::io::Now;
use crate::refusals::{self, outcome_unknown, overloaded};
use crate::request::{Effect, Request};

/// This node's role in the shard of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It does not take part in the cluster.
    OutOfTouch,
    /// It leads, and is subscribed as the leader.
    Leader,
    /// Another node leads, or none.
    NotLeader,
}

/// This node's knowledge of another copy of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copy {
    /// Nothing.
    None,
    /// It is queued, or in the log with its outcome still open.
    Open,
    /// Its answer is remembered.
    Answered,
}

/// The input of [`decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    pub role: Role,
    /// By which subscription the request came.
    pub via: Via,
    /// [`Delivery::shared`], or forwarded to another term: an earlier leader may have refused a copy of it, and the
    /// forwarding node does not know of the present one.
    pub shared: bool,
    pub age: Age,
    pub effect: Effect,
    /// Its client gave the call an id, so it may be one of several copies.
    pub named: bool,
    pub copy: Copy,
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Answered from this node's own state.
    AnswerLocally,
    /// Executed here, as the leader.
    Take,
    /// Forwarded to the leader until the deadline.
    Forward {
        /// The leader may have it too, so its answer to this copy proves nothing unless it is final.
        shared: bool,
    },
    /// Not answered: another copy is.
    Ignore,
    /// Refused: nothing happened.
    RefuseUnavailable,
    /// Refused, as it came too late: nothing happened.
    RefuseLate,
    /// Refused: the node that forwarded it tries again.
    RefuseNotLeader,
    /// Answered `outcome_unknown` at once.
    RefuseUnknown,
}

#[must_use]
pub fn decide(case: Case) -> Action {
    let action = match refuse_write(case) {
        Some(action) => action,
        None => serve(case),
    };
    match action {
        // While leadership changes this node has several subscriptions for a moment. It has taken another
        // copy, and answers that one.
        Action::RefuseNotLeader if case.copy == Copy::Open => Action::Ignore,
        action => action,
    }
}

/// Returns the refusal if a write may be neither executed nor forwarded.
fn refuse_write(case: Case) -> Option<Action> {
    if !case.effect.is_write() {
        return None;
    }
    // Another node may have the message too, and execute it.
    let is_shared = matches!(case.via, Via::Shard(_));
    let refused = |alone| match case.via {
        Via::Shard(_) => Action::RefuseUnknown,
        // The node that forwarded it tries again, if there is time.
        Via::Forwarded => Action::RefuseNotLeader,
        Via::Plain => alone,
    };
    match (case.role, case.age) {
        (_, Age::ForAnother) => Some(Action::Ignore),
        (Role::OutOfTouch, _) | (_, Age::Over) => Some(refused(Action::RefuseUnavailable)),
        (_, Age::Late) => Some(refused(Action::RefuseLate)),
        _ if is(Break::S14Refused) => None,
        // An earlier leader may have refused this message, or another copy of the call, from its state.
        // The present leader does not know that.
        (_, Age::BeforeLeader) if is_shared || case.named => Some(Action::RefuseUnknown),
        (Role::Leader, _) if case.shared && case.copy == Copy::None => {
            Some(Action::RefuseNotLeader)
        }
        _ => None,
    }
}

fn serve(case: Case) -> Action {
    let shared = matches!(case.via, Via::Shard(_)) && case.effect.is_write();
    match (case.role, case.via) {
        (Role::OutOfTouch, _) => Action::RefuseUnavailable,
        _ if case.age == Age::Over => Action::RefuseUnavailable,
        _ if case.effect == Effect::ReadLocal => Action::AnswerLocally,
        // The replacement gets the message too; the forwarded copy is marked as shared.
        (Role::Leader, Via::Shard(ShardDelivery::Draining)) => Action::Forward { shared },
        (Role::Leader, _) => Action::Take,
        (Role::NotLeader, Via::Forwarded) => Action::RefuseNotLeader,
        // A node that is cut off from its peers is subscribed beside a leader that it does not know.
        (Role::NotLeader, _) => Action::Forward { shared },
    }
}

/// The error for a request for which a queue of this node has no room. `leads`: no other node can lead
/// the shard at this time.
#[must_use]
pub fn turned_away(via: Via, effect: Effect, leads: bool) -> ApiError {
    unless_in_doubt(via, effect, leads, overloaded())
}

/// The error for a request that this node refuses unexecuted: `error`, unless another copy of it may be executed.
#[must_use]
pub fn unless_in_doubt(via: Via, effect: Effect, leads: bool, error: ApiError) -> ApiError {
    let in_doubt = match via {
        Via::Plain => false,
        // Another node may have the message too, and execute it; a leader's other copies are never executed.
        Via::Shard(_) => !leads,
        // An earlier try may be in the log. The node that forwarded it tries again.
        Via::Forwarded => true,
    };
    match in_doubt && effect.is_write() {
        true => outcome_unknown(),
        false => error,
    }
}

/// The error for a write that is refused only because its sender's header says that it was sent too long ago.
#[must_use]
pub(crate) fn late_by_header(
    action: Action,
    age: Age,
    request: &Request,
    delivery: Delivery,
    now: Now,
) -> Option<ApiError> {
    let error = match (age, action) {
        (Age::Late, Action::RefuseLate) => refusals::late(),
        (Age::Late, Action::RefuseUnknown) => outcome_unknown(),
        _ => return None,
    };
    let ago_ms = late_by_sender_alone(request, delivery, now)?;
    Some(refusals::late_by_header(error, ago_ms))
}

/// Decides again on a request that this node took as the leader and cannot execute, because it lost the
/// lead or the deadline has passed.
#[must_use]
pub fn decide_unexecuted(via: Via, effect: Effect, role: Role, age: Age) -> Action {
    decide(Case {
        role,
        via,
        shared: false,
        age,
        effect,
        named: false,
        copy: Copy::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Effect::*;
    use ShardDelivery::*;

    const EFFECTS: [Effect; 3] = [ReadLocal, Read, Write];
    const VIAS: [(Via, bool); 6] = [
        (Via::Plain, false),
        (Via::Forwarded, false),
        (Via::Forwarded, true),
        (Via::Shard(Leader), false),
        (Via::Shard(Leaderless), false),
        (Via::Shard(Draining), false),
    ];
    const ROLES: [Role; 3] = [Role::OutOfTouch, Role::Leader, Role::NotLeader];
    const COPIES: [Copy; 3] = [Copy::None, Copy::Open, Copy::Answered];

    fn word(action: Action) -> &'static str {
        match action {
            Action::AnswerLocally => "local",
            Action::Take => "take",
            Action::Forward { shared: false } => "forward",
            Action::Forward { shared: true } => "forward shared",
            Action::Ignore => "ignore",
            Action::RefuseUnavailable => "unavailable",
            Action::RefuseLate => "late",
            Action::RefuseNotLeader => "not leader",
            Action::RefuseUnknown => "unknown",
        }
    }

    /// A second statement of the rules: one arm for each way and effect.
    fn expected(case: Case) -> &'static str {
        let Case { role, via, age, .. } = case;
        let is_over = role == Role::OutOfTouch || age == Age::Over;
        match (case.effect, via) {
            (ReadLocal | Read, _) if is_over => "unavailable",
            (ReadLocal, _) => "local",
            (Read, Via::Forwarded) if role == Role::Leader => "take",
            (Read, Via::Forwarded) if case.copy == Copy::Open => "ignore",
            (Read, Via::Forwarded) => "not leader",
            (Read, Via::Shard(Draining)) => "forward",
            (Read, _) if role == Role::Leader => "take",
            (Read, _) => "forward",
            (Write, _) if age == Age::ForAnother => "ignore",
            (Write, Via::Plain) => match age {
                _ if is_over => "unavailable",
                Age::Late => "late",
                Age::BeforeLeader if case.named => "unknown",
                _ if role == Role::Leader => "take",
                _ => "forward",
            },
            (Write, Via::Shard(to)) => match age {
                _ if is_over => "unknown",
                Age::Late | Age::BeforeLeader => "unknown",
                _ if role == Role::Leader && to != Draining => "take",
                _ => "forward shared",
            },
            (Write, Via::Forwarded) => {
                let taken = role == Role::Leader && matches!(age, Age::Fresh | Age::BeforeLeader);
                let unknown_here = case.shared && case.copy == Copy::None;
                match case.copy {
                    _ if taken && age == Age::BeforeLeader && case.named => "unknown",
                    _ if taken && !unknown_here => "take",
                    Copy::Open => "ignore",
                    _ => "not leader",
                }
            }
        }
    }

    #[test]
    fn every_combination() {
        let ages = [
            Age::Fresh,
            Age::BeforeLeader,
            Age::Late,
            Age::Over,
            Age::ForAnother,
        ];
        let mut seen = std::collections::BTreeSet::new();
        for role in ROLES {
            for (via, shared) in VIAS {
                for age in ages {
                    // Of a forwarded request [`age`] never says that, of any other never this.
                    let forwarded = via == Via::Forwarded;
                    if age
                        == if forwarded {
                            Age::BeforeLeader
                        } else {
                            Age::ForAnother
                        }
                    {
                        continue;
                    }
                    for effect in EFFECTS {
                        for named in [false, true] {
                            for copy in COPIES {
                                let case = Case {
                                    role,
                                    via,
                                    shared,
                                    age,
                                    effect,
                                    named,
                                    copy,
                                };
                                let done = word(decide(case));
                                assert_eq!(done, expected(case), "{case:?}");
                                seen.insert(done);
                            }
                        }
                    }
                }
            }
        }
        assert_eq!(seen.len(), 9);
    }

    /// Safety, apart from the table: rules for writes that no table entry may break.
    #[test]
    fn a_write_is_taken_only_fresh_by_the_leader_and_never_called_undone_if_another_may_have_it() {
        for role in ROLES {
            for (via, shared) in VIAS {
                for age in [Age::Fresh, Age::BeforeLeader, Age::Late, Age::Over] {
                    for copy in COPIES {
                        let case = Case {
                            role,
                            via,
                            shared,
                            age,
                            effect: Write,
                            named: true,
                            copy,
                        };
                        match decide(case) {
                            Action::Take => {
                                assert_eq!((role, age), (Role::Leader, Age::Fresh), "{case:?}");
                                assert!(!shared || copy != Copy::None, "{case:?}");
                            }
                            Action::RefuseUnavailable | Action::RefuseLate => {
                                assert_eq!(via, Via::Plain, "{case:?}");
                            }
                            _ => {}
                        }
                    }
                }
            }
        }
    }

    /// A check of a rate limit counts each time that it is taken: it would count twice if the leader got both a message
    /// and a node's copy of it. On a shard's own subject that happens while leadership changes.
    #[test]
    fn a_read_is_passed_on_from_a_shards_own_subject_and_never_from_that_of_forwards() {
        for role in ROLES {
            for age in [Age::Fresh, Age::Late, Age::Over, Age::ForAnother] {
                let read = |via| {
                    decide(Case {
                        role,
                        via,
                        shared: false,
                        age,
                        effect: Read,
                        named: false,
                        copy: Copy::None,
                    })
                };
                let forwarded = read(Via::Forwarded);
                assert!(
                    !matches!(forwarded, Action::Forward { .. }),
                    "{role:?} {age:?}"
                );
                let takes = role == Role::Leader && age != Age::Over;
                assert_eq!(forwarded == Action::Take, takes, "{role:?} {age:?}");
            }
        }
        // Why a check does not come there.
        for (role, to) in [(Role::Leader, Draining), (Role::NotLeader, Leaderless)] {
            let passed_on = decide(Case {
                role,
                via: Via::Shard(to),
                shared: false,
                age: Age::Fresh,
                effect: Read,
                named: false,
                copy: Copy::None,
            });
            assert_eq!(passed_on, Action::Forward { shared: false });
        }
    }

    #[test]
    fn what_is_turned_away_is_undone_only_if_no_other_node_can_execute_it() {
        use nowserving_protocol::error::Code::{OutcomeUnknown, Overloaded};
        for (via, _) in VIAS {
            for (leads, effect) in [(false, Read), (false, Write), (true, Read), (true, Write)] {
                let in_doubt = match via {
                    Via::Plain => false,
                    Via::Forwarded => effect == Write,
                    Via::Shard(_) => effect == Write && !leads,
                };
                let expected = if in_doubt { OutcomeUnknown } else { Overloaded };
                let answer = turned_away(via, effect, leads);
                assert_eq!(answer.code, expected, "{via:?} {effect:?} {leads}");
            }
        }
    }

    #[test]
    fn what_was_taken_and_not_executed_is_forwarded_or_refused() {
        for (via, lost, over) in [
            (Via::Plain, "forward", "unavailable"),
            (Via::Forwarded, "not leader", "not leader"),
            (Via::Shard(Leader), "forward shared", "unknown"),
            (Via::Shard(Leaderless), "forward shared", "unknown"),
        ] {
            let lead_lost = decide_unexecuted(via, Write, Role::NotLeader, Age::Fresh);
            assert_eq!(word(lead_lost), lost, "{via:?}");
            let at_deadline = |effect| decide_unexecuted(via, effect, Role::Leader, Age::Over);
            assert_eq!(word(at_deadline(Write)), over, "{via:?}");
            assert_eq!(word(at_deadline(Read)), "unavailable");
        }
    }
}
