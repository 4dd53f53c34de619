//! Seats as a backend tells them.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, HeldBackBy, Limits, LineChange, Lines, Op, Refused, Reply, Settings,
    SettingsPatch, State,
};

fn tell(shard: &mut Shard, told: Option<(u32, u64)>) -> Result<Reply, Refused> {
    shard.apply(&Op::CapacityTold { line: shop(), told })
}

/// The seats of each event, and whether the backend was silent.
fn seats(shard: &Shard) -> Vec<(u32, bool)> {
    let seats = shard.events.iter().filter_map(|event| match event {
        Event::Line {
            what: LineChange::Seats { seats, silent },
            ..
        } => Some((*seats, *silent)),
        _ => None,
    });
    seats.collect()
}

fn shard(seats_when_silent: Option<u32>) -> Shard {
    let settings = Settings {
        seats_when_silent,
        ..Settings::new(1, 9)
    };
    let mut shard = Shard::with_shop(Limits::default(), settings);
    for _ in 0..6 {
        shard.enter().unwrap();
    }
    shard
}

#[test]
fn the_seats_follow_the_backend() {
    let mut shard = shard(None);
    tell(&mut shard, Some((3, 5_000))).unwrap();
    assert_eq!(seats(&shard), [(3, false)]);
    assert_eq!(shard.status(3).state, State::Admitted);
    assert_eq!(shard.status(4).state, State::Waiting);
    let version = shard.line().version();
    tell(&mut shard, Some((3, 5_000))).unwrap();
    assert_eq!((seats(&shard), shard.line().version()), (vec![], version));
    // Held seats are kept, and nobody is admitted until there are fewer.
    tell(&mut shard, Some((0, 5_000))).unwrap();
    assert_eq!(shard.board().seats, 0);
    shard.serve(1);
    assert_eq!(shard.status(2).state, State::Admitted);
    assert_eq!(shard.status(4).state, State::Waiting);
    assert_eq!(shard.status(4).eta_ms, None);
    assert_eq!(shard.line().held_back_by(shard.now_ms), HeldBackBy::Seats);
    // Without a setting nothing happens when it falls silent.
    shard.now_ms += 60_000;
    assert_eq!(shard.finish_jobs(), 0);
    assert_eq!(shard.board().seats, 0);
    tell(&mut shard, None).unwrap();
    assert_eq!((shard.board().seats, seats(&shard)), (1, vec![(1, false)]));
}

#[test]
fn the_seats_of_a_silent_backend_fall_once() {
    let mut shard = shard(Some(2));
    tell(&mut shard, Some((4, 5_000))).unwrap();
    let settings_version = shard.line().settings_version();
    shard.now_ms += 4_999;
    assert_eq!(shard.finish_jobs(), 0);
    assert_eq!(shard.lines.next_background_ms(), Some(shard.now_ms + 1));
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    shard.now_ms += 1;
    assert_eq!(shard.finish_jobs(), 1);
    assert_eq!((shard.board().seats, seats(&shard)), (2, vec![(2, true)]));
    assert_eq!(shard.finish_jobs(), 0);
    assert_eq!(shard.board().admitted, 4, "held seats are kept");
    shard.serve(1);
    shard.serve(2);
    assert_eq!(shard.status(5).state, State::Waiting);
    // It speaks again.
    tell(&mut shard, Some((3, 5_000))).unwrap();
    assert_eq!(seats(&shard), [(3, false)]);
    assert_eq!(shard.status(5).state, State::Admitted);
    assert_eq!(shard.line().settings_version(), settings_version);
    // The seats of one that told fewer do not rise when it falls silent.
    tell(&mut shard, Some((1, 5_000))).unwrap();
    shard.now_ms += 5_000;
    shard.finish_jobs();
    assert_eq!(shard.board().seats, 1);
    shard.set(SettingsPatch {
        seats_when_silent: Some(Change::Set(0)),
        ..SettingsPatch::default()
    });
    assert_eq!(shard.board().seats, 0, "a change applies at once");
}

#[test]
fn whoever_finds_the_backend_silent_is_not_admitted_by_its_last_word() {
    let mut shard = shard(Some(1));
    tell(&mut shard, Some((3, 5_000))).unwrap();
    shard.now_ms += 5_000;
    // Nobody has looked at the line since.
    shard.leave(1).unwrap();
    assert_eq!((shard.board().seats, seats(&shard)), (1, vec![(1, true)]));
    assert_eq!(shard.status(4).state, State::Waiting);
    shard.leave(2).unwrap();
    shard.leave(3).unwrap();
    assert_eq!(shard.status(4).state, State::Admitted);
    assert_eq!(shard.status(5).state, State::Waiting);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let mut shard = shard(None);
    for (told, field) in [
        ((1_000_001, 5_000), "seats"),
        ((1, 99), "for_ms"),
        ((1, 7 * 24 * 3_600_000 + 1), "for_ms"),
    ] {
        match tell(&mut shard, Some(told)) {
            Err(Refused::BadField(bad)) => assert_eq!(bad.field, field),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(shard.board().seats, 1);
}
