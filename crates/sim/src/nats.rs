//! The NATS server and the nodes' service connections to it.
//!
//! A connection is two first-in-first-out buffers. Each can stand still; a cut empties both. A subscription
//! takes effect when the server has read it, or later. A message goes to every subscriber without a group
//! and to one of each group; to none: the sender is told so.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Display};
use std::rc::Rc;

use bytes::Bytes;
use nowserving_front::Headers;
pub use nowserving_front::subscriptions::SubscriptionId;

use crate::calls::NotAnswered;
use crate::env::Env;
use crate::faults::Fault;
use crate::timeline::Time;
use crate::world::Event;

/// Messages that a node has not read, from which on the server may drop its connection.
const UNREAD_MAX: usize = 24;

/// A node's number.
pub type NodeId = u64;

/// A loop of a node, with a service connection of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoopId {
    pub node: NodeId,
    /// From 0, which is the first loop.
    pub index: usize,
}

impl LoopId {
    #[must_use]
    pub fn first_of(node: NodeId) -> LoopId {
        LoopId { node, index: 0 }
    }
}

impl Display for LoopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(f, "{}", self.node),
            index => write!(f, "{}/{index}", self.node),
        }
    }
}

/// The inbox to which a node sends its probes.
pub const PROBES: &str = "probes";

/// A message on its way.
#[derive(Clone, Debug)]
pub struct Message {
    /// Where it is published.
    pub subject: Rc<str>,
    /// Where its answer goes.
    pub reply: Option<Rc<str>>,
    /// Names and values.
    pub headers: Rc<[(String, String)]>,
    /// What it says.
    pub payload: Bytes,
    /// The client's call and attempt, which nobody reads in it.
    pub call: Option<(usize, usize)>,
}

impl Message {
    /// As nodes read it.
    pub fn view(&self) -> nowserving_front::Message<'_> {
        nowserving_front::Message {
            subject: &self.subject,
            reply: self.reply.as_deref(),
            headers: self,
            payload: &self.payload,
        }
    }
}

impl Headers for Message {
    fn visit<'a>(&'a self, see: &mut dyn FnMut(&'a str, &'a str)) {
        for (name, value) in &*self.headers {
            see(name, value);
        }
    }
}

/// The inbox of a client's attempt.
#[must_use]
pub fn client_inbox(call: usize, attempt: usize) -> Rc<str> {
    format!("_INBOX.client.{call}.{attempt}").into()
}

/// An inbox of a start of a node.
#[must_use]
pub fn node_inbox(of: LoopId, start: u64, name: impl Display) -> Rc<str> {
    let LoopId { node, index } = of;
    format!("_INBOX.node.{node}.{index}.{start}.{name}").into()
}

/// Whose inbox it is.
#[derive(Clone, Copy, Debug)]
enum InboxOf<'a> {
    Client {
        call: usize,
        attempt: usize,
    },
    Node {
        of: LoopId,
        start: u64,
        name: &'a str,
    },
}

fn inbox_of(subject: &str) -> Option<InboxOf<'_>> {
    let words: Vec<&str> = subject.split('.').collect();
    match words[..] {
        ["_INBOX", "client", call, attempt] => Some(InboxOf::Client {
            call: call.parse().ok()?,
            attempt: attempt.parse().ok()?,
        }),
        ["_INBOX", "node", node, index, start, name] => Some(InboxOf::Node {
            of: LoopId {
                node: node.parse().ok()?,
                index: index.parse().ok()?,
            },
            start: start.parse().ok()?,
            name,
        }),
        _ => None,
    }
}

/// The call whose client has this inbox.
#[must_use]
pub fn call_of(inbox: &str) -> Option<usize> {
    match inbox_of(inbox)? {
        InboxOf::Client { call, .. } => Some(call),
        InboxOf::Node { .. } => None,
    }
}

/// Whether a subscription to this subject, or to `subject.>`, gets a message.
fn matches(subscribed: &str, subject: &str) -> bool {
    match subscribed.strip_suffix('>') {
        Some(below) => subject.len() > below.len() && subject.starts_with(below),
        None => subscribed == subject,
    }
}

