//! Which part of a node takes a message, before it is read whole.

use nowserving_engine::refusals::overloaded;
use nowserving_engine::{Input, ReplyTo, Via, lay_unread, turned_away};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;

/// The operation of a request by which a node finds out how NATS maps plain subjects, followed by the node's number:
/// each node receives its own.
pub const MAPPING_PROBE: &str = "mapping_probe_";

/// What is done with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Nobody waits for an answer, or it must not be given.
    Drop,
    /// The keys by which others check passes. Any node answers by itself, also without a quorum.
    PublicKeys,
    /// The node asks others for each line.
    ManyLines,
    /// The node asks the leaders of shards that have counters.
    Limits,
    /// It would ask others, and the message lay unread for too long: no other node has it, and those that are asked
    /// because of it could not tell that it is late.
    Late,
    /// It is read and given to the engine.
    Engine,
}

/// Decides about a message by this subscription, which is read now and was routed after that moment.
#[must_use]
pub fn route(
    subjects: &Subjects,
    (subject, reply): (&str, Option<&str>),
    via: Via,
    (now, routed_after): (Micros, Micros),
) -> Route {
    match reply {
        None if is_mapping_probe(subject) => return Route::Drop,
        // An answer there would be a request, a frame or an event in this node's name.
        Some(reply) if !subjects.may_reply_to(reply) => {
            metrics::counter!("nowserving_replies_refused_total").increment(1);
            return Route::Drop;
        }
        _ => {}
    }
    let asks_others = match below(subjects, subject) {
        Some(rest) if is_of_cluster(rest, Operation::Jwks) => return Route::PublicKeys,
        Some(rest) if is_of_cluster(rest, Operation::ConfigureLines) => Route::ManyLines,
        Some(rest) if via == Via::Plain && is_of_limits(rest) => Route::Limits,
        _ => return Route::Engine,
    };
    match lay_unread(now, routed_after) {
        true => {
            metrics::counter!("nowserving_late_writes_total").increment(1);
            Route::Late
        }
        false => asks_others,
    }
}

/// Whether a message is a request by which a node finds out how NATS maps plain subjects.
#[must_use]
pub fn is_mapping_probe(subject: &str) -> bool {
    let op = subject.rsplit('.').next();
    op.is_some_and(|op| op.starts_with(MAPPING_PROBE))
}

fn below<'a>(subjects: &Subjects, subject: &'a str) -> Option<&'a str> {
    subject.strip_prefix(subjects.prefix())?.strip_prefix('.')
}

fn is_of_cluster(rest: &str, op: Operation) -> bool {
    rest.strip_prefix("admin.cluster.") == Some(op.word())
}

fn is_of_limits(rest: &str) -> bool {
    let mut of = ["limit.", "admin.limit.", "leader."].iter();
    of.any(|of| rest.starts_with(of))
}

/// The answer to a request for which the engine's inbox has no room.
#[must_use]
pub fn no_room(refused: Input) -> Option<(ReplyTo, ApiError)> {
    match refused {
        Input::Request { request, delivery } => {
            let error = turned_away(delivery.via, request.ask.effect(), false);
            Some((request.reply, error))
        }
        Input::Cluster { reply, .. } => Some((reply, overloaded())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use nowserving_engine::ShardDelivery;

    use super::*;

    fn of(subject: &str, reply: Option<&str>, via: Via, now: Micros) -> Route {
        route(&Subjects::default(), (subject, reply), via, (now, 0))
    }

    #[test]
    fn what_asks_others_is_late_when_it_is_read_late() {
        for (subject, in_time) in [
            ("nowserving.limit.shop.check", Route::Limits),
            ("nowserving.leader.3.limit.shop.check", Route::Limits),
            ("nowserving.admin.limit.delete", Route::Limits),
            ("nowserving.admin.limit.show", Route::Limits),
            ("nowserving.admin.cluster.configure_lines", Route::ManyLines),
        ] {
            assert_eq!(of(subject, Some("r"), Via::Plain, 1_000_000), in_time);
            assert_eq!(of(subject, Some("r"), Via::Plain, 1_000_001), Route::Late);
        }
        // The engine judges what is about one line.
        let enter = "nowserving.line.shop.enter";
        assert_eq!(of(enter, Some("r"), Via::Plain, 9_000_000), Route::Engine);
        let jwks = "nowserving.admin.cluster.jwks";
        assert_eq!(of(jwks, None, Via::Plain, 9_000_000), Route::PublicKeys);
        // A line may have such a name.
        let leader = Via::Shard(ShardDelivery::Leader);
        for (subject, via) in [
            ("nowserving.shard.3.limit.check", leader),
            ("nowserving.line.limit.check", Via::Plain),
            ("other.limit.shop.check", Via::Plain),
        ] {
            assert_eq!(of(subject, Some("r"), via, 0), Route::Engine, "{subject}");
        }
    }

    #[test]
    fn an_answer_that_would_be_a_message_of_the_nodes_is_not_given() {
        for reply in [
            "nowserving.raft.c.1.2",
            "nowserving.line.a.enter",
            "$JS.API.x",
        ] {
            let info = "nowserving.line.shop.info";
            assert_eq!(of(info, Some(reply), Via::Plain, 0), Route::Drop);
        }
    }

    #[test]
    fn only_probes_are_left_unanswered() {
        assert!(is_mapping_probe("nowserving.line.a.mapping_probe_1"));
        assert!(is_mapping_probe("nowserving.shard.3.a.mapping_probe_12"));
        assert!(!is_mapping_probe("nowserving.line.mapping_probe_1.enter"));
        let probe = "nowserving.line.a.mapping_probe_1";
        assert_eq!(of(probe, None, Via::Plain, 0), Route::Drop);
        assert_eq!(of(probe, Some("r"), Via::Plain, 0), Route::Engine);
    }
}
