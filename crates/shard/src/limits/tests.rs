#![allow(clippy::unwrap_used)]

mod changes;
mod give_back;

use bytes::Bytes;
use nowserving_limit::{Algorithm, Unit, combine, key};

use super::*;
use crate::command::{self, Command, Entry, FORMAT};
use crate::requests::{Answer, Origin, RequestId};
use crate::snapshot::{self, Header};
use crate::state::{AppliedLimit, Observer, State};

const START_MS: u64 = 1_766_222_333_444;

fn name(text: &str) -> LineName {
    LineName::try_from(text).unwrap()
}

fn limit(algorithm: Algorithm, requests_per_unit: u32) -> Limit {
    let parts = Limit::fixed_window(requests_per_unit, Unit::Minute);
    Limit::new(nowserving_limit::LimitParts {
        algorithm,
        ..parts.parts().clone()
    })
    .unwrap()
}

fn ask(algorithm: Algorithm, value: &str) -> LimitAsk {
    let limit = limit(algorithm, 5);
    let entries = [("ip", value)].into_iter();
    let key = key::encode(algorithm, limit.unit(), "shop", entries).unwrap();
    LimitAsk {
        limit,
        key: key.into(),
        hits: 1,
        max_delay_us: None,
        when_full: WhenFull::Allow,
        is_shadow: false,
        is_quota: false,
    }
}

fn reset_of(key: Box<[u8]>) -> LimitCommand {
    LimitCommand::Reset(ResetCounter {
        domain: name("shop"),
        key,
        descriptor: "ip=127.0.0.1".into(),
        by: "ann".into(),
        reason: "a bug of ours".into(),
    })
}

/// A shard's state, its leader's memory, and its log of one entry a command.
struct World {
    state: State,
    leader: LeaderLimits,
    index: u64,
    now_ms: u64,
    /// By how much the wall clock is ahead of the service clock.
    ahead_ms: u64,
}

/// The outcomes of the commands of an entry.
#[derive(Default)]
struct Seen {
    replies: Vec<LimitReply>,
    copies: Vec<Answer>,
}

impl Observer for Seen {
    fn limit(&mut self, _: &State, applied: AppliedLimit<'_>) {
        self.replies.push(applied.reply);
    }

    fn copy(&mut self, _: &State, _: usize, _: &Command, answer: &Answer) {
        self.copies.push(answer.clone());
    }
}

impl World {
    fn new() -> Self {
        World {
            state: State::default(),
            leader: LeaderLimits::new([3, 5]),
            index: 0,
            now_ms: START_MS,
            ahead_ms: 0,
        }
    }

    fn now(&self) -> (u64, u64) {
        (self.now_ms, self.now_ms + self.ahead_ms)
    }

    fn now_us(&self) -> u64 {
        self.now_ms * 1_000
    }

    fn is_allowed(&mut self, ask: &LimitAsk) -> bool {
        let now = self.now();
        let saved = self.state.limits().saved();
        let asks = std::slice::from_ref(ask);
        let at = self.now_ms * 1_000;
        combine(&self.leader.check(saved, asks, false, at, now)).allowed
    }

    /// How many of so many checks pass.
    fn passed(&mut self, ask: &LimitAsk, checks: u32) -> u32 {
        (0..checks).map(|_| u32::from(self.is_allowed(ask))).sum()
    }

    /// Applies a command as every node does: from its bytes.
    fn apply(&mut self, command: Command) -> Seen {
        let entry = Entry {
            now_ms: self.now_ms,
            wall_ms: self.now_ms + self.ahead_ms,
            commands: vec![command],
            ..Entry::default()
        };
        let read = command::decode(&command::encode(&entry), FORMAT).unwrap();
        assert_eq!(read, entry);
        self.index += 1;
        let mut seen = Seen::default();
        self.state.apply_entry(self.index, &read, &mut seen);
        let (id, command) = match &read.commands[0] {
            Command::Once(id, command) => (Some(id.key), &**command),
            command => (None, command),
        };
        if let (Command::Limit(command), Some(reply)) = (command, seen.replies.first()) {
            let saved = self.state.limits().saved();
            self.leader.after(command, reply, id, saved);
        }
        seen
    }

    fn propose(&mut self) -> Option<LimitCommand> {
        let (now, now_us) = (self.now(), self.now_us());
        self.leader.propose(self.state.limits().resets, now_us, now)
    }

