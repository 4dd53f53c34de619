#![allow(clippy::unwrap_used)]
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use nowserving_line::{Limits, Reason};

use crate::command::Command;
use crate::test_world::{World, lanes, name};

const IDLE_MS: u64 = 160_000;
const CLAIM_MS: u64 = 8_000;

fn world() -> World {
    let mut settings = Settings::new(1, 1_000);
    settings.waiting_idle_timeout_ms = IDLE_MS;
    settings.claim_timeout_ms = CLAIM_MS;
    settings.checkout_timeout_ms = 20_000;
    settings.lanes = lanes(&["normal", "vip"]);
    World::new(settings)
}

/// One in checkout for good (renewed by nobody, but its deadline is far), one waiting.
fn waiting() -> (World, TokenRef) {
    waiting_at_most(None)
}

fn waiting_at_most(max_wait_ms: Option<u64>) -> (World, TokenRef) {
    let mut settings = Settings::new(1, 1_000);
    settings.waiting_idle_timeout_ms = IDLE_MS;
    settings.claim_timeout_ms = 100_000_000;
    settings.max_wait_ms = max_wait_ms;
    settings.lanes = lanes(&["normal", "vip"]);
    let mut world = World::new(settings);
    world.enter().unwrap();
    let at = world.enter().unwrap();
    (world, at)
}

impl Recycler {
    fn check(&self) {
        let first_ms = self.watched.iter().map(|(_, it)| it.due_ms).min();
        assert_eq!(self.watched.first_due_ms(), first_ms);
    }
}

#[test]
fn an_idle_one_goes_after_its_timeout_and_not_before() {
    let (mut world, at) = waiting();
    world.step(IDLE_MS);
    assert!(world.lives(at));
    world.step(1);
    assert!(!world.lives(at));
    world.leader_state.recycler.check();
}

#[test]
fn a_polled_token_stays() {
    let (mut world, at) = waiting();
    for _ in 0..5 {
        world.step(IDLE_MS - 1);
        world.poll(at);
    }
    world.step(IDLE_MS);
    assert!(world.lives(at));
    world.step(1);
    assert!(!world.lives(at));
}

/// Also with the ticket from before a move, and beside tokens that are gone.
#[test]
fn many_that_are_seen_at_once_stay_as_if_each_was_polled() {
    let (mut world, first) = waiting();
    let tokens: Vec<_> = (0..20).map(|_| world.enter().unwrap()).collect();
    world.move_to(tokens[3], "vip").unwrap();
    world.leave(tokens[4]);
    assert_eq!(world.seen(&tokens), 0, "the log has seen them just now");
    world.step(IDLE_MS - 1);
    assert_eq!(world.seen(&tokens), 19);
    assert_eq!(world.seen(&tokens), 0);
    // A next leader knows it, too.
    world.change_leader();
    world.step(IDLE_MS - 1);
    world.pass();
    assert!(!world.lives(first));
    assert_eq!(world.line().counts().waiting, 19);
    world.leader_state.recycler.check();
}

#[test]
fn who_waits_for_too_long_goes_although_its_client_is_seen_and_a_leader_is_new() {
    let (mut world, at) = waiting_at_most(Some(60_000));
    world.step(30_000);
    let at = world.move_to(at, "vip").unwrap();
    world.step(29_000);
    world.poll(at);
    world.change_leader();
    world.pass();
    world.step(1_000);
    world.poll(at);
    assert!(world.lives(at));
    world.step(1);
    assert!(!world.lives(at));
    assert_eq!(world.line().counts().gone_for(Reason::WaitExpired), 1);
    world.leader_state.recycler.check();
}

