#![allow(clippy::unwrap_used)]
use nowserving_kv::{Full, Refused};
use nowserving_line::{LineName, Lines, Op, Settings, Stamp, Timestamp};
use nowserving_pass::PassVerifier;
use nowserving_protocol::admin::DeleteReply;
use nowserving_protocol::codec::{Format, decode};
use nowserving_protocol::event::{BoardEvent, LineEvent};
use nowserving_protocol::header::{ERROR_CODE_HEADER, ERROR_HEADER};
use nowserving_protocol::keys::ClusterKey;
use nowserving_protocol::kv::{KvEvent, KvGetReply, KvKey, KvReply, KvValue};
use nowserving_protocol::operation::Operation;
use nowserving_protocol::user::{BoardReply, StatusReply};

use metrics_exporter_prometheus::PrometheusBuilder;
use nowserving_engine::{Inbox, ReplyBody};

use super::super::stats::totals;
use super::super::testing::{MAX_PAYLOAD, TestServer, config, engine};
use super::*;

struct Test {
    server: TestServer,
    responder: Responder,
}

impl Test {
    async fn start() -> Test {
        let server = TestServer::start().await;
        let responder = Responder {
            limit: PayloadLimit::of(&server.client),
            client: server.client.clone(),
            subjects: Subjects::default(),
            keys: Keys::new(ClusterKey::new([7; 32]).into(), None).unwrap(),
            cluster: "test".into(),
            stats: Arc::default(),
            backups: Arc::default(),
            gathering: Arc::new(Gathering::new(config(), engine().0)),
        };
        Test { server, responder }
    }
}

fn to(inbox: &str, format: Format) -> ReplyTo {
    ReplyTo {
        inbox: Inbox::Subject(inbox.into()),
        format,
        op: Operation::Delete,
        pass: false,
        taken: 0,
        trace: None,
    }
}

fn shop() -> LineName {
    LineName::try_from("shop").unwrap()
}

#[tokio::test]
async fn an_answer_has_the_format_of_its_request_and_no_headers() {
    let mut test = Test::start().await;
    for format in [Format::Json, Format::MsgPack] {
        let outcome = Outcome::Reply(ReplyBody::Deleted(DeleteReply {
            line: shop(),
            deleted: false,
            remaining: 3,
        }));
        test.responder
            .answer(&to("_INBOX.1", format), Ok(outcome))
            .await;
        let sent = test.server.next_published().await;
        assert_eq!((sent.subject.as_str(), sent.headers.len()), ("_INBOX.1", 0));
        assert_eq!(Format::of(&sent.payload), format);
        let body: DeleteReply = decode(&sent.payload).unwrap();
        assert_eq!(
            (body.line, body.deleted, body.remaining),
            (shop(), false, 3)
        );
    }
}

#[tokio::test]
async fn an_error_has_its_number_and_text_in_headers_of_one_line() {
    let mut test = Test::start().await;
    for format in [Format::Json, Format::MsgPack] {
        let error = ApiError::new(Code::LineFull, "full:\r\nwait").retry_after_ms(250);
        test.responder
            .answer(&to("_INBOX.1", format), Err(error.clone()))
            .await;
        let sent = test.server.next_published().await;
        assert_eq!(sent.header(ERROR_CODE_HEADER), Some("429"));
        assert_eq!(sent.header(ERROR_HEADER), Some("full:  wait"));
        assert_eq!(Format::of(&sent.payload), format);
        let body: ErrorReply = decode(&sent.payload).unwrap();
        assert_eq!(body.error, error);
    }
    let totals = totals(std::slice::from_ref(&test.responder.stats));
    assert_eq!((totals[1].requests, totals[1].errors), (2, 2));
}

/// An answer to this operation that is larger than the server takes.
fn too_large_answer(op: Operation) -> (ReplyTo, Outcome) {
    let got = KvGetReply {
        key: KvKey::new("k").unwrap(),
        value: KvValue::new(vec![b'x'; MAX_PAYLOAD]).unwrap(),
        revision: 1,
        expires_in_ms: None,
    };
    let to = ReplyTo {
        op,
        ..to("_INBOX.1", Format::Json)
    };
    (to, Outcome::Reply(ReplyBody::KvGot(Box::new(got))))
}

