#![allow(clippy::unwrap_used)]
use async_nats::HeaderMap;
use nowserving_line::TokenRef;
use nowserving_protocol::admin;
use nowserving_protocol::codec::encode;
use nowserving_protocol::error::Code;
use nowserving_protocol::keys::ClusterKey;
use nowserving_protocol::ticket::Ticket;
use nowserving_protocol::user::Consistency;
use serde_json::{Value, json};

use super::*;

const SHARDS: u32 = 16;

fn parser() -> Parser {
    let key = ClusterKey::new([7; 32]);
    Parser::new(Subjects::default(), SHARDS, key.ticket_keys()).unwrap()
}

fn message(subject: &str, payload: Vec<u8>) -> Message {
    Message {
        subject: subject.into(),
        reply: Some("_INBOX.1".into()),
        length: payload.len(),
        payload: payload.into(),
        headers: None,
        status: None,
        description: None,
    }
}

fn ask(parser: &Parser, subject: &str, body: &Value) -> Result<Parsed, ApiError> {
    let parse = |format| {
        let message = message(subject, encode(body, format));
        parser.parse(&message).map_err(|refused| refused.error)
    };
    let (json, msgpack) = (parse(Format::Json), parse(Format::MsgPack));
    // Whatever it says, both formats say the same.
    assert_eq!(
        format!("{:?}", kind(&json)),
        format!("{:?}", kind(&msgpack))
    );
    json
}

fn kind(parsed: &Result<Parsed, ApiError>) -> Result<String, Code> {
    match parsed {
        Ok(Parsed::Line(request)) => Ok(format!("{:?}", request.ask)),
        Ok(Parsed::Cluster(question, _)) => Ok(format!("{question:?}")),
        Err(error) => Err(error.code),
    }
}

fn ticket(parser: &Parser, line: &str) -> String {
    parser.tickets.sign(&Ticket {
        line: LineName::try_from(line).unwrap(),
        at: TokenRef {
            incarnation: 5,
            lane: 0,
            token: 9,
        },
    })
}

fn line_ask(parsed: Parsed) -> Ask {
    match parsed {
        Parsed::Line(request) => request.ask,
        Parsed::Cluster(..) => panic!("about the cluster"),
    }
}

#[test]
fn every_operation_of_users_is_read() {
    let parser = parser();
    let ticket = ticket(&parser, "shop");
    let bodies = [
        ("enter", json!({"key": "k"})),
        ("find", json!({"key": "k"})),
        ("status", json!({"ticket": ticket, "consistency": "local"})),
        ("claim", json!({"ticket": ticket})),
        ("renew", json!({"ticket": ticket, "epoch": 3})),
        (
            "complete",
            json!({"ticket": ticket, "unknown": "is ignored"}),
        ),
        ("leave", json!({"ticket": ticket})),
        ("info", json!({})),
    ];
    for (op, body) in bodies {
        let parsed = ask(&parser, &format!("nowserving.line.shop.{op}"), &body).unwrap();
        let Parsed::Line(request) = parsed else {
            panic!("{op}")
        };
        assert_eq!(request.reply.op, op);
        let home = shard_of("shop", SHARDS);
        assert_eq!(request.shard, home);
        assert!(!request.reply.admin);
        match (op, request.ask) {
            ("enter", Ask::Write(Op::Enter { key, lane, .. })) => {
                assert_eq!((key.as_deref(), lane), (Some(&b"k"[..]), None));
            }
            ("find", Ask::Find(key)) => assert_eq!(&*key, b"k"),
            (
                "status",
                Ask::Status {
                    at,
                    consistency,
                    holes,
                },
            ) => {
                assert_eq!(
                    (at.token, consistency, holes),
                    (9, Consistency::Local, false)
                );
            }
            ("claim", Ask::Write(Op::Claim { at, .. }))
            | ("leave", Ask::Write(Op::Leave { at, .. }))
            | (
                "complete",
                Ask::Write(Op::Complete {
                    at, epoch: None, ..
                }),
            )
            | ("renew", Ask::Write(Op::Renew { at, epoch: 3, .. })) => assert_eq!(at.token, 9),
            ("info", Ask::Info(Consistency::Leader)) => {}
            (op, ask) => panic!("{op}: {ask:?}"),
        }
    }
}

