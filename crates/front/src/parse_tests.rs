#![allow(clippy::unwrap_used)]
use nowserving_engine::{Ask, LeaderTime, LimitRequest, ShardDelivery};
use nowserving_line::{Op, TokenBy, TokenRef};
use nowserving_protocol::admin;
use nowserving_protocol::codec::encode;
use nowserving_protocol::error::Code;
use nowserving_protocol::header::{BY_HEADER, REASON_HEADER};
use nowserving_protocol::subject::shard_of;
use nowserving_protocol::ticket::{MAX_TEXT_BYTES, Ticket};
use nowserving_protocol::user::{Consistency, SEEN_MAX};
use nowserving_shard::limits::LimitCommand;
use serde_json::{Value, json};

use super::*;
use crate::testing::{self, Owned, ROUTED_AFTER};

pub const SHARDS: u32 = 16;

pub fn parser() -> Parser {
    parser_that_trusts(TrustRequestInfo(false))
}

pub fn parser_that_trusts(trust: TrustRequestInfo) -> Parser {
    Parser::new(Subjects::default(), SHARDS, trust).unwrap()
}

fn message(subject: &str, payload: impl Into<Vec<u8>>) -> Owned {
    Owned::new(subject, payload.into())
}

/// Reads a message as if it came by the subscription to its subject.
fn parse(parser: &Parser, message: &Owned) -> Result<Input, ApiError> {
    let via = match message.subject.split('.').nth(1) {
        Some("forward") => Via::Forwarded,
        Some("shard") => Via::Shard(ShardDelivery::Leader),
        _ => Via::Plain,
    };
    testing::read(parser, message, via).map_err(|refused| refused.error)
}

pub fn ask(parser: &Parser, subject: &str, body: &Value) -> Result<Input, ApiError> {
    let parse = |format| parse(parser, &message(subject, encode(body, format)));
    let (json, msgpack) = (parse(Format::Json), parse(Format::MsgPack));
    // Whatever it says, both formats say the same.
    assert_eq!(
        format!("{:?}", kind(&json)),
        format!("{:?}", kind(&msgpack))
    );
    json
}

pub fn kind(read: &Result<Input, ApiError>) -> Result<String, Code> {
    match read {
        Ok(Input::Request { request, .. }) => Ok(format!("{:?}", request.ask)),
        Ok(other) => Ok(format!("{other:?}").split("reply").next().unwrap().into()),
        Err(error) => Err(error.code),
    }
}

pub fn ticket(line: &str) -> String {
    testing::keys().tickets.sign(&Ticket {
        line: LineName::try_from(line).unwrap(),
        at: TokenRef {
            incarnation: 5,
            lane: 0,
            token: 9,
        },
    })
}

pub fn request(read: Input) -> (Request, Delivery) {
    match read {
        Input::Request { request, delivery } => (*request, delivery),
        other => panic!("{other:?}"),
    }
}

fn line_ask(read: Input) -> Ask {
    request(read).0.ask
}

#[test]
fn a_pass_is_asked_for_in_a_claim_and_a_status() {
    let parser = parser();
    let ticket = ticket("shop");
    for op in ["claim", "status"] {
        let subject = format!("nowserving.line.shop.{op}");
        for (body, pass) in [
            (json!({"ticket": ticket, "pass": true}), true),
            (json!({"ticket": ticket, "pass": false}), false),
            (json!({"ticket": ticket}), false),
        ] {
            let (request, _) = request(ask(&parser, &subject, &body).unwrap());
            assert_eq!(request.reply.pass, pass, "{op}");
        }
    }
    let body = json!({"ticket": ticket, "pass": true});
    let leave = ask(&parser, "nowserving.line.shop.leave", &body).unwrap_err();
    assert!(leave.message.contains("unknown field `pass`"), "{leave}");
}

