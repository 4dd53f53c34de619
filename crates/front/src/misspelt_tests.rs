//! A misspelt field is refused in every request, at every depth and in both formats.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use nowserving_protocol::admin::{ClusterStatusRequest, ConfigureLines};
use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::limits::{
    ApplyRules, Check, DeleteRules, LimitStats, ListLimitChanges, ResetLimit, ShowRules, TestLimits,
};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::shard_of;
use serde_json::{Value, json};

use crate::parse::tests::{SHARDS, ask, kind, parser, ticket};

/// How a request is read.
enum Read {
    /// By the parser, from this subject.
    At(String),
    /// As this type: by a part of the node that needs NATS for the rest.
    As(fn(&[u8]) -> Result<(), ApiError>),
}

impl Read {
    /// What is read, as text.
    fn read(&self, body: &Value) -> Result<String, ApiError> {
        match self {
            Read::At(subject) => {
                let read = ask(&parser(), subject, body);
                let shown = format!("{:?}", kind(&read));
                // Without rules, or about another line than the parser's test has, it is refused after it was read.
                match read {
                    Err(error) if error.message.contains("unknown field") => Err(error),
                    _ => Ok(shown),
                }
            }
            Read::As(read) => {
                read(&encode(body, Format::Json))?;
                read(&encode(body, Format::MsgPack))?;
                Ok(String::new())
            }
        }
    }
}

struct Request {
    op: &'static str,
    read: Read,
    body: Value,
}

fn settings() -> Value {
    json!({
        "seats": 2, "queue_limit": 3, "labels": {"lanes": "is free"},
        "lanes": [{"name": "vip", "boost_ms": 5}, {"name": "normal", "queue_limit": 7}],
        "admission_rate": {"per_second": 1, "burst": 3},
        "quota": {"total": 9, "renew": {"at": "06:00", "zone": "Asia/Taipei"}},
        "schedule": [{"at": "9000-01-01T00:00:00Z", "set": {"quota": {"total": 5}}}],
    })
}

/// All operations.
fn requests() -> Vec<Request> {
    let mut all = Vec::new();
    let mut add = |op, read, body| {
        all.push(Request { op, read, body });
    };
    let ticket = ticket("shop");
    for (op, body) in [
        ("enter", json!({"key": "k", "lane": "vip"})),
        ("find", json!({"key": "k"})),
        ("status", json!({"ticket": ticket, "holes": true})),
        ("seen", json!({ "tickets": [ticket] })),
        ("claim", json!({"ticket": ticket, "pass": false})),
        ("renew", json!({"ticket": ticket, "epoch": 3})),
        ("complete", json!({"ticket": ticket, "epoch": 3})),
        ("leave", json!({"ticket": ticket})),
        ("jump", json!({"ticket": ticket, "to": "card"})),
        ("callback", json!({"key": "k", "lane": "vip"})),
        ("info", json!({"consistency": "local"})),
    ] {
        let subject = format!("nowserving.line.shop.{op}");
        add(op, Read::At(subject), body);
    }
    let token = json!({"lane": "vip", "token": 3});
    let (hex, digest) = ("0123456789abcdef".repeat(2), "0123456789abcdef".repeat(4));
    for (op, body) in [
        ("create", settings()),
        ("configure", settings()),
        ("show", json!({})),
        ("delete", json!({"force": true})),
        ("move", json!({"lane": "vip", "token": 7, "to": "b"})),
        ("capacity_told", json!({"seats": 4, "for_ms": 1_000})),
        ("kick", json!({ "tokens": [token] })),
        (
            "import",
            json!({"import_id": "i", "first_row": 7, "rows": [{"key": "k"}]}),
        ),
        ("journal", json!({"token": 7})),
        ("call_next", json!({"n": 7, "call_id": "c"})),
        ("take", json!({"lane": "a", "token": 7})),
        ("list_tokens", json!({ "after": [token] })),
        ("backup", json!({"index": 7})),
        ("backup_chunk", json!({"id": hex, "offset": 7})),
        (
            "restore_part",
            json!({"upload": hex, "part": 0, "data": "AAEC"}),
        ),
        (
            "restore",
            json!({"upload": hex, "parts": 2, "clock_ms": 7, "digest": digest}),
        ),
    ] {
        let subject = format!("nowserving.admin.line.shop.{op}");
        add(op, Read::At(subject), body);
    }
    let disk = "00f3a1d2c4b59687";
    for (op, body) in [
        ("add_node", json!({ "disk": disk })),
        ("remove_node", json!({"node": 3})),
        ("replace_node", json!({"node": 3, "disk": disk})),
        ("drain", json!({"node": 3})),
        ("transfer", json!({"shards": [0]})),
        ("rotate_key", json!({"key_id": 2})),
        ("status", json!({})),
        ("list_lines", json!({"limit": 5, "labels": {"a": "b"}})),
        ("members_changes", json!({})),
    ] {
        let subject = format!("nowserving.admin.cluster.{op}");
        add(op, Read::At(subject), body);
    }
    for (admin, op, body) in [
        ("", "get", json!({"key": "k"})),
        ("", "put", json!({"key": "k", "value": "v", "ttl_ms": 5})),
        ("", "delete", json!({"key": "k"})),
        ("", "list", json!({"prefix": "k"})),
        (
            "admin.",
            "restore",
            json!({"key": "k", "value": "v", "above_revision": 9}),
        ),
    ] {
        let subject = format!("nowserving.{admin}kv.visits.{op}");
        add(op, Read::At(subject), body);
    }
    let descriptor = json!([{"key": "ip", "value": "a"}]);
    let check = json!({ "descriptors": [descriptor], "hits": 2 });
    let reset = json!({"domain": "shop", "descriptor": descriptor});
    let rules = json!({"rules": "domain: shop\ndescriptors: []\n"});
    let shard = shard_of("shop", SHARDS);
    for (subject, op, body) in [
        ("forward.shard", "limit_part", check.clone()),
        ("forward.shard", "limit_give_back", json!({"name": "n"})),
        ("shard", "limit_exact_give_back", json!({"name": "n"})),
        ("shard", "limit_exact", check.clone()),
        ("admin.shard", "limit_apply", rules.clone()),
        ("admin.shard", "limit_delete", json!({"domain": "shop"})),
        ("admin.shard", "limit_reset", reset.clone()),
        ("admin.shard", "limit_stats", json!({})),
        ("admin.shard", "limit_changes", json!({"domain": "shop"})),
    ] {
        // The rules are in shard 0.
        let shard = match op {
            "limit_apply" | "limit_delete" => 0,
            _ => shard,
        };
        let subject = format!("nowserving.{subject}.{shard}.shop.{op}");
        add(op, Read::At(subject), body);
    }
    let test = json!({ "domain": "shop", "descriptors": [descriptor] });
    for (op, read, body) in [
        ("apply", Read::As(of::<ApplyRules>), rules),
        (
            "delete",
            Read::As(of::<DeleteRules>),
            json!({"domain": "shop"}),
        ),
        ("show", Read::As(of::<ShowRules>), json!({"domain": "shop"})),
        ("stats", Read::As(of::<LimitStats>), json!({})),
        (
            "changes",
            Read::As(of::<ListLimitChanges>),
            json!({"domain": "shop"}),
        ),
        ("reset", Read::As(of::<ResetLimit>), reset),
        ("test", Read::As(of::<TestLimits>), test),
    ] {
        add(op, read, body);
    }
    add("check", Read::As(of::<Check>), check);
    let lines = json!({"labels": {"a": "b"}, "set": settings()});
    let lines_read = Read::As(of::<ConfigureLines>);
    add("configure_lines", lines_read, lines);
    let jwks = Read::As(of::<ClusterStatusRequest>);
    add("jwks", jwks, json!({}));
    all
}

