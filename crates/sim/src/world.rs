//! The whole simulation: nodes, network, clients and checkers, and the loop that drives them by one
//! timeline.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::{Input, Output};
use nowserving_front::cluster::witness::Reply;
use nowserving_replica::ConfState;

use crate::backups::{RESTORER, Restorer};
use crate::calls::{Answer, Calls, NotAnswered};
use crate::check::{Checks, HAND_OVER_US, LED_US, liveness};
use crate::clients::Clients;
use crate::clock::{Clock, WALL_OFF_MS_MAX};
use crate::direct::Way;
use crate::disk::{Disk, FIRST_NODES};
use crate::env::{Env, Violation};
use crate::faults::{Calm, Counts, Fault, Weather};
use crate::files::Files;
use crate::hits::HitsAsked;
use crate::ill::Ill;
use crate::joining::{Listener, Machine};
use crate::loops::Written;
use crate::lost_disks::Lost;
use crate::nats::{LoopId, NodeId, Subscribed, SubscriptionId};
use crate::node::{Node, Setup};
use crate::operator::{OPERATOR, Operator};
use crate::peers::{Link, Sent, draw_max_payload};
use crate::random::Random;
use crate::timeline::{Time, Timeline};
use crate::trace::Trace;
use crate::trouble::Lasting;
use crate::upgrade::Builds;
use crate::witness::Asked;

/// Something that happens.
#[derive(Debug)]
pub enum Event {
    /// Something in a node's process; nothing if that start of it is over.
    Process {
        /// The node.
        node: NodeId,
        /// Its start.
        start: u64,
        /// In which of its loops.
        at: usize,
        /// What.
        what: Process,
    },
    /// A frame reaches a node.
    Frame {
        /// The receiver.
        to: NodeId,
        /// The frame.
        sent: Rc<Sent>,
        /// Which part of it.
        part: usize,
    },
    /// A frame reaches a node by a direct link.
    DirectFrame {
        way: Way,
        /// Of the receiver's process.
        start: u64,
        sent: Rc<Sent>,
    },
    /// The acceptor's word on a direct link reaches its opener.
    LinkWord {
        way: Way,
        /// Bytes.
        taken: u64,
    },
    /// Something in a connection's buffer may be read by its node.
    ReadByNode {
        /// Which loop of which node.
        of: LoopId,
        /// Which of its connections.
        number: u64,
    },
    /// The same, by the server.
    ReadByServer {
        /// Which loop of which node.
        of: LoopId,
        /// Which of its connections.
        number: u64,
    },
    /// A subscription takes effect (`add`), or its end.
    SubscriptionChange {
        /// Which loop of which node.
        of: LoopId,
        /// Which of its connections.
        number: u64,
        /// The subscription.
        id: SubscriptionId,
        /// Its subject and group; `None`: it ends.
        add: Option<Subscribed>,
    },
    /// A node connects (again) to the server.
    Connect {
        /// Which loop of which node.
        of: LoopId,
    },
    /// A node notices that its connection is closed.
    NoticesClosed {
        /// Which loop of which node.
        of: LoopId,
    },
    /// A loop that stood still goes on.
    LoopGoesOn {
        /// Which loop of which node.
        of: LoopId,
    },
    /// A machine starts its node, if it does not run.
    StartNode {
        /// The node.
        node: NodeId,
    },
    /// A machine asks to be added with this disk.
    Asks {
        /// The disk.
        disk_id: u64,
    },
    /// The server has a message for all nodes and machines.
    ToAll {
        /// Where it was published.
        subject: Rc<str>,
        payload: Bytes,
    },
    /// One of them hears it.
    Heard {
        to: Listener,
        /// Where it was published.
        subject: Rc<str>,
        payload: Bytes,
    },
    /// A process on an empty disk looks at what has come.
    Founds {
        node: NodeId,
        /// Its start.
        start: u64,
    },
    /// The cluster's operator does the next thing.
    OperatorActs,
    /// A backup or restore goes on.
    RestorerActs,
    /// An older copy of a node's disk is put back.
    RollBack {
        /// The node.
        node: NodeId,
        /// The copy.
        copy: Box<Disk>,
    },
    /// A process goes on.
    Resume {
        /// The node.
        node: NodeId,
        /// Its start.
        start: u64,
    },
    /// A client's request reaches the server.
    RequestAtServer {
        /// The call.
        call: usize,
        /// Which attempt.
        attempt: usize,
    },
    /// An answer, or that there is none, reaches a client.
    ReadByClient {
        /// The call.
        call: usize,
        /// Which attempt.
        attempt: usize,
        /// The answer.
        answer: Box<Result<Answer, NotAnswered>>,
    },
    /// A client stops waiting for an attempt.
    AttemptTimesOut {
        /// The call.
        call: usize,
        /// Which attempt.
        attempt: usize,
    },
    /// A client repeats a call's request.
    CallRepeats {
        /// The call.
        call: usize,
    },
    /// A client does its next thing.
    Client {
        /// The client.
        client: usize,
    },
    /// A node that goes on failing after everything was healed loses power again.
    Relapse {
        /// The node.
        node: NodeId,
    },
    /// A fault begins.
    FaultBegins(Fault),
    /// A fault ends.
    FaultEnds(Lasting),
}