#[test]
fn a_limit_on_the_wait_holds_at_once_for_those_who_wait() {
    let (mut world, at) = waiting();
    world.step(50_000);
    world.poll(at);
    let patch = nowserving_line::SettingsPatch {
        max_wait_ms: Some(nowserving_line::Change::Set(40_000)),
        ..Default::default()
    };
    let line = name("shop");
    let op = Op::Configure {
        line,
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    };
    world.apply(&op).unwrap();
    world.pass();
    assert!(!world.lives(at));
    assert_eq!(world.line().counts().gone_for(Reason::WaitExpired), 1);
}

#[test]
fn a_moved_tokens_clock_runs_on() {
    let (mut world, at) = waiting();
    world.step(IDLE_MS);
    let to = world.move_to(at, "vip").unwrap();
    assert!(world.lives(to) && !world.lives(at));
    world.leader_state.recycler.check();
    world.step(1);
    assert!(!world.lives(to), "a move does not count as a poll");

    let (mut world, at) = waiting();
    world.step(IDLE_MS - 1);
    world.poll(at);
    let to = world.move_to(at, "vip").unwrap();
    world.step(IDLE_MS - 1);
    // By the ticket that it was given first.
    world.poll(at);
    world.step(IDLE_MS);
    assert!(world.lives(to));
    world.step(1);
    assert!(!world.lives(to));
    world.leader_state.recycler.check();
}

#[test]
fn the_last_poll_of_a_moved_token_is_still_checkpointed() {
    let (mut world, at) = waiting();
    world.step(IDLE_MS / 4);
    world.poll(at);
    let last_seen_ms = world.now_ms();
    let to = world.move_to(at, "vip").unwrap();
    let ops = world.step(IDLE_MS / 8);
    let Some(Command::Line(Op::Touch { tokens, .. })) = ops.first() else {
        panic!("{ops:?}")
    };
    assert_eq!(tokens[..], [(to.lane, to.token, last_seen_ms)]);
}

#[test]
fn a_call_ahead_does_not_count_as_a_poll() {
    let (mut world, first) = waiting();
    world
        .configure(nowserving_line::SettingsPatch {
            call_ahead: Some(nowserving_line::Change::Set(1)),
            ..Default::default()
        })
        .unwrap();
    let second = world.enter().unwrap();
    world.step(IDLE_MS - 10);
    world.leave(first);
    assert!(world.line().status(second, 0).unwrap().call_ahead);
    world.step(10);
    assert!(world.lives(second));
    world.step(1);
    assert!(!world.lives(second));
}

#[test]
fn a_checkpoint_waits_until_it_is_stale_by_an_eighth_and_carries_many() {
    let (mut world, first) = waiting();
    let second = world.enter().unwrap();
    let touched = |ops: &[Command]| {
        let lists = ops.iter().filter_map(|op| match op {
            Command::Line(Op::Touch { tokens, .. }) => Some(tokens.len()),
            _ => None,
        });
        lists.sum::<usize>()
    };
    assert_eq!(touched(&world.step(IDLE_MS / 8)), 0);
    world.poll(first);
    // Not stale enough to be listed.
    assert_eq!(touched(&world.step(IDLE_MS / 8 + 1)), 0);
    world.poll(first);
    world.poll(second);
    let due_in = IDLE_MS / 16 * 6 - (world.now_ms() - 1_000_000);
    assert_eq!(touched(&world.step(due_in.min(IDLE_MS / 8) - 1)), 0);
    assert_eq!(touched(&world.step(1)), 2);
    assert_eq!(touched(&world.step(IDLE_MS / 8)), 0, "nothing new to tell");
}

#[test]
fn a_poll_after_a_long_pause_is_recorded_before_it_is_answered() {
    let (mut world, at) = waiting();
    world.step(IDLE_MS * 9 / 10);
    assert!(world.poll(at));
    assert!(!world.poll(at), "it is recorded already");
    world.change_leader();
    // Its client polls again within the timeout, as far as it knows: it must still be there.
    world.step(IDLE_MS * 9 / 10);
    assert!(world.lives(at));
}

