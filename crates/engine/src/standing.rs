//! Whether this node takes part, as the engine acts on it: until it does, it greets its peers, handles
//! no Raft message, does not tick, leads nothing, and listens to no client.

use nowserving_shard::clock::Micros;

use crate::balance::UNREACHABLE_MAX;
use crate::contact::{PeerHeader, Standing};
use crate::engine::Engine;
use crate::io::Output;

/// Coming in touch takes some milliseconds once the peers are there; said earlier than this after the
/// start, that it has not happened yet would only be noise.
pub(crate) const FIRST_COMPLAINT_US: Micros = 2_000_000;
/// How often it is said again.
const COMPLAINT_INTERVAL_US: Micros = 10_000_000;

impl Engine {
    /// Takes note of what a frame says of sender and receiver.
    pub(crate) fn note_header(
        &mut self,
        from: u64,
        header: &PeerHeader,
        refused: Option<&str>,
        now: Micros,
    ) {
        if self.contact.note_header(from, header, refused, now) {
            self.send_to(from, Vec::new(), Vec::new(), now);
        }
        if self.contact.is_in_touch() != self.standing.is_in_touch() {
            self.announce_standing(now);
        }
    }

    /// Tells the node, and its operator, how it stands.
    pub(crate) fn announce_standing(&mut self, now: Micros) {
        let standing = self.contact.standing(now);
        let was_in_touch = self.standing.is_in_touch();
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
        if self.standing != standing {
            self.standing = standing.clone();
            self.ctx.out.outputs.push(Output::Standing(standing));
        }
        self.update_subscriptions(now);
        let serves = self.serves(now);
        if self.serves.as_ref() != Some(&serves) {
            self.serves = Some(serves.clone());
            self.ctx.out.outputs.push(Output::Serves(serves));
        }
    }

    /// Whether requests are served by way of this node.
    fn serves(&self, now: Micros) -> Result<(), String> {
        let mut problems = Vec::new();
        if self.stopping_since.is_some() {
            problems.push("the node is stopping".to_owned());
        }
        if self.ctx.reachability.unreachable_for(now) > UNREACHABLE_MAX {
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
        let peers = &self.ctx.clocks.peers;
        let silent = |id: &u64| !peers.get(id).is_some_and(|peer| peer.alive(now));
        let silent: Vec<String> = self
            .others()
            .filter(silent)
            .map(|id| id.to_string())
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
