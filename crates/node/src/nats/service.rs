//! Requests on their way in: which subjects this node listens on, and what it does with what
//! comes.

use std::sync::Arc;

use async_nats::{Client, Message, Subscriber};
use crossbeam_channel::{Sender, TrySendError};
use futures::StreamExt as _;
use nowserving_protocol::error::ApiError;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::forward::Forwarder;
use super::parse::{Parsed, Parser};
use super::respond::Responder;
use crate::request::{Inbound, Plain, Request};
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
}

impl Service {
    /// Listens on what every node listens on: plain and admin subjects, malformed ones too.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_plain(&self) -> anyhow::Result<()> {
        let subjects = &self.parser.subjects;
        for subject in [
            subjects.line_all(),
            subjects.admin_line_all(),
            subjects.admin_cluster_all(),
        ] {
            let messages = self
                .client
                .queue_subscribe(subject, QUEUE_GROUP.into())
                .await?;
            tokio::spawn(self.clone().handle_all(messages));
        }
        Ok(())
    }

    /// Follows what the shard loop says about who leads, for ever: as a leader listens on its
    /// shard's subjects; without any leader all nodes do, as one group.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn listen_shards(self) -> anyhow::Result<()> {
        let mut wanted = self.listen.clone();
        let mut current: Vec<(Listen, Vec<JoinHandle<()>>)> = Vec::new();
        loop {
            let now = wanted.borrow_and_update().clone();
            current.resize_with(now.len(), Default::default);
            for (shard, (listen, slot)) in now.into_iter().zip(&mut current).enumerate() {
                if slot.0 == listen {
                    continue;
                }
                // Dropping a subscription's stream unsubscribes. What the server has sent by then
                // is lost to the requester, who tries again; a leader that lost its lease could
                // not have answered it either.
                for task in slot.1.drain(..) {
                    task.abort();
                }
                slot.0 = listen;
                slot.1 = self.listen_shard(shard as u32, listen).await?;
            }
            if wanted.changed().await.is_err() {
                return Ok(());
            }
        }
    }

    async fn listen_shard(
        &self,
        shard: u32,
        listen: Listen,
    ) -> anyhow::Result<Vec<JoinHandle<()>>> {
        let subjects = &self.parser.subjects;
        let mut tasks = Vec::new();
        for subject in [subjects.shard_all(shard), subjects.admin_shard_all(shard)] {
            let messages = match listen {
                Listen::No => continue,
                Listen::Leader => self.client.subscribe(subject).await?,
                Listen::Orphan => {
                    self.client
                        .queue_subscribe(subject, QUEUE_GROUP.into())
                        .await?
                }
            };
            tasks.push(tokio::spawn(self.clone().handle_all(messages)));
        }
        Ok(tasks)
    }

    async fn handle_all(self, mut messages: Subscriber) {
        while let Some(message) = messages.next().await {
            self.handle(message).await;
        }
    }

    async fn handle(&self, message: Message) {
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
            Inbound::Line(_) => self.route(parsed, message).await,
            cluster @ Inbound::Cluster(..) => self.hand_in(cluster).await,
        }
    }

    /// Into the loop if this node leads the shard (or any may answer), else to the leader.
    async fn route(&self, parsed: Parsed, message: Message) {
        let Parsed {
            inbound: Inbound::Line(mut request),
            for_leader,
            forwarded,
            keyless,
        } = parsed
        else {
            return;
        };
        let listen = self.listening(request.shard);
        if listen == Listen::Leader || request.ask.is_local() {
            return self.hand_in(Inbound::Line(request)).await;
        }
        if forwarded {
            // Passed on to us when we led, or when nobody did: its forwarder tries again.
            let error = ApiError::not_leader(None);
            return self.responder.refuse(&request.reply, error).await;
        }
        if for_leader && keyless {
            // A new leader may listen by now and have taken it too. Under a key, passing it on
            // would do no harm; without one it could take two numbers.
            return self
                .responder
                .refuse(&request.reply, outcome_unknown())
                .await;
        }
        self.add_way_on(&mut request, message);
        self.forward.start(request.reply, request.deadline);
    }

    /// A request on a shard subject that nobody leads is passed on to itself, later.
    fn add_way_on(&self, request: &mut Request, message: Message) {
        request.reply.plain.get_or_insert_with(|| {
            Box::new(Plain {
                leader_subject: message.subject.to_string(),
                payload: message.payload,
            })
        });
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
        let (Inbound::Line(Request { reply, .. }) | Inbound::Cluster(_, reply)) = refused;
        self.responder.refuse(&reply, overloaded()).await;
    }
}
