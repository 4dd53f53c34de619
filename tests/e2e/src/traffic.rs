//! All messages of a cluster's clients, checked against `docs/asyncapi.yaml`: requests as they come to the nodes, their
//! replies, and events.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nowserving_protocol::operation::On;
use nowserving_protocol::subject::Subjects;

use crate::described::{Asks, Described, Kind, Payload};
use crate::tap::{Message, Side};

/// So many requests are remembered until they are answered, and for copies of the answer; older ones are forgotten.
const ASKED_MAX: usize = 65_536;
/// So many messages wait to be checked; then the connections wait, too.
const WAITING_MAX: usize = 16_384;
/// Long enough for all of these on a busy machine.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);
/// So many mistakes are told.
const WRONG_MAX: usize = 10;
/// Begins the subjects of the contract, and of events.
const OURS: &str = "nowserving.";
const EVENTS: &str = "nowserving.event.";

/// How many messages were checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    pub replies: u64,
    pub events: u64,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} replies, {} events", self.replies, self.events)
    }
}

/// What the nodes of a cluster have been asked, and what they said.
pub struct Traffic {
    described: &'static Described,
    subjects: Subjects,
    asked: Mutex<Asked>,
    to_check: SyncSender<ToCheck>,
}

/// The requests that can be answered, by their reply subjects.
#[derive(Debug, Default)]
struct Asked {
    requests: HashMap<String, Request>,
    /// The oldest first.
    order: VecDeque<String>,
}

#[derive(Clone, Debug)]
struct Request {
    subject: String,
    what: What,
    payload: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Described(Asks),
    /// A node may refuse it, and nothing else.
    NotDescribed,
    /// Different requests have the same reply subject: an answer is to any of them.
    Any,
}

enum ToCheck {
    Reply {
        request: Request,
        reply: Vec<u8>,
    },
    Event {
        subject: String,
        event: Option<Payload>,
        payload: Vec<u8>,
    },
    Lost(String),
    /// Told when all before it is checked.
    Told(Sender<(Checked, Vec<String>)>),
}

impl Traffic {
    /// Begins with nothing.
    ///
    /// # Errors
    /// The document cannot be read.
    pub fn new() -> Result<Traffic> {
        let described = Described::published()?;
        let (to_check, waiting) = sync_channel(WAITING_MAX);
        thread::Builder::new()
            .name("traffic".to_owned())
            .spawn(move || check_all(described, &waiting))?;
        Ok(Traffic {
            described,
            subjects: Subjects::default(),
            asked: Mutex::default(),
            to_check,
        })
    }

    /// Takes note of a message between a node and its NATS server.
    pub fn saw(&self, side: Side, message: &Message<'_>) {
        let Message {
            subject,
            reply,
            payload,
        } = *message;
        match (side, reply) {
            (Side::Server, Some(reply)) => {
                if let Some(what) = self.what(subject) {
                    self.asked().remember(subject, reply, what, payload);
                }
            }
            (Side::Node, _) if subject.starts_with(EVENTS) => {
                let event = match self.described.kind(subject) {
                    Some(Kind::Event(event)) => Some(event),
                    _ => None,
                };
                self.check(ToCheck::Event {
                    subject: subject.to_owned(),
                    event,
                    payload: payload.to_vec(),
                });
            }
            (Side::Node, _) if !subject.starts_with(OURS) => {
                let request = self.asked().requests.get(subject).cloned();
                if let Some(request) = request {
                    let reply = payload.to_vec();
                    self.check(ToCheck::Reply { request, reply });
                }
            }
            _ => {}
        }
    }

    /// Takes note that nothing more can be read of what one side says on a connection: what comes there is not checked.
    pub fn lost(&self, side: Side, why: &anyhow::Error) {
        self.check(ToCheck::Lost(format!(
            "what a {side:?} says cannot be read any more: {why:#}"
        )));
    }

    /// How many messages were checked so far.
    ///
    /// # Errors
    /// One is not as the document says, or a connection could not be read.
    pub fn checked(&self) -> Result<Checked> {
        let (tell, told) = channel();
        self.check(ToCheck::Told(tell));
        let told = told.recv_timeout(SETTLES_WITHIN);
        let (checked, wrong) = told.context("messages are still being checked")?;
        match wrong.is_empty() {
            true => Ok(checked),
            false => Err(anyhow!(wrong.join("\n"))),
        }
    }

    /// What a request on this subject is; none if it is between nodes, or of others.
    fn what(&self, subject: &str) -> Option<What> {
        match self.described.kind(subject) {
            Some(Kind::Request(asks)) => Some(What::Described(asks)),
            Some(Kind::Event(_)) => None,
            None => {
                let target = self.subjects.parse(subject).ok()?;
                let is_between_nodes = match target.op.on() {
                    On::LimitShard | On::LimitLeader => true,
                    On::AdminLimit | On::Members => target.shard.is_some(),
                    _ => false,
                };
                (!is_between_nodes).then_some(What::NotDescribed)
            }
        }
    }

    fn asked(&self) -> std::sync::MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, it: ToCheck) {
        // The thread ends after this.
        let _ = self.to_check.send(it);
    }
}

impl Asked {
    fn remember(&mut self, subject: &str, reply: &str, what: What, payload: &[u8]) {
        if let Some(known) = self.requests.get_mut(reply) {
            // Several nodes may have the same request.
            if known.what != what || known.payload != payload {
                known.what = What::Any;
            }
            return;
        }
        let request = Request {
            subject: subject.to_owned(),
            what,
            payload: payload.to_vec(),
        };
        self.requests.insert(reply.to_owned(), request);
        self.order.push_back(reply.to_owned());
        if self.order.len() > ASKED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.requests.remove(&oldest);
        }
    }
}

fn check_all(described: &Described, waiting: &Receiver<ToCheck>) {
    let (mut checked, mut wrong) = (Checked::default(), Vec::new());
    while let Ok(it) = waiting.recv() {
        let (subject, is_right) = match it {
            ToCheck::Reply { request, reply } => {
                checked.replies += 1;
                let is_right = match request.what {
                    What::Described(asks) => described.check_reply(asks, &request.payload, &reply),
                    What::NotDescribed => described.check_error(&reply),
                    What::Any => Ok(()),
                };
                (request.subject, is_right)
            }
            ToCheck::Event {
                subject,
                event,
                payload,
            } => {
                checked.events += 1;
                let is_right = match event {
                    Some(event) => described.check_event(event, &payload),
                    None => Err(anyhow!("docs/asyncapi.yaml has no such event")),
                };
                (subject, is_right)
            }
            ToCheck::Lost(what) => {
                // Also beside many mistakes of messages.
                wrong.insert(0, what);
                continue;
            }
            ToCheck::Told(to) => {
                // Who asked may have gone.
                let _ = to.send((checked, wrong.clone()));
                continue;
            }
        };
        if let Err(error) = is_right
            && wrong.len() < WRONG_MAX
        {
            wrong.push(format!("{subject}: {error:#}"));
        }
    }
}