#[test]
fn clients_that_poll_as_often_as_they_are_asked_to_cost_no_entry_each() {
    let (mut world, at) = waiting();
    for _ in 0..9 {
        world.step(IDLE_MS / 3 - IDLE_MS / 16);
        assert!(!world.poll(at));
        world.step(IDLE_MS / 16);
    }
}

#[test]
fn a_new_leader_grants_half_a_timeout_however_many_there_are() {
    let (mut world, at) = waiting();
    let since_ms = world.now_ms();
    let mut lost_ms = 0;
    // Nine leaders; the clock of each is stamped before it goes.
    for _ in 0..9 {
        world.step(IDLE_MS / 8);
        let before_ms = world.now_ms();
        world.change_leader();
        lost_ms += before_ms - world.now_ms();
    }
    world.step(IDLE_MS + IDLE_MS / 16 * 7 - (world.now_ms() - since_ms));
    assert!(world.lives(at), "the grace is not over");
    world.step(1);
    assert!(!world.lives(at));
    assert_eq!(lost_ms, 0);
}

#[test]
fn seats_of_an_earlier_leader_get_a_little_grace_and_new_ones_none() {
    let mut world = world();
    let first = world.enter().unwrap();
    let second = world.enter().unwrap();
    world.step(1);
    world.change_leader();
    let begun_ms = 1_000_000;
    let grace_ms = CLAIM_MS / 2;
    world.pass();
    world.step(begun_ms + CLAIM_MS + grace_ms - 1 - world.now_ms());
    assert!(world.lives(first));
    world.step(1);
    assert!(!world.lives(first));
    // The second got its seat in this leadership.
    world.step(CLAIM_MS - 1);
    assert!(world.lives(second));
    world.step(1);
    assert!(!world.lives(second));
    world.leader_state.recycler.check();
    assert_eq!(world.leader_state.recycler.watched(), 0);
}

#[test]
fn a_shorter_timeout_holds_for_waiting_tokens_and_rescheduling_twice_costs_once() {
    let (mut world, at) = waiting();
    world.step(50_000);
    for _ in 0..100 {
        world.leader_state.recycler.reschedule(&name("shop"));
    }
    assert_eq!(world.leader_state.recycler.to_index.len(), 1);
    let patch = nowserving_line::SettingsPatch {
        waiting_idle_timeout_ms: Some(nowserving_line::Change::Set(40_000)),
        ..Default::default()
    };
    let line = name("shop");
    let op = Op::Configure {
        line,
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    };
    world.apply(&op).unwrap();
    world.pass();
    assert!(!world.lives(at));
}

