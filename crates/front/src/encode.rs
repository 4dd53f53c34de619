//! Answers and events on their way out: encoded here, off the shard loop's thread.

use bytes::Bytes;
use nowserving_engine::{Outcome, ReplyTo};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::header::{ERROR_CODE_HEADER, ERROR_HEADER};
use nowserving_protocol::operation::{Effect, Operation};
use nowserving_protocol::subject::Subjects;
use nowserving_protocol::ticket::Ticket;
use nowserving_protocol::user::StatusReply;
use nowserving_shard::published::OutEvent;

use crate::keys::InUse;

/// Room for the headers of an answer or event, in bytes.
const HEADERS_MAX: usize = 256;

/// What a node encodes by.
#[derive(Debug)]
pub struct Encoder<'a> {
    /// For the events' subjects.
    pub subjects: &'a Subjects,
    /// Signs what `enter` and `find` give out, and what a moved token gets anew.
    pub keys: &'a InUse,
    /// Named in passes.
    pub cluster: &'a str,
    /// What the NATS server takes in one message.
    pub bytes_max: usize,
}

impl Encoder<'_> {
    /// An answer.
    #[must_use]
    pub fn answer(&self, outcome: Outcome, to: &ReplyTo) -> Vec<u8> {
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
                    body.ticket = Some(self.keys.tickets.sign(&Ticket {
                        line: status.line.clone(),
                        at: status.at,
                    }));
                }
                body.holes = holes
                    .flatten()
                    .map(|ranges| ranges.into_iter().map(|(a, b)| [a, b]).collect());
                if to.pass {
                    self.keys.passes.add_to(&mut body, self.cluster);
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
            Outcome::Reply(body) => encode(&body, format),
            Outcome::LimitPart(part) => encode(&*part, format),
            // These are read from the disk.
            Outcome::Backup { .. } | Outcome::BackupChunk { .. } => Vec::new(),
        }
    }

    /// Whether the server takes this beside the headers.
    fn fits(&self, payload: &[u8]) -> bool {
        payload.len() + HEADERS_MAX <= self.bytes_max
    }

    /// An event, and its subject.
    #[must_use]
    pub fn event(&self, event: &OutEvent) -> (String, Bytes) {
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

/// The headers of an answer that is an error.
#[must_use]
pub fn error_headers(error: &ApiError) -> [(&'static str, String); 2] {
    // A header must be one line; the message in the payload is whole.
    let message = error.message.replace(['\r', '\n'], " ");
    [
        (ERROR_HEADER, message),
        (ERROR_CODE_HEADER, error.code.http().to_string()),
    ]
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

/// The error instead of an answer that is too large. Nothing happened if it was a read: lists are cut to what every server
/// takes, but one item can be too large.
#[must_use]
pub fn too_large(op: Operation, bytes: usize, max: usize) -> ApiError {
    let code = match op.effect() {
        Effect::Read => Code::BadRequest,
        Effect::Write | Effect::Try => Code::OutcomeUnknown,
    };
    ApiError::new(
        code,
        format!(
            "the answer has {bytes} bytes, this NATS server takes {max}: ask for less, or raise its max_payload"
        ),
    )
}
