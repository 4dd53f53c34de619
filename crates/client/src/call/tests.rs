#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::sync::Mutex;

use nowserving_protocol::error::{ApiError, Code};

use super::*;
use crate::error::{Error, Kind};

enum Does {
    Answer,
    Failure(Failure),
    /// says nothing until the attempt's time is up
    Silence,
}

#[derive(Debug, PartialEq, Eq)]
struct Sent {
    subject: String,
    payload: Bytes,
    timeout_ms: u128,
    request_id: Option<RequestId>,
}

#[derive(Default)]
struct Script {
    does: Mutex<VecDeque<Does>>,
    sent: Mutex<Vec<Sent>>,
}

impl Script {
    fn new(does: impl IntoIterator<Item = Does>) -> Script {
        Script {
            does: Mutex::new(does.into_iter().collect()),
            sent: Mutex::default(),
        }
    }

    fn subjects(&self) -> Vec<String> {
        self.sent
            .lock()
            .unwrap()
            .iter()
            .map(|sent| sent.subject.clone())
            .collect()
    }
}

impl Transport for Script {
    async fn request(&self, attempt: Attempt<'_>) -> std::result::Result<Bytes, Failure> {
        let Attempt { timeout, wait, .. } = attempt;
        assert!(timeout < wait, "{timeout:?} {wait:?}");
        self.sent.lock().unwrap().push(Sent {
            subject: attempt.subject.to_owned(),
            payload: attempt.payload.clone(),
            timeout_ms: timeout.as_millis(),
            request_id: attempt.request_id.cloned(),
        });
        let does = self.does.lock().unwrap().pop_front();
        match does {
            Some(Does::Answer) => Ok(Bytes::from_static(b"yes")),
            Some(Does::Failure(failure)) => Err(failure),
            Some(Does::Silence) | None => {
                tokio::time::sleep(wait).await;
                Err(Failure::NoAnswer)
            }
        }
    }
}

fn request(shard: bool) -> Request {
    with_effect(Effect::Write, shard)
}

fn with_effect(effect: Effect, shard: bool) -> Request {
    Request {
        shard_subject: shard.then(|| "shard".to_owned()),
        plain_subject: "plain".to_owned(),
        payload: Bytes::from_static(b"key 1"),
        note: Arc::default(),
        effect,
    }
}

async fn run(script: &Script, shard: bool, deadline_ms: u64) -> (Result<Answer>, Duration) {
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(deadline_ms);
    let result = call(script, &request(shard), deadline).await;
    (result, begin.elapsed())
}

fn api(code: Code) -> Does {
    Does::Failure(Failure::Api(ApiError::new(code, "x")))
}

#[tokio::test(start_paused = true)]
async fn the_leader_is_asked_first() {
    let script = Script::new([Does::Answer]);
    let (result, took) = run(&script, true, 10_000).await;
    let answer = result.unwrap();
    assert_eq!(&answer.payload[..], b"yes");
    assert!(!answer.shard_unserved);
    assert_eq!(took, Duration::ZERO);
    assert_eq!(script.subjects(), ["shard"]);
    assert_eq!(script.sent.lock().unwrap()[0].timeout_ms, 2_000);
}

