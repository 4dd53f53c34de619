//! Whether this node takes part, as the loop lives by it: until it does, it greets its peers, handles
//! no Raft message, does not tick, leads nothing, and listens to nobody.

use super::Shards;
use super::balance::UNREACHABLE_MAX;
use super::group::Turn;
use nowserving_engine::contact::{PeerHeader, Standing};
use nowserving_shard::clock::Micros;

/// Coming in touch takes some milliseconds once the peers are there; said earlier than this after the
/// start, that it has not happened yet would only be noise.
pub(super) const FIRST_COMPLAINT_US: Micros = 2_000_000;
/// How often it is said again.
const COMPLAINT_INTERVAL_US: Micros = 10_000_000;

impl Shards {
    /// Takes note of what a frame says of sender and receiver.
    pub(super) fn hear(
        &mut self,
        from: u64,
        word: &PeerHeader,
        refused: Option<&str>,
        now: Micros,
    ) {
        if self.contact.hear(from, word, refused, now) {
            self.send_to(from, Vec::new(), Vec::new(), now);
        }
        if self.contact.is_in_touch() != self.outputs.standing.borrow().is_in_touch() {
            self.announce_standing(now);
        }
    }

    /// Out of touch, nothing that Raft would end a lead by is heard.
    pub(super) fn step_down(&mut self, now: Micros) {
        for shard in &mut self.shards {
            shard.step_down(&mut Turn {
                now,
                wall_ms: self.wall_ms,
                reachability: &self.reachability,
                out: &mut self.out,
            });
        }
    }

    /// Tells the rest of the node, and the log, how it stands.
    pub(super) fn announce_standing(&mut self, now: Micros) {
        let standing = self.contact.standing(now);
        let was_in_touch = self.outputs.standing.borrow().is_in_touch();
        let due = now >= self.next_complaint || was_in_touch;
        match &standing {
            Standing::InTouch if !was_in_touch => {
                tracing::info!("a quorum has accepted this node: it takes part");
            }
            Standing::InTouch => {}
            Standing::Waiting(reason) if due => {
                tracing::warn!(reason, "this node does not take part and serves nobody yet");
            }
            Standing::Refused(reason) if due => {
                tracing::warn!(reason, "this node is refused and serves nobody");
            }
            Standing::Waiting(_) | Standing::Refused(_) => {}
        }
        if due {
            self.next_complaint = now + COMPLAINT_INTERVAL_US;
        }
        metrics::gauge!("nowserving_in_touch").set(f64::from(u8::from(standing.is_in_touch())));
        self.outputs.standing.send_if_modified(|current| {
            let changed = *current != standing;
            *current = standing;
            changed
        });
        self.listen();
        self.outputs.health.set_serves(self.serves(now));
    }

    /// Whether requests are served by way of this node.
    fn serves(&self, now: Micros) -> Result<(), String> {
        let mut problems = Vec::new();
        if self.stopping_since.is_some() {
            problems.push("the node is stopping".to_owned());
        }
        let unreachable_for = self.reachability.unreachable_for(now);
        if unreachable_for > UNREACHABLE_MAX {
            problems.push("requests do not reach this node: is NATS there?".to_owned());
        }
        match self.contact.standing(now) {
            Standing::InTouch => problems.extend(self.no_quorum(now)),
            Standing::Waiting(reason) | Standing::Refused(reason) => problems.push(reason),
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problems.join("; ")),
        }
    }

    /// Says so if too few nodes are alive.
    fn no_quorum(&self, now: Micros) -> Option<String> {
        let others = self.config.nodes.iter().filter(|id| **id != self.config.id);
        let silent: Vec<String> = others
            .filter(|id| !self.peers.get(id).is_some_and(|peer| peer.alive(now)))
            .map(u64::to_string)
            .collect();
        let all = self.config.nodes.len();
        let quorum = all / 2 + 1;
        (all - silent.len() < quorum).then(|| {
            format!(
                "no quorum: of {all} nodes {quorum} are needed, and nothing is heard of {}",
                silent.join(", ")
            )
        })
    }
}