    /// As long as a checkpoint is due.
    fn checkpoint(&mut self) {
        while let Some(command) = self.propose() {
            self.apply(Command::Limit(command));
            self.now_ms += 10;
        }
    }

    fn failover(&mut self) {
        self.leader = LeaderLimits::new([7, 9]);
    }
}

#[test]
fn after_a_failover_the_hits_since_the_last_checkpoint_are_forgotten_and_no_others() {
    for algorithm in Algorithm::ALL {
        let (mut world, ask) = (World::new(), ask(algorithm, "a"));
        assert_eq!(world.passed(&ask, 3), 3, "{algorithm:?}");
        world.checkpoint();
        assert_eq!(world.passed(&ask, 1), 1);
        world.failover();
        assert_eq!(world.passed(&ask, 5), 2, "{algorithm:?}: one is forgotten");
        world.now_ms += 200;
        world.checkpoint();
        world.failover();
        assert_eq!(world.passed(&ask, 5), 0, "{algorithm:?}: none is");
    }
}

#[test]
fn before_a_hand_over_everything_is_written() {
    let (mut world, ask) = (World::new(), ask(Algorithm::FixedWindow, "a"));
    world.checkpoint();
    assert_eq!(world.passed(&ask, 4), 4);
    for command in world.leader.propose_last(0) {
        world.apply(Command::Limit(command));
    }
    world.failover();
    assert_eq!(world.passed(&ask, 5), 1);
}

#[test]
fn a_checkpoint_comes_every_200_ms_and_only_if_something_changed() {
    let (mut world, ask) = (World::new(), ask(Algorithm::TokenBucket, "a"));
    assert_eq!(world.propose(), None);
    assert_eq!(world.leader.next_due(), None, "nothing is counted");
    world.is_allowed(&ask);
    let first = world.propose().unwrap();
    assert_eq!(world.propose(), None, "one at a time");
    world.is_allowed(&ask);
    world.apply(Command::Limit(first));
    assert_eq!(world.propose(), None, "200 ms after the first");
    let due = world.leader.next_due().unwrap();
    assert_eq!(due, world.now_us() + 200_000);
    world.now_ms += 200;
    let second = world.propose().unwrap();
    world.apply(Command::Limit(second));
    world.now_ms += 10_000;
    assert_eq!(world.propose(), None, "nothing changed");
}

#[test]
fn many_changes_are_written_in_portions_one_after_the_other() {
    let mut world = World::new();
    for nth in 0..3_000 {
        world.is_allowed(&ask(Algorithm::FixedWindow, &nth.to_string()));
    }
    let mut portions = 0;
    while let Some(command) = world.propose() {
        let work = world.state.limits().work(&command);
        assert!(work <= 3 * 1_024 + 64, "{work}");
        world.apply(Command::Limit(command));
        world.now_ms += 10;
        portions += 1;
        // A counter that changes all the time does not keep the checkpoint from its end.
        world.is_allowed(&ask(Algorithm::FixedWindow, "0"));
    }
    assert!((3..=4).contains(&portions), "{portions}");
    assert_eq!(world.state.limits().saved().len(), 3_000);
}

/// The bound that docs/rate-limits/exactness.md states: portions are full of counters or of bytes.
#[test]
fn a_checkpoint_takes_as_many_portions_as_its_counters_or_bytes_say() {
    for (counters, value_bytes) in [(5_000_usize, 10), (2_000, 1_900)] {
        let mut world = World::new();
        let mut bytes = 0;
        for nth in 0..counters {
            let ask = ask(Algorithm::FixedWindow, &format!("{nth:0value_bytes$}"));
            bytes += ask.key.len() + 32;
            world.is_allowed(&ask);
        }
        let (began_ms, mut portions) = (world.now_ms, 0);
        let mut oldest = world.now_us();
        while let Some(command) = world.propose() {
            assert_eq!(world.leader.oldest_change(), Some(oldest), "not written");
            world.apply(Command::Limit(command));
            world.now_ms += 10;
            portions += 1;
            if portions == 1 {
                // It waits for the next checkpoint.
                world.is_allowed(&ask(Algorithm::FixedWindow, "late"));
                assert_eq!(world.leader.oldest_change(), Some(oldest));
            }
        }
        let most = counters.div_ceil(1_024).max(bytes.div_ceil(65_536));
        assert!(portions <= most + 1, "{portions}, {bytes} bytes");
        assert_eq!(world.now_ms - began_ms, portions as u64 * 10);
        oldest += 10_000;
        assert!(world.leader.oldest_change().is_none_or(|at| at == oldest));
        world.now_ms += 200;
        world.checkpoint();
        assert_eq!(world.leader.oldest_change(), None, "all is written");
        assert_eq!(world.state.limits().saved().len(), counters + 1);
    }
}

