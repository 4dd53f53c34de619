//! Members that lack a part of the log of some shards. Only a shard's leader knows that: it says so in its frames,
//! and so every node can show it.

use std::collections::BTreeMap;

use nowserving_protocol::admin::SnapshotsSent;
use nowserving_replica::Progress;
use nowserving_shard::clock::Micros;

use crate::engine::Engine;
use crate::envelope::LaggingMember;
use crate::maintenance::LAG_MAX;
use crate::shard::Shard;

/// A leader's frames say nothing about a shard that it has just begun to lead. After this long they do.
const LEADS_LONG_US: Micros = 1_000_000;

impl Engine {
    /// Looks which members lag in the shards that this node leads.
    pub(crate) fn find_lagging(&mut self) {
        let mut found = BTreeMap::new();
        for shard in self.shards.values_mut() {
            shard.find_lagging(&mut found);
        }
        self.lagging = found.into_values().collect();
    }

    /// In how many shards a node has caught up. None if it does not take part: what it lacks by now is not known.
    pub(crate) fn caught_up_in(&self, id: u64, now: Micros) -> usize {
        let shards = self.shards.values().filter(|_| self.takes_part(id, now));
        shards
            .filter(|it| self.lags(it, id, now) == Some(false))
            .count()
    }

    /// In how many of these shards a node is known to lag, or has no vote.
    pub(crate) fn cannot_lead_in(&self, id: u64, shards: &[u32], now: Micros) -> usize {
        let votes = |shard: &Shard| shard.replica.members().voters.contains(&id);
        let shards = shards.iter().filter_map(|it| self.shards.get(it));
        shards
            .filter(|it| !votes(it) || self.lags(it, id, now) == Some(true))
            .count()
    }

    /// Whether a node lags in a shard, if that is known.
    fn lags(&self, shard: &Shard, id: u64, now: Micros) -> Option<bool> {
        let leader = shard.replica.leader()?;
        if leader == id {
            return Some(false);
        }
        let said = self.said_by(leader, now)?;
        let lags = said
            .iter()
            .any(|it| it.node == id && it.shards.contains(&shard.id));
        let is_member = shard.replica.members().nodes().any(|it| it == id);
        match lags || !is_member {
            true => Some(true),
            false => self.leads_long(shard, now).then_some(false),
        }
    }

    /// The snapshots that leaders send such nodes now.
    pub(crate) fn snapshots_sent(
        &self,
        to: impl Fn(u64) -> bool,
        now: Micros,
    ) -> Option<SnapshotsSent> {
        let nodes = self.membership.peers.iter().chain([&self.config.id]);
        let said = nodes
            .filter_map(|leader| self.said_by(*leader, now))
            .flatten();
        let about = said.filter(|it| to(it.node) && it.snapshot_bytes > 0);
        let sent = about.map(|it| (it.snapshot_sent, it.snapshot_bytes));
        let (sent_bytes, total_bytes) = sent.reduce(|a, b| (a.0 + b.0, a.1 + b.1))?;
        Some(SnapshotsSent {
            sent_bytes,
            total_bytes,
        })
    }

    fn leads_long(&self, shard: &Shard, now: Micros) -> bool {
        let since = shard.leader_since();
        since.is_some_and(|since| now.saturating_sub(since) > LEADS_LONG_US)
    }

    /// What a node says about the members of the shards that it leads.
    fn said_by(&self, leader: u64, now: Micros) -> Option<&[LaggingMember]> {
        if leader == self.config.id {
            return Some(&self.lagging);
        }
        let peer = self.ctx.clocks.peers.get(&leader)?;
        peer.alive(now).then_some(&peer.lagging)
    }
}

impl Shard {
    /// A member keeps up that lacks few entries, or has what the log had at the last look: under load such a member
    /// always lacks the newest ones.
    pub(crate) fn keeps_up(&self, progress: &Progress) -> bool {
        let has_last_look = self.last_look > 0 && progress.matched >= self.last_look;
        progress.lag <= LAG_MAX || has_last_look
    }

    fn find_lagging(&mut self, found: &mut BTreeMap<u64, LaggingMember>) {
        if self.leads() {
            self.list_lagging(found);
        }
        self.last_look = self.replica.last_index();
    }

    fn list_lagging(&self, found: &mut BTreeMap<u64, LaggingMember>) {
        for node in self.replica.members().nodes() {
            let Some(progress) = self.replica.progress_of(node) else {
                continue;
            };
            if progress.matched > 0 && self.keeps_up(&progress) {
                continue;
            }
            let lagging = found.entry(node).or_insert_with(|| LaggingMember {
                node,
                ..LaggingMember::default()
            });
            lagging.shards.push(self.id);
            if let Some((sent, bytes)) = self.snapshot_sent_to(node) {
                lagging.snapshot_sent += sent;
                lagging.snapshot_bytes += bytes;
            }
        }
    }
}
