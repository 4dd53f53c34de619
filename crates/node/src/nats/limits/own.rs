//! Checks that this node's own engine answers, as it leads their shard: they need no way through NATS.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::Sender;
use nowserving_engine::refusals::{overloaded, unavailable};
use nowserving_engine::{
    Ask, Delivery, Inbox, Input, LimitRequest, Outcome, ReplyTo, Request, Subscription, Via,
};
use nowserving_line::LineName;
use nowserving_protocol::codec::Format;
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::PartReply;
use nowserving_protocol::operation::Operation;
use nowserving_shard::clock::Micros;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::super::stats::Stats;
use super::super::tasks::{Finish, Tasks};
use crate::clock::monotonic_us;

/// This node's engine, and which shards it leads.
#[derive(Debug, Clone)]
pub struct Own {
    pub requests: Sender<Input>,
    pub subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    pub tasks: Arc<Tasks>,
    pub stats: Arc<Stats>,
}

/// What this node is asked about counters of one shard.
pub(super) struct OwnPart {
    pub shard: u32,
    pub domain: LineName,
    pub request: LimitRequest,
}

impl Own {
    /// Whether this node leads the shard, as far as it knows.
    pub(super) fn leads(&self, shard: u32) -> bool {
        let subscriptions = self.subscriptions.borrow();
        matches!(subscriptions.get(&shard), Some(Subscription::Leader { .. }))
    }

    /// Whether this node knows no leader of the shard that has the rules, and leads no shard itself: there may be a majority
    /// without it.
    pub(super) fn is_cut_off(&self) -> bool {
        is_cut_off(&self.subscriptions.borrow())
    }

    /// # Errors
    /// `unavailable`: it is cut off until then.
    pub(super) async fn in_touch_again(&self, until: Instant) -> Result<(), ApiError> {
        let mut subscriptions = self.subscriptions.clone();
        let in_touch = subscriptions.wait_for(|it| !is_cut_off(it));
        match tokio::time::timeout_at(until, in_touch).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(unavailable()),
        }
    }

    /// Gives it to the engine, which answers before the deadline. Returns the number of the task.
    ///
    /// # Errors
    /// `overloaded`: there is no room, and `finish` is dropped.
    pub(super) fn give(
        &self,
        part: OwnPart,
        deadline: Micros,
        finish: Finish,
    ) -> Result<u64, ApiError> {
        if !self.stats.admit() {
            return Err(overloaded());
        }
        let task = self.tasks.begin(finish);
        let given = self.requests.try_send(request(part, task, deadline));
        if given.is_err() {
            self.stats.answered();
            self.tasks.end(task);
            return Err(overloaded());
        }
        Ok(task)
    }

    /// `None`: no answer came in time, and it may have counted. `not_leader` and `unavailable`: it has not.
    pub(super) async fn ask(
        &self,
        part: OwnPart,
        until: Instant,
    ) -> Option<Result<PartReply, ApiError>> {
        let left = until.saturating_duration_since(Instant::now());
        // A tenth for the answer: "it may have counted" must not come before "it has not".
        let deadline = monotonic_us() + left.as_micros() as Micros * 9 / 10;
        let (answers, answered) = oneshot::channel();
        let finish = move |answer| {
            let _ = answers.send(answer);
            None
        };
        let task = match self.give(part, deadline, Box::new(finish)) {
            Ok(task) => task,
            Err(error) => return Some(Err(error)),
        };
        let answer = tokio::time::timeout_at(until, answered).await;
        self.tasks.end(task);
        match answer.ok()?.ok()? {
            Ok(Outcome::LimitPart(part)) => Some(Ok(*part)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

fn is_cut_off(subscriptions: &BTreeMap<u32, Subscription>) -> bool {
    let leads = |it: &Subscription| matches!(it, Subscription::Leader { .. });
    subscriptions.get(&0) == Some(&Subscription::Leaderless) && !subscriptions.values().any(leads)
}

fn request(part: OwnPart, task: u64, deadline: Micros) -> Input {
    let now = monotonic_us();
    let request = Request {
        shard: part.shard,
        line: part.domain,
        ask: Ask::Limit(Box::new(part.request)),
        reply: ReplyTo {
            inbox: Inbox::Task(task),
            format: Format::MsgPack,
            op: Operation::LimitPart,
            pass: false,
            taken: now,
            trace: None,
        },
        deadline,
        id: None,
        sent_ms: None,
        note: None,
        payload: Bytes::new(),
    };
    Input::Request {
        request: Box::new(request),
        delivery: Delivery {
            // As from another node: it is answered here or refused, never forwarded.
            via: Via::Forwarded,
            routed_after: now,
            forwarded_at: None,
            shared: false,
        },
    }
}
