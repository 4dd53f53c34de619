#![allow(clippy::unwrap_used)]
use nowserving_engine::{ForwardId, LeaderTime};
use nowserving_line::LineName;
use nowserving_protocol::error::Code;
use nowserving_protocol::header::TIMEOUT_HEADER;
use nowserving_protocol::operation::Operation;
use nowserving_shard::requests::{Origin, RequestId};

use super::super::testing::{MAX_PAYLOAD, Published, Sent, TestServer, engine, next};
use super::*;

fn a_try(id: u64) -> ForwardTry {
    ForwardTry {
        id: ForwardId(id),
        shard: 3,
        line: LineName::try_from("shop").unwrap(),
        op: Operation::Enter,
        note: None,
        payload: "{}".into(),
        timeout_ms: 20_000,
        request_id: Some(RequestId {
            key: 0xab,
            origin: Origin::Forwarder,
        }),
        sent_at: Some(LeaderTime { start: 31, us: 7 }),
        shared: false,
        term: None,
        trace: None,
    }
}

struct Test {
    server: TestServer,
    tries: mpsc::UnboundedSender<ForwardTry>,
    results: mpsc::UnboundedReceiver<Input>,
    /// The subscription to all answers, which async-nats makes with the first request.
    sid: Option<u64>,
}

impl Test {
    async fn start() -> Test {
        let server = TestServer::start().await;
        let (tries, inbox) = mpsc::unbounded_channel();
        let (outbox, results) = engine();
        let subjects = Subjects::new("nowserving.forward".to_owned()).unwrap();
        tokio::spawn(run(server.client.clone(), subjects, inbox, outbox));
        Test {
            server,
            tries,
            results,
            sid: None,
        }
    }

    /// Makes a try; what is sent for it.
    async fn sent(&mut self, it: ForwardTry) -> Published {
        self.tries.send(it).unwrap();
        loop {
            match self.server.next().await {
                Sent::Subscribe { sid, .. } => self.sid = Some(sid),
                Sent::Publish(published) => return published,
                Sent::Unsubscribe { .. } => {}
            }
        }
    }

    /// Answers it with these headers.
    fn answer(&self, to: &Published, headers: &str, payload: &[u8]) {
        let to = to.reply.as_deref().unwrap();
        let sid = self.sid.unwrap();
        self.server.deliver_with_headers(sid, to, headers, payload);
    }

    async fn result(&mut self) -> (ForwardId, ForwardResult) {
        match next(&mut self.results).await {
            Input::Forwarded { id, result } => (id, result),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_try_is_one_request_to_the_leader_with_the_rest_of_its_time() {
    let mut test = Test::start().await;
    let sent = test.sent(a_try(1)).await;
    assert_eq!(sent.subject, "nowserving.forward.shard.3.shop.enter");
    assert_eq!(sent.payload, b"{}");
    assert_eq!(sent.header(TIMEOUT_HEADER), Some("20000"));
    // The leader reads what was written.
    let it = a_try(1);
    let read = forward::request_id(sent.header(forward::REQUEST_KEY_HEADER).unwrap()).ok();
    assert_eq!(read, it.request_id);
    let read = forward::sent_at(sent.header(forward::SENT_AT_HEADER).unwrap()).ok();
    assert_eq!(read, it.sent_at);

    let read_of_operator = ForwardTry {
        op: Operation::Show,
        request_id: None,
        sent_at: None,
        ..a_try(2)
    };
    let sent = test.sent(read_of_operator).await;
    assert_eq!(sent.subject, "nowserving.forward.admin.shard.3.shop.show");
    assert_eq!(sent.headers.len(), 1, "the timeout");
}

#[tokio::test]
async fn an_answer_comes_back_as_it_is_and_its_error_is_read() {
    let mut test = Test::start().await;
    let refused = br#"{"error":{"code":"not_leader","message":"m"}}"#;
    let of_error = "NATS/1.0\r\nNats-Service-Error-Code: 503\r\nA: 1\r\nA: 2";
    for (id, headers, payload, error) in [
        (1, "NATS/1.0", &br#"{"token":1}"#[..], None),
        (2, of_error, &refused[..], Some(Code::NotLeader)),
        // Only what has the header is an error, whatever is in it.
        (3, "NATS/1.0", &refused[..], None),
        (4, of_error, &b"nonsense"[..], Some(Code::Unknown)),
    ] {
        let sent = test.sent(a_try(id)).await;
        test.answer(&sent, headers, payload);
        let (of, result) = test.result().await;
        let ForwardResult::Answered {
            error: code,
            answer,
        } = result
        else {
            panic!("{result:?}");
        };
        assert_eq!(
            (of, code, &answer.payload[..]),
            (ForwardId(id), error, payload)
        );
        let mut values: Vec<&str> = answer.headers.iter().map(|it| it.1.as_str()).collect();
        values.sort_unstable();
        let expected: &[&str] = match headers == of_error {
            true => &["1", "2", "503"],
            false => &[],
        };
        assert_eq!(values, expected);
    }
}

#[tokio::test]
async fn no_responders_and_timeouts_are_distinguished() {
    let mut test = Test::start().await;
    let sent = test.sent(a_try(1)).await;
    test.answer(&sent, "NATS/1.0 503", b"");
    assert_eq!(
        test.result().await,
        (ForwardId(1), ForwardResult::NoResponders)
    );
    let hurried = ForwardTry {
        timeout_ms: 1,
        ..a_try(2)
    };
    test.sent(hurried).await;
    assert_eq!(test.result().await, (ForwardId(2), ForwardResult::TimedOut));
    let too_large = ForwardTry {
        payload: vec![b' '; MAX_PAYLOAD + 1].into(),
        ..a_try(3)
    };
    test.tries.send(too_large).unwrap();
    let (id, result) = test.result().await;
    let ForwardResult::TooLarge { bytes, bytes_max } = result else {
        panic!("{result:?}");
    };
    assert_eq!((id, bytes_max), (ForwardId(3), MAX_PAYLOAD));
    assert!(bytes > MAX_PAYLOAD + 1, "its headers count");
}

#[tokio::test]
async fn tries_do_not_wait_for_each_other() {
    let mut test = Test::start().await;
    let first = test.sent(a_try(1)).await;
    let second = test.sent(a_try(2)).await;
    for (sent, id) in [(second, 2), (first, 1)] {
        test.answer(&sent, "NATS/1.0", b"{}");
        assert_eq!(test.result().await.0, ForwardId(id));
    }
}
