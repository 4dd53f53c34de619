//! Fuzz targets of what comes from NATS: messages and frames.

use async_nats::Message;
use nowserving_engine::{ShardDelivery, Via};
use nowserving_fuzz::target;

use super::parse::tests::parser;
use super::{forward, who};

/// A subject, a line feed, and the payload.
fn messages() -> Vec<Vec<u8>> {
    let texts = [
        "nowserving.line.shop.enter\n{\"key\": \"order-1\", \"lane\": \"vip\"}",
        "nowserving.line.shop.status\n{\"key\": \"order-1\", \"consistency\": \"local\"}",
        "nowserving.line.shop.callback\n{\"key\": \"order-1\"}",
        "nowserving.line.shop.jump\n{\"key\": \"order-1\", \"to\": \"vip\"}",
        "nowserving.admin.line.shop.create\n{\"seats\": 5, \"queue_limit\": 10}",
        "nowserving.admin.line.shop.configure\n{\"seats\": 5, \"if_version\": 3, \"dry_run\": true}",
        "nowserving.admin.line.shop.kick\n{\"all\": true, \"reason\": \"r\"}",
        "nowserving.admin.line.shop.list_tokens\n{\"state\": \"waiting\", \"limit\": 10}",
        "nowserving.admin.line.shop.call_next\n{\"n\": 3, \"call_id\": \"c\"}",
        "nowserving.admin.cluster.drain\n{\"node\": 3, \"drained\": false}",
        "nowserving.admin.cluster.transfer\n{\"shards\": [1, 2], \"node\": 3}",
        "nowserving.kv.visits.put\n{\"key\": \"k\", \"value\": \"v\", \"ttl_ms\": 5}",
        "nowserving.kv.visits.list\n{\"prefix\": \"k\"}",
        "nowserving.admin.kv.visits.restore\n{\"key\": \"k\", \"value\": \"v\", \"above_revision\": 3}",
    ];
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[test]
fn a_message() {
    target!(messages(), |bytes| {
        let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
        let subject = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
        let payload = parts.next().unwrap_or_default().to_vec();
        let message = Message {
            subject: subject.into(),
            reply: Some("_INBOX.1".into()),
            length: payload.len(),
            payload: payload.into(),
            headers: None,
            status: None,
            description: None,
        };
        let parser = parser();
        for via in [
            Via::Plain,
            Via::Shard(ShardDelivery::Leader),
            Via::Forwarded,
        ] {
            if let Err(refused) = parser.parse(&message, via, 7) {
                assert!(!refused.error.message.is_empty());
            }
        }
    });
}

#[test]
fn headers_between_nodes() {
    let texts = ["c00ab", "f123456789abcdef0123456789abcdef0", "1f-7", "1"];
    let seeds = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    target!(seeds, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        drop(forward::request_id(&text));
        drop(forward::sent_at(&text));
        drop(forward::shared(&text));
    });
}

#[test]
fn the_servers_header() {
    let texts = [
        r#"{"acc": "OPS", "user": "ann", "rtt": 5}"#,
        r#"{"start": "2026-01-01T00:00:00Z", "host": "h", "id": 8, "acc": "OPS", "user": "ann", "kind": "Client"}"#,
    ];
    let seeds = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    target!(seeds, |bytes| drop(who::named_in(
        &String::from_utf8_lossy(bytes)
    )));
}
