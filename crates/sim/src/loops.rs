//! The loops of a node's process, each with a persister beside it, and what crosses between them. They stand still alone,
//! and what one tells another may be lost.

use std::collections::{BTreeMap, VecDeque};

use nowserving_engine::{Engine, Input, Output, ShardView, Subscription, connections_of};
use nowserving_log::LogStore as _;
use nowserving_replica::Write;

use crate::env::{Env, FullDisk};
use crate::faults::Fault;
use crate::joining::Listener;
use crate::nats::LoopId;
use crate::node::{Node, Running};
use crate::service::Service;
use crate::timeline::Time;
use crate::world::{Event, Process, World};

/// A slow sync takes so long at most: a disk that is well again must show it before its run ends.
const SLOW_SYNC_US_MAX: Time = 3_000_000;
/// A loop acts on no decision that is older: than the election timeout, and until it looks.
const DECISION_MAX_US: Time = 850_000;
/// Inputs that one turn takes at most.
const TURN_INPUTS_MAX: usize = 256;

/// A loop of a process: a thread with an engine and a service connection, and a persister beside it.
pub struct Loop {
    /// The engine.
    pub engine: Engine,
    /// What the loop has not taken yet.
    inbox: VecDeque<Input>,
    /// When the next turn is planned.
    turn_at: Option<Time>,
    /// What it listens on.
    pub service: Service,
    /// The number of its service connection, as the engine knows it.
    known_connection: u64,
    to_write: VecDeque<Job>,
    writing: bool,
    /// It has seen a full inbox.
    pub crowded: bool,
    /// It stands still until then.
    stalled_until: Time,
    /// What happened to it while it stood still.
    deferred: VecDeque<Event>,
    /// When the decision was made, on the node's clock, on which it acts.
    decided_at: Option<u64>,
}

impl Running {
    /// Whether the node takes part.
    #[must_use]
    pub fn is_in_touch(&self) -> bool {
        let first = self.loops.first();
        first.is_some_and(|it| it.engine.standing().is_in_touch())
    }

    /// The shards of all loops.
    pub fn shards(&self) -> impl Iterator<Item = ShardView<'_>> {
        self.loops.iter().flat_map(|it| it.engine.shards())
    }
}

impl Loop {
    /// One that has just begun.
    #[must_use]
    pub fn new(engine: Engine, service: Service) -> Loop {
        Loop {
            engine,
            inbox: VecDeque::new(),
            turn_at: None,
            service,
            known_connection: 0,
            to_write: VecDeque::new(),
            writing: false,
            crowded: false,
            stalled_until: 0,
            deferred: VecDeque::new(),
            decided_at: None,
        }
    }

    /// It goes on, with all that happened to it.
    fn go_on(&mut self, env: &mut Env) {
        self.stalled_until = 0;
        for event in self.deferred.drain(..) {
            env.timeline.after(0, event);
        }
    }

    /// S5: a loop serves nobody on a decision of the first one that is too old.
    pub fn acts_on_a_new_decision(&self, env: &mut Env, node: &Node) {
        let Some(decided_at) = self.decided_at else {
            return;
        };
        let age_us = node.clock.monotonic(env.timeline.now()) - decided_at;
        let serves = |it: &ShardView<'_>| it.subscription != Subscription::No;
        if age_us > DECISION_MAX_US && self.engine.shards().any(|it| serves(&it)) {
            let what = format!(
                "a loop of node {} serves by a decision of {age_us} us ago",
                node.id
            );
            env.violated("S5", what);
        }
    }
}

/// Work for the persister.
#[derive(Debug)]
pub enum Job {
    Write(Vec<Write>),
    Compact { shard: u32, through: u64 },
}

/// What a finished batch of the persister came to.
#[derive(Clone, Debug)]
pub struct Written {
    numbers: Vec<(u32, u64)>,
    writes: usize,
    sync: bool,
}

impl Node {
    /// How many loops it has.
    #[must_use]
    pub fn loops(&self) -> usize {
        self.disk.loops() as usize
    }

    #[must_use]
    pub fn loop_id(&self, index: usize) -> LoopId {
        let node = self.id;
        LoopId { node, index }
    }

    /// Which loop has a shard.
    #[must_use]
    pub fn loop_of(&self, shard: u32) -> usize {
        (shard % self.disk.loops()) as usize
    }

    /// A loop, if the process runs.
    pub fn of_loop(&mut self, at: usize) -> Option<&mut Loop> {
        self.running.as_mut()?.loops.get_mut(at)
    }

    /// Which loop counts its connections under this start.
    #[must_use]
    pub fn connection_of(&self, start: u64) -> Option<LoopId> {
        let own = self.running.as_ref()?.origin.starts.first()?;
        let mut all = 0..self.disk.loops();
        let index = all.find(|index| connections_of(*own, *index) == start)?;
        Some(self.loop_id(index as usize))
    }

