#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::error::Code;

fn line(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

#[test]
fn the_hash_is_fnv1a32() {
    // The vectors of the hash's authors.
    for (text, hash) in [
        ("", 0x811c_9dc5),
        ("a", 0xe40c_292c),
        ("foobar", 0xbf9c_f968),
    ] {
        assert_eq!(fnv1a32(text.as_bytes()), hash);
    }
    assert_eq!(shard_of("foobar", 16), 0xbf9c_f968 % 16);
    assert_eq!(shard_of("foobar", 1), 0);
    assert_eq!(shard_of("foobar", 0), 0);
}

#[test]
fn built_subjects_parse_back() {
    for prefix in ["nowserving", "a.b-c"] {
        let subjects = Subjects::new(prefix).unwrap();
        let shop = line("shop-1");
        for op in Operation::all() {
            let of_cluster = matches!(op.on(), On::Cluster | On::Members | On::AdminLimit);
            let name = (!of_cluster).then(|| shop.clone());
            let plain = Target {
                op,
                shard: None,
                name,
            };
            if !matches!(op.on(), On::LimitShard | On::LimitLeader) {
                let subject = subjects.plain(op, &shop);
                assert_eq!(subjects.parse(&subject), Ok(plain), "{subject}");
                assert!(!subjects.may_reply_to(&subject), "{subject}");
                assert!(!of_cluster || subjects.of_cluster(op) == subject);
            }
            if op.on() != On::Cluster {
                let subject = subjects.leader(op, 15, &shop);
                let target = Target {
                    op,
                    shard: Some(15),
                    name: Some(shop.clone()),
                };
                assert_eq!(subjects.parse(&subject), Ok(target), "{subject}");
            }
        }
    }
}

#[test]
fn the_contract_s_words() {
    let subjects = Subjects::default();
    let shop = line("shop-1");
    assert_eq!(subjects.board(&shop), "nowserving.event.shop-1.board");
    assert_eq!(
        subjects.token_event(&shop, "normal", 18),
        "nowserving.event.shop-1.token.normal.18"
    );
    // Not `token.>`: a role that may hear of every line's tokens but of no key-value may not subscribe to that.
    assert_eq!(
        subjects.token_events(&shop),
        "nowserving.event.shop-1.token.*.*"
    );
    assert_eq!(subjects.line_event(&shop), "nowserving.event.shop-1.line");
    assert_eq!(subjects.raft("prod", 2, 1), "nowserving.raft.prod.2.1");
    assert_eq!(subjects.raft_to("prod", 2), "nowserving.raft.prod.2.*");
    assert_eq!(subjects.shard_all(3), "nowserving.shard.3.>");
}

#[test]
fn a_line_may_be_called_kv() {
    let subjects = Subjects::new("a.b").unwrap();
    let target = subjects.parse("a.b.shard.3.kv.enter").unwrap();
    assert_eq!((target.op, target.shard), (Operation::Enter, Some(3)));
    let event = subjects.kv_event("visits", "foobar");
    assert_eq!(event, "a.b.event.kv.visits.85944171f73967e8");
}

#[test]
fn errors_of_malformed_subjects_name_the_fault() {
    let long = "x".repeat(65);
    let cases = [
        ("nowserving.line.*.enter", "line:"),
        ("nowserving.line.>.enter", "line:"),
        ("nowserving.line..enter", "line:"),
        ("nowserving.line.票.enter", "line:"),
        ("nowserving.line.a b.enter", "line:"),
        ("nowserving.line.shop.", "op:"),
        ("nowserving.line.shop.*", "op:"),
        ("nowserving.line.shop.Enter", "op:"),
        ("nowserving.line.shop", "subject:"),
        ("nowserving.line.shop.enter.now", "subject:"),
        ("nowserving.shard.x.shop.enter", "shard:"),
        ("nowserving.shard.-1.shop.enter", "shard:"),
        ("nowserving.shard.+1.shop.enter", "shard:"),
        ("nowserving.shard.01.shop.enter", "shard:"),
        ("nowserving.shard.4294967296.shop.enter", "shard:"),
        ("nowserving.kv.a b.put", "bucket:"),
        ("nowserving.kv.visits", "subject:"),
        ("nowserving.kv.visits.PUT", "op:"),
        ("nowserving.shard.x.kv.visits.put", "shard:"),
        ("nowserving.limit.a.b.check", "domain:"),
        ("nowserving.limit.a*.check", "domain:"),
        ("nowserving.limit..check", "domain:"),
        ("nowserving.limit.shop.Check", "op:"),
        ("nowserving.limit.check", "subject:"),
        ("nowserving.admin.limit.shop.check", "subject:"),
        ("nowserving.admin.cluster", "subject:"),
        ("nowserving.cluster.status", "subject:"),
        ("nowserving.admin.admin.line.shop.show", "subject:"),
        ("nowserving.raft.prod.1.2", "subject:"),
        ("nowserving.event.shop.board", "subject:"),
        ("nowservingline.shop.enter", "subject:"),
        ("other.line.shop.enter", "subject:"),
        ("nowserving", "subject:"),
        ("", "subject:"),
    ];
    let over_long = format!("nowserving.line.{long}.enter");
    for (subject, field) in cases.into_iter().chain([(over_long.as_str(), "line:")]) {
        let error = Subjects::default().parse(subject).unwrap_err();
        assert_eq!(error.code, Code::BadRequest);
        assert!(
            error.message.starts_with(field),
            "{subject}: {}",
            error.message
        );
    }
}

#[test]
fn bad_prefixes_are_refused() {
    for prefix in [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a.*",
        "a.>",
        "a b",
        "票",
        &"a".repeat(129),
    ] {
        assert!(Subjects::new(prefix).is_err(), "{prefix:?}");
    }
}

#[test]
fn replies_go_to_inboxes_only() {
    let subjects = Subjects::default();
    for good in ["_INBOX.abc.1", "my.own.inbox", "nowservingx.inbox"] {
        assert!(subjects.may_reply_to(good), "{good}");
    }
    for bad in [
        "",
        "nowserving",
        "nowserving.raft.prod.1.2",
        "nowserving.admin.line.shop.delete",
        "nowserving.event.shop.board",
        "nowserving.line.shop.enter",
        "$SYS.REQ.SERVER.PING",
        "$JS.API.STREAM.DELETE.x",
        "a..b",
        "a.*",
        ">",
        "a b",
    ] {
        assert!(!subjects.may_reply_to(bad), "{bad}");
    }
}

proptest! {
    #[test]
    fn any_subject_is_answered(subject in "(nowserving)?[.a-z*>0-9 票]{0,60}") {
        let _ = Subjects::default().parse(&subject);
        let _ = Subjects::default().may_reply_to(&subject);
    }
}

#[test]
fn the_mapping_line_is_for_this_prefix_and_number_of_shards() {
    let line = Subjects::new("a.b").unwrap().mapping_line(7);
    let want = r#"mappings = { "a.b.line.*.*": "a.b.shard.{{partition(7,1)}}.{{wildcard(1)}}.{{wildcard(2)}}" }"#;
    assert_eq!(line, want);
}
