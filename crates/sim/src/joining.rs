//! What nodes and machines publish to all others: founding, and asking to be added. Machines that ask are new ones, and
//! those that were refused as their disks lost what they had promised. Both get a number of their own from the cluster,
//! and start anew under it.

use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::envelope::{Candidate, Welcome};
use nowserving_engine::{Input, Standing};
use nowserving_front::cluster::Out;
use nowserving_front::cluster::founding::{Member, Outcome};
use nowserving_front::cluster::joining::{self, Asking};

use crate::clock::Clock;
use crate::disk::{CLUSTER, Disk};
use crate::env::Env;
use crate::faults::Fault;
use crate::files::Files;
use crate::nats::NodeId;
use crate::node::Node;
use crate::timeline::Time;
use crate::world::{Event, Process, World};

/// A machine that is no node yet.
#[derive(Debug)]
pub struct Machine {
    pub clock: Clock,
    asking: Asking,
}

/// What a message may come to.
#[derive(Clone, Copy, Debug)]
pub enum Listener {
    Node(NodeId),
    /// By its disk.
    Machine(u64),
}

impl Env {
    /// Something is published to all nodes, on the connection that frames use.
    pub fn publish_to_all(&mut self, out: Out) {
        if let Out::Publish { subject, payload } = out {
            let delay = self.nats_delay();
            let subject = Rc::from(subject);
            self.timeline
                .after(delay, Event::ToAll { subject, payload });
        }
    }
}

impl Node {
    /// Its standing has changed.
    pub fn note_standing(&mut self, env: &mut Env, standing: &Standing) {
        let now = self.clock.read(env.timeline.now()).us;
        let mut out = Vec::new();
        if let Some(running) = &mut self.running {
            let members = &running.peers.members;
            running
                .renumbering
                .on_standing(now, standing, members, &mut out);
        }
        self.carry_out_all(env, out);
        self.plan_questions(env);
    }

    /// The node asks something of the cluster, if that is due.
    pub fn questions(&mut self, env: &mut Env) {
        let time = env.timeline.now();
        let now = self.clock.read(time).us;
        let link = env.link.clone();
        let around = (&link.keys.joining, &link.subjects);
        let mut out = Vec::new();
        let Some(running) = &mut self.running else {
            return;
        };
        if running.questions_at.take_if(|at| *at <= time).is_none() {
            return;
        }
        let members = &running.peers.members;
        running.renumbering.on_time(now, members, around, &mut out);
        if let Some(doubt) = &mut running.doubt {
            doubt.on_time(now, members.cluster_id, around, &mut out);
        }
        self.carry_out_all(env, out);
        self.plan_questions(env);
    }

    /// Plans the next question, unless one is planned before it.
    pub fn plan_questions(&mut self, env: &mut Env) {
        let Some(running) = &mut self.running else {
            return;
        };
        let doubt = running.doubt.iter().map(|it| it.next_due());
        let due = doubt.fold(running.renumbering.next_due(), u64::min);
        if due == u64::MAX {
            return;
        }
        let now = env.timeline.now();
        let at = self.clock.when(due).max(now);
        if running.questions_at.is_none_or(|planned| at < planned) {
            running.questions_at = Some(at);
            self.process_event(env, 0, at - now, Process::Questions);
        }
    }

    /// A message that was published to all. Returns what came of founding, if it says that.
    fn heard(&mut self, env: &mut Env, subject: &str, payload: &Bytes) -> Option<Outcome> {
        let link = env.link.clone();
        let subjects = &link.subjects;
        let around = (&link.keys.joining, subjects);
        let mut out = Vec::new();
        if let Some(founds) = &mut self.founds {
            let [others, answers] = founds.machine.subjects(subjects);
            if subject == answers {
                return founds.machine.on_answer(payload, &link.keys.joining);
            }
            if subject == others {
                founds.machine.on_founder(payload, around, &mut out);
            }
        }
        if let Some(running) = &mut self.running {
            if subject == subjects.found() {
                let member = Member {
                    id: self.id,
                    cluster: CLUSTER,
                    disk_id: running.origin.disk_id,
                    members: &running.peers.members,
                    in_touch: running.is_in_touch(),
                };
                let known = running.incoming.known();
                member.on_founder(payload, |id| known.get(id).is_some(), around, &mut out);
            } else if subject == subjects.join() {
                out.extend(joining::candidate(payload, &link.keys.joining).map(Out::Engine));
            }
            if let Some(doubt) = &running.doubt
                && subject == doubt.subject(subjects)
            {
                doubt.on_answer(payload, &link.keys.joining, &mut out);
            }
            if running.renumbering.subject(subjects).as_deref() == Some(subject)
                && let Some(welcome) = running.renumbering.on_answer(payload, &link.keys.joining)
            {
                env.note(format_args!("n{}: will be n{}", self.id, welcome.id));
                self.welcome = Some(welcome);
                out.push(Out::Engine(Input::Stop));
            }
        }
        self.carry_out_all(env, out);
        None
    }

