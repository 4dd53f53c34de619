//! Rotations of the cluster's key: who has loaded which keys, and what is in force. The keys themselves stay outside
//! the engine, which knows them by name.

use nowserving_protocol::admin::{KeyReply, KeyStatus};
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::members::MembersRefused;

use crate::engine::Engine;

impl Engine {
    /// Checks that all members have loaded the key that shall be in force, and fills in what the request does not say.
    pub(crate) fn check_rotation(&self, rotation: &mut Rotation) -> Result<(), MembersRefused> {
        let id = rotation.current.id;
        let known = self.membership.wanted.rotation;
        rotation.old = known
            .map(|it| it.current)
            .or(self.keys.first().copied())
            .unwrap_or_default();
        // Only the old key's time is changed.
        if let Some(known) = known.filter(|it| it.current.id == id) {
            rotation.current = known.current;
            return Ok(());
        }
        if id <= rotation.old.id {
            return Err(MembersRefused::KeyNotNewer(id, rotation.old.id));
        }
        let me = self.config.id;
        let Some(own) = self.keys.iter().find(|it| it.id == id) else {
            let nodes = vec![me];
            return Err(MembersRefused::KeyNotLoaded { key: id, nodes });
        };
        rotation.current = *own;
        let lacks = |node: &u64| !self.keys_of(*node).contains(own);
        let members = self.membership.wanted.nodes.keys();
        let nodes: Vec<u64> = members.copied().filter(lacks).collect();
        match nodes.is_empty() {
            true => Ok(()),
            false => Err(MembersRefused::KeyNotLoaded { key: id, nodes }),
        }
    }

    /// The keys that a node has loaded, according to its newest frame.
    fn keys_of(&self, node: u64) -> &[KeyPrint] {
        if node == self.config.id {
            return &self.keys;
        }
        match self.ctx.clocks.peers.get(&node) {
            Some(peer) => &peer.keys,
            None => &[],
        }
    }

    pub(crate) fn key_replies(&self, node: u64) -> Vec<KeyReply> {
        let keys = self.keys_of(node).iter();
        keys.map(|key| KeyReply::from(*key)).collect()
    }

    /// The key in force, as this node knows it.
    pub(crate) fn key_status(&self) -> Option<KeyStatus> {
        let first = self.keys.first()?;
        let rotation = self.membership.wanted.rotation;
        let in_force = rotation.map_or(*first, |it| it.current).id;
        let next = self.keys.iter().map(|key| key.id).find(|id| *id > in_force);
        let now_ms = self.ctx.now.wall_ms;
        Some(KeyStatus {
            in_force,
            next,
            old: rotation.map(|it| it.old.id),
            old_until_ms: rotation.map(|it| it.old_until_ms),
            old_is_over: rotation.is_some_and(|it| now_ms >= it.old_until_ms),
        })
    }
}
