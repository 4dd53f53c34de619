//! Two builds side by side: one node after the other is started with the next build, and some go back to this one as
//! long as not all have the next. The next build is this one with one more format of log entries.

use std::collections::BTreeMap;

use nowserving_engine::ShardView;
use nowserving_shard::command;

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
    /// The newest format of log entries that a node reads.
    #[must_use]
    pub fn entry_format(&self, id: NodeId) -> u32 {
        self.formats.get(&id).copied().unwrap_or(command::FORMAT)
    }

    /// A machine gets this number: one that had another keeps its build, a new one has the newest build that any has.
    pub fn joins(&mut self, id: NodeId, before: Option<NodeId>) {
        let newest = self.formats.values().copied().max();
        let format = match before {
            Some(before) => self.entry_format(before),
            None => newest.unwrap_or(command::FORMAT),
        };
        self.formats.insert(id, format);
    }

    /// Changes the build of one of all the nodes, if that is allowed. Once all of them have had the next, there may be
    /// entries that only the next build reads: then there is no way back.
    fn change_one(&mut self, nodes: &[NodeId], random: &mut Random) -> Option<(NodeId, u32)> {
        let (next, this): (Vec<NodeId>, Vec<NodeId>) = nodes
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
        let nodes = self.node_ids();
        let running = self.nodes.values().filter_map(|node| node.running.as_ref());
        let shards: Vec<ShardView<'_>> = running.flat_map(|it| it.shards()).collect();
        let newest = |shard| {
            let applied = shards.iter().filter(|it| it.shard == shard);
            applied.map(|it| it.replica.applied()).max().unwrap_or(0)
        };
        let lags = |it: &ShardView<'_>| it.replica.applied() + LAG_MAX < newest(it.shard);
        let runs = |id: &NodeId| self.nodes.get(id).is_some_and(|it| it.running.is_some());
        let are_members = self
            .checks
            .members()
            .nodes
            .into_keys()
            .eq(nodes.iter().copied());
        let complete = are_members && self.checks.is_complete() && !self.operator.is_at_work();
        if !complete || !nodes.iter().all(runs) || shards.iter().any(lags) {
            return;
        }
        let changed = self.env.builds.change_one(&nodes, &mut self.env.random);
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