#[test]
fn every_operation_of_users_is_read() {
    let parser = parser();
    let ticket = ticket("shop");
    let bodies = [
        ("enter", json!({"key": "k"})),
        ("find", json!({"key": "k"})),
        ("status", json!({"ticket": ticket, "consistency": "local"})),
        ("status", json!({"key": "k", "consistency": "local"})),
        ("seen", json!({"tickets": [ticket, "x"]})),
        ("claim", json!({"ticket": ticket})),
        ("renew", json!({"ticket": ticket, "epoch": 3})),
        ("complete", json!({"ticket": ticket})),
        ("leave", json!({"ticket": ticket})),
        ("jump", json!({"ticket": ticket, "to": "card"})),
        ("callback", json!({"key": "k", "lane": "vip"})),
        ("info", json!({})),
    ];
    for (op, body) in bodies {
        let subject = format!("nowserving.line.shop.{op}");
        let (request, _) = request(ask(&parser, &subject, &body).unwrap());
        assert_eq!(request.reply.op.name(), op);
        let home = shard_of("shop", SHARDS);
        assert_eq!(request.shard, home);
        assert!(!request.reply.op.is_admin());
        match (op, request.ask) {
            ("enter", Ask::Write(Op::Enter { key, lane, .. })) => {
                assert_eq!((key.as_deref(), lane), (Some(&b"k"[..]), None));
            }
            ("find", Ask::Find(key)) => assert_eq!(&*key, b"k"),
            ("seen", Ask::Seen(tokens)) => {
                assert!(
                    matches!(&tokens[..], [Some(TokenBy::At(at)), None] if at.token == 9),
                    "{tokens:?}"
                );
            }
            (
                "status",
                Ask::Status {
                    token,
                    consistency,
                    holes,
                },
            ) => {
                match token {
                    TokenBy::At(at) => assert_eq!(at.token, 9),
                    TokenBy::Key(key) => assert_eq!(&*key, b"k"),
                }
                assert_eq!((consistency, holes), (Consistency::Local, false));
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
            (
                "jump",
                Ask::Write(Op::Jump {
                    by: TokenBy::At(at),
                    to,
                    ..
                }),
            ) => assert_eq!((at.token, to.as_str()), (9, "card")),
            (
                "callback",
                Ask::Write(Op::Callback {
                    key,
                    lane: Some(lane),
                    ..
                }),
            ) => assert_eq!((&*key, lane.as_str()), (&b"k"[..], "vip")),
            ("info", Ask::Info(Consistency::Leader)) => {}
            (op, ask) => panic!("{op}: {ask:?}"),
        }
    }
}

#[test]
fn so_many_tickets_are_seen_at_once_and_no_more() {
    let (parser, subject) = (parser(), "nowserving.line.shop.seen");
    let of = |count| json!({"tickets": vec![ticket("shop"); count]});
    let read = |body| ask(&parser, subject, &body);
    let asked = line_ask(read(of(SEEN_MAX)).unwrap());
    assert!(matches!(asked, Ask::Seen(tokens) if tokens.len() == SEEN_MAX));
    for (body, says) in [
        (of(0), "tickets: 1 to 256 of them, not 0"),
        (of(SEEN_MAX + 1), "tickets: 1 to 256 of them, not 257"),
        (json!({}), "tickets: required"),
        (json!({"tickets": "x"}), "tickets: "),
        (json!({"tickets": ["x", 7]}), "tickets[1]: "),
    ] {
        let refused = read(body).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert!(refused.message.starts_with(says), "{}", refused.message);
    }
    // With tickets of the longest names it fits a NATS message of 48 KiB, in both formats.
    let longest = json!({"tickets": vec!["x".repeat(MAX_TEXT_BYTES); SEEN_MAX]});
    for format in [Format::Json, Format::MsgPack] {
        assert!(encode(&longest, format).len() <= 48 * 1_024);
    }
}

#[test]
fn a_jump_names_its_token_by_ticket_or_key() {
    let parser = parser();
    let subject = "nowserving.line.shop.jump";
    let by_key = json!({"key": "k", "to": "card"});
    let asked = line_ask(ask(&parser, subject, &by_key).unwrap());
    assert!(matches!(asked, Ask::Write(Op::Jump { by: TokenBy::Key(key), .. }) if *key == *b"k"));
    for (body, says) in [
        (json!({"to": "card"}), "ticket: required, or `key`"),
        (
            json!({"to": "card", "key": "k", "ticket": "t"}),
            "key: not together with a `ticket`",
        ),
        (json!({"key": "k"}), "to"),
        (json!({"key": "", "to": "card"}), "key"),
        (json!({"key": "k", "to": "a b"}), "to"),
    ] {
        let refused = ask(&parser, subject, &body).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest);
        assert!(refused.message.contains(says), "{}", refused.message);
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
        ("kick", json!({"lane": "a", "dry_run": true})),
        ("journal", json!({"token": 7, "limit": 5})),
        (
            "import",
            json!({"import_id": "i", "first_row": 7, "rows": [{"key": "k"}]}),
        ),
        ("call_next", json!({"n": 7, "call_id": "c"})),
        ("take", json!({"lane": "a", "token": 7})),
        (
            "list_tokens",
            json!({"order": "service", "after": [{"lane": "a", "token": 7}]}),
        ),
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
            | ("call_next", Ask::Write(Op::CallNext { n: 7, .. }))
            | ("import", Ask::Write(Op::Import { first_row: 7, .. }))
            | ("take", Ask::Write(Op::Take { call_id: None, .. }))
            | ("kick", Ask::Kick(_))
            | ("list_tokens", Ask::ListTokens(_))
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
        let read = ask(&parser, &subject, &body).unwrap();
        assert!(matches!(read, Input::Cluster { .. }));
    }
}

