//! Carries out what [`Gather`] decides about the requests for which this node asks others.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{HeaderMap, Message};
use futures::StreamExt as _;
use nowserving_engine::{Input, Now, Subscription};
use nowserving_front::gather::{Arrived, Config, Gather, NodeRequest, Output};
use nowserving_front::limits::KnownRules;
use nowserving_front::routes::Route;
use nowserving_limit::Rules;
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::limits::NodeHits;
use nowserving_shard::clock::Micros;
use nowserving_shard::limits::RuleTexts;
use tokio::sync::{Notify, watch};

use super::forward;
use super::message::viewed;
use super::peers::PeerList;
use super::respond::Responder;
use crate::clock::{monotonic_us, now};
use crate::shards::to_engine::ToEngine;
use crate::traces;

/// Between two looks whether all is answered, when the node ends.
const IDLE_EVERY: Duration = Duration::from_millis(10);
/// While so many carry outputs out, the timer waits until its own are sent.
const ASIDE_MAX: usize = 1_024;

/// The requests, and the way to this node's engine.
#[derive(Debug)]
pub struct Gathering {
    config: Config,
    state: Mutex<State>,
    requests: ToEngine,
    earlier: Notify,
    /// Held by those who carry outputs out: an answer may not be sent yet when its request has ended.
    busy: Arc<()>,
}

#[derive(Debug)]
struct State {
    gather: Gather,
    /// When the timer looks next; `None`: when it is told to.
    timer: Option<Micros>,
}

/// The rules of limits, as soon as this node knows them.
pub type RulesReceiver = watch::Receiver<Option<Arc<KnownRules>>>;

impl Gathering {
    pub fn new(config: Config, requests: ToEngine) -> Self {
        let state = State {
            gather: Gather::new(config.clone()),
            timer: None,
        };
        Gathering {
            config,
            state: Mutex::new(state),
            requests,
            earlier: Notify::new(),
            busy: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step<T>(&self, step: impl FnOnce(&mut Gather) -> T) -> (T, Vec<Output>) {
        let mut state = self.lock();
        let result = step(&mut state.gather);
        let due = state.gather.next_due();
        if due.is_some_and(|due| state.timer.is_none_or(|timer| due < timer)) {
            state.timer = due;
            self.earlier.notify_one();
        }
        (result, state.gather.take_outputs())
    }

    /// How long until something is due.
    fn next_due(&self) -> Duration {
        let mut state = self.lock();
        state.timer = state.gather.next_due();
        let left = |due: Micros| Duration::from_micros(due.saturating_sub(monotonic_us()));
        state.timer.map_or(Duration::MAX, left)
    }

    /// Ends once all requests that were taken are answered. Those that come meanwhile are refused.
    pub async fn finished(&self) {
        self.lock().gather.stop();
        while !self.lock().gather.is_idle() || Arc::strong_count(&self.busy) > 1 {
            tokio::time::sleep(IDLE_EVERY).await;
        }
    }
}

impl Responder {
    /// Takes a request.
    pub async fn gather_for(&self, message: &Message, route: Route, now: Now) {
        let (gathering, trace) = (&self.gathering, traces::begun(message.headers.as_ref()));
        let _busy = gathering.busy.clone();
        let config = &gathering.config;
        let arrived = viewed(message, |it| Arrived::of(config, it, route, now, trace));
        let (admitted, outputs) = gathering.step(|gather| gather.admit(arrived));
        self.carry_out(outputs).await;
        if let Some(admitted) = admitted {
            let read = viewed(message, |it| admitted.read(config, it, now));
            self.gather(|gather| gather.begin(read, now)).await;
        }
    }

    /// Takes a step, and does what comes of it.
    pub async fn gather(&self, step: impl FnOnce(&mut Gather)) {
        let _busy = self.gathering.busy.clone();
        let ((), outputs) = self.gathering.step(step);
        self.carry_out(outputs).await;
    }

    /// The same, without waiting until all is sent, unless the connection takes nothing: what is due next must not wait
    /// for that.
    async fn gather_aside(&self, step: impl FnOnce(&mut Gather)) {
        let (responder, busy) = (self.clone(), self.gathering.busy.clone());
        let ((), outputs) = self.gathering.step(step);
        if Arc::strong_count(&busy) > ASIDE_MAX {
            return self.carry_out(outputs).await;
        }
        if !outputs.is_empty() {
            tokio::spawn(async move {
                responder.carry_out(outputs).await;
                drop(busy);
            });
        }
    }

    async fn carry_out(&self, outputs: Vec<Output>) {
        if outputs.is_empty() {
            return;
        }
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Request(request) => drop(tokio::spawn(self.clone().ask(request))),
                Output::Engine { id, input } => {
                    if !self.give(input) {
                        let refused = |it: &mut Gather| it.not_taken(id, now());
                        let ((), more) = self.gathering.step(refused);
                        outputs.extend(more);
                    }
                }
                Output::Reply { to, result } => {
                    let encoded = result.map(|reply| reply.encode(to.format));
                    self.finish(&to, encoded).await;
                }
            }
        }
        self.gathering.lock().gather.reuse(outputs.into());
    }