#[tokio::test]
async fn an_answer_that_nats_would_not_take_becomes_an_error() {
    let mut test = Test::start().await;
    for (op, code) in [
        (Operation::KvGet, Code::BadRequest),
        (Operation::KvPut, Code::OutcomeUnknown),
    ] {
        let (to, outcome) = too_large_answer(op);
        test.responder.answer(&to, Ok(outcome)).await;
        let sent = test.server.next_published().await;
        assert!(sent.payload.len() <= MAX_PAYLOAD);
        let ErrorReply { error } = decode(&sent.payload).unwrap();
        assert_eq!(error.code, code);
        assert!(error.message.contains(&MAX_PAYLOAD.to_string()), "{error}");
    }
}

#[tokio::test]
async fn an_answer_of_another_node_that_nats_would_not_take_becomes_an_error() {
    let mut test = Test::start().await;
    let (to, _) = too_large_answer(Operation::ListTokens);
    let answer = RelayedAnswer {
        headers: Vec::new(),
        payload: "x".repeat(MAX_PAYLOAD + 1).into(),
    };
    test.responder.relay(&to, None, answer).await;
    let sent = test.server.next_published().await;
    let ErrorReply { error } = decode(&sent.payload).unwrap();
    assert_eq!(error.code, Code::BadRequest);
}

#[tokio::test]
async fn holes_that_do_not_fit_are_left_out_of_a_status() {
    let mut test = Test::start().await;
    for (ranges, are_shown) in [(10, true), (MAX_PAYLOAD as u64 / 6, false)] {
        let (status, now) = status();
        let outcome = Outcome::Status {
            status,
            now,
            with_ticket: false,
            holes: Some(Some((0..ranges).map(|n| (2 * n, 2 * n)).collect())),
        };
        let to = to("_INBOX.1", Format::Json);
        test.responder.answer(&to, Ok(outcome)).await;
        let body: StatusReply = decode(&test.server.next_published().await.payload).unwrap();
        assert_eq!(body.holes.is_some(), are_shown);
    }
}

#[tokio::test]
async fn holes_that_do_not_fit_are_a_gap_on_a_board() {
    let mut test = Test::start().await;
    let board = BoardReply::new(&a_line().get(&shop()).unwrap().board(1_000), 2_000);
    let version = board.version;
    let board = |ranges: u64| {
        let mut board = board.clone();
        board.lanes[0].holes = Some((0..ranges).map(|n| [2 * n, 2 * n]).collect());
        BoardEvent {
            board,
            prev_version: 0,
            whole: true,
        }
    };
    let (sender, events) = mpsc::channel(1);
    let boards = [10, MAX_PAYLOAD as u64 / 6].map(|it| OutEvent::Board(Box::new(board(it))));
    sender.send(boards.into()).await.unwrap();
    drop(sender);
    test.responder.clone().run_events(events).await;
    for (holes, prev_version, whole) in [(10, 0, true), (0, version, false)] {
        let sent: BoardEvent = decode(&test.server.next_published().await.payload).unwrap();
        let shown = sent.board.lanes[0].holes.as_ref().unwrap();
        assert_eq!(
            (shown.len(), sent.prev_version, sent.whole),
            (holes, prev_version, whole)
        );
    }
}

/// With one token.
fn a_line() -> Lines {
    let mut lines = Lines::new();
    let stamp = |index| Stamp {
        op_no: 0,
        now_ms: 1_000,
        wall_ms: 2_000,
        index,
    };
    let create = Op::Create {
        line: shop(),
        settings: Settings::new(1, 10),
    };
    let enter = Op::Enter {
        line: shop(),
        key: Some(b"k"[..].into()),
        lane: None,
    };
    lines.apply(stamp(1), &create, None).unwrap();
    lines.apply(stamp(2), &enter, None).unwrap();
    lines
}

/// The status of the first token of a line.
fn status() -> (Box<nowserving_line::Status>, Timestamp) {
    let lines = a_line();
    let line = lines.get(&shop()).unwrap();
    let at = line.find(b"k").unwrap();
    let now = Timestamp {
        service_ms: 1_000,
        wall_ms: 2_000,
    };
    (Box::new(line.status(at, now.service_ms).unwrap()), now)
}

