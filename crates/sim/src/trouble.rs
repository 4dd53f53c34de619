//! How faults begin and end, and how everything is mended.

use crate::disk::NODES;
use crate::faults::{Fault, Weather};
use crate::nats::NodeId;
use crate::node::Node;
use crate::world::{Event, Lasting, World};

impl World {
    /// A process stands still for a while.
    pub fn pause(&mut self, id: NodeId) {
        let env = &mut self.env;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let Some(running) = node
            .running
            .as_ref()
            .filter(|_| node.paused_until.is_none())
        else {
            return;
        };
        let mean_us = *env
            .random
            .pick(&[200_000, 1_000_000, 3_000_000])
            .unwrap_or(&0);
        let lasts = env.random.around(mean_us);
        env.note(format_args!("n{id}: stands still for {lasts} us"));
        node.paused_until = Some(env.timeline.now() + lasts);
        let resume = Event::Resume {
            node: id,
            start: running.start,
        };
        env.timeline.after(lasts, resume);
    }

    pub fn resume(&mut self, id: NodeId, start: u64) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let same = node.running.as_ref().is_some_and(|it| it.start == start);
        if !same || node.paused_until.take().is_none() {
            return;
        }
        self.env.note(format_args!("n{id}: goes on"));
        for event in std::mem::take(&mut node.deferred) {
            self.env.timeline.after(0, event);
        }
    }

    fn any_node(&mut self) -> NodeId {
        self.env.random.between(1, NODES.len() as u64)
    }

    pub fn fault_begins(&mut self, kind: Fault) {
        if self.healed {
            return;
        }
        if let Some(interval) = self.env.weather.interval(kind) {
            let next = self.env.random.around(interval);
            self.env.timeline.after(next, Event::FaultBegins(kind));
        }
        let id = self.any_node();
        let awake = self.nodes.get(&id).is_some_and(Node::is_awake);
        let running = self.nodes.get(&id).is_some_and(|it| it.running.is_some());
        let name = kind.as_str();
        match kind {
            Fault::Partition | Fault::PartitionOneWay | Fault::PartitionNonTransitive => {
                self.partition(kind, id);
            }
            Fault::LinksSlow if self.env.links_slow_us == 0 => {
                self.env.links_slow_us = self.env.random.between(20_000, 500_000);
                self.lasting(kind, Lasting::SlowLinks);
            }
            Fault::SyncSlow if !self.env.slow_disks.contains_key(&id) => {
                let slow_us = self.env.random.between(20_000, 400_000);
                self.env.slow_disks.insert(id, slow_us);
                self.lasting(kind, Lasting::SlowDisk(id));
            }
            Fault::NatsRestart => {
                self.env.counts.add(kind);
                self.env.note(format_args!("{name}"));
                for node in NODES {
                    self.cut_service(node);
                }
            }
            Fault::ServiceCut if self.env.is_connected(id) => {
                self.env.counts.add(kind);
                self.cut_service(id);
            }
            Fault::ServiceStall if self.env.is_connected(id) => self.stall_service(id),
            Fault::Crash if running => {
                self.env.counts.add(kind);
                self.crash(id);
            }
            Fault::Stop if awake => {
                self.env.counts.add(kind);
                self.env.note(format_args!("n{id}: is told to stop"));
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.push(&mut self.env, nowserving_engine::Input::Stop);
                }
            }
            Fault::Pause if awake => {
                self.env.counts.add(kind);
                self.pause(id);
            }
            Fault::ClockJump => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    self.env.counts.add(kind);
                    let jump_ms = self.env.random.below(7_200_000) as i64 - 3_600_000;
                    self.env
                        .note(format_args!("n{id}: the wall clock jumps by {jump_ms} ms"));
                    node.clock.wall_ahead_ms += jump_ms;
                }
            }
            Fault::OperatorConfigures | Fault::OperatorDeletes | Fault::OperatorMoves => {
                self.clients.operate(&mut self.env, kind);
            }
            _ => {}
        }
    }

    fn lasting(&mut self, kind: Fault, lasting: Lasting) {
        self.env.counts.add(kind);
        self.env
            .note(format_args!("{}: {lasting:?}", kind.as_str()));
        let lasts = self.env.random.around(3_000_000);
        self.env.timeline.after(lasts, Event::FaultEnds(lasting));
    }

    fn partition(&mut self, kind: Fault, id: NodeId) {
        let others: Vec<NodeId> = NODES.iter().copied().filter(|it| *it != id).collect();
        let Some(other) = self.env.random.pick(&others).copied() else {
            return;
        };
        let links = match kind {
            Fault::Partition => {
                let both = others.iter().flat_map(|other| [(id, *other), (*other, id)]);
                both.collect()
            }
            Fault::PartitionOneWay => vec![(id, other)],
            _ => vec![(id, other), (other, id)],
        };
        for link in &links {
            *self.env.links_cut.entry(*link).or_insert(0) += 1;
        }
        self.lasting(kind, Lasting::Cut(links));
    }

    pub fn fault_ends(&mut self, lasting: Lasting) {
        self.env.note(format_args!("ends: {lasting:?}"));
        match lasting {
            Lasting::Cut(links) => {
                for link in links {
                    let cut = self.env.links_cut.entry(link).or_insert(0);
                    *cut = cut.saturating_sub(1);
                }
            }
            Lasting::SlowLinks => self.env.links_slow_us = 0,
            Lasting::SlowDisk(node) => {
                self.env.slow_disks.remove(&node);
            }
        }
    }

    fn cut_service(&mut self, id: NodeId) {
        if !self.env.is_connected(id) {
            return;
        }
        self.env
            .note(format_args!("n{id}: its service connection is lost"));
        self.env.cut(id);
        let lasts = self.env.random.around(1_000_000);
        self.env.timeline.after(lasts, Event::Connect { node: id });
    }

    fn stall_service(&mut self, id: NodeId) {
        let mean_us = *self
            .env
            .random
            .pick(&[400_000, 1_500_000, 4_000_000])
            .unwrap_or(&0);
        let lasts = self.env.random.around(mean_us);
        self.env.counts.add(Fault::ServiceStall);
        self.env.note(format_args!(
            "n{id}: its service connection stands still for {lasts} us"
        ));
        let until = self.env.timeline.now() + lasts;
        self.env.stall(id, until);
    }

    fn crash(&mut self, id: NodeId) {
        self.env.note(format_args!("n{id}: loses power"));
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        node.end(&mut self.env, true);
        if self
            .env
            .random
            .chance(self.env.weather.chance(Fault::BitFlip))
        {
            let chance = self.env.random.next();
            if node.disk.flip_bit(chance) {
                self.env.counts.add(Fault::BitFlip);
                self.env
                    .note(format_args!("n{id}: a bit of a snapshot flips"));
            }
        }
        let mean_us = *self.env.random.pick(&[300_000, 2_000_000]).unwrap_or(&0);
        let delay = self.env.random.around(mean_us);
        self.env
            .timeline
            .after(delay, Event::StartNode { node: id });
    }

    /// Everything that is broken is mended. One machine in some runs stays away for good.
    pub fn heal(&mut self) {
        self.healed = true;
        self.env
            .note(format_args!("everything heals; lost: {:?}", self.lost));
        self.env.weather = Weather::fine();
        self.env.links_cut.clear();
        self.env.links_slow_us = 0;
        self.env.slow_disks.clear();
        self.env.end_stalls();
        for id in NODES {
            let Some(node) = self.nodes.get_mut(&id) else {
                continue;
            };
            let start = node.starts;
            if self.lost == Some(id) {
                node.end(&mut self.env, true);
                continue;
            }
            self.resume(id, start);
            self.env.timeline.after(0, Event::Connect { node: id });
            self.env.timeline.after(0, Event::StartNode { node: id });
        }
    }
}
