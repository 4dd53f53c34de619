#![allow(clippy::unwrap_used)]
use nowserving_line::{
    AdmissionRate, Change, Opening, Phase, Quota, Renew, ScheduledChange, Settings, SettingsPatch,
};
use proptest::prelude::*;

use super::*;
use crate::requests::{MEMORY_MS, Origin, RequestId};
use crate::test_world::World;

#[derive(Debug, Clone)]
enum Step {
    Enter,
    Poll(usize),
    Leave(usize),
    Claim(usize),
    Wait(u64),
    /// No echo comes back for so long.
    Unreachable(u64),
    ChangeLeader,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Enter),
        2 => (0_usize..16).prop_map(Step::Poll),
        1 => (0_usize..16).prop_map(Step::Leave),
        2 => (0_usize..16).prop_map(Step::Claim),
        6 => (1_u64..400).prop_map(Step::Wait),
        1 => (1_u64..1_000).prop_map(Step::Unreachable),
        1 => Just(Step::ChangeLeader),
    ]
}

fn world() -> World {
    let mut settings = Settings::new(2, 1_000);
    settings.waiting_idle_timeout_ms = 3_000;
    settings.claim_timeout_ms = 1_000;
    settings.checkout_timeout_ms = 2_000;
    settings.admission_rate = Some(AdmissionRate {
        per_second_micro: 7_000_000,
        burst: 1,
    });
    World::new(settings)
}

impl World {
    /// Lets the leader do its work, with its pauses. Returns whether it did anything.
    fn lead(&mut self) -> bool {
        let (now, reachability) = (self.wall(), &self.reachability);
        let leader_state = &mut self.leader_state;
        let commands = leader_state.propose(&self.state, now, reachability, true);
        let events = leader_state.publish(&self.state, now.0, now.1, reachability);
        let active = !commands.is_empty() || !events.is_empty();
        self.apply_all(commands);
        active
    }