#[test]
fn many_at_once_go_page_by_page_and_nothing_is_left_behind() {
    let mut settings = Settings::new(1, 20_000);
    settings.waiting_idle_timeout_ms = IDLE_MS;
    settings.claim_timeout_ms = IDLE_MS;
    let mut world = World::new(settings);
    for _ in 0..6_000 {
        world.enter().unwrap();
    }
    world.change_leader();
    let mut passes = 0;
    world.wait(2 * IDLE_MS);
    while world.line().counts().live() > 0 {
        world.pass();
        world.wait(2 * IDLE_MS);
        passes += 1;
        assert!(passes < 20);
    }
    assert!(passes > 1);
    assert_eq!(world.leader_state.recycler.watched(), 0);
    world.leader_state.recycler.check();
}

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Poll(usize),
    Leave(usize),
    Claim(usize),
    Move(usize),
    /// At most a sixteenth of the timeout: a pass follows.
    Wait(u64),
    ChangeLeader,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Enter),
        6 => (0_usize..64).prop_map(Step::Poll),
        1 => (0_usize..64).prop_map(Step::Leave),
        2 => (0_usize..64).prop_map(Step::Claim),
        1 => (0_usize..64).prop_map(Step::Move),
        8 => (1..IDLE_MS / 16).prop_map(Step::Wait),
        1 => Just(Step::ChangeLeader),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// S12 and L4, in real time: the sum of all waits, which the service clock only lags behind.
    #[test]
    fn nobody_goes_early_and_nobody_stays_long(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = world();
        let mut real_ms = 0;
        let mut last_polls: BTreeMap<TokenRef, u64> = BTreeMap::new();
        for step in steps {
            let pick = |n: usize| last_polls.keys().nth(n % last_polls.len().max(1)).copied();
            match step {
                Step::Enter => {
                    let at = world.enter();
                    last_polls.extend(at.map(|at| (at, real_ms)));
                }
                Step::Poll(n) => if let Some(at) = pick(n) {
                    world.poll(at);
                    last_polls.insert(at, real_ms);
                },
                Step::Leave(n) => if let Some(at) = pick(n) {
                    world.leave(at);
                    last_polls.remove(&at);
                },
                Step::Claim(n) => if let Some(at) = pick(n) {
                    let _ = world.claim(at);
                },
                // The client goes on polling with the old ticket.
                Step::Move(n) => if let Some(at) = pick(n) {
                    let lane = world.line().resolve(at).lane;
                    let _ = world.move_to(at, if lane == 0 { "vip" } else { "normal" });
                },
                Step::Wait(ms) => {
                    real_ms += ms;
                    world.step(ms);
                }
                Step::ChangeLeader => {
                    let before_ms = world.now_ms();
                    world.change_leader();
                    let bound_ms = IDLE_MS / 16 + IDLE_MS / 16;
                    let nobody = world.line().counts().live() == 0;
                    prop_assert!(nobody || before_ms - world.now_ms() <= bound_ms, "the clock fell too far");
                    // A new leader finds at once the tokens that it takes over.
                    world.pass();
                }
            }
            world.leader_state.recycler.check();
            prop_assert_eq!(world.leader_state.recycler.watched() as u64, world.line().counts().live());
            let counts = world.line().counts();
            let idle = counts.gone_for(nowserving_line::Reason::Idle);
            let mut missing = 0;
            for (at, last_seen_ms) in &last_polls {
                let now = world.line().resolve(*at);
                match world.line().live(now.lane, now.token) {
                    None => {
                        let status = world.line().status(*at, 0).unwrap();
                        if status.reason == Some(Some(nowserving_line::Reason::Idle)) {
                            missing += 1;
                            prop_assert!(real_ms - last_seen_ms > IDLE_MS, "{at:?} went early");
                        }
                    }
                    Some(live) => if live.state() == State::Waiting {
                        let seen_ms = live.clock_ms();
                        let limit_ms = IDLE_MS + IDLE_MS / 16 * 7 + 1;
                        let stays_ms = world.now_ms().saturating_sub(seen_ms);
                        let polled = real_ms - last_seen_ms <= IDLE_MS;
                        prop_assert!(polled || stays_ms <= limit_ms, "{at:?} stays too long");
                    }
                }
            }
            prop_assert!(missing <= idle);
            last_polls.retain(|at, _| {
                let now = world.line().resolve(*at);
                world.line().live(now.lane, now.token).is_some()
            });
        }
    }
}

#[test]
fn what_an_entry_had_no_work_left_for_is_due_in_the_next_pass() {
    let mut settings = Settings::new(1, 1_000);
    settings.waiting_idle_timeout_ms = IDLE_MS;
    settings.claim_timeout_ms = 100_000_000;
    let limits = Limits {
        work_max: 2,
        ..Limits::default()
    };
    let mut world = World::with_limits(limits, settings);
    world.enter().unwrap();
    let waiting: Vec<_> = (0..5).map(|_| world.enter().unwrap()).collect();
    world.wait(IDLE_MS + 1);
    let left_after_each_pass = [3, 1, 0].map(|_| {
        world.pass();
        waiting.iter().filter(|at| world.lives(**at)).count()
    });
    assert_eq!(left_after_each_pass, [3, 1, 0]);
}
