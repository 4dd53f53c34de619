//! Key-values through a shard with its log; the rig's name for a line is the bucket.
#![allow(clippy::unwrap_used)]

use nowserving_kv::Op;
use nowserving_protocol::error::Code;
use nowserving_protocol::kv::{KvGet, KvKey, KvList};
use nowserving_protocol::user::Consistency;
use nowserving_shard::command::FORMAT;
use nowserving_shard::published::OutEvent;
use nowserving_shard::requests::{Origin, RequestId};

use crate::delivery::Via;
use crate::io::Input;
use crate::request::{Ask, Inbox, Outcome, Question, ReplyBody, ReplyTo};
use crate::rig::{Rig, name};

const BUCKET: &str = "shop";

fn leading() -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    for peer in [2, 3] {
        rig.entry_formats.insert(peer, FORMAT);
        rig.hears(peer, "", Vec::new());
    }
    rig.inbox_empty = true;
    rig
}

fn settle(rig: &mut Rig) {
    for _ in 0..4 {
        rig.turn();
        rig.acknowledge();
    }
}

fn put(value: &str, if_revision: Option<u64>, ttl_ms: Option<u64>) -> Ask {
    Ask::Kv(Op::Put {
        bucket: BUCKET.into(),
        key: "k".into(),
        value: value.as_bytes().into(),
        if_revision,
        ttl_ms,
        above: 0,
    })
}

fn get(consistency: Option<Consistency>) -> Ask {
    let key = KvKey::new("k").unwrap();
    Ask::KvGet(KvGet { key, consistency })
}

fn ask(rig: &mut Rig, ask: Ask) {
    let far = rig.now + 1_000_000_000_000;
    rig.ask(ask, far);
}

/// Of each answer the revision and, of a `get`, the value.
fn answers(rig: &mut Rig) -> Vec<Result<(u64, String), Code>> {
    let answers = rig.answers().into_iter();
    let answers = answers.map(|answer| match answer {
        Ok(Outcome::Reply(ReplyBody::KvDone(done))) => Ok((done.revision, String::new())),
        Ok(Outcome::Reply(ReplyBody::KvGot(got))) => {
            let value = String::from_utf8_lossy(got.value.as_bytes());
            Ok((got.revision, value.into_owned()))
        }
        Err(error) => Err(error.code),
        Ok(other) => panic!("{other:?}"),
    });
    answers.collect()
}

fn done(revision: u64) -> Result<(u64, String), Code> {
    Ok((revision, String::new()))
}

fn found(revision: u64, value: &str) -> Result<(u64, String), Code> {
    Ok((revision, value.to_owned()))
}

fn events(rig: &mut Rig) -> Vec<(String, u64)> {
    let events = std::mem::take(&mut rig.events).into_iter();
    let of_keys = events.filter_map(|event| match event {
        OutEvent::Kv(event) => Some((event.event, event.revision)),
        _ => None,
    });
    of_keys.collect()
}

#[test]
fn a_put_is_answered_when_it_is_committed_and_read_under_the_lease() {
    let mut rig = leading();
    ask(&mut rig, put("one", Some(0), None));
    rig.turn();
    ask(&mut rig, get(None));
    assert_eq!(answers(&mut rig), [Err(Code::KeyNotFound)]);
    rig.acknowledge();
    assert_eq!(answers(&mut rig), [done(1)]);
    ask(&mut rig, get(None));
    ask(&mut rig, get(Some(Consistency::Local)));
    assert_eq!(answers(&mut rig), [found(1, "one"), found(1, "one")]);
    ask(&mut rig, put("two", Some(0), None));
    ask(&mut rig, put("three", Some(1), None));
    settle(&mut rig);
    assert_eq!(answers(&mut rig), [Err(Code::VersionConflict), done(2)]);
    let seen = [("put".to_owned(), 1), ("put".to_owned(), 2)];
    assert_eq!(events(&mut rig), seen);
}

#[test]
fn a_linearizable_get_asks_a_quorum() {
    let mut rig = leading();
    ask(&mut rig, put("one", None, None));
    settle(&mut rig);
    rig.answers();
    ask(&mut rig, get(Some(Consistency::Linearizable)));
    rig.turn();
    assert_eq!(answers(&mut rig), []);
    rig.confirm();
    rig.turn();
    assert_eq!(answers(&mut rig), [found(1, "one")]);
}

#[test]
fn a_copy_of_a_put_is_answered_and_not_done() {
    let mut rig = leading();
    for value in ["one", "one"] {
        let far = rig.now + 1_000_000_000_000;
        let ask = put(value, Some(0), None);
        let (mut request, delivery) = rig.message(ask, far, Via::Forwarded);
        request.id = Some(RequestId {
            key: 7,
            origin: Origin::Client,
        });
        rig.input(Input::Request { request, delivery });
        settle(&mut rig);
        assert_eq!(answers(&mut rig), [done(1)]);
    }
}

/// The next leader could not know a reading of the clock that is not in the log: the key would be back.
#[test]
fn a_key_expires_by_the_replicated_clock() {
    let mut rig = leading();
    ask(&mut rig, put("one", None, Some(1_000)));
    settle(&mut rig);
    assert_eq!(answers(&mut rig), [done(1)]);
    rig.pass_ms(1_500);
    ask(&mut rig, get(None));
    assert_eq!(answers(&mut rig), [found(1, "one")]);
    // The leader does not wait for a request.
    assert_eq!(rig.next_duty_us(), Some(0));
    settle(&mut rig);
    ask(&mut rig, get(None));
    assert_eq!(answers(&mut rig), [Err(Code::KeyNotFound)]);
    let seen = [("put".to_owned(), 1), ("expired".to_owned(), 2)];
    assert_eq!(events(&mut rig), seen);
}

#[test]
fn a_list_is_answered_from_this_node() {
    let mut rig = leading();
    ask(&mut rig, put("one", None, None));
    settle(&mut rig);
    rig.answers();
    let reply = ReplyTo {
        inbox: Inbox::None,
        format: nowserving_protocol::codec::Format::Json,
        op: nowserving_protocol::operation::Operation::KvList,
        pass: false,
        taken: rig.now,
        trace: None,
    };
    let question = Question::KvList {
        bucket: name(BUCKET),
        ask: KvList::default(),
    };
    rig.input(Input::Cluster { question, reply });
    let answers = rig.answers();
    let [Ok(Outcome::Reply(ReplyBody::KvListed(page)))] = &answers[..] else {
        panic!("{answers:?}");
    };
    assert_eq!((page.entries.len(), page.entries[0].bytes), (1, 3));
}
