//! Requests as nodes read them.

use std::fmt::Debug;

use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::{admin, backup, kick, kv, limits, user};
use nowserving_testkit::{both_formats, target};
use serde::Serialize;

/// Bodies of all requests: a changed body of one operation is a bad one of another.
const BODIES: [&str; 49] = [
    r#"{"key": "order-1", "lane": "vip"}"#,
    r#"{"anonymous": true, "x_mine": [{"a": 1}]}"#,
    r#"{"key": "order-1"}"#,
    r#"{"ticket": "x"}"#,
    r#"{"tickets": ["x", "y"]}"#,
    r#"{"ticket": "AQAEc2hvcAEAAQAAAAAAAAAAAAAAAAAAAAA", "consistency": "local", "holes": true}"#,
    r#"{"ticket": "x", "epoch": 9007199254740992}"#,
    r#"{"ticket": "x", "epoch": 3}"#,
    r#"{"ticket": "x", "to": "vip"}"#,
    r#"{"seats": 50, "queue_limit": 1000, "phase": "open", "labels": {"city": "Taipei"}}"#,
    r#"{"seats": 1, "queue_limit": 9, "lanes": [{"name": "vip", "boost_ms": 5, "absolute": true}]}"#,
    r#"{"admission_rate": {"per_second": 0.5, "burst": 3}, "quota": {"total": 9, "standby_percent": 10}}"#,
    r#"{"schedule": [{"at": "2026-12-01T10:00:00Z", "set": {"phase": "open"}}], "if_version": 3}"#,
    r#"{"quota": {"total": 9, "renew": {"at": "06:00", "zone": "Asia/Taipei"}}, "dry_run": true}"#,
    r#"{"position_events": [1, 5, 10], "position_cap": null, "incarnation": 7}"#,
    r#"{"force": true, "incarnation": 2}"#,
    r#"{"lane": "vip", "token": 17, "to": "normal"}"#,
    r#"{"lane": "vip", "token": 17, "call_id": "c-2"}"#,
    r#"{"tokens": [{"lane": "vip", "token": 3}], "state": "waiting"}"#,
    r#"{"keys": ["a", "b"], "dry_run": true}"#,
    r#"{"idle_over_ms": 60000}"#,
    r#"{"all": true}"#,
    r#"{"n": 3, "call_id": "c-1", "lane": "vip"}"#,
    r#"{"seats": 4, "for_ms": 1000}"#,
    r#"{"seats": null}"#,
    r#"{"after": 5, "limit": 10, "lane": "vip", "token": 4}"#,
    r#"{"state": "admitted", "order": "number", "after": [{"lane": "vip", "token": 3}]}"#,
    r#"{"labels": {"city": "Taipei"}, "set": {"phase": "paused"}, "after": "shop", "limit": 5}"#,
    r#"{"node": 3, "disk": "00f3a1d2c4b59687", "if_version": 4}"#,
    r#"{"shards": [0, 3], "node": 1}"#,
    r#"{"key_id": 2, "old_for_ms": 0}"#,
    r#"{"import_id": "i", "first_row": 1, "rows": [{"key": "a", "lane": "vip", "entered_at_ms": 7}]}"#,
    r#"{"id": "0123456789abcdef", "offset": 1048576}"#,
    r#"{"upload": "0123456789abcdef0123456789abcdef", "part": 0, "data": "AAEC/w=="}"#,
    r#"{"upload": "0123456789abcdef0123456789abcdef", "parts": 2, "clock_ms": 7, "overwrite": true,
        "digest": "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}"#,
    r#"{"index": 7}"#,
    r#"{"key": "k", "consistency": "linearizable"}"#,
    r#"{"key": "k", "value": "v", "ttl_ms": 1000, "if_revision": 0}"#,
    r#"{"key": "k", "if_revision": 3}"#,
    r#"{"key": "k", "value_base64": "AAEC", "expires_in_ms": 5, "above_revision": 7, "overwrite": true}"#,
    r#"{"prefix": "a", "after": "b", "limit": 1000}"#,
    r#"{"labels": {"city": "Taipei"}, "after": "shop", "limit": 5}"#,
    r#"{"descriptors": [[{"key": "user", "value": "ann"}], [{"key": "path", "value": "/"}]], "hits": 2}"#,
    r#"{"rules": "domain: shop\ndescriptors: []\n", "if_version": 1, "dry_run": true}"#,
    r#"{"domain": "shop", "if_version": 1, "dry_run": true}"#,
    r#"{"domain": "shop", "descriptor": [{"key": "a", "value": "b"}]}"#,
    r#"{"domain": "shop", "descriptors": [[{"key": "a", "value": "b"}]], "hits": 2}"#,
    r#"{"domain": "shop"}"#,
    r#"{}"#,
];

fn seeds() -> Vec<Vec<u8>> {
    let texts = BODIES.iter().flat_map(|body| both_formats(body));
    // A key that is no text.
    texts
        .chain([b"\x81\xa3key\xc4\x02\x01\xff".to_vec()])
        .collect()
}

/// The bodies, some of which are good ones of this request.
fn seeds_of<T: Payload>() -> Vec<Vec<u8>> {
    let seeds = seeds();
    let is_good = |seed: &Vec<u8>| seed.len() > 2 && decode::<T>(seed).is_ok();
    assert!(seeds.iter().any(is_good));
    seeds
}

/// What is accepted can be sent again in the same format, and means the same. (JSON has no keys that are not text.)
fn request<T: Serialize + Payload + PartialEq + Debug>(payload: &[u8]) {
    if let Ok(read) = decode::<T>(payload) {
        let again = decode::<T>(&encode(&read, Format::of(payload)));
        assert_eq!(again.as_ref(), Ok(&read));
    }
}

macro_rules! requests {
    ($($name:ident: $type:ty;)*) => {$(
        #[test]
        fn $name() {
            target!(seeds_of::<$type>(), request::<$type>);
        }
    )*};
}

requests! {
    enter: user::Enter;
    find: user::Find;
    status: user::StatusRequest;
    seen: user::Seen;
    claim: user::Claim;
    renew: user::Renew;
    complete: user::Complete;
    leave: user::Leave;
    jump: user::Jump;
    callback: user::Callback;
    create: admin::Create;
    configure: admin::Configure;
    delete: admin::Delete;
    move_token: admin::Move;
    capacity_told: admin::CapacityTold;
    kick_tokens: kick::Kick;
    call_next: admin::CallNext;
    take: admin::Take;
    journal: admin::Journal;
    list_tokens: admin::ListTokens;
    import: admin::Import;
    list_lines: admin::ListLines;
    configure_lines: admin::ConfigureLines;
    change_members: admin::ChangeMembers;
    back_up: backup::Backup;
    backup_chunk: backup::BackupChunk;
    restore_part: backup::RestorePart;
    restore: backup::RestoreLine;
    kv_get: kv::KvGet;
    kv_put: kv::KvPut;
    kv_delete: kv::KvDelete;
    kv_restore: kv::KvRestore;
    kv_list: kv::KvList;
    check: limits::Check;
    apply_rules: limits::ApplyRules;
    delete_rules: limits::DeleteRules;
    show_rules: limits::ShowRules;
    list_limit_changes: limits::ListLimitChanges;
    reset_limit: limits::ResetLimit;
    test_limits: limits::TestLimits;
}
