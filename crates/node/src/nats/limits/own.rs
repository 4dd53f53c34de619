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
use nowserving_shard::limits::LimitAsk;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::stats::Stats;
use super::super::tasks::Tasks;
use crate::clock::monotonic_us;

/// This node's engine, and which shards it leads.
#[derive(Debug, Clone)]
pub struct Own {
    pub requests: Sender<Input>,
    pub subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    pub tasks: Arc<Tasks>,
    pub stats: Arc<Stats>,
}

/// Counters of one shard, asked of this node.
pub(super) struct OwnPart<'a> {
    pub shard: u32,
    pub domain: &'a LineName,
    pub asks: Vec<LimitAsk>,
    pub dry_run: bool,
}

impl Own {
    /// Whether this node leads the shard, as far as it knows.
    pub(super) fn leads(&self, shard: u32) -> bool {
        let subscriptions = self.subscriptions.borrow();
        matches!(subscriptions.get(&shard), Some(Subscription::Leader { .. }))
    }

    /// `None`: no answer came in time, and it may have counted. `not_leader` and `unavailable`: it has not.
    pub(super) async fn ask(
        &self,
        part: OwnPart<'_>,
        until: Instant,
    ) -> Option<Result<PartReply, ApiError>> {
        if !self.stats.admit() {
            return Some(Err(overloaded()));
        }
        let (task, answered) = self.tasks.begin();
        let given = self.requests.try_send(request(part, task, until));
        if given.is_err() {
            self.stats.answered();
            self.tasks.end(task);
            return Some(Err(overloaded()));
        }
        let answer = tokio::time::timeout_at(until, answered).await;
        self.tasks.end(task);
        Some(match answer.ok()?.ok()? {
            Ok(Outcome::LimitPart(part)) => Ok(*part),
            Ok(_) => Err(unavailable()),
            Err(error) => Err(error),
        })
    }
}

fn request(part: OwnPart<'_>, task: u64, until: Instant) -> Input {
    let now = monotonic_us();
    let left = until.saturating_duration_since(Instant::now());
    let check = LimitRequest::Check {
        asks: part.asks,
        dry_run: part.dry_run,
    };
    let request = Request {
        shard: part.shard,
        line: part.domain.clone(),
        ask: Ask::Limit(Box::new(check)),
        reply: ReplyTo {
            inbox: Inbox::Task(task),
            format: Format::MsgPack,
            op: "limit_check",
            admin: false,
            taken: now,
        },
        // A tenth for the answer: "it may have counted" must not come before "it has not".
        deadline: now + left.as_micros() as u64 * 9 / 10,
        id: None,
        sent_ms: None,
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
