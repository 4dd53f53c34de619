//! The replies and events of an earlier build are read: clients may be newer than the nodes.

use std::fmt::Debug;
use std::fs;

use nowserving_line::{Line, LineName, Lines, Op, Settings, Stamp, Timestamp, TokenRef};
use nowserving_protocol::admin::{ClusterStatus, LineReply, NodeStatus, ShardStatus};
use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::{ApiError, ErrorReply};
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::user::{BoardReply, Home, InfoReply, StatusReply};
use serde::Serialize;

const NOW: Timestamp = Timestamp {
    service_ms: 5_000,
    wall_ms: 705_500,
};
const HOME: Home = Home {
    shard: 3,
    leader: Some(2),
};

/// Reads the kept reply in both formats. Its bytes need not be those of today: replies get new fields.
fn kept<T: Serialize + Payload + PartialEq + Debug>(name: &str, expected: &T) {
    for (format, ending) in [(Format::Json, "json"), (Format::MsgPack, "msgpack")] {
        let name = format!("{name}.{ending}");
        let path = nowserving_testkit::golden::path(env!("CARGO_MANIFEST_DIR"), &name, |path| {
            fs::write(path, encode(expected, format)).unwrap();
        });
        let read: T = decode(&fs::read(path).unwrap()).unwrap();
        assert_eq!(read, *expected, "{name}");
    }
}

fn shop() -> LineName {
    LineName::try_from("shop-1").unwrap()
}

/// A line with one seat, which is taken, and one that waits.
fn a_line(events: &mut Vec<nowserving_line::Event>) -> Lines {
    let mut lines = Lines::new();
    let enter = || Op::Enter {
        line: shop(),
        key: None,
        lane: None,
    };
    let create = Op::Create {
        line: shop(),
        settings: Settings::new(1, 15),
    };
    for (index, op) in (1..).zip([create, enter(), enter()]) {
        let stamp = Stamp {
            index,
            op_no: 0,
            now_ms: 1_000,
            wall_ms: 701_000,
        };
        lines.apply(stamp, &op, Some(events)).unwrap();
    }
    lines
}

fn status(line: &Line, token: u64) -> StatusReply {
    let at = TokenRef {
        incarnation: line.incarnation(),
        lane: 0,
        token,
    };
    StatusReply::new(&line.status(at, 5_000).unwrap(), NOW)
}

#[test]
fn replies_to_users() {
    let lines = a_line(&mut Vec::new());
    let line = lines.get(&shop()).unwrap();
    kept("status-admitted", &status(line, 1));
    let with_holes = StatusReply {
        holes: Some(vec![[3, 5], [9, 9]]),
        ticket: Some("t".to_owned()),
        // The earlier build did not say it.
        turn: None,
        ..status(line, 2)
    };
    kept("status-waiting", &with_holes);
    kept("info", &InfoReply::new(line, NOW, HOME));
    kept("error", &ErrorReply::from(ApiError::not_leader(Some(2))));
}

#[test]
fn replies_to_operators() {
    let lines = a_line(&mut Vec::new());
    let mut line = LineReply::new(lines.get(&shop()).unwrap(), NOW, HOME);
    // The earlier build had no such reason.
    line.counts.gone.remove("wait_expired");
    line.counts.gone_from.clear();
    line.counts.refused.clear();
    // Nor this setting.
    line.settings.jumps_max = 0;
    line.settings.admission = String::new();
    line.settings.gate = String::new();
    line.settings.opening = String::new();
    kept("line", &line);
    let node = NodeStatus {
        id: 2,
        alive: false,
        refused: Some("another disk".to_owned()),
        last_heard_ms: Some(5),
        leads: 6,
        disk_full: true,
        refuses_snapshots: 0,
        metrics_addr: Some("127.0.0.1:9100".to_owned()),
        version: Some("0.1.0".to_owned()),
        max_payload_bytes: None,
        votes_in: 3,
        caught_up_in: 0,
        snapshots: None,
        joining_in: 1,
        leaving: true,
        drained: true,
        keys: Vec::new(),
    };
    let shard = ShardStatus {
        shard: 1,
        leader: Some(2),
        term: 1,
        applied: 2,
        committed: 3,
        voters: vec![1, 2],
        learners: vec![4],
        differs: vec![2],
    };
    let status = ClusterStatus {
        cluster: "prod".to_owned(),
        nodes: vec![node],
        shards: vec![shard],
        members: Default::default(),
        lines: 1,
        answered_by: 1,
        // Nodes did not tell it then.
        at_ms: 0,
        mapping: None,
        mapping_line: None,
        key: None,
        other_clusters: Vec::new(),
    };
    kept("cluster-status", &status);
}

#[test]
fn events() {
    let mut events = Vec::new();
    let lines = a_line(&mut events);
    let line = lines.get(&shop()).unwrap();
    let board = BoardEvent {
        board: BoardReply::new(&line.board(5_000), NOW.wall_ms),
        prev_version: 3,
        whole: false,
    };
    kept("event-board", &board);
    let mut of_tokens = events.iter().filter_map(|event| TokenEvent::new(event, 1));
    let admitted = of_tokens.find(|event| event.event == "admitted");
    kept("event-token", &admitted.unwrap());
    let mut of_lines = events.iter().filter_map(|event| LineEvent::new(event, 1));
    kept("event-line", &of_lines.next().unwrap());
}
