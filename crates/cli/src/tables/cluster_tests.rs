#![allow(clippy::unwrap_used)]

use serde_json::json;

use super::*;
use crate::tables::tests::PLAIN;

fn a_cluster() -> ClusterStatus {
    serde_json::from_value(json!({
        "cluster": "dev", "lines": 3, "answered_by": 2,
        "nodes": [
            {"id": 1, "alive": true, "last_heard_ms": 40, "leads": 3, "metrics_addr": "127.0.0.1:9464"},
            {"id": 2, "alive": true, "leads": 2},
            {"id": 3, "alive": false, "leads": 0},
            {"id": 4, "alive": false, "refused": "node 4 came back with another disk", "leads": 0}
        ],
        "shards": [
            {"shard": 0, "leader": 1, "term": 2, "applied": 5, "committed": 5},
            {"shard": 1, "leader": 1, "term": 2, "applied": 5, "committed": 5},
            {"shard": 2, "leader": 2, "term": 2, "applied": 5, "committed": 5},
            {"shard": 3, "leader": 1, "term": 2, "applied": 5, "committed": 5},
            {"shard": 4, "leader": 2, "term": 2, "applied": 5, "committed": 5, "differs": [1, 3]},
            {"shard": 5, "leader": null, "term": 3, "applied": 5, "committed": 5}
        ]
    }))
    .unwrap()
}

#[test]
fn a_cluster_groups_shards_by_leader() {
    let text = cluster(&a_cluster(), &PLAIN);
    for words in [
        "node 1",
        "0-1, 3",
        "node 2",
        "2, 4",
        "none",
        "5",
        "this one",
        "40 ms ago",
        "never",
        "silent",
        "refused",
    ] {
        assert!(text.contains(words), "{words}:\n{text}");
    }
}

#[test]
fn keys_with_one_number_may_be_different_keys() {
    let mut status = a_cluster();
    let mut with_prints = |value, prints: [Option<&str>; 4]| {
        status.key = Some(serde_json::from_value(value).unwrap());
        for (node, print) in status.nodes.iter_mut().zip(prints) {
            let mut keys = vec![json!({"id": 1, "fingerprint": "11"})];
            keys.extend(print.map(|print| json!({"id": 2, "fingerprint": print})));
            node.keys = serde_json::from_value(keys.into()).unwrap();
        }
        key(&status)
    };
    let next = || json!({"in_force": 1, "next": 2});
    let text = with_prints(next(), [Some("aa"), Some("bb"), None, Some("aa")]);
    assert!(!text.contains("all nodes have loaded"), "{text}");
    assert!(text.contains("nodes 1, 4 (aa), node 2 (bb)"), "{text}");
    let text = with_prints(next(), [Some("aa"); 4]);
    assert!(text.contains("all nodes have loaded key 2"), "{text}");
    // The node that answers lacks it.
    let in_force = json!({"in_force": 1});
    let text = with_prints(in_force, [Some("aa"), None, Some("aa"), Some("aa")]);
    assert!(text.contains("key 2 is not loaded by node 2"), "{text}");
}

#[test]
fn the_step_of_a_rotation_stands_above_the_tables() {
    let mut status = a_cluster();
    assert_eq!(key(&status), "");
    let mut with_key = |value, keys: [&[u8]; 4]| {
        status.key = Some(serde_json::from_value(value).unwrap());
        for (node, keys) in status.nodes.iter_mut().zip(keys) {
            let reply = |id: &u8| json!({"id": id, "fingerprint": "00000000000000ff"});
            let keys = keys.iter().map(reply).collect();
            node.keys = serde_json::from_value(keys).unwrap();
        }
        key(&status)
    };
    let both: &[u8] = &[1, 2];
    assert_eq!(with_key(json!({"in_force": 1}), [&[1]; 4]), "");
    let next = || json!({"in_force": 1, "next": 2});
    let text = with_key(next(), [both, both, &[1], both]);
    assert_eq!(
        text,
        "key 1 is in force, and key 2 is not loaded by node 3\n"
    );
    let text = with_key(next(), [both; 4]);
    assert!(text.contains("`cluster rotate-key`"), "{text}");
    let old = |over: bool| json!({"in_force": 2, "old": 1, "old_until_ms": 0, "old_is_over": over});
    let text = with_key(old(false), [both; 4]);
    assert!(
        text.contains("tickets of key 1 are good until 1970"),
        "{text}"
    );
    let text = with_key(old(true), [both; 4]);
    assert!(text.contains("key 1 can be removed"), "{text}");
    assert_eq!(with_key(old(true), [&[2]; 4]), "");
}

