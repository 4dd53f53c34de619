//! Requests that the engine forwards: one NATS request each.

use std::time::Duration;

use crate::shards::to_engine::ToEngine;
use async_nats::client::RequestErrorKind;
use async_nats::{Client, HeaderMap, Message, Request};
use bytes::Bytes;
use nowserving_engine::{ForwardResult, ForwardTry, Input};
use nowserving_front::forward;
use nowserving_protocol::subject::Subjects;
use tokio::sync::mpsc;

/// Makes the tries, each in a task of its own, until the loop ends.
pub async fn run(
    client: Client,
    subjects: Subjects,
    mut tries: mpsc::UnboundedReceiver<ForwardTry>,
    results: ToEngine,
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
    let headers = forward::headers(&it);
    let subject = subjects.leader(it.op, it.shard, &it.line);
    let timeout = Duration::from_millis(it.timeout_ms);
    request(client, (subject, it.payload, timeout), headers).await
}

/// One request to other nodes.
pub async fn request(
    client: &Client,
    (subject, payload, timeout): (String, Bytes, Duration),
    headers: Vec<(&'static str, String)>,
) -> ForwardResult {
    let bytes = payload.len() + forward::wire_bytes(&headers);
    let mut lines = HeaderMap::new();
    for (name, value) in headers {
        lines.insert(name, value.as_str());
    }
    let request = Request::new().payload(payload).headers(lines).timeout(None);
    // Also if the connection takes nothing: the library's own time begins when it has.
    let sent = tokio::time::timeout(timeout, client.send_request(subject, request));
    let Ok(result) = sent.await else {
        return ForwardResult::TimedOut;
    };
    match result {
        Ok(message) => answered(message),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => ForwardResult::NoResponders,
        Err(error) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
            ForwardResult::TooLarge {
                bytes,
                bytes_max: client.max_payload(),
            }
        }
        Err(_) => ForwardResult::Failed,
    }
}

fn answered(message: Message) -> ForwardResult {
    let headers = message.headers.iter().flat_map(HeaderMap::iter);
    let headers = headers.flat_map(|(name, values)| {
        let values = values.iter();
        values.map(move |value| (name.to_string(), value.to_string()))
    });
    forward::answered(headers.collect(), message.payload)
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
