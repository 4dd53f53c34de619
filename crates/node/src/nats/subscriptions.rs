//! Makes and ends this node's subscriptions for requests as [`Subscriptions`] says, and reads what comes by them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use nowserving_engine::{Standing, Subscription, Via};
use nowserving_front::subscriptions::{Change, Reader, SubscriptionId, Subscriptions};
use nowserving_shard::clock::Micros;
use tokio::sync::{oneshot, watch};

use super::service::Service;
use crate::clock::monotonic_us;

/// A subscription's task gives way to others after so many messages.
const AT_ONCE_MAX: usize = 256;

/// A subscription's task. Dropped, it closes too, with nobody waiting.
#[derive(Debug)]
struct Listener {
    close: oneshot::Sender<()>,
    closed: oneshot::Receiver<()>,
    forward_only: Arc<AtomicBool>,
}

/// Whether a node listens on plain subjects.
#[derive(Debug)]
pub struct PlainSubjects {
    pub standing: watch::Receiver<Standing>,
    /// Resolved: no longer.
    pub stop: oneshot::Receiver<()>,
    /// Dropped once none of them is open.
    pub closed: oneshot::Sender<()>,
}

/// The next change of that. `None`: it listens there no longer.
async fn plain_changed(plain: &mut Option<PlainSubjects>) -> Option<bool> {
    let Some(plain) = plain else {
        return std::future::pending().await;
    };
    tokio::select! {
        biased;
        _ = &mut plain.stop => None,
        changed = plain.standing.changed() => {
            changed.ok()?;
            Some(plain.standing.borrow_and_update().is_in_touch())
        }
    }
}

impl Service {
    /// Follows what the engine says about this node and each shard of its loop, until it ends. `plain`: for the first loop.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen(self, mut plain: Option<PlainSubjects>) -> anyhow::Result<()> {
        let mut roles = self.subscriptions.clone();
        roles.mark_changed();
        if let Some(plain) = &mut plain {
            plain.standing.mark_changed();
        }
        let (subjects, forward) = (&self.parser.subjects, &self.parser.forward);
        let mut subscriptions = Subscriptions::new(subjects.clone(), forward.clone());
        let mut listeners = BTreeMap::new();
        let mut engine_ended = false;
        while !engine_ended || subscriptions.next_due().is_some() {
            let mut plain_ended = None;
            let changes = tokio::select! {
                biased;
                takes_part = plain_changed(&mut plain) => {
                    if takes_part.is_none() {
                        plain_ended = plain.take();
                    }
                    subscriptions.take_part(takes_part == Some(true), monotonic_us())
                }
                changed = roles.changed(), if !engine_ended => {
                    engine_ended = changed.is_err();
                    follow(&mut subscriptions, &mut roles, engine_ended)
                }
                () = until(subscriptions.next_due()) => subscriptions.drained(monotonic_us()),
            };
            for change in changes {
                self.change(change, &mut listeners).await?;
            }
            drop(plain_ended);
        }
        Ok(())
    }

    async fn change(
        &self,
        change: Change,
        listeners: &mut BTreeMap<SubscriptionId, Listener>,
    ) -> anyhow::Result<()> {
        match change {
            Change::Subscribe {
                id,
                subject,
                group,
                reader,
            } => {
                let messages = match group {
                    Some(group) => self.client.queue_subscribe(subject, group.into()).await?,
                    None => self.client.subscribe(subject).await?,
                };
                listeners.insert(id, self.read(messages, reader));
            }
            Change::ForwardOnly(id) => {
                if let Some(listener) = listeners.get(&id) {
                    listener.forward_only.store(true, Ordering::Release);
                }
            }
            Change::Unsubscribe(id) => {
                if let Some(listener) = listeners.remove(&id) {
                    let _ = listener.close.send(());
                    // Fails if the task has ended already: so has the subscription.
                    let _ = listener.closed.await;
                }
            }
        }
        Ok(())
    }

    fn read(&self, from: Subscriber, reader: Reader) -> Listener {
        let forward_only = Arc::new(AtomicBool::new(false));
        let messages = Messages {
            from,
            probed: self.probed.clone(),
            reader,
            forward_only: forward_only.clone(),
        };
        let (close, closing) = oneshot::channel();
        let (left, closed) = oneshot::channel();
        tokio::spawn(self.clone().handle_all(messages, closing, left));
        Listener {
            close,
            closed,
            forward_only,
        }
    }

    /// Handles messages until it is closed, and then those that have arrived by then.
    async fn handle_all(
        self,
        mut messages: Messages,
        mut closing: oneshot::Receiver<()>,
        left: oneshot::Sender<()>,
    ) {
        let stats = &self.responder.stats;
        for nth in 1_usize.. {
            tokio::select! {
                biased;
                _ = &mut closing => break,
                message = messages.next() => match message {
                    Some((message, (via, routed_after))) => {
                        self.handle(message, via, routed_after).await;
                    }
                    None => return,
                }
            }
            if nth.is_multiple_of(AT_ONCE_MAX) {
                // The turn ends meanwhile, and frames are read.
                let _unread = stats.unread();
                tokio::task::yield_now().await;
            }
        }
        let drained = messages.from.drain().await;
        // Nobody may be waiting for it.
        let _ = left.send(());
        if drained.is_ok() {
            while let Some((message, (via, routed_after))) = messages.next().await {
                self.handle(message, via, routed_after).await;
            }
        }
    }
}

/// The changes of all shards. `ended`: the engine has ended, and this node is about to.
fn follow(
    subscriptions: &mut Subscriptions,
    roles: &mut watch::Receiver<BTreeMap<u32, Subscription>>,
    ended: bool,
) -> Vec<Change> {
    let now = monotonic_us();
    if ended {
        return subscriptions.end(now);
    }
    let roles = roles.borrow_and_update().clone().into_iter();
    let changes = roles.map(|(shard, role)| subscriptions.follow(shard, role, now));
    changes.collect::<Vec<_>>().concat()
}

async fn until(due: Option<Micros>) {
    match due {
        Some(due) => {
            let left = due.saturating_sub(monotonic_us());
            tokio::time::sleep(Duration::from_micros(left)).await;
        }
        None => std::future::pending().await,
    }
}

/// The messages of one subscription.
struct Messages {
    from: Subscriber,
    /// The time of sending of the newest probe that came back.
    probed: watch::Receiver<Micros>,
    reader: Reader,
    forward_only: Arc<AtomicBool>,
}

impl Messages {
    /// With how it came, and a moment after which NATS has routed it to this node. Can be cancelled without losing a
    /// message.
    async fn next(&mut self) -> Option<(Message, (Via, Micros))> {
        loop {
            let probed = *self.probed.borrow_and_update();
            // Outside of tokio's budget: without it, `next` can claim to be empty when it is not.
            let waiting = tokio::task::unconstrained(self.from.next()).now_or_never();
            if let Some(message) = waiting {
                return Some((message?, self.stamp()));
            }
            self.reader.found_empty(probed);
            tokio::select! {
                biased;
                message = self.from.next() => return Some((message?, self.stamp())),
                changed = self.probed.changed() => if changed.is_err() {
                    // The probe has ended, as the node does.
                    return Some((self.from.next().await?, self.stamp()));
                }
            }
        }
    }

    fn stamp(&mut self) -> (Via, Micros) {
        if self.forward_only.load(Ordering::Acquire) {
            self.reader.forward_only();
        }
        self.reader.next()
    }
}

#[cfg(test)]
#[path = "subscriptions_tests.rs"]
mod tests;