#[test]
fn every_operation_of_operators_is_read_and_unknown_fields_are_refused() {
    let parser = parser();
    let bodies = [
        ("create", json!({"seats": 2, "queue_limit": 3})),
        (
            "configure",
            json!({"seats": 3, "if_version": 4, "incarnation": 5}),
        ),
        ("show", json!({})),
        ("delete", json!({"force": true, "incarnation": 5})),
        ("move", json!({"lane": "a", "token": 7, "to": "b"})),
        ("journal", json!({"token": 7, "limit": 5})),
    ];
    for (op, mut body) in bodies {
        let subject = format!("nowserving.admin.line.shop.{op}");
        let asked = line_ask(ask(&parser, &subject, &body).unwrap());
        match (op, asked) {
            ("create", Ask::Write(Op::Create { settings, .. })) => assert_eq!(settings.seats, 2),
            (
                "configure",
                Ask::Write(Op::Configure {
                    if_version: Some(4),
                    incarnation: Some(5),
                    ..
                }),
            )
            | ("show", Ask::Show)
            | ("move", Ask::Write(Op::Move { token: 7, .. }))
            | ("journal", Ask::Journal(admin::Journal { token: Some(7), .. }))
            | (
                "delete",
                Ask::Write(Op::Delete {
                    force: true,
                    incarnation: Some(5),
                    ..
                }),
            ) => {}
            (op, ask) => panic!("{op}: {ask:?}"),
        }
        body["colour"] = json!("red");
        let refused = ask(&parser, &subject, &body).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert!(
            refused.message.contains("colour"),
            "{op}: {}",
            refused.message
        );
    }
    for (op, body) in [("status", json!({})), ("list_lines", json!({"limit": 5}))] {
        let subject = format!("nowserving.admin.cluster.{op}");
        let parsed = ask(&parser, &subject, &body).unwrap();
        assert!(matches!(parsed, Parsed::Cluster(..)));
    }
}

#[test]
fn a_shard_subject_must_be_that_of_the_line() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let body = json!({"anonymous": true});
    let subject = format!("nowserving.shard.{home}.shop.enter");
    let parsed = ask(&parser, &subject, &body).unwrap();
    assert!(matches!(parsed, Parsed::Line(request) if request.shard == home));
    for wrong in [(home + 1) % SHARDS, SHARDS, u32::MAX] {
        let subject = format!("nowserving.shard.{wrong}.shop.enter");
        let refused = ask(&parser, &subject, &body).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert!(refused.message.contains("shard"), "{}", refused.message);
    }
}

#[test]
fn what_a_node_passes_on_is_read_as_what_came_on_the_shards_subject() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let body = json!({"key": "k"});
    for word in ["", ".forward"] {
        let subject = format!("nowserving{word}.shard.{home}.shop.enter");
        let asked = line_ask(ask(&parser, &subject, &body).unwrap());
        assert!(matches!(asked, Ask::Write(Op::Enter { key: Some(_), .. })));
    }
}

#[test]
fn tickets_of_other_lines_altered_and_nonsense_are_invalid() {
    let parser = parser();
    let good = ticket(&parser, "shop");
    let mut altered = good.clone();
    let last = if altered.pop() == Some('A') { 'B' } else { 'A' };
    altered.push(last);
    for bad in [ticket(&parser, "other"), altered, String::new(), "é".into()] {
        let subject = "nowserving.line.shop.status";
        let refused = ask(&parser, subject, &json!({"ticket": bad})).unwrap_err();
        assert_eq!(refused.code, Code::TicketInvalid, "{bad}");
    }
    let refused = ask(&parser, "nowserving.line.shop.claim", &json!({"ticket": 5})).unwrap_err();
    assert_eq!(refused.code, Code::BadRequest);
    assert!(refused.message.contains("ticket"), "{}", refused.message);
}

#[test]
fn operations_that_do_not_exist_and_bad_payloads_are_bad_requests() {
    let parser = parser();
    for subject in [
        "nowserving.line.shop.buy",
        "nowserving.line.shop.create",
        "nowserving.admin.line.shop.enter",
        "nowserving.admin.cluster.explode",
        "nowserving.line.sh%op.enter",
        "nowserving.line.shop",
    ] {
        let refused = ask(&parser, subject, &json!({})).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest, "{subject}");
    }
    for payload in [&b"{"[..], b"{\"key\":1}", b"[]", b"\xc1", b"{} trailing"] {
        let message = message("nowserving.line.shop.enter", payload.to_vec());
        let refused = parser.parse(&message).unwrap_err();
        assert_eq!(refused.error.code, Code::BadRequest, "{payload:?}");
    }
    // An empty payload is an empty map.
    assert!(
        parser
            .parse(&message("nowserving.line.shop.info", Vec::new()))
            .is_ok()
    );
}

#[test]
fn the_timeout_header_is_checked_and_leaves_time_for_the_way_back() {
    let parser = parser();
    let with = |value: Option<&str>| {
        let mut message = message("nowserving.line.shop.info", Vec::new());
        let mut headers = HeaderMap::new();
        if let Some(value) = value {
            headers.insert(TIMEOUT_HEADER, value);
        }
        message.headers = Some(headers);
        let before = monotonic_us();
        let parsed = parser
            .parse(&message)
            .map_err(|refused| refused.error.code)?;
        match parsed {
            Parsed::Line(request) => Ok(request.deadline - before),
            Parsed::Cluster(..) => panic!("about the cluster"),
        }
    };
    for bad in ["", "0", "-1", "abc", "60001", "1.5", "99999999999999999999"] {
        assert_eq!(with(Some(bad)), Err(Code::BadRequest), "{bad}");
    }
    for (value, least_us) in [(None, 1_900_000), (Some("100"), 90_000), (Some("1"), 900)] {
        assert!(with(value).unwrap() >= least_us, "{value:?}");
    }
}
