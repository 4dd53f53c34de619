//! Requests that the engine forwards: one NATS request each, to the subject on which only the shard's leader
//! listens. Whether another try is made is the engine's decision.

use std::time::Duration;

use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, Request};
use crossbeam_channel::Sender;
use nowserving_engine::{ForwardResult, ForwardTry, Input, RelayedAnswer};
use nowserving_front::forward;
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{Code, ErrorReply};
use nowserving_protocol::header::ERROR_CODE_HEADER;
use nowserving_protocol::subject::Subjects;
use tokio::sync::mpsc;

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
    let mut headers = HeaderMap::new();
    for (name, value) in forward::headers(&it) {
        headers.insert(name, value.as_str());
    }
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