#[test]
fn a_shard_subject_must_be_that_of_the_line() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let body = json!({"anonymous": true});
    let subject = format!("nowserving.shard.{home}.shop.enter");
    let (request, _) = request(ask(&parser, &subject, &body).unwrap());
    assert_eq!(request.shard, home);
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
    let good = ticket("shop");
    let mut altered = good.clone();
    let last = if altered.pop() == Some('A') { 'B' } else { 'A' };
    altered.push(last);
    for bad in [ticket("other"), altered, String::new(), "é".into()] {
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
        let refused = parse(&parser, &message).unwrap_err();
        assert_eq!(refused.code, Code::BadRequest, "{payload:?}");
    }
    // An empty payload is an empty map.
    let empty = message("nowserving.line.shop.info", Vec::new());
    assert!(parse(&parser, &empty).is_ok());
}

/// An `enter` with these headers, on this subject.
fn with_headers(subject: &str, headers: &[(&str, &str)]) -> Owned {
    let message = message(subject, br#"{"key":"k"}"#);
    let with = |message: Owned, (name, value): &(&str, &str)| message.with(name, value);
    headers.iter().fold(message, with)
}

#[test]
fn the_timeout_leaves_time_for_the_way_back() {
    let parser = parser();
    for (timeout, least_us) in [(None, 1_900_000), (Some("100"), 90_000), (Some("1"), 900)] {
        let header = timeout.map(|value| (TIMEOUT_HEADER, value));
        let message = with_headers("nowserving.line.shop.enter", header.as_slice());
        let (request, _) = request(parse(&parser, &message).unwrap());
        assert!(request.deadline >= least_us, "{timeout:?}");
    }
}

#[test]
fn a_bad_header_is_named_with_its_limit_and_nothing_is_read() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let plain = "nowserving.line.shop.enter".to_owned();
    let shard = format!("nowserving.shard.{home}.shop.enter");
    let forward = format!("nowserving.forward.shard.{home}.shop.enter");
    let long = "7".repeat(65);
    let refused = |subject: &str, headers: &[(&str, &str)], limit: &str| {
        let error = parse(&parser, &with_headers(subject, headers)).unwrap_err();
        assert_eq!(error.code, Code::BadRequest, "{headers:?}");
        for part in [headers[0].0, limit] {
            assert!(error.message.contains(part), "{headers:?}: {error}");
        }
    };
    // Not a number, empty, too long, negative, beyond its type, not ASCII; and what is special to each.
    let of_clients: [(&str, &str, &str, &[&str]); 3] = [
        (
            TIMEOUT_HEADER,
            "100",
            "1 to 60000",
            &[
                "abc",
                "",
                &long,
                "-1",
                "18446744073709551616",
                "\u{661}",
                "0",
                "60001",
                "1.5",
            ],
        ),
        (
            SENT_MS_HEADER,
            "1766222333444",
            "0 to 9007199254740991",
            &[
                "abc",
                "",
                &long,
                "-1",
                "9007199254740992",
                "\u{661}",
                "+1",
                "1e3",
            ],
        ),
        (
            REQUEST_ID_HEADER,
            "a",
            "1 to 64 visible ASCII",
            &["", &long, "\u{661}", "a b"],
        ),
    ];
    for (name, good, limit, bad) in of_clients {
        for subject in [&plain, &shard, &forward] {
            assert!(parse(&parser, &with_headers(subject, &[(name, good)])).is_ok());
            for value in bad {
                refused(subject, &[(name, value)], limit);
            }
            refused(subject, &[(name, good), (name, good)], "once");
        }
    }
    let beyond = "18446744073709551616";
    let of_nodes: [(&str, &str, &str, &[&str]); 3] = [
        (forward::SHARED_HEADER, "1", "1 or absent", &["", "0", "11"]),
        (
            forward::REQUEST_KEY_HEADER,
            "cff",
            "1 to 32 hexadecimal digits",
            &[
                "xyz",
                "",
                "c",
                &format!("c{long}"),
                "c-1",
                "c\u{661}",
                "dff",
                "\u{661}ff",
                "c+1",
            ],
        ),
        (
            forward::SENT_AT_HEADER,
            "1f-200",
            "1 to 16 hexadecimal digits",
            &[
                "soon",
                "",
                "1f",
                "1f-",
                "-200",
                &format!("{long}-1"),
                "1f--1",
                "1f-+1",
                "1f-0x1",
                &format!("1f-{beyond}"),
                &format!("{beyond}-1"),
                "1f-\u{661}",
            ],
        ),
    ];
    for (name, good, limit, bad) in of_nodes {
        assert!(parse(&parser, &with_headers(&forward, &[(name, good)])).is_ok());
        for value in bad {
            refused(&forward, &[(name, value)], limit);
        }
        refused(&forward, &[(name, good), (name, good)], "once");
        // From a client they mean nothing.
        for subject in [&plain, &shard] {
            let (request, delivery) =
                request(parse(&parser, &with_headers(subject, &[(name, bad[0])])).unwrap());
            assert_eq!(delivery.forwarded_at, None);
            assert!(request.id.is_none_or(|id| id.origin == Origin::Direct));
        }
    }
}

