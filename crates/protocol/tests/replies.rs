//! Replies to users look as in the contract, and come back from both formats.

use nowserving_line::{
    AdmissionRate, Change, LineName, Op, Phase, Settings, SettingsPatch, Stamp, Timestamp,
};
use nowserving_protocol::codec::decode;
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::user::{BoardReply, HeldBackReply, Home, InfoReply, StatusReply};
use serde_json::json;

use crate::common::{both_ways, part_both_ways, payloads};

/// 4 s after everything, on a wall clock far from the service clock.
fn now() -> Timestamp {
    Timestamp {
        service_ms: 5_000,
        wall_ms: 705_500,
    }
}

fn a_line() -> nowserving_line::Lines {
    let mut lines = nowserving_line::Lines::new();
    let line = LineName::try_from("shop-1").unwrap();
    let mut apply = |index, op| {
        lines
            .apply(
                Stamp {
                    index,
                    op_no: 0,
                    now_ms: 1_000,
                    wall_ms: 701_000,
                },
                &op,
                None,
            )
            .unwrap()
    };
    apply(
        1,
        Op::Create {
            line: line.clone(),
            settings: Settings::new(1, 15),
        },
    );
    apply(
        2,
        Op::Enter {
            line: line.clone(),
            key: None,
            lane: None,
        },
    );
    apply(
        3,
        Op::Enter {
            line,
            key: None,
            lane: None,
        },
    );
    lines
}

#[test]
fn a_status_looks_as_in_the_contract() {
    let lines = a_line();
    let line = lines.iter().next().unwrap();
    let at = |token| nowserving_line::TokenRef {
        incarnation: line.incarnation(),
        lane: 0,
        token,
    };
    let waiting = StatusReply::new(&line.status(at(2), 5_000).unwrap(), now());
    both_ways(&waiting);
    let json = serde_json::to_value(&waiting).unwrap();
    for (field, value) in [
        ("line", json!("shop-1")),
        ("lane", json!("normal")),
        ("token", json!(2)),
        ("state", json!("waiting")),
        ("position", json!(1)),
        ("ahead", json!(0)),
        ("turn", json!(1)),
        ("eta_ms", json!(null)),
        ("eta_p90_ms", json!(null)),
        ("call_ahead", json!(false)),
        ("admitted_through", json!(1)),
        ("at_ms", json!(705_500)),
        ("incarnation", json!(line.incarnation())),
    ] {
        assert_eq!(json.get(field), Some(&value), "{field}");
    }
    for field in [
        "ticket",
        "holes",
        "epoch",
        "expires_at_ms",
        "expires_in_ms",
        "reason",
        "position_capped",
        "eta_from",
    ] {
        assert_eq!(json.get(field), None, "{field}");
    }
    let admitted = StatusReply::new(&line.status(at(1), 5_000).unwrap(), now());
    both_ways(&admitted);
    let json = serde_json::to_value(&admitted).unwrap();
    for field in ["position", "ahead", "turn", "eta_ms", "eta_p90_ms"] {
        assert_eq!(json.get(field), None, "{field}");
    }
    assert_eq!(json["expires_in_ms"], 116_000);
    assert_eq!(json["expires_at_ms"], 821_500);
    let with_holes = StatusReply {
        holes: Some(vec![[3, 5], [9, 9]]),
        ticket: Some("t".to_owned()),
        ..waiting
    };
    both_ways(&with_holes);
}

#[test]
fn a_forecast_says_what_it_rests_on() {
    let mut lines = a_line();
    let patch = SettingsPatch {
        checkout_expected_ms: Some(Change::Set(60_000)),
        ..SettingsPatch::default()
    };
    let configure = Op::Configure {
        line: LineName::try_from("shop-1").unwrap(),
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    };
    let stamp = Stamp {
        index: 4,
        op_no: 0,
        now_ms: 1_000,
        wall_ms: 701_000,
    };
    lines.apply(stamp, &configure, None).unwrap();
    let line = lines.iter().next().unwrap();
    let at = nowserving_line::TokenRef {
        incarnation: line.incarnation(),
        lane: 0,
        token: 2,
    };
    let status = StatusReply::new(&line.status(at, 5_000).unwrap(), now());
    both_ways(&status);
    let json = serde_json::to_value(&status).unwrap();
    assert_eq!(json["eta_from"], "expected");
    assert!(json["eta_ms"].as_u64() < json["eta_p90_ms"].as_u64());
    let home = Home {
        shard: 3,
        leader: None,
    };
    let info = InfoReply::new(line, now(), home);
    both_ways(&info);
    assert_eq!(
        serde_json::to_value(&info).unwrap()["newcomer_eta_from"],
        "expected"
    );
}