/// What happens in a process.
#[derive(Debug)]
pub enum Process {
    /// The loop's turn, if it is still planned for this time.
    Turn {
        /// The time.
        planned: Time,
    },
    /// A turn's outputs, which a pause held up.
    CarryOut(Vec<Output>),
    /// What another loop says.
    Crosses(Box<Input>),
    /// A probe is due.
    Probe,
    /// Questions to peers, whether their service connections are open, are due.
    Witness,
    /// A server has a question for a peer.
    Asked(Asked),
    /// The reply to it comes.
    Witnessed(Asked, Reply),
    /// The engine is told of a closed connection.
    Proof(Box<Input>),
    /// Questions to the cluster may be due.
    Questions,
    /// A direct link to a peer is opened.
    OpenLink { to: NodeId },
    /// The opener looks at a direct link.
    LookAtLink(Way),
    /// The acceptor says what it has taken of a direct link.
    SayTaken(Way),
    /// The persister is done.
    Written(Written),
    /// The maker of snapshots makes one.
    MakeSnapshot {
        /// The shard.
        shard: u32,
        /// The last entry in it.
        index: u64,
        /// The members as of that entry.
        members: ConfState,
    },
    /// The log is looked at.
    Purge,
    /// The node connects again, and learns what the server takes in one message.
    LearnMaxPayload,
    /// A thread has done something about a snapshot from peer to peer.
    Transfer(Box<Output>),
    /// The task of a subscription takes what lies in its queue.
    TakeRequests(SubscriptionId),
    /// Subscriptions were drained for long enough.
    Drained,
    /// The request of this number was not answered in time.
    RequestTimesOut(u64),
    /// Something is due for the requests for which it asks others.
    GatherDue,
}

/// How a run is done.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Print every event.
    pub trace: bool,
    /// Look only for violations of these invariants; empty: of all.
    pub only: Vec<String>,
    /// Faults that the run has many of.
    pub many: Vec<Fault>,
}

/// For how long things go wrong, and how long the healed cluster then runs.
pub const FAULTS_US: Time = 30_000_000;
/// From here on no new fault begins, and everything heals.
pub const HEALED_US: Time = 15_000_000;
/// The first fault comes after this.
pub const WARM_UP_US: Time = 2_000_000;
/// A wall clock jumps by this much.
pub const JUMP_MS_MAX: i64 = 3_600_000;
/// From then on nothing fails any more, and the cluster is quiet.
pub const SETTLED_US: Time = FAULTS_US + 10_000_000;
/// What was committed by then is on every node at the end.
const CONVERGED_US: Time = FAULTS_US + HEALED_US - 2_000_000;
/// Writes that a healed majority must decide. Where no line is left that is open, it refuses each.
const PROGRESS_MIN: u64 = 20;

/// What a run came to.
#[derive(Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Steps of engines.
    pub steps: u64,
    /// Writes that clients were told are done.
    pub acknowledged: u64,
    /// Rules that were broken.
    pub violations: Vec<Violation>,
    /// Nothing moved after everything was healed.
    pub stalled: bool,
    /// Faults that occurred.
    pub faults: Counts,
    /// Terms that had a leader, over all shards, but for each shard's first.
    pub leader_changes: u64,
    /// Elections after everything was healed, but for those after a hand-over.
    pub elections_without_cause: u64,
    /// Snapshots of peers that nodes have installed.
    pub snapshots_installed: u64,
    /// Changes of the cluster's nodes that all shards completed.
    pub membership_changes: u64,
    /// The hash of the trace.
    pub trace_hash: u64,
    /// The trace's last lines.
    pub tail: Vec<String>,
}

