#![allow(clippy::unwrap_used)]
use nowserving_engine::{Delivery, Effect, Input, Request};
use nowserving_kv::Op;
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use super::*;
use crate::parse::tests::{self as parsed, SHARDS, parser};

/// By the subscription to its subject.
fn read(subject: &str, body: &Value) -> Result<Input, ApiError> {
    parsed::ask(&parser(), subject, body)
}

fn request(subject: &str, body: &Value) -> (Request, Delivery) {
    parsed::request(read(subject, body).unwrap())
}

fn home() -> u32 {
    let bucket = LineName::try_from("visits").unwrap();
    kv_shard_of(&bucket, "k", SHARDS)
}

#[test]
fn every_operation_is_read_on_every_subject() {
    let put = json!({"key": "k", "value": "v", "if_revision": 0, "ttl_ms": 5});
    let back = json!({"key": "k", "value": "v", "above_revision": 9, "expires_in_ms": 5});
    for (admin, op, body, effect) in [
        ("", "get", json!({"key": "k"}), Effect::Read),
        (
            "",
            "get",
            json!({"key": "k", "consistency": "linearizable"}),
            Effect::Read,
        ),
        (
            "",
            "get",
            json!({"key": "k", "consistency": "local"}),
            Effect::ReadLocal,
        ),
        ("", "put", put, Effect::Write),
        ("", "delete", json!({"key": "k"}), Effect::Write),
        ("admin.", "restore", back, Effect::Write),
    ] {
        let home = home();
        for subject in [
            format!("nowserving.{admin}kv.visits.{op}"),
            format!("nowserving.{admin}shard.{home}.kv.visits.{op}"),
            format!("nowserving.forward.{admin}shard.{home}.kv.visits.{op}"),
        ] {
            let (request, _) = request(&subject, &body);
            assert_eq!(request.ask.effect(), effect, "{subject}");
            assert_eq!((request.shard, request.line.as_str()), (home, "visits"));
            assert_eq!(request.reply.op.word(), op);
            assert_eq!(request.reply.op.is_admin(), !admin.is_empty());
            // A write that another node may have, too, has an id.
            let named = effect == Effect::Write && subject.contains("nowserving.shard");
            assert!(!named || request.id.is_some(), "{subject}");
        }
    }
    let is_linearizable = json!({"key": "k", "consistency": "linearizable"});
    let (asked, _) = request("nowserving.kv.visits.get", &is_linearizable);
    assert!(asked.ask.is_linearizable());
}

#[test]
fn what_comes_back_replaces_only_if_it_may() {
    for (overwrite, wanted) in [(false, Some(0)), (true, None)] {
        let body = json!({"key": "k", "value": "v", "above_revision": 9, "overwrite": overwrite});
        let (request, _) = request("nowserving.admin.kv.visits.restore", &body);
        let Ask::Kv(Op::Put {
            if_revision, above, ..
        }) = request.ask
        else {
            panic!("{request:?}");
        };
        assert_eq!((if_revision, above), (wanted, 9));
    }
}

#[test]
fn a_list_is_a_question_to_any_node() {
    let asked = read(
        "nowserving.kv.visits.list",
        &json!({"prefix": "a", "limit": 7}),
    )
    .unwrap();
    let Input::Cluster {
        question: Question::KvList { bucket, ask },
        reply,
    } = asked
    else {
        panic!("{asked:?}");
    };
    assert_eq!((bucket.as_str(), reply.op), ("visits", Operation::KvList));
    assert_eq!((ask.prefix.unwrap().as_str(), ask.limit), ("a", Some(7)));
}

#[test]
fn what_is_wrong_is_named() {
    let key = json!({"key": "k"});
    let long = json!({"key": "k", "value": "v".repeat(10_241)});
    let other = (home() + 1) % SHARDS;
    for (subject, body, named) in [
        ("nowserving.kv.visits.put", &key, "value: required"),
        (
            "nowserving.kv.visits.put",
            &long,
            "value: expected a string or",
        ),
        (
            "nowserving.kv.visits.get",
            &json!({"key": ""}),
            "key: expected a string of 1 to 512 bytes, got a length of 0",
        ),
        ("nowserving.kv.visits.list", &json!({"limit": 0}), "limit: "),
        ("nowserving.kv.visits.restore", &key, "op: "),
        ("nowserving.kv.visits.enter", &key, "op: "),
        ("nowserving.admin.kv.visits.get", &key, "op: "),
        ("nowserving.admin.kv.visits.list", &key, "op: "),
        (
            "nowserving.admin.kv.visits.restore",
            &json!({"k": 1}),
            "k: unknown field",
        ),
        (
            &format!("nowserving.shard.{other}.kv.visits.get"),
            &key,
            "subject: the key is in shard",
        ),
    ] {
        let error = read(subject, body).unwrap_err();
        assert_eq!(error.code, Code::BadRequest);
        assert!(error.message.starts_with(named), "{subject}: {error}");
    }
}
