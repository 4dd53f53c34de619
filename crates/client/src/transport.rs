//! One request over NATS.

use std::time::{SystemTime, UNIX_EPOCH};

use async_nats::connection::State;
use async_nats::{HeaderMap, RequestErrorKind};
use bytes::Bytes;
use nowserving_protocol::codec;
use nowserving_protocol::error::ErrorReply;
use nowserving_protocol::header::{
    ERROR_HEADER, REQUEST_ID_HEADER, SENT_MS_HEADER, TIMEOUT_HEADER,
};

use crate::call::{Attempt, Transport};
use crate::denials::Denials;
use crate::error::{Error, Kind};
use crate::retry::Failure;

/// A NATS connection, and the rights that it is known to lack.
pub(crate) struct Connection {
    pub(crate) nats: async_nats::Client,
    pub(crate) denials: Denials,
}

impl Transport for Connection {
    async fn request(&self, attempt: Attempt<'_>) -> Result<Bytes, Failure> {
        let mut denied = self.denials.listen();
        tokio::select! {
            biased;
            error = denied.request(attempt.subject) => Err(Failure::Fatal(error)),
            answer = self.send(attempt) => answer,
        }
    }
}

impl Connection {
    async fn send(&self, attempt: Attempt<'_>) -> Result<Bytes, Failure> {
        // While disconnected the library would keep the request and send it after reconnecting,
        // long after the call has ended.
        if self.nats.connection_state() != State::Connected {
            return Err(Failure::Disconnected);
        }
        let request = async_nats::Request::new()
            .payload(attempt.payload.clone())
            .headers(headers(attempt))
            .timeout(None);
        let sent = self.nats.send_request(attempt.subject.to_owned(), request);
        match tokio::time::timeout(attempt.wait, sent).await {
            Ok(Ok(message)) => read(&message),
            Ok(Err(error)) => Err(match error.kind() {
                RequestErrorKind::NoResponders => Failure::NoResponders,
                RequestErrorKind::TimedOut => Failure::NoAnswer,
                RequestErrorKind::InvalidSubject => {
                    Failure::Fatal(Error::new(Kind::BadArgument, error.to_string()))
                }
                RequestErrorKind::MaxPayloadExceeded => {
                    let (bytes, most) = (attempt.payload.len(), self.nats.max_payload());
                    Failure::Fatal(Error::new(
                        Kind::BadArgument,
                        format!(
                            "a request of {bytes} bytes and its headers are more than the NATS server takes in one message: \
                             {most} bytes (max_payload)"
                        ),
                    ))
                }
                RequestErrorKind::Other => {
                    Failure::Fatal(Error::new(Kind::Connection, error.to_string()))
                }
            }),
            Err(_) => Err(Failure::NoAnswer),
        }
    }
}

/// A write carries when it is sent and to which call it belongs, so that the cluster can refuse it if
/// it arrives late and recognise a copy of a write that it has served. A read needs neither.
fn headers(attempt: Attempt<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let timeout_ms = attempt.timeout.as_millis().max(1);
    headers.insert(TIMEOUT_HEADER, timeout_ms.to_string());
    for (name, value) in attempt.note {
        headers.insert(*name, value.as_str());
    }
    if let Some(request_id) = attempt.request_id {
        let sent = SystemTime::now().duration_since(UNIX_EPOCH);
        let sent_ms = sent.unwrap_or_default().as_millis();
        headers.insert(SENT_MS_HEADER, sent_ms.to_string());
        headers.insert(REQUEST_ID_HEADER, request_id.as_str());
    }
    headers
}

/// The payload of a successful reply, or the error in it.
fn read(message: &async_nats::Message) -> Result<Bytes, Failure> {
    let is_error = message
        .headers
        .as_ref()
        .is_some_and(|headers| headers.get(ERROR_HEADER).is_some());
    if !is_error {
        return Ok(message.payload.clone());
    }
    Err(match codec::decode::<ErrorReply>(&message.payload) {
        Ok(reply) => Failure::Api(reply.error),
        Err(error) => Failure::Fatal(bad_reply(&error)),
    })
}

/// The error for a reply that cannot be decoded.
pub(crate) fn bad_reply(error: &impl std::fmt::Display) -> Error {
    Error::new(
        Kind::BadReply,
        format!("the answer cannot be read: {error}"),
    )
}