#[test]
fn a_write_has_the_id_that_its_copies_have() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let shard = format!("nowserving.shard.{home}.shop.enter");
    let forward = format!("nowserving.forward.shard.{home}.shop.enter");
    let id = |subject: &str, headers: &[(&str, &str)]| {
        let message = with_headers(subject, headers);
        request(parse(&parser, &message).unwrap()).0.id
    };
    let named = [(REQUEST_ID_HEADER, "call")];
    let of_client = id("nowserving.line.shop.enter", &named).unwrap();
    assert_eq!(of_client.origin, Origin::Client);
    assert_eq!(id(&shard, &named), Some(of_client));
    // Without a name: no other node has a plain one, and two nodes can have one on the shard's subject.
    assert_eq!(id("nowserving.line.shop.enter", &[]), None);
    let direct = id(&shard, &[]).unwrap();
    assert_eq!(
        (direct.origin, id(&shard, &[])),
        (Origin::Direct, Some(direct))
    );
    let passed_on = [(forward::REQUEST_KEY_HEADER, "f00ff")];
    let forwarded = RequestId {
        key: 0xff,
        origin: Origin::Forwarder,
    };
    assert_eq!(id(&forward, &passed_on), Some(forwarded));
    assert_eq!(id(&forward, &[]), None);
    let poll = message(&format!("nowserving.shard.{home}.shop.info"), Vec::new());
    assert_eq!(request(parse(&parser, &poll).unwrap()).0.id, None);
}

