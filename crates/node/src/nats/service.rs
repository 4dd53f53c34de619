//! Requests on their way in: which subjects this node listens on, and what it does with what
//! comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use crossbeam_channel::{Sender, TrySendError};
use futures::StreamExt as _;
use nowserving_protocol::error::ApiError;
use tokio::sync::{oneshot, watch};

use super::forward::{Forwarder, is_repeatable};
use super::parse::{Parsed, Parser};
use super::respond::Responder;
use super::stall::Stall;
use crate::clock::monotonic_us;
use crate::request::Inbound;
use crate::shards::Listen;
use crate::shards::outbox::{outcome_unknown, overloaded};

/// On subjects that any node may take, the nodes share the work in this group.
const QUEUE_GROUP: &str = "nowserving";

/// Everything that handling a request needs.
#[derive(Debug, Clone)]
pub struct Service {
    /// The service connection.
    pub client: Client,
    /// Reads and checks.
    pub parser: Arc<Parser>,
    /// Into the shard loop.
    pub requests: Sender<Inbound>,
    /// Back out.
    pub responder: Responder,
    /// To the leader, if that is another node.
    pub forward: Forwarder,
    /// What this node leads, and what nobody does.
    pub listen: watch::Receiver<Vec<Listen>>,
    /// Whether this process has just stood still.
    pub stall: Arc<Stall>,
}

/// For how long a node goes on listening on the subjects of a shard that it led, or that nobody
/// led. A request that the server routed before it saw us leave would be lost: async-nats forgets a
/// subscription when it sends the server word, not when the server has it. And who is elected
/// listens only once it knows all that its term began with; its peers hear of it before. By the end
/// of this the next leader listens too.
pub const LINGER: Duration = Duration::from_millis(400);

/// How an ear is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    /// At once.
    Now,
    /// After [`LINGER`].
    Later,
}

/// A subscription and the task that reads it. Dropped, it closes too, with nobody waiting.
#[derive(Debug)]
pub struct Ear {
    close: oneshot::Sender<Close>,
    closed: oneshot::Receiver<()>,
    takes: Arc<AtomicBool>,
    lingers: bool,
}

impl Ear {
    /// Unsubscribes; what has come by then is still handled, after this has returned.
    pub async fn close(self) {
        let _ = self.close.send(Close::Now);
        // Fails if the task has ended already: so has the subscription.
        let _ = self.closed.await;
    }

    /// From now on nothing that comes is taken in; it is passed on to whoever leads.
    fn only_pass_on(&self) {
        self.takes.store(false, Ordering::Release);
    }

    /// [`Ear::only_pass_on`], and as [`Ear::close`], or, if it lingers, in a while.
    async fn leave(self) {
        self.only_pass_on();
        if self.lingers {
            let _ = self.close.send(Close::Later);
        } else {
            self.close().await;
        }
    }
}

