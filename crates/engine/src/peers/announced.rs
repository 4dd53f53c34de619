//! What the node knows of this engine: whether it takes part and whether it serves.

use nowserving_shard::clock::Micros;

use super::contact::{Contact, Refusal, Standing};
use crate::io::Output;
use crate::outbox::Outbox;

/// A node comes in touch some milliseconds after its peers are there: an earlier warning would be noise.
const FIRST_COMPLAINT_US: Micros = 2_000_000;
const COMPLAINT_INTERVAL_US: Micros = 10_000_000;

#[derive(Debug)]
pub(crate) struct Announced {
    standing: Standing,
    /// `None`: nothing yet.
    serves: Option<Result<(), String>>,
    next_complaint: Micros,
}

impl Announced {
    pub fn new(now: Micros) -> Self {
        Announced {
            standing: Standing::Waiting("starting".to_owned()),
            serves: None,
            next_complaint: now + FIRST_COMPLAINT_US,
        }
    }

    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Whether there is news of which the node must hear at once: it writes down that its disk is refused.
    pub fn is_outdated(&self, contact: &Contact) -> bool {
        contact.is_in_touch() != self.standing.is_in_touch()
            || contact.is_disk_refused() != self.standing.is_disk_refused()
    }

    /// Reports a changed standing to the node, and repeats it in the log for the operator.
    pub fn announce(
        &mut self,
        standing: &Standing,
        says_removed: bool,
        now: Micros,
        out: &mut Outbox,
    ) {
        let was_in_touch = self.standing.is_in_touch();
        let due = now >= self.next_complaint || was_in_touch;
        match standing {
            Standing::InTouch if !was_in_touch => {
                tracing::info!("a quorum has accepted this node: it takes part");
            }
            Standing::InTouch => {}
            Standing::Waiting(reason) if due => {
                tracing::warn!(reason, "this node does not take part and serves nobody yet");
            }
            Standing::Refused(refusal) if due => complain_of(refusal, says_removed),
            Standing::Waiting(_) | Standing::Refused(_) => {}
        }
        if due {
            self.next_complaint = now + COMPLAINT_INTERVAL_US;
        }
        metrics::gauge!("nowserving_in_touch").set(f64::from(u8::from(standing.is_in_touch())));
        if self.standing != *standing {
            self.standing = standing.clone();
            out.outputs.push(Output::Standing(standing.clone()));
        }
    }

    /// Reports whether this node serves, if that has changed.
    pub fn serves(&mut self, serves: Result<(), String>, out: &mut Outbox) {
        if self.serves.as_ref() != Some(&serves) {
            self.serves = Some(serves.clone());
            out.outputs.push(Output::Serves(serves));
        }
    }
}

fn complain_of(refusal: &Refusal, says_removed: bool) {
    let reason = &refusal.reason;
    if refusal.needs_number() || says_removed {
        tracing::warn!(reason, "this node is refused and serves nobody");
    } else {
        tracing::warn!(
            reason,
            "this node is refused and serves nobody: correct its configuration"
        );
    }
}
