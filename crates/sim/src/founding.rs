//! A node with an empty disk finds out whether its cluster exists before it begins. Nobody else serves on its prefix
//! here: discovery is asked, and not answered.

use nowserving_engine::envelope::Founder;
use nowserving_front::cluster::founding::{Doubt, Founding, Outcome};
use nowserving_front::cluster::identity::Identity;
use nowserving_front::cluster::{File, members_file};

use crate::disk::{CLUSTER, FIRST_NODES};
use crate::env::Env;
use crate::nats::NodeId;
use crate::node::Node;
use crate::timeline::Time;
use crate::world::{Event, World};

/// What has come is looked at this often.
const TICK_US: Time = 20_000;

/// A process that has not begun.
pub struct Founds {
    pub machine: Founding,
    pub identity: Identity,
    me: Founder,
    /// Of the process.
    start: u64,
    /// How often it was looked at, and how often a node was there that knows the disk that is lost.
    ticks: (u32, u32),
}

impl Node {
    /// Starts a process on an empty disk.
    pub fn found(&mut self, env: &mut Env, identity: Identity) {
        let (node, start) = (self.id, self.starts);
        let me = Founder {
            disk_id: identity.disk_id,
            id: node,
            cluster: CLUSTER.to_owned(),
            nodes: FIRST_NODES.to_vec(),
            cluster_id: 0,
        };
        let now = self.clock.read(env.timeline.now()).us;
        let members = self.disk.files.members().identity();
        let joined = identity.joined.then_some(members);
        let mut machine = Founding::new(me.clone(), joined, &env.link.subjects, now);
        machine.discovery_asked(now);
        env.note(format_args!("n{node}: asks whether its cluster exists"));
        self.founds = Some(Founds {
            machine,
            identity,
            me,
            start,
            ticks: (0, 0),
        });
        env.timeline.after(0, Event::Founds { node, start });
    }
}

impl World {
    /// A node with an empty disk asks, or knows by now.
    pub fn founds(&mut self, id: NodeId, start: u64) {
        let members = self.checks.members();
        let knows = |node: &Node| {
            let member = members.nodes.contains_key(&node.id);
            member && node.is_awake() && node.disk.files.knows_later(id, None)
        };
        let known = self.nodes.values().any(|node| node.id != id && knows(node));
        let env = &mut self.env;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let now = node.clock.read(env.timeline.now()).us;
        let founds = node.founds.as_mut().filter(|it| it.start == start);
        let Some(founds) = founds else {
            return;
        };
        founds.ticks.0 += 1;
        founds.ticks.1 += u32::from(known);
        let link = env.link.clone();
        let around = (&link.keys.joining, &link.subjects);
        let mut out = Vec::new();
        let decided = founds.machine.on_time(now, true, around, &mut out);
        out.into_iter().for_each(|it| env.publish_to_all(it));
        match decided {
            Ok(Some(outcome)) => self.settle(id, outcome),
            Ok(None) => env
                .timeline
                .after(TICK_US, Event::Founds { node: id, start }),
            Err(error) => env.violated("S5", format!("node {id} does not begin: {error}")),
        }
    }

    /// A node with an empty disk knows what it is to do.
    pub fn settle(&mut self, id: NodeId, outcome: Outcome) {
        let env = &mut self.env;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let Some(founds) = node.founds.take() else {
            return;
        };
        let mut identity = founds.identity;
        let mut doubt = None;
        match outcome {
            Outcome::Begin => {
                let (all, known) = founds.ticks;
                let wrongly = !identity.joined && 2 * known > all;
                // Left to the checkers of votes, which that row is for.
                let wrongly = wrongly && !nowserving_bite::is(nowserving_bite::Break::S5Wiped);
                if wrongly {
                    let what = format!("node {id} founds its cluster though others know its disk");
                    env.violated("S5", what);
                }
                let now = node.clock.read(env.timeline.now()).us;
                doubt = (!identity.joined).then(|| Doubt::new(founds.me, now));
            }
            Outcome::Refused { members, reason } => {
                env.note(format_args!("n{id}: is refused: {reason}"));
                let members = members_file::write(&members.to_bytes());
                node.disk.files.write(File::Members, members);
                identity.lose_number(reason, env.random.next());
                node.disk.files.write_identity(&identity);
            }
        }
        self.begin_node(id, identity, doubt);
    }

    /// The process of a node begins. If it refuses to, as its disk is damaged, its operator looks at it.
    pub fn begin_node(&mut self, id: NodeId, identity: Identity, doubt: Option<Doubt>) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.begin(&mut self.env, &self.setup, identity) {
            if let Some(running) = &mut node.running {
                running.doubt = doubt;
            }
            node.plan_questions(&mut self.env);
            self.checks.started(&mut self.env, node);
        } else if !node.disk.is_log_damaged() {
            // An operator puts the file back.
            node.disk.repair_snapshot();
            let delay = self.env.random.around(1_500_000);
            let again = Event::StartNode { node: id };
            self.env.timeline.after(delay, again);
        }
    }
}
