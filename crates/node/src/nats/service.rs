//! Requests on their way in: taken in, passed on, or refused.

use std::sync::Arc;

use async_nats::{Client, Message};
use crossbeam_channel::{Sender, TrySendError};
use nowserving_protocol::error::ApiError;
use tokio::sync::watch;

use super::forward::{Forwarder, is_repeatable};
use super::mapping;
use super::parse::{Parsed, Parser};
use super::respond::Responder;
use super::stall::Stall;
use crate::clock::monotonic_us;
use crate::request::Inbound;
use nowserving_engine::refusals::{outcome_unknown, overloaded};
use nowserving_engine::{Effect, Subscription};

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
    pub listen: watch::Receiver<Vec<Subscription>>,
    /// Whether this process has just stood still.
    pub stall: Arc<Stall>,
}

impl Service {
    /// `may_take`: if this node leads, in its lease, the request is its own; else it is only passed
    /// on, as another ear of this node may have it too.
    pub(super) async fn handle(&self, message: Message, may_take: bool) {
        if message.reply.is_none() && mapping::is_probe(&message.subject) {
            return;
        }
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

    /// Into the loop if this node leads the shard in its lease (or any may answer), else to the
    /// leader.
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
        if for_leader && !forwarded && request.ask.effect().is_write() && self.stall.is_suspect(now)
        {
            // Another node may have it too, and have said that nothing happened.
            return self
                .responder
                .refuse(&request.reply, outcome_unknown())
                .await;
        }
        let leads = matches!(self.listening(request.shard), Subscription::Leader { .. });
        if (may_take && leads) || request.ask.effect() == Effect::ReadLocal {
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
        // An orphan mostly has it alone; an ear that only passes on has a successor.
        request.reply.doubtful = !may_take;
        if !may_take && request.ask.effect().is_write() {
            // Ours must not be done after the successor has spoken.
            request.deadline = now + request.deadline.saturating_sub(now) / 2;
        }
        let way_on = || self.parser.way_on(&message);
        request.reply.plain.get_or_insert_with(way_on);
        self.forward.start(request.reply, request.deadline);
    }

    fn listening(&self, shard: u32) -> Subscription {
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