    fn next_due(&self) -> Option<Micros> {
        self.leader_state.next_due(&self.state, &self.reachability)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A node that sleeps until `next_due` misses nothing.
    #[test]
    fn nothing_is_to_be_done_before_it_is_due(steps in prop::collection::vec(step(), 1..60)) {
        let mut world = world();
        let mut tokens = Vec::new();
        for step in steps {
            let pick = |n: usize| tokens.get(n % tokens.len().max(1)).copied();
            match step {
                Step::Enter => tokens.extend(world.enter()),
                Step::Poll(n) => if let Some(at) = pick(n) {
                    world.poll(at);
                },
                Step::Leave(n) => if let Some(at) = pick(n) {
                    let _ = world.try_leave(at);
                },
                Step::Claim(n) => if let Some(at) = pick(n) {
                    let _ = world.claim(at);
                },
                Step::Wait(ms) => for _ in 0..ms {
                    // A node asks again after each echo.
                    world.reachability.echo(world.now);
                    let due = world.next_due();
                    world.wait(1);
                    let early = due.is_some_and(|due| world.now < due);
                    prop_assert!(!world.lead() || !early, "at {} and not {due:?}", world.now);
                },
                Step::Unreachable(ms) => {
                    world.now += ms * 1_000;
                    world.reachability.advance(world.now);
                }
                Step::ChangeLeader => world.change_leader(),
            }
        }
    }
}

#[test]
fn one_pass_and_one_entry_of_background_work_are_in_flight_and_no_more() {
    let mut world = world();
    for _ in 0..3 {
        world.enter().unwrap();
    }
    world.wait(1_200);
    let propose = |world: &mut World| {
        let (state, now, reachability) = (&world.state, world.wall(), &world.reachability);
        world.leader_state.propose(state, now, reachability, true)
    };
    // The first token did not claim in time, and the pace lets the second one in.
    let first = propose(&mut world);
    assert_eq!(first.len(), 2, "{first:?}");
    world.wait(200);
    assert_eq!(propose(&mut world), []);
    assert_eq!(world.leader_state.propose_stamp(), None);
    world.apply_all(first);
    assert_eq!(world.leader_state.propose_stamp(), Some(Command::Stamp));
    assert_eq!(world.leader_state.propose_stamp(), None);
}

#[test]
fn tokens_expire_only_after_the_inbox_was_drained() {
    let mut world = world();
    world.enter().unwrap();
    world.wait(1_500);
    let (state, now, reachability) = (&world.state, world.wall(), &world.reachability);
    let leader_state = &mut world.leader_state;
    assert_eq!(leader_state.propose(state, now, reachability, false), []);
    let expired = leader_state.propose(state, now, reachability, true);
    assert!(matches!(expired[..], [Command::Line(Op::Recycle { .. })]));
}

#[test]
fn the_clock_is_stamped_before_leadership_is_given_away() {
    let mut world = world();
    let last = |world: &mut World| {
        let (state, now, reachability) = (&world.state, world.now, &world.reachability);
        world.leader_state.propose_last(state, now, reachability)
    };
    world.wait(100);
    assert_eq!(last(&mut world), [], "nobody holds a token");
    world.enter().unwrap();
    assert_eq!(last(&mut world), [], "the log knows the clock");
    world.wait(100);
    assert_eq!(last(&mut world), [Command::Stamp]);
    world.apply_all(vec![Command::Stamp]);
    assert_eq!(world.state.now_ms(), world.now_ms());
    assert_eq!(last(&mut world), []);
}

/// What the leader proposes now, applied.
fn step_now(world: &mut World) -> Vec<Command> {
    let (state, now, reachability) = (&world.state, world.wall(), &world.reachability);
    let commands = world.leader_state.propose(state, now, reachability, true);
    world.apply_all(commands.clone());
    commands
}

#[test]
fn a_scheduled_change_is_proposed_when_the_wall_clock_reaches_its_time_and_once() {
    let mut world = world();
    // The world's entries are a million milliseconds ahead of its leader's wall clock.
    let at_ms = 1_002_000;
    let set = SettingsPatch {
        seats: Some(Change::Set(7)),
        ..SettingsPatch::default()
    };
    let schedule = vec![ScheduledChange { at_ms, set }];
    let patch = SettingsPatch {
        schedule: Some(Change::Set(schedule)),
        ..SettingsPatch::default()
    };
    world.configure(patch).unwrap();
    let proposed = |world: &mut World| {
        let commands = step_now(world);
        let background = |it: &&Command| matches!(it, Command::Line(Op::RunBackground { .. }));
        commands.iter().filter(background).count()
    };
    world.wait(at_ms - 1);
    assert_eq!((proposed(&mut world), world.line().seats()), (0, 2));
    world.wait(1);
    assert_eq!((proposed(&mut world), world.line().seats()), (1, 7));
    assert!(world.line().settings().schedule.is_empty());
    world.wait(60_000);
    assert_eq!(proposed(&mut world), 0);
}

#[test]
fn a_quota_is_renewed_by_the_leaders_wall_clock_once_a_window() {
    let mut world = world();
    let quota = Quota {
        total: 5,
        standby_percent: 0,
        renew: Some(Renew::Every { ms: 2_000_000 }),
        per_visit: 1,
    };
    let patch = SettingsPatch {
        quota: Some(Change::Set(quota)),
        ..SettingsPatch::default()
    };
    world.configure(patch).unwrap();
    let renewed = |world: &mut World| {
        let commands = step_now(world);
        let renewals = |it: &&Command| matches!(it, Command::Line(Op::RenewQuota { .. }));
        commands.iter().filter(renewals).count()
    };
    assert_eq!(renewed(&mut world), 1, "finds out when the next one is");
    assert_eq!(world.line().renews_at_ms(), Some(2_000_000));
    assert_eq!(renewed(&mut world), 0);
    world.wait(1_999_999);
    assert_eq!(renewed(&mut world), 0);
    world.wait(1);
    assert_eq!(renewed(&mut world), 1);
    assert_eq!(world.line().renews_at_ms(), Some(4_000_000));
    assert_eq!(renewed(&mut world), 0, "once");
}

#[test]
fn a_draw_gets_its_seed_from_the_leader_once() {
    let mut world = world();
    let patch = SettingsPatch {
        opening: Some(Change::Set(Opening::Draw)),
        phase: Some(Change::Set(Phase::PreOpen)),
        ..SettingsPatch::default()
    };
    world.configure(patch).unwrap();
    let seals = |world: &mut World| {
        let commands = step_now(world).into_iter();
        let seeds = commands.filter_map(|it| match it {
            Command::Line(Op::SealDraw { seed, .. }) => Some(seed),
            _ => None,
        });
        seeds.collect::<Vec<_>>()
    };
    let seeds = seals(&mut world);
    assert_eq!(seeds.len(), 1);
    let draw = world.line().draw().unwrap();
    let shown = nowserving_line::commitment(&seeds[0].0);
    assert_eq!((draw.commitment, draw.seed), (Some(shown), None));
    assert!(seals(&mut world).is_empty(), "once");
}

fn put(world: &mut World, key: &str, ttl_ms: u64) {
    world.apply_all(vec![Command::Kv(kv::Op::Put {
        bucket: "visits".into(),
        key: key.into(),
        value: Box::default(),
        if_revision: None,
        ttl_ms: Some(ttl_ms),
        above: 0,
    })]);
}

/// Without any token, and over a change of leader that the clock survives.
#[test]
fn key_values_expire_without_other_traffic() {
    let mut world = world();
    put(&mut world, "k", 25_000);
    assert_eq!(world.pass(), []);
    // The clock is written down meanwhile: a next leader must not begin anew.
    assert_eq!(world.step(KV_STAMP_INTERVAL_MS), [Command::Stamp]);
    assert_eq!(world.pass(), []);
    assert_eq!(world.step(KV_STAMP_INTERVAL_MS), [Command::Stamp]);
    world.change_leader();
    assert_eq!(world.step(4_999), []);
    let due = world.next_due().unwrap();
    assert!(due <= world.wall().0 + 1_000, "{due}");
    assert_eq!(world.state.kv().len(), 1);
    assert_eq!(world.step(1), [Command::Stamp]);
    assert!(world.state.kv().is_empty());
    assert_eq!(world.step(60_000), []);
}

/// A rush whose clients then all wait without asking: no entry follows by itself.
#[test]
fn the_memory_of_requests_goes_after_a_rush_with_one_stamp() {
    let mut world = World::new(Settings::new(2, 100_000));
    let rush = |world: &mut World, count: u128| {
        for key in 0..count {
            let (key, origin) = (key | u128::from(world.now) << 64, Origin::Client);
            let delete = Command::Kv(kv::Op::Delete {
                bucket: "visits".into(),
                key: "k".into(),
                if_revision: None,
            });
            let once = Command::Once(RequestId { key, origin }, Box::new(delete));
            world.apply_all(vec![once]);
        }
    };
    rush(&mut world, 10_000);
    world.wait(MEMORY_MS - 1);
    rush(&mut world, 1);
    assert_eq!(world.state.requests().len(), 10_001);
    let allocated = world.state.requests().allocated_bytes();
    assert!(allocated > 10_000 * 40, "{allocated}");
    // The second one puts the stamp off.
    assert_eq!(world.step(MEMORY_MS - 20), []);
    let due = |world: &World| {
        let leader_state = &world.leader_state;
        leader_state.next_proposal_due(&world.state, &world.reachability)
    };
    assert_eq!(due(&world), Some(world.now + 20_000));
    world.wait(20);
    assert_eq!(under_a_flood(&mut world), [Command::Stamp]);
    assert_eq!(world.state.requests().allocated_bytes(), 0);
    assert_eq!((world.step(10 * MEMORY_MS), due(&world)), (vec![], None));
}

/// What the leader proposes now, with its pauses, while requests are still unread.
fn under_a_flood(world: &mut World) -> Vec<Command> {
    let (state, now, reachability) = (&world.state, world.wall(), &world.reachability);
    let commands = world.leader_state.propose(state, now, reachability, false);
    world.apply_all(commands.clone());
    commands
}

#[test]
fn key_values_expire_while_requests_are_unread() {
    let mut world = world();
    let at = world.enter().unwrap();
    put(&mut world, "k", 12_000);
    world.wait(KV_STAMP_INTERVAL_MS);
    assert_eq!(under_a_flood(&mut world), [Command::Stamp]);
    world.wait(1_999);
    assert_eq!(under_a_flood(&mut world), []);
    world.wait(1);
    assert_eq!(under_a_flood(&mut world), [Command::Stamp]);
    assert!(world.state.kv().is_empty());
    // The token has long been due, and its polls may be among the requests.
    assert!(world.lives(at));
    world.wait(60_000);
    assert_eq!(under_a_flood(&mut world), []);
    world.pass();
    assert!(!world.lives(at));
}

#[test]
fn one_pass_of_key_values_is_in_flight_and_more_follow_soon() {
    let mut world = world();
    for n in 0..kv::EXPIRE_MAX + 1 {
        put(&mut world, &format!("k{n}"), 1_000);
    }
    world.wait(1_000);
    let (state, now, reachability) = (&world.state, world.wall(), &world.reachability);
    let leader_state = &mut world.leader_state;
    let first = leader_state.propose(state, now, reachability, false);
    assert_eq!(first, [Command::Stamp]);
    assert_eq!(leader_state.propose(state, now, reachability, false), []);
    world.apply_all(first);
    assert_eq!(world.state.kv().len(), 1);
    assert_eq!(under_a_flood(&mut world), []);
    world.now += FULL_PASS_INTERVAL_US;
    assert_eq!(under_a_flood(&mut world), [Command::Stamp]);
    assert!(world.state.kv().is_empty());
}
