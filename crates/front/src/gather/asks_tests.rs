#![allow(clippy::unwrap_used)]
use nowserving_engine::RelayedAnswer;
use nowserving_protocol::codec::encode;
use nowserving_protocol::limits::PartVerdict;

use super::*;
use crate::gather::tests::START;

/// An answer of another type is no error of the request; one that is marked as an error is one.
#[test]
fn fuzz_an_answer() {
    let part = PartReply {
        verdicts: vec![PartVerdict::default(); 2],
    };
    let refused = ErrorReply::from(unavailable());
    let formats = [Format::Json, Format::MsgPack];
    let seeds = formats.map(|format| [encode(&part, format), encode(&refused, format)]);
    nowserving_testkit::target!(seeds.concat(), |bytes| {
        if let Err(error) = Answer::Bytes(Bytes::copy_from_slice(bytes)).part() {
            assert_eq!(error.code, Code::Unavailable);
        }
        let mut asks = begun(Effect::None, false);
        asks.answered(1, answered(Some(Code::Unknown), bytes), START);
        assert!(asks.ended.pop_front().unwrap().1.is_err());
    });
}

fn answered(error: Option<Code>, payload: &[u8]) -> ForwardResult {
    let answer = RelayedAnswer {
        headers: Vec::new(),
        payload: Bytes::copy_from_slice(payload),
    };
    ForwardResult::Answered { error, answer }
}

fn refused(code: Code) -> ForwardResult {
    let reply = ErrorReply::from(ApiError::new(code, ""));
    answered(Some(code), &encode(&reply, Format::MsgPack))
}

/// With a second left.
fn begun(effect: Effect, repeats: bool) -> Asks {
    let ask = Ask {
        subject: "s".to_owned(),
        payload: Bytes::new(),
        effect,
        note: None,
        until: START.us + 1_000_000,
        repeats,
    };
    let (mut asks, mut out) = (Asks::new(7), Vec::new());
    asks.begin((1, 0), ask, START, &mut out);
    assert_eq!(out.len(), 1);
    asks
}

fn once() -> Effect {
    Effect::Once(RequestId::from_bits(1))
}

fn at(us: Micros) -> Now {
    Now {
        us: START.us + us,
        ..START
    }
}

/// How it ends if each try ends so.
fn ends(effect: Effect, repeats: bool, result: impl Fn() -> ForwardResult) -> (usize, Code) {
    let (mut asks, mut tries) = (begun(effect, repeats), 1);
    asks.answered(1, result(), START);
    while asks.ended.is_empty() {
        let now = at(asks.next_due().unwrap() - START.us);
        let mut out = Vec::new();
        asks.tick(now, &mut out);
        for output in out {
            let Output::Request(request) = output else {
                panic!("{output:?}");
            };
            assert!(!request.timeout.is_zero());
            tries += 1;
            asks.answered(request.id, result(), now);
        }
    }
    let (_, ended) = asks.ended.pop_front().unwrap();
    (tries, ended.unwrap_err().code)
}

#[test]
fn a_request_is_repeated_while_nothing_can_have_happened() {
    let nobody = || ForwardResult::NoResponders;
    let counts = || Effect::Counts(None);
    for effect in [Effect::None, counts(), once()] {
        for result in [Code::NotLeader, Code::Unavailable] {
            let (tries, code) = ends(effect.clone(), true, || refused(result));
            assert!((4..9).contains(&tries), "{tries}");
            assert_eq!(code, Code::Unavailable);
        }
        assert_eq!(ends(effect.clone(), false, nobody), (1, Code::Unavailable));
        assert!(ends(effect, true, nobody).0 > 3);
    }
    // A write by its id also when it may have happened.
    let unknown = || refused(Code::OutcomeUnknown);
    let (tries, code) = ends(once(), true, unknown);
    assert!(tries > 3);
    assert_eq!(code, Code::OutcomeUnknown);
    assert_eq!(ends(counts(), true, unknown), (1, Code::OutcomeUnknown));
    let timed_out = || ForwardResult::TimedOut;
    assert_eq!(ends(counts(), true, timed_out), (1, Code::OutcomeUnknown));
    assert_eq!(ends(once(), true, timed_out), (1, Code::OutcomeUnknown));
    assert_eq!(ends(Effect::None, true, timed_out), (1, Code::Unavailable));
    let forbidden = || refused(Code::Forbidden);
    assert_eq!(ends(once(), true, forbidden), (1, Code::Forbidden));
    let large = || ForwardResult::TooLarge {
        bytes: 2,
        bytes_max: 1,
    };
    assert_eq!(ends(once(), true, large), (1, Code::BadRequest));
}

/// The next leader knows other rules of limits, say, or the next server takes smaller messages. An earlier try may have counted.
#[test]
fn a_refusal_after_a_try_whose_outcome_is_open_leaves_it_open() {
    let large = ForwardResult::TooLarge {
        bytes: 2,
        bytes_max: 1,
    };
    for refusal in [refused(Code::VersionConflict), large] {
        let mut asks = begun(once(), true);
        asks.answered(1, refused(Code::OutcomeUnknown), START);
        let now = at(asks.next_due().unwrap() - START.us);
        asks.tick(now, &mut Vec::new());
        asks.answered(1, refusal, now);
        let (_, ended) = asks.ended.pop_front().unwrap();
        assert_eq!(ended.unwrap_err().code, Code::OutcomeUnknown);
    }
}

/// A leader that has lost its shard says so as long as others can be asked.
#[test]
fn the_engine_of_this_node_may_send_it_elsewhere() {
    for (us, expected) in [(899_999, None), (900_000, Some(Code::Unavailable))] {
        let ask = OwnAsk {
            shard: 0,
            domain: "d".try_into().unwrap(),
            request: LimitRequest::Check {
                asks: Vec::new(),
                dry_run: false,
                hold: None,
            },
            until: START.us + 1_000_000,
        };
        let (mut asks, mut out) = (Asks::new(7), Vec::new());
        asks.begin_own((1, 0), ask, START, &mut out);
        let not_leader = ApiError::new(Code::NotLeader, "");
        asks.own_answered(1, Err(not_leader), at(us));
        let (_, ended) = asks.ended.pop_front().unwrap();
        match expected {
            None => assert!(matches!(ended, Ok(Answer::Elsewhere))),
            Some(code) => assert_eq!(ended.unwrap_err().code, code),
        }
        assert_eq!(asks.next_due(), None);
    }
}

#[test]
fn what_nobody_answers_ends_when_its_time_is_over() {
    let mut asks = begun(once(), true);
    let mut out = Vec::new();
    asks.tick(at(999_999), &mut out);
    assert!(asks.ended.is_empty() && out.is_empty());
    asks.tick(at(1_000_000), &mut out);
    let (owner, ended) = asks.ended.pop_front().unwrap();
    assert_eq!(
        (owner, ended.unwrap_err().code),
        ((1, 0), Code::OutcomeUnknown)
    );
    assert_eq!(asks.next_due(), None);
    // A late answer is not looked at.
    asks.answered(1, answered(None, b""), at(1_100_000));
    assert!(asks.ended.is_empty());
}