fn of<T: Payload>(payload: &[u8]) -> Result<(), ApiError> {
    decode::<T>(payload).map(drop)
}

/// The body, once for each map of fields in it, with another field there, which is made of the first name there.
fn with_another(body: &Value, another: &impl Fn(&str) -> String) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    match body {
        Value::Object(fields) => {
            let name = another(fields.keys().next().map_or("colour", String::as_str));
            let mut changed = fields.clone();
            changed.insert(name.clone(), json!("vip"));
            all.push((name, Value::Object(changed)));
            for (field, value) in fields.iter().filter(|(field, _)| *field != "labels") {
                for (name, value) in with_another(value, another) {
                    let mut changed = fields.clone();
                    changed.insert(field.clone(), value);
                    all.push((name, Value::Object(changed)));
                }
            }
        }
        Value::Array(items) => {
            for (nth, item) in items.iter().enumerate() {
                for (name, item) in with_another(item, another) {
                    let mut changed = items.clone();
                    changed[nth] = item;
                    all.push((name, Value::Array(changed)));
                }
            }
        }
        _ => {}
    }
    all
}

#[test]
fn a_misspelt_field_of_any_request_is_refused_with_the_one_that_is_meant() {
    for Request { op, read, body, .. } in requests() {
        read.read(&body)
            .unwrap_or_else(|error| panic!("{op}: {error}"));
        for (name, misspelt) in with_another(&body, &|name| format!("{name}s")) {
            let Err(refused) = read.read(&misspelt) else {
                panic!("{op}: {name} is taken: {misspelt}");
            };
            let says = format!("unknown field `{name}`");
            assert!(refused.message.contains(&says), "{op}: {refused}");
            let meant = format!("did you mean `{}`?", &name[..name.len() - 1]);
            let has_meant = refused.message.contains(&meant);
            assert!(has_meant || name == "colours", "{op}: {refused}");
        }
    }
}

#[test]
fn a_clients_own_fields_change_nothing_in_any_request() {
    for Request { op, read, body, .. } in requests() {
        let plain = read.read(&body).unwrap();
        for (name, own) in with_another(&body, &|name| format!("x_{name}")) {
            let read = read.read(&own);
            let read = read.unwrap_or_else(|error| panic!("{op}: {name}: {error}"));
            assert_eq!(read, plain, "{op}: {name}");
        }
    }
}

#[test]
fn no_operation_is_forgotten() {
    let requests: BTreeSet<_> = requests().iter().map(|it| it.op).collect();
    for op in Operation::all() {
        let (name, word) = (op.name(), op.word());
        assert!(requests.contains(name) || requests.contains(word), "{name}");
    }
}
