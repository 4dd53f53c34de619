//! How a node takes requests: the connection, the queues of its subscriptions and the tasks that read them. All rules
//! are in `front`.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::refusals::late;
use nowserving_engine::{
    Delivery, ForwardId, ForwardResult, ForwardTry, Inbox, Input, Outcome, RelayedAnswer, ReplyTo,
    Request, Subscription, Via,
};
use nowserving_front::forward;
use nowserving_front::probe::{Echoes, PROBE_EVERY_US, probe};
use nowserving_front::routes::{Route, no_room, route};
use nowserving_front::subscriptions::{Change, Reader, SubscriptionId, Subscriptions};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::{ApiError, ErrorReply};
use nowserving_protocol::header::{
    ERROR_CODE_HEADER, REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_HEADER,
};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::{Subjects, fnv1a32};
use nowserving_shard::requests::{Origin, RequestId};

use crate::calls::Asked;
use crate::env::Env;
use crate::faults::Fault;
use crate::nats::{Down, Message, PROBES, Up, node_inbox};
use crate::node::Node;
use crate::timeline::Time;
use crate::world::Process;

/// A subscription as its node's client library knows it.
#[derive(Debug)]
struct Local {
    subject: Rc<str>,
    group: Option<&'static str>,
    reader: Reader,
    closed: bool,
    queue: VecDeque<Message>,
    reading: bool,
}

/// What a node listens on.
#[derive(Debug)]
pub struct Service {
    subjects: Subjects,
    forward: Subjects,
    subscriptions: Subscriptions,
    open: BTreeMap<SubscriptionId, Local>,
    /// What the node has asked others, by the number of the request.
    asked: BTreeMap<u64, ForwardId>,
    /// Requests so far.
    requests: u64,
    echoes: Echoes,
    /// When the newest probe that came back was sent.
    probed: u64,
    /// Requests that were turned away so far.
    turned_away: u64,
}

impl Service {
    /// Of a node that has just started.
    #[must_use]
    pub fn new() -> Service {
        let subjects = Subjects::default();
        let forward = forward::subjects(&subjects).unwrap_or_default();
        Service {
            subscriptions: Subscriptions::new(subjects.clone(), forward.clone()),
            subjects,
            forward,
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
        open.map(|(id, it)| Up::Subscribe {
            id: *id,
            subject: it.subject.clone(),
            group: it.group,
        })
        .collect()
    }
}

impl Node {
    fn service(&mut self) -> Option<&mut Service> {
        self.running.as_mut().map(|running| &mut running.service)
    }

    /// Follows what the engine says about the node and a shard.
    pub fn subscribe(&mut self, env: &mut Env, shard: u32, subscription: Subscription) {
        self.change_subscriptions(env, |it, now| it.follow(shard, subscription, now));
    }

    /// While the node takes part it listens on what every node listens on.
    pub fn listen_plain(&mut self, env: &mut Env, on: bool) {
        self.change_subscriptions(env, |it, now| it.take_part(on, now));
    }

    /// Subscriptions were drained for long enough.
    pub fn drained(&mut self, env: &mut Env) {
        self.change_subscriptions(env, Subscriptions::drained);
    }

    fn change_subscriptions(
        &mut self,
        env: &mut Env,
        change: impl FnOnce(&mut Subscriptions, u64) -> Vec<Change>,
    ) {
        let now_us = self.clock.monotonic(env.timeline.now());
        let Some(service) = self.service() else {
            return;
        };
        let due = service.subscriptions.next_due();
        let changes = change(&mut service.subscriptions, now_us);
        let next = service.subscriptions.next_due();
        for change in changes {
            self.change(env, change);
        }
        if let Some(next) = next.filter(|_| next != due) {
            let delay = self.clock.when(next).saturating_sub(env.timeline.now());
            self.process_event(env, delay, Process::Drained);
        }
    }

    fn change(&mut self, env: &mut Env, change: Change) {
        let connected = env.is_connected(self.id);
        let Some(service) = self.service() else {
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
                let local = Local {
                    subject: subject.clone(),
                    group,
                    reader,
                    closed: false,
                    queue: VecDeque::new(),
                    reading: false,
                };
                service.open.insert(id, local);
                Up::Subscribe { id, subject, group }
            }
            Change::ForwardOnly(id) => {
                if let Some(local) = service.open.get_mut(&id) {
                    local.reader.forward_only();
                }
                return;
            }
            Change::Unsubscribe(id) => {
                if let Some(local) = service.open.get_mut(&id) {
                    local.closed = true;
                }
                Up::Unsubscribe(id)
            }
        };
        // While there is no connection it is only in the list.
        if connected {
            env.send_up(self.id, sent);
        }
    }