    fn carry_out_all(&mut self, env: &mut Env, out: Vec<Out>) {
        for it in out {
            match it {
                Out::Write(file, bytes) => self.disk.files.write(file, bytes),
                Out::Engine(input) => self.push(env, 0, input),
                // Each machine hears everything.
                Out::Subscribe(_) | Out::NotTaken(_) | Out::AskForConnection { .. } => {}
                Out::Publish { .. } => env.publish_to_all(it),
            }
        }
    }

    /// With which disk it asks to be added, if it does.
    fn candidate(&self) -> Option<u64> {
        let candidate = self.disk.files.identity().map(|it| it.candidate);
        candidate.filter(|it| *it != 0)
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
        let candidate = Candidate {
            disk_id,
            ..Candidate::default()
        };
        let asking = Asking::new(candidate, clock.read(self.env.timeline.now()).us);
        self.machines.insert(disk_id, Machine { clock, asking });
        self.env.timeline.after(0, Event::Asks { disk_id });
    }

    /// A machine asks, and again later.
    pub fn asks(&mut self, disk_id: u64) {
        let env = &mut self.env;
        let Some(machine) = self.machines.get_mut(&disk_id) else {
            return;
        };
        let link = env.link.clone();
        let now = machine.clock.read(env.timeline.now()).us;
        let mut out = Vec::new();
        let around = (&link.keys.joining, &link.subjects);
        machine.asking.on_time(now, around, &mut out);
        out.into_iter().for_each(|it| env.publish_to_all(it));
        let again: Time = machine.clock.when(machine.asking.next_due());
        env.timeline.at(again, Event::Asks { disk_id });
    }

    /// The server has a message for all nodes and machines.
    pub fn give_to_all(&mut self, subject: &Rc<str>, payload: &Bytes) {
        let nodes = self.nodes.keys().map(|id| Listener::Node(*id));
        let machines = self.machines.keys().map(|disk| Listener::Machine(*disk));
        for to in nodes.chain(machines) {
            let delay = self.env.nats_delay();
            if !self.env.strikes(Fault::FrameLost) {
                let (subject, payload) = (subject.clone(), payload.clone());
                let heard = Event::Heard {
                    to,
                    subject,
                    payload,
                };
                self.env.timeline.after(delay, heard);
            }
        }
    }

    /// One of them hears it.
    pub fn heard(&mut self, to: Listener, subject: &str, payload: &Bytes) {
        match to {
            Listener::Node(id) => {
                let node = self.nodes.get_mut(&id);
                let outcome = node.and_then(|it| it.heard(&mut self.env, subject, payload));
                if let Some(outcome) = outcome {
                    self.settle(id, outcome);
                }
            }
            Listener::Machine(disk_id) => {
                let link = self.env.link.clone();
                let machine = self.machines.get(&disk_id).map(|it| &it.asking);
                let machine = machine.filter(|it| it.subject(&link.subjects) == subject);
                if let Some(welcome) =
                    machine.and_then(|it| it.on_answer(payload, &link.keys.joining))
                {
                    self.welcomed(&welcome);
                }
            }
        }
    }

    /// A machine was added.
    fn welcomed(&mut self, welcome: &Welcome) {
        let id = welcome.id;
        if let Some(machine) = self.machines.remove(&welcome.disk_id) {
            self.env.note(format_args!("a new machine is n{id}"));
            let disk = self.joined_disk(welcome, None);
            self.env.builds.joins(id, None);
            self.add_node(Node::new(id, None, machine.clock, disk));
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

    fn joined_disk(&mut self, welcome: &Welcome, configured: Option<NodeId>) -> Disk {
        let files = Files::added(welcome, configured.unwrap_or(0));
        let loops = self.setup.draw_loops(&mut self.env.random);
        Disk::new(files, self.setup.log_bytes_max, loops)
    }

    fn add_node(&mut self, node: Node) {
        let id = node.id;
        self.nodes.insert(id, node);
        let delay = self.env.random.around(300_000);
        let start = Event::StartNode { node: id };
        self.env.timeline.after(delay, start);
    }
}