/// As a support tool does: there is always one on its way.
#[test]
fn resets_keep_no_other_counter_out_of_the_checkpoints() {
    let mut world = World::new();
    let (others, reset) = (
        ask(Algorithm::SlidingWindowLog, "b"),
        ask(Algorithm::FixedWindow, "a"),
    );
    let command = reset_of(reset.key.clone());
    world.leader.queued(&command);
    for _ in 0..5 {
        assert!(world.is_allowed(&others));
        world.passed(&reset, 3);
        world.now_ms += 200;
        let checkpoint = world.propose().unwrap();
        assert!(
            matches!(&checkpoint, LimitCommand::Checkpoint { changes, .. } if changes.len() == 1)
        );
        world.apply(Command::Limit(command.clone()));
        world.leader.queued(&command);
        let seen = world.apply(Command::Limit(checkpoint));
        let merged = LimitReply::Checkpoint {
            merged: true,
            not_kept: 0,
        };
        assert_eq!(seen.replies, [merged]);
        assert_eq!(world.passed(&reset, 9), 5, "counted anew");
    }
    assert!(
        world.leader.oldest_change().is_some(),
        "of the counter that is reset"
    );
    // A copy: it is not executed.
    world.leader.not_executed(&command);
    world.now_ms += 200;
    world.checkpoint();
    assert_eq!(world.leader.oldest_change(), None);
    world.failover();
    assert_eq!(world.passed(&others, 5), 0);
    assert_eq!(world.passed(&reset, 5), 0);
}

/// Restarts made the service clock stand, a little each time. Minutes end at :00 all the same, of all algorithms by windows, exact
/// or not, for the leader and for the one after it.
#[test]
fn minutes_are_those_of_the_wall_clock_though_the_service_clock_stood() {
    const MINUTE_MS: u64 = 60_000;
    let left_ms = |world: &World| MINUTE_MS - world.now().1 % MINUTE_MS;
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowCounter] {
        let mut world = World::new();
        let ask = ask(algorithm, "a");
        for stood_ms in [0, 9_001, 17_000, 1_000] {
            world.ahead_ms += stood_ms;
            let (until_ms, now) = (left_ms(&world), world.now());
            let at = world.leader.timed(vec![ask.clone()], now)[0].at;
            assert_eq!(at.window.end_us, (now.1 + until_ms) * 1_000);
            assert_eq!(world.passed(&ask, 7), 5, "at {now:?}");
            world.now_ms += until_ms - 1_000;
            assert_eq!(world.passed(&ask, 1), 0, "1 s before :00");
            world.checkpoint();
            world.failover();
            world.now_ms += left_ms(&world) - 1;
            assert_eq!(world.passed(&ask, 1), 0, "nor by the next leader");
            // Of the sliding counter the hits of the minute before count during this one.
            world.now_ms += 1 + MINUTE_MS * u64::from(algorithm != Algorithm::FixedWindow);
            assert_eq!(world.now().1 % MINUTE_MS, 0);
        }
    }
}

/// For a moment, on one leader.
#[test]
fn a_wall_clock_that_leaps_drops_no_counter_that_nobody_touches() {
    let mut world = World::new();
    let mut ask = ask(Algorithm::FixedWindow, "a");
    ask.limit = Limit::fixed_window(5, Unit::Week);
    let entries = [("ip", "a")].into_iter();
    let key = key::encode(Algorithm::FixedWindow, Unit::Week, "shop", entries);
    ask.key = key.unwrap().into();
    key::set_exact(&mut ask.key);
    let hit = |world: &mut World| {
        let asks = world.leader.timed(vec![ask.clone()], world.now());
        let domain = name("shop");
        let hits = LimitCommand::Hits { domain, asks };
        match &world.apply(Command::Limit(hits)).replies[..] {
            [LimitReply::Hits(verdicts)] => combine(verdicts).allowed,
            replies => panic!("{replies:?}"),
        }
    };
    assert_eq!((0..3).filter(|_| hit(&mut world)).count(), 3);
    world.ahead_ms = 9 * 365 * 86_400_000;
    for nth in 0..20 {
        world.is_allowed(&self::ask(Algorithm::FixedWindow, &nth.to_string()));
        world.now_ms += 200;
        world.checkpoint();
    }
    world.ahead_ms = 0;
    assert_eq!((0..5).filter(|_| hit(&mut world)).count(), 2);
    // Past its end by both clocks, it goes.
    world.now_ms += 8 * 86_400_000;
    world.is_allowed(&self::ask(Algorithm::FixedWindow, "x"));
    world.checkpoint();
    assert!(world.state.limits().saved().get(&ask.key).is_none());
}