    /// What can be read from the connection now comes to those who read it.
    pub fn read(&mut self, env: &mut Env, down: Vec<Down>) {
        for what in down {
            match what {
                Down::Message {
                    subscription,
                    message,
                } => {
                    let delay = env.random.below(300);
                    let local = self.service().and_then(|it| it.open.get_mut(&subscription));
                    // The client library forgets a subscription when it sends the server word.
                    let Some(local) = local.filter(|it| !it.closed) else {
                        continue;
                    };
                    local.queue.push_back(message);
                    if !std::mem::replace(&mut local.reading, true) {
                        self.process_event(env, delay, Process::TakeRequests(subscription));
                    }
                }
                Down::Inbox { name, message } if &*name == PROBES => {
                    if let Some(message) = message {
                        self.echoed(env, &message.payload);
                    }
                }
                Down::Inbox { name, message } => {
                    let number = name.parse().ok();
                    let service = self.service();
                    if let Some(id) = service.zip(number).and_then(|(it, n)| it.asked.remove(&n)) {
                        let result = match message {
                            None => ForwardResult::NoResponders,
                            Some(it) => forward::answered(it.headers.to_vec(), it.payload),
                        };
                        self.push(env, Input::Forwarded { id, result });
                    }
                }
            }
        }
    }

    fn echoed(&mut self, env: &mut Env, payload: &[u8]) {
        let now_us = self.clock.monotonic(env.timeline.now());
        let Some(service) = self.service() else {
            return;
        };
        let Some(echo) = service.echoes.read(payload, service.turned_away, now_us) else {
            return;
        };
        let sent_at = echo.sent_at;
        service.probed = service.probed.max(sent_at);
        let locals = service.open.values_mut();
        for local in locals.filter(|local| local.queue.is_empty()) {
            local.reader.found_empty(sent_at);
        }
        if echo.is_proof {
            self.push(env, Input::ProbeEchoed { sent_at });
        }
    }

    /// The task of a subscription takes what lies in its queue.
    pub fn take_requests(&mut self, env: &mut Env, subscription: SubscriptionId) {
        let Some(service) = self.service() else {
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
            self.take(env, message, via, routed_after);
        }
    }

    fn take(&mut self, env: &mut Env, message: Message, via: Via, routed_after: u64) {
        let now_us = self.clock.monotonic(env.timeline.now());
        let Some(service) = self.service() else {
            return;
        };
        let names = (&*message.subject, message.reply.as_deref());
        match route(&service.subjects, names, via, (now_us, routed_after)) {
            Route::Engine => {}
            Route::Late => return self.refuse(env, &reply_to(&message, now_us), late()),
            Route::Drop | Route::PublicKeys | Route::ManyLines | Route::Limits => return,
        }
        let (node, subject, reply) = (self.id, &message.subject, &message.reply);
        env.note(format_args!(
            "n{node}: takes {subject} of {reply:?} by {via:?}, routed after {routed_after}"
        ));
        if let Some(input) = input(env, message, (via, routed_after), now_us) {
            self.hand_in(env, input);
        }
    }

    fn hand_in(&mut self, env: &mut Env, input: Input) {
        let node = self.id;
        if !env.full_inboxes.contains(&node) || env.random.below(3) == 0 {
            return self.push(env, input);
        }
        env.note(format_args!("n{node}: turns it away"));
        env.counts.add(Fault::RequestTurnedAway);
        if let Some(running) = &mut self.running {
            running.service.turned_away += 1;
            // The loop may see the inbox full, or not.
            running.crowded |= env.random.below(2) == 0;
        }
        if let Some((reply, error)) = no_room(input) {
            self.refuse(env, &reply, error);
        }
    }

    /// Sends the next probe, and plans the one after it.
    pub fn probe(&mut self, env: &mut Env) {
        if env.is_connected(self.id) {
            let sent_at = self.clock.monotonic(env.timeline.now());
            let inbox = node_inbox(self.id, self.starts, PROBES);
            self.publish(
                env,
                (inbox, None),
                Vec::new(),
                Bytes::copy_from_slice(&probe(sent_at)),
            );
        }
        self.process_event(env, PROBE_EVERY_US, Process::Probe);
    }

    /// Passes a request on to the leader, once.
    pub fn forward(&mut self, env: &mut Env, it: ForwardTry) {
        let (node, start) = (self.id, self.starts);
        if !env.calls.is_asked(&it.payload) {
            return env.violated(
                "S14",
                format!("node {node} passes on what nobody asked: {it:?}"),
            );
        }
        let Some(service) = self.service() else {
            return;
        };
        service.requests += 1;
        let number = service.requests;
        service.asked.insert(number, it.id);
        let subject = service.forward.leader(it.op, it.shard, &it.line);
        env.note(format_args!(
            "n{node}: passes on to {subject} as {}, {} ms",
            it.id.0, it.timeout_ms
        ));
        let headers = forward::headers(&it).into_iter();
        let headers = headers.map(|(name, value)| (name.to_owned(), value));
        let inbox = node_inbox(node, start, number);
        self.publish(
            env,
            (subject.into(), Some(inbox)),
            headers.collect(),
            it.payload,
        );
        let timeout_us: Time = it.timeout_ms * 1_000;
        self.process_event(env, timeout_us, Process::RequestTimesOut(number));
    }