/// The simulation of one seed.
pub struct World {
    pub(crate) env: Env,
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    pub(crate) setup: Setup,
    pub(crate) clients: Clients,
    pub(crate) operator: Operator,
    pub(crate) restorer: Restorer,
    /// Machines that are no nodes yet, and ask to be added: by their disks.
    pub(crate) machines: BTreeMap<u64, Machine>,
    /// A member whose disk lost what it had promised.
    pub(crate) lost: Option<Lost>,
    /// Whether machines' clocks run at different speeds.
    pub(crate) drifts: bool,
    pub(crate) checks: Checks,
    /// A node that is not well once everything else is healed.
    pub(crate) ill: Option<(NodeId, Ill)>,
    pub(crate) healed: bool,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Run {
    let mut world = World::new(seed, options);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| world.run())) {
        world.env.panicked(panic.as_ref());
    }
    let stalled = world.env.violations.is_empty() && world.is_stalled();
    if stalled && world.ill.is_some() {
        let what = format!("nothing moves, as one node is not well: {:?}", world.ill);
        world.env.violated("L5", what);
    } else if stalled {
        world.env.note(format_args!("STALLED"));
    }
    let World { env, checks, .. } = world;
    Run {
        seed,
        steps: env.steps,
        acknowledged: env.calls.acknowledged,
        violations: env.violations,
        stalled,
        faults: env.counts,
        leader_changes: checks.leader_changes(),
        elections_without_cause: checks.elections_without_cause(),
        snapshots_installed: checks.snapshots_installed,
        membership_changes: checks.membership_changes(),
        trace_hash: env.trace.hash(),
        tail: env.trace.tail().map(str::to_owned).collect(),
    }
}

impl World {
    pub(crate) fn new(seed: u64, options: &Options) -> World {
        let mut random = Random::new(seed);
        let mut weather = Weather::draw(&mut random);
        for kind in &options.many {
            weather.worsen(*kind, &mut random);
        }
        let calm = Calm::draw(&mut random);
        let setup = Setup {
            shards: random.between(1, 3) as u32,
            heartbeat_ms: 100,
            election_ms: 750,
            snapshot_entries: random.between(100, 500),
            log_bytes_max: random.between(4_000, 60_000),
        };
        let max_payload = draw_max_payload(&mut random);
        let jumps = weather.interval(Fault::ClockJump).is_some();
        let nodes_behind_ms = if jumps { JUMP_MS_MAX } else { 0 } + WALL_OFF_MS_MAX;
        let mut env = Env {
            timeline: Timeline::default(),
            random: random.fork(),
            weather,
            calm,
            counts: Counts::default(),
            trace: Trace::new(options.trace),
            connections: BTreeMap::new(),
            starts: BTreeMap::new(),
            links_cut: BTreeMap::new(),
            direct_cut: BTreeMap::new(),
            direct: BTreeMap::new(),
            direct_number: 0,
            takes_links: random.below(4) != 0,
            heard: BTreeMap::new(),
            heard_by_key: BTreeMap::new(),
            answers_from: LED_US,
            forgotten: BTreeSet::new(),
            frames_sent: 0,
            link: Rc::new(Link::new()),
            max_payload,
            forwards_sent: 0,
            links_last: BTreeMap::new(),
            links_slow_us: 0,
            mapped: random.below(2) == 0,
            known_versions: BTreeMap::new(),
            calls: Calls::default(),
            hits: HitsAsked::default(),
            only: options.only.clone(),
            violations: Vec::new(),
            full_inboxes: BTreeSet::new(),
            slow_disks: BTreeMap::new(),
            builds: Builds::default(),
            downloads: BTreeMap::new(),
            full_disks: BTreeMap::new(),
            client_clocks: Vec::new(),
            clients_stalled: BTreeMap::new(),
            nodes_behind_ms,
            steps: 0,
        };
        env.note(format_args!("seed {seed}: {setup:?}, {calm:?}"));
        let drifts = random.below(2) == 0;
        let nodes = FIRST_NODES.iter().map(|id| {
            let clock = Clock::draw(&mut random, drifts);
            let disk = Disk::new(
                Files::default(),
                setup.log_bytes_max,
                setup.draw_loops(&mut random),
            );
            (*id, Node::new(*id, Some(*id), clock, disk))
        });
        let nodes = nodes.collect();
        if drifts {
            env.counts.add(Fault::ClockDrift);
        }
        let clients = Clients::new(&mut env, &mut random, &setup);
        let ill = Ill::draw(&mut random);
        World {
            env,
            nodes,
            checks: Checks::new(&setup),
            setup,
            clients,
            operator: Operator::new(),
            restorer: Restorer::default(),
            machines: BTreeMap::new(),
            lost: None,
            drifts,
            ill,
            healed: false,
        }
    }