#[test]
fn another_request_with_the_same_name_is_another_call() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let id = |subject: &str, body: &Value| {
        let named = message(subject, encode(body, Format::Json)).with(REQUEST_ID_HEADER, "call");
        request(parse(&parser, &named).unwrap()).0.id.unwrap()
    };
    let enter = json!({"key": "k"});
    let of = |subject: &str, body: &Value| id(&format!("nowserving.{subject}"), body).key;
    let told = json!({"seats": null});
    let put = json!({"key": "k", "value": "v"});
    let mut ids = vec![
        of("line.shop.enter", &enter),
        of("line.other.enter", &enter),
        of("line.shop.enter", &json!({"key": "other"})),
        of("line.shop.callback", &enter),
        of("admin.line.shop.capacity_told", &told),
        of(
            "admin.line.shop.call_next",
            &json!({"n": 7, "call_id": "c"}),
        ),
        of("admin.line.shop.take", &json!({"lane": "a", "token": 7})),
        of("admin.line.shop.delete", &json!({})),
        of("kv.shop.put", &put),
        of("kv.other.put", &put),
        of("kv.shop.delete", &json!({"key": "k"})),
    ];
    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all, "two of them are one call");
    // A copy may come on another subject.
    let shard = format!("shard.{home}.shop.enter");
    assert_eq!(of("line.shop.enter", &enter), of(&shard, &enter));
    let admin = format!("admin.shard.{home}.shop.capacity_told");
    let plain = of("admin.line.shop.capacity_told", &told);
    assert_eq!(plain, of(&admin, &told));
}

#[test]
fn a_request_says_how_it_was_delivered() {
    let parser = parser();
    let home = shard_of("shop", SHARDS);
    let sent = [
        (forward::SENT_AT_HEADER, "1f-200"),
        (forward::SHARED_HEADER, "1"),
        (forward::TERM_HEADER, "7"),
    ];
    let forwarded_at = Some(LeaderTime {
        start: 0x1f,
        us: 200,
    });
    for (subject, via, forwarded_at) in [
        ("nowserving.line.shop.enter".into(), Via::Plain, None),
        (
            format!("nowserving.shard.{home}.shop.enter"),
            Via::Shard(ShardDelivery::Leader),
            None,
        ),
        (
            format!("nowserving.forward.shard.{home}.shop.enter"),
            Via::Forwarded,
            forwarded_at,
        ),
    ] {
        let message = with_headers(&subject, &sent);
        let (request, delivery) = request(parse(&parser, &message).unwrap());
        let expected = Delivery {
            via,
            routed_after: ROUTED_AFTER,
            forwarded_at,
            shared: via == Via::Forwarded,
            term: forwarded_at.map(|_| 7),
        };
        assert_eq!(delivery, expected);
        assert_eq!(request.reply.inbox.subject(), Some("_INBOX.1"));
        assert_eq!(request.payload, message.payload);
    }
}