    /// Whether a loop stands still.
    #[must_use]
    pub fn stands_still(&self, at: usize) -> bool {
        let of_loop = self.running.as_ref().and_then(|it| it.loops.get(at));
        of_loop.is_some_and(|it| it.stalled_until > 0)
    }

    /// Every loop goes on.
    pub fn end_stalls(&mut self, env: &mut Env) {
        for it in self.running.iter_mut().flat_map(|it| &mut it.loops) {
            it.go_on(env);
        }
    }

    /// Gives a loop something to take.
    pub fn push(&mut self, env: &mut Env, at: usize, input: Input) {
        if let Some(it) = self.of_loop(at) {
            it.inbox.push_back(input);
            let delay = env.random.below(150);
            self.plan_turn(env, at, delay);
        }
    }

    /// A turn of a loop in so long, unless there is one sooner.
    pub fn plan_turn(&mut self, env: &mut Env, at: usize, delay: Time) {
        let planned = env.timeline.now() + delay;
        let Some(it) = self.of_loop(at) else {
            return;
        };
        if it.turn_at.is_none_or(|known| planned < known) {
            it.turn_at = Some(planned);
            self.process_event(env, at, delay, Process::Turn { planned });
        }
    }

    /// One turn of a loop, if it is still planned for then: what it came to, to be carried out.
    pub fn turn(&mut self, env: &mut Env, at: usize, planned: Time) -> Option<Vec<Output>> {
        let now = self.clock.read(env.timeline.now());
        let (id, of) = (self.id, self.loop_id(at));
        let it = self.of_loop(at)?;
        it.turn_at.take_if(|turn_at| *turn_at == planned)?;
        let mut outputs = Vec::new();
        let number = env.connection_number(of);
        if std::mem::replace(&mut it.known_connection, number) != number {
            env.steps += 1;
            let input = Input::ConnectionNumber(number);
            it.engine.step(now, input, &mut outputs);
        }
        for _ in 0..TURN_INPUTS_MAX {
            let Some(input) = it.inbox.pop_front() else {
                break;
            };
            env.steps += 1;
            env.hear(id, &input);
            if let Input::Told(told) = &input {
                it.decided_at = Some(told.decided_at());
            }
            it.engine.step(now, input, &mut outputs);
        }
        if std::mem::take(&mut it.crowded) {
            env.steps += 1;
            let input = Input::RequestsDropped;
            it.engine.step(now, input, &mut outputs);
        }
        let inbox_empty = it.inbox.is_empty() && it.service.is_drained();
        env.steps += 1;
        let end_turn = Input::EndTurn { inbox_empty };
        it.engine.step(now, end_turn, &mut outputs);
        let next_due = Some(it.engine.next_due()).filter(|_| it.inbox.is_empty());
        let next = next_due.map_or(0, |due| self.clock.when(due));
        let least = env.timeline.now() + 50;
        let delay = next.max(least) - env.timeline.now();
        self.plan_turn(env, at, delay);
        Some(outputs)
    }

    /// Does what a turn of a loop came to.
    pub fn carry_out(&mut self, env: &mut Env, at: usize, outputs: Vec<Output>) {
        for output in outputs {
            self.carry_out_one(env, at, output);
        }
        self.write_next(env, at);
    }

    /// A loop has something for another one.
    pub fn cross(&mut self, env: &mut Env, (from, to): (usize, usize), input: Input) {
        let now = env.timeline.now();
        let Some(running) = &mut self.running else {
            return;
        };
        if env.strikes(Fault::LoopWordLost) {
            return;
        }
        let last = running.crosses_at.entry((from, to)).or_insert(0);
        *last = (now + env.random.below(100)).max(*last);
        let delay = *last - now;
        self.process_event(env, to, delay, Process::Crosses(Box::new(input)));
    }

    /// Gives the persister of a loop something to do.
    pub fn queue_job(&mut self, at: usize, job: Job) {
        if let Some(it) = self.of_loop(at) {
            it.to_write.push_back(job);
        }
    }