    fn run(&mut self) {
        for node in FIRST_NODES {
            let delay = self.env.random.below(300_000);
            self.env.timeline.after(delay, Event::StartNode { node });
        }
        for kind in Fault::ALL {
            if let Some(interval) = self.env.weather.interval(*kind) {
                let first = WARM_UP_US + self.env.random.below(interval);
                self.env.timeline.at(first, Event::FaultBegins(*kind));
            }
        }
        self.env.timeline.at(WARM_UP_US, Event::OperatorActs);
        self.run_until(FAULTS_US);
        self.heal();
        let (decided, entries) = (self.env.calls.decided, self.checks.committed_through());
        self.run_until(LED_US);
        self.is_led();
        self.run_until(SETTLED_US);
        self.recover();
        let before = self.checks.traffic(&self.env);
        self.run_until(CONVERGED_US);
        let committed = self.checks.committed_through();
        self.run_until(FAULTS_US + HEALED_US);
        let after = self.checks.traffic(&self.env);
        self.is_led();
        self.checks.progress = match self.checks.committed_through() == entries {
            true => 0,
            false => self.env.calls.decided - decided,
        };
        if self.env.violations.is_empty() {
            let env = &mut self.env;
            let quiet_us = FAULTS_US + HEALED_US - SETTLED_US;
            let nodes = self.checks.members().nodes.len() as u64;
            let size = (nodes, u64::from(self.setup.shards));
            liveness::no_storm(env, &before, &after, size, quiet_us);
            let gone = self.ill.filter(|(_, ill)| *ill == Ill::Gone);
            let gone = gone.map(|(id, _)| id);
            let members = self.checks.members();
            let there = members.nodes.keys().filter(|id| gone != Some(**id));
            let there: Vec<&Node> = there.filter_map(|id| self.nodes.get(id)).collect();
            if let Some(lost) = self
                .lost
                .filter(|lost| members.nodes.contains_key(&lost.id))
            {
                let what =
                    format!("the operator could not replace the node with a lost disk: {lost:?}");
                env.violated("L3", what);
            }
            liveness::all_converged(env, &there, &committed);
            self.checks.at_end(env, &there);
        }
    }

    /// L1: each shard has a leader, now or after a hand-over.
    fn is_led(&mut self) {
        // A leader that has just lost power takes longer to replace.
        let restarts = matches!(self.ill, Some((_, Ill::Restarts)));
        if restarts && self.env.timeline.now() < SETTLED_US {
            return;
        }
        if self.checks.unled(self.nodes.values()).is_some() {
            self.run_until(self.env.timeline.now() + HAND_OVER_US);
        }
        if let Some(id) = self.checks.unled(self.nodes.values()) {
            let what = format!("shard {id} has no leader after everything was healed");
            self.env.violated("L1", what);
        }
    }

    fn is_stalled(&self) -> bool {
        self.checks.progress < PROGRESS_MIN
    }

