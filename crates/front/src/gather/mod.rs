//! Requests for which a node asks others: it takes one, asks the leaders that have what is needed, and makes one answer of theirs.
//!
//! ```text
//! take(message) ─► Work ─► Ask, Ask, … ─► Output::Request, Output::Engine
//!                    ▲                         │
//!                    └── answered, own_answered ┘ … ─► Output::Reply
//! ```
//!
//! Each request is a [`Work`] of its own. It does what it can, and goes on with each answer, when a time is due that it has
//! named, and when this node learns of other rules or leaders.

pub(crate) mod asks;
mod many_lines;
mod times;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nowserving_engine::refusals::{overloaded, unavailable};
use nowserving_engine::{ForwardResult, Input, Now, Outcome, ReplyTo, Subscription};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::TraceContext;
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;

use self::asks::{Answer, Ask, Asks};
pub(crate) use self::times::Times;
use crate::Message;
use crate::limits::{KnownRules, RuleCounters, work_of_limits};
use crate::parse::reply_to;
use crate::routes::Route;
use crate::who::TrustRequestInfo;

/// Requests at the same time: others are refused. Operators have places of their own: one who looks for the cause of too many
/// checks is not refused because of them.
const CHECKS_AT_ONCE: usize = 8_192;
const OPERATORS_AT_ONCE: usize = 256;
const MANY_LINES_AT_ONCE: usize = 4;

/// What is done for the requests.
#[derive(Debug)]
pub enum Output {
    /// Its result comes by [`Gather::answered`].
    Request(NodeRequest),
    /// It is for this node's engine, whose answer comes by [`Gather::own_answered`]. Without room: [`Gather::not_taken`].
    Engine { id: u64, input: Input },
    /// The answer to a request.
    Reply {
        to: ReplyTo,
        encoded: Result<Vec<u8>, ApiError>,
    },
}

/// A request that is sent once.
#[derive(Debug)]
pub struct NodeRequest {
    pub id: u64,
    pub subject: String,
    pub headers: Vec<(&'static str, String)>,
    pub payload: Bytes,
    /// An answer that comes later is not looked at.
    pub timeout: Duration,
}

/// How a work ends: with the encoded answer. `None`: it goes on.
pub(crate) type Done = Option<Result<Vec<u8>, ApiError>>;

/// One request under way.
pub(crate) trait Work: Send {
    /// It begins, a time is due that it has named, or the node has learnt something that it waits for.
    fn go_on(&mut self, io: &mut Io<'_>) -> Done;
    /// A request of this number, which it has made, has ended.
    fn answered(&mut self, nth: usize, result: Result<Answer, ApiError>, io: &mut Io<'_>) -> Done;
}

/// What is fixed for the life of a node.
#[derive(Debug, Clone)]
pub struct Config {
    pub subjects: Subjects,
    /// Those to which only leaders subscribe.
    pub forward: Subjects,
    pub shards: u32,
    pub me: u64,
    pub trust: TrustRequestInfo,
    /// Another random number for each start.
    pub seed: u128,
    /// The time of the start.
    pub since_ms: u64,
}

/// All of them.
#[derive(Debug)]
pub struct Gather {
    around: Around,
    works: HashMap<u64, Running>,
    next: u64,
    under_way: [usize; 3],
    /// Of works, the times that they wait for.
    due: BTreeSet<(Micros, u64)>,
    /// Those that wait for something that this node learns.
    waiting: BTreeSet<u64>,
    stopping: bool,
}

struct Running {
    to: ReplyTo,
    kind: Kind,
    work: Box<dyn Work>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Check,
    Operator,
    ManyLines,
}

/// What the works share.
#[derive(Debug)]
pub(crate) struct Around {
    pub config: Config,
    /// `None` until this node has caught up with shard 0.
    pub known: Option<Arc<KnownRules>>,
    pub subscriptions: BTreeMap<u32, Subscription>,
    /// The nodes of the cluster.
    pub nodes: BTreeSet<u64>,
    pub counters: RuleCounters,
    asks: Asks,
    out: Vec<Output>,
}

/// What one of them is given each time.
pub(crate) struct Io<'a> {
    pub around: &'a mut Around,
    pub now: Now,
    pub format: Format,
    work: u64,
    waits: &'a mut BTreeSet<u64>,
    due: &'a mut BTreeSet<(Micros, u64)>,
}

impl Gather {
    #[must_use]
    pub fn new(config: Config) -> Self {
        Gather {
            around: Around {
                known: None,
                subscriptions: BTreeMap::new(),
                nodes: BTreeSet::new(),
                counters: RuleCounters::new(config.since_ms),
                asks: Asks::new(config.seed as u64),
                out: Vec::new(),
                config,
            },
            works: HashMap::new(),
            next: 0,
            under_way: [0; 3],
            due: BTreeSet::new(),
            waiting: BTreeSet::new(),
            stopping: false,
        }
    }

