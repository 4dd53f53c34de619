//! L1 to L4, and L6: once everything is healed, each shard has a leader, each request is answered or refused
//! by its deadline, replicas converge, each seat is free again when its time is over, and nodes come to rest.
//! (L5, that one bad node does not stop the others, is what the world's progress is for.)

use std::collections::BTreeMap;

use super::ghosts::Ghosts;
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

/// Changes of leaders of a shard of a cluster that has settled: none, but it may just be handed over, and once more
/// if the node that should have taken it was slow.
const LEADERS_MAX: u64 = 3;
/// Frames that one node sends to another in a second at most.
const FRAMES_MAX: u64 = 333;
/// Tries to pass a request on in a second at most: a shard that is handed over makes some hundred.
const FORWARDS_MAX: u64 = 1_000;

/// Nodes count a request's time from its arrival, so an answer in time may reach a client too late that waits for less.
const JUDGED_MS_MIN: u64 = 100;

/// L1: the first shard of which none of these nodes is a leader that serves.
pub fn unled(nodes: &[&Node], shards: u32) -> Option<u32> {
    (0..shards).find(|id| {
        let leads = |node: &&Node| {
            let running = node.running.as_ref();
            let shard = running.and_then(|it| it.shards().find(|it| it.shard == *id));
            shard.is_some_and(|shard| shard.leads_ready)
        };
        !nodes.iter().any(leads)
    })
}

/// L2: an attempt that was sent to a healed cluster does not end without an answer.
///
/// What any node takes, and checks of limits on the subject of a shard's leader, go to one node of a group. In the moment in
/// which that node ends its subscription, NATS can still give it a message, which its client library drops: that one is not
/// judged ([`Env::forgotten`]).
pub fn is_answered(env: &mut Env, call: &Call, attempt: usize) {
    let name = (call.query.call, attempt);
    let was_forgotten = env.forgotten.contains(&name);
    let Some(attempt) = call.attempts.get(attempt) else {
        return;
    };
    let unanswered = attempt.end.as_ref().is_some_and(|end| {
        end.at == env.timeline.now() && matches!(end.how, Err(NotAnswered::TimedOut))
    });
    let judged = attempt.sent_at >= env.answers_from && attempt.timeout_ms >= JUDGED_MS_MIN;
    if unanswered && judged && !was_forgotten {
        let (query, sent_at, timeout_ms) = (&call.query, attempt.sent_at, attempt.timeout_ms);
        let what = format!(
            "call {}: {} {} was sent at {sent_at} us for {timeout_ms} ms, and nobody answered",
            query.call, query.op, query.line
        );
        env.violated("L2", what);
    }
}

/// L3: every node has applied what was committed a while ago, by shard.
pub fn all_converged(env: &mut Env, nodes: &[&Node], committed: &[u64]) {
    for node in nodes {
        let shards = node.running.iter().flat_map(|it| it.shards());
        let applied = shards.map(|it| (it.shard, it.replica.applied()));
        let applied: BTreeMap<u32, u64> = applied.collect();
        for (shard, committed) in (0..).zip(committed) {
            let applied = applied.get(&shard).copied().unwrap_or(0);
            if applied < *committed {
                let id = node.id;
                let what = format!(
                    "node {id} has applied {applied} entries of shard {shard}; {committed} were committed long ago"
                );
                env.violated("L3", what);
            }
        }
    }
}

/// What nodes do of their own accord, counted since the start.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Frames sent.
    pub frames: u64,
    /// Tries to pass a request on.
    pub forwards: u64,
    /// Changes of leaders.
    pub leaders: u64,
}

/// L6: in this time after everything has settled, leaders stay, and the nodes send what they need to.
pub fn no_storm(
    env: &mut Env,
    before: &Traffic,
    after: &Traffic,
    (nodes, shards): (u64, u64),
    time_us: Time,
) {
    let leaders = after.leaders - before.leaders;
    let frames = (after.frames - before.frames) * 1_000_000 / time_us;
    let forwards = (after.forwards - before.forwards) * 1_000_000 / time_us;
    env.note(format_args!(
        "settled: {leaders} changes of leaders, {frames} frames/s, {forwards} forwards/s"
    ));
    let frames_max = FRAMES_MAX * nodes * (nodes - 1);
    if leaders > LEADERS_MAX * shards || frames > frames_max || forwards > FORWARDS_MAX {
        let what = format!(
            "after everything has settled: {leaders} changes of leaders in {time_us} us, {frames} frames and {forwards} forwards a second"
        );
        env.violated("L6", what);
    }
}

/// L4: no seat is held for long after its time was over, by the service clock: that stands still while a leader
/// whose disk is slow can commit nothing.
pub fn none_overdue(env: &mut Env, shard: usize, shadow: &Shadow, ghosts: &Ghosts) {
    let now_ms = ghosts.last_ms();
    for (incarnation, line) in &shadow.lines {
        let most_ms = line.seat_ms_max();
        for (token, since) in line.seats() {
            let since_ms = ghosts.after_ms(since);
            if now_ms > since_ms + most_ms {
                let what = format!(
                    "shard {shard}, incarnation {incarnation}: {token:?} has its seat since {since} us, {since_ms} ms on the service clock, now {now_ms} ms, and {most_ms} ms are allowed"
                );
                env.violated("L4", what);
            }
        }
    }
}
