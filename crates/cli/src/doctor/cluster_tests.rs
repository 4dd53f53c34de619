#![allow(clippy::unwrap_used)]
use clap::Parser as _;
use serde_json::{Value, json};

use nowserving_insight::cluster::{Seen, findings};
use nowserving_insight::finding::Severity;

use crate::commands::Cli;

fn seen(change: impl FnOnce(&mut Value)) -> Seen {
    let node = |id: u64| json!({"id": id, "alive": true, "leads": 1, "caught_up_in": 2, "version": "0.1.0"});
    let shard =
        |shard: u32| json!({"shard": shard, "leader": 1, "term": 2, "applied": 5, "committed": 5});
    let mut status = json!({
        "cluster": "shop", "lines": 3, "answered_by": 2, "at_ms": 1_000_000, "mapping": "ok",
        "nodes": [node(1), node(2), node(3)], "shards": [shard(0), shard(1)],
    });
    change(&mut status);
    Seen {
        status: serde_json::from_value(status).unwrap(),
        ahead_ms: 3,
    }
}

#[test]
fn a_well_cluster_has_no_findings() {
    assert_eq!(findings(&[seen(|_| {})]), []);
    assert_eq!(findings(&[]), []);
}

#[test]
fn each_fault_is_found_with_what_mends_it() {
    type Break = fn(&mut Value);
    let cases: [(&str, Severity, &str, Break); 14] = [
        ("no_leader", Severity::Problem, "status --wait", |it| {
            it["shards"][1]["leader"] = Value::Null;
        }),
        ("node_absent", Severity::Warning, "replace-node 3", |it| {
            it["nodes"][2]["alive"] = false.into();
        }),
        ("node_absent", Severity::Warning, "replace-node 3", |it| {
            it["nodes"][2]["alive"] = false.into();
            it["nodes"][2]["refused"] = "node 3 came back with another disk".into();
        }),
        ("disk_full", Severity::Warning, "make room", |it| {
            it["nodes"][0]["disk_full"] = true.into();
        }),
        ("state_differs", Severity::Problem, "restart one", |it| {
            it["shards"][0]["differs"] = json!([3]);
        }),
        ("prefix_shared", Severity::Problem, "--prefix", |it| {
            it["other_clusters"] = json!([{"cluster": "test", "nodes": 1}]);
        }),
        (
            "max_payload_small",
            Severity::Note,
            "max_payload: 1MB",
            |it| {
                for nth in 0..3 {
                    it["nodes"][nth]["max_payload_bytes"] = 65_536.into();
                }
            },
        ),
        (
            "max_payload_too_small",
            Severity::Problem,
            "max_payload: 1MB",
            |it| {
                it["nodes"][0]["max_payload_bytes"] = 65_536.into();
                it["nodes"][2]["max_payload_bytes"] = 65_535.into();
            },
        ),
        ("mapping_missing", Severity::Warning, "mappings = x", |it| {
            it["mapping"] = "missing".into();
            it["mapping_line"] = "mappings = x".into();
        }),
        ("node_lags", Severity::Warning, "--wait", |it| {
            it["nodes"][2]["caught_up_in"] = 1.into();
        }),
        ("versions_differ", Severity::Warning, "upgrade", |it| {
            it["nodes"][2]["version"] = "0.2.0".into();
        }),
        ("keys_differ", Severity::Warning, "cluster status", |it| {
            it["key"] = json!({"in_force": 1, "next": 2});
            for (nth, print) in ["aa", "bb", "aa"].into_iter().enumerate() {
                it["nodes"][nth]["keys"] = json!([
                    {"id": 1, "fingerprint": "11"}, {"id": 2, "fingerprint": print},
                ]);
            }
        }),
        ("members_change", Severity::Note, "cluster changes", |it| {
            it["members"] = json!({"version": 3, "shards_changing": 1});
        }),
        ("node_drained", Severity::Note, "drain 2 --undo", |it| {
            it["nodes"][1]["drained"] = true.into();
        }),
    ];
    for (code, severity, mend, change) in cases {
        let found = findings(&[seen(change)]);
        assert_eq!(found.len(), 1, "{code}: {found:?}");
        assert_eq!((found[0].code, found[0].severity), (code, severity));
        let mends = serde_json::to_string(&found[0].mend).unwrap();
        assert!(mends.contains(mend), "{code}: {mends}");
        for command in found[0].commands() {
            let words = shlex::split(command).unwrap();
            assert!(Cli::try_parse_from(words).is_ok(), "{command}");
        }
    }
}

