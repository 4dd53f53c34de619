//! How a node takes requests: the connection, the queues of its subscriptions and the tasks that read them. All rules
//! are in `front`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use nowserving_engine::refusals::late;
use nowserving_engine::{
    ForwardId, ForwardResult, ForwardTry, Inbox, Input, Now, Outcome, RelayedAnswer, ReplyTo,
    Subscription, Via,
};
use nowserving_front::encode::{Encoder, error_headers};
use nowserving_front::forward;
use nowserving_front::gather::{Arrived, Config, Gather, NodeRequest, Output, Reply};
use nowserving_front::limits::KnownRules;
use nowserving_front::parse::{Parser, Reading, TIMEOUT_MAX_MS, reply_to};
use nowserving_front::probe::Echoes;
use nowserving_front::routes::{Route, no_room, route};
use nowserving_front::subscriptions::{Change, SubscriptionId, Subscriptions};
use nowserving_front::who::TrustRequestInfo;
use nowserving_limit::Rules;
use nowserving_line::LineName;
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::{ApiError, ErrorReply};
use nowserving_protocol::limits::NodeHits;
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::limits::RuleTexts;

use crate::calls::outcome_of;
use crate::disk::CLUSTER;
use crate::env::Env;
use crate::faults::Fault;
use crate::nats::{Down, LoopId, Message, NodeId, PROBES, Up, call_of, node_inbox};
use crate::node::Node;
use crate::timeline::Time;
use crate::world::Process;

use local::Local;

mod local;
mod probes;

/// The subscription on which other nodes ask for the hits that a node has counted; those for requests have other numbers.
const HITS: SubscriptionId = 0;

/// Who is told of the answer to a request of a node.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Engine(ForwardId),
    Gather(u64),
}

/// What a loop of a node listens on.
#[derive(Debug)]
pub struct Service {
    parser: Parser,
    /// Of rate limits, as far as it knows them.
    rules: Option<Arc<KnownRules>>,
    /// Requests for which it asks others.
    gather: Gather,
    gather_config: Config,
    /// The first loop tells what all of them have counted.
    tells_hits: bool,
    /// When it looks next what is due there.
    gathers_at: Option<u64>,
    subscriptions: Subscriptions,
    open: BTreeMap<SubscriptionId, Local>,
    /// What the loop has asked others, by the number of the request.
    asked: BTreeMap<u64, Asked>,
    /// Requests so far.
    requests: u64,
    echoes: Echoes,
    /// When the newest probe that came back was sent.
    probed: u64,
    /// Requests that were turned away so far.
    turned_away: u64,
}

impl Service {
    /// Of a loop of a node that has just started, in a cluster of so many shards.
    #[must_use]
    pub fn new(shards: u32, of: LoopId, seed: u64) -> Service {
        let trust = TrustRequestInfo(false);
        let parser = Parser::new(Subjects::default(), shards, trust);
        let parser = parser.unwrap_or_else(|_| unreachable!());
        let (subjects, forward) = (parser.subjects.clone(), parser.forward.clone());
        let gather_config = Config {
            subjects: subjects.clone(),
            forward: forward.clone(),
            shards,
            me: of.node,
            trust,
            seed: seed.into(),
            since_ms: 0,
        };
        Service {
            parser,
            rules: None,
            gather: Gather::new(gather_config.clone()),
            gather_config,
            gathers_at: None,
            tells_hits: of.index == 0,
            subscriptions: Subscriptions::new(subjects, forward),
            open: BTreeMap::new(),
            asked: BTreeMap::new(),
            requests: 0,
            echoes: Echoes::default(),
            probed: 0,
            turned_away: 0,
        }
    }

    /// Whether nothing lies in the queues of the subscriptions.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.open.values().all(|it| it.queue.is_empty())
    }

    /// All that is to be subscribed to on a new connection.
    #[must_use]
    pub fn all(&self) -> Vec<Up> {
        let open = self.open.iter().filter(|(_, it)| !it.closed);
        let open = open.map(|(id, it)| Up::Subscribe {
            id: *id,
            subject: it.subject.clone(),
            group: it.group,
        });
        let config = &self.gather_config;
        let hits = Up::Subscribe {
            id: HITS,
            subject: config.forward.limit_hits(config.me).into(),
            group: None,
        };
        let hits = Some(hits).filter(|_| self.tells_hits);
        open.chain(hits).collect()
    }
}

