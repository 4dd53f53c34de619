#![allow(clippy::unwrap_used)]
use async_nats::HeaderMap;
use nowserving_engine::{Delivery, ShardDelivery};
use nowserving_pass::Jwks;
use nowserving_protocol::codec::{Format, decode};
use nowserving_protocol::error::{Code, ErrorReply};
use nowserving_protocol::header::{ERROR_CODE_HEADER, TIMEOUT_HEADER};

use super::super::stats::UNDER_WAY_MAX;
use super::super::testing::{Sent, TestService, engine};
use super::*;

const ROUTED_AFTER: Micros = 7;

fn message(subject: &str, reply: Option<&str>, payload: &[u8]) -> Message {
    Message {
        subject: subject.into(),
        reply: reply.map(Into::into),
        length: payload.len(),
        payload: payload.to_vec().into(),
        headers: None,
        status: None,
        description: None,
    }
}

/// An `info`; an empty map in each format.
fn info(reply: &str, format: Format) -> Message {
    let payload: &[u8] = match format {
        Format::Json => b"{}",
        Format::MsgPack => b"\x80",
    };
    message("nowserving.line.shop.info", Some(reply), payload)
}

impl TestService {
    async fn handle(&self, message: Message) {
        self.service.handle(message, Via::Plain, ROUTED_AFTER).await;
    }

    /// The next thing sent is this error, to this inbox.
    async fn refused(&mut self, reply: &str, format: Format, code: Code) {
        let sent = self.server.next_published().await;
        assert_eq!(sent.subject, reply);
        assert_eq!(Format::of(&sent.payload), format);
        let body: ErrorReply = decode(&sent.payload).unwrap();
        assert_eq!(body.error.code, code);
        let number = code.http().to_string();
        assert_eq!(sent.header(ERROR_CODE_HEADER), Some(number.as_str()));
    }
}

#[tokio::test]
async fn a_request_is_given_to_the_engine_with_its_delivery() {
    let mut test = TestService::start().await;
    let via = Via::Shard(ShardDelivery::Leaderless);
    let shard = nowserving_protocol::subject::shard_of("shop", super::super::testing::SHARDS);
    let subject = format!("nowserving.shard.{shard}.shop.info");
    let message = message(&subject, Some("_INBOX.1"), b"{}");
    test.service.handle(message, via, ROUTED_AFTER).await;
    let Input::Request { request, delivery } = test.inbox.try_recv().unwrap() else {
        panic!("not a request");
    };
    assert_eq!((request.shard, request.reply.op.name()), (shard, "info"));
    let expected = Delivery {
        via,
        routed_after: ROUTED_AFTER,
        forwarded_at: None,
        shared: false,
        term: None,
    };
    assert_eq!(delivery, expected);
    assert_eq!(test.server.all_sent().await, [], "the engine answers");
}