/// A node whose configuration is wrong must keep its disk.
#[test]
fn only_a_lost_disk_is_replaced() {
    let found = |reason: &str, change: fn(&mut Value)| {
        let found = findings(&[seen(|it| {
            it["nodes"][2]["alive"] = false.into();
            it["nodes"][2]["refused"] = reason.into();
            change(it);
        })]);
        let mut absent = found.into_iter().filter(|it| it.code == "node_absent");
        let absent = absent.find(|it| it.text.contains("node 3")).unwrap();
        serde_json::to_string(&absent.mend).unwrap()
    };
    for reason in [
        "node 3 has 8 shards, node 1 has 16",
        "node 3 has the prefix \"shop\", node 1 has \"nowserving\"",
        "node 3 has the election timeout 900 ms, node 1 has 750 ms",
        "the frame's seal does not hold: another cluster's key, or it was altered",
    ] {
        let mend = found(reason, |_| {});
        assert!(mend.contains("correct the configuration"), "{mend}");
        assert!(!mend.contains("replace-node"), "{mend}");
    }
    let mend = found("a frame of format 9, and this build reads 1", |_| {});
    assert!(mend.contains("release"), "{mend}");
    let older = "node 3 came back with an older copy of its disk and must not vote";
    assert!(found(older, |_| {}).contains("replace-node 3"));
    let alone = found(older, |it| it["nodes"][1]["alive"] = false.into());
    assert!(!alone.contains("replace-node"), "{alone}");
    let asks = found("of the second cluster", |it| {
        it["members"] = json!({"version": 3, "shards_changing": 0, "candidates": [
            {"disk": "0000000000000007", "node": 3, "reason": "lost", "version": "0.1.0"},
        ]});
    });
    assert!(asks.contains("replace-node 3"), "{asks}");
}

#[test]
fn without_a_majority_nothing_is_replaced() {
    let found = findings(&[seen(|it| {
        it["nodes"][0]["alive"] = false.into();
        it["nodes"][2]["alive"] = false.into();
        it["shards"][0]["leader"] = Value::Null;
    })]);
    assert_eq!((found[0].code, found.len()), ("no_leader", 3));
    let mends = serde_json::to_string(&found).unwrap();
    assert!(mends.contains("gone for good"), "{mends}");
    assert!(!mends.contains("replace-node"), "{mends}");
}

#[test]
fn a_shard_has_a_leader_if_any_node_knows_it() {
    let blind = seen(|it| it["shards"][1]["leader"] = Value::Null);
    assert_eq!(findings(&[blind, seen(|_| {})]), []);
}

#[test]
fn two_full_disks_of_three_stop_writes() {
    let found = findings(&[seen(|it| {
        it["nodes"][0]["disk_full"] = true.into();
        it["nodes"][1]["disk_full"] = true.into();
    })]);
    assert_eq!(found[0].severity, Severity::Problem);
    assert!(found[0].text.contains("nodes 1, 2"), "{}", found[0].text);
}

#[test]
fn a_clock_that_is_off_is_found() {
    for (ahead_ms, severity) in [
        (1_000, None),
        (-1_001, Some(Severity::Warning)),
        (16_000, Some(Severity::Warning)),
        (16_001, Some(Severity::Problem)),
        (-60_000, Some(Severity::Warning)),
    ] {
        let it = Seen {
            ahead_ms,
            ..seen(|_| {})
        };
        let found = findings(&[it]);
        assert_eq!(found.first().map(|it| it.severity), severity, "{ahead_ms}");
    }
}