    /// Begins a request that was routed here.
    pub fn take(
        &mut self,
        message: &Message<'_>,
        route: Route,
        now: Now,
        trace: Option<Box<TraceContext>>,
    ) {
        let mut to = reply_to(message, now.us, trace);
        self.next += 1;
        let kind = match route {
            Route::ManyLines => Kind::ManyLines,
            _ if self.is_admin(message.subject) => Kind::Operator,
            _ => Kind::Check,
        };
        let read = match route {
            Route::ManyLines => {
                to.op = Operation::ConfigureLines;
                many_lines::read(message, now, self.around.config.trust)
            }
            _ => work_of_limits(message, &mut to, now, &self.around.config, self.next),
        };
        let work = read.and_then(|work| match self.admits(kind) {
            true => Ok(work),
            false => Err(overloaded()),
        });
        match work {
            Ok(work) => {
                if let Some(under_way) = self.under_way.get_mut(kind as usize) {
                    *under_way += 1;
                }
                self.works.insert(self.next, Running { to, kind, work });
                self.go_on(self.next, now);
                self.settle(now);
            }
            Err(error) => {
                let encoded = Err(error);
                self.around.out.push(Output::Reply { to, encoded });
            }
        }
    }

    fn is_admin(&self, subject: &str) -> bool {
        let rest = subject.strip_prefix(self.around.config.subjects.prefix());
        rest.is_some_and(|rest| rest.starts_with(".admin."))
    }

    fn admits(&self, kind: Kind) -> bool {
        let most = match kind {
            Kind::Check => CHECKS_AT_ONCE,
            Kind::Operator => OPERATORS_AT_ONCE,
            Kind::ManyLines => MANY_LINES_AT_ONCE,
        };
        let under_way = self.under_way.get(kind as usize);
        !self.stopping && under_way.is_some_and(|it| *it < most)
    }

    /// Requests that come from here on are refused.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether all that it has taken is answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.works.is_empty()
    }

    /// How a request to others ended.
    pub fn answered(&mut self, id: u64, result: ForwardResult, now: Now) {
        self.around.asks.answered(id, result, now);
        self.settle(now);
    }

    /// What this node's engine has answered.
    pub fn own_answered(&mut self, id: u64, answer: Result<Outcome, ApiError>, now: Now) {
        let Around { asks, out, .. } = &mut self.around;
        asks.own_answered(id, answer, now, out);
        self.settle(now);
    }

    /// The engine has no room.
    pub fn not_taken(&mut self, id: u64, now: Now) {
        self.around.asks.not_taken(id);
        self.settle(now);
    }

    /// When [`Gather::tick`] is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Micros> {
        let due = self.due.first().map(|(due, _)| *due);
        [due, self.around.asks.next_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Now) {
        let Around { asks, out, .. } = &mut self.around;
        asks.tick(now, out);
        self.settle(now);
        while let Some((due, work)) = self.due.first().copied()
            && due <= now.us
        {
            self.due.pop_first();
            self.go_on(work, now);
            self.settle(now);
        }
    }

