//! Builds that read different formats of log entries, in one group.

use bytes::Bytes;
use nowserving_line::{Op, Settings};
use nowserving_protocol::error::Code;
use nowserving_replica::EntryReader as _;
use nowserving_shard::command::{Command, EntryBuilder, EntryError, FORMAT, decode};
use nowserving_shard::restore::{RestoreCommand, RestoreStep};
use raft::eraftpb::{Entry, MessageType};

use super::rig::{Rig, message, name};
use crate::io::ExitReason;
use crate::request::Ask;

const NEXT: u32 = FORMAT + 1;

/// Whether this build reads the entry that node 1 proposes now.
fn proposes_readable(rig: &mut Rig) -> bool {
    rig.write(Op::Create {
        line: name("shop"),
        settings: Settings::new(1, 1_000),
    });
    rig.turn();
    rig.acknowledge();
    let last = rig.replica().last_index();
    let entries = rig.log.entries(0, last, last + 1, u64::MAX).unwrap();
    match decode(&entries[0].data, FORMAT) {
        Ok(_) => true,
        Err(EntryError::TooNew { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_leader_writes_the_newest_format_that_all_members_read() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.engine.ctx.entry_format = NEXT;
    rig.lead();
    assert!(proposes_readable(&mut rig), "neither peer has said");
    for (peer, format, readable) in [
        (2, NEXT, true),
        (3, FORMAT, true),
        (3, NEXT, false),
        (2, NEXT + 1, false),
        // The log has the next format by now: whoever does not say so has to read it all the same.
        (2, FORMAT, false),
    ] {
        rig.entry_formats.insert(peer, format);
        rig.hears(peer, "", Vec::new());
        assert_eq!(
            proposes_readable(&mut rig),
            readable,
            "{:?}",
            rig.entry_formats
        );
    }
    assert_eq!(rig.exit, None);
}

/// The part of a line out of a backup that a later build has made.
fn later_part() -> RestoreCommand {
    RestoreCommand {
        line: name("shop"),
        upload: 1,
        step: RestoreStep::Part {
            number: 0,
            data: Bytes::from(vec![NEXT as u8]).into(),
        },
    }
}

#[test]
fn what_a_member_does_not_know_is_refused_until_it_runs_the_newer_release() {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.engine.ctx.entry_format = NEXT;
    rig.lead();
    rig.turn();
    rig.acknowledge();
    assert_eq!(Command::Restore(later_part()).format(), NEXT);
    let far = rig.now + 1_000_000_000_000;
    for (peer, format, taken) in [
        (2, NEXT, false),
        (3, FORMAT, false),
        (3, NEXT, true),
        // As the log has such entries now.
        (2, FORMAT, true),
    ] {
        rig.entry_formats.insert(peer, format);
        rig.hears(peer, "", Vec::new());
        let last = rig.replica().last_index();
        rig.ask(Ask::Restore(Box::new(later_part())), far);
        rig.turn();
        assert_eq!(rig.replica().last_index() > last, taken);
        rig.acknowledge();
        let codes: Vec<_> = rig
            .answers()
            .into_iter()
            .map(|it| it.unwrap_err().code)
            .collect();
        // It is applied by a build that reads no such part.
        let expected = match taken {
            true => Code::BadRequest,
            false => Code::Unavailable,
        };
        assert_eq!(codes, [expected], "{:?}", rig.entry_formats);
    }
}

#[test]
fn an_entry_of_a_later_build_ends_the_node_with_a_clear_error() {
    let mut rig = Rig::new(&[1, 2, 3]);
    let mut builder = EntryBuilder::new(NEXT);
    assert!(builder.push(Command::Stamp).is_none());
    let (_, bytes) = builder.finish(1, 1, 0);
    let last = rig.replica().last_index();
    let mut append = message(MessageType::MsgAppend, 2, 2);
    (append.index, append.commit) = (last, last + 1);
    append.log_term = rig.replica().term_at(last).unwrap();
    append.entries.push(Entry {
        term: 2,
        index: last + 1,
        data: bytes.into(),
        ..Entry::default()
    });
    rig.step(append);
    let Some(ExitReason::EntryUnreadable(error)) = &rig.exit else {
        panic!("{:?}", rig.exit);
    };
    let clear = format!("has format {NEXT}, and this build reads up to {FORMAT}");
    assert!(error.contains(&clear), "{error}");
}
