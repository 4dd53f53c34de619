//! How a node takes requests: what it listens on, in the order in which it changes that, what it reads,
//! and what it sends. Decides nothing: the engine does.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use nowserving_engine::refusals::overloaded;
use nowserving_engine::{
    Ask, Delivery, ForwardId, ForwardResult, ForwardTry, Inbox, Input, RelayedAnswer, ReplyTo,
    Request, ShardDelivery, Subscription, Via, turned_away,
};
use nowserving_protocol::codec::Format;
use nowserving_shard::requests::{Origin, RequestId};

use crate::calls::{Answer, Asked};
use crate::env::Env;
use crate::faults::Fault;
use crate::nats::{Down, Message, ReplyPath, Subject, SubscriptionId, Up};
use crate::node::Node;
use crate::timeline::Time;
use crate::world::Process;

/// For how long a node goes on listening as what it was.
const DRAIN_US: Time = 400_000;
/// Between two probes.
const PROBE_US: Time = 50_000;

/// A subscription as its node knows it.
#[derive(Debug)]
struct Local {
    subject: Subject,
    group: bool,
    shard_delivery: ShardDelivery,
    closed: bool,
    queue: VecDeque<Message>,
    reading: bool,
    /// What comes now was routed after this.
    routed_after: u64,
}

/// What a node listens on.
#[derive(Debug, Default)]
pub struct Service {
    subscriptions: BTreeMap<SubscriptionId, Local>,
    plain: Option<SubscriptionId>,
    front: BTreeMap<u32, SubscriptionId>,
    forward: BTreeMap<u32, SubscriptionId>,
    /// The tries under way.
    forwards: BTreeMap<ForwardId, u64>,
    /// Tries so far.
    tries: u64,
    /// When the newest probe that came back was sent.
    probed: u64,
    /// Requests were turned away since then.
    turned_away: bool,
}

impl Service {
    /// Whether nothing lies in the queues of the subscriptions.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.subscriptions.values().all(|it| it.queue.is_empty())
    }

    /// All that is to be subscribed to on a new connection.
    #[must_use]
    pub fn all(&self) -> Vec<Up> {
        let open = self.subscriptions.iter().filter(|(_, it)| !it.closed);
        open.map(|(id, it)| Up::Subscribe {
            id: *id,
            subject: it.subject,
            group: it.group,
        })
        .collect()
    }
}

impl Node {
    fn service(&mut self) -> Option<&mut Service> {
        self.running.as_mut().map(|running| &mut running.service)
    }

    fn open(
        &mut self,
        env: &mut Env,
        subject: Subject,
        group: bool,
        shard_delivery: ShardDelivery,
    ) -> SubscriptionId {
        env.subscriptions += 1;
        let id = env.subscriptions;
        let routed_after = self.clock.monotonic(env.timeline.now());
        if let Some(service) = self.service() {
            let local = Local {
                subject,
                group,
                shard_delivery,
                closed: false,
                queue: VecDeque::new(),
                reading: false,
                routed_after,
            };
            service.subscriptions.insert(id, local);
        }
        // While there is no connection it is only in the list.
        if env.is_connected(self.id) {
            env.send_up(self.id, Up::Subscribe { id, subject, group });
        }
        id
    }

    fn close(&mut self, env: &mut Env, id: SubscriptionId) {
        if let Some(local) = self.service().and_then(|it| it.subscriptions.get_mut(&id)) {
            local.closed = true;
            if env.is_connected(self.id) {
                env.send_up(self.id, Up::Unsubscribe(id));
            }
        }
    }

    /// A subscription that went on for a while ends.
    pub fn drained(&mut self, env: &mut Env, id: SubscriptionId) {
        self.close(env, id);
    }

    /// While the node takes part it listens on what every node listens on.
    pub fn listen_plain(&mut self, env: &mut Env, on: bool) {
        let Some(service) = self.service() else {
            return;
        };
        match (service.plain.take(), on) {
            (None, true) => {
                let id = self.open(env, Subject::Plain, true, ShardDelivery::Leaderless);
                if let Some(service) = self.service() {
                    service.plain = Some(id);
                }
            }
            (Some(id), false) => self.close(env, id),
            (plain, _) => service.plain = plain,
        }
    }

    /// Changes how the node listens on a shard's subjects: first for the new role, then away from the
    /// old one, so that somebody listens at every moment.
    pub fn subscribe(&mut self, env: &mut Env, shard: u32, subscription: Subscription) {
        let Some(service) = self.service() else {
            return;
        };
        let old = service.front.remove(&shard);
        let old_forward = service.forward.remove(&shard);
        if let Some(local) = old.and_then(|id| service.subscriptions.get_mut(&id)) {
            local.shard_delivery = ShardDelivery::Draining;
        }
        if let Some(id) = old_forward {
            self.close(env, id);
        }
        let front = Subject::Shard(shard);
        let new = match subscription {
            Subscription::No => None,
            Subscription::Leader { .. } => {
                let subject = Subject::Forward(shard);
                let forward = self.open(env, subject, false, ShardDelivery::Leader);
                if let Some(service) = self.service() {
                    service.forward.insert(shard, forward);
                }
                Some(self.open(env, front, false, ShardDelivery::Leader))
            }
            Subscription::Leaderless => {
                Some(self.open(env, front, true, ShardDelivery::Leaderless))
            }
        };
        if let (Some(id), Some(service)) = (new, self.service()) {
            service.front.insert(shard, id);
        }
        if let Some(id) = old {
            self.process_event(env, DRAIN_US, Process::Drained(id));
        }
    }

