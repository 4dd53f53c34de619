//! What all parts of a simulation share: time, chance, the network's state, and what is written down.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::{Ask, Input};
use nowserving_line::{LineName, Op, TokenBy, TokenRef};

use crate::calls::{Answer, Calls, NotAnswered};
use crate::direct::Direct;
use crate::faults::{Calm, Counts, Fault, Weather};
use crate::hits::HitsAsked;
use crate::nats::{Connection, LoopId, NodeId};
use crate::peers::Link;
use crate::random::Random;
use crate::timeline::{Time, Timeline};
use crate::trace::Trace;
use crate::upgrade::Builds;
use crate::world::Event;

/// In place of an invariant: the code panicked.
pub const PANIC: &str = "panic";

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which one: S1 to S20, L1 to L6, or [`PANIC`].
    pub invariant: &'static str,
    /// What was seen.
    pub what: String,
}

/// What is left on a full disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullDisk {
    /// Little, which its node sees.
    Reserve,
    /// Nothing: writes wait, and by that its node sees it.
    Nothing,
}

/// The shared parts of a simulation.
pub struct Env {
    /// What is to come.
    pub timeline: Timeline<Event>,
    /// Chance.
    pub random: Random,
    /// What goes wrong how often.
    pub weather: Weather,
    /// How things are when nothing goes wrong.
    pub calm: Calm,
    /// What went wrong.
    pub counts: Counts,
    /// What happened.
    pub trace: Trace,
    /// The service connections of the nodes' loops.
    pub connections: BTreeMap<LoopId, Connection>,
    /// The newest start of each node that runs.
    pub starts: BTreeMap<NodeId, u64>,
    /// Links between nodes that let nothing through, each with how many faults cut it.
    pub links_cut: BTreeMap<(NodeId, NodeId), u32>,
    /// The same of direct links.
    pub direct_cut: BTreeMap<(NodeId, NodeId), u32>,
    /// The direct links that are open.
    pub direct: BTreeMap<(NodeId, NodeId), Direct>,
    /// The number of the newest of them.
    pub direct_number: u64,
    /// Whether nodes take direct links.
    pub takes_links: bool,
    /// When any node last took in a poll of a token, or an operation on it, by shard.
    pub heard: BTreeMap<(u32, TokenRef), Time>,
    /// The same of polls by key, by line.
    pub heard_by_key: BTreeMap<(LineName, Box<[u8]>), Time>,
    /// From then on each request that is sent must be answered.
    pub answers_from: Time,
    /// Attempts that only a node had whose client library had just then forgotten the subscription, as it may.
    pub forgotten: BTreeSet<(usize, usize)>,
    /// What all nodes were told of the link between them.
    pub link: Rc<Link>,
    /// Frames that nodes sent.
    pub frames_sent: u64,
    /// Requests that nodes passed on, each try.
    pub forwards_sent: u64,
    /// When the last frame on a link arrives.
    pub links_last: BTreeMap<(NodeId, NodeId), Time>,
    /// What a slow network adds to each way between two nodes.
    pub links_slow_us: Time,
    /// What the server takes in one message, in bytes.
    pub max_payload: usize,
    /// Whether the server maps users' plain requests to their shards.
    pub mapped: bool,
    /// The newest version of each line that any client has been told.
    pub known_versions: BTreeMap<LineName, u64>,
    /// What each client's clock is ahead of the truth, in milliseconds.
    pub client_clocks: Vec<i64>,
    /// Until when the ways of clients to the server stand still.
    pub clients_stalled: BTreeMap<usize, Time>,
    /// What a node's wall clock may be behind the truth, in milliseconds.
    pub nodes_behind_ms: i64,
    /// Steps of engines.
    pub steps: u64,
    /// What clients have asked.
    pub calls: Calls,
    /// What nodes are asked to count on rate limits.
    pub hits: HitsAsked,
    /// Violations of other rules than these are not looked at; empty: of all.
    pub only: Vec<String>,
    /// The rule that was broken first; the run ends with it.
    pub violations: Vec<Violation>,
    /// Nodes whose inbox is full most of the time now.
    pub full_inboxes: BTreeSet<NodeId>,
    /// Nodes whose disks are full now; those with a reserve can still write.
    pub full_disks: BTreeMap<NodeId, FullDisk>,
    /// Nodes whose syncs are slow now, and by how much.
    pub slow_disks: BTreeMap<NodeId, Time>,
    /// The nodes' builds.
    pub builds: Builds,
    /// Snapshots that nodes keep, or kept, for downloads.
    pub downloads: BTreeMap<String, Bytes>,
}

impl Env {
    /// A node's loop takes this in.
    pub fn hear(&mut self, node: NodeId, input: &Input) {
        let Input::Request { request, .. } = input else {
            return;
        };
        if let Ask::Limit(ask) = &request.ask {
            return self.hits.heard(node, request, ask);
        }
        let now = self.timeline.now();
        if let Ask::Write(Op::Claim { at, .. }) = &request.ask {
            self.heard.insert((request.shard, *at), now);
        }
        for token in request.ask.seen().cloned() {
            match token {
                TokenBy::At(at) => self.heard.insert((request.shard, at), now),
                TokenBy::Key(key) => self.heard_by_key.insert((request.line.clone(), key), now),
            };
        }
    }

    /// Whether a fault that befalls messages and the like does so now; counts it.
    pub fn strikes(&mut self, kind: Fault) -> bool {
        let strikes = self.random.chance(self.weather.chance(kind));
        if strikes {
            self.counts.add(kind);
        }
        strikes
    }

    /// Writes a line into the trace.
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        self.trace.line(self.timeline.now(), what);
    }

    /// A rule was broken. Only the first counts: what the checkers know is wrong after it.
    pub fn violated(&mut self, invariant: &'static str, what: String) {
        let wanted = self.only.is_empty() || self.only.iter().any(|only| only == invariant);
        if !wanted || !self.violations.is_empty() {
            return;
        }
        self.note(format_args!("VIOLATION {invariant}: {what}"));
        self.violations.push(Violation { invariant, what });
    }

    /// The code panicked, which no rule allows.
    pub fn panicked(&mut self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().map(|it| (*it).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let what = text.unwrap_or_else(|| "for a reason that is not text".to_owned());
        self.note(format_args!("PANIC: {what}"));
        let invariant = PANIC;
        self.violations = vec![Violation { invariant, what }];
    }

    /// An answer, or that there will be none, on its way to a client.
    pub fn reply_to_client(
        &mut self,
        call: usize,
        attempt: usize,
        answer: Result<Answer, NotAnswered>,
    ) {
        if self.strikes(Fault::ReplyLost) {
            return;
        }
        let delay = self.client_delay();
        let answer = Box::new(answer);
        let reply = Event::ReadByClient {
            call,
            attempt,
            answer,
        };
        self.timeline.after(delay, reply);
    }

    /// How long what a client sends now is on its way to the server.
    pub fn client_sends(&mut self, client: usize) -> Time {
        let now = self.timeline.now();
        let stalled = self.clients_stalled.get(&client);
        let stalled_us = stalled.map_or(0, |until| until.saturating_sub(now));
        self.client_delay() + stalled_us
    }

    /// One way between a client and the server.
    pub fn client_delay(&mut self) -> Time {
        let slow = if self.strikes(Fault::ClientSlow) {
            self.random.around(500_000)
        } else {
            0
        };
        self.nats_delay() + slow
    }
}
