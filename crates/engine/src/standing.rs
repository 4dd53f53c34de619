//! Announces whether this node takes part. Until it does, the engine greets its peers, handles no Raft
//! message, does not tick, leads no shard, and is subscribed to no requests.

use nowserving_shard::clock::Micros;

use crate::balance::UNREACHABLE_MAX;
use crate::contact::{PeerHeader, Refusal, Standing};
use crate::engine::Engine;
use crate::io::Output;

/// A node comes in touch some milliseconds after its peers are there: an earlier warning would be noise.
pub(crate) const FIRST_COMPLAINT_US: Micros = 2_000_000;
const COMPLAINT_INTERVAL_US: Micros = 10_000_000;

impl Engine {
    pub(crate) fn note_header(
        &mut self,
        from: u64,
        header: &PeerHeader,
        refused: Option<&Refusal>,
        now: Micros,
    ) {
        if self.contact.note_header(from, header, refused, now) {
            self.send_to(from, Vec::new(), Vec::new(), now);
        }
        let in_touch = self.contact.is_in_touch() != self.standing.is_in_touch();
        // At once: the node writes down that its disk is refused.
        if in_touch || self.contact.is_disk_refused() != self.standing.is_disk_refused() {
            self.announce_standing(now);
        }
    }

    /// Reports a changed standing to the node, and repeats it in the log for the operator.
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
            Standing::Refused(refusal) if due => self.complain_of(refusal),
            Standing::Waiting(_) | Standing::Refused(_) => {}
        }
        if due {
            self.next_complaint = now + COMPLAINT_INTERVAL_US;
        }
        metrics::gauge!("nowserving_in_touch").set(f64::from(u8::from(standing.is_in_touch())));
        match standing {
            Standing::InTouch => self.is_candidate = false,
            Standing::Refused(ref refusal) if refusal.needs_number() => {
                self.is_candidate |= !self.contact.says_removed();
            }
            Standing::Refused(_) | Standing::Waiting(_) => {}
        }
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

    fn complain_of(&self, refusal: &Refusal) {
        let reason = &refusal.reason;
        if refusal.needs_number() || self.contact.says_removed() {
            tracing::warn!(reason, "this node is refused and serves nobody");
        } else {
            tracing::warn!(
                reason,
                "this node is refused and serves nobody: correct its configuration"
            );
        }
    }

    /// Whether a peer does not take part, as far as this node knows.
    pub(crate) fn is_out_of_touch(&self, id: u64) -> bool {
        let peer = self.ctx.clocks.peers.get(&id);
        !peer.is_some_and(|peer| peer.in_touch)
    }

    /// Whether this node serves requests, with the reason if it does not.
    fn serves(&self, now: Micros) -> Result<(), String> {
        let mut problems = Vec::new();
        if self.stopping_since.is_some() {
            problems.push("the node is stopping".to_owned());
        }
        if self.ctx.reachability.unreachable_for(now) > UNREACHABLE_MAX {
            problems.push("requests do not reach this node: is NATS there?".to_owned());
        }
        if self.ctx.disk_full {
            problems.push("the disk is full".to_owned());
        }
        problems.extend(self.ctx.payload.problem());
        match self.contact.standing(now) {
            Standing::InTouch => problems.extend(self.no_quorum(now)),
            Standing::Waiting(reason) | Standing::Refused(Refusal { reason, .. }) => {
                problems.push(reason);
            }
        }
        match problems.is_empty() {
            true => Ok(()),
            false => Err(problems.join("; ")),
        }
    }

    /// The problem that too few nodes are alive, if that is so.
    fn no_quorum(&self, now: Micros) -> Option<String> {
        let peers = &self.ctx.clocks.peers;
        let silent = |id: &u64| !peers.get(id).is_some_and(|peer| peer.alive(now));
        let silent: Vec<String> = self
            .others()
            .filter(silent)
            .map(|id| id.to_string())
            .collect();
        let all = self.others().count() + 1;
        let quorum = all / 2 + 1;
        (all - silent.len() < quorum).then(|| {
            format!(
                "no quorum: of {all} nodes {quorum} are needed, and nothing is heard of {}",
                silent.join(", ")
            )
        })
    }
}
