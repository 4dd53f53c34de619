//! Rotations of the cluster's key: who has loaded which keys, and what is in force. The keys themselves stay outside
//! the engine, which knows them by name.

use nowserving_protocol::admin::{KeyReply, KeyStatus};
use nowserving_protocol::keys::{KeyPrint, Rotation};
use nowserving_shard::members::{Members, MembersRefused};

use crate::ctx::Clocks;

/// The cluster keys that this node has loaded, the older one first.
#[derive(Debug, Default)]
pub(crate) struct Keys(Vec<KeyPrint>);

impl Keys {
    pub fn loaded(&mut self, keys: Vec<KeyPrint>) {
        self.0 = keys;
    }

    pub fn to_frame(&self) -> Vec<KeyPrint> {
        self.0.clone()
    }

    /// Checks that all members have loaded the key that shall be in force, and fills in what the request does not say.
    pub fn check_rotation(
        &self,
        rotation: &mut Rotation,
        wanted: &Members,
        clocks: &Clocks,
    ) -> Result<(), MembersRefused> {
        let id = rotation.current.id;
        let known = wanted.rotation;
        rotation.old = known
            .map(|it| it.current)
            .or(self.0.first().copied())
            .unwrap_or_default();
        // Only the old key's time is changed.
        if let Some(known) = known.filter(|it| it.current.id == id) {
            rotation.current = known.current;
            return Ok(());
        }
        if id <= rotation.old.id {
            return Err(MembersRefused::KeyNotNewer(id, rotation.old.id));
        }
        let Some(own) = self.0.iter().find(|it| it.id == id) else {
            let nodes = vec![clocks.me];
            return Err(MembersRefused::KeyNotLoaded { key: id, nodes });
        };
        rotation.current = *own;
        let lacks = |node: &u64| !self.of(*node, clocks).contains(own);
        let members = wanted.nodes.keys();
        let nodes: Vec<u64> = members.copied().filter(lacks).collect();
        match nodes.is_empty() {
            true => Ok(()),
            false => Err(MembersRefused::KeyNotLoaded { key: id, nodes }),
        }
    }

    /// The keys that a node has loaded, according to its newest frame.
    fn of<'a>(&'a self, node: u64, clocks: &'a Clocks) -> &'a [KeyPrint] {
        if node == clocks.me {
            return &self.0;
        }
        match clocks.peers.get(&node) {
            Some(peer) => &peer.keys,
            None => &[],
        }
    }

    pub fn replies(&self, node: u64, clocks: &Clocks) -> Vec<KeyReply> {
        let keys = self.of(node, clocks).iter();
        keys.map(|key| KeyReply::from(*key)).collect()
    }

    /// The key in force, as this node knows it.
    pub fn status(&self, wanted: &Members, now_ms: u64) -> Option<KeyStatus> {
        let first = self.0.first()?;
        let rotation = wanted.rotation;
        let in_force = rotation.map_or(*first, |it| it.current).id;
        let next = self.0.iter().map(|key| key.id).find(|id| *id > in_force);
        Some(KeyStatus {
            in_force,
            next,
            old: rotation.map(|it| it.old.id),
            old_until_ms: rotation.map(|it| it.old_until_ms),
            old_is_over: rotation.is_some_and(|it| now_ms >= it.old_until_ms),
        })
    }
}