/// The leader knows of it, and exact limits still count.
#[test]
fn what_finds_no_room_in_a_checkpoint_is_counted() {
    let mut world = World::new();
    let max = TableMax {
        counters: 8,
        ..COUNTERS_MAX
    };
    world.state.limits.saved = Saved::new(max);
    for nth in 0..20 {
        world.is_allowed(&ask(Algorithm::FixedWindow, &nth.to_string()));
    }
    world.checkpoint();
    assert_eq!(world.state.limits().saved().len(), 8);
    assert_eq!(world.leader.not_kept(), 12);
    let mut exact = ask(Algorithm::FixedWindow, "0");
    key::set_exact(&mut exact.key);
    let mut hit = || {
        let asks = world.leader.timed(vec![exact.clone()], world.now());
        let domain = name("shop");
        let command = LimitCommand::Hits { domain, asks };
        let most = world.state.limits().work(&command);
        assert!((3..=3 + 2 * 64).contains(&most), "{most}");
        match &world.apply(Command::Limit(command)).replies[..] {
            [LimitReply::Hits(verdicts)] => (verdicts[0].is_untracked, combine(verdicts).allowed),
            replies => panic!("{replies:?}"),
        }
    };
    for _ in 0..5 {
        assert_eq!(hit(), (false, true));
    }
    assert_eq!(hit(), (false, false), "it counts");
    assert_eq!(world.leader.untracked(), 0);
}

#[test]
fn a_checkpoint_from_before_a_reset_does_not_bring_the_counter_back() {
    let (mut world, ask) = (World::new(), ask(Algorithm::FixedWindow, "a"));
    world.passed(&ask, 5);
    world.checkpoint();
    world.now_ms += 200;
    let other = self::ask(Algorithm::FixedWindow, "b");
    world.passed(&other, 5);
    world.leader.propose_last(0);
    world.leader = LeaderLimits::new([1, 1]);
    world.passed(&ask, 1);
    world.passed(&other, 5);
    let late = world.propose().unwrap();
    let reset = reset_of(ask.key.clone());
    let seen = world.apply(Command::Limit(reset));
    assert_eq!(seen.replies, [LimitReply::Reset(true)]);
    let since = world.leader.oldest_change();
    assert!(since.is_some());
    let seen = world.apply(Command::Limit(late));
    assert_eq!(world.leader.oldest_change(), since, "it is put back");
    let late = LimitReply::Checkpoint {
        merged: false,
        not_kept: 0,
    };
    assert_eq!(seen.replies, [late]);
    assert_eq!(world.passed(&ask, 9), 5, "counted anew");
    world.now_ms += 200;
    world.checkpoint();
    world.failover();
    assert_eq!(world.passed(&other, 5), 0, "what was put back is written");
}

#[test]
fn hits_on_exact_limits_count_once_for_each_request_and_survive_everything() {
    let mut world = World::new();
    let ask = ask(Algorithm::SlidingWindowLog, "a");
    let hit = |world: &mut World, key| {
        let now = world.now();
        let asks = world.leader.timed(vec![ask.clone()], now);
        let command = LimitCommand::Hits {
            domain: name("shop"),
            asks,
        };
        let id = RequestId {
            key,
            origin: Origin::Client,
        };
        world.apply(Command::Once(id, Box::new(Command::Limit(command))))
    };
    let allowed = |seen: &Seen| match &seen.replies[..] {
        [LimitReply::Hits(verdicts)] => combine(verdicts).allowed,
        replies => panic!("{replies:?}"),
    };
    for key in 0..5 {
        assert!(allowed(&hit(&mut world, key)));
        world.now_ms += 1;
    }
    let copy = hit(&mut world, 3);
    let [Answer::LimitHits(answer)] = copy.copies[..] else {
        panic!("{:?}", copy.copies)
    };
    assert!(combine(&answered_again(&mut world, answer, &ask)).allowed);
    world.failover();
    assert!(!allowed(&hit(&mut world, 77)));
    let verdict = world.leader.dry_run_exact(
        world.state.limits().saved(),
        std::slice::from_ref(&ask),
        (world.now_ms, 0),
    );
    assert!(!verdict[0].answer.allowed);
}