    /// What can be read from the connection now comes to those who read it.
    pub fn read(&mut self, env: &mut Env, down: Vec<Down>) {
        for what in down {
            match what {
                Down::Request {
                    subscription,
                    message,
                } => {
                    let delay = env.random.below(300);
                    let local = self
                        .service()
                        .and_then(|it| it.subscriptions.get_mut(&subscription));
                    let Some(local) = local else { continue };
                    local.queue.push_back(message);
                    if !std::mem::replace(&mut local.reading, true) {
                        self.process_event(env, delay, Process::TakeRequests(subscription));
                    }
                }
                Down::Echo { sent_at } => {
                    if let Some(service) = self.service() {
                        service.probed = service.probed.max(sent_at);
                        let locals = service.subscriptions.values_mut();
                        for local in locals.filter(|local| local.queue.is_empty()) {
                            local.routed_after = local.routed_after.max(sent_at);
                        }
                        // It came, but requests before it were not heard.
                        if std::mem::take(&mut service.turned_away) {
                            continue;
                        }
                    }
                    self.push(env, Input::ProbeEchoed { sent_at });
                }
                Down::Forwarded {
                    id,
                    attempt,
                    answer,
                } => {
                    let Some(service) = self.service() else {
                        continue;
                    };
                    if service.forwards.get(&id) == Some(&attempt) {
                        service.forwards.remove(&id);
                        let result = forward_result(env, answer);
                        self.push(env, Input::Forwarded { id, result });
                    }
                }
            }
        }
    }

    /// The task of a subscription takes what lies in its queue.
    pub fn take_requests(&mut self, env: &mut Env, subscription: SubscriptionId) {
        let now_us = self.clock.monotonic(env.timeline.now());
        let Some(service) = self.service() else {
            return;
        };
        let probed = service.probed;
        let Some(local) = service.subscriptions.get_mut(&subscription) else {
            return;
        };
        local.reading = false;
        let via = match local.subject {
            Subject::Plain => Via::Plain,
            Subject::Shard(_) => Via::Shard(local.shard_delivery),
            Subject::Forward(_) => Via::Forwarded,
        };
        // Empty after the newest echo: what comes next was routed after its probe was sent.
        let next = local.routed_after.max(probed);
        let routed_after = std::mem::replace(&mut local.routed_after, next);
        for message in std::mem::take(&mut local.queue) {
            let delivery = Delivery {
                via,
                routed_after,
                forwarded_at: message.forwarded_at,
                shared: message.shared,
            };
            let (op, line) = (message.query.op, &message.query.line);
            let (node, reply) = (self.id, message.reply);
            let to = reply_to(&message, now_us);
            if env.full_inboxes.contains(&node) && env.random.below(3) > 0 {
                env.note(format_args!(
                    "n{node}: turns {op} {line} of {reply:?} by {via:?} away"
                ));
                env.counts.add(Fault::RequestTurnedAway);
                if let Some(running) = &mut self.running {
                    running.service.turned_away = true;
                    // The loop may see the inbox full, or not.
                    running.crowded |= env.random.below(2) == 0;
                }
                let error = match message.query.what.ask(message.query.call) {
                    Asked::Line(ask) => turned_away(via, ask.effect(), false),
                    Asked::Cluster(_) => overloaded(),
                };
                self.reply(env, &to, Rc::new(Err(error)));
                continue;
            }
            env.note(format_args!(
                "n{node}: takes {op} {line} of {reply:?} by {via:?}, routed after {routed_after}"
            ));
            let input = match message.query.what.ask(message.query.call) {
                Asked::Line(ask) => Input::Request {
                    request: Box::new(request(message, ask, to)),
                    delivery,
                },
                Asked::Cluster(question) => Input::Cluster {
                    question,
                    reply: to,
                },
            };
            self.push(env, input);
        }
    }

    /// Sends the next probe, and plans the one after it.
    pub fn probe(&mut self, env: &mut Env) {
        let sent_at = self.clock.monotonic(env.timeline.now());
        if env.is_connected(self.id) {
            env.send_up(self.id, Up::Probe { sent_at });
        }
        self.process_event(env, PROBE_US, Process::Probe);
    }

