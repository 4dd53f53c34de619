//! Which subjects this node listens on for requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt as _;
use nowserving_protocol::subject::Subjects;
use tokio::sync::{oneshot, watch};

use super::service::Service;
use nowserving_engine::Subscription;
use nowserving_engine::contact::Standing;

/// On subjects that any node may take, the nodes share the work in this group.
const QUEUE_GROUP: &str = "nowserving";

/// For how long a node goes on listening on the subjects of a shard that it led, or that nobody
/// led. A request that the server routed before it saw us leave would be lost: async-nats forgets a
/// subscription when it sends the server word, not when the server has it. By the end of this who
/// leads next listens too.
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

    /// [`Ear::only_pass_on`], and closes in a while ([`LINGER`]).
    fn linger(self) {
        self.only_pass_on();
        let _ = self.close.send(Close::Later);
    }
}

/// How this node listens on a shard's subjects, and with what.
#[derive(Debug, Default)]
struct ShardEars {
    listen: Subscription,
    /// Where users and operators ask.
    front: Vec<Ear>,
    /// Where nodes pass requests on. Only while we lead: they would take our "not the leader" for
    /// the next leader's word.
    forward: Vec<Ear>,
}

async fn close_all(ears: &mut Vec<Ear>) {
    for ear in ears.drain(..) {
        ear.close().await;
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
        ];
        let mut ears = Vec::new();
        loop {
            let listens = !ears.is_empty();
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
                close_all(&mut ears).await;
            } else {
                ears = self.listen_all(subjects.clone(), true).await?;
            }
        }
        close_all(&mut ears).await;
        Ok(())
    }

    /// Follows what the shard loop says about who leads, until it ends: a leader listens on its
    /// shard's subjects; without any leader all nodes do, as one group.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_shards(self) -> anyhow::Result<()> {
        let mut wanted = self.listen.clone();
        let mut shards: Vec<ShardEars> = Vec::new();
        loop {
            let now = wanted.borrow_and_update().clone();
            shards.resize_with(now.len(), Default::default);
            for (shard, (listen, ears)) in now.into_iter().zip(&mut shards).enumerate() {
                self.listen_as(shard as u32, listen, ears).await?;
            }
            if wanted.changed().await.is_err() {
                // The shard loop has ended: this node is about to.
                for (shard, ears) in shards.iter_mut().enumerate() {
                    self.listen_as(shard as u32, Subscription::No, ears).await?;
                }
                return Ok(());
            }
        }
    }

    async fn listen_as(
        &self,
        shard: u32,
        listen: Subscription,
        ears: &mut ShardEars,
    ) -> anyhow::Result<()> {
        let was = std::mem::replace(&mut ears.listen, listen);
        if was == listen {
            return Ok(());
        }
        // What the server routes to an old ear and to a new one must not be taken in twice.
        ears.front.iter().for_each(Ear::only_pass_on);
        close_all(&mut ears.forward).await;
        let on = |subjects: &Subjects| [subjects.shard_all(shard), subjects.admin_shard_all(shard)];
        let front = on(&self.parser.subjects);
        let new = match listen {
            Subscription::No => Vec::new(),
            Subscription::Leader { .. } => {
                // First: who hears a request beside us passes it on to there.
                ears.forward = self.listen_all(on(&self.parser.forward), false).await?;
                self.listen_all(front, false).await?
            }
            Subscription::Leaderless => self.listen_all(front, true).await?,
        };
        // Only now away from the old ones, so that at no moment nobody listens: on a busy connection
        // all this takes its time.
        let old = std::mem::replace(&mut ears.front, new);
        old.into_iter().for_each(Ear::linger);
        Ok(())
    }

    /// `in_group`: each message goes to one of those who listen so.
    async fn listen_all<const N: usize>(
        &self,
        subjects: [String; N],
        in_group: bool,
    ) -> anyhow::Result<Vec<Ear>> {
        let mut ears = Vec::with_capacity(N);
        for subject in subjects {
            let messages = if in_group {
                let group = QUEUE_GROUP.into();
                self.client.queue_subscribe(subject, group).await?
            } else {
                self.client.subscribe(subject).await?
            };
            ears.push(self.hear(messages));
        }
        Ok(ears)
    }

    fn hear(&self, messages: Subscriber) -> Ear {
        let (close, closing) = oneshot::channel();
        let (left, closed) = oneshot::channel();
        let takes = Arc::new(AtomicBool::new(true));
        let service = self.clone();
        tokio::spawn(service.handle_all(messages, closing, left, takes.clone()));
        Ear {
            close,
            closed,
            takes,
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
}