/// The answer to a copy of a request that this was the answer to.
fn answered_again(world: &mut World, answer: HitsAnswer, ask: &LimitAsk) -> Vec<Verdict> {
    let now = world.now();
    let asks = world
        .leader
        .timed(vec![ask.clone(); answer.limits as usize], now);
    answer.again(&asks, world.state.limits().saved()).unwrap()
}

/// However many limits the request had: 65,536 answers are remembered.
#[test]
fn the_answer_to_hits_is_small_and_tells_a_copy_the_same() {
    assert!(size_of::<HitsAnswer>() <= 24);
    let mut world = World::new();
    let mut asks: Vec<_> = (0..16)
        .map(|nth| ask(Algorithm::ALL[nth % Algorithm::ALL.len()], &nth.to_string()))
        .collect();
    asks[3].is_shadow = true;
    asks[4].is_quota = true;
    let mut hit = |world: &mut World, key, hits| {
        for ask in &mut asks {
            ask.hits = hits;
        }
        let asks = world.leader.timed(asks.clone(), world.now());
        let command = Command::Limit(LimitCommand::Hits {
            domain: name("shop"),
            asks: asks.clone(),
        });
        let id = RequestId {
            key,
            origin: Origin::Client,
        };
        let seen = world.apply(Command::Once(id, Box::new(command.clone())));
        let [LimitReply::Hits(first)] = &seen.replies[..] else {
            panic!("{:?}", seen.replies)
        };
        let seen = world.apply(Command::Once(id, Box::new(command)));
        let [Answer::LimitHits(answer)] = seen.copies[..] else {
            panic!("{:?}", seen.copies)
        };
        let again = answer.again(&asks, world.state.limits().saved()).unwrap();
        assert!(
            answer
                .again(&asks[1..], world.state.limits().saved())
                .is_none()
        );
        assert_eq!(combine(&again).allowed, combine(first).allowed);
        for (first, again) in first.iter().zip(&again) {
            let decided = |it: &Verdict| {
                (
                    it.answer.allowed,
                    it.answer.limit,
                    it.is_shadow,
                    it.is_quota,
                )
            };
            assert_eq!(decided(first), decided(again));
        }
        assert_eq!(
            combine(&again).shown.map(|it| it.delay_us),
            combine(first).shown.map(|it| it.delay_us)
        );
        combine(first).allowed
    };
    assert!(hit(&mut world, 1, 3));
    assert!(!hit(&mut world, 2, 3), "2 are left");
    assert!(!hit(&mut world, 3, 6), "never");
    assert!(hit(&mut world, 4, 2));
}

fn apply_rules(domain: &str, text: &str, if_version: Option<u64>) -> Command {
    Command::Limit(LimitCommand::Apply(ApplyRules {
        domain: name(domain),
        text: text.into(),
        if_version,
        by: "ann".into(),
        reason: "sale".into(),
    }))
}

fn delete_rules(domain: &str, if_version: Option<u64>) -> Command {
    Command::Limit(LimitCommand::Delete(DeleteRules {
        domain: name(domain),
        if_version,
        by: String::new(),
        reason: String::new(),
    }))
}

