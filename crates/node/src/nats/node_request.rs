//! Requests that a task of this node makes of other nodes, so that it can answer one of a client or an operator.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, Request};
use bytes::Bytes;
use nowserving_engine::left_by_sender_ms;
use nowserving_engine::refusals::{late, late_by_header};
use nowserving_front::parse::{deadline, header};
use nowserving_line::OperatorNote;
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::header::{
    ERROR_CODE_HEADER, REQUEST_ID_HEADER, RequestId, SENT_MS_HEADER, TIMEOUT_HEADER, parse_sent_ms,
};
use nowserving_protocol::note;
use nowserving_shard::clock::Micros;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::message::viewed;
use crate::clock;

/// By when the request that a task works on must be answered.
///
/// The requests that it makes have times of their own, so the nodes that take those cannot tell that it came late.
/// [`Service::handle`](super::service::Service) refuses one that lay unread; the sender's clock is compared here.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub until: Instant,
    /// Or how long ago the message was sent, in ms: too long.
    writes_until: Result<Instant, u64>,
}

impl Times {
    /// Of a message that was read then.
    ///
    /// # Errors
    /// `bad_request`: a header cannot be read.
    pub fn of(message: &Message, taken: Micros) -> Result<Self, ApiError> {
        let (deadline, sent_ms) = viewed(message, |message| {
            let sent_ms = header(message, SENT_MS_HEADER, parse_sent_ms)?;
            Ok::<_, ApiError>((deadline(message, taken)?, sent_ms))
        })?;
        let (clock, now) = (clock::now(), Instant::now());
        let left = Duration::from_micros(deadline.saturating_sub(clock.us));
        let timeout = Duration::from_micros(deadline.saturating_sub(taken));
        let writes_until = match left_by_sender_ms(sent_ms, timeout, clock) {
            Some(by_sender_ms) => Ok(now + left.min(Duration::from_millis(by_sender_ms))),
            None => Err(clock.wall_ms.saturating_sub(sent_ms.unwrap_or_default())),
        };
        Ok(Times {
            until: now + left,
            writes_until,
        })
    }

    #[cfg(test)]
    pub fn until(until: Instant) -> Self {
        Times {
            until,
            writes_until: Ok(until),
        }
    }

    /// Until when writes may be sent.
    ///
    /// # Errors
    /// `unavailable`: by its sender's clock it comes too late.
    pub fn for_writes(&self) -> Result<Instant, ApiError> {
        let late = |ago_ms| late_by_header(late(), ago_ms);
        self.writes_until.map_err(late)
    }
}

/// A request that is sent once.
#[derive(Debug)]
pub(super) struct NodeRequest<'a> {
    pub subject: String,
    /// In MessagePack.
    pub payload: Bytes,
    /// Of a write: it happens once however often it is sent.
    pub id: Option<&'a RequestId>,
    /// Who asks, and why, of an operator's.
    pub note: Option<&'a OperatorNote>,
    pub until: Instant,
}

/// Why a request was not answered as done.
#[derive(Debug, PartialEq)]
pub(super) enum Failed {
    /// It was not sent, as the time is over, or nobody listens: nothing happened.
    Unheard,
    /// The answer is this error.
    Refused(ApiError),
    /// It may have happened.
    Unanswered,
}

impl NodeRequest<'_> {
    pub async fn send<R: DeserializeOwned>(self, client: &Client) -> Result<R, Failed> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Failed::Unheard);
        }
        let bytes = self.payload.len();
        let request = Request::new()
            .payload(self.payload)
            .headers(headers(left, self.id, self.note))
            .timeout(Some(left));
        match client.send_request(self.subject, request).await {
            Ok(message) => read_answer(&message).map_err(Failed::Refused),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => Err(Failed::Unheard),
            Err(error) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
                Err(Failed::Refused(too_large(bytes, client.max_payload())))
            }
            Err(_) => Err(Failed::Unanswered),
        }
    }
}

/// Nothing was sent.
fn too_large(bytes: usize, max: usize) -> ApiError {
    ApiError::bad_request(format!(
        "payload: {bytes} bytes and headers, as nodes send it on, are more than the {max} that this NATS server takes in one message"
    ))
}

fn headers(left: Duration, id: Option<&RequestId>, note: Option<&OperatorNote>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(TIMEOUT_HEADER, left.as_millis().max(1).to_string().as_str());
    headers.insert(SENT_MS_HEADER, clock::wall_ms().to_string().as_str());
    if let Some(id) = id {
        headers.insert(REQUEST_ID_HEADER, id.as_str());
    }
    for (name, value) in note.into_iter().flat_map(note::headers) {
        headers.insert(name, value.as_str());
    }
    headers
}

