//! Replies and events as clients read them, and nodes those of other nodes.

use std::fmt::Debug;

use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::ErrorReply;
use nowserving_protocol::{admin, backup, event, kv, limits, user};
use nowserving_testkit::{both_formats, target};
use serde::Serialize;
use serde_json::Value;

/// Those that the contract's golden files have.
fn golden() -> Vec<Vec<u8>> {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../protocol/tests/golden");
    let files = std::fs::read_dir(golden).unwrap();
    let read = |file: std::fs::DirEntry| std::fs::read(file.path()).unwrap();
    let mut files: Vec<Vec<u8>> = files.map(|file| read(file.unwrap())).collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Whether the first value has all that is in the second one.
fn has(all: &Value, part: &Value) -> bool {
    match (all, part) {
        (Value::Object(all), Value::Object(part)) => part
            .iter()
            .all(|(name, part)| all.get(name).is_some_and(|all| has(all, part))),
        (Value::Array(all), Value::Array(part)) => {
            let pairs = || all.iter().zip(part);
            all.len() == part.len() && pairs().all(|(all, part)| has(all, part))
        }
        _ => all == part,
    }
}

/// Both formats of these. No field's name is misspelt, or the target would not come to it.
fn written<T: Serialize + Payload>(texts: &[&str]) -> Vec<Vec<u8>> {
    for text in texts {
        let reply: T = decode(text.as_bytes()).unwrap();
        let again: Value = serde_json::from_slice(&encode(&reply, Format::Json)).unwrap();
        let text: Value = serde_json::from_str(text).unwrap();
        assert!(has(&again, &text), "{again}");
    }
    texts.iter().flat_map(|text| both_formats(text)).collect()
}

/// What is read can be written again in the same format, and means the same.
fn reply<T: Serialize + Payload + PartialEq + Debug>(payload: &[u8]) {
    if let Ok(read) = decode::<T>(payload) {
        let again = decode::<T>(&encode(&read, Format::of(payload)));
        assert_eq!(again.as_ref(), Ok(&read));
    }
}

macro_rules! replies {
    ($($name:ident: $type:ty = $texts:expr;)*) => {$(
        #[test]
        fn $name() {
            const TEXTS: &[&str] = &$texts;
            let seeds = match TEXTS {
                [] => golden(),
                texts => written::<$type>(texts),
            };
            target!(seeds, reply::<$type>);
        }
    )*};
}

// Those without a text of their own are in the golden files.
replies! {
    error_reply: ErrorReply = [];
    status_reply: user::StatusReply = [];
    info_reply: user::InfoReply = [];
    line_reply: admin::LineReply = [];
    cluster_reply: admin::ClusterStatus = [];
    board_event: event::BoardEvent = [];
    token_event: event::TokenEvent = [];
    line_event: event::LineEvent = [];
    callback_reply: user::CallbackReply = [
        r#"{"line": "shop", "incarnation": 1, "version": 9, "at_ms": 7, "room": false, "position": 3}"#,
    ];
    tokens_reply: admin::TokensReply = [
        r#"{"line": "shop", "incarnation": 1, "version": 9, "at_ms": 7, "next": [{"lane": "vip", "token": 3}],
            "tokens": [{"lane": "vip", "token": 3, "key": "a", "state": "waiting", "entered_at_ms": 1,
                        "last_seen_ms": 2, "position": 4, "turn": 5},
                       {"lane": "normal", "token": 1, "key": "b", "state": "in_checkout", "entered_at_ms": 1,
                        "expires_in_ms": 9, "claimed_ago_ms": 8}]}"#,
    ];
    journal_reply: admin::JournalReply = [
        r#"{"line": "shop", "incarnation": 1, "next": 12, "entries": [
            {"version": 2, "at_ms": 7, "what": "configured", "scheduled_at_ms": 6, "by": "ann", "reason": "r",
             "changes": [{"setting": "seats", "from": 3, "to": 5}, {"setting": "labels", "from": {}, "to": {"a": "b"}}]},
            {"version": 3, "at_ms": 7, "what": "kicked", "selector": {"lane": "vip", "all": true, "state": "waiting"}},
            {"version": 4, "at_ms": 7, "what": "admitted", "lane": "vip", "token": 3, "entered_at_ms": 1, "absolute": true,
             "boost_ms": 5, "operator": "ann", "operator_reason": "r"},
            {"version": 5, "at_ms": 8, "what": "moved", "lane": "vip", "token": 3, "to_lane": "normal", "to_token": 4}],
            "explain": {"lane": "vip", "token": 3, "entered_at_ms": null, "own_lane_before": 2, "overtakers_total": 1,
             "cut": false, "overtakers": [{"lane": "normal", "token": 9, "entered_at_ms": 5, "admitted_at_ms": 6,
                                           "version": 7, "by": "boost", "boost_ms": 60000}]}}"#,
    ];
    kick_reply: admin::KickReply = [
        r#"{"kicked": 2, "dry_run": true, "not_found": [1], "other_state": [0, 2],
            "sample": [{"lane": "vip", "token": 3, "key": "a", "state": "admitted"}]}"#,
    ];
    called_reply: admin::CalledReply = [
        r#"{"admitted": [{"lane": "vip", "token": 3, "key": "a"}, {"lane": "vip", "token": 4}]}"#,
    ];
    members_reply: admin::MembersReply = [r#"{"members_version": 4, "node": 3}"#];
    members_changes_reply: admin::MembersChangesReply = [
        r#"{"changes": [{"members_version": 4, "at_ms": 7, "op": "replace_node", "node": 3, "disk": "00f3a1d2c4b59687",
                         "by": "ann", "reason": "dead"},
                        {"members_version": 5, "at_ms": 8, "op": "transfer", "shards": [1, 2], "node": 1}],
            "shards_changing": 2, "snapshots": {"sent_bytes": 5, "total_bytes": 9}}"#,
    ];
    line_list: admin::LineList = [
        r#"{"lines": [{"line": "shop", "incarnation": 1, "version": 9, "phase": "open", "seats": 5, "queue_limit": 10,
                       "waiting": 3, "admitted": 1, "in_checkout": 2, "labels": {"city": "Taipei"}}], "next": "shop"}"#,
    ];
    delete_reply: admin::DeleteReply = [r#"{"line": "shop", "deleted": false, "remaining": 12}"#];
    configure_lines_reply: admin::ConfigureLinesReply = [
        r#"{"lines": [{"line": "a", "settings_version": 9, "changes": [{"setting": "seats", "from": 3, "to": 5}]},
                      {"line": "b", "changes": [], "error": {"code": "outcome_unknown", "message": "m"}}],
            "next": "b", "dry_run": true}"#,
    ];
    backup_reply: backup::BackupReply = [r#"{"shard": 3, "index": 99, "id": "0123456789abcdef", "bytes": 7}"#];
    backup_chunk_reply: backup::BackupChunkReply = [r#"{"offset": 4096, "data": "AAEC/w=="}"#];
    restore_part_reply: backup::RestorePartReply = [r#"{"line": "shop", "parts": 3}"#];
    kv_get_reply: kv::KvGetReply = [
        r#"{"key": "k", "value": "v", "revision": 3, "expires_in_ms": 5}"#,
        r#"{"key": "k", "value_base64": "AP8=", "revision": 3}"#,
    ];
    kv_reply: kv::KvReply = [r#"{"revision": 3}"#];
    kv_list_reply: kv::KvListReply = [
        r#"{"entries": [{"key": "k", "revision": 3, "bytes": 9, "expires_in_ms": 5}], "next": "k"}"#,
    ];
    kv_event: kv::KvEvent = [
        r#"{"bucket": "visits", "key": "k", "event": "put", "revision": 3, "at_ms": 7}"#,
    ];
    check_reply: limits::CheckReply = [
        r#"{"allowed": false, "limit": 5, "remaining": 0, "reset_ms": 60000, "retry_after_ms": 9, "delay_ms": 3,
            "descriptors": [{"allowed": false, "limit": 5, "unit": "minute", "name": "n", "remaining": 0, "reset_ms": 1,
                             "retry_after_ms": 9, "delay_ms": 3, "shadow": true, "rule": "r"},
                            {"allowed": true, "limit": null, "remaining": null, "reset_ms": null, "retry_after_ms": null,
                             "unmatched": true}]}"#,
    ];
    part_reply: limits::PartReply = [
        r#"{"verdicts": [{"allowed": false, "limit": 5, "remaining": 0, "reset_us": 60000000, "retry_after_us": 9,
                          "delay_us": 3, "shadow": true, "quota": false, "untracked": false}]}"#,
    ];
    rules_reply: limits::RulesReply = [
        r#"{"domains": [{"domain": "shop", "version": 3, "at_ms": 7, "by": "ann", "reason": "r", "rules_total": 1,
                         "rules": ["path=*: 5 a minute"], "text": "domain: shop\n", "next": 9}], "next": "shop"}"#,
    ];
    rules_changed: limits::RulesChanged = [
        r#"{"domain": "shop", "version": 3, "dry_run": true, "changes": ["+ path=*: 5 a minute"]}"#,
    ];
    limit_stats_reply: limits::LimitStatsReply = [
        r#"{"shards": [{"shard": 3, "counters": 1, "key_bytes": 2, "log_hits": 3, "changed": 4, "changed_for_ms": 5,
                        "saved": 6, "checks": 7, "refused": 8, "untracked": 9, "not_kept": 10}], "unanswered": [4], "next": 64}"#,
    ];
    limit_changes_reply: limits::LimitChangesReply = [
        r#"{"changes": [{"at_ms": 7, "op": "apply", "domain": "shop", "version": 3, "by": "ann", "reason": "r"},
                        {"at_ms": 8, "op": "reset", "domain": "shop", "descriptor": "user=ann"}], "left_out": true,
            "unanswered": [4]}"#,
    ];
    reset_reply: limits::ResetReply = [r#"{"known": true}"#];
}