/// What the server sends to a node.
#[derive(Clone, Debug)]
pub enum Down {
    /// A message by a subscription.
    Message {
        /// Which one.
        subscription: SubscriptionId,
        /// The message.
        message: Message,
    },
    /// What comes to an inbox of the node.
    Inbox {
        /// Its last word.
        name: Rc<str>,
        /// The message; `None`: nobody listens where the node has asked.
        message: Option<Message>,
    },
}

/// What a node sends to the server.
#[derive(Clone, Debug)]
pub enum Up {
    /// A new subscription.
    Subscribe {
        /// Its name.
        id: SubscriptionId,
        /// The subject.
        subject: Rc<str>,
        /// In a group.
        group: Option<&'static str>,
    },
    /// The end of one.
    Unsubscribe(SubscriptionId),
    /// A message.
    Publish(Message),
}

impl Up {
    /// Whether it is sent again on a new connection, if it was not sent.
    fn is_kept(&self) -> bool {
        match self {
            // They are made anew from the node's own list.
            Up::Subscribe { .. } | Up::Unsubscribe(_) => false,
            Up::Publish(message) => !message.subject.ends_with(PROBES),
        }
    }
}

/// A loop's service connection.
#[derive(Debug, Default)]
pub struct Connection {
    /// Connected; grows with every cut, so that what belongs to an earlier connection is known.
    pub number: u64,
    /// Whether there is one now, as far as the node knows.
    pub connected: bool,
    /// Whether the server has it. If it does not, the node can still read what was sent before.
    open: bool,
    down: VecDeque<(Time, Down)>,
    up: VecDeque<(Time, Up)>,
    /// What the node has published while it was not connected.
    waiting: Vec<Up>,
    stalled_until: Time,
    /// When the last change of a subscription takes effect.
    effects: BTreeMap<SubscriptionId, Time>,
    subscriptions: BTreeMap<SubscriptionId, Subscribed>,
}