#[test]
fn versions_of_rules_only_grow() {
    let mut world = World::new();
    let mut rules = |command| match &world.apply(command).replies[..] {
        [LimitReply::Rules(result)] => *result,
        replies => panic!("{replies:?}"),
    };
    assert_eq!(rules(apply_rules("a", "1", Some(0))), Ok(1));
    assert_eq!(rules(apply_rules("b", "1", None)), Ok(2));
    assert_eq!(rules(apply_rules("a", "1", Some(77))), Ok(1), "the same");
    assert_eq!(
        rules(apply_rules("a", "2", Some(2))),
        Err(RulesRefused::Version)
    );
    assert_eq!(rules(apply_rules("a", "2", Some(1))), Ok(3));
    assert_eq!(
        rules(delete_rules("a", Some(1))),
        Err(RulesRefused::Version)
    );
    assert_eq!(rules(delete_rules("a", Some(3))), Ok(4));
    assert_eq!(rules(delete_rules("a", None)), Err(RulesRefused::NoDomain));
    assert_eq!(rules(apply_rules("a", "1", Some(0))), Ok(5));
    let shown = world.state.limits().rules().get(&name("a")).unwrap();
    assert_eq!((shown.version, &*shown.text, &*shown.by), (5, "1", "ann"));
    assert_eq!(shown.at_ms, START_MS);
}

#[test]
fn rules_are_bounded() {
    let mut rules = RuleTexts::default();
    let apply = |domain: String, bytes| ApplyRules {
        domain: name(&domain),
        text: "x".repeat(bytes).into(),
        if_version: None,
        by: String::new(),
        reason: String::new(),
    };
    for nth in 0..DOMAINS_MAX {
        rules.apply(&apply(format!("d{nth}"), 1), 0).unwrap();
    }
    let one_more = rules.apply(&apply("more".into(), 1), 0);
    assert_eq!(one_more, Err(RulesRefused::TooManyDomains));
    let results = (0..DOMAINS_MAX).map(|nth| {
        let apply = apply(format!("d{nth}"), RULES_TEXT_BYTES_MAX);
        rules.apply(&apply, 0).is_ok()
    });
    let taken = results.filter(|taken| *taken).count();
    assert_eq!(taken, (4 << 20) / RULES_TEXT_BYTES_MAX);
}

fn header() -> Header {
    Header {
        cluster: "test".into(),
        shard: 3,
        index: 9,
        term: 2,
        ..Header::default()
    }
}

#[test]
fn a_snapshot_has_rules_and_counters_and_goes_on_as_the_state_does() {
    let mut world = World::new();
    world.apply(apply_rules("shop", "domain: shop", None));
    world.apply(Command::Limit(reset_of(
        ask(Algorithm::FixedWindow, "x").key,
    )));
    world.apply(apply_rules("other", "domain: other", None));
    world.apply(delete_rules("other", None));
    for algorithm in Algorithm::ALL {
        world.passed(&ask(algorithm, "a"), 3);
        world.now_ms += 7;
        world.passed(&ask(algorithm, "b"), 9);
    }
    world.checkpoint();
    let bytes = snapshot::encode(&header(), &world.state);
    let (_, restored) = snapshot::decode(Bytes::from(bytes), FORMAT, "test", 3).unwrap();
    assert_eq!(restored.limits(), world.state.limits());
    for second in 0..3 {
        let hashes = [&restored, &world.state].map(|state| snapshot::hash_part(state, second));
        assert_eq!(hashes[0], hashes[1]);
    }
    world.state = restored;
    world.failover();
    for algorithm in Algorithm::ALL {
        assert_eq!(world.passed(&ask(algorithm, "a"), 9), 2, "{algorithm:?}");
        assert_eq!(world.passed(&ask(algorithm, "b"), 9), 0, "{algorithm:?}");
    }
}

#[test]
fn counters_expire_from_the_checkpoint_too() {
    let mut world = World::new();
    for nth in 0..100 {
        world.is_allowed(&ask(Algorithm::FixedWindow, &nth.to_string()));
    }
    world.checkpoint();
    assert_eq!(world.state.limits().saved().len(), 100);
    for _ in 0..4 {
        world.now_ms += 120_000;
        world.is_allowed(&ask(Algorithm::FixedWindow, "x"));
        world.checkpoint();
    }
    assert!(world.state.limits().saved().len() <= 2);
}

#[test]
fn a_counter_s_home_does_not_depend_on_its_algorithm() {
    let home = |algorithm| home_of(&ask(algorithm, "a").key, 16);
    let first = home(Algorithm::FixedWindow);
    assert!(Algorithm::ALL.into_iter().all(|it| home(it) == first));
    let homes = (0..100).map(|nth| {
        let ask = ask(Algorithm::FixedWindow, &nth.to_string());
        home_of(&ask.key, 16)
    });
    let homes: std::collections::BTreeSet<u32> = homes.collect();
    assert_eq!(homes.len(), 16);
}