#[test]
fn faults_of_a_cluster_stand_above_its_tables() {
    let mut status = a_cluster();
    let lines = |status: &ClusterStatus| -> Vec<String> {
        let text = cluster(status, &PLAIN);
        text.lines().take(3).map(str::to_owned).collect()
    };
    let [first, second, third] = &lines(&status)[..] else {
        panic!("three lines at least");
    };
    assert!(
        first.contains("without a leader") && first.ends_with("shards 5"),
        "{first}"
    );
    assert!(second.starts_with("cluster dev"), "{second}");
    assert_eq!(
        third,
        "node 4 is refused: node 4 came back with another disk"
    );
    status.shards[5].leader = Some(1);
    status.nodes[3].refused = None;
    let [first, second, _] = &lines(&status)[..] else {
        panic!("three lines at least");
    };
    assert!(first.starts_with("cluster dev"), "{first}");
    assert!(!second.starts_with("node 4"), "{second}");
}

#[test]
fn ranges_merge() {
    assert_eq!(ranges(&[7, 0, 1, 2, 3]), "0-3, 7");
    assert_eq!(ranges(&[]), "");
}

#[test]
fn a_missing_mapping_is_shown_with_the_line_that_fixes_it() {
    let mut status = a_cluster();
    assert!(!cluster(&status, &PLAIN).contains("mapping"));
    status.mapping_line = Some("mappings = { x }".to_owned());
    for (mapping, words) in [
        (Mapping::Missing, "node 2 has no mapping"),
        (Mapping::Wrong, "node 2 has a wrong mapping"),
    ] {
        status.mapping = Some(mapping);
        let text = cluster(&status, &PLAIN);
        assert!(text.contains(words), "{text}");
        assert!(text.contains("\n  mappings = { x }\n"), "{text}");
    }
}

#[test]
fn another_cluster_on_the_prefix_is_named() {
    let mut status = a_cluster();
    status.other_clusters = serde_json::from_value(json!([
        {"cluster": "test", "cluster_id": "00ff", "nodes": 2}
    ]))
    .unwrap();
    let text = cluster(&status, &PLAIN);
    let words =
        "cluster test (identity 00ff) serves with 2 nodes on this NATS with the same prefix";
    assert!(text.contains(words), "{text}");
}

#[test]
fn a_node_that_catches_up_shows_how_far_it_is() {
    let mut status = a_cluster();
    status.nodes[0].caught_up_in = 6;
    status.nodes[1].caught_up_in = 4;
    status.nodes[1].snapshots = Some(SnapshotsSent {
        sent_bytes: 3 << 20,
        total_bytes: 40 << 20,
    });
    let shown = |id: usize| caught_up(&status.nodes[id - 1], &status);
    assert_eq!(shown(1), "yes");
    assert_eq!(shown(2), "4 of 6 shards, 3.00 MiB of 40.00 MiB sent");
    assert_eq!(shown(3), "-", "it is silent");
    let text = cluster(&status, &PLAIN);
    assert!(text.contains("catching up"), "{text}");
    status.members.shards_changing = 2;
    let text = cluster(&status, &PLAIN);
    let line = "members are changing: 2 shards to go; snapshots: 3.00 MiB of 40.00 MiB sent\n";
    assert!(text.contains(line), "{text}");
}

#[test]
fn each_candidate_comes_with_the_commands_that_fit() {
    for (node, commands) in [
        (json!(2), &["replace-node 2"][..]),
        (
            json!(null),
            &["replace-node 3", "replace-node 4", "add-node"],
        ),
        // It was removed.
        (json!(9), &["replace-node 3", "replace-node 4", "add-node"]),
    ] {
        let mut status = a_cluster();
        let disk = "00000000000000ab";
        let candidate = json!({"disk": disk, "node": node, "reason": "it asks", "version": "1"});
        status
            .members
            .candidates
            .push(serde_json::from_value(candidate).unwrap());
        let text = members(&status);
        let shown: Vec<&str> = text.lines().skip(1).collect();
        let expected = commands.iter();
        let expected = expected.map(|it| format!("  nowserving cluster {it} {disk}"));
        assert_eq!(shown, expected.collect::<Vec<_>>(), "{text}");
    }
}

#[test]
fn changes_that_differ_are_told_apart() {
    let change = |op: &str, request: serde_json::Value| {
        let mut change = json!({"members_version": 3, "at_ms": 5, "op": op});
        change
            .as_object_mut()
            .unwrap()
            .extend(request.as_object().unwrap().clone());
        changed(&serde_json::from_value(change).unwrap())
    };
    for (op, request, text) in [
        ("drain", json!({"node": 1, "drained": true}), "drain"),
        (
            "drain",
            json!({"node": 1, "drained": false}),
            "drain --undo",
        ),
        (
            "transfer",
            json!({"node": 2, "shards": [3, 0]}),
            "transfer 0, 3",
        ),
        ("rotate_key", json!({"key_id": 2}), "rotate_key 2"),
        ("remove_node", json!({"node": 1}), "remove_node"),
    ] {
        assert_eq!(change(op, request), text);
    }
}
