//! Members that lack a part of the log of some shards. Only a shard's leader knows that: it says so in its frames,
//! and so every node can show it.

use std::collections::BTreeMap;

use nowserving_protocol::admin::SnapshotsSent;
use nowserving_shard::clock::Micros;

use crate::ctx::Clocks;
use crate::envelope::LaggingMember;
use crate::shard::{Shard, Shards};

/// A leader's frames say nothing about a shard that it has just begun to lead. After this long they do.
const LEADS_LONG_US: Micros = 1_000_000;

/// Members that lag in shards which this node leads.
#[derive(Debug, Default)]
pub(crate) struct Lagging {
    /// First those in this engine's own shards, then those that other loops have reported.
    all: Vec<LaggingMember>,
    own: usize,
}

impl Lagging {
    pub fn to_frame(&self) -> Vec<LaggingMember> {
        self.all.clone()
    }

    /// Those in the shards of other loops.
    pub fn of_others(&mut self, lagging: Vec<LaggingMember>) {
        self.all.truncate(self.own);
        self.all.extend(lagging);
    }

    /// Looks which members lag.
    pub fn find(&mut self, shards: &mut Shards) {
        let mut found = BTreeMap::new();
        for shard in shards.values_mut() {
            if shard.leads() {
                list(shard, &mut found);
            }
            shard.leading.looked(shard.replica.last_index());
        }
        let others = self.all.split_off(self.own);
        self.all = found.into_values().collect();
        self.own = self.all.len();
        self.all.extend(others);
    }

    /// In how many shards a node has caught up. None if it does not take part: what it lacks by now is not known.
    pub fn caught_up_in(&self, id: u64, shards: &Shards, clocks: &Clocks, now: Micros) -> usize {
        let shards = shards.values().filter(|_| clocks.takes_part(id, now));
        shards
            .filter(|it| self.lags(it, id, clocks, now) == Some(false))
            .count()
    }

    /// Whether a node is known to lag in a shard, or has no vote.
    pub fn cannot_lead(&self, shard: &Shard, id: u64, clocks: &Clocks, now: Micros) -> bool {
        let votes = shard.replica.members().voters.contains(&id);
        !votes || self.lags(shard, id, clocks, now) == Some(true)
    }

    /// Whether a node lags in a shard, if that is known.
    pub fn lags(&self, shard: &Shard, id: u64, clocks: &Clocks, now: Micros) -> Option<bool> {
        let leader = shard.replica.leader()?;
        if leader == id {
            return Some(false);
        }
        let said = self.said_by(leader, clocks, now)?;
        let lags = said
            .iter()
            .any(|it| it.node == id && it.shards.contains(&shard.id));
        let is_member = shard.replica.members().nodes().any(|it| it == id);
        match lags || !is_member {
            true => Some(true),
            false => leads_long(shard, now).then_some(false),
        }
    }

    /// The snapshots that these leaders send such nodes now.
    pub fn snapshots_sent(
        &self,
        leaders: impl Iterator<Item = u64>,
        to: impl Fn(u64) -> bool,
        clocks: &Clocks,
        now: Micros,
    ) -> Option<SnapshotsSent> {
        let said = leaders
            .filter_map(|leader| self.said_by(leader, clocks, now))
            .flatten();
        let about = said.filter(|it| to(it.node) && it.snapshot_bytes > 0);
        let sent = about.map(|it| (it.snapshot_sent, it.snapshot_bytes));
        let (sent_bytes, total_bytes) = sent.reduce(|a, b| (a.0 + b.0, a.1 + b.1))?;
        Some(SnapshotsSent {
            sent_bytes,
            total_bytes,
        })
    }

    /// What a node says about the members of the shards that it leads.
    fn said_by<'a>(
        &'a self,
        leader: u64,
        clocks: &'a Clocks,
        now: Micros,
    ) -> Option<&'a [LaggingMember]> {
        if leader == clocks.me {
            return Some(&self.all);
        }
        let peer = clocks.peers.get(&leader)?;
        peer.alive(now).then_some(&peer.lagging)
    }
}

fn leads_long(shard: &Shard, now: Micros) -> bool {
    let since = shard.following.leader_since();
    since.is_some_and(|since| now.saturating_sub(since) > LEADS_LONG_US)
}

fn list(shard: &Shard, found: &mut BTreeMap<u64, LaggingMember>) {
    for node in shard.replica.members().nodes() {
        let Some(progress) = shard.replica.progress_of(node) else {
            continue;
        };
        if progress.matched > 0 && shard.leading.keeps_up(&progress) {
            continue;
        }
        let lagging = found.entry(node).or_insert_with(|| LaggingMember {
            node,
            ..LaggingMember::default()
        });
        lagging.shards.push(shard.id);
        if let Some((sent, bytes)) = shard.snapshots.sent_to(node) {
            lagging.snapshot_sent += sent;
            lagging.snapshot_bytes += bytes;
        }
    }
}