impl Service {
    /// Listens on what every node listens on: plain and admin subjects, malformed ones too. Ends
    /// with what it returns.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_plain(&self) -> anyhow::Result<Vec<Ear>> {
        let subjects = &self.parser.subjects;
        let mut ears = Vec::new();
        for subject in [
            subjects.line_all(),
            subjects.admin_line_all(),
            subjects.admin_cluster_all(),
        ] {
            ears.push(self.in_group(subject, false).await?);
        }
        Ok(ears)
    }

    /// Follows what the shard loop says about who leads, for ever: as a leader listens on its
    /// shard's subjects; without any leader all nodes do, as one group.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_shards(self) -> anyhow::Result<()> {
        let mut wanted = self.listen.clone();
        let mut current: Vec<(Listen, Vec<Ear>)> = Vec::new();
        loop {
            let now = wanted.borrow_and_update().clone();
            current.resize_with(now.len(), Default::default);
            for (shard, (listen, slot)) in now.into_iter().zip(&mut current).enumerate() {
                if slot.0 == listen {
                    continue;
                }
                // What the server routes to an old ear and to a new one must not be taken in twice.
                slot.1.iter().for_each(Ear::only_pass_on);
                // The new ones first, so that at no moment nobody listens: on a busy connection
                // it takes its time.
                let ears = self.listen_shard(shard as u32, listen).await?;
                let old = std::mem::replace(slot, (listen, ears));
                for ear in old.1 {
                    ear.leave().await;
                }
            }
            if wanted.changed().await.is_err() {
                // The shard loop has ended: this node is about to.
                for ear in current.into_iter().flat_map(|(_, ears)| ears) {
                    ear.leave().await;
                }
                return Ok(());
            }
        }
    }

    async fn listen_shard(&self, shard: u32, listen: Listen) -> anyhow::Result<Vec<Ear>> {
        let Parser {
            subjects, forward, ..
        } = &*self.parser;
        let mut ears = Vec::new();
        match listen {
            Listen::No => {}
            Listen::Leader => {
                for (subjects, lingers) in [(subjects, true), (forward, false)] {
                    for subject in [subjects.shard_all(shard), subjects.admin_shard_all(shard)] {
                        let messages = self.client.subscribe(subject).await?;
                        ears.push(self.hear(messages, lingers));
                    }
                }
            }
            Listen::Orphan => {
                for subject in [subjects.shard_all(shard), subjects.admin_shard_all(shard)] {
                    ears.push(self.in_group(subject, true).await?);
                }
            }
        }
        Ok(ears)
    }

    async fn in_group(&self, subject: String, lingers: bool) -> anyhow::Result<Ear> {
        let group = QUEUE_GROUP.into();
        let messages = self.client.queue_subscribe(subject, group).await?;
        Ok(self.hear(messages, lingers))
    }

    /// `lingers`: see [`LINGER`]. Not on subjects where nodes pass requests on: they would take our
    /// "not the leader" for the next leader's word.
    fn hear(&self, messages: Subscriber, lingers: bool) -> Ear {
        let (close, closing) = oneshot::channel();
        let (left, closed) = oneshot::channel();
        let takes = Arc::new(AtomicBool::new(true));
        let service = self.clone();
        tokio::spawn(service.handle_all(messages, closing, left, takes.clone()));
        Ear {
            close,
            closed,
            takes,
            lingers,
        }
    }

    /// Handles what comes until told to close; what has come by then is still handled.
    async fn handle_all(
        self,
        mut messages: Subscriber,
        mut closing: oneshot::Receiver<Close>,
        left: oneshot::Sender<()>,
        takes: Arc<AtomicBool>,
    ) {
        let may_take = || takes.load(Ordering::Acquire);
        let close = loop {
            tokio::select! {
                biased;
                close = &mut closing => break close.unwrap_or(Close::Now),
                message = messages.next() => match message {
                    Some(message) => self.handle(message, may_take()).await,
                    None => return,
                }
            }
        };
        if close == Close::Later {
            let until = tokio::time::Instant::now() + LINGER;
            while let Ok(Some(message)) = tokio::time::timeout_at(until, messages.next()).await {
                self.handle(message, may_take()).await;
            }
        }
        let drained = messages.drain().await;
        // Nobody may be waiting for it.
        let _ = left.send(());
        if drained.is_ok() {
            while let Some(message) = messages.next().await {
                self.handle(message, may_take()).await;
            }
        }
    }

    /// `may_take`: if this node leads, the request is its own; else it is only passed on, as
    /// another ear of this node may have it too.
    async fn handle(&self, message: Message, may_take: bool) {
        if message
            .reply
            .as_ref()
            .is_some_and(|reply| !self.parser.subjects.may_reply_to(reply))
        {
            // An answer there would be a request, a frame or an event in this node's name.
            metrics::counter!("nowserving_replies_refused_total").increment(1);
            return;
        }
        let parsed = match self.parser.parse(&message) {
            Ok(parsed) => parsed,
            Err(refused) => return self.responder.refuse(&refused.reply, refused.error).await,
        };
        match parsed.inbound {
            Inbound::Line(_) => self.route(parsed, message, may_take).await,
            cluster @ Inbound::Cluster(..) => self.hand_in(cluster).await,
        }
    }

    /// Into the loop if this node leads the shard (or any may answer), else to the leader.
    async fn route(&self, parsed: Parsed, message: Message, may_take: bool) {
        let Parsed {
            inbound: Inbound::Line(mut request),
            for_leader,
            forwarded,
            keyless,
        } = parsed
        else {
            return;
        };
        let now = monotonic_us();
        if for_leader && !forwarded && request.ask.is_write() && self.stall.is_suspect(now) {
            // Another node may have it too, and have said that nothing happened.
            return self
                .responder
                .refuse(&request.reply, outcome_unknown())
                .await;
        }
        let listen = self.listening(request.shard);
        if (may_take && listen == Listen::Leader) || request.ask.is_local() {
            return self.hand_in(Inbound::Line(request)).await;
        }
        if forwarded {
            // Passed on to us when we led: its forwarder tries again.
            let error = ApiError::not_leader(None);
            return self.responder.refuse(&request.reply, error).await;
        }
        if for_leader && (keyless || !is_repeatable(request.reply.op)) {
            // A leader may listen all the same and have taken it too. Mostly, passing it on does no
            // harm; but without a key it could take two numbers, and a `create` be told that the
            // line exists, by itself.
            return self
                .forward
                .give_up_in_time(request.reply, request.deadline);
        }
        if !may_take {
            // The next leader has it too; ours must not be done after it has spoken.
            request.deadline = now + request.deadline.saturating_sub(now) / 2;
            request.reply.doubtful = true;
        }
        let way_on = || self.parser.way_on(&message);
        request.reply.plain.get_or_insert_with(way_on);
        self.forward.start(request.reply, request.deadline);
    }

    fn listening(&self, shard: u32) -> Listen {
        self.listen
            .borrow()
            .get(shard as usize)
            .copied()
            .unwrap_or_default()
    }

    async fn hand_in(&self, inbound: Inbound) {
        let refused = if self.responder.stats.admit() {
            match self.requests.try_send(inbound) {
                Ok(()) => return,
                Err(TrySendError::Full(inbound) | TrySendError::Disconnected(inbound)) => {
                    self.responder.stats.done();
                    inbound
                }
            }
        } else {
            inbound
        };
        self.responder.stats.turn_away();
        let reply = match refused {
            Inbound::Line(request) => request.reply,
            Inbound::Cluster(_, reply) => reply,
        };
        self.responder.refuse(&reply, overloaded()).await;
    }
}