    /// Passes a request on to the leader, once.
    pub fn forward(&mut self, env: &mut Env, forward: ForwardTry) {
        let (node, start) = (self.id, self.starts);
        let query = env.calls.parse(&forward.payload);
        let Some(query) = query else {
            return env.violated(
                "S14",
                format!("node {node} passes on what nobody asked: {forward:?}"),
            );
        };
        let Some(service) = self.service() else {
            return;
        };
        service.tries += 1;
        let attempt = service.tries;
        service.forwards.insert(forward.id, attempt);
        env.note(format_args!(
            "n{node}: passes on {} {} to the leader of shard {} as {}, {} ms",
            forward.op, forward.line, forward.shard, forward.id.0, forward.timeout_ms
        ));
        let message = Message {
            subject: Subject::Forward(forward.shard),
            query,
            payload: forward.payload,
            timeout_ms: forward.timeout_ms,
            sent_ms: None,
            id: forward.request_id,
            forwarded_at: forward.sent_at,
            shared: forward.shared,
            reply: ReplyPath::Node {
                node,
                start,
                id: forward.id,
                attempt,
            },
        };
        env.send_up(node, Up::Request(message));
        let timeout = Process::ForwardTimesOut(forward.id, attempt);
        self.process_event(env, forward.timeout_ms * 1_000, timeout);
    }

    /// No answer came to what was passed on.
    pub fn forward_times_out(&mut self, env: &mut Env, id: ForwardId, attempt: u64) {
        let Some(service) = self.service() else {
            return;
        };
        if service.forwards.get(&id) == Some(&attempt) {
            service.forwards.remove(&id);
            let result = ForwardResult::TimedOut;
            self.push(env, Input::Forwarded { id, result });
        }
    }

    /// Answers a request.
    pub fn reply(&mut self, env: &mut Env, to: &ReplyTo, answer: Answer) {
        if let Some(to) = to.inbox.subject().and_then(path_of) {
            let (node, op) = (self.id, crate::calls::describe_answer(&answer));
            env.note(format_args!("n{node}: answers {to:?}: {op}"));
            env.send_up(self.id, Up::Reply { to, answer });
        }
    }
}

fn forward_result(env: &mut Env, answer: Option<Answer>) -> ForwardResult {
    match answer {
        None => ForwardResult::NoResponders,
        Some(answer) => ForwardResult::Answered {
            error: answer.as_ref().as_ref().err().map(|error| error.code),
            answer: RelayedAnswer {
                headers: Vec::new(),
                payload: env.calls.keep_relayed(answer),
            },
        },
    }
}

/// Where the answer to a message goes.
fn reply_to(message: &Message, now_us: u64) -> ReplyTo {
    ReplyTo {
        inbox: inbox_of(message.reply),
        format: Format::MsgPack,
        op: message.query.op,
        admin: message.query.admin,
        pass: false,
        taken: now_us,
        trace: None,
    }
}

/// A message about a line as the engine gets it.
fn request(message: Message, ask: Ask, reply: ReplyTo) -> Request {
    // A tenth for the way back, but no more than 100 ms.
    let way_back_us = (message.timeout_ms * 100).min(100_000);
    let (query, shard) = (message.query, shard_of(message.subject));
    // Of the payload and the inbox: two messages that are the same have the same.
    let inbox = match message.reply {
        ReplyPath::Client { attempt, .. } => attempt as u128 + 2,
        ReplyPath::Nowhere | ReplyPath::Node { .. } => 1,
    };
    let id = match (message.id, message.subject) {
        _ if !ask.effect().is_write() => None,
        (None, Subject::Shard(_)) => Some(RequestId {
            key: inbox << 64 | query.call as u128,
            origin: Origin::Direct,
        }),
        (id, _) => id,
    };
    Request {
        shard: shard.unwrap_or(query.shard),
        line: query.line.clone(),
        ask,
        deadline: reply.taken + message.timeout_ms * 1_000 - way_back_us,
        reply,
        id,
        sent_ms: message.sent_ms,
        note: None,
        user: None,
        payload: message.payload,
    }
}

fn shard_of(subject: Subject) -> Option<u32> {
    match subject {
        Subject::Plain => None,
        Subject::Shard(shard) | Subject::Forward(shard) => Some(shard),
    }
}

/// An inbox's name says whose it is.
fn inbox_of(path: ReplyPath) -> Inbox {
    Inbox::Subject(match path {
        ReplyPath::Nowhere => return Inbox::None,
        ReplyPath::Client { call, attempt } => format!("client.{call}.{attempt}").into(),
        ReplyPath::Node {
            node,
            start,
            id,
            attempt,
        } => format!("node.{node}.{start}.{}.{attempt}", id.0).into(),
    })
}

fn path_of(inbox: &str) -> Option<ReplyPath> {
    let words: Vec<&str> = inbox.split('.').collect();
    match words[..] {
        ["client", call, attempt] => Some(ReplyPath::Client {
            call: call.parse().ok()?,
            attempt: attempt.parse().ok()?,
        }),
        ["node", node, start, id, attempt] => Some(ReplyPath::Node {
            node: node.parse().ok()?,
            start: start.parse().ok()?,
            id: ForwardId(id.parse().ok()?),
            attempt: attempt.parse().ok()?,
        }),
        _ => None,
    }
}
