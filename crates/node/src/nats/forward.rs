//! Requests that the engine passes on: one NATS request each, to where only the shard's leader
//! listens. Whether another try is made is the engine's decision.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, Request};
use crossbeam_channel::Sender;
use nowserving_engine::{ForwardId, ForwardResult, ForwardTry, LeaderTime, RelayedAnswer};
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{Code, ErrorReply};
use nowserving_protocol::subject::{ERROR_CODE_HEADER, Subjects, TIMEOUT_HEADER};
use nowserving_shard::requests::{Origin, RequestId};
use tokio::sync::mpsc;

/// When a node passed a request on, on the leader's clock: `<start, hexadecimal>-<microseconds>`.
const SENT_AT_HEADER: &str = "Nowserving-Leader-Time";

/// Which call a write that was passed on belongs to: `c` (its client said so) or `f` (the node that
/// passes it on did), and the key in hexadecimal.
const REQUEST_KEY_HEADER: &str = "Nowserving-Request-Key";

/// What [`REQUEST_KEY_HEADER`] of a message says; `None` if that can't be read.
pub fn request_id(message: &Message) -> Option<RequestId> {
    let text = message.headers.as_ref()?.get(REQUEST_KEY_HEADER)?.as_str();
    let (origin, key) = text.split_at_checked(1)?;
    Some(RequestId {
        key: u128::from_str_radix(key, 16).ok()?,
        origin: match origin {
            "c" => Origin::Client,
            "f" => Origin::Forwarder,
            _ => return None,
        },
    })
}

/// What [`SENT_AT_HEADER`] of a message says. One that can't be read is none: the leader then takes no
/// write with it.
pub fn sent_at(message: &Message) -> Option<LeaderTime> {
    let text = message.headers.as_ref()?.get(SENT_AT_HEADER)?.as_str();
    let (start, us) = text.split_once('-')?;
    Some(LeaderTime {
        start: u64::from_str_radix(start, 16).ok()?,
        us: us.parse().ok()?,
    })
}

/// Makes the tries, each in a task of its own, until the loop ends.
pub async fn run(
    client: Client,
    subjects: Subjects,
    mut tries: mpsc::UnboundedReceiver<ForwardTry>,
    results: Sender<(ForwardId, ForwardResult)>,
) {
    while let Some(it) = tries.recv().await {
        let (client, subjects, results) = (client.clone(), subjects.clone(), results.clone());
        tokio::spawn(async move {
            let id = it.id;
            let result = try_once(&client, &subjects, it).await;
            // Closed only while the node ends.
            let _ = results.send((id, result));
        });
    }
}

async fn try_once(client: &Client, subjects: &Subjects, it: ForwardTry) -> ForwardResult {
    let subject = match it.admin {
        true => subjects.admin_shard(it.shard, &it.line, it.op),
        false => subjects.shard(it.shard, &it.line, it.op),
    };
    // The leader takes its deadline from this header, and so speaks before the engine gives up.
    let mut headers = HeaderMap::new();
    headers.insert(TIMEOUT_HEADER, it.timeout_ms.to_string().as_str());
    if let Some(RequestId { key, origin }) = it.request_id {
        let origin = if origin == Origin::Client { 'c' } else { 'f' };
        headers.insert(REQUEST_KEY_HEADER, format!("{origin}{key:032x}").as_str());
    }
    if let Some(LeaderTime { start, us }) = it.sent_at {
        headers.insert(SENT_AT_HEADER, format!("{start:x}-{us}").as_str());
    }
    let request = Request::new()
        .payload(it.payload)
        .headers(headers)
        .timeout(Some(Duration::from_millis(it.timeout_ms)));
    match client.send_request(subject, request).await {
        Ok(message) => answered(message),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => ForwardResult::NoResponders,
        Err(error) if error.kind() == RequestErrorKind::TimedOut => ForwardResult::TimedOut,
        Err(_) => ForwardResult::Failed,
    }
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
    let reply: ErrorReply = decode(&message.payload).ok()?;
    Some(reply.error.code)
}
