//! This node's subscriptions for requests. On a role change a node subscribes for its new
//! role before it unsubscribes the old one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use nowserving_engine::{ShardDelivery, Standing, Subscription, Via};
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;
use tokio::sync::{oneshot, watch};

use super::service::Service;
use crate::clock::monotonic_us;

/// On subjects that any node may take, the nodes share the work in this group.
const QUEUE_GROUP: &str = "nowserving";

/// For how long a node drains its subscriptions to the subjects of a shard that it led, or that nobody
/// led. A request that the server routed before it saw this node unsubscribe would be lost: async-nats
/// forgets a subscription when it sends the server word, not when the server has it. By the end of this
/// the next leader has subscribed too.
const DRAIN: Duration = Duration::from_millis(400);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    /// At once.
    Now,
    /// After [`DRAIN`].
    Later,
}

/// A subscription and the task that reads it. Dropped, it closes too, with nobody waiting.
#[derive(Debug)]
pub struct Listener {
    close: oneshot::Sender<Close>,
    closed: oneshot::Receiver<()>,
    draining: Arc<AtomicBool>,
}

impl Listener {
    /// Unsubscribes. Messages that have arrived by then are handled after this has returned.
    pub async fn close(self) {
        let _ = self.close.send(Close::Now);
        // Fails if the task has ended already: so has the subscription.
        let _ = self.closed.await;
    }

    /// Marks the messages from now on: a replacement may get them too.
    fn forward_only(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Closes in a while ([`DRAIN`]).
    fn drain(self) {
        let _ = self.close.send(Close::Later);
    }
}

#[derive(Debug, Default)]
struct ShardListeners {
    subscription: Subscription,
    /// For clients and operators.
    front: Vec<Listener>,
    /// For requests that nodes forward, and for checks of rate limits. Only while this node leads: a forwarding node
    /// would take its "not the leader" for the next leader's answer.
    leading: Vec<Listener>,
}

async fn close_all(listeners: &mut Vec<Listener>) {
    for listener in listeners.drain(..) {
        listener.close().await;
    }
}

impl Service {
    /// While this node takes part, listens on what every node listens on: plain and admin subjects,
    /// malformed ones too. Ends, with none of them left open, when `stop` does.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_plain(
        self,
        mut standing: watch::Receiver<Standing>,
        mut stop: oneshot::Receiver<()>,
    ) -> anyhow::Result<()> {
        let subjects = &self.parser.subjects;
        let subjects = [
            subjects.line_all(),
            subjects.admin_line_all(),
            subjects.admin_cluster_all(),
            subjects.kv_all(),
            subjects.admin_kv_all(),
            subjects.limit_all(),
            subjects.admin_limit_all(),
        ];
        let mut listeners = Vec::new();
        loop {
            let listens = !listeners.is_empty();
            tokio::select! {
                biased;
                _ = &mut stop => break,
                changed = standing.wait_for(|it| it.is_in_touch() != listens) => {
                    if changed.is_err() {
                        break;
                    }
                }
            }
            if listens {
                close_all(&mut listeners).await;
            } else {
                listeners = self.listen_all(subjects.clone(), true, Via::Plain).await?;
            }
        }
        close_all(&mut listeners).await;
        Ok(())
    }

