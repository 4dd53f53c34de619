//! Requests on their way in: read, checked, and given to the engine.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::{Client, Message};
use nowserving_engine::refusals::late;
use nowserving_engine::{Input, Subscription, Via};
use nowserving_front::parse::{Parser, Reading};
use nowserving_front::routes::{Route, no_room, route};
use nowserving_shard::clock::Micros;
use tokio::sync::watch;

use super::gathering::RulesReceiver;
use super::message::{reply_to, viewed};
use super::public_keys::PublicKeys;
use super::respond::Responder;
use crate::shards::to_engine::{NoEngine, ToEngine};
use crate::{clock, traces};

/// Everything that handling a request needs.
#[derive(Debug, Clone)]
pub struct Service {
    pub client: Client,
    pub parser: Arc<Parser>,
    /// Into the engine.
    pub engine: ToEngine,
    /// Back out.
    pub responder: Responder,
    pub public_keys: PublicKeys,
    pub known: RulesReceiver,
    pub subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    /// The time of sending of the newest probe that came back.
    pub probed: watch::Receiver<Micros>,
}

impl Service {
    /// Handles a message that came by the subscription `via` and was routed after this moment.
    pub(super) async fn handle(&self, message: Message, via: Via, routed_after: Micros) {
        let (subject, reply) = (&message.subject, message.reply.as_deref());
        let now = clock::now();
        let times = (now.us, routed_after);
        match route(&self.parser.subjects, (subject, reply), via, times) {
            Route::Drop => return,
            Route::PublicKeys => return self.public_keys.handle(&message).await,
            Route::Late => {
                return self.responder.refuse(&reply_to(&message), late()).await;
            }
            route @ (Route::ManyLines | Route::Limits) => {
                return self.responder.gather_for(&message, route, now).await;
            }
            Route::Engine => {}
        }
        let (keys, rules) = (self.responder.keys.in_use(), self.known.borrow().clone());
        let reading = Reading {
            via,
            routed_after,
            now,
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
        let stats = &self.responder.stats;
        if stats.admit() {
            let Err(NoEngine(input)) = self.engine.send(input) else {
                return;
            };
            stats.answered();
            return self.turn_away(*input).await;
        }
        self.turn_away(input).await;
    }

    async fn turn_away(&self, input: Input) {
        self.responder.stats.turn_away();
        if let Some((reply, error)) = no_room(input) {
            self.responder.refuse(&reply, error).await;
        }
    }
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