impl Node {
    fn service(&mut self, at: usize) -> Option<&mut Service> {
        Some(&mut self.of_loop(at)?.service)
    }

    /// Follows what the engine says about the node and a shard.
    pub fn subscribe(&mut self, env: &mut Env, at: usize, shard: u32, subscription: Subscription) {
        self.change_subscriptions(env, at, |it, now| it.follow(shard, subscription, now));
        self.gather(env, at, |it, now| it.follow([(shard, subscription)], now));
    }

    /// While the node takes part, its first loop listens on what every node listens on.
    pub fn listen_plain(&mut self, env: &mut Env, on: bool) {
        self.change_subscriptions(env, 0, |it, now| it.take_part(on, now));
    }

    /// Subscriptions were drained for long enough.
    pub fn drained(&mut self, env: &mut Env, at: usize) {
        self.change_subscriptions(env, at, Subscriptions::drained);
    }

    fn change_subscriptions(
        &mut self,
        env: &mut Env,
        at: usize,
        change: impl FnOnce(&mut Subscriptions, u64) -> Vec<Change>,
    ) {
        let now_us = self.clock.monotonic(env.timeline.now());
        let Some(service) = self.service(at) else {
            return;
        };
        let due = service.subscriptions.next_due();
        let changes = change(&mut service.subscriptions, now_us);
        let next = service.subscriptions.next_due();
        for change in changes {
            self.change(env, at, change);
        }
        if let Some(next) = next.filter(|_| next != due) {
            let delay = self.clock.when(next).saturating_sub(env.timeline.now());
            self.process_event(env, at, delay, Process::Drained);
        }
    }

    fn change(&mut self, env: &mut Env, at: usize, change: Change) {
        let connected = env.is_connected(self.loop_id(at));
        let Some(service) = self.service(at) else {
            return;
        };
        let sent = match change {
            Change::Subscribe {
                id,
                subject,
                group,
                reader,
            } => {
                let subject: Rc<str> = subject.into();
                let local = Local::new(subject.clone(), group, reader);
                service.open.insert(id, local);
                Up::Subscribe { id, subject, group }
            }
            Change::ForwardOnly(id) => {
                if let Some(local) = service.open.get_mut(&id) {
                    local.forward_only(env.timeline.now());
                }
                return;
            }
            Change::Unsubscribe(id) => {
                if let Some(local) = service.open.get_mut(&id) {
                    local.end(&service.gather_config, env.timeline.now());
                }
                Up::Unsubscribe(id)
            }
        };
        // While there is no connection it is only in the list.
        if connected {
            env.send_up(self.loop_id(at), sent);
        }
    }

    /// What can be read from the connection now comes to those who read it.
    pub fn read(&mut self, env: &mut Env, at: usize, down: Vec<Down>) {
        let node = self.id;
        for what in down {
            match what {
                Down::Message {
                    subscription: HITS,
                    message,
                } => self.tell_hits(env, at, message),
                Down::Message {
                    subscription,
                    message,
                } => {
                    let delay = env.random.below(300);
                    let local = self
                        .service(at)
                        .and_then(|it| it.open.get_mut(&subscription));
                    let Some(local) = local else {
                        continue;
                    };
                    // The client library forgets a subscription when it sends the server word.
                    if local.closed {
                        env.note(format_args!(
                            "n{node}: has ended its subscription, and drops {} of {:?}",
                            message.subject, message.reply
                        ));
                        env.forgotten
                            .extend(message.call.filter(|_| local.may_lose));
                        continue;
                    }
                    local.queue.push_back(message);
                    if !std::mem::replace(&mut local.reading, true) {
                        self.process_event(env, at, delay, Process::TakeRequests(subscription));
                    }
                }
                Down::Inbox { name, message } if &*name == PROBES => {
                    if let Some(message) = message {
                        self.echoed(env, at, &message.payload);
                    }
                }
                Down::Inbox { name, message } => {
                    let number = name.parse().ok();
                    let service = self.service(at);
                    if let Some(of) = service.zip(number).and_then(|(it, n)| it.asked.remove(&n)) {
                        let result = match message {
                            None => ForwardResult::NoResponders,
                            Some(it) => forward::answered(it.headers.to_vec(), it.payload),
                        };
                        self.answered(env, at, of, result);
                    }
                }
            }
        }
    }

