//! Requests on their way in: read, checked, and given to the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::{Client, Message};
use crossbeam_channel::{Sender, TrySendError};
use nowserving_engine::refusals::{late, overloaded};
use nowserving_engine::{Input, Subscription, Via, lay_unread, turned_away};
use nowserving_front::parse::{Parser, Reading};
use nowserving_shard::clock::Micros;
use tokio::sync::watch;

use super::limits::Limits;
use super::many_lines::ManyLines;
use super::mapping;
use super::message::{reply_to, viewed};
use super::public_keys::PublicKeys;
use super::respond::Responder;
use crate::{clock, traces};

/// Everything that handling a request needs.
#[derive(Debug, Clone)]
pub struct Service {
    pub client: Client,
    pub parser: Arc<Parser>,
    /// Into the engine.
    pub requests: Sender<Input>,
    /// Back out.
    pub responder: Responder,
    pub many_lines: ManyLines,
    pub public_keys: PublicKeys,
    pub limits: Arc<Limits>,
    pub subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    /// The time of sending of the newest probe that came back.
    pub probed: watch::Receiver<Micros>,
}

impl Service {
    /// Handles a message that came by the subscription `via` and was routed after this moment.
    pub(super) async fn handle(&self, message: Message, via: Via, routed_after: Micros) {
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
        if self.public_keys.takes(&message) {
            return self.public_keys.handle(&message).await;
        }
        let many_lines = self.many_lines.takes(&message);
        if many_lines || (via == Via::Plain && self.limits.takes(&message)) {
            let reply = reply_to(&message);
            // No other node has it, and those that are asked because of it could not tell that it is late.
            if lay_unread(reply.taken, routed_after) {
                metrics::counter!("nowserving_late_writes_total").increment(1);
                return self.responder.refuse(&reply, late()).await;
            }
            return match many_lines {
                true => self.many_lines.handle(message, reply).await,
                false => self.limits.handle(message, reply).await,
            };
        }
        let (keys, rules) = (self.responder.keys.in_use(), self.limits.known_now());
        let reading = Reading {
            via,
            routed_after,
            now: clock::now(),
            trace: traces::begun(message.headers.as_ref()),
            keys: &keys,
            rules: rules.as_deref(),
        };
        match viewed(&message, |it| self.parser.parse(it, reading)) {
            Ok(input) => self.hand_in(input).await,
            Err(refused) => self.responder.refuse(&refused.reply, refused.error).await,
        }
    }

    async fn hand_in(&self, input: Input) {
        let refused = if self.responder.stats.admit() {
            match self.requests.try_send(input) {
                Ok(()) => return,
                Err(TrySendError::Full(input) | TrySendError::Disconnected(input)) => {
                    self.responder.stats.answered();
                    input
                }
            }
        } else {
            input
        };
        self.responder.stats.turn_away();
        let (reply, error) = match refused {
            Input::Request { request, delivery } => {
                let error = turned_away(delivery.via, request.ask.effect(), false);
                (request.reply, error)
            }
            Input::Cluster { reply, .. } => (reply, overloaded()),
            // Only those two are handed in here.
            _ => return,
        };
        self.responder.refuse(&reply, error).await;
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