#[tokio::test]
async fn a_ticket_is_added_only_where_it_is_given_out() {
    let mut test = Test::start().await;
    for with_ticket in [true, false] {
        let (status, now) = status();
        let at = status.at;
        let outcome = Outcome::Status {
            status,
            now,
            with_ticket,
            holes: None,
        };
        let to = to("_INBOX.1", Format::MsgPack);
        test.responder.answer(&to, Ok(outcome)).await;
        let sent = test.server.next_published().await;
        let body: StatusReply = decode(&sent.payload).unwrap();
        assert_eq!(body.token, at.token);
        let ticket = body.ticket.map(|ticket| {
            let keys = test.responder.keys.in_use();
            keys.tickets.verify_for(&ticket, &shop()).unwrap()
        });
        assert_eq!(ticket, with_ticket.then_some(at));
    }
}

#[tokio::test]
async fn a_pass_is_added_only_if_requested_and_to_a_token_that_holds_a_seat() {
    let mut test = Test::start().await;
    for (requested, holds) in [(true, true), (false, true), (true, false)] {
        let (mut status, now) = status();
        if !holds {
            status.state = nowserving_line::State::Gone;
            status.deadline_ms = None;
        }
        let at = status.at;
        let outcome = Outcome::Status {
            status,
            now,
            with_ticket: false,
            holes: None,
        };
        let to = ReplyTo {
            pass: requested,
            ..to("_INBOX.1", Format::Json)
        };
        test.responder.answer(&to, Ok(outcome)).await;
        let sent = test.server.next_published().await;
        let body: StatusReply = decode(&sent.payload).unwrap();
        assert_eq!(body.pass.is_some(), requested && holds);
        assert_eq!(body.pass_expires_in_ms.is_some(), body.pass.is_some());
        let Some(pass) = body.pass else {
            assert!(!String::from_utf8_lossy(&sent.payload).contains("pass"));
            continue;
        };
        let keys = test.responder.keys.in_use().passes.jwks();
        let verifier = PassVerifier::new(&keys).unwrap().of_cluster("test");
        let claims = verifier.verify(pass.as_str(), Some(&shop()), 2).unwrap();
        assert_eq!((claims.token, claims.epoch, claims.iat), (at.token, 0, 2));
    }
}

#[tokio::test]
async fn an_answer_of_the_leader_is_passed_on_as_it_came() {
    let mut test = Test::start().await;
    let headers = [("A", "1"), ("A", "2")].map(|(name, value)| (name.into(), value.into()));
    for headers in [Vec::new(), headers.to_vec()] {
        let answer = RelayedAnswer {
            headers: headers.clone(),
            payload: "as it came".into(),
        };
        test.responder
            .relay(&to("_INBOX.1", Format::Json), None, answer)
            .await;
        let sent = test.server.next_published().await;
        assert_eq!(
            (sent.headers, &sent.payload[..]),
            (headers, &b"as it came"[..])
        );
    }
}

#[tokio::test]
async fn an_answer_of_the_leader_is_counted_by_its_code() {
    let test = Test::start().await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recorded = metrics::set_default_local_recorder(&recorder);
    for error in [None, Some(Code::LineFull), Some(Code::Unknown)] {
        let answer = RelayedAnswer {
            headers: Vec::new(),
            payload: "as it came".into(),
        };
        let to = to("_INBOX.1", Format::Json);
        test.responder.relay(&to, error, answer).await;
    }
    let text = recorder.handle().render();
    for code in ["ok", "line_full", "unknown"] {
        let sample = format!(",code=\"{code}\"}} 1\n");
        assert!(text.contains(&sample), "{code}: {text}");
    }
}

#[tokio::test]
async fn a_turn_of_answers_is_sent_in_order_and_its_requests_are_under_way_no_more() {
    let mut test = Test::start().await;
    let (answers, turns) = mpsc::unbounded_channel();
    let ended = tokio::spawn(test.responder.clone().run(turns));
    while test.responder.stats.admit() {}
    let answer = |inbox: &str| Output::Reply {
        to: to(inbox, Format::Json),
        result: Err(ApiError::bad_request("no")),
    };
    answers
        .send(vec![answer("_INBOX.1"), answer("_INBOX.2")])
        .unwrap();
    for inbox in ["_INBOX.1", "_INBOX.2"] {
        assert_eq!(test.server.next_published().await.subject, inbox);
    }
    drop(answers);
    ended.await.unwrap();
    let admitted = [(); 3].map(|()| test.responder.stats.admit());
    assert_eq!(admitted, [true, true, false]);
}