    /// No answer came to what the node has asked.
    pub fn request_times_out(&mut self, env: &mut Env, number: u64) {
        if let Some(id) = self.service().and_then(|it| it.asked.remove(&number)) {
            let result = ForwardResult::TimedOut;
            self.push(env, Input::Forwarded { id, result });
        }
    }

    /// Answers a request.
    pub fn reply(&mut self, env: &mut Env, to: &ReplyTo, result: Result<Outcome, ApiError>) {
        match result {
            Ok(outcome) => {
                let payload = env.calls.keep_outcome(outcome);
                self.answer(env, to, Vec::new(), payload);
            }
            Err(error) => self.refuse(env, to, error),
        }
    }

    fn refuse(&mut self, env: &mut Env, to: &ReplyTo, error: ApiError) {
        let code = error.code.http().to_string();
        let headers = vec![(ERROR_CODE_HEADER.to_owned(), code)];
        let payload = encode(&ErrorReply::from(error), to.format);
        self.answer(env, to, headers, payload.into());
    }

    /// Passes an answer on as it came.
    pub fn relay(&mut self, env: &mut Env, to: &ReplyTo, answer: RelayedAnswer) {
        self.answer(env, to, answer.headers, answer.payload);
    }

    fn answer(
        &mut self,
        env: &mut Env,
        to: &ReplyTo,
        headers: Vec<(String, String)>,
        payload: Bytes,
    ) {
        if let Some(inbox) = to.inbox.subject() {
            env.note(format_args!("n{}: answers {inbox}", self.id));
            self.publish(env, (inbox.into(), None), headers, payload);
        }
    }

    fn publish(
        &mut self,
        env: &mut Env,
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
        env.send_up(self.id, Up::Publish(message));
    }
}

/// A message as the engine gets it.
fn input(
    env: &Env,
    message: Message,
    (via, routed_after): (Via, u64),
    now_us: u64,
) -> Option<Input> {
    let query = env.calls.parse(&message.payload)?;
    let reply = ReplyTo {
        op: query.op,
        ..reply_to(&message, now_us)
    };
    let ask = match query.what.ask(query.call) {
        Asked::Line(ask) => ask,
        Asked::Cluster(question) => return Some(Input::Cluster { question, reply }),
    };
    let header = |name| {
        let mut lines = message.headers.iter();
        lines.find(|line| line.0 == name).map(|it| it.1.as_str())
    };
    let timeout_ms: u64 = header(TIMEOUT_HEADER)?.parse().ok()?;
    // A tenth for the way back, but no more than 100 ms.
    let way_back_us = (timeout_ms * 100).min(100_000);
    let named = header(REQUEST_ID_HEADER).map(|_| RequestId {
        key: query.call as u128,
        origin: Origin::Client,
    });
    let forwarded = header(forward::REQUEST_KEY_HEADER).and_then(|it| forward::request_id(it).ok());
    // Of the payload and the inbox: two messages that are the same have the same.
    let direct = |inbox: &Rc<str>| RequestId {
        key: u128::from(fnv1a32(inbox.as_bytes())) << 64 | query.call as u128,
        origin: Origin::Direct,
    };
    let id = match via {
        _ if !ask.effect().is_write() => None,
        Via::Forwarded => named.or(forwarded),
        Via::Shard(_) => {
            named.or_else(|| Some(direct(message.reply.as_ref().unwrap_or(&message.subject))))
        }
        Via::Plain => named,
    };
    let mut words = message.subject.split('.');
    let shard = words.find(|word| *word == "shard").and(words.next());
    let request = Request {
        shard: shard.and_then(|it| it.parse().ok()).unwrap_or(query.shard),
        line: query.line.clone(),
        ask,
        deadline: now_us + timeout_ms * 1_000 - way_back_us,
        reply,
        id,
        sent_ms: header(SENT_MS_HEADER).and_then(|it| it.parse().ok()),
        note: None,
        payload: message.payload.clone(),
    };
    let delivery = Delivery {
        via,
        routed_after,
        forwarded_at: header(forward::SENT_AT_HEADER).and_then(|it| forward::sent_at(it).ok()),
        shared: header(forward::SHARED_HEADER).is_some(),
    };
    Some(Input::Request {
        request: Box::new(request),
        delivery,
    })
}

/// Where the answer to a message goes.
fn reply_to(message: &Message, now_us: u64) -> ReplyTo {
    ReplyTo {
        inbox: match &message.reply {
            Some(inbox) => Inbox::Subject((&**inbox).into()),
            None => Inbox::None,
        },
        format: Format::MsgPack,
        op: Operation::Unknown,
        pass: false,
        taken: now_us,
        trace: None,
    }
}