    pub(crate) fn run_until(&mut self, until: Time) {
        while self.env.violations.is_empty()
            && let Some(event) = self.env.timeline.next(until)
        {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        let event = match self.defer(event) {
            Some(event) => event,
            None => return,
        };
        let env = &mut self.env;
        match event {
            Event::Process {
                node,
                start,
                at,
                what,
            } => self.process(node, start, at, what),
            Event::Frame { to, sent, part } => {
                if let Some(node) = self.nodes.get_mut(&to) {
                    node.part(env, &sent, part);
                }
            }
            Event::DirectFrame { way, start, sent } => {
                if let Some(node) = self.nodes.get_mut(&way.to) {
                    node.direct_frame(env, way, start, &sent);
                }
            }
            Event::LinkWord { way, taken } => self.link_word(way, taken),
            Event::ReadByNode { of, number } => {
                let read = env.readable(of, number);
                if let Some(node) = self.nodes.get_mut(&of.node) {
                    node.read(env, of.index, read);
                }
            }
            Event::ReadByServer { of, number } => env.read_by_server(of, number),
            Event::SubscriptionChange {
                of,
                number,
                id,
                add,
            } => env.change_subscription(of, number, id, add),
            Event::Connect { of } => self.connect(of),
            Event::NoticesClosed { of } => {
                let number = env.connection_number(of);
                if !env.is_open(of, number) {
                    self.cut_service(of);
                }
            }
            Event::LoopGoesOn { of } => self.loop_goes_on(of),
            Event::StartNode { node } => self.start_node(node),
            Event::Asks { disk_id } => self.asks(disk_id),
            Event::ToAll { subject, payload } => self.give_to_all(&subject, &payload),
            Event::Heard {
                to,
                subject,
                payload,
            } => self.heard(to, &subject, &payload),
            Event::Founds { node, start } => self.founds(node, start),
            Event::OperatorActs => self.operator_acts(),
            Event::RestorerActs => self.restorer_acts(),
            Event::RollBack { node, copy } => self.roll_back(node, *copy),
            Event::Resume { node, start } => self.resume(node, start),
            Event::RequestAtServer { call, attempt } => env.request_at_server(call, attempt),
            Event::ReadByClient {
                call,
                attempt,
                answer,
            } => self.attempt_ends(call, attempt, *answer),
            Event::AttemptTimesOut { call, attempt } => {
                self.attempt_ends(call, attempt, Err(NotAnswered::TimedOut));
            }
            Event::CallRepeats { call } => env.attempt(call),
            Event::Client { client } => self.clients.next(env, client),
            Event::Relapse { node } => self.relapse(node),
            Event::FaultBegins(kind) => self.fault_begins(kind),
            Event::FaultEnds(lasting) => self.fault_ends(lasting),
        }
    }

    fn process(&mut self, id: NodeId, start: u64, at: usize, what: Process) {
        let env = &mut self.env;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.running.as_ref().is_none_or(|it| it.start != start) {
            return;
        }
        match what {
            Process::Turn { planned } => {
                let Some(outputs) = node.turn(env, at, planned) else {
                    return;
                };
                self.checks.after_turn(env, node, at, &outputs);
                if !outputs.is_empty() && env.strikes(Fault::PauseMidTurn) {
                    node.process_event(env, at, 0, Process::CarryOut(outputs));
                    self.pause(id);
                } else {
                    node.carry_out(env, at, outputs);
                }
                self.lost_takes_no_part(id);
            }
            Process::CarryOut(outputs) => node.carry_out(env, at, outputs),
            Process::Crosses(input) => node.push(env, at, *input),
            Process::Probe => node.probe(env, at),
            Process::Witness => node.witness(env),
            Process::Questions => node.questions(env),
            Process::Asked(asked) => self.asked(id, asked),
            Process::Witnessed(asked, reply) => node.witnessed(env, asked, reply),
            Process::Proof(input) => node.push(env, 0, *input),
            Process::OpenLink { to } => self.open_link(id, to),
            Process::LookAtLink(way) => node.looks_at_link(env, way),
            Process::SayTaken(way) => node.say_taken(env, way),
            Process::Written(written) => node.written(env, at, written),
            Process::MakeSnapshot {
                shard,
                index,
                members,
            } => node.make_snapshot(env, shard, index, members),
            Process::Purge => node.purge(env),
            Process::LearnMaxPayload => node.learn_max_payload(env),
            Process::Transfer(job) => node.transfer(env, *job),
            Process::TakeRequests(subscription) => node.take_requests(env, at, subscription),
            Process::Drained => node.drained(env, at),
            Process::RequestTimesOut(number) => node.request_times_out(env, at, number),
            Process::GatherDue => node.gather_due(env, at),
        }
    }

    pub(crate) fn start_node(&mut self, id: NodeId) {
        if self.renumber(id) {
            return;
        }
        let gone = self.healed && self.ill == Some((id, Ill::Gone));
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.running.is_some() || node.founds.is_some() || node.removed || gone {
            return;
        }
        self.env.counts.add(Fault::Start);
        let Some(identity) = node.count_start(&mut self.env, &self.setup) else {
            return;
        };
        match node.disk.is_empty() {
            true => node.found(&mut self.env, identity),
            false => self.begin_node(id, identity, None),
        }
    }

    fn attempt_ends(&mut self, call: usize, attempt: usize, how: Result<Answer, NotAnswered>) {
        let call_ended = self.env.attempt_ends(call, attempt, how);
        self.checks.attempt_ended(&mut self.env, call, attempt);
        if !call_ended {
            return;
        }
        self.checks.call_ended(&mut self.env, call);
        let call_of = self.env.calls.all.get(call);
        match call_of.and_then(|it| Some((it.client, it.ended.clone()?.1))) {
            Some((OPERATOR, ended)) => self.operator_called(&ended),
            Some((RESTORER, ended)) => self.restorer_called(&ended),
            _ => self.clients.call_ended(&mut self.env, call),
        }
    }
}