    /// Follows what the engine says about each shard, until it ends.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_shards(self) -> anyhow::Result<()> {
        let mut wanted = self.subscriptions.clone();
        let mut shards: BTreeMap<u32, ShardListeners> = BTreeMap::new();
        loop {
            let now = wanted.borrow_and_update().clone();
            for (shard, subscription) in now {
                let listeners = shards.entry(shard).or_default();
                self.listen_as(shard, subscription, listeners).await?;
            }
            if wanted.changed().await.is_err() {
                // The engine has ended: this node is about to.
                for (shard, listeners) in &mut shards {
                    self.listen_as(*shard, Subscription::No, listeners).await?;
                }
                return Ok(());
            }
        }
    }

    async fn listen_as(
        &self,
        shard: u32,
        subscription: Subscription,
        listeners: &mut ShardListeners,
    ) -> anyhow::Result<()> {
        let was = std::mem::replace(&mut listeners.subscription, subscription);
        if was == subscription {
            return Ok(());
        }
        // A message that the server routes to both an old and a new subscription must be taken once.
        listeners.front.iter().for_each(Listener::forward_only);
        close_all(&mut listeners.leading).await;
        let on = |subjects: &Subjects| [subjects.shard_all(shard), subjects.admin_shard_all(shard)];
        let front = on(&self.parser.subjects);
        let new = match subscription {
            Subscription::No => Vec::new(),
            Subscription::Leader { .. } => {
                // First: a node that gets the same request as this one forwards it to this subject.
                let forward = on(&self.parser.forward);
                listeners.leading = self.listen_all(forward, false, Via::Forwarded).await?;
                // In the group: if a former leader still listens, one of them gets a check, and it counts once.
                let checks = [self.parser.subjects.limit_leader_all(shard)];
                let checks = self.listen_all(checks, true, Via::Plain).await?;
                listeners.leading.extend(checks);
                let via = Via::Shard(ShardDelivery::Leader);
                self.listen_all(front, false, via).await?
            }
            Subscription::Leaderless => {
                let via = Via::Shard(ShardDelivery::Leaderless);
                self.listen_all(front, true, via).await?
            }
        };
        // Only now are the old ones closed, so that there is always a subscription: on a busy connection this
        // takes time.
        let old = std::mem::replace(&mut listeners.front, new);
        old.into_iter().for_each(Listener::drain);
        Ok(())
    }

    /// `in_group`: each message goes to one of those who listen so.
    async fn listen_all<const N: usize>(
        &self,
        subjects: [String; N],
        in_group: bool,
        via: Via,
    ) -> anyhow::Result<Vec<Listener>> {
        let mut listeners = Vec::with_capacity(N);
        for subject in subjects {
            let now = monotonic_us();
            let messages = if in_group {
                let group = QUEUE_GROUP.into();
                self.client.queue_subscribe(subject, group).await?
            } else {
                self.client.subscribe(subject).await?
            };
            listeners.push(self.listen(messages, via, now));
        }
        Ok(listeners)
    }

    fn listen(&self, from: Subscriber, via: Via, subscribed_at: Micros) -> Listener {
        let messages = Messages {
            from,
            probed: self.probed.clone(),
            routed_after: subscribed_at,
        };
        let (close, closing) = oneshot::channel();
        let (left, closed) = oneshot::channel();
        let draining = Arc::new(AtomicBool::new(false));
        let service = self.clone();
        tokio::spawn(service.handle_all(messages, closing, left, via, draining.clone()));
        Listener {
            close,
            closed,
            draining,
        }
    }

    /// Handles messages until it is closed, and then those that have arrived by then.
    async fn handle_all(
        self,
        mut messages: Messages,
        mut closing: oneshot::Receiver<Close>,
        left: oneshot::Sender<()>,
        via: Via,
        draining: Arc<AtomicBool>,
    ) {
        let via = || match via {
            Via::Shard(_) if draining.load(Ordering::Acquire) => {
                Via::Shard(ShardDelivery::Draining)
            }
            via => via,
        };
        let close = loop {
            tokio::select! {
                biased;
                close = &mut closing => break close.unwrap_or(Close::Now),
                message = messages.next() => match message {
                    Some((message, routed_after)) => {
                        self.handle(message, via(), routed_after).await;
                    }
                    None => return,
                }
            }
        };
        if close == Close::Later {
            let until = tokio::time::Instant::now() + DRAIN;
            while let Ok(Some((message, routed_after))) =
                tokio::time::timeout_at(until, messages.next()).await
            {
                self.handle(message, via(), routed_after).await;
            }
        }
        let drained = messages.from.drain().await;
        // Nobody may be waiting for it.
        let _ = left.send(());
        if drained.is_ok() {
            while let Some((message, routed_after)) = messages.next().await {
                self.handle(message, via(), routed_after).await;
            }
        }
    }
}

/// The messages of one subscription, each with a moment after which NATS has routed it to this node.
///
/// async-nats gives messages to their subscriptions in the order in which they came. So after a probe
/// came back, and this subscription was empty after that, what it brings was routed after the probe was
/// sent. Nothing else would tell: a process that was stopped, or a connection that stalled, reads old
/// messages as if they were new.
struct Messages {
    from: Subscriber,
    /// The time of sending of the newest probe that came back.
    probed: watch::Receiver<Micros>,
    routed_after: Micros,
}

impl Messages {
    /// Can be cancelled without losing a message.
    async fn next(&mut self) -> Option<(Message, Micros)> {
        loop {
            let probed = *self.probed.borrow_and_update();
            // Outside of tokio's budget: without it, `next` can claim to be empty when it is not.
            let waiting = tokio::task::unconstrained(self.from.next()).now_or_never();
            if let Some(message) = waiting {
                return Some((message?, self.routed_after));
            }
            self.routed_after = self.routed_after.max(probed);
            tokio::select! {
                biased;
                message = self.from.next() => return Some((message?, self.routed_after)),
                changed = self.probed.changed() => if changed.is_err() {
                    // The probe has ended, as the node does.
                    return Some((self.from.next().await?, self.routed_after));
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "subscriptions_tests.rs"]
mod tests;
