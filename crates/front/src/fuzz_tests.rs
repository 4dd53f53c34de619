//! Fuzz targets of what comes from NATS: messages and frames.

use nowserving_engine::{ShardDelivery, Via};
use nowserving_protocol::error::Code;
use nowserving_testkit::{both_formats, target};

use crate::parse::tests::parser_that_trusts;
use crate::testing::{Owned, read};
use crate::who::TrustRequestInfo;
use crate::{forward, who};

/// What precedes the payload, and the payload as JSON.
const MESSAGES: [(&str, &str); 43] = [
    (
        "nowserving.line.shop.enter\nNowserving-Timeout-Ms: 5000\nNowserving-Sent-Ms: 1766222333444",
        r#"{"key": "order-1", "lane": "vip"}"#,
    ),
    (
        "nowserving.line.shop.enter\nNowserving-Request-Id: c0ffee\nNowserving-Timeout-Ms: 60000",
        r#"{"key": "order-1"}"#,
    ),
    (
        "nowserving.line.shop.find\ntraceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        r#"{"key": "order-1"}"#,
    ),
    (
        "nowserving.admin.line.shop.delete\nNowserving-By: J%C3%B6rg\nNats-Request-Info: {\"acc\": \"OPS\", \"user\": \"ann\"}",
        r#"{"force": true, "incarnation": 2}"#,
    ),
    (
        "nowserving.shard.3.shop.complete\nNowserving-Timeout-Ms: 1\nNowserving-Timeout-Ms: 2",
        r#"{"ticket": "x", "epoch": 3}"#,
    ),
    (
        "nowserving.line.shop.status",
        r#"{"key": "order-1", "consistency": "local"}"#,
    ),
    (
        "nowserving.line.shop.claim",
        r#"{"ticket": "x", "pass": true}"#,
    ),
    (
        "nowserving.line.shop.renew",
        r#"{"ticket": "x", "epoch": 3}"#,
    ),
    ("nowserving.line.shop.leave", r#"{"ticket": "x"}"#),
    ("nowserving.line.shop.seen", r#"{"tickets": ["x", "y"]}"#),
    (
        "nowserving.line.shop.info",
        r#"{"consistency": "linearizable"}"#,
    ),
    ("nowserving.line.shop.callback", r#"{"key": "order-1"}"#),
    (
        "nowserving.line.shop.jump",
        r#"{"key": "order-1", "to": "vip"}"#,
    ),
    (
        "nowserving.admin.line.shop.create",
        r#"{"seats": 5, "queue_limit": 10}"#,
    ),
    (
        "nowserving.admin.line.shop.configure",
        r#"{"seats": 5, "if_version": 3, "dry_run": true}"#,
    ),
    (
        "nowserving.admin.line.shop.move",
        r#"{"lane": "vip", "token": 17, "to": "normal"}"#,
    ),
    (
        "nowserving.admin.line.shop.capacity_told",
        r#"{"seats": 4, "for_ms": 1000}"#,
    ),
    ("nowserving.admin.line.shop.kick", r#"{"all": true}"#),
    (
        "nowserving.admin.line.shop.import",
        r#"{"import_id": "i", "first_row": 1, "rows": [{"key": "a", "lane": "vip", "entered_at_ms": 7}]}"#,
    ),
    (
        "nowserving.admin.line.shop.journal",
        r#"{"after": 5, "limit": 10, "lane": "vip", "token": 4}"#,
    ),
    (
        "nowserving.admin.line.shop.call_next",
        r#"{"n": 3, "call_id": "c"}"#,
    ),
    (
        "nowserving.admin.line.shop.take",
        r#"{"lane": "vip", "token": 17, "call_id": "c"}"#,
    ),
    (
        "nowserving.admin.line.shop.list_tokens",
        r#"{"state": "waiting", "limit": 10}"#,
    ),
    ("nowserving.admin.line.shop.backup", r#"{"index": 7}"#),
    (
        "nowserving.admin.line.shop.backup_chunk",
        r#"{"id": "0123456789abcdef", "offset": 1048576}"#,
    ),
    (
        "nowserving.admin.line.shop.restore_part",
        r#"{"upload": "0123456789abcdef0123456789abcdef", "part": 0, "data": "AAEC/w=="}"#,
    ),
    (
        "nowserving.admin.line.shop.restore",
        r#"{"upload": "0123456789abcdef0123456789abcdef", "parts": 2, "clock_ms": 7, "overwrite": true,
            "digest": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
    ),
    ("nowserving.admin.cluster.status", "{}"),
    (
        "nowserving.admin.cluster.list_lines",
        r#"{"after": "shop", "limit": 5}"#,
    ),
    (
        "nowserving.admin.cluster.replace_node",
        r#"{"node": 3, "disk": "00f3a1d2c4b59687"}"#,
    ),
    (
        "nowserving.admin.cluster.drain",
        r#"{"node": 3, "drained": false}"#,
    ),
    (
        "nowserving.admin.cluster.transfer",
        r#"{"shards": [1, 2], "node": 3}"#,
    ),
    (
        "nowserving.admin.cluster.rotate_key",
        r#"{"key_id": 2, "old_for_ms": 0}"#,
    ),
    (
        "nowserving.kv.visits.put",
        r#"{"key": "k", "value": "v", "ttl_ms": 5}"#,
    ),
    ("nowserving.kv.visits.list", r#"{"prefix": "k"}"#),
    (
        "nowserving.admin.kv.visits.restore",
        r#"{"key": "k", "value": "v", "above_revision": 3}"#,
    ),
    (
        "nowserving.shard.3.shop.limit_part",
        r#"{"descriptors": [[{"key": "user", "value": "ann"}]], "hits": 2}"#,
    ),
    (
        "nowserving.shard.3.shop.limit_exact",
        r#"{"descriptors": [[{"key": "path", "value": "/"}]], "dry_run": true}"#,
    ),
    (
        "nowserving.admin.shard.3.shop.limit_reset",
        r#"{"domain": "shop", "descriptor": [{"key": "user", "value": "ann"}]}"#,
    ),
    (
        "nowserving.admin.shard.0.shop.limit_apply",
        r#"{"rules": "domain: shop\ndescriptors: []\n", "if_version": 1}"#,
    ),
    (
        "nowserving.admin.shard.0.shop.limit_delete",
        r#"{"domain": "shop", "if_version": 1}"#,
    ),
    ("nowserving.admin.shard.3.shop.limit_stats", "{}"),
    (
        "nowserving.admin.shard.3.shop.limit_changes",
        r#"{"domain": "shop"}"#,
    ),
];

/// A subject, headers, a line each, an empty line, and the payload.
fn messages() -> Vec<Vec<u8>> {
    let both = |(head, payload): &(&str, &str)| {
        both_formats(payload).map(|payload| [head.as_bytes(), b"\n\n", &payload].concat())
    };
    MESSAGES.iter().flat_map(both).collect()
}

fn message(bytes: &[u8]) -> Owned {
    let end = bytes.windows(2).position(|two| two == b"\n\n");
    let (head, payload) = bytes.split_at(end.unwrap_or(bytes.len()));
    let payload = payload.get(2..).unwrap_or_default();
    let head = String::from_utf8_lossy(head);
    let mut lines = head.lines();
    let message = Owned::new(lines.next().unwrap_or_default(), payload.to_vec());
    let headers = lines.filter_map(|line| line.split_once(": "));
    headers.fold(message, |message, (name, value)| message.with(name, value))
}

#[test]
fn a_message() {
    target!(messages(), |bytes| {
        let mut message = message(bytes);
        let parser = parser_that_trusts(TrustRequestInfo(true));
        for via in [
            Via::Plain,
            Via::Shard(ShardDelivery::Leader),
            Via::Forwarded,
        ] {
            if via == Via::Forwarded {
                message.subject = message.subject.replacen('.', ".forward.", 1);
            }
            if let Err(refused) = read(&parser, &message, via) {
                assert!(!refused.error.message.is_empty());
            }
        }
    });
}

/// The messages above are good: it is what was changed in them that is refused.
#[test]
fn the_messages_are_good() {
    let parser = parser_that_trusts(TrustRequestInfo(true));
    for bytes in messages() {
        let mut message = message(&bytes);
        let plain = read(&parser, &message, Via::Plain);
        message.subject = message.subject.replacen('.', ".forward.", 1);
        let forwarded = read(&parser, &message, Via::Forwarded);
        if let (Err(refused), Err(_)) = (plain, forwarded) {
            let code = refused.error.code;
            let text = format!("{}: {}", message.subject, refused.error);
            // Tickets are signed with a key, and no rule is known.
            let ticket = code == Code::TicketInvalid;
            let rules = message.subject.contains(".limit_");
            let twice = text.contains("must be there once");
            assert!(ticket || rules || twice, "{text}");
        }
    }
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
