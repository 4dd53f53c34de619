//! Copies of a request at a leader that leads again.
#![allow(clippy::unwrap_used)]

use nowserving_line::{Op, Settings, TakeBy, TokenRef};
use nowserving_protocol::error::Code;
use nowserving_shard::command::{Command, EntryBuilder, FORMAT};
use nowserving_shard::requests::{MEMORY_MS, Origin, RequestId};

use crate::delivery::Via;
use crate::io::Input;
use crate::request::Ask;
use crate::rig::{Rig, WALL_MS, enter, name};

const ID: RequestId = RequestId {
    key: 7,
    origin: Origin::Client,
};

/// A client sends it again and again.
fn send(rig: &mut Rig, op: Op) {
    let far = rig.now + 1_000_000_000_000;
    let (mut request, delivery) = rig.message(Ask::Write(op), far, Via::Forwarded);
    request.id = Some(ID);
    rig.input(Input::Request { request, delivery });
    rig.turn();
    rig.acknowledge();
}

/// The leader between has a place for the client, and executes a copy.
fn leader_between(rig: &mut Rig) {
    let line = rig.lines().get(&name("shop")).unwrap();
    let leave = Op::Leave {
        line: name("shop"),
        at: TokenRef {
            incarnation: line.incarnation(),
            lane: 0,
            token: 1,
        },
    };
    let mut entry = EntryBuilder::new(FORMAT);
    let done = Command::Once(ID, Box::new(Command::Line(enter("b"))));
    for command in [Command::Line(leave), done] {
        assert!(entry.push(command).is_none());
    }
    let (_, bytes) = entry.finish(rig.state().now_ms(), WALL_MS, 0);
    let (term, last) = (rig.replica().term(), rig.replica().last_index());
    rig.overwrite_with(term + 1, last + 1, last + 1, bytes.into());
    assert!(!rig.is_leader());
}

#[test]
fn a_copy_is_answered_with_what_another_leader_did_before_what_this_one_refused() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    rig.write(Op::Create {
        line: name("shop"),
        settings: Settings::new(1, 0),
    });
    rig.turn();
    rig.acknowledge();
    rig.enter("a");
    rig.turn();
    rig.acknowledge();
    rig.answers();
    send(&mut rig, enter("b"));
    assert_eq!(rig.numbers(), [Err(Code::LineFull)]);
    leader_between(&mut rig);
    rig.lead();
    send(&mut rig, enter("b"));
    assert_eq!(rig.numbers(), [Ok(2)]);
}

/// Also by a node that leads no more, in a shard in which nothing happens.
#[test]
fn refusals_are_forgotten_after_two_minutes() {
    for leads in [true, false] {
        let mut rig = Rig::new(&[1, 2, 3]);
        rig.lead();
        send(&mut rig, enter("b"));
        assert_eq!(rig.numbers(), [Err(Code::LineNotFound)]);
        if !leads {
            let (term, last) = (rig.replica().term(), rig.replica().last_index());
            rig.overwrite(term + 1, last + 1, last + 1);
        }
        assert_eq!(rig.is_leader(), leads);
        rig.now += 1_000 * MEMORY_MS - 1;
        rig.turn();
        assert_eq!(rig.shard().pending.refusals(), 1);
        // And what its maintenance takes.
        rig.now += 50_000;
        rig.turn();
        assert_eq!(rig.shard().pending.refusals(), 0);
    }
}

#[test]
fn a_copy_does_not_tell_of_a_token_of_the_line_that_has_the_name_now() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    for peer in [2, 3] {
        rig.entry_formats.insert(peer, FORMAT);
        rig.hears(peer, "", Vec::new());
    }
    let write = |rig: &mut Rig, op| {
        rig.write(op);
        rig.turn();
        rig.acknowledge();
        rig.answers();
    };
    let create = || Op::Create {
        line: name("shop"),
        settings: Settings::new(1, 9),
    };
    let take = || Op::Take {
        line: name("shop"),
        by: TakeBy::Key(b"a"[..].into()),
        call_id: None,
    };
    write(&mut rig, create());
    write(&mut rig, enter("a"));
    send(&mut rig, take());
    assert_eq!(rig.numbers(), [Ok(0)], "it has a seat already");
    let delete = Op::Delete {
        line: name("shop"),
        force: true,
        incarnation: None,
    };
    write(&mut rig, delete);
    write(&mut rig, create());
    write(&mut rig, enter("somebody else"));
    send(&mut rig, take());
    assert_eq!(rig.numbers(), [Err(Code::OutcomeUnknown)]);
}
