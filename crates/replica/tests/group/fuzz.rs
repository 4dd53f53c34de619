//! Random messages.

use std::panic::{AssertUnwindSafe, catch_unwind};

use nowserving_replica::{Committed, Payload};
use raft::eraftpb::{Message, MessageType};

use crate::common::{Cluster, ELECTION_US, Random};
use crate::refusals::{entries, message};

/// Whatever a member sends: no panic. What is taken may be a lie, but never ends the process.
#[test]
fn no_message_makes_it_panic() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let mut cluster = Cluster::led_by_1(seed);
        for at in 0..4 {
            cluster.commit(1, &format!("{at}"));
        }
        if seed % 3 == 0 {
            cluster.isolate(3);
            cluster.run(3 * ELECTION_US);
        }
        let to = 1 + random.below(3);
        let mut sent = Vec::new();
        for _ in 0..60 {
            let message = any_message(&mut random, &cluster, to);
            sent.push(message.clone());
            let (now, true_now) = (cluster.clock(to), cluster.now);
            let node = cluster.node(to);
            let survived = catch_unwind(AssertUnwindSafe(|| {
                let meta = message.get_snapshot().get_metadata().clone();
                let entry = Committed {
                    index: meta.index,
                    term: meta.term,
                    payload: Payload::Empty,
                };
                let offer = message.clone().into();
                if node.replica().needs_snapshot(&offer)
                    && node.replica().check_snapshot(&offer, now).is_ok()
                {
                    node.fetch((meta.into(), vec![entry]));
                }
                let _ = node.replica().step(message.into(), now);
                if random.below(3) == 0 {
                    node.turn(true_now);
                }
            }));
            assert!(survived.is_ok(), "seed {seed}: {sent:#?}");
        }
    }
}

fn any_message(random: &mut Random, cluster: &Cluster, to: u64) -> Message {
    let replica = cluster.nodes[to as usize - 1].view();
    let near = |random: &mut Random, value: u64| match random.below(12) {
        0 => 0,
        1 => u64::MAX,
        2 => random.next(),
        3 => 1 << 62,
        _ => value.saturating_add(random.below(6)).saturating_sub(2),
    };
    const KINDS: [MessageType; 12] = [
        MessageType::MsgAppend,
        MessageType::MsgAppendResponse,
        MessageType::MsgHeartbeat,
        MessageType::MsgHeartbeatResponse,
        MessageType::MsgRequestVote,
        MessageType::MsgRequestVoteResponse,
        MessageType::MsgRequestPreVote,
        MessageType::MsgRequestPreVoteResponse,
        MessageType::MsgTimeoutNow,
        MessageType::MsgSnapshot,
        MessageType::MsgPropose,
        MessageType::MsgReadIndex,
    ];
    let kind = KINDS[random.below(KINDS.len() as u64) as usize];
    let term = near(random, replica.term());
    let mut message = message(kind, 1 + random.below(3), to, term);
    message.index = near(random, replica.last_index());
    message.log_term = near(random, replica.term());
    message.commit = near(random, replica.last_index());
    message.commit_term = near(random, replica.term());
    message.reject = random.below(3) == 0;
    message.reject_hint = near(random, replica.last_index());
    if kind == MessageType::MsgSnapshot {
        let index = message.index;
        let meta = message.mut_snapshot().mut_metadata();
        (meta.index, meta.term) = (index, near(random, term));
        meta.mut_conf_state().voters = (1..2 + random.below(4)).collect();
        meta.mut_conf_state().learners = (0..random.below(3)).map(|_| random.below(7)).collect();
    }
    if random.below(10) == 0 {
        message.context = b"CampaignTransfer".to_vec().into();
    }
    let (first, count) = (message.index.wrapping_add(1), random.below(4));
    let of: Vec<(u64, u64)> = (0..count)
        .map(|at| {
            if random.below(6) == 0 {
                (near(random, term), near(random, first))
            } else {
                (term, first.wrapping_add(at))
            }
        })
        .collect();
    message.entries = entries(&of);
    message
}