    /// Another node asks how many hits this one has counted.
    fn tell_hits(&mut self, env: &mut Env, at: usize, message: Message) {
        let loops = self.running.iter().flat_map(|it| &it.loops);
        let hits = NodeHits::sum(loops.map(|it| it.service.gather.hits()));
        let hits = encode(&hits, Format::MsgPack);
        if let Some(inbox) = message.reply {
            self.publish(env, at, (inbox, None), Vec::new(), hits.into());
        }
    }

    /// The task of a subscription takes what lies in its queue.
    pub fn take_requests(&mut self, env: &mut Env, at: usize, subscription: SubscriptionId) {
        let Some(service) = self.service(at) else {
            return;
        };
        let probed = service.probed;
        let Some(local) = service.open.get_mut(&subscription) else {
            return;
        };
        local.reading = false;
        let (via, routed_after) = local.reader.next();
        let messages = std::mem::take(&mut local.queue);
        // Empty after the newest echo: what comes next was routed after its probe was sent.
        local.reader.found_empty(probed);
        for message in messages {
            self.take(env, at, message, via, routed_after);
        }
    }

    fn take(&mut self, env: &mut Env, at: usize, message: Message, via: Via, routed_after: u64) {
        let (node, now) = (self.id, self.clock.read(env.timeline.now()));
        let Some(service) = self.service(at) else {
            return;
        };
        let names = (&*message.subject, message.reply.as_deref());
        match route(&service.parser.subjects, names, via, (now.us, routed_after)) {
            Route::Engine => {}
            route @ (Route::ManyLines | Route::Limits) => {
                let subject = &message.subject;
                env.note(format_args!("n{node}: asks others for {subject}"));
                let call = message.call.and_then(|(call, _)| env.calls.all.get(call));
                if let Some(call) = call {
                    env.hits.taken(&call.query.what);
                }
                return self.gather_for(env, at, &message, route);
            }
            Route::Late => {
                let to = reply_to(&message.view(), now.us, None);
                return self.refuse(env, at, &to, late());
            }
            Route::Drop | Route::PublicKeys => return,
        }
        let (subject, reply) = (&message.subject, &message.reply);
        env.note(format_args!(
            "n{node}: takes {subject} of {reply:?} by {via:?}, routed after {routed_after}"
        ));
        let reading = Reading {
            via,
            routed_after,
            now,
            trace: None,
            keys: &env.link.keys,
            rules: service.rules.as_deref(),
        };
        let parsed = service.parser.parse(&message.view(), reading);
        match parsed {
            Ok(input) => self.hand_in(env, at, input),
            Err(refused) => self.refuse(env, at, &refused.reply, refused.error),
        }
    }

    fn gather_for(&mut self, env: &mut Env, at: usize, message: &Message, route: Route) {
        let (now, message) = (self.clock.read(env.timeline.now()), message.view());
        let Some(service) = self.service(at) else {
            return;
        };
        let arrived = Arrived::of(&service.gather_config, &message, route, now, None);
        let admitted = service.gather.admit(arrived);
        let read = admitted.map(|it| it.read(&service.gather_config, &message, now));
        self.gather(env, at, |it, now| {
            if let Some(read) = read {
                it.begin(read, now);
            }
        });
    }

    /// The engine says which rules of rate limits there are.
    pub fn learn_rules(&mut self, env: &mut Env, texts: &RuleTexts) {
        let Some(service) = self.service(0) else {
            return;
        };
        let before = service.rules.as_deref();
        let known = KnownRules::of(texts, before, |_, text| match Rules::parse(text) {
            Ok(rules) => rules,
            Err(errors) => {
                env.violated("S20", format!("rules are not understood: {errors}"));
                Rules::default()
            }
        });
        let known = Arc::new(known);
        for at in 0..self.loops() {
            if let Some(service) = self.service(at) {
                service.rules = Some(known.clone());
            }
            let known = known.clone();
            self.gather(env, at, |it, now| it.learn(known, now));
        }
    }

    fn hand_in(&mut self, env: &mut Env, at: usize, input: Input) {
        match self.is_turned_away(env, at) {
            false => self.push(env, at, input),
            true => {
                if let Some((reply, error)) = no_room(input) {
                    self.refuse(env, at, &reply, error);
                }
            }
        }
    }

