//! L1, L2 and L4: once everything is healed, each shard has a leader, each request is answered or refused
//! by its deadline, and each seat is free again when its time is over.

use super::shadow::Shadow;
use crate::calls::{Call, NotAnswered};
use crate::env::Env;
use crate::node::Node;
use crate::timeline::Time;
use crate::world::FAULTS_US;

/// By then each shard has a leader: a few election timeouts after everything was healed.
pub const LED_US: Time = FAULTS_US + 5_000_000;

/// A shard without a leader gets one within this time: it may just be handed over.
pub const HAND_OVER_US: Time = 2_000_000;

/// L1: the first shard of which none of these nodes is a leader that serves.
pub fn unled(nodes: &[&Node], shards: u32) -> Option<u32> {
    (0..shards).find(|id| {
        let leads = |node: &&Node| {
            let running = node.running.as_ref();
            let shard = running.and_then(|it| it.engine.shards().find(|it| it.shard == *id));
            shard.is_some_and(|shard| shard.leads_ready)
        };
        !nodes.iter().any(leads)
    })
}

/// L2: an attempt that was sent to a healed cluster does not end without an answer.
pub fn is_answered(env: &mut Env, call: &Call, attempt: usize) {
    let Some(attempt) = call.attempts.get(attempt) else {
        return;
    };
    let unanswered = attempt.end.as_ref().is_some_and(|end| {
        end.at == env.timeline.now() && matches!(end.how, Err(NotAnswered::TimedOut))
    });
    if unanswered && attempt.sent_at >= LED_US {
        let (query, sent_at, timeout_ms) = (&call.query, attempt.sent_at, attempt.timeout_ms);
        let what = format!(
            "call {}: {} {} was sent at {sent_at} us for {timeout_ms} ms, and nobody answered",
            query.call, query.op, query.line
        );
        env.violated("L2", what);
    }
}

/// L4: no seat is held for long after its time was over.
pub fn none_overdue(env: &mut Env, shard: usize, shadow: &Shadow) {
    let now = env.timeline.now();
    for (incarnation, line) in &shadow.lines {
        for (token, since) in line.overdue(now) {
            let what = format!(
                "shard {shard}, incarnation {incarnation}: {token:?} has its seat since {since} us"
            );
            env.violated("L4", what);
        }
    }
}
