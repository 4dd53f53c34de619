//! Answers and events on their way out: encoded here, off the shard loop's thread.

use std::sync::Arc;

use async_nats::client::PublishErrorKind;
use async_nats::header::NATS_MESSAGE_ID;
use async_nats::{Client, HeaderMap};
use bytes::Bytes;
use nowserving_protocol::admin::DeleteReply;
use nowserving_protocol::backup::RestorePartReply;
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::header::{ERROR_CODE_HEADER, ERROR_HEADER};
use nowserving_protocol::limits::RulesChanged;
use nowserving_protocol::subject::Subjects;
use nowserving_protocol::ticket::Ticket;
use nowserving_protocol::user::StatusReply;
use tokio::sync::mpsc;

use super::payload_limit::PayloadLimit;
use super::stats::Stats;
use super::tasks::{Finished, Tasks};
use crate::backups::Backups;
use crate::keys::Keys;
use nowserving_engine::{Inbox, Outcome, Output, RelayedAnswer, ReplyTo};
use nowserving_shard::published::OutEvent;

/// Answers leave by the same connection as events, and wait for so many of them at most.
const EVENTS_AT_ONCE: usize = 64;

/// Room for the headers of an answer or event, in bytes.
const HEADERS_MAX: usize = 256;

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
    /// Those of this node that asked its own engine.
    pub tasks: Arc<Tasks>,
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
                let (subject, payload) = self.encode_event(&event);
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
        if let Inbox::Task(task) = reply.inbox {
            if let Some(Finished { to, encoded }) = self.tasks.finish(task, result) {
                self.finish(&to, encoded).await;
            }
            return;
        }
        self.finish(reply, result.map(|outcome| self.encode(outcome, reply)))
            .await;
    }

    /// Answers one request with an error.
    pub async fn refuse(&self, reply: &ReplyTo, error: ApiError) {
        self.stats.count(reply, error.code.as_str());
        let mut headers = HeaderMap::new();
        // A header must be one line; the message in the payload is whole.
        let message = error.message.replace(['\r', '\n'], " ");
        headers.insert(ERROR_HEADER, message.as_str());
        headers.insert(ERROR_CODE_HEADER, error.code.http().to_string().as_str());
        let payload = encode(&ErrorReply::from(error), reply.format);
        if let Err(error) = self.publish(reply, headers, payload.into()).await {
            tracing::error!(%error, op = reply.op, "an error was not sent");
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

    fn encode(&self, outcome: Outcome, to: &ReplyTo) -> Vec<u8> {
        let format = to.format;
        match outcome {
            Outcome::Status {
                status,
                now,
                with_ticket,
                holes,
            } => {
                let mut body = StatusReply::new(&status, now);
                if with_ticket {
                    body.ticket = Some(self.keys.in_use().tickets.sign(&Ticket {
                        line: status.line.clone(),
                        at: status.at,
                    }));
                }
                body.holes = holes
                    .flatten()
                    .map(|ranges| ranges.into_iter().map(|(a, b)| [a, b]).collect());
                if to.pass {
                    self.keys.in_use().passes.add_to(&mut body, &self.cluster);
                }
                let whole = encode(&body, format);
                match body.holes {
                    Some(_) if !self.fits(&whole) => {
                        // As where there are very many: its position stands until the next status.
                        body.holes = None;
                        encode(&body, format)
                    }
                    _ => whole,
                }
            }
            Outcome::Info(info) => encode(&*info, format),
            Outcome::Line(line) => encode(&*line, format),
            Outcome::Journal(page) => encode(&*page, format),
            Outcome::Called(called) => encode(&*called, format),
            Outcome::Tokens(page) => encode(&*page, format),
            Outcome::Kicked(kicked) => encode(&*kicked, format),
            Outcome::Callback(callback) => encode(&callback, format),
            Outcome::Deleted { line, remaining } => encode(
                &DeleteReply {
                    line,
                    deleted: remaining == 0,
                    remaining,
                },
                format,
            ),
            Outcome::Cluster(status) => encode(&*status, format),
            Outcome::Lines(list) => encode(&*list, format),
            Outcome::MembersChanged(changed) => encode(&changed, format),
            Outcome::MembersChanges(changes) => encode(&*changes, format),
            Outcome::RestorePart { line, parts } => {
                encode(&RestorePartReply { line, parts }, format)
            }
            Outcome::KvGot(got) => encode(&*got, format),
            Outcome::KvDone(done) => encode(&done, format),
            Outcome::KvListed(page) => encode(&*page, format),
            Outcome::LimitPart(part) => encode(&*part, format),
            Outcome::LimitRules { domain, version } => encode(
                &RulesChanged {
                    domain,
                    version,
                    dry_run: false,
                    changes: Vec::new(),
                    notes: Vec::new(),
                },
                format,
            ),
            Outcome::LimitReset(reset) => encode(&reset, format),
            Outcome::LimitStats(stats) => encode(&stats, format),
            Outcome::LimitChanges(changes) => encode(&changes, format),
            // These are read from the disk.
            Outcome::Backup { .. } | Outcome::BackupChunk { .. } => Vec::new(),
        }
    }

    /// Whether the server takes this beside the headers.
    fn fits(&self, payload: &[u8]) -> bool {
        payload.len() + HEADERS_MAX <= self.limit.bytes()
    }

    fn encode_event(&self, event: &OutEvent) -> (String, Bytes) {
        match event {
            OutEvent::Board(board) => {
                let mut payload = encode(&**board, Format::Json);
                if !self.fits(&payload) {
                    payload = encode(&without_holes(board), Format::Json);
                }
                (self.subjects.board(&board.board.line), payload.into())
            }
            OutEvent::Token(token) => (
                self.subjects
                    .token_event(&token.line, token.lane.as_str(), token.token),
                encode(token, Format::Json).into(),
            ),
            OutEvent::Line(line) => (
                self.subjects.line_event(&line.line),
                encode(line, Format::Json).into(),
            ),
            OutEvent::Kv(it) => (
                self.subjects.kv_event(&it.bucket, &it.key),
                encode(it, Format::Json).into(),
            ),
        }
    }
}

/// As after a gap: watchers ask once.
fn without_holes(event: &BoardEvent) -> BoardEvent {
    let mut event = event.clone();
    for lane in &mut event.board.lanes {
        lane.holes = Some(Vec::new());
    }
    event.whole = false;
    event.prev_version = event.board.version;
    event
}

/// Operations that change nothing. Lists among them are cut to what every server takes; what is left can be too large
/// where one item is.
const READS: [&str; 17] = [
    "status",
    "find",
    "info",
    "show",
    "journal",
    "list_tokens",
    "cluster_status",
    "list_lines",
    "members_changes",
    "backup",
    "backup_chunk",
    "kv_get",
    "kv_list",
    "limit_show",
    "limit_stats",
    "limit_changes",
    "limit_test",
];

/// The error instead of an answer that is too large. Nothing happened if it was a read.
fn too_large(op: &str, bytes: usize, max: usize) -> ApiError {
    let code = match READS.contains(&op) {
        true => Code::BadRequest,
        false => Code::OutcomeUnknown,
    };
    ApiError::new(
        code,
        format!(
            "the answer has {bytes} bytes, this NATS server takes {max}: ask for less, or raise its max_payload"
        ),
    )
}

#[cfg(test)]
#[path = "respond_tests.rs"]
mod tests;