fn read_answer<R: DeserializeOwned>(message: &Message) -> Result<R, ApiError> {
    let is_error = |headers: &HeaderMap| headers.get(ERROR_CODE_HEADER).is_some();
    if message.headers.as_ref().is_some_and(is_error) {
        let reply: ErrorReply = decode(&message.payload)?;
        return Err(reply.error);
    }
    decode(&message.payload).map_err(|error| {
        let what = format!("a node's answer is not understood: {error}");
        ApiError::new(Code::Unavailable, what)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use async_nats::HeaderValue;
    use nowserving_protocol::codec::{Format, encode};
    use nowserving_protocol::limits::{PartReply, PartVerdict};

    use super::*;
    use nowserving_front::parse::TIMEOUT_MAX_MS;

    fn sent(ms_ago: u64) -> Result<Times, ApiError> {
        let sent_ms = (clock::wall_ms() - ms_ago).to_string();
        message(&[(SENT_MS_HEADER, sent_ms.as_str())])
    }

    fn with(headers: HeaderMap, payload: &[u8]) -> Message {
        Message {
            subject: "nowserving.limit.shop.check".into(),
            reply: Some("_INBOX.1".into()),
            payload: Bytes::copy_from_slice(payload),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        }
    }

    fn message(all: &[(&str, &str)]) -> Result<Times, ApiError> {
        let mut headers = HeaderMap::new();
        for (name, value) in all {
            headers.insert(*name, *value);
        }
        Times::of(&with(headers, b""), clock::now().us)
    }

    /// An answer of another type is no error of the request; one that is marked as an error is one.
    #[test]
    fn fuzz_an_answer() {
        let part = PartReply {
            verdicts: vec![PartVerdict::default(); 2],
        };
        let refused = ErrorReply::from(late());
        let formats = [Format::Json, Format::MsgPack];
        let seeds = formats.map(|format| [encode(&part, format), encode(&refused, format)]);
        nowserving_fuzz::target!(seeds.concat(), |bytes| {
            if let Err(error) = read_answer::<PartReply>(&with(HeaderMap::new(), bytes)) {
                assert_eq!(error.code, Code::Unavailable);
            }
            let mut refused = HeaderMap::new();
            refused.insert(ERROR_CODE_HEADER, "503");
            assert!(read_answer::<PartReply>(&with(refused, bytes)).is_err());
        });
    }

    /// Both headers, a line each.
    #[test]
    fn fuzz_times() {
        let seeds = ["5000\n1766222333444", "1\n0", "60000\n9007199254740992"];
        let seeds = seeds.map(|text| text.as_bytes().to_vec());
        nowserving_fuzz::target!(seeds.into(), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let mut headers = HeaderMap::new();
            for (name, value) in [TIMEOUT_HEADER, SENT_MS_HEADER]
                .into_iter()
                .zip(text.lines())
            {
                if let Ok(value) = value.parse::<HeaderValue>() {
                    headers.insert(name, value);
                }
            }
            let taken = clock::now().us;
            if let Ok(times) = Times::of(&with(headers, b""), taken) {
                let longest = Duration::from_millis(TIMEOUT_MAX_MS);
                assert!(times.until <= Instant::now() + longest);
            }
        });
    }

    #[test]
    fn what_was_sent_long_ago_writes_nothing() {
        let fresh = sent(0).unwrap();
        assert_eq!(fresh.for_writes(), Ok(fresh.until));
        let error = sent(60_000).unwrap().for_writes().unwrap_err();
        assert_eq!(
            (error.code, error.retry_after_ms),
            (Code::Unavailable, None)
        );
        assert!(error.message.starts_with(SENT_MS_HEADER), "{error}");
        // Timeout, a second and the tolerance for clocks make 7.9 s.
        let held_back = sent(7_000).unwrap();
        assert!(held_back.for_writes().unwrap() < held_back.until);
    }

    #[test]
    fn headers_must_be_readable() {
        for (name, value) in [(SENT_MS_HEADER, "yesterday"), (TIMEOUT_HEADER, "0")] {
            let error = message(&[(name, value)]).unwrap_err();
            assert_eq!(error.code, Code::BadRequest);
            assert!(error.message.starts_with(name), "{error}");
        }
    }
}