#[tokio::test]
async fn public_keys_are_answered_without_the_engine() {
    let mut test = TestService::start().await;
    let subject = "nowserving.admin.cluster.jwks";
    for (format, payload) in [(Format::Json, &b"{}"[..]), (Format::MsgPack, b"\x80")] {
        test.handle(message(subject, Some("_INBOX.1"), payload))
            .await;
        let sent = test.server.next_published().await;
        assert_eq!(Format::of(&sent.payload), format);
        let keys: Jwks = decode(&sent.payload).unwrap();
        assert_eq!(keys, test.service.responder.keys.in_use().passes.jwks());
    }
    test.handle(message(subject, Some("_INBOX.1"), br#"{"kid":"1"}"#))
        .await;
    test.refused("_INBOX.1", Format::Json, Code::BadRequest)
        .await;
    assert!(test.inbox.is_empty());
}

#[tokio::test]
async fn a_request_after_the_engine_has_ended_is_refused_at_once() {
    let mut test = TestService::start().await;
    test.handle(info("_INBOX.taken", Format::Json)).await;
    drop(std::mem::replace(&mut test.inbox, engine().1));
    for (format, turned_away) in [(Format::Json, 1), (Format::MsgPack, 2)] {
        test.handle(info("_INBOX.1", format)).await;
        test.refused("_INBOX.1", format, Code::Overloaded).await;
        assert_eq!(test.service.responder.stats.turned_away(), turned_away);
    }
    let stats = &test.service.responder.stats;
    let room = std::iter::from_fn(|| stats.admit().then_some(())).count();
    assert_eq!(
        room,
        UNDER_WAY_MAX - 1,
        "the refused ones are not under way"
    );
}

#[tokio::test]
async fn too_many_requests_under_way_answer_overloaded_at_once() {
    let mut test = TestService::start().await;
    let stats = test.service.responder.stats.clone();
    for _ in 0..UNDER_WAY_MAX {
        assert!(stats.admit());
    }
    let cluster = message("nowserving.admin.cluster.status", Some("_INBOX.1"), b"{}");
    test.handle(cluster).await;
    test.refused("_INBOX.1", Format::Json, Code::Overloaded)
        .await;
    assert!(test.inbox.is_empty());
    stats.answered();
    test.handle(info("_INBOX.1", Format::Json)).await;
    assert_eq!(test.inbox.len(), 1);
}

#[tokio::test]
async fn a_malformed_request_is_answered_and_not_given_to_the_engine() {
    let mut test = TestService::start().await;
    let mut bad_header = info("_INBOX.1", Format::MsgPack);
    let headers = bad_header.headers.insert(HeaderMap::new());
    headers.insert(TIMEOUT_HEADER, "soon");
    test.handle(bad_header).await;
    test.refused("_INBOX.1", Format::MsgPack, Code::BadRequest)
        .await;
    let unknown = message("nowserving.line.shop.explode", Some("_INBOX.2"), b"{}");
    test.handle(unknown).await;
    test.refused("_INBOX.2", Format::Json, Code::BadRequest)
        .await;
    // Nobody waits for an answer.
    test.handle(message("nowserving.line.shop.explode", None, b"{}"))
        .await;
    assert_eq!(test.server.all_sent().await, []);
    assert!(test.inbox.is_empty());
}

#[tokio::test]
async fn a_request_whose_answer_would_be_a_message_of_the_nodes_is_dropped() {
    let mut test = TestService::start().await;
    for reply in [
        "nowserving.raft.c.1.2",
        "nowserving.line.a.enter",
        "$JS.API.x",
    ] {
        test.handle(info(reply, Format::Json)).await;
    }
    assert!(test.inbox.is_empty());
    assert_eq!(test.server.all_sent().await, Vec::<Sent>::new());
}

#[tokio::test]
async fn probes_of_the_mapping_are_left_unanswered() {
    let mut test = TestService::start().await;
    let probe = "nowserving.line.a.mapping_probe_1";
    test.handle(message(probe, None, b"12345678")).await;
    assert_eq!(test.server.all_sent().await, []);
    // A client that asks so is told that there is no such operation.
    test.handle(message(probe, Some("_INBOX.1"), b"{}")).await;
    test.refused("_INBOX.1", Format::Json, Code::BadRequest)
        .await;
    assert!(test.inbox.is_empty());
}

#[tokio::test]
async fn what_a_task_would_ask_others_for_is_refused_when_it_is_read_late() {
    let mut test = TestService::start().await;
    for subject in [
        "nowserving.limit.shop.check",
        "nowserving.leader.3.limit.shop.check",
        "nowserving.admin.limit.delete",
        "nowserving.admin.cluster.configure_lines",
    ] {
        test.handle(message(subject, Some("_INBOX.1"), b"{}")).await;
        test.refused("_INBOX.1", Format::Json, Code::Unavailable)
            .await;
        // In time it is looked at.
        let in_time = message(subject, Some("_INBOX.2"), br#"{"other": 1}"#);
        let now = crate::clock::monotonic_us();
        test.service.handle(in_time, Via::Plain, now).await;
        test.refused("_INBOX.2", Format::Json, Code::BadRequest)
            .await;
    }
}
