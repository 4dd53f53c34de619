//! Two builds side by side: one node after the other is started with the next build, and some go back to this one as
//! long as not all have the next. The next build is this one with one more format of log entries.

use std::collections::BTreeMap;

use nowserving_engine::ShardView;
use nowserving_shard::command;

use crate::disk::NODES;
use crate::faults::Fault;
use crate::nats::NodeId;
use crate::random::Random;
use crate::world::World;

/// The newest format of log entries that the next build reads.
pub const NEXT_FORMAT: u32 = command::FORMAT + 1;

/// A node that lacks so many entries has caught up.
const LAG_MAX: u64 = 64;

/// The build of each node.
#[derive(Clone, Debug, Default)]
pub struct Builds {
    /// The newest format of log entries that it reads, if it was changed.
    formats: BTreeMap<NodeId, u32>,
    /// All nodes go back to this build, before another one gets the next.
    going_back: bool,
}

impl Builds {
    /// The newest format of log entries that a node reads. One that joined later has the newest build that any has.
    #[must_use]
    pub fn entry_format(&self, id: NodeId) -> u32 {
        let changed = match NODES.contains(&id) {
            true => self.formats.get(&id),
            false => self.formats.values().max(),
        };
        changed.copied().unwrap_or(command::FORMAT)
    }

    /// Changes the build of a node, if that is allowed. Once all of them have had the next, there may be entries that
    /// only the next build reads: then there is no way back.
    fn change_one(&mut self, random: &mut Random) -> Option<(NodeId, u32)> {
        let (next, this): (Vec<NodeId>, Vec<NodeId>) = NODES
            .iter()
            .partition(|id| self.entry_format(**id) == NEXT_FORMAT);
        if this.is_empty() {
            return None;
        }
        self.going_back = !next.is_empty() && (self.going_back || random.below(4) == 0);
        let (among, format) = match self.going_back {
            true => (&next, command::FORMAT),
            false => (&this, NEXT_FORMAT),
        };
        let id = *random.pick(among)?;
        self.formats.insert(id, format);
        Some((id, format))
    }
}

impl World {
    /// An operator changes the build of a node, while all of them run and have caught up, and none has joined or left.
    pub fn change_build(&mut self) {
        let running = self.nodes.values().filter_map(|node| node.running.as_ref());
        let shards: Vec<ShardView<'_>> = running.flat_map(|it| it.engine.shards()).collect();
        let newest = |shard| {
            let applied = shards.iter().filter(|it| it.shard == shard);
            applied.map(|it| it.replica.applied()).max().unwrap_or(0)
        };
        let is_well = |it: &ShardView<'_>| {
            it.replica.voters() == NODES && it.replica.applied() + LAG_MAX >= newest(it.shard)
        };
        let all_run = self.nodes.values().all(|node| node.running.is_some());
        if !all_run || !self.nodes.keys().eq(&NODES) || !shards.iter().all(is_well) {
            return;
        }
        let changed = self.env.builds.change_one(&mut self.env.random);
        let Some((id, format)) = changed else {
            return;
        };
        self.env.counts.add(Fault::BuildChanges);
        self.env.note(format_args!(
            "n{id}: gets a build that reads entries up to format {format}"
        ));
        self.crash(id);
    }
}
