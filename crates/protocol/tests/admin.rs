//! Payloads of operators, and events.

use crate::common::{both_ways, refused};
use nowserving_line::{LineName, Op, Settings, Stamp, Timestamp};
use nowserving_protocol::admin::*;
use nowserving_protocol::codec::{Format, decode, encode};
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::user::Home;
use serde_json::json;

fn line(name: &str) -> LineName {
    LineName::try_from(name).unwrap()
}

#[test]
fn the_other_requests_refuse_unknown_fields() {
    assert!(!decode::<Delete>(b"").unwrap().force);
    assert!(decode::<Delete>(br#"{"force": true}"#).unwrap().force);
    refused::<Delete>(json!({"force": 1}), &["force:", "true or false"]);
    for incarnation in [json!("4097"), json!(-1), json!(1_u64 << 53)] {
        let limit = "0 to 9007199254740991";
        refused::<Delete>(
            json!({ "incarnation": incarnation }),
            &["incarnation:", limit],
        );
    }
    for incarnation in [None, Some(4_097)] {
        both_ways(&Delete {
            force: true,
            incarnation,
        });
    }
    refused::<Delete>(json!({"Force": true}), &["`Force`"]);
    refused::<Show>(json!({"x": 1}), &["`x`"]);
    refused::<ClusterStatusRequest>(json!({"x": 1}), &["`x`"]);
    refused::<ListLines>(json!({"label": {}}), &["`label`"]);
    refused::<ListLines>(json!({"after": "a.b"}), &["after:"]);
    for limit in [json!(0), json!(81), json!(-1), json!("5")] {
        refused::<ListLines>(json!({ "limit": limit }), &["limit:", "from 1 to 80"]);
    }
    refused::<ListLines>(json!({"labels": {"x": 1}}), &["labels.x:"]);
    let labels = [("city".to_owned(), "x".to_owned())].into();
    both_ways(&ListLines {
        after: Some(line("a")),
        limit: Some(80),
        labels,
    });
    assert_eq!(encode(&ListLines::default(), Format::Json), b"{}");
    assert_eq!(decode::<ListLines>(b"").unwrap(), ListLines::default());
}

#[test]
fn replies_go_both_ways() {
    let mut lines = nowserving_line::Lines::new();
    let mut events = Vec::new();
    let shop = line("shop-1");
    let ops = [
        Op::Create {
            line: shop.clone(),
            settings: Settings::new(1, 15),
        },
        Op::Enter {
            line: shop.clone(),
            key: None,
            lane: None,
        },
        Op::Delete {
            line: shop.clone(),
            force: true,
            incarnation: None,
        },
    ];
    for (index, op) in (1..).zip(&ops[..2]) {
        lines
            .apply(
                Stamp {
                    index,
                    op_no: 0,
                    now_ms: 5,
                    wall_ms: 1_005,
                },
                op,
                Some(&mut events),
            )
            .unwrap();
    }
    let reply = LineReply::new(
        lines.get(&shop).unwrap(),
        Timestamp {
            service_ms: 6,
            wall_ms: 1_006,
        },
        Home {
            shard: 3,
            leader: Some(2),
        },
    );
    both_ways(&reply);
    let json = serde_json::to_value(&reply).unwrap();
    assert_eq!(
        (
            &json["counts"]["issued"],
            &json["counts"]["gone"]["no_show"]
        ),
        (&json!(1), &json!(0))
    );
    assert_eq!(json.get("deleting"), None);
    assert_eq!((&json["shard"], &json["leader"]), (&json!(3), &json!(2)));
    assert_eq!(json["held_back_by"], json!({"by": "nothing"}));
    assert_eq!(json["default_lane"], "normal");
    assert_eq!(json["settings"]["default_lane"], json!(null));
    let summary = LineSummary::from(lines.get(&shop).unwrap());
    both_ways(&LineList {
        lines: vec![summary],
        next: Some(shop.clone()),
    });
    both_ways(&LineList::default());
    let request = ChangeMembers {
        node: Some(3),
        disk: Some(DiskId(255)),
        ..ChangeMembers::default()
    };
    both_ways(&request);
    both_ways(&MembersReply {
        members_version: 2,
        node: Some(4),
    });
    both_ways(&MembersChangesReply {
        changes: vec![MembersChangeReply {
            members_version: 2,
            at_ms: 5,
            op: "replace_node".to_owned(),
            request,
            by: Some("ops".to_owned()),
            reason: None,
        }],
        shards_changing: 3,
        snapshots: Some(SnapshotsSent {
            sent_bytes: 1,
            total_bytes: 2,
        }),
    });
    both_ways(&DeleteReply {
        line: shop.clone(),
        deleted: false,
        remaining: 3,
    });
    let node = NodeStatus {
        id: 1,
        alive: true,
        refused: None,
        last_heard_ms: None,
        leads: 6,
        disk_full: false,
        refuses_snapshots: 0,
        metrics_addr: None,
        version: None,
        max_payload_bytes: Some(65_536),
        votes_in: 3,
        caught_up_in: 2,
        snapshots: None,
        joining_in: 1,
        leaving: false,
        drained: true,
        keys: vec![KeyReply {
            id: 1,
            fingerprint: "00000000000000ff".to_owned(),
        }],
    };
    both_ways(&ClusterStatus {
        cluster: "prod".to_owned(),
        other_clusters: vec![OtherCluster {
            cluster: "test".to_owned(),
            cluster_id: Some("00000000000000ff".to_owned()),
            nodes: 2,
        }],
        nodes: vec![
            node.clone(),
            NodeStatus {
                alive: false,
                refused: Some("node 2 came back with another disk".to_owned()),
                last_heard_ms: Some(5),
                disk_full: true,
                refuses_snapshots: 2,
                snapshots: Some(SnapshotsSent {
                    sent_bytes: 1,
                    total_bytes: 2,
                }),
                metrics_addr: Some("x:1".to_owned()),
                ..node
            },
        ],
        shards: vec![ShardStatus {
            shard: 0,
            leader: None,
            term: 1,
            applied: 2,
            committed: 3,
            voters: vec![1, 2],
            learners: vec![4],
            differs: vec![2],
        }],
        members: MembersStatus {
            version: 7,
            shards_changing: 1,
            candidates: vec![CandidateStatus {
                disk: DiskId(u64::MAX),
                node: None,
                reason: "it is new".to_owned(),
                version: "1".to_owned(),
            }],
        },
        lines: 1,
        answered_by: 1,
        at_ms: 9,
        mapping: Some(Mapping::Missing),
        mapping_line: Some("mappings = { }".to_owned()),
        key: Some(KeyStatus {
            in_force: 2,
            next: None,
            old: Some(1),
            old_until_ms: Some(5),
            old_is_over: true,
        }),
    });

    lines
        .apply(
            Stamp {
                index: 3,
                op_no: 0,
                now_ms: 7,
                wall_ms: 1_007,
            },
            &ops[2],
            Some(&mut events),
        )
        .unwrap();
    let token_words: Vec<_> = events
        .iter()
        .filter_map(|event| TokenEvent::new(event, 1))
        .collect();
    let line_words: Vec<_> = events
        .iter()
        .filter_map(|event| LineEvent::new(event, 1))
        .collect();
    assert_eq!(token_words.len() + line_words.len(), events.len());
    let words: Vec<_> = token_words
        .iter()
        .map(|event| (event.event.as_str(), event.reason.as_deref()))
        .collect();
    let expected = [
        ("entered", None),
        ("admitted", None),
        ("gone", Some("closed")),
    ];
    assert_eq!(words, expected);
    let words: Vec<_> = line_words
        .iter()
        .map(|event| event.event.as_str())
        .collect();
    assert_eq!(words, ["created", "deleted"]);
    token_words.iter().for_each(both_ways);
    line_words.iter().for_each(both_ways);
}

#[test]
fn a_board_event_lists_holes_beside_the_pointers() {
    let mut lines = nowserving_line::Lines::new();
    let create = Op::Create {
        line: line("shop-1"),
        settings: Settings::new(1, 15),
    };
    lines
        .apply(
            Stamp {
                index: 1,
                op_no: 0,
                now_ms: 5,
                wall_ms: 1_005,
            },
            &create,
            None,
        )
        .unwrap();
    let board =
        nowserving_protocol::user::BoardReply::new(&lines.iter().next().unwrap().board(5), 5);
    let mut event = BoardEvent {
        board,
        prev_version: 3,
        whole: false,
    };
    both_ways(&event);
    event.board.lanes[0].holes = Some(vec![]);
    both_ways(&event);
    event.board.lanes[0].holes = Some(vec![[4, 4], [6, 9]]);
    both_ways(&event);
    let json = serde_json::to_value(&event).unwrap();
    assert_eq!(
        (&json["prev_version"], &json["line"]),
        (&json!(3), &json!("shop-1"))
    );
    assert_eq!(json["lanes"][0]["holes"], json!([[4, 4], [6, 9]]));
}
