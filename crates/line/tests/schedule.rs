//! Changes of settings at times of the leader's wall clock: each once, not before its time, in order.

use crate::common::{Restart, Shard, shop};
use nowserving_line::{
    Change, Event, Journaled, LANE_TABLE_MAX, LaneSettings, Limits, LineChange, Lines, Op, Phase,
    Refused, SCHEDULE_MAX, ScheduledChange, Settings, SettingsPatch, State,
};

fn seats(seats: u32) -> SettingsPatch {
    SettingsPatch {
        seats: Some(Change::Set(seats)),
        ..SettingsPatch::default()
    }
}

fn phase(phase: Phase) -> SettingsPatch {
    SettingsPatch {
        phase: Some(Change::Set(phase)),
        ..SettingsPatch::default()
    }
}

fn lanes(names: &[&str]) -> SettingsPatch {
    let lanes = names.iter().map(|name| (*name).try_into().unwrap());
    SettingsPatch {
        lanes: Some(Change::Set(lanes.map(LaneSettings::new).collect())),
        ..SettingsPatch::default()
    }
}

fn schedule(changes: impl IntoIterator<Item = (u64, SettingsPatch)>) -> SettingsPatch {
    let changes = changes.into_iter();
    let changes = changes.map(|(at_ms, set)| ScheduledChange { at_ms, set });
    SettingsPatch {
        schedule: Some(Change::Set(changes.collect())),
        ..SettingsPatch::default()
    }
}

fn shard() -> Shard {
    let settings = Settings {
        phase: Phase::PreOpen,
        ..Settings::new(1, 10)
    };
    Shard::with_shop(Limits::default(), settings)
}

/// What a leader proposes that looks at its wall clock now. Returns how many lines were due.
fn look(shard: &mut Shard) -> usize {
    let due = shard.lines.due_by_wall_clock(shard.wall_ms());
    let due: Vec<_> = due.map(|(line, it)| (line.clone(), it)).collect();
    for (line, incarnation) in &due {
        let (line, incarnation) = (line.clone(), *incarnation);
        shard
            .apply(&Op::RunBackground { line, incarnation })
            .unwrap();
    }
    due.len()
}

