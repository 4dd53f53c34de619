//! Answers and events on their way out: encoded here, once the turn that made them has ended.

use std::sync::Arc;

use async_nats::client::PublishErrorKind;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use nowserving_front::encode::{Encoder, error_headers, too_large};
use nowserving_front::gather::Gather;
use nowserving_front::keys::InUse;
use nowserving_protocol::codec::encode;
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::subject::Subjects;
use tokio::sync::mpsc;

use super::gathering::Gathering;
use super::payload_limit::PayloadLimit;
use super::stats::Stats;
use crate::backups::Backups;
use crate::clock::now;
use crate::keys::Keys;
use nowserving_engine::{Inbox, Outcome, Output, RelayedAnswer, ReplyTo};
use nowserving_shard::published::OutEvent;

/// Answers leave by the same connection as events, and wait for so many of them at most.
const EVENTS_AT_ONCE: usize = 64;

/// Sends answers and events.
#[derive(Debug, Clone)]
pub struct Responder {
    pub client: Client,
    pub limit: PayloadLimit,
    /// For the events' subjects.
    pub subjects: Subjects,
    /// Signs what `enter` and `find` give out, and what a moved token gets anew.
    pub keys: Keys,
    /// Named in passes.
    pub cluster: Arc<str>,
    /// Counts.
    pub stats: Arc<Stats>,
    /// Snapshots that operators download.
    pub backups: Arc<Backups>,
    /// Requests for which this node asks others, or its own engine.
    pub gathering: Arc<Gathering>,
}

impl Responder {
    /// Sends the engine's answers until it ends.
    pub async fn run(self, mut answers: mpsc::UnboundedReceiver<Vec<Output>>) {
        while let Some(turn) = answers.recv().await {
            for output in turn {
                self.stats.answered();
                match output {
                    Output::Reply {
                        to,
                        result: Ok(it @ (Outcome::Backup { .. } | Outcome::BackupChunk { .. })),
                    } => {
                        // The others must not wait for the disk.
                        tokio::spawn(self.clone().answer_from_disk(to, it));
                    }
                    Output::Reply { to, result } => self.answer(&to, result).await,
                    Output::RelayReply { to, error, answer } => {
                        self.relay(&to, error, answer).await;
                    }
                    // The loop sends nothing else here.
                    _ => {}
                }
            }
        }
    }

    async fn answer_from_disk(self, to: ReplyTo, outcome: Outcome) {
        let (backups, format) = (self.backups.clone(), to.format);
        // In JSON, too, it fits what NATS takes in one message.
        let bytes_max = self.limit.bytes() / 2;
        let read = tokio::task::spawn_blocking(move || match outcome {
            Outcome::Backup {
                shard,
                index,
                ready,
            } => {
                let reply = backups.begin(shard, index, ready)?;
                Ok(encode(&reply, format))
            }
            Outcome::BackupChunk { id, offset } => {
                Ok(encode(&backups.chunk(&id, offset, bytes_max), format))
            }
            _ => Err(ApiError::bad_request("op: not one that reads a snapshot")),
        });
        let failed = |error: tokio::task::JoinError| {
            Err(ApiError::new(Code::Unavailable, error.to_string()))
        };
        self.finish(&to, read.await.unwrap_or_else(failed)).await;
    }

    /// Sends an answer that is encoded, or an error.
    pub async fn finish(&self, to: &ReplyTo, encoded: Result<Vec<u8>, ApiError>) {
        match encoded {
            Ok(payload) => match self.publish(to, HeaderMap::new(), payload.into()).await {
                Ok(()) => self.stats.count(to, "ok"),
                Err(error) => self.refuse(to, error).await,
            },
            Err(error) => self.refuse(to, error).await,
        }
    }

    /// Passes an answer on as it came. The node that gave it may be connected to a server that takes more.
    async fn relay(&self, to: &ReplyTo, error: Option<Code>, answer: RelayedAnswer) {
        let RelayedAnswer { headers, payload } = answer;
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name.as_str(), value.as_str());
        }
        match self.publish(to, map, payload).await {
            Ok(()) => self
                .stats
                .count_forwarded(to, error.map_or("ok", Code::as_str)),
            Err(error) => self.refuse(to, error).await,
        }
    }

    /// Publishes events until the loop ends.
    pub async fn run_events(self, mut events: mpsc::Receiver<Vec<OutEvent>>) {
        while let Some(turn) = events.recv().await {
            for (nth, event) in turn.into_iter().enumerate() {
                if nth % EVENTS_AT_ONCE == EVENTS_AT_ONCE - 1 {
                    // Fails while the connection is lost; so does what follows.
                    let _ = self.client.flush().await;
                }
                let (subject, payload) = self.encoder(&self.keys.in_use()).event(&event);
                let mut headers = HeaderMap::new();
                headers.insert(NATS_MESSAGE_ID, event.id().as_str());
                metrics::counter!("nowserving_events_published_total").increment(1);
                let sent = self.client.publish_with_headers(subject, headers, payload);
                if let Err(error) = sent.await {
                    self.limit.refused("event", &error);
                }
            }
        }
    }

    /// Answers one request.
    pub async fn answer(&self, reply: &ReplyTo, result: Result<Outcome, ApiError>) {
        if let Inbox::Task(id) = reply.inbox {
            let answered = |gather: &mut Gather| gather.own_answered(id, result, now());
            return self.gather(answered).await;
        }
        let encoded =
            result.map(|outcome| self.encoder(&self.keys.in_use()).answer(outcome, reply));
        self.finish(reply, encoded).await;
    }

    /// Answers one request with an error.
    pub async fn refuse(&self, reply: &ReplyTo, error: ApiError) {
        self.stats.count(reply, error.code.as_str());
        let mut headers = HeaderMap::new();
        for (name, value) in error_headers(&error) {
            headers.insert(name, value.as_str());
        }
        let payload = encode(&ErrorReply::from(error), reply.format);
        if let Err(error) = self.publish(reply, headers, payload.into()).await {
            tracing::error!(%error, op = reply.op.name(), "an error was not sent");
        }
    }

    fn encoder<'a>(&'a self, keys: &'a InUse) -> Encoder<'a> {
        Encoder {
            subjects: &self.subjects,
            keys,
            cluster: &self.cluster,
            bytes_max: self.limit.bytes(),
        }
    }

    /// Publishes an answer, or says that the server does not take it: the requester would wait for nothing.
    async fn publish(
        &self,
        reply: &ReplyTo,
        headers: HeaderMap,
        payload: Bytes,
    ) -> Result<(), ApiError> {
        let bytes = payload.len();
        match self.send(reply.inbox.subject(), headers, payload).await {
            true => Ok(()),
            false => Err(too_large(reply.op, bytes, self.limit.bytes())),
        }
    }

    /// Sends an answer. False if it is too large for the server.
    pub async fn send(&self, to: Option<&str>, headers: HeaderMap, payload: Bytes) -> bool {
        let Some(to) = to else {
            return true;
        };
        if !self.subjects.may_reply_to(to) {
            metrics::counter!("nowserving_replies_refused_total").increment(1);
            tracing::warn!(%to, "no answer is sent to this reply subject");
            return true;
        }
        let to = to.to_owned();
        let sent = self.client.publish_with_headers(to, headers, payload).await;
        let Err(error) = sent else {
            return true;
        };
        self.limit.refused("answer", &error);
        // Else the node ends.
        error.kind() != PublishErrorKind::MaxPayloadExceeded
    }
}

#[cfg(test)]
#[path = "respond_tests.rs"]
mod tests;
