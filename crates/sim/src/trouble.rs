//! How faults begin and end, and how everything is mended.

use std::collections::BTreeMap;

use nowserving_engine::Input;

use crate::env::FullDisk;
use crate::faults::{Fault, Weather};
use crate::ill::{Ill, SLOW_SYNC_US};
use crate::nats::{LoopId, NodeId};
use crate::node::Node;
use crate::peers::{MAX_PAYLOAD_MIN, draw_max_payload};
use crate::world::{Event, JUMP_MS_MAX, Process, SETTLED_US, World};

/// The ways between two nodes that a fault cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    Both,
    /// Frames over NATS.
    Nats,
    /// Direct links.
    Direct,
}

/// A fault that lasts, and how to end it.
#[derive(Debug)]
pub enum Lasting {
    /// These links let nothing through.
    Cut(Vec<(NodeId, NodeId)>, Ways),
    /// All links are slow.
    SlowLinks,
    /// A node's wall clock is ahead by so much more.
    WallClock(NodeId, i64),
    /// The same, of a client.
    ClientClock(usize, i64),
    /// A node's inbox is full.
    FullInbox(NodeId),
    /// A disk is slow.
    SlowDisk(NodeId),
    /// Disks are full.
    FullDisks(Vec<NodeId>),
}

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

    /// The nodes that were not removed.
    pub fn node_ids(&self) -> Vec<NodeId> {
        let nodes = self.nodes.values().filter(|node| !node.removed);
        nodes.map(|node| node.id).collect()
    }

    fn any_node(&mut self) -> NodeId {
        let ids = self.node_ids();
        self.env.random.pick(&ids).copied().unwrap_or(0)
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
        let of = self.any_loop(id);
        let awake = self.nodes.get(&id).is_some_and(Node::is_awake);
        let running = self.nodes.get(&id).is_some_and(|it| it.running.is_some());
        let name = kind.as_str();
        match kind {
            Fault::Partition | Fault::PartitionOneWay | Fault::PartitionNonTransitive => {
                self.partition(kind, id, Ways::Both);
            }
            Fault::NatsLinksCut if self.env.takes_links => self.partition(kind, id, Ways::Nats),
            Fault::DirectCut if self.env.takes_links => self.partition(kind, id, Ways::Direct),
            Fault::LinksSlow if self.env.links_slow_us == 0 => {
                self.env.links_slow_us = self.env.random.between(20_000, 500_000);
                self.lasting(kind, Lasting::SlowLinks);
            }
            Fault::SyncSlow if !self.env.slow_disks.contains_key(&id) => {
                let slow_us = self.env.random.between(20_000, 600_000);
                self.env.slow_disks.insert(id, slow_us);
                self.lasting(kind, Lasting::SlowDisk(id));
            }
            Fault::DiskFull => self.fill_disks(id),
            Fault::NatsRestart => {
                self.env.counts.add(kind);
                self.env.note(format_args!("{name}"));
                for of in self.all_loops() {
                    self.cut_service(of);
                }
            }
            Fault::ServiceCut if self.env.is_connected(of) => {
                self.env.counts.add(kind);
                self.cut_service(of);
            }
            Fault::ServiceHalfOpen if self.env.is_connected(of) => {
                self.env.counts.add(kind);
                self.env.note(format_args!(
                    "n{of}: the server closes its service connection"
                ));
                self.env.close_at_server(of);
                let mean_us = *self.env.random.pick(&[100_000, 500_000]).unwrap_or(&0);
                let notices = self.env.random.around(mean_us);
                self.env
                    .timeline
                    .after(notices, Event::NoticesClosed { of });
                // The same trouble cuts it off from its peers: it learns of its successor late.
                if self.env.random.below(3) == 0 {
                    self.partition(Fault::Partition, id, Ways::Both);
                }
            }
            Fault::ServiceStall if self.env.is_connected(of) => self.stall_service(of),
            Fault::LoopStall if awake => self.stall_loop(of),
            Fault::Crash if running => {
                self.env.counts.add(kind);
                self.crash(id);
            }
            Fault::Stop if awake => {
                self.env.counts.add(kind);
                self.env.note(format_args!("n{id}: is told to stop"));
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.push(&mut self.env, 0, Input::Stop);
                }
            }
            Fault::Pause if awake => {
                self.env.counts.add(kind);
                self.pause(id);
            }
            Fault::ClockJump => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    let most = self.env.random.pick(&[3_000, 20_000, JUMP_MS_MAX]).copied();
                    let jump_ms = self.env.random.off_by(most.unwrap_or(0));
                    node.clock.wall_ahead_ms += jump_ms;
                    self.lasting(kind, Lasting::WallClock(id, jump_ms));
                }
            }
            Fault::ClientClockJump => {
                let count = self.env.client_clocks.len() as u64;
                let client = self.env.random.below(count) as usize;
                let jump_ms = self.env.random.off_by(20_000);
                self.env.set_client_clock(client, jump_ms);
                self.lasting(kind, Lasting::ClientClock(client, jump_ms));
            }
            Fault::ClientStall => self.stall_clients(),
            Fault::LogBitFlip => self.flip_bit_of_log(id),
            Fault::DiskWiped => self.wipe_disk(id),
            Fault::DiskRolledBack => self.copy_disk(id),
            Fault::PeersRolledBack if running => self.roll_back_peers(id),
            Fault::OperatorAddsNode
            | Fault::OperatorRemovesNode
            | Fault::OperatorReplacesNode
            | Fault::OperatorDrains
            | Fault::OperatorTransfers => self.operate(kind),
            Fault::FilesPinned if awake => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    self.env.counts.add(kind);
                    let shards = (0..self.setup.shards).filter(|_| self.env.random.below(2) == 0);
                    let shards: Vec<u32> = shards.collect();
                    let log_bytes = self.env.random.below(3 * self.setup.log_bytes_max);
                    for at in 0..node.loops() {
                        let theirs = shards.iter().filter(|it| node.loop_of(**it) == at);
                        let shards = theirs.copied().collect();
                        let pinned = Input::FilesPinned { shards, log_bytes };
                        self.env
                            .note(format_args!("n{}: {pinned:?}", node.loop_id(at)));
                        node.push(&mut self.env, at, pinned);
                    }
                }
            }
            Fault::MappingChanges => {
                self.env.counts.add(kind);
                self.env.mapped = !self.env.mapped;
                let mapped = self.env.mapped;
                self.env.note(format_args!("{name}: {mapped}"));
                for node in self.nodes.values_mut() {
                    node.learn_mapping(&mut self.env);
                }
            }
            Fault::MaxPayloadChanges => {
                self.env.counts.add(kind);
                let bytes = match self.env.random.below(6) {
                    0 => self.env.random.between(150, MAX_PAYLOAD_MIN as u64 - 1) as usize,
                    _ => draw_max_payload(&mut self.env.random),
                };
                self.set_max_payload(bytes);
            }
            Fault::InboxFull if self.env.full_inboxes.insert(id) => {
                self.lasting(kind, Lasting::FullInbox(id));
            }
            Fault::BuildChanges => self.change_build(),
            Fault::OperatorRestores => self.back_up(),
            Fault::OperatorConfigures
            | Fault::OperatorConfiguresMany
            | Fault::OperatorDeletes
            | Fault::OperatorMoves
            | Fault::OperatorKicks
            | Fault::OperatorCalls
            | Fault::OperatorImports
            | Fault::BackendTells
            | Fault::OperatorSchedules
            | Fault::OperatorLooks => self.clients.operate(&mut self.env, kind),
            _ => {}
        }
    }

    /// The server is reloaded. Nodes learn of it when they publish too much, or some time later.
    fn set_max_payload(&mut self, bytes: usize) {
        self.env.max_payload = bytes;
        self.env.note(format_args!(
            "the server takes {bytes} bytes in one message"
        ));
        for node in self.nodes.values() {
            let later = self.env.random.around(1_000_000).min(2_000_000);
            node.process_event(&mut self.env, 0, later, Process::LearnMaxPayload);
        }
    }

    fn lasting(&mut self, kind: Fault, lasting: Lasting) {
        self.env.counts.add(kind);
        self.env
            .note(format_args!("{}: {lasting:?}", kind.as_str()));
        let lasts = self.env.random.around(3_000_000);
        self.env.timeline.after(lasts, Event::FaultEnds(lasting));
    }

    fn partition(&mut self, kind: Fault, id: NodeId, ways: Ways) {
        let mut others = self.node_ids();
        others.retain(|it| *it != id);
        let Some(other) = self.env.random.pick(&others).copied() else {
            return;
        };
        let shape = match kind {
            Fault::NatsLinksCut | Fault::DirectCut => *self
                .env
                .random
                .pick(&[Fault::Partition, Fault::PartitionOneWay, kind])
                .unwrap_or(&kind),
            _ => kind,
        };
        let links = match shape {
            Fault::Partition => {
                let both = others.iter().flat_map(|other| [(id, *other), (*other, id)]);
                both.collect()
            }
            Fault::PartitionOneWay => vec![(id, other)],
            _ => vec![(id, other), (other, id)],
        };
        for cut in self.cuts(ways) {
            for link in &links {
                *cut.entry(*link).or_insert(0) += 1;
            }
        }
        self.lasting(kind, Lasting::Cut(links, ways));
    }

    /// The links that are cut now, on these ways.
    fn cuts(&mut self, ways: Ways) -> Vec<&mut BTreeMap<(NodeId, NodeId), u32>> {
        let (nats, direct) = (&mut self.env.links_cut, &mut self.env.direct_cut);
        match ways {
            Ways::Both => vec![nats, direct],
            Ways::Nats => vec![nats],
            Ways::Direct => vec![direct],
        }
    }

    pub fn fault_ends(&mut self, lasting: Lasting) {
        self.env.note(format_args!("ends: {lasting:?}"));
        match lasting {
            Lasting::Cut(links, ways) => {
                for cuts in self.cuts(ways) {
                    for link in &links {
                        let cut = cuts.entry(*link).or_insert(0);
                        *cut = cut.saturating_sub(1);
                    }
                }
            }
            Lasting::SlowLinks => self.env.links_slow_us = 0,
            Lasting::WallClock(node, jump_ms) => {
                if let Some(node) = self.nodes.get_mut(&node) {
                    node.clock.wall_ahead_ms -= jump_ms;
                }
            }
            Lasting::ClientClock(client, jump_ms) => self.env.set_client_clock(client, -jump_ms),
            Lasting::FullInbox(node) => {
                self.env.full_inboxes.remove(&node);
            }
            Lasting::SlowDisk(node) => {
                self.env.slow_disks.remove(&node);
            }
            Lasting::FullDisks(nodes) => {
                for id in nodes {
                    self.clear_disk(id);
                }
            }
        }
    }

    /// One disk is full, or each of them.
    fn fill_disks(&mut self, id: NodeId) {
        if !self.env.full_disks.is_empty() {
            return;
        }
        let filled = match self.env.random.below(3) {
            0 => self.node_ids(),
            _ => vec![id],
        };
        let left = match self.env.random.below(2) {
            0 => FullDisk::Nothing,
            _ => FullDisk::Reserve,
        };
        for id in &filled {
            self.env.full_disks.insert(*id, left);
            if let Some(node) = self.nodes.get_mut(id) {
                node.look_at_disk(&mut self.env);
            }
        }
        self.lasting(Fault::DiskFull, Lasting::FullDisks(filled));
    }

    fn clear_disk(&mut self, id: NodeId) {
        if self.env.full_disks.remove(&id).is_none() {
            return;
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.has_room(&mut self.env);
        }
    }

    pub fn cut_service(&mut self, of: LoopId) {
        if !self.env.is_connected(of) {
            return;
        }
        self.env
            .note(format_args!("n{of}: its service connection is lost"));
        self.env.cut(of);
        let mean_us = *self.env.random.pick(&[30_000, 1_000_000]).unwrap_or(&0);
        let lasts = self.env.random.around(mean_us);
        self.env.timeline.after(lasts, Event::Connect { of });
    }

    /// A loop connects to NATS (again), if it is not connected.
    pub fn connect(&mut self, of: LoopId) {
        let running = self.nodes.get(&of.node).and_then(|it| it.running.as_ref());
        let Some(of_loop) = running.and_then(|it| it.loops.get(of.index)) else {
            return;
        };
        if !self.env.is_connected(of) {
            self.env.note(format_args!("n{of}: connected to NATS"));
            let all = of_loop.service.all();
            self.env.connect(of, all);
        }
    }

    /// The loops of the nodes that were not removed.
    fn all_loops(&self) -> Vec<LoopId> {
        let nodes = self.nodes.values().filter(|node| !node.removed);
        nodes
            .flat_map(|it| (0..it.loops()).map(|at| it.loop_id(at)))
            .collect()
    }

    fn any_loop(&mut self, node: NodeId) -> LoopId {
        let loops = self.nodes.get(&node).map_or(1, Node::loops).max(1);
        let index = self.env.random.below(loops as u64) as usize;
        LoopId { node, index }
    }

    fn stall_loop(&mut self, of: LoopId) {
        let env = &mut self.env;
        let mean_us = *env.random.pick(&[20_000, 300_000, 1_500_000]).unwrap_or(&0);
        let until = env.timeline.now() + env.random.around(mean_us);
        env.counts.add(Fault::LoopStall);
        env.note(format_args!("n{of}: the loop stands still until {until}"));
        self.stand_still(of, until);
    }

    fn stall_service(&mut self, of: LoopId) {
        let mean_us = *self
            .env
            .random
            .pick(&[400_000, 1_500_000, 4_000_000])
            .unwrap_or(&0);
        let lasts = self.env.random.around(mean_us);
        self.env.counts.add(Fault::ServiceStall);
        self.env.note(format_args!(
            "n{of}: its service connection stands still for {lasts} us"
        ));
        let until = self.env.timeline.now() + lasts;
        self.env.stall(of, until);
    }

    /// Some clients share a connection that stands still: what they send comes later.
    fn stall_clients(&mut self) {
        let env = &mut self.env;
        let mean_us = *env
            .random
            .pick(&[1_000_000, 3_000_000, 8_000_000])
            .unwrap_or(&0);
        let lasts = env.random.around(mean_us);
        let until = env.timeline.now() + lasts;
        let (share, of) = (env.random.below(12) as usize, 12);
        env.counts.add(Fault::ClientStall);
        env.note(format_args!(
            "what clients send stands still for {lasts} us: every {of}th from {share}"
        ));
        for client in (share..env.client_clocks.len()).step_by(of) {
            env.clients_stalled.insert(client, until);
        }
    }

    pub fn crash(&mut self, id: NodeId) {
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
            if node.disk.flip_bit_of_snapshot(chance) {
                self.env.counts.add(Fault::BitFlip);
                self.env
                    .note(format_args!("n{id}: a bit of a snapshot flips"));
            }
        }
        let chance = self.env.weather.chance(Fault::LogBitFlip);
        if self.env.random.chance(chance) {
            self.flip_bit_of_log(id);
        }
        let mean_us = *self.env.random.pick(&[300_000, 2_000_000]).unwrap_or(&0);
        let delay = self.env.random.around(mean_us);
        self.env
            .timeline
            .after(delay, Event::StartNode { node: id });
    }

    /// A bit of a node's log flips, unless the others have no majority: a minority may be damaged.
    fn flip_bit_of_log(&mut self, id: NodeId) {
        if !self.can_lose(id) {
            return;
        }
        let chance = self.env.random.next();
        if let Some(node) = self.nodes.get(&id)
            && node.disk.flip_bit_of_log(chance)
        {
            self.env.counts.add(Fault::LogBitFlip);
            self.env.note(format_args!("n{id}: a bit of the log flips"));
        }
    }

    /// The node with a damaged log.
    pub fn damaged(&self) -> Option<NodeId> {
        let mut nodes = self.nodes.values();
        nodes.find(|it| it.disk.is_log_damaged()).map(|it| it.id)
    }

    /// Everything that is broken is mended. A node with a damaged log is gone for good, or its operator wipes the
    /// disk. In other runs one node may be ill.
    pub fn heal(&mut self) {
        if let Some(id) = self.damaged()
            && self.env.random.below(2) == 0
        {
            self.wipe_disk(id);
        }
        self.healed = true;
        let damaged = self.damaged().map(|id| (id, Ill::Gone));
        let ill = self.ill.filter(|(id, _)| self.can_lose(*id));
        self.ill = damaged.or(ill);
        self.env
            .note(format_args!("everything heals, but for: {:?}", self.ill));
        self.env.weather = Weather::fine();
        self.env.links_cut.clear();
        self.env.direct_cut.clear();
        self.env.links_slow_us = 0;
        self.env.slow_disks.clear();
        self.env.full_inboxes.clear();
        for id in self.node_ids() {
            self.clear_disk(id);
        }
        let max_payload = self.env.max_payload.max(MAX_PAYLOAD_MIN);
        self.set_max_payload(max_payload);
        self.env.clients_stalled.clear();
        self.env.end_stalls();
        self.clients.open_all(&mut self.env);
        for id in self.node_ids() {
            let Some(node) = self.nodes.get_mut(&id) else {
                continue;
            };
            let start = node.starts;
            if self.ill == Some((id, Ill::Gone)) {
                node.end(&mut self.env, true);
                continue;
            }
            self.resume(id, start);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.end_stalls(&mut self.env);
            }
            for of in self.all_loops().into_iter().filter(|it| it.node == id) {
                self.env.timeline.after(0, Event::Connect { of });
            }
            self.env.timeline.after(0, Event::StartNode { node: id });
        }
        match self.ill {
            Some((node, Ill::Restarts)) => {
                self.env.timeline.after(0, Event::Relapse { node });
                // What it has taken in is lost with it.
                self.env.answers_from = SETTLED_US + 2_000_000;
            }
            Some((node, Ill::SlowDisk)) => {
                self.env.slow_disks.insert(node, SLOW_SYNC_US);
            }
            Some((node, Ill::FullDisk)) => {
                self.env.full_disks.insert(node, FullDisk::Nothing);
            }
            _ => {}
        }
    }

    /// A node that restarts again and again loses power, until everything has settled.
    pub fn relapse(&mut self, id: NodeId) {
        if self.env.timeline.now() >= SETTLED_US {
            return;
        }
        let running = self.nodes.get(&id).is_some_and(|it| it.running.is_some());
        if running {
            self.crash(id);
        }
        let again = self.env.random.around(1_500_000);
        let relapse = Event::Relapse { node: id };
        self.env.timeline.after(again, relapse);
    }

    /// The node that was ill is well again, unless it is gone.
    pub fn recover(&mut self) {
        self.env.slow_disks.clear();
        for id in self.node_ids() {
            self.clear_disk(id);
        }
        if let Some((node, Ill::Restarts)) = self.ill {
            self.env.timeline.after(0, Event::StartNode { node });
        }
    }
}
