//! Three replicas in one thread, with logs in memory, clocks of their own, and links that tests cut and delay.
#![allow(missing_docs)]

mod checks;
mod node;

use std::collections::BTreeSet;

use nowserving_replica::{Config, Micros, ReadId, Role};
use raft::eraftpb::{Message, MessageType};

pub use checks::Checks;
pub use node::{Node, Persist};

pub const TICK_US: Micros = 100_000;
pub const ELECTION_TICKS: usize = 10;
pub const ELECTION_US: Micros = TICK_US * ELECTION_TICKS as u64;
pub const LEASE_US: Micros = 900_000;
pub const STEP_US: Micros = 1_000;

/// Small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub fn config(id: u64) -> Config {
    seeded_config(id, 0)
}

/// Groups of even seeds tell their followers at once what is committed.
pub fn seeded_config(id: u64, seed: u64) -> Config {
    Config {
        shard: 0,
        id,
        election_ticks: ELECTION_TICKS,
        heartbeat_ticks: 2,
        tick: std::time::Duration::from_micros(TICK_US),
        lease: std::time::Duration::from_micros(LEASE_US),
        tells_commits: seed.is_multiple_of(2),
    }
}

/// Sees a message as it is sent; returns false to drop it.
pub type Filter = Box<dyn FnMut(&Message) -> bool>;

struct Flying {
    at: Micros,
    message: Message,
}

pub struct Cluster {
    pub now: Micros,
    pub nodes: Vec<Node>,
    pub latency_us: Micros,
    /// Links (from, to) on which nothing arrives.
    pub blocked: BTreeSet<(u64, u64)>,
    pub checks: Checks,
    flying: Vec<Flying>,
    pub filter: Option<Filter>,
}

impl Cluster {
    pub fn new(seed: u64) -> Cluster {
        let mut cluster = Cluster {
            now: 0,
            nodes: (1..=3).map(|id| Node::new(id, seed)).collect(),
            latency_us: STEP_US,
            blocked: BTreeSet::new(),
            checks: Checks::default(),
            flying: Vec::new(),
            filter: None,
        };
        for node in &mut cluster.nodes {
            node.start(0);
        }
        cluster
    }

    /// A cluster whose node 1 leads and may serve.
    pub fn led_by_1(seed: u64) -> Cluster {
        let mut cluster = Cluster::new(seed);
        cluster.step();
        let now = cluster.clock(1);
        assert!(cluster.node(1).replica().campaign(now));
        cluster.run_until("node 1 leads", |cluster| {
            cluster.leader() == Some(1) && cluster.nodes.iter().all(|node| !node.applied.is_empty())
        });
        cluster
    }

    pub fn node(&mut self, id: u64) -> &mut Node {
        &mut self.nodes[id as usize - 1]
    }

    /// What a node's clock shows.
    pub fn clock(&self, id: u64) -> Micros {
        self.nodes[id as usize - 1].clock(self.now)
    }

    /// The leader of the highest term, if it is up.
    pub fn leader(&self) -> Option<u64> {
        let leads = |node: &&Node| node.is_up() && node.view().role() == Role::Leader;
        self.nodes
            .iter()
            .filter(leads)
            .max_by_key(|node| node.view().term())
            .map(|node| node.id)
    }

    pub fn isolate(&mut self, id: u64) {
        for other in (1..=3).filter(|&other| other != id) {
            self.blocked.extend([(id, other), (other, id)]);
        }
    }

    pub fn heal(&mut self) {
        self.blocked.clear();
    }

    /// A millisecond.
    pub fn step(&mut self) {
        self.now += STEP_US;
        self.deliver();
        for at in 0..self.nodes.len() {
            let (sent, handed_out) = self.nodes[at].turn(self.now);
            self.checks.handed_out(&self.nodes[at], &handed_out);
            sent.into_iter().for_each(|message| self.send(message));
        }
        self.checks.leases(&self.nodes, self.now);
    }

    pub fn run(&mut self, us: Micros) {
        let end = self.now + us;
        while self.now < end {
            self.step();
        }
    }

    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&mut Cluster) -> bool) {
        let end = self.now + 60 * ELECTION_US;
        while !done(self) {
            self.step();
            assert!(
                self.now < end,
                "not within {} s: {what}",
                (60 * ELECTION_US) / 1_000_000
            );
        }
    }

    /// Proposes through a node, and notes it for the checks.
    pub fn propose(&mut self, id: u64, data: &str) -> Option<(u64, u64)> {
        let at = self.node(id).replica().propose(data.into()).ok()?;
        self.checks.proposed(at);
        Some(at)
    }

    pub fn read(&mut self, id: u64) -> Option<ReadId> {
        let now = self.clock(id);
        self.node(id).replica().read_index(now).ok()
    }

    /// Proposes and waits until all live nodes have applied it.
    pub fn commit(&mut self, id: u64, data: &str) -> (u64, u64) {
        self.commit_on(id, data, &[1, 2, 3])
    }

    /// Proposes and waits until some nodes have applied it.
    pub fn commit_on(&mut self, id: u64, data: &str, on: &[u64]) -> (u64, u64) {
        let at = self.propose(id, data).expect("proposal is taken");
        self.run_until("they apply", |cluster| {
            let waits =
                |node: &Node| node.is_up() && on.contains(&node.id) && node.applied_index() < at.1;
            !cluster.nodes.iter().any(waits)
        });
        at
    }

    fn send(&mut self, message: Message) {
        if self.filter.as_mut().is_none_or(|filter| filter(&message)) {
            let at = self.now + self.latency_us;
            self.flying.push(Flying { at, message });
        }
    }

    fn deliver(&mut self) {
        let due: Vec<Flying> = self
            .flying
            .extract_if(.., |flying| flying.at <= self.now)
            .collect();
        for Flying { message, .. } in due {
            if !self.blocked.contains(&(message.from, message.to)) {
                if message.get_msg_type() == MessageType::MsgSnapshot {
                    let snapshot = self.nodes[message.from as usize - 1].snapshot.clone();
                    self.node(message.to).fetch(snapshot);
                }
                self.nodes[message.to as usize - 1].inbox.push_back(message);
            }
        }
    }
}