fn wrong_field(refused: Refused) -> String {
    match refused {
        Refused::BadField(bad) => bad.field.into_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_sale_opens_at_its_time_and_not_before() {
    let mut shard = shard();
    shard.enter().unwrap();
    shard.enter().unwrap();
    let noon_ms = shard.wall_ms() + 5_000;
    shard.set(schedule([
        (noon_ms, phase(Phase::Open)),
        (noon_ms + 1_000, seats(2)),
    ]));
    assert_eq!(shard.lines.next_by_wall_clock_ms(), Some(noon_ms));
    shard.now_ms += 4_999;
    assert_eq!(look(&mut shard), 0);
    // A leader whose clock is ahead proposes it; the entry has the time that counts.
    let incarnation = shard.line().incarnation();
    let early = Op::RunBackground {
        line: shop(),
        incarnation,
    };
    shard.apply(&early).unwrap();
    assert_eq!(shard.status(1).state, State::Waiting);

    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
    shard.now_ms += 1;
    assert_eq!(look(&mut shard), 1);
    assert_eq!(shard.status(1).state, State::Admitted);
    let opened = LineChange::Phase { phase: Phase::Open };
    let is_opened = |event: &Event| matches!(event, Event::Line { what, .. } if *what == opened);
    assert!(is_opened(&shard.events[0]), "{:?}", shard.events);
    let version = shard.events[0].version();
    assert_eq!(shard.line().settings_version(), version);
    // Again, as of another leader that looked at the same time: nothing.
    shard.apply(&early).unwrap();
    assert_eq!(shard.events, []);

    let entries: Vec<_> = shard.line().journal_after(version - 1).take(1).collect();
    let scheduled_at_ms = Some(noon_ms);
    assert_eq!(entries[0].what, Journaled::Configured { scheduled_at_ms });
    let change = shard.line().settings_change(version).unwrap();
    assert_eq!(change.to, phase(Phase::Open), "not the schedule itself");
    assert_eq!(change.from, phase(Phase::PreOpen));

    shard.now_ms += 1_000;
    assert_eq!(look(&mut shard), 1);
    assert_eq!(shard.status(2).state, State::Admitted);
    assert!(shard.line().settings().schedule.is_empty());
    assert_eq!(shard.lines.next_by_wall_clock_ms(), None);
}

#[test]
fn past_times_are_applied_at_once_in_their_order() {
    let mut shard = shard();
    shard.set(schedule([
        (1, seats(5)),
        (1, seats(7)),
        (2, phase(Phase::Open)),
    ]));
    let settings = shard.line().settings();
    assert_eq!((settings.seats, settings.phase), (7, Phase::Open));
    assert!(settings.schedule.is_empty());

    let line = crate::common::name("other");
    let settings = Settings::new(1, 1)
        .with(&schedule([(1, seats(3))]))
        .unwrap();
    shard.apply(&Op::Create { line, settings }).unwrap();
    let other = shard.lines.get(&crate::common::name("other")).unwrap();
    assert_eq!(other.settings().seats, 3);
}

#[test]
fn what_could_not_be_applied_now_is_refused() {
    let mut shard = shard();
    let mut refused = |changes: &[(u64, SettingsPatch)]| {
        let before = shard.lines.dump();
        let field = wrong_field(shard.try_set(schedule(changes.to_vec())).unwrap_err());
        assert_eq!(shard.lines.dump().lines, before.lines);
        field
    };
    let late = u64::from(u32::MAX);
    assert_eq!(
        refused(&[(late, seats(1)), (late, seats(0))]),
        "schedule[1].set.seats"
    );
    let nested = schedule([(late, seats(1))]);
    assert_eq!(refused(&[(late, nested)]), "schedule[0].set.schedule");
    assert_eq!(refused(&[(2, seats(1)), (1, seats(1))]), "schedule[1].at");
    assert_eq!(refused(&[(u64::MAX, seats(1))]), "schedule[0].at");
    let default_lane = SettingsPatch {
        default_lane: Some(Change::Set("vip".try_into().unwrap())),
        ..SettingsPatch::default()
    };
    let field = refused(&[(late, seats(2)), (late, default_lane.clone())]);
    assert_eq!(field, "schedule[1].set.default_lane");
    let many = vec![(late, seats(1)); SCHEDULE_MAX + 1];
    assert_eq!(refused(&many), "schedule");
    // Changes before it count.
    let lanes = lanes(&["normal", "vip"]);
    shard.set(schedule([(late, lanes), (late, default_lane)]));
    shard.enter().unwrap();
    let without = self::lanes(&["vip"]);
    let field = wrong_field(shard.try_set(schedule([(late, without)])).unwrap_err());
    assert_eq!(field, "schedule[0].set.lanes", "somebody is in `normal`");
}

#[test]
fn the_lanes_of_all_changes_together_must_fit_the_table() {
    let mut shard = shard();
    let late = shard.wall_ms() + 1_000_000;
    let other = |nth: usize| {
        let name = format!("lane-{nth}");
        (late, lanes(&["normal", &name]))
    };
    // The line has one name.
    shard.set(schedule((1..LANE_TABLE_MAX).map(other)));
    let refused = shard.try_set(schedule((1..=LANE_TABLE_MAX).map(other)));
    let field = format!("schedule[{}].set.lanes", LANE_TABLE_MAX - 1);
    assert_eq!(wrong_field(refused.unwrap_err()), field);
}

#[test]
fn a_change_that_cannot_be_applied_when_its_time_comes_is_dropped_and_the_rest_goes_on() {
    let mut shard = shard();
    let at_ms = shard.wall_ms() + 10;
    let changes = [(at_ms, lanes(&["vip"])), (at_ms, seats(4))];
    shard.set(schedule(changes.clone()));
    shard.enter().unwrap();
    // Other settings can be changed meanwhile.
    shard.set(seats(2));
    shard.now_ms += 10;
    assert_eq!(look(&mut shard), 1);
    let Event::Line {
        what: LineChange::ScheduleFailed { wrong, .. },
        version,
        ..
    } = &shard.events[0]
    else {
        panic!("{:?}", shard.events);
    };
    assert_eq!(
        wrong.to_string(),
        "lanes: `normal` stays until nobody is in it"
    );
    let change = shard.line().settings_change(*version).unwrap();
    assert_eq!(change.to, changes[0].1);
    assert_eq!(change.from, lanes(&["normal"]));
    assert_eq!(shard.line().settings().seats, 4);
    assert!(shard.line().settings().schedule.is_empty());
    shard.lines = Lines::restore(shard.lines.dump()).unwrap();
}

#[test]
fn a_closed_line_ends_its_tokens_before_it_opens_again() {
    let limits = Limits {
        work_max: 3,
        ..Limits::default()
    };
    let mut shard = Shard::with_shop(limits, Settings::new(1, 20));
    for _ in 0..8 {
        shard.enter().unwrap();
    }
    let at_ms = shard.wall_ms() + 10;
    shard.set(schedule([
        (at_ms, phase(Phase::Closed)),
        (at_ms, phase(Phase::Open)),
    ]));
    shard.now_ms += 10;
    assert_eq!(look(&mut shard), 1);
    assert_eq!(shard.line().phase(), Phase::Closed);
    assert_eq!(look(&mut shard), 0, "it is work in the background");
    assert!(shard.finish_jobs() > 0);
    look(&mut shard);
    assert_eq!(shard.line().phase(), Phase::Open);
    assert_eq!(shard.line().counts().live(), 0);
}
