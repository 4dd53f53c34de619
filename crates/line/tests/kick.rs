//! Operators end tokens.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Journaled, JournaledToken, KickItem, KickNote, KickSelector, LaneSettings, Limits,
    Lines, Op, Phase, Reason, Refused, Reply, Settings, SettingsPatch, State,
};

fn any(token: u64) -> KickItem {
    KickItem {
        lane: 0,
        token,
        state: None,
        clock_ms: None,
    }
}

fn note(reason: &str) -> KickNote {
    KickNote {
        selector: KickSelector::All,
        state: None,
        reason: Some(reason.into()),
        by: Some("ops".into()),
    }
}

fn kick(
    shard: &mut Shard,
    tokens: Vec<KickItem>,
    note: Option<KickNote>,
) -> Result<Reply, Refused> {
    let (line, incarnation) = (shop(), shard.line().incarnation());
    shard.apply(&Op::Kick {
        line,
        incarnation,
        tokens,
        note: note.map(Box::new),
    })
}

fn crowd(seats: u32, count: u64, limits: Limits) -> Shard {
    let lanes = ["normal", "vip"].map(|name| LaneSettings::new(name.try_into().unwrap()));
    let settings = Settings {
        lanes: lanes.into(),
        ..Settings::new(seats, 1_000)
    };
    let mut shard = Shard::with_shop(limits, settings);
    for _ in 0..count {
        shard.enter().unwrap();
    }
    shard
}

fn what(shard: &Shard) -> Vec<Journaled> {
    shard.line().journal_after(0).map(|it| it.what).collect()
}

#[test]
fn freed_seats_are_filled_after_the_whole_list() {
    let mut shard = crowd(2, 5, Limits::default());
    let items = vec![any(1), any(3), any(9)];
    let reply = kick(&mut shard, items, Some(note("rude")));
    assert_eq!(reply, Ok(Reply::Kicked { ended: 2, taken: 3 }));
    assert_eq!(shard.status(1).reason, Some(Some(Reason::Kicked)));
    assert_eq!(shard.status(3).reason, Some(Some(Reason::Kicked)));
    assert_eq!(shard.status(4).state, State::Admitted);
    assert_eq!(shard.status(5).position, Some(1));
    // The note comes first, then each token.
    let journal = what(&shard);
    let place = journal
        .iter()
        .position(|it| *it == Journaled::Kicked)
        .unwrap();
    let gone = |entry: &Journaled| match entry {
        Journaled::Token { token, what, .. } => {
            let kicked = matches!(
                what,
                JournaledToken::Gone {
                    reason: Reason::Kicked,
                    ..
                }
            );
            kicked.then_some(*token)
        }
        _ => None,
    };
    assert_eq!(journal.iter().filter_map(gone).collect::<Vec<_>>(), [1, 3]);
    let version = shard.line().journal_after(0).nth(place).unwrap().version;
    assert_eq!(shard.line().kick_note(version), Some(&note("rude")));
    assert_eq!(shard.line().kick_note(version + 1), None);
}

#[test]
fn one_that_is_not_as_it_was_seen_stays() {
    let mut shard = crowd(1, 3, Limits::default());
    let seen_ms = shard.line().live(0, 2).unwrap().clock_ms();
    let waiting = |token, clock_ms| KickItem {
        state: Some(State::Waiting),
        clock_ms,
        ..any(token)
    };
    let items = vec![waiting(1, None), waiting(2, Some(seen_ms - 1))];
    let reply = kick(&mut shard, items, Some(note("idle")));
    assert_eq!(reply, Ok(Reply::Kicked { ended: 0, taken: 2 }));
    let is_noted = what(&shard).contains(&Journaled::Kicked);
    assert!(!is_noted, "nothing happened that needs a note");
    let reply = kick(&mut shard, vec![waiting(2, Some(seen_ms))], None);
    assert_eq!(reply, Ok(Reply::Kicked { ended: 1, taken: 1 }));
    assert_eq!(shard.status(3).position, Some(1));
}

#[test]
fn a_moved_token_is_found_by_its_former_number() {
    let mut shard = crowd(1, 3, Limits::default());
    let moved = shard.move_to("normal", 2, "vip").unwrap();
    let reply = kick(&mut shard, vec![any(2)], None);
    assert_eq!(reply, Ok(Reply::Kicked { ended: 1, taken: 1 }));
    let status = shard.line().status(moved.at, shard.now_ms).unwrap();
    assert_eq!(status.reason, Some(Some(Reason::Kicked)));
}

#[test]
fn the_work_of_an_entry_is_bounded_and_the_reply_says_how_far_it_came() {
    let limits = Limits {
        work_max: 2,
        ..Limits::default()
    };
    let mut shard = crowd(1, 4, limits);
    let reply = kick(&mut shard, (2..5).map(any).collect(), Some(note("all")));
    assert_eq!(reply, Ok(Reply::Kicked { ended: 2, taken: 2 }));
    let reply = kick(&mut shard, vec![any(4)], None);
    assert_eq!(reply, Ok(Reply::Kicked { ended: 1, taken: 1 }));
}

#[test]
fn another_incarnation_is_not_hit_and_a_closed_line_says_so() {
    let mut shard = crowd(1, 2, Limits::default());
    let op = Op::Kick {
        line: shop(),
        incarnation: shard.line().incarnation() + 1,
        tokens: vec![any(1)],
        note: None,
    };
    assert_eq!(shard.apply(&op), Ok(Reply::Nothing));
    let long = kick(&mut shard, vec![any(1)], Some(note(&"x".repeat(129))));
    assert!(matches!(long, Err(Refused::BadField(bad)) if bad.field == "reason"));
    shard.set(SettingsPatch {
        phase: Some(Change::Set(Phase::Closed)),
        ..SettingsPatch::default()
    });
    let closed = kick(&mut shard, vec![any(1)], Some(note("late")));
    assert_eq!(closed, Err(Refused::LineClosed));
}

#[test]
fn notes_are_bounded_and_those_of_a_dump_fit_their_journal() {
    let limits = Limits {
        journal_changes_bytes: 500,
        ..Limits::default()
    };
    let mut shard = crowd(1, 5, limits);
    for token in 2..=5 {
        kick(&mut shard, vec![any(token)], Some(note(&"x".repeat(100)))).unwrap();
    }
    let dump = shard.lines.dump();
    assert_eq!(dump.lines[0].kicks.len(), 2, "the newest ones");
    let refused = |spoil: fn(&mut nowserving_line::LineDump)| {
        let mut dump = dump.clone();
        spoil(&mut dump.lines[0]);
        Lines::restore_with(limits, dump).unwrap_err().what
    };
    assert_eq!(refused(|l| l.kicks[1].version += 1), "not a journal");
    assert_eq!(refused(|l| l.kicks.reverse()), "not a journal");
    assert_eq!(
        refused(|l| l.kicks.push(l.kicks[1].clone())),
        "not a journal"
    );
    let lane = |l: &mut nowserving_line::LineDump| {
        l.kicks[0].note.selector = KickSelector::Lane(2);
    };
    assert_eq!(refused(lane), "not a note of a kick");
    let long = |l: &mut nowserving_line::LineDump| {
        l.kicks[0].note.by = Some("x".repeat(129).into());
    };
    assert_eq!(refused(long), "not a note of a kick");
    assert!(Lines::restore_with(limits, dump).is_ok());
}
