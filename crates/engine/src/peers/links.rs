//! What goes to and comes from peers, apart from its content.

use std::collections::BTreeMap;

use nowserving_replica::StepRefused;
use nowserving_shard::clock::Micros;

/// A peer that gets no other frame gets a sign of life this often.
const SIGN_OF_LIFE_US: Micros = 400_000;
/// The same for a node that no quorum has accepted yet, which sends nothing else.
const GREETING_US: Micros = 100_000;
/// Refused Raft messages are warned about this often at most.
const WARNING_INTERVAL_US: Micros = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Links {
    last_sent: BTreeMap<u64, Micros>,
    /// Since the last warning.
    refused_messages: u64,
    next_warning: Micros,
}

impl Links {
    pub fn sent(&mut self, to: u64, now: Micros) {
        self.last_sent.insert(to, now);
    }

    /// Everybody gets a frame at the next opportunity.
    pub fn tell_all(&mut self) {
        self.last_sent.clear();
    }

    /// The peers that get a frame, as they have had none for long.
    pub fn quiet<'a>(
        &self,
        peers: impl IntoIterator<Item = &'a u64>,
        in_touch: bool,
        now: Micros,
    ) -> Vec<u64> {
        let interval_us = match in_touch {
            true => SIGN_OF_LIFE_US,
            false => GREETING_US,
        };
        let last = |peer: &u64| self.last_sent.get(peer).copied().unwrap_or(0);
        let quiet = |peer: &&u64| now.saturating_sub(last(peer)) >= interval_us;
        peers.into_iter().filter(quiet).copied().collect()
    }

    /// A Raft message of a peer was refused.
    pub fn refused(&mut self, shard: u32, from: u64, refused: StepRefused, now: Micros) {
        if refused.is_expected() {
            return;
        }
        metrics::counter!("nowserving_raft_refused_total").increment(1);
        self.refused_messages += 1;
        if now >= self.next_warning {
            self.next_warning = now + WARNING_INTERVAL_US;
            let count = std::mem::take(&mut self.refused_messages);
            tracing::warn!(shard, from, %refused, count, "raft messages refused");
        }
    }
}