/// A subscription's subject and group.
pub type Subscribed = (Rc<str>, Option<&'static str>);

impl Env {
    fn connection(&mut self, of: LoopId) -> &mut Connection {
        self.connections.entry(of).or_default()
    }

    /// A node's process sends something, as soon as it is connected.
    pub fn send_up(&mut self, of: LoopId, what: Up) {
        let at = self.timeline.now() + self.nats_delay();
        let connection = self.connection(of);
        if !connection.connected {
            connection.waiting.push(what);
            return;
        }
        let last = connection.up.back().map_or(0, |(at, _)| *at);
        let (at, number) = (at.max(last), connection.number);
        connection.up.push_back((at, what));
        self.timeline.at(at, Event::ReadByServer { of, number });
    }

    /// The server sends something to a node.
    fn send_down(&mut self, of: LoopId, what: Down) {
        let at = self.timeline.now() + self.nats_delay();
        let connection = self.connection(of);
        if !connection.connected || !connection.open {
            return;
        }
        let last = connection.down.back().map_or(0, |(at, _)| *at);
        let (at, number) = (at.max(last), connection.number);
        connection.down.push_back((at, what));
        let slow = connection.down.len() > UNREAD_MAX;
        self.timeline.at(at, Event::ReadByNode { of, number });
        if slow && self.strikes(Fault::SlowConsumer) {
            self.note(format_args!(
                "n{of}: reads too slowly, the server drops its connection"
            ));
            self.cut(of);
            let lasts = self.random.around(500_000);
            self.timeline.after(lasts, Event::Connect { of });
        }
    }

    /// What a node can read from its connection now.
    pub fn readable(&mut self, of: LoopId, number: u64) -> Vec<Down> {
        let now = self.timeline.now();
        let connection = self.connection(of);
        if connection.number != number {
            return Vec::new();
        }
        if now < connection.stalled_until {
            let until = connection.stalled_until;
            if !connection.down.is_empty() {
                self.timeline.at(until, Event::ReadByNode { of, number });
            }
            return Vec::new();
        }
        let mut read = Vec::new();
        while connection.down.front().is_some_and(|(at, _)| *at <= now) {
            read.extend(connection.down.pop_front().map(|(_, what)| what));
        }
        read
    }

    /// The server reads what has reached it.
    pub fn read_by_server(&mut self, of: LoopId, number: u64) {
        let now = self.timeline.now();
        let connection = self.connection(of);
        if connection.number != number || !connection.open {
            return;
        }
        if now < connection.stalled_until {
            let until = connection.stalled_until;
            if !connection.up.is_empty() {
                self.timeline.at(until, Event::ReadByServer { of, number });
            }
            return;
        }
        while let connection = self.connection(of)
            && connection.up.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, what)) = connection.up.pop_front()
        {
            self.handle_up(of, number, what);
        }
    }

    fn handle_up(&mut self, of: LoopId, number: u64, what: Up) {
        match what {
            Up::Subscribe { id, subject, group } => {
                let add = Some((subject, group));
                self.subscription_change(of, number, id, add);
            }
            Up::Unsubscribe(id) => self.subscription_change(of, number, id, None),
            Up::Publish(message) => self.publish(message),
        }
    }

    /// The server has a message, of whomever.
    pub fn publish(&mut self, message: Message) {
        let subject = message.subject.clone();
        match inbox_of(&subject) {
            Some(InboxOf::Client { call, attempt }) => {
                let answer = self.calls.answer(&message);
                self.reply_to_client(call, attempt, Ok(answer));
            }
            Some(InboxOf::Node { of, start, name }) => {
                self.send_to_inbox((of, start), name, Some(message));
            }
            None => {
                let reply = message.reply.clone();
                if self.route(message) {
                    return;
                }
                match reply.as_deref().and_then(inbox_of) {
                    Some(InboxOf::Client { call, attempt }) => {
                        self.reply_to_client(call, attempt, Err(NotAnswered::NoResponders));
                    }
                    Some(InboxOf::Node { of, start, name }) => {
                        self.send_to_inbox((of, start), name, None);
                    }
                    None => {}
                }
            }
        }
    }

    fn send_to_inbox(&mut self, (of, start): (LoopId, u64), name: &str, message: Option<Message>) {
        if self.starts.get(&of.node) == Some(&start) {
            let name = name.into();
            self.send_down(of, Down::Inbox { name, message });
        }
    }

    fn subscription_change(
        &mut self,
        of: LoopId,
        number: u64,
        id: SubscriptionId,
        add: Option<Subscribed>,
    ) {
        let change = Event::SubscriptionChange {
            of,
            number,
            id,
            add,
        };
        let late = match self.strikes(Fault::SubscriptionLate) {
            true => self.random.around(150_000),
            false => 0,
        };
        let at = self.timeline.now() + late;
        // A subscription does not end before it has taken effect.
        let effect_at = self.connection(of).effects.entry(id).or_insert(at);
        *effect_at = at.max(*effect_at);
        let at = *effect_at;
        self.timeline.at(at, change);
    }

    /// A subscription takes effect, or ends.
    pub fn change_subscription(
        &mut self,
        of: LoopId,
        number: u64,
        id: SubscriptionId,
        add: Option<Subscribed>,
    ) {
        let connection = self.connection(of);
        if connection.number != number || !connection.open {
            return;
        }
        match add {
            Some(subscription) => connection.subscriptions.insert(id, subscription),
            None => connection.subscriptions.remove(&id),
        };
    }

    /// Gives a message to the subscribers; false if there is none.
    fn route(&mut self, message: Message) -> bool {
        let mut group = Vec::new();
        let mut all = Vec::new();
        for (node, connection) in &self.connections {
            for (id, (subscribed, in_group)) in &connection.subscriptions {
                if matches(subscribed, &message.subject) {
                    match in_group {
                        Some(_) => group.push((*node, *id)),
                        None => all.push((*node, *id)),
                    }
                }
            }
        }
        all.extend(self.random.pick(&group).copied());
        if let Some(again) = self.random.pick(&all).copied()
            && self.strikes(Fault::DeliveryDoubled)
        {
            all.push(again);
            match (message.call, &message.reply) {
                (Some(call), _) => self.delivered_twice(call),
                (None, Some(reply)) => {
                    self.hits.copied(reply.clone());
                    self.part_delivered_twice(&message);
                }
                (None, None) => {}
            }
        }
        for (node, subscription) in &all {
            let what = Down::Message {
                subscription: *subscription,
                message: message.clone(),
            };
            self.send_down(*node, what);
        }
        !all.is_empty()
    }

    /// A connection is lost, with what is in its buffers; what the node had handed to its client library
    /// and that had not been sent may be lost or sent later.
    pub fn cut(&mut self, of: LoopId) {
        let keep = self.random.below(2) == 0;
        let connection = self.connection(of);
        if !connection.connected {
            return;
        }
        connection.connected = false;
        connection.open = false;
        connection.number += 1;
        connection.down.clear();
        connection.effects.clear();
        connection.subscriptions.clear();
        connection.stalled_until = 0;
        let unsent = connection.up.drain(..).map(|(_, what)| what);
        if keep {
            connection.waiting.extend(unsent);
        } else {
            drop(unsent);
        }
        connection.waiting.retain(Up::is_kept);
    }

    /// The server closes a connection, and the node has not noticed yet.
    pub fn close_at_server(&mut self, of: LoopId) {
        let connection = self.connection(of);
        connection.open = false;
        connection.subscriptions.clear();
    }

    /// The number of a node's newest connection.
    pub fn connection_number(&mut self, of: LoopId) -> u64 {
        self.connection(of).number
    }

    /// Whether what goes to a node by its service connection stands still.
    pub fn is_stalled(&self, of: LoopId) -> bool {
        let connection = self.connections.get(&of);
        connection.is_some_and(|it| self.timeline.now() < it.stalled_until)
    }

    /// Whether the server has this connection of a node.
    pub fn is_open(&self, of: LoopId, number: u64) -> bool {
        let connection = self.connections.get(&of);
        connection.is_some_and(|it| it.open && it.number == number)
    }

    /// A connection is made (again): first the subscriptions, then what waited.
    pub fn connect(&mut self, of: LoopId, subscriptions: Vec<Up>) {
        let connection = self.connection(of);
        connection.connected = true;
        connection.open = true;
        let waiting = std::mem::take(&mut connection.waiting);
        for what in subscriptions.into_iter().chain(waiting) {
            self.send_up(of, what);
        }
    }

    /// What a process that ends has sent last reaches the server, if its connection is open.
    pub fn flush(&mut self, of: LoopId) {
        let connection = self.connection(of);
        let (number, open) = (connection.number, connection.open && connection.connected);
        if !open {
            return;
        }
        while let Some((_, what)) = self.connection(of).up.pop_front() {
            self.handle_up(of, number, what);
        }
    }

    /// The process is gone, and its connection with it.
    pub fn disconnect(&mut self, of: LoopId) {
        self.cut(of);
        self.connection(of).waiting.clear();
    }

    /// Both ways stand still until then.
    pub fn stall(&mut self, of: LoopId, until: Time) {
        let connection = self.connection(of);
        connection.stalled_until = connection.stalled_until.max(until);
    }

    /// Whether a node has a service connection.
    pub fn is_connected(&self, of: LoopId) -> bool {
        self.connections.get(&of).is_some_and(|it| it.connected)
    }

    /// Every stall ends.
    pub fn end_stalls(&mut self) {
        let loops: Vec<LoopId> = self.connections.keys().copied().collect();
        for of in loops {
            let connection = self.connection(of);
            connection.stalled_until = 0;
            let number = connection.number;
            self.timeline.after(0, Event::ReadByNode { of, number });
            self.timeline.after(0, Event::ReadByServer { of, number });
        }
    }

    /// One way between a process and the server.
    pub fn nats_delay(&mut self) -> Time {
        self.random.around(self.calm.nats_us).max(20)
    }
}