#[test]
fn an_operators_name_and_reason_are_read_and_the_servers_user_wins_if_it_is_trusted() {
    let parser = parser();
    let trusting = parser_that_trusts(TrustRequestInfo(true));
    let bodies = [
        ("create", json!({"seats": 2, "queue_limit": 3})),
        ("configure", json!({"seats": 3})),
        ("delete", json!({})),
        ("move", json!({"lane": "a", "token": 7, "to": "b"})),
        ("kick", json!({"all": true})),
        (
            "import",
            json!({"import_id": "i", "first_row": 0, "rows": [{"key": "k"}]}),
        ),
        ("call_next", json!({"n": 7, "call_id": "c"})),
        ("take", json!({"lane": "a", "token": 7})),
        ("capacity_told", json!({"seats": null})),
    ];
    let info = r#"{"acc": "OPS", "user": "ann", "rtt": 5}"#;
    for (op, body) in bodies {
        let subject = format!("nowserving.admin.line.shop.{op}");
        let note = |parser: &Parser, message: &Owned| {
            let (request, _) = request(parse(parser, message).unwrap());
            let said = request.note.map(|note| (note.by, note.reason));
            let text = |text: Option<Box<str>>| text.map(String::from).unwrap_or_default();
            said.map(|(by, reason)| (text(by), text(reason)))
        };
        let said = |by: &str, reason: &str| Some((by.to_owned(), reason.to_owned()));
        let plain = message(&subject, encode(&body, Format::Json));
        assert_eq!(note(&parser, &plain), None, "{op}");
        let given = plain
            .clone()
            .with(BY_HEADER, "J%C3%B6rg")
            .with(REASON_HEADER, "the sale");
        assert_eq!(note(&parser, &given), said("Jörg", "the sale"), "{op}");
        let told = given.with("Nats-Request-Info", info);
        assert_eq!(note(&parser, &told), said("Jörg", "the sale"), "{op}");
        assert_eq!(note(&trusting, &told), said("ann", "the sale"), "{op}");
        // A backend tells its capacity often, which is no act of an operator.
        let by_user = plain.clone().with("Nats-Request-Info", info);
        let expected = said("ann", "").filter(|_| op != "capacity_told");
        assert_eq!(note(&trusting, &by_user), expected, "{op}");
        let told_twice = told.with("Nats-Request-Info", info);
        let refused = parse(&trusting, &told_twice).unwrap_err();
        assert!(refused.message.starts_with("Nats-Request-Info"), "{op}");
        for header in [BY_HEADER, REASON_HEADER] {
            let long = plain.clone().with(header, &"x".repeat(129));
            let refused = parse(&parser, &long).unwrap_err();
            assert!(refused.message.starts_with(header), "{op}: {refused:?}");
        }
    }
    let passed_on = message("nowserving.forward.admin.line.shop.delete", b"{}")
        .with(BY_HEADER, "ann")
        .with("Nats-Request-Info", r#"{"user": "not-a-node"}"#);
    let (passed_on, _) = request(parse(&trusting, &passed_on).unwrap());
    assert_eq!(passed_on.note.unwrap().by.as_deref(), Some("ann"));
}

#[test]
fn changes_of_members_and_of_rate_limits_name_their_operator() {
    let noted = |subject: &str, body: &Value| {
        let noted = message(subject, encode(body, Format::Json))
            .with(BY_HEADER, "ann")
            .with(REASON_HEADER, "because");
        line_ask(parse(&parser(), &noted).unwrap())
    };
    let Ask::Members(request) = noted("nowserving.admin.cluster.drain", &json!({"node": 3})) else {
        panic!("no change of members");
    };
    assert_eq!((&*request.by, &*request.reason), ("ann", "because"));
    let subject = "nowserving.admin.shard.0.shop.limit_delete";
    let Ask::Limit(request) = noted(subject, &json!({"domain": "shop"})) else {
        panic!("no change of rules");
    };
    let LimitRequest::Command(LimitCommand::Delete(delete)) = *request else {
        panic!("{request:?}");
    };
    assert_eq!((&*delete.by, &*delete.reason), ("ann", "because"));
}