    /// A loop's persister takes all that waits, and is done with it in a while.
    pub fn write_next(&mut self, env: &mut Env, at: usize) {
        let id = self.id;
        let Some(running) = &mut self.running else {
            return;
        };
        let Some(it) = running.loops.get_mut(at) else {
            return;
        };
        if it.writing || it.to_write.is_empty() {
            return;
        }
        let no_room = env.full_disks.get(&id) == Some(&FullDisk::Nothing);
        let (no_room, forgets) = match nowserving_bite::is(nowserving_bite::Break::S6Room) {
            true => (false, no_room),
            false => (no_room, false),
        };
        if no_room {
            if !running.disk_full {
                env.counts.add(Fault::WriteWaits);
            }
            return self.tell_disk_full(env, true);
        }
        let mut writes = Vec::new();
        let mut written = Written {
            numbers: Vec::new(),
            writes: 0,
            sync: false,
        };
        let mut compact = Vec::new();
        for job in it.to_write.drain(..) {
            match job {
                Job::Write(batch) => {
                    written.writes += 1;
                    writes.extend(batch);
                }
                Job::Compact { shard, through } => compact.push((shard, through)),
            }
        }
        let mut numbers: BTreeMap<u32, u64> = BTreeMap::new();
        for write in &writes {
            numbers.insert(write.shard, write.number);
            written.sync |= write.must_sync;
        }
        written.numbers = numbers.into_iter().collect();
        if forgets {
            writes.clear();
        }
        let failed = (written.sync && env.strikes(Fault::SyncFailed)) || {
            let log = self.disk.log_of(at);
            log.write_unsynced(&writes);
            let mut compact = compact.into_iter();
            compact.any(|(shard, through)| log.compact(shard, through).is_err())
        };
        if failed {
            env.note(format_args!("n{id}: a write fails, the node ends"));
            self.end(env, true);
            let delay = env.random.around(1_000_000);
            return env.timeline.after(delay, Event::StartNode { node: id });
        }
        it.writing = true;
        let slow_us = env.slow_disks.get(&id).copied().unwrap_or(0);
        let delay = match written.sync {
            true => {
                let slow_us = env.random.around(slow_us).min(SLOW_SYNC_US_MAX);
                env.random.around(env.calm.sync_us) + slow_us
            }
            false => env.random.around(100),
        };
        if delay >= 300_000 {
            env.counts.add(Fault::SyncTakes300Ms);
        }
        self.process_event(env, at, delay, Process::Written(written));
    }

    /// A loop's persister is done.
    pub fn written(&mut self, env: &mut Env, at: usize, written: Written) {
        if written.sync {
            self.disk.log_of(at).sync();
        }
        if let Some(it) = self.of_loop(at) {
            it.writing = false;
        }
        if written.writes > 0 {
            let input = Input::Persisted {
                numbers: written.numbers,
                writes: written.writes,
            };
            self.push(env, at, input);
        }
        self.write_next(env, at);
    }
}

impl World {
    /// A loop stands still until then at least, and the others of its node go on.
    pub fn stand_still(&mut self, of: LoopId, until: Time) {
        let node = self.nodes.get_mut(&of.node);
        if let Some(it) = node.and_then(|it| it.of_loop(of.index)) {
            it.stalled_until = it.stalled_until.max(until);
            self.env.timeline.at(until, Event::LoopGoesOn { of });
        }
    }

    /// It goes on, unless it stands still for longer by now.
    pub fn loop_goes_on(&mut self, of: LoopId) {
        let node = self.nodes.get_mut(&of.node);
        if let Some(it) = node.and_then(|it| it.of_loop(of.index))
            && it.stalled_until <= self.env.timeline.now()
        {
            it.go_on(&mut self.env);
        }
    }

    /// What reaches a process that stands still waits until it goes on, as does what reaches a loop.
    pub fn defer(&mut self, event: Event) -> Option<Event> {
        let of = match &event {
            Event::Process { node, at, .. } => LoopId {
                node: *node,
                index: *at,
            },
            Event::ReadByNode { of, .. } => *of,
            Event::Frame { to, .. } => LoopId::first_of(*to),
            Event::DirectFrame { way, .. } => LoopId::first_of(way.to),
            Event::LinkWord { way, .. } => LoopId::first_of(way.from),
            Event::Heard {
                to: Listener::Node(node),
                ..
            } => LoopId::first_of(*node),
            _ => return Some(event),
        };
        let Some(node) = self.nodes.get_mut(&of.node) else {
            return Some(event);
        };
        // First: when both go on, all comes in its order.
        if node.stands_still(of.index)
            && let Some(it) = node.of_loop(of.index)
        {
            it.deferred.push_back(event);
            return None;
        }
        if node.paused_until.is_some() {
            node.deferred.push_back(event);
            return None;
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::FIRST_NODES;
    use crate::faults::Weather;
    use crate::world::Options;

    const SECOND: Time = 1_000_000;

    fn next_turn(world: &World, of: LoopId) -> Option<Time> {
        let running = world.nodes.get(&of.node)?.running.as_ref()?;
        running.loops.get(of.index)?.turn_at
    }

    #[test]
    fn a_loop_that_goes_on_takes_its_turns_again() {
        let mut world = World::new(1, &Options::default());
        let of = LoopId::first_of(1);
        (world.env.weather, world.ill) = (Weather::fine(), None);
        FIRST_NODES
            .into_iter()
            .for_each(|node| world.start_node(node));
        world.run_until(2 * SECOND);
        world.stand_still(of, 4 * SECOND);
        world.stand_still(of, 3 * SECOND);
        world.run_until(4 * SECOND - 1);
        assert!(next_turn(&world, of).is_some_and(|at| at < 3 * SECOND));
        world.run_until(5 * SECOND);
        assert!(next_turn(&world, of).is_some_and(|at| at >= 5 * SECOND));
        world.stand_still(of, 60 * SECOND);
        world.run_until(6 * SECOND);
        world.heal();
        world.run_until(7 * SECOND);
        assert!(next_turn(&world, of).is_some_and(|at| at >= 7 * SECOND));
    }
}