#[test]
fn a_capped_position_and_a_call_are_said() {
    let mut lines = a_line();
    let patch = SettingsPatch {
        position_cap: Some(Change::Set(1)),
        call_ahead: Some(Change::Set(1)),
        ..SettingsPatch::default()
    };
    let name = LineName::try_from("shop-1").unwrap();
    let enter = Op::Enter {
        line: name.clone(),
        key: None,
        lane: None,
    };
    let configure = Op::Configure {
        line: name,
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    };
    for (index, op) in [(4, enter), (5, configure)] {
        let stamp = Stamp {
            index,
            op_no: 0,
            now_ms: 1_000,
            wall_ms: 701_000,
        };
        lines.apply(stamp, &op, None).unwrap();
    }
    let line = lines.iter().next().unwrap();
    let shown = |token| {
        let at = nowserving_line::TokenRef {
            incarnation: line.incarnation(),
            lane: 0,
            token,
        };
        let status = StatusReply::new(&line.status(at, 5_000).unwrap(), now());
        both_ways(&status);
        serde_json::to_value(&status).unwrap()
    };
    let (first, second) = (shown(2), shown(3));
    assert_eq!(
        (&first["position"], &first["call_ahead"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(first.get("position_capped"), None);
    assert_eq!((&first["turn"], second.get("turn")), (&json!(1), None));
    assert_eq!(
        (&second["position"], &second["ahead"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(second["position_capped"], json!(true));
    assert_eq!(second["call_ahead"], json!(false));
}

#[test]
fn a_board_and_an_info_look_as_in_the_contract() {
    let lines = a_line();
    let line = lines.iter().next().unwrap();
    let board = BoardReply::new(&line.board(5_000), now().wall_ms);
    part_both_ways(&board);
    let home = Home {
        shard: 3,
        leader: None,
    };
    let info = InfoReply::new(line, now(), home);
    assert_eq!(info.board, board);
    both_ways(&info);
    let json = serde_json::to_value(&info).unwrap();
    assert_eq!(json["settings"]["queue_limit"], 15);
    assert_eq!(json["settings"].get("labels"), None);
    assert_eq!(json["phase"], "open");
    assert_eq!((&json["shard"], &json["leader"]), (&json!(3), &json!(null)));
    assert_eq!(json["held_back_by"], json!({"by": "seats"}));
    // No seat has been given back yet: there is no forecast.
    assert_eq!(json.get("newcomer_eta_ms"), Some(&json!(null)));
    assert_eq!(
        (&json["seats"], &json["admitted"], &json["in_checkout"]),
        (&json!(1), &json!(1), &json!(0))
    );
    let lane = json!({
        "lane": "normal", "next_token": 3, "done_through": 0, "admitted_through": 1,
        "accepts_through": 16, "waiting": 1,
    });
    assert_eq!(json["lanes"], json!([lane]));
}

#[test]
fn each_held_back_reason_has_its_details() {
    let mut lines = a_line();
    let line = || LineName::try_from("shop-1").unwrap();
    let mut after = |index, op| {
        let stamp = Stamp {
            index,
            op_no: 0,
            now_ms: 10_000,
            wall_ms: 710_000,
        };
        lines.apply(stamp, &op, None).unwrap();
        let now = Timestamp {
            service_ms: 10_250,
            wall_ms: 710_300,
        };
        let reply = HeldBackReply::new(lines.get(&line()).unwrap(), now);
        part_both_ways(&reply);
        serde_json::to_value(&reply).unwrap()
    };
    let set = |patch: SettingsPatch| Op::Configure {
        line: line(),
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    };
    let paused = set(SettingsPatch {
        phase: Some(Change::Set(Phase::Paused)),
        ..SettingsPatch::default()
    });
    let expected = json!({"by": "phase", "phase": "paused"});
    assert_eq!(after(4, paused), expected);
    // The unit that there is goes to the one that waits.
    let paced = set(SettingsPatch {
        phase: Some(Change::Set(Phase::Open)),
        seats: Some(Change::Set(9)),
        admission_rate: Some(Change::Set(AdmissionRate {
            per_second_micro: 1_000_000,
            burst: 1,
        })),
        ..SettingsPatch::default()
    });
    assert_eq!(after(5, paced), json!({"by": "nothing"}));
    let one_more = Op::Enter {
        line: line(),
        key: None,
        lane: None,
    };
    let expected = json!({"by": "admission_rate", "next_at_ms": 711_050, "next_in_ms": 750});
    assert_eq!(after(6, one_more), expected);
}

#[test]
fn replies_of_a_newer_server_can_be_read() {
    let lines = a_line();
    let board = BoardReply::new(&lines.iter().next().unwrap().board(5_000), now().wall_ms);
    let mut json = serde_json::to_value(&board).unwrap();
    json["mood"] = json!({"good": [1, 2, 3]});
    json["lanes"][0]["colour"] = json!("red");
    json["prev_version"] = json!(3);
    json["x_list"] = json!([1]);
    for payload in payloads(&json) {
        let event: BoardEvent = decode(&payload).unwrap();
        assert_eq!((event.board, event.prev_version), (board.clone(), 3));
    }
    // An extension, before what is known.
    let [_, msgpack] = payloads(&json);
    let (count @ 0x80..0x8f, rest) = msgpack.split_first().unwrap() else {
        panic!("no small map: {msgpack:x?}");
    };
    let newer = [
        &[count + 1, 0xa3],
        &b"new"[..],
        &[0xd6, 0xff, 1, 2, 3, 4],
        rest,
    ]
    .concat();
    assert_eq!(decode::<BoardEvent>(&newer).unwrap().board, board);
}