    /// Whether the loop's inbox has no room for a request.
    fn is_turned_away(&mut self, env: &mut Env, at: usize) -> bool {
        let node = self.id;
        if !env.full_inboxes.contains(&node) || env.random.below(3) == 0 {
            return false;
        }
        env.note(format_args!("n{node}: turns it away"));
        env.counts.add(Fault::RequestTurnedAway);
        if let Some(it) = self.of_loop(at) {
            it.service.turned_away += 1;
            // The loop may see the inbox full, or not.
            it.crowded |= env.random.below(2) == 0;
        }
        true
    }

    /// Passes a request on to the leader, once.
    pub fn forward(&mut self, env: &mut Env, at: usize, it: ForwardTry) {
        let node = self.id;
        if !env.calls.is_asked(&it.payload) {
            return env.violated(
                "S14",
                format!("node {node} passes on what nobody asked: {it:?}"),
            );
        }
        let Some(service) = self.service(at) else {
            return;
        };
        let subject = service.parser.forward.leader(it.op, it.shard, &it.line);
        env.note(format_args!(
            "n{node}: passes on to {subject} as {}, {} ms",
            it.id.0, it.timeout_ms
        ));
        let headers = forward::headers(&it).into_iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), value));
        let (of, to) = (Asked::Engine(it.id), subject.into());
        let number = self.ask(env, at, of, to, headers.collect(), it.payload);
        let timeout_us: Time = it.timeout_ms * 1_000;
        self.process_event(env, at, timeout_us, Process::RequestTimesOut(number));
    }

    /// Asks other nodes; the number of the request.
    fn ask(
        &mut self,
        env: &mut Env,
        at: usize,
        of: Asked,
        subject: Rc<str>,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) -> u64 {
        let (asker, start) = (self.loop_id(at), self.starts);
        let Some(service) = self.service(at) else {
            return 0;
        };
        service.requests += 1;
        let number = service.requests;
        service.asked.insert(number, of);
        let inbox = node_inbox(asker, start, number);
        self.publish(env, at, (subject, Some(inbox)), headers, payload);
        number
    }

    fn answered(&mut self, env: &mut Env, at: usize, of: Asked, result: ForwardResult) {
        match of {
            Asked::Engine(id) => self.push(env, at, Input::Forwarded { id, result }),
            Asked::Gather(id) => self.gather(env, at, |it, now| it.answered(id, result, now)),
        }
    }

    /// Other nodes are in the cluster.
    pub fn learn_nodes(&mut self, nodes: &BTreeSet<NodeId>) {
        for it in self.running.iter_mut().flat_map(|it| &mut it.loops) {
            it.service.gather.nodes(nodes.clone());
        }
    }

    /// What is due for requests for which the node asks others.
    pub fn gather_due(&mut self, env: &mut Env, at: usize) {
        if let Some(service) = self.service(at) {
            service.gathers_at = None;
        }
        self.gather(env, at, Gather::tick);
    }

    /// A node that ends waits for the answers to those requests. Here they end at once, as at their deadlines.
    pub fn end_gathering(&mut self, env: &mut Env) {
        for at in 0..self.loops() {
            self.gather(env, at, |gather, now| {
                let us = now.us + 1_000 * TIMEOUT_MAX_MS;
                gather.stop();
                gather.tick(Now { us, ..now });
            });
        }
    }

    /// Takes a step with those requests, and does what comes of it.
    fn gather(&mut self, env: &mut Env, at: usize, step: impl FnOnce(&mut Gather, Now)) {
        let now = self.clock.read(env.timeline.now());
        let Some(service) = self.service(at) else {
            return;
        };
        step(&mut service.gather, now);
        let mut outputs = VecDeque::from(service.gather.take_outputs());
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Request(request) => self.ask_for_client(env, at, request),
                Output::Engine { id, input } => {
                    if !self.is_turned_away(env, at) {
                        self.push(env, at, input);
                    } else if let Some(service) = self.service(at) {
                        service.gather.not_taken(id, now);
                        outputs.extend(service.gather.take_outputs());
                    }
                }
                Output::Reply { to, result } => self.reply_for_others(env, at, &to, result),
            }
        }
        let Some(service) = self.service(at) else {
            return;
        };
        let due = service.gather.next_due();
        let due = due.filter(|due| service.gathers_at.is_none_or(|at| *due < at));
        if let Some(due) = due {
            service.gathers_at = Some(due);
            let delay = self.clock.when(due).saturating_sub(env.timeline.now());
            self.process_event(env, at, delay, Process::GatherDue);
        }
    }

    fn ask_for_client(&mut self, env: &mut Env, at: usize, request: NodeRequest) {
        let (node, subject) = (self.id, &request.subject);
        env.note(format_args!("n{node}: asks {subject}"));
        env.calls.keep_asked(request.payload.clone());
        let headers = request.headers.into_iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), value));
        let (of, to) = (Asked::Gather(request.id), request.subject.into());
        self.ask(env, at, of, to, headers.collect(), request.payload);
    }

    /// An answer that was made of those of others.
    fn reply_for_others(
        &mut self,
        env: &mut Env,
        at: usize,
        to: &ReplyTo,
        result: Result<Reply, ApiError>,
    ) {
        let read = result.and_then(|reply| {
            let bytes = reply.encode(to.format);
            let outcome = outcome_of(to.op, &bytes)?;
            Ok((Bytes::from(bytes), outcome))
        });
        match read {
            Ok((payload, outcome)) => {
                let unlimited = to.op == Operation::LimitCheck
                    && matches!(&outcome, Outcome::LimitPart(part) if part.verdicts.is_empty());
                let call = to.inbox.subject().and_then(call_of);
                let call = call.and_then(|call| env.calls.all.get(call));
                if unlimited && call.is_some_and(|it| self.knows_rules(&it.query.line)) {
                    let what = format!("node {} knows rules, and limits nothing", self.id);
                    env.violated("S20", what);
                }
                env.calls.keep_outcome(payload.clone(), outcome);
                self.answer(env, at, to, Vec::new(), payload);
            }
            Err(error) => self.refuse(env, at, to, error),
        }
    }

    fn knows_rules(&self, domain: &LineName) -> bool {
        let rules = self
            .running
            .as_ref()
            .and_then(|it| it.loops.first()?.service.rules.as_deref());
        rules.is_some_and(|rules| rules.domains.contains_key(domain))
    }

    /// No answer came to what the node has asked.
    pub fn request_times_out(&mut self, env: &mut Env, at: usize, number: u64) {
        if let Some(of) = self.service(at).and_then(|it| it.asked.remove(&number)) {
            self.answered(env, at, of, ForwardResult::TimedOut);
        }
    }

    /// Answers a request.
    pub fn reply(
        &mut self,
        env: &mut Env,
        at: usize,
        to: &ReplyTo,
        result: Result<Outcome, ApiError>,
    ) {
        if let Inbox::Task(id) = to.inbox {
            return self.gather(env, at, |it, now| it.own_answered(id, result, now));
        }
        match result {
            Ok(outcome) => {
                let payload = self.encoded(env, to, &outcome);
                env.calls.keep_outcome(payload.clone(), outcome);
                self.answer(env, at, to, Vec::new(), payload);
            }
            Err(error) => self.refuse(env, at, to, error),
        }
    }

    fn encoded(&self, env: &Env, to: &ReplyTo, outcome: &Outcome) -> Bytes {
        let encoder = Encoder {
            subjects: &Subjects::default(),
            keys: &env.link.keys,
            cluster: CLUSTER,
            bytes_max: self.running.as_ref().map_or(0, |it| it.max_payload),
        };
        match outcome {
            // Their bytes are not looked at.
            Outcome::Backup { .. } | Outcome::BackupChunk { .. } => vec![0].into(),
            _ => encoder.answer(outcome.clone(), to).into(),
        }
    }

    fn refuse(&mut self, env: &mut Env, at: usize, to: &ReplyTo, error: ApiError) {
        let headers = error_headers(&error).into_iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), value));
        let payload = encode(&ErrorReply::from(error), to.format);
        self.answer(env, at, to, headers.collect(), payload.into());
    }

    /// Passes an answer on as it came.
    pub fn relay(&mut self, env: &mut Env, at: usize, to: &ReplyTo, answer: RelayedAnswer) {
        self.answer(env, at, to, answer.headers, answer.payload);
    }

    fn answer(
        &mut self,
        env: &mut Env,
        at: usize,
        to: &ReplyTo,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) {
        if let Some(inbox) = to.inbox.subject() {
            env.note(format_args!("n{}: answers {inbox}", self.id));
            self.publish(env, at, (inbox.into(), None), headers, payload);
        }
    }

    fn publish(
        &mut self,
        env: &mut Env,
        at: usize,
        (subject, reply): (Rc<str>, Option<Rc<str>>),
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) {
        let message = Message {
            subject,
            reply,
            headers: headers.into(),
            payload,
            call: None,
        };
        env.send_up(self.loop_id(at), Up::Publish(message));
    }
}
