//! Machines that ask to be added to the cluster: new ones, and those that were refused as their disks lost
//! what they had promised. Both get a number of their own from the cluster, and start anew under it.

use nowserving_engine::envelope::{Candidate, Welcome};
use nowserving_engine::{Input, Standing};

use crate::clock::Clock;
use crate::disk::Disk;
use crate::env::Env;
use crate::faults::Fault;
use crate::files::Files;
use crate::nats::NodeId;
use crate::node::Node;
use crate::timeline::Time;
use crate::world::{Event, Process, World};

/// A machine asks this often.
const INTERVAL_US: Time = 1_000_000;

impl Env {
    /// A machine begins to ask, unless it does.
    fn ask(&mut self, disk_id: u64) {
        if self.asking.insert(disk_id) {
            self.timeline.after(0, Event::Asks { disk_id });
        }
    }

    /// The cluster answers a machine that it has added.
    pub fn welcome(&mut self, welcome: Welcome) {
        let delay = self.nats_delay() + self.nats_delay();
        if !self.strikes(Fault::FrameLost) {
            let welcome = Box::new(welcome);
            self.timeline.after(delay, Event::Welcomed(welcome));
        }
    }
}

impl Node {
    /// A node that needs a new number begins to ask; the id of its disk under its new number is drawn only once.
    pub fn ask_if_refused(&mut self, env: &mut Env, standing: &Standing) {
        let Standing::Refused(refusal) = standing else {
            return;
        };
        if !refusal.needs_number() {
            return;
        }
        let mut identity = self.disk.files.identity().unwrap_or_default();
        if refusal.disk {
            identity.note_refused(&refusal.reason);
        }
        let (disk_id, _) = identity.ask_as(env.random.next());
        self.disk.files.write_identity(&identity);
        env.ask(disk_id);
    }

    /// With which disk it asks to be added, if it does.
    fn candidate(&self) -> Option<u64> {
        let candidate = self.disk.files.identity().map(|it| it.candidate);
        candidate.filter(|it| *it != 0)
    }

    fn asks(&self, disk_id: u64) -> bool {
        let standing = self.running.as_ref().map(|it| it.engine.standing());
        let needs = matches!(standing, Some(Standing::Refused(it)) if it.needs_number());
        needs && self.candidate() == Some(disk_id)
    }
}

impl World {
    /// A new machine, which asks to be added. Returns the id of its disk.
    pub fn new_machine(&mut self) -> u64 {
        let disk_id = self.env.random.next();
        let clock = Clock::draw(&mut self.env.random, self.drifts);
        self.switch_on(disk_id, clock);
        disk_id
    }

    /// A machine with an empty disk is switched on, and asks to be added.
    pub fn switch_on(&mut self, disk_id: u64, clock: Clock) {
        self.machines.insert(disk_id, clock);
        self.env.ask(disk_id);
    }

    /// A machine asks each node, and again later.
    pub fn asks(&mut self, disk_id: u64) {
        let refused = self.nodes.values().find(|node| node.asks(disk_id));
        if refused.is_none() && !self.machines.contains_key(&disk_id) {
            self.env.asking.remove(&disk_id);
            return;
        }
        let number = refused.map_or(0, |node| node.id);
        for node in self.nodes.values() {
            let candidate = Candidate {
                disk_id,
                number,
                ..Candidate::default()
            };
            let delay = self.env.nats_delay() + self.env.nats_delay();
            if !self.env.strikes(Fault::FrameLost) {
                let heard = Process::Candidate(candidate);
                node.process_event(&mut self.env, delay, heard);
            }
        }
        let again = Event::Asks { disk_id };
        self.env.timeline.after(INTERVAL_US, again);
    }

    /// The answer of the cluster reaches the machine that asks with this disk.
    pub fn welcomed(&mut self, welcome: Welcome) {
        let (disk_id, id) = (welcome.disk_id, welcome.id);
        if let Some(node) = self.nodes.values_mut().find(|node| node.asks(disk_id)) {
            self.env.note(format_args!("n{}: will be n{id}", node.id));
            node.welcome = Some(welcome);
            node.push(&mut self.env, Input::Stop);
        } else if let Some(clock) = self.machines.remove(&disk_id) {
            self.env.note(format_args!("a new machine is n{id}"));
            let disk = self.joined_disk(&welcome, None);
            self.env.builds.joins(id, None);
            self.add_node(Node::new(id, None, clock, disk));
        }
    }

    /// A node that ended to get a new number: what it had under the earlier one is gone.
    pub fn renumber(&mut self, id: NodeId) -> bool {
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        let Some(welcome) = node.welcome.take_if(|_| node.running.is_none()) else {
            return false;
        };
        let (configured, clock, starts) = (node.configured, node.clock, node.starts);
        self.nodes.remove(&id);
        let disk = self.joined_disk(&welcome, configured);
        let mut node = Node::new(welcome.id, configured, clock, disk);
        node.starts = starts;
        self.env.builds.joins(node.id, Some(id));
        self.add_node(node);
        true
    }

    /// With which disk the machine asks to be added whose own lost what it had promised.
    pub fn lost_asks_as(&self) -> Option<u64> {
        let lost = self.lost?;
        let node = self.nodes.get(&lost.id);
        lost.asks_as.or(node.and_then(Node::candidate))
    }

    fn joined_disk(&self, welcome: &Welcome, configured: Option<NodeId>) -> Disk {
        let files = Files::added(welcome, configured.unwrap_or(0));
        Disk::new(files, self.setup.log_bytes_max)
    }

    fn add_node(&mut self, node: Node) {
        let id = node.id;
        self.nodes.insert(id, node);
        let delay = self.env.random.around(300_000);
        let start = Event::StartNode { node: id };
        self.env.timeline.after(delay, start);
    }
}
