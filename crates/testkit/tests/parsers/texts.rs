//! Subjects, headers, tickets, keys, rules and times.

use nowserving_limit::Rules;
use nowserving_line::{LaneName, LineName, TokenRef};
use nowserving_protocol::header::{RequestId, TraceContext, parse_sent_ms};
use nowserving_protocol::keys::{ClusterKey, LoadedKeys};
use nowserving_protocol::rights::MissingRight;
use nowserving_protocol::servers::Servers;
use nowserving_protocol::subject::Subjects;
use nowserving_protocol::ticket::Ticket;
use nowserving_protocol::time;
use nowserving_testkit::target;

fn of(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

#[test]
fn subject() {
    let seeds = of(&[
        "nowserving.line.shop.enter",
        "nowserving.shard.3.shop.claim",
        "nowserving.admin.line.shop.kick",
        "nowserving.admin.cluster.status",
        "nowserving.admin.shard.3.shop.show",
        "nowserving.kv.visits.put",
        "nowserving.shard.3.kv.visits.get",
        "nowserving.limit.shop.check",
        "nowserving.leader.3.limit.shop.check",
        "nowserving.admin.limit.apply",
    ]);
    target!(seeds, |bytes| {
        let subjects = Subjects::default();
        let subject = text(bytes);
        drop(subjects.parse(&subject));
        let may = subjects.may_reply_to(&subject);
        assert!(!(may && subject.starts_with("nowserving.")), "{subject}");
    });
}

#[test]
fn ticket() {
    let keys = ClusterKey::new([7; 32]).ticket_keys();
    let sign = |line: &str, lane, token| {
        let line = LineName::try_from(line).unwrap();
        let at = TokenRef {
            incarnation: 300,
            lane,
            token,
        };
        keys.sign(&Ticket { line, at }).into_bytes()
    };
    let seeds = vec![sign("shop", 0, 1), sign(&"x".repeat(64), 9, 1 << 52)];
    target!(seeds, |bytes| {
        let keys = ClusterKey::new([7; 32]).ticket_keys();
        let text = text(bytes);
        // Only the exact text of a ticket is one.
        if let Ok(ticket) = keys.verify(&text) {
            assert_eq!(keys.sign(&ticket), text);
        }
    });
}

#[test]
fn headers() {
    let seeds = of(&[
        "1766222333444",
        "c0ffee",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ]);
    target!(seeds, |bytes| {
        let text = text(bytes);
        if let Ok(id) = RequestId::new(&text) {
            assert_eq!(id.as_str(), text);
        }
        if let Ok(ms) = parse_sent_ms(&text) {
            assert_eq!(parse_sent_ms(&ms.to_string()), Ok(ms));
        }
        if let Some(trace) = TraceContext::read(&text, 9) {
            let next = TraceContext::read(&trace.for_the_next(), 9).unwrap();
            assert_eq!(next.trace_id, trace.trace_id);
        }
    });
}

#[test]
fn key_file() {
    let one = LoadedKeys::from(ClusterKey::new([7; 32]));
    let two = one.with_next([8; 32]).unwrap();
    let seeds = [one, two].map(|keys| keys.to_text().into_bytes());
    target!(seeds.into(), |bytes| {
        if let Ok(keys) = LoadedKeys::from_text(bytes) {
            assert_eq!(LoadedKeys::from_text(keys.to_text().as_bytes()), Ok(keys));
        }
    });
}

#[test]
fn servers() {
    let seeds = of(&[
        "nats://127.0.0.1:4222",
        "nats://ann:pass%20word@h:4222,tls://token@[::1]:4222",
    ]);
    target!(seeds, |bytes| drop(text(bytes).parse::<Servers>()));
}

#[test]
fn missing_right() {
    let seeds = of(&[
        "Permissions Violation for Publish to \"nowserving.line.shop.enter\"",
        "Permissions Violation for Subscription to \"nowserving.>\" using queue \"nodes\"",
    ]);
    target!(seeds, |bytes| drop(MissingRight::parse(&text(bytes))));
}

#[test]
fn names_and_times() {
    let seeds = of(&[
        "shop-1",
        "2026-12-01T10:00:00Z",
        "06:30",
        "2026-12-01T10:00:00+08:00",
    ]);
    target!(seeds, |bytes| {
        let text = text(bytes);
        drop((LineName::try_from(&*text), LaneName::try_from(&*text)));
        let _ = (time::parse(&text), time::parse_minute(&text));
    });
}

#[test]
fn rules() {
    let seeds = of(&[
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit:\n      unit: minute\n      requests_per_unit: 5\n",
        "domain: shop\ndescriptors:\n  - key: path\n    value: /a*\n    shadow_mode: true\n    detailed_metric: true\n    \
         descriptors:\n      - key: user\n        rate_limit: {unit: second, requests_per_unit: 1, algorithm: \
         token_bucket, burst: 3}\n",
        "domain: a\ndescriptors: [{key: k, rate_limit: {unlimited: true}}]\n---\ndomain: b\ndescriptors: []\n",
    ]);
    target!(seeds, |bytes| {
        if let Err(errors) = Rules::parse(&text(bytes)) {
            assert!(!errors.to_string().is_empty());
        }
    });
}
