//! Requests that the engine forwards: one NATS request each, to the subject on which only the shard's leader
//! listens. Whether another try is made is the engine's decision.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, Request};
use crossbeam_channel::Sender;
use nowserving_engine::{ForwardResult, ForwardTry, Input, LeaderTime, RelayedAnswer};
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::header::{ERROR_CODE_HEADER, TIMEOUT_HEADER, TRACEPARENT_HEADER};
use nowserving_protocol::subject::Subjects;
use nowserving_shard::requests::{Origin, RequestId};
use tokio::sync::mpsc;

use super::who::USER_HEADER;

/// The time of a forward on the leader's clock: `<start, hexadecimal>-<microseconds>`.
pub const SENT_AT_HEADER: &str = "Nowserving-Leader-Time";

/// The call that a forwarded write belongs to: `c` (named by its client) or `f` (named by the forwarding
/// node), and the key in hexadecimal.
pub const REQUEST_KEY_HEADER: &str = "Nowserving-Request-Key";

/// Reads [`REQUEST_KEY_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn request_id(text: &str) -> Result<RequestId, ApiError> {
    let read = || {
        let (origin, key) = text.split_at_checked(1)?;
        let origin = match origin {
            "c" => Origin::Client,
            "f" => Origin::Forwarder,
            _ => return None,
        };
        let key = number(key, 16, 32)?;
        Some(RequestId { key, origin })
    };
    read().ok_or_else(|| {
        ApiError::bad_request(format!(
            "{REQUEST_KEY_HEADER}: must be c or f and 1 to 32 hexadecimal digits"
        ))
    })
}

/// Reads [`SENT_AT_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn sent_at(text: &str) -> Result<LeaderTime, ApiError> {
    let read = || {
        let (start, us) = text.split_once('-')?;
        Some(LeaderTime {
            start: number(start, 16, 16)?.try_into().ok()?,
            us: number(us, 10, 20)?.try_into().ok()?,
        })
    };
    read().ok_or_else(|| {
        ApiError::bad_request(format!(
            "{SENT_AT_HEADER}: must be 1 to 16 hexadecimal digits, a hyphen and microseconds up to {}",
            u64::MAX
        ))
    })
}

/// `1` on a write that the leader may have too, as it came on its shard's own subject.
pub const SHARED_HEADER: &str = "Nowserving-Shared";

/// Reads [`SHARED_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn shared(text: &str) -> Result<bool, ApiError> {
    let is_one = (text == "1").then_some(true);
    is_one.ok_or_else(|| ApiError::bad_request(format!("{SHARED_HEADER}: must be 1 or absent")))
}

/// Digits only: `from_str_radix` takes a sign, too.
fn number(text: &str, radix: u32, digits_max: usize) -> Option<u128> {
    let fits = text.len() <= digits_max && text.chars().all(|it| it.is_digit(radix));
    fits.then(|| u128::from_str_radix(text, radix).ok())?
}

/// Makes the tries, each in a task of its own, until the loop ends.
pub async fn run(
    client: Client,
    subjects: Subjects,
    mut tries: mpsc::UnboundedReceiver<ForwardTry>,
    results: Sender<Input>,
) {
    while let Some(it) = tries.recv().await {
        let (client, subjects, results) = (client.clone(), subjects.clone(), results.clone());
        tokio::spawn(async move {
            let id = it.id;
            let result = try_once(&client, &subjects, it).await;
            // Closed only while the node ends.
            let _ = results.send(Input::Forwarded { id, result });
        });
    }
}

async fn try_once(client: &Client, subjects: &Subjects, it: ForwardTry) -> ForwardResult {
    let subject = match (it.admin, it.op.strip_prefix("kv_")) {
        (true, Some(op)) => subjects.admin_kv_shard(it.shard, &it.line, op),
        (false, Some(op)) => subjects.kv_shard(it.shard, &it.line, op),
        (true, None) => subjects.admin_shard(it.shard, &it.line, it.op),
        (false, None) => subjects.shard(it.shard, &it.line, it.op),
    };
    let headers = headers(&it);
    let bytes = it.payload.len() + wire_bytes(&headers);
    let request = Request::new()
        .payload(it.payload)
        .headers(headers)
        .timeout(Some(Duration::from_millis(it.timeout_ms)));
    match client.send_request(subject, request).await {
        Ok(message) => answered(message),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => ForwardResult::NoResponders,
        Err(error) if error.kind() == RequestErrorKind::TimedOut => ForwardResult::TimedOut,
        Err(error) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
            ForwardResult::TooLarge {
                bytes,
                bytes_max: client.max_payload(),
            }
        }
        Err(_) => ForwardResult::Failed,
    }
}

fn headers(it: &ForwardTry) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // The leader takes its deadline from this one, and so speaks before the engine gives up.
    headers.insert(TIMEOUT_HEADER, it.timeout_ms.to_string().as_str());
    if let Some(RequestId { key, origin }) = it.request_id {
        let origin = if origin == Origin::Client { 'c' } else { 'f' };
        headers.insert(REQUEST_KEY_HEADER, format!("{origin}{key:032x}").as_str());
    }
    if let Some(LeaderTime { start, us }) = it.sent_at {
        headers.insert(SENT_AT_HEADER, format!("{start:x}-{us}").as_str());
    }
    if let Some(user) = &it.user {
        headers.insert(USER_HEADER, &**user);
    }
    if it.shared {
        headers.insert(SHARED_HEADER, "1");
    }
    if let Some(trace) = &it.trace {
        headers.insert(TRACEPARENT_HEADER, trace.for_the_next().as_str());
    }
    headers
}

/// What nodes add to a request that they forward.
pub const HEADERS: [&str; 4] = [
    SENT_AT_HEADER,
    REQUEST_KEY_HEADER,
    SHARED_HEADER,
    USER_HEADER,
];

/// The length of headers on the wire.
fn wire_bytes(headers: &HeaderMap) -> usize {
    let fields = headers.iter().flat_map(|(name, values)| {
        let name = name.to_string().len();
        values
            .iter()
            .map(move |value| name + value.as_str().len() + ": \r\n".len())
    });
    "NATS/1.0\r\n\r\n".len() + fields.sum::<usize>()
}

fn answered(message: Message) -> ForwardResult {
    let error = error_code(&message);
    let headers = message.headers.iter().flat_map(HeaderMap::iter);
    let headers = headers.flat_map(|(name, values)| {
        let values = values.iter();
        values.map(move |value| (name.to_string(), value.to_string()))
    });
    ForwardResult::Answered {
        error,
        answer: RelayedAnswer {
            headers: headers.collect(),
            payload: message.payload,
        },
    }
}

/// The code of an answer that is an error.
fn error_code(message: &Message) -> Option<Code> {
    message.headers.as_ref()?.get(ERROR_CODE_HEADER)?;
    let reply: Result<ErrorReply, _> = decode(&message.payload);
    Some(reply.map_or(Code::Unknown, |reply| reply.error.code))
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