#[tokio::test]
async fn nothing_is_sent_to_the_nodes_own_subjects_or_to_nobody() {
    let mut test = Test::start().await;
    for inbox in ["nowserving.line.shop.enter", "$JS.API.x", "a.*", "a b"] {
        let error = ApiError::bad_request("no");
        test.responder.refuse(&to(inbox, Format::Json), error).await;
    }
    let nobody = ReplyTo {
        inbox: Inbox::None,
        ..to("", Format::Json)
    };
    test.responder
        .refuse(&nobody, ApiError::bad_request("no"))
        .await;
    assert_eq!(test.server.all_sent().await, []);
}

#[tokio::test]
async fn an_event_is_json_with_an_id_by_which_streams_drop_copies() {
    let mut test = Test::start().await;
    let (events, turns) = mpsc::channel(1);
    let event = LineEvent {
        line: shop(),
        incarnation: 5,
        version: 7,
        prev_version: 6,
        at_ms: 1_000,
        event: "phase".into(),
        phase: Some("paused".into()),
        lane: None,
        keys: None,
        seats: None,
        silent: None,
        commitment: None,
        seed: None,
        beacon: None,
        took_part: None,
        digest: None,
        scheduled_at_ms: None,
        code: None,
        message: None,
    };
    events.send(vec![OutEvent::Line(event)]).await.unwrap();
    drop(events);
    test.responder.clone().run_events(turns).await;
    let sent = test.server.next_published().await;
    assert_eq!(sent.subject, Subjects::default().line_event(&shop()));
    assert_eq!(sent.header("Nats-Msg-Id"), Some("shop/5/line/7"));
    assert_eq!(sent.json()["phase"], "paused");
}

#[tokio::test]
async fn key_values_are_answered_in_the_format_of_the_request() {
    let mut test = Test::start().await;
    for format in [Format::Json, Format::MsgPack] {
        for value in [&b"text"[..], &[0xff, 0][..]] {
            let got = KvGetReply {
                key: KvKey::new("k").unwrap(),
                value: KvValue::new(value).unwrap(),
                revision: 3,
                expires_in_ms: Some(5),
            };
            let outcome = Outcome::Reply(ReplyBody::KvGot(Box::new(got.clone())));
            let to = to("_INBOX.1", format);
            test.responder.answer(&to, Ok(outcome)).await;
            let sent = test.server.next_published().await;
            assert_eq!(Format::of(&sent.payload), format);
            assert_eq!(decode::<KvGetReply>(&sent.payload).unwrap(), got);
        }
        let done = Outcome::Reply(ReplyBody::KvDone(KvReply { revision: 4 }));
        test.responder
            .answer(&to("_INBOX.1", format), Ok(done))
            .await;
        let sent = test.server.next_published().await;
        assert_eq!(decode::<KvReply>(&sent.payload).unwrap().revision, 4);
        for (refused, code, http) in [
            (Refused::KeyNotFound, Code::KeyNotFound, "404"),
            (
                Refused::VersionConflict { revision: 7 },
                Code::VersionConflict,
                "409",
            ),
            (Refused::Full(Full::BucketKeys), Code::KvFull, "429"),
        ] {
            let to = to("_INBOX.1", format);
            test.responder.answer(&to, Err(refused.into())).await;
            let sent = test.server.next_published().await;
            assert_eq!(sent.header(ERROR_CODE_HEADER), Some(http));
            let body: ErrorReply = decode(&sent.payload).unwrap();
            assert_eq!(body.error.code, code);
        }
    }
}

#[tokio::test]
async fn an_event_of_a_key_goes_to_its_hash() {
    let mut test = Test::start().await;
    let (events, turns) = mpsc::channel(1);
    let event = KvEvent {
        bucket: "visits".into(),
        key: "foobar".into(),
        event: "put".into(),
        revision: 7,
        at_ms: 1_000,
    };
    events.send(vec![OutEvent::Kv(event)]).await.unwrap();
    drop(events);
    test.responder.clone().run_events(turns).await;
    let sent = test.server.next_published().await;
    assert_eq!(sent.subject, "nowserving.event.kv.visits.85944171f73967e8");
    assert_eq!(
        sent.header("Nats-Msg-Id"),
        Some("kv/visits/85944171f73967e8/7")
    );
    assert!(sent.json().get("value").is_none());
}
