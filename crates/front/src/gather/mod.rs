//! Requests for which a node asks others: it takes one, asks the leaders that have what is needed, and makes one answer of theirs.
//!
//! ```text
//! Arrived ─► Admitted ─► Read ─► Work ─► Ask, Ask, … ─► Output::Request, Output::Engine
//!                                  ▲                         │
//!                                  └── answered, own_answered ┘ … ─► Output::Reply
//! ```
//!
//! Each request is a [`Work`] of its own. It does what it can, and goes on with each answer, when a time is due that it has
//! named, and when this node learns of other rules or leaders.

pub(crate) mod asks;
mod intake;
mod many_lines;
mod reply;
mod times;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nowserving_engine::refusals::{overloaded, unavailable};
use nowserving_engine::{ForwardResult, Input, Now, Outcome, ReplyTo, Subscription};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::NodeHits;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;

use self::asks::{Answer, Ask, Asks, OwnAsk};
use self::intake::Kind;
pub use self::intake::{Admitted, Arrived, Read};
pub use self::reply::Reply;
pub(crate) use self::times::Times;
use crate::limits::{KnownRules, RuleCounters};
use crate::who::TrustRequestInfo;

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
        result: Result<Reply, ApiError>,
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

/// How a work ends. `None`: it goes on.
pub(crate) type Done = Option<Result<Reply, ApiError>>;

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
    /// So many were admitted so far.
    admitted: u64,
    /// And are not answered, by their kind.
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
    /// When it goes on, if it waits for a time.
    due: Option<Micros>,
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
    /// An empty list, for the next outputs.
    spare: Vec<Output>,
}

/// What one of them is given each time.
pub(crate) struct Io<'a> {
    pub around: &'a mut Around,
    pub now: Now,
    work: u64,
    waits: &'a mut BTreeSet<u64>,
    all_due: &'a mut BTreeSet<(Micros, u64)>,
    due: &'a mut Option<Micros>,
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
                spare: Vec::new(),
                config,
            },
            works: HashMap::new(),
            admitted: 0,
            under_way: [0; 3],
            due: BTreeSet::new(),
            waiting: BTreeSet::new(),
            stopping: false,
        }
    }

    /// Gives a request a place, which it has until it is answered. Without one, and while this node ends, it is refused.
    pub fn admit(&mut self, arrived: Arrived) -> Option<Admitted> {
        let most = arrived.kind.at_once();
        match self.under_way.get_mut(arrived.kind as usize) {
            Some(under_way) if *under_way < most && !self.stopping => {
                *under_way += 1;
                self.admitted += 1;
                let number = self.admitted;
                Some(Admitted { arrived, number })
            }
            _ => {
                let (to, result) = (arrived.to, Err(overloaded()));
                self.around.out.push(Output::Reply { to, result });
                None
            }
        }
    }

    /// Begins what was admitted.
    pub fn begin(&mut self, read: Read, now: Now) {
        let (to, kind) = (read.to, read.kind);
        match read.work {
            Ok(work) => {
                let due = None;
                let running = Running {
                    to,
                    kind,
                    work,
                    due,
                };
                self.works.insert(read.number, running);
                self.go_on(read.number, now);
                self.settle(now);
            }
            Err(error) => self.end((to, kind), Err(error)),
        }
    }

    fn end(&mut self, (to, kind): (ReplyTo, Kind), result: Result<Reply, ApiError>) {
        if let Some(under_way) = self.under_way.get_mut(kind as usize) {
            *under_way -= 1;
        }
        self.around.out.push(Output::Reply { to, result });
    }

    /// Requests that come from here on are refused.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether all that it has taken is answered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way == [0; 3]
    }

    /// How a request to others ended.
    pub fn answered(&mut self, id: u64, result: ForwardResult, now: Now) {
        self.around.asks.answered(id, result, now);
        self.settle(now);
    }

    /// What this node's engine has answered.
    pub fn own_answered(&mut self, id: u64, answer: Result<Outcome, ApiError>, now: Now) {
        self.around.asks.own_answered(id, answer, now);
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
            if let Some(running) = self.works.get_mut(&work) {
                running.due = None;
            }
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
    pub fn hits(&self) -> NodeHits {
        self.around.counters.of_node(self.around.config.me)
    }

    /// What is done for what was taken in since.
    pub fn take_outputs(&mut self) -> Vec<Output> {
        let Around { out, spare, .. } = &mut self.around;
        match out.is_empty() {
            true => Vec::new(),
            false => std::mem::replace(out, std::mem::take(spare)),
        }
    }

    /// Gives a list back of which all is done, so that the next outputs need none.
    pub fn reuse(&mut self, mut outputs: Vec<Output>) {
        outputs.clear();
        if outputs.capacity() > self.around.spare.capacity() {
            self.around.spare = outputs;
        }
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
            work: id,
            waits: &mut self.waiting,
            all_due: &mut self.due,
            due: &mut running.due,
        };
        let Some(result) = step(running.work.as_mut(), &mut io) else {
            return;
        };
        if let Some(Running { to, kind, due, .. }) = self.works.remove(&id) {
            self.waiting.remove(&id);
            if let Some(due) = due {
                self.due.remove(&(due, id));
            }
            self.end((to, kind), result);
        }
    }
}

impl Io<'_> {
    /// Makes a request, of which the work hears by this number.
    pub fn ask(&mut self, nth: usize, ask: Ask) {
        let Around { asks, out, .. } = &mut *self.around;
        asks.begin((self.work, nth), ask, self.now, out);
    }

    /// Asks this node's engine, of which the work hears by this number.
    pub fn ask_own(&mut self, nth: usize, ask: OwnAsk) {
        let Around { asks, out, .. } = &mut *self.around;
        asks.begin_own((self.work, nth), ask, self.now, out);
    }

    /// The work goes on at this time, and at none that it has named before.
    pub fn wake_at(&mut self, time: Micros) {
        if let Some(before) = self.due.replace(time) {
            self.all_due.remove(&(before, self.work));
        }
        self.all_due.insert((time, self.work));
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