    fn give(&self, input: Input) -> bool {
        let has_room = self.stats.admit();
        let given = has_room && self.gathering.requests.send(input).is_ok();
        if has_room && !given {
            self.stats.answered();
        }
        given
    }

    /// Boxed, as a step can lead to the next request.
    fn ask(self, it: NodeRequest) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let (id, headers) = (it.id, it.headers);
            let asked = (it.subject, it.payload, it.timeout);
            let result = forward::request(&self.client, asked, headers).await;
            self.gather(|gather| gather.answered(id, result, now()))
                .await;
        })
    }
}

/// Tells it which shards this node leads and which other nodes there are, and what is due.
pub async fn run(
    responder: Responder,
    mut subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    mut peers: watch::Receiver<PeerList>,
) {
    loop {
        let due = responder.gathering.next_due();
        // Their senders are gone only while the node ends.
        tokio::select! {
            Ok(()) = subscriptions.changed() => {
                let all = subscriptions.borrow_and_update().clone();
                responder.gather_aside(|gather| gather.follow(all, now())).await;
            }
            Ok(()) = peers.changed() => {
                let nodes = peers.borrow_and_update().ids.clone();
                responder.gather_aside(|gather| gather.nodes(nodes)).await;
            }
            () = tokio::time::sleep(due) => {
                responder.gather_aside(|gather| gather.tick(now())).await;
            }
            () = responder.gathering.earlier.notified() => {}
        }
    }
}

/// Reads the rules of limits, off the loop's thread, until the engine ends.
///
/// # Errors
/// The thread that reads them died.
pub async fn learn_rules(
    mut texts: watch::Receiver<Option<RuleTexts>>,
    known: watch::Sender<Option<Arc<KnownRules>>>,
) -> anyhow::Result<()> {
    loop {
        let told = texts.borrow_and_update().clone();
        if let Some(told) = told {
            let before = known.borrow().clone();
            let read = move || {
                KnownRules::of(&told, before.as_deref(), |domain, text| {
                    // They were read before they were replicated. A node with an older release may not understand all.
                    Rules::parse(text).unwrap_or_else(|errors| {
                    let domain = domain.as_str();
                    tracing::error!(domain, %errors, "the rules of this domain are not understood");
                    Rules::default()
                })
                })
            };
            let read = Arc::new(tokio::task::spawn_blocking(read).await?);
            known.send_replace(Some(read));
        }
        if texts.changed().await.is_err() {
            return Ok(());
        }
    }
}

/// Gives a loop's requests the rules of limits, until the first loop has ended.
pub async fn follow_rules(responder: Responder, mut known: RulesReceiver) {
    loop {
        let rules = known.borrow_and_update().clone();
        if let Some(rules) = rules {
            responder.gather(|gather| gather.learn(rules, now())).await;
        }
        if known.changed().await.is_err() {
            return;
        }
    }
}

/// The requests of all loops of a node.
pub type Gatherings = Arc<Mutex<Vec<Arc<Gathering>>>>;

/// Tells other nodes how many hits this one has counted, in all its loops, until the connection is closed.
///
/// # Errors
/// The subscription cannot be made.
pub async fn answer_nodes(responder: Responder, all: Gatherings) -> anyhow::Result<()> {
    let config = &responder.gathering.config;
    let subject = config.forward.limit_hits(config.me);
    let mut asked = responder.client.subscribe(subject).await?;
    while let Some(message) = asked.next().await {
        let all = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let hits = NodeHits::sum(all.iter().map(|it| it.lock().gather.hits()));
        let hits = encode(&hits, Format::MsgPack);
        let reply = message.reply.as_deref();
        responder.send(reply, HeaderMap::new(), hits.into()).await;
    }
    Ok(())
}
