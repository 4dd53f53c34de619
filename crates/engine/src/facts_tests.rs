//! What the engine reports for metrics.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use nowserving_line::{Gate, HeldBackBy, LaneSettings, Op, Phase, Reason, Settings};
use nowserving_shard::tallies::Tally;

use crate::facts::{Gathered, LINES_SHOWN, ShardFacts, unchanged_us};
use crate::rig::{Rig, name};

const SECOND_US: u64 = 1_000_000;

fn settle(rig: &mut Rig) {
    for _ in 0..4 {
        rig.turn();
        rig.acknowledge();
    }
}

fn leader() -> Rig {
    let mut rig = Rig::new(&[1, 2, 3]);
    rig.lead();
    rig.inbox_empty = true;
    settle(&mut rig);
    rig
}

fn create(rig: &mut Rig, line: &str, seats: u32, labels: &[(&str, &str)]) {
    let mut settings = Settings::new(seats, 10);
    let labels = labels.iter();
    let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    settings.labels = labels.collect();
    create_with(rig, line, settings);
}

fn create_with(rig: &mut Rig, line: &str, settings: Settings) {
    let line = name(line);
    rig.write(Op::Create { line, settings });
    settle(rig);
}

/// All of one round, and the lag of peers.
fn round(rig: &mut Rig) -> (Option<ShardFacts>, BTreeMap<u64, u64>) {
    let (mut facts, mut now) = (None, rig.now + SECOND_US);
    loop {
        for gathered in rig.engine.gather(now) {
            match gathered {
                Gathered::Shard(0, it) => facts = it,
                Gathered::Shard(other, _) => panic!("shard {other}"),
                Gathered::PeerLag(lag) => {
                    rig.now = now;
                    return (facts, lag);
                }
            }
        }
        now += 100_000;
    }
}

#[test]
fn a_leader_reports_its_lines_as_they_are_shown() {
    let mut rig = leader();
    create(&mut rig, "shop", 1, &[("city", "Shanghai"), ("plan", "a")]);
    create(&mut rig, "idle", 2, &[("city", "Shanghai")]);
    for key in ["a", "b", "c"] {
        rig.enter(key);
        settle(&mut rig);
    }
    let (facts, lag) = round(&mut rig);
    let facts = facts.unwrap();
    let names: Vec<_> = facts.lines.iter().map(|it| it.line.as_str()).collect();
    assert_eq!(names, ["idle", "shop"]);
    let shop = &facts.lines[1];
    assert_eq!((shop.waiting, shop.admitted, shop.in_checkout), (2, 1, 0));
    assert_eq!((shop.seats, shop.tally.entered), (1, 3));
    assert_eq!(shop.tally.gone[usize::from(Reason::Left.code())], 0);
    assert_eq!(shop.tally.waits.classes[0], 1, "one was admitted at once");
    let details = &facts.busiest[0];
    assert_eq!(details.line, name("shop"), "the busiest comes first");
    assert_eq!(details.phase, Phase::Open);
    assert_eq!(details.held_back_by, HeldBackBy::Seats);
    assert_eq!(details.gate, Gate::On);
    assert_eq!(details.queue_limit, 10);
    assert_eq!(details.lanes.len(), 1);
    assert_eq!(details.room, Some(8), "11 less 3");
    let lane = &details.lanes[0];
    assert_eq!((lane.waiting, lane.admitted, lane.in_checkout), (2, 1, 0));
    assert_eq!((lane.queue_limit, lane.tally), (None, None), "one lane");
    assert_eq!(facts.labels.pairs(), [("city", "Shanghai"), ("plan", "a")]);
    assert_eq!(facts.labels.of_lines(), [(0, 0), (1, 0), (1, 1)]);
    assert_eq!(facts.full, 0);
    assert_eq!(facts.held_back, BTreeMap::from([("seats", 1)]));
    assert_eq!(lag.keys().copied().collect::<Vec<_>>(), [2, 3]);
    assert_eq!(lag[&2], 0, "it acknowledges everything");
    assert!(lag[&3] > 0, "it never does");
}

#[test]
fn lanes_are_counted_apart_if_there_are_several() {
    let mut rig = leader();
    let mut settings = Settings::new(1, 2);
    settings.lanes = vec![
        LaneSettings::new("normal".try_into().unwrap()),
        LaneSettings {
            queue_limit: Some(1),
            ..LaneSettings::new("vip".try_into().unwrap())
        },
    ];
    create_with(&mut rig, "shop", settings);
    for key in ["a", "b", "c", "d"] {
        rig.enter(key);
        settle(&mut rig);
    }
    let (facts, _) = round(&mut rig);
    let facts = facts.unwrap();
    let details = &facts.busiest[0];
    assert_eq!(details.room, Some(0));
    let [normal, vip] = &details.lanes[..] else {
        panic!("{details:?}");
    };
    assert_eq!((normal.waiting, normal.admitted), (2, 1));
    assert_eq!(normal.queue_limit, None);
    assert_eq!((vip.waiting, vip.queue_limit), (0, Some((1, Some(0)))));
    assert_eq!(normal.tally.unwrap().entered, 3);
    assert_eq!(normal.tally.unwrap().refused[0], 1);
    assert_eq!(normal.tally.unwrap(), *facts.lines[0].tally);
    assert_eq!(vip.tally, Some(Tally::default()));
    assert_eq!(facts.full, 1);
}

#[test]
fn details_are_only_of_the_busiest_lines() {
    let mut rig = leader();
    for nth in 0..LINES_SHOWN + 5 {
        create(&mut rig, &format!("line-{nth:03}"), 1, &[]);
    }
    create(&mut rig, "shop", 1, &[]);
    rig.enter("a");
    settle(&mut rig);
    let facts = round(&mut rig).0.unwrap();
    assert_eq!(facts.lines.len(), LINES_SHOWN + 6);
    assert_eq!(facts.busiest.len(), LINES_SHOWN);
    assert_eq!(facts.busiest[0].line, name("shop"));
    assert_eq!(facts.busiest[1].line, name("line-000"), "then by name");
}

#[test]
fn a_node_that_leads_no_more_reports_nothing() {
    let mut rig = leader();
    create(&mut rig, "shop", 1, &[]);
    let (facts, _) = round(&mut rig);
    let term = facts.unwrap().term;
    assert_eq!(term, rig.replica().term());
    assert!(rig.engine.gather(rig.now).is_empty(), "not again at once");
    let (last, committed) = (rig.replica().last_index(), rig.replica().committed());
    rig.overwrite(term + 1, last + 1, committed + 1);
    assert!(rig.shard().leader_state.is_none());
    let (facts, lag) = round(&mut rig);
    assert_eq!((facts, lag), (None, BTreeMap::new()));
}

#[test]
fn what_has_not_changed_is_read_again_only_after_a_while() {
    let mut rig = leader();
    create(&mut rig, "shop", 1, &[]);
    assert!(round(&mut rig).0.is_some());
    assert_eq!(round(&mut rig).0, None, "nothing has happened");
    rig.enter("a");
    settle(&mut rig);
    let facts = round(&mut rig).0.unwrap();
    assert_eq!(facts.lines[0].tally.entered, 1);
    let rounds = (0..10).filter(|_| round(&mut rig).0.is_some());
    assert_eq!(rounds.count(), 1, "each ten seconds");
    assert_eq!(unchanged_us(3_000), 30_000_000);
    assert_eq!(unchanged_us(1_000_000), 60_000_000);
}