#[tokio::test(start_paused = true)]
async fn no_leader_asks_any_node_without_a_pause() {
    let script = Script::new([Does::Failure(Failure::NoResponders), Does::Answer]);
    let (result, took) = run(&script, true, 10_000).await;
    assert!(result.unwrap().shard_unserved);
    assert_eq!(took, Duration::ZERO);
    assert_eq!(script.subjects(), ["shard", "plain"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_change_is_followed_with_the_same_payload() {
    let script = Script::new([
        Does::Silence,
        api(Code::Unavailable),
        Does::Failure(Failure::NoResponders),
        api(Code::OutcomeUnknown),
        Does::Answer,
    ]);
    let (result, took) = run(&script, true, 10_000).await;
    result.unwrap();
    assert_eq!(
        script.subjects(),
        ["shard", "plain", "shard", "plain", "shard"]
    );
    let sent = script.sent.lock().unwrap();
    assert!(sent.iter().all(|sent| sent.payload == sent_payload()));
    assert!(
        took >= ATTEMPT_MAX && took < Duration::from_secs(3),
        "{took:?}"
    );
}

fn sent_payload() -> Bytes {
    Bytes::from_static(b"key 1")
}

#[tokio::test(start_paused = true)]
async fn the_attempts_of_a_write_share_an_id_that_no_other_call_has() {
    let mut ids = Vec::new();
    for _ in 0..2 {
        let script = Script::new([Does::Silence, api(Code::OutcomeUnknown), Does::Answer]);
        run(&script, true, 10_000).await.0.unwrap();
        let sent = script.sent.lock().unwrap();
        assert_eq!(sent.len(), 3);
        let first = sent[0].request_id.clone().unwrap();
        assert!(
            sent.iter()
                .all(|sent| sent.request_id.as_ref() == Some(&first))
        );
        ids.push(first);
    }
    assert_ne!(ids[0], ids[1]);

    let script = Script::new([api(Code::Unavailable), Does::Answer]);
    let read = with_effect(Effect::Read, true);
    let deadline = Instant::now() + Duration::from_secs(10);
    call(&script, &read, deadline).await.unwrap();
    let sent = script.sent.lock().unwrap();
    assert!(sent.iter().all(|sent| sent.request_id.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_write_in_doubt_is_not_repeated_for_longer_than_its_id_is_known() {
    let hour_ms = 3_600_000;
    let script = Script::default();
    let (result, took) = run(&script, true, hour_ms).await;
    assert_eq!(result.err().unwrap().kind(), Kind::OutcomeUnknown);
    assert!(took <= REPEAT_MAX, "{took:?}");

    // Counted from the first attempt that is in doubt, not from the call's begin.
    let refusals = (0..1_000).map(|_| api(Code::Unavailable));
    let script = Script::new(refusals.chain([Does::Silence, Does::Answer]));
    let (result, took) = run(&script, true, hour_ms).await;
    result.unwrap();
    assert!(took > REPEAT_MAX, "{took:?}");

    let script = Script::default();
    let read = with_effect(Effect::Read, true);
    let begin = Instant::now();
    let deadline = begin + Duration::from_millis(hour_ms);
    let error = call(&script, &read, deadline).await.err().unwrap();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(begin.elapsed() > REPEAT_MAX);
}

#[tokio::test(start_paused = true)]
async fn one_deadline_over_all_attempts() {
    let script = Script::default();
    let (result, took) = run(&script, true, 5_000).await;
    assert_eq!(result.err().unwrap().kind(), Kind::OutcomeUnknown);
    assert!(took <= Duration::from_millis(5_000), "{took:?}");
    // The timeouts in the headers never go past the deadline either.
    let timeouts_ms: u128 = script
        .sent
        .lock()
        .unwrap()
        .iter()
        .map(|sent| sent.timeout_ms)
        .sum();
    assert!(timeouts_ms < 5_000, "{timeouts_ms}");
    assert!(script.sent.lock().unwrap().len() >= 3);
}

#[tokio::test(start_paused = true)]
async fn nobody_there_is_unavailable_by_the_deadline() {
    let script = Script::new((0..1_000).map(|_| Does::Failure(Failure::NoResponders)));
    let (result, took) = run(&script, true, 3_000).await;
    assert_eq!(result.err().unwrap().kind(), Kind::Unavailable);
    assert!(took <= Duration::from_millis(3_000) && took > Duration::from_millis(2_400));
    // no storm: after the first ones, two requests per backoff
    let sent = script.sent.lock().unwrap().len();
    assert!((10..60).contains(&sent), "{sent} attempts");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final() {
    let script = Script::new([api(Code::LineFull), Does::Answer]);
    let (result, _) = run(&script, true, 10_000).await;
    assert_eq!(result.err().unwrap().code(), Some(Code::LineFull));
    assert_eq!(script.subjects(), ["shard"]);
}

#[tokio::test(start_paused = true)]
async fn a_fatal_miss_ends_it() {
    let closed = Error::new(Kind::Connection, "closed");
    let script = Script::new([Does::Failure(Failure::Fatal(closed)), Does::Answer]);
    let (result, _) = run(&script, false, 10_000).await;
    assert_eq!(result.err().unwrap().kind(), Kind::Connection);
    assert_eq!(script.subjects(), ["plain"]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_waited_out() {
    let script = Script::new([
        Does::Failure(Failure::Disconnected),
        Does::Failure(Failure::Disconnected),
        Does::Answer,
    ]);
    let (result, _) = run(&script, false, 10_000).await;
    result.unwrap();
}