    /// This node knows other rules of limits.
    pub fn learn(&mut self, known: Arc<KnownRules>, now: Now) {
        let (counters, before) = (&mut self.around.counters, self.around.known.as_deref());
        counters.follow(before, &known);
        self.around.known = Some(known);
        self.wake(now);
    }

    /// This node leads other shards, or knows other leaders.
    pub fn follow(&mut self, changed: impl IntoIterator<Item = (u32, Subscription)>, now: Now) {
        self.around.subscriptions.extend(changed);
        self.wake(now);
    }

    /// These nodes are the cluster.
    pub fn nodes(&mut self, nodes: BTreeSet<u64>) {
        self.around.nodes = nodes;
    }

    /// The answer to another node, which asks how many hits this one has counted.
    #[must_use]
    pub fn hits(&self) -> Vec<u8> {
        let hits = self.around.counters.of_node(self.around.config.me);
        encode(&hits, Format::MsgPack)
    }

    /// What is done for what was taken in since.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.around.out)
    }

    fn wake(&mut self, now: Now) {
        for work in std::mem::take(&mut self.waiting) {
            self.go_on(work, now);
        }
        self.settle(now);
    }

    fn go_on(&mut self, work: u64, now: Now) {
        self.with(work, now, |work, io| work.go_on(io));
    }

    /// Hands out what has ended, until nothing more does.
    fn settle(&mut self, now: Now) {
        while let Some(((work, nth), result)) = self.around.asks.ended.pop_front() {
            self.with(work, now, |work, io| work.answered(nth, result, io));
        }
    }

    /// Nothing, if it has ended.
    fn with(&mut self, id: u64, now: Now, step: impl FnOnce(&mut dyn Work, &mut Io<'_>) -> Done) {
        let Some(running) = self.works.get_mut(&id) else {
            return;
        };
        let mut io = Io {
            around: &mut self.around,
            now,
            format: running.to.format,
            work: id,
            waits: &mut self.waiting,
            due: &mut self.due,
        };
        let Some(encoded) = step(running.work.as_mut(), &mut io) else {
            return;
        };
        if let Some(Running { to, kind, .. }) = self.works.remove(&id) {
            self.waiting.remove(&id);
            if let Some(under_way) = self.under_way.get_mut(kind as usize) {
                *under_way -= 1;
            }
            self.around.out.push(Output::Reply { to, encoded });
        }
    }
}

impl Io<'_> {
    /// Makes a request, of which the work hears by this number.
    pub fn ask(&mut self, nth: usize, ask: Ask) {
        let Around { asks, out, .. } = &mut *self.around;
        asks.begin((self.work, nth), ask, self.now, out);
    }

    /// The work goes on at this time.
    pub fn wake_at(&mut self, time: Micros) {
        self.due.insert((time, self.work));
    }

    /// The work goes on as soon as this node learns anything, and at this time.
    pub fn wait(&mut self, until: Micros) {
        self.waits.insert(self.work);
        self.wake_at(until);
    }

    /// The rules, as soon as this node knows them: until then the work waits.
    ///
    /// # Errors
    /// `unavailable`: the time is over.
    pub fn known(&mut self, until: Micros) -> Result<Option<Arc<KnownRules>>, ApiError> {
        let known = self.around.known.clone();
        match known.is_some() {
            false if self.now.us >= until => Err(unavailable()),
            false => {
                self.wait(until);
                Ok(None)
            }
            true => Ok(known),
        }
    }
}

impl Around {
    /// Whether this node leads the shard, as far as it knows.
    pub fn leads(&self, shard: u32) -> bool {
        self.subscriptions.get(&shard).is_some_and(leads)
    }

    /// Whether this node knows no leader of the shard that has the rules, and leads no shard itself: there may be a majority
    /// without it.
    pub fn is_cut_off(&self) -> bool {
        let all = &self.subscriptions;
        all.get(&0) == Some(&Subscription::Leaderless) && !all.values().any(leads)
    }
}

fn leads(subscription: &Subscription) -> bool {
    matches!(subscription, Subscription::Leader { .. })
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "gather_tests.rs"]
pub(crate) mod tests;
