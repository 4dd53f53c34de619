//! Hits that are given back: of a leader's counters once and by the leader that counted them, of exact ones by the log.

use super::*;

const ALGORITHM: Algorithm = Algorithm::FixedWindow;

fn exact(hits: u64) -> LimitAsk {
    LimitAsk {
        hits,
        ..ask(ALGORITHM, "a")
    }
}

fn once(key: u128, command: LimitCommand) -> Command {
    let origin = Origin::Client;
    Command::Once(RequestId { key, origin }, Box::new(Command::Limit(command)))
}

impl World {
    fn held(&mut self, name: u128, ask: &LimitAsk) -> bool {
        let (now, at) = (self.now(), self.now_us());
        let asks = std::slice::from_ref(ask);
        let saved = self.state.limits().saved();
        let verdicts = self.leader.check(saved, asks, false, at, now);
        self.leader.hold(name, asks, &verdicts);
        combine(&verdicts).allowed
    }

    /// Each check looks at two counters.
    fn sweep(&mut self) {
        let other = ask(ALGORITHM, "other");
        for _ in 0..4 {
            assert_eq!(self.left(&other), 5);
        }
    }

    fn left(&mut self, ask: &LimitAsk) -> u32 {
        let (now, at) = (self.now(), self.now_us());
        let saved = self.state.limits().saved();
        let asks = std::slice::from_ref(ask);
        let verdicts = self.leader.check(saved, asks, true, at, now);
        verdicts[0].answer.remaining
    }

    /// What is left then; `None`: nothing was given back.
    fn give_back(&mut self, name: u128) -> Option<u32> {
        let (now, at) = (self.now(), self.now_us());
        let saved = self.state.limits().saved();
        let left = self.leader.give_back(saved, name, at, now);
        left.first().map(|verdict| verdict.answer.remaining)
    }

    fn exact_hits(&mut self, name: u128, ask: LimitAsk) -> Seen {
        let asks = self.leader.timed(vec![ask], self.now());
        let domain = name_of_domain();
        self.apply(once(name, LimitCommand::Hits { domain, asks }))
    }

    fn exact_left(&mut self) -> u32 {
        let saved = self.state.limits().saved();
        let left = self.leader.dry_run_exact(saved, &[exact(0)], self.now());
        left[0].answer.remaining
    }
}

fn name_of_domain() -> LineName {
    name("shop")
}

#[test]
fn a_leader_gives_back_what_it_counted_once() {
    for algorithm in Algorithm::ALL {
        let mut world = World::new();
        let ask = ask(algorithm, "a");
        assert!(world.held(1, &ask) && world.held(2, &ask));
        assert_eq!(world.give_back(1), Some(4), "{algorithm:?}");
        assert_eq!(world.give_back(1), None, "it is given back already");
        assert_eq!(world.give_back(3), None, "nobody counted it");
        assert_eq!(world.give_back(2), Some(5), "{algorithm:?}");
        assert_eq!(world.passed(&ask, 9), 5, "{algorithm:?}");
    }
}

#[test]
fn what_was_refused_or_found_no_room_is_not_given_back() {
    let mut world = World::new();
    let ask = ask(ALGORITHM, "a");
    assert_eq!(world.passed(&ask, 9), 5);
    assert!(!world.held(1, &ask));
    assert_eq!(world.give_back(1), None);
    assert_eq!(world.passed(&ask, 1), 0);
}

/// It may not have the hits: what it has of them stays.
#[test]
fn the_next_leader_gives_nothing_back() {
    let mut world = World::new();
    let ask = ask(ALGORITHM, "a");
    assert!(world.held(1, &ask));
    let portion = world.propose().unwrap();
    world.apply(Command::Limit(portion));
    world.leader = LeaderLimits::new([3, 5]);
    assert_eq!(world.give_back(1), None);
    assert_eq!(world.passed(&ask, 9), 4);
}

#[test]
fn a_checkpoint_after_a_give_back_has_it() {
    for algorithm in Algorithm::ALL {
        let mut world = World::new();
        let ask = ask(algorithm, "a");
        assert!(world.held(1, &ask) && world.held(2, &ask));
        let portion = world.propose().unwrap();
        world.apply(Command::Limit(portion));
        assert_eq!(world.give_back(1), Some(4));
        world.now_ms += 500;
        let portion = world.propose().unwrap();
        world.apply(Command::Limit(portion));
        world.leader = LeaderLimits::new([3, 5]);
        assert_eq!(world.passed(&ask, 9), 4, "{algorithm:?}");
    }
}

/// The counter is idle then, and goes only once a checkpoint says so: in the one before it is in use.
#[test]
fn hits_that_are_given_back_do_not_return_from_an_earlier_checkpoint() {
    for algorithm in Algorithm::ALL {
        for is_in_flight in [false, true] {
            let mut world = World::new();
            let ask = ask(algorithm, "a");
            assert!(world.held(1, &ask) && world.held(2, &ask));
            let portion = world.propose().unwrap();
            if !is_in_flight {
                world.apply(Command::Limit(portion.clone()));
            }
            assert!(world.give_back(1).is_some() && world.give_back(2).is_some());
            world.now_ms += 1_500;
            if is_in_flight {
                assert_eq!(world.propose(), None);
                world.apply(Command::Limit(portion));
            }
            world.sweep();
            assert_eq!(world.left(&ask), 5, "{algorithm:?}");
            // The same if a checkpoint does not come into the log.
            let portion = world.propose().unwrap();
            world.leader.not_proposed(&portion);
            world.sweep();
            assert_eq!(world.left(&ask), 5, "{algorithm:?}");
            world.now_ms += 1_500;
            let portion = world.propose().unwrap();
            world.apply(Command::Limit(portion));
            world.sweep();
            assert!(world.leader.table().is_empty(), "{algorithm:?}");
            assert_eq!(world.passed(&ask, 9), 5, "{algorithm:?}");
        }
    }
}

#[test]
fn hits_after_a_reset_are_not_given_back_for_those_before_it() {
    let mut world = World::new();
    let ask = ask(ALGORITHM, "a");
    assert!(world.held(1, &ask));
    world.apply(Command::Limit(reset_of(ask.key.clone())));
    assert_eq!(world.passed(&ask, 2), 2);
    world.give_back(1);
    assert_eq!(world.passed(&ask, 9), 3);
}

#[test]
fn exact_hits_are_given_back_by_the_log_and_a_copy_of_them_counts_anew() {
    let mut world = World::new();
    world.exact_hits(1, exact(2));
    world.exact_hits(2, exact(1));
    assert_eq!(world.exact_left(), 2);
    let give_back = world.leader.give_back_exact(name("shop"), 1, world.now());
    let give_back = give_back.unwrap();
    assert_eq!(
        world.leader.give_back_exact(name("shop"), 1, world.now()),
        None
    );
    let seen = world.apply(once(11, give_back.clone()));
    let [LimitReply::Hits(left)] = &seen.replies[..] else {
        panic!("{:?}", seen.replies);
    };
    assert_eq!(left[0].answer.remaining, 4);
    // The same entry again, and the same hits under another id.
    for id in [11, 12] {
        world.apply(once(id, give_back.clone()));
        assert_eq!(world.exact_left(), 4, "{id}");
    }
    // The check got an error, and its caller tries again with the same id.
    let seen = world.exact_hits(1, exact(2));
    assert!(seen.copies.is_empty() && matches!(&seen.replies[..], [LimitReply::Hits(_)]));
    assert_eq!(world.exact_left(), 2);
    // A late copy of either.
    assert_eq!(world.exact_hits(1, exact(2)).copies.len(), 1);
    world.apply(once(11, give_back));
    assert_eq!(world.exact_left(), 2);
    // The second one may be given back, too, by another id.
    let give_back = world.leader.give_back_exact(name("shop"), 1, world.now());
    world.apply(once(13, give_back.unwrap()));
    assert_eq!(world.exact_left(), 4);
}

/// What of a bucket is given back is what is left of it, also of hits that were counted while a give-back of those before them
/// was on its way through the log.
#[test]
fn a_give_back_in_the_log_makes_room_once() {
    let limit = nowserving_limit::LimitParts {
        algorithm: Algorithm::TokenBucket,
        burst: Some(20),
        ..Limit::fixed_window(60_000, Unit::Minute).parts().clone()
    };
    let hits = |hits| LimitAsk {
        limit: Limit::new(limit.clone()).unwrap(),
        hits,
        ..ask(Algorithm::TokenBucket, "a")
    };
    let mut world = World::new();
    world.exact_hits(1, hits(10));
    let first = world.leader.give_back_exact(name("shop"), 1, world.now());
    let first = first.unwrap();
    world.leader.queued(&first);
    assert!(world.leader.gives_back_exact(1));
    world.exact_hits(2, hits(10));
    world.apply(once(11, first));
    assert!(!world.leader.gives_back_exact(1));
    world.now_ms += 12;
    world.exact_hits(3, hits(10));
    let second = world.leader.give_back_exact(name("shop"), 2, world.now());
    world.apply(once(12, second.unwrap()));
    let saved = world.state.limits().saved();
    let left = world.leader.dry_run_exact(saved, &[hits(0)], world.now());
    assert_eq!(left[0].answer.remaining, 10);
}

#[test]
fn a_give_back_that_is_not_applied_is_not_on_its_way() {
    for is_proposed in [false, true] {
        let mut world = World::new();
        world.exact_hits(1, exact(2));
        let give_back = world.leader.give_back_exact(name("shop"), 1, world.now());
        let give_back = give_back.unwrap();
        world.leader.queued(&give_back);
        match is_proposed {
            false => world.leader.not_proposed(&give_back),
            true => world.leader.not_executed(&give_back),
        }
        assert!(!world.leader.gives_back_exact(1));
        assert_eq!(world.exact_left(), 3);
    }
}

/// Its caller may be let through by the copy.
#[test]
fn exact_hits_stay_once_a_copy_was_answered() {
    let mut world = World::new();
    world.exact_hits(1, exact(2));
    world.leader.keep(1);
    let give_back = world.leader.give_back_exact(name("shop"), 1, world.now());
    assert_eq!(give_back, None);
    assert_eq!(world.exact_left(), 3);
}

#[test]
fn exact_hits_of_a_window_that_has_ended_are_not_given_back() {
    let mut world = World::new();
    world.exact_hits(1, exact(2));
    let give_back = world.leader.give_back_exact(name("shop"), 1, world.now());
    world.now_ms += 60_000;
    world.exact_hits(2, exact(3));
    world.apply(once(11, give_back.unwrap()));
    assert_eq!(world.exact_left(), 2);
}

#[test]
fn a_reset_on_its_way_keeps_exact_hits_from_being_given_back() {
    let mut world = World::new();
    world.exact_hits(1, exact(2));
    let reset = reset_of(exact(1).key);
    world.leader.queued(&reset);
    let give_back = world.leader.give_back_exact(name("shop"), 1, world.now());
    world.apply(Command::Limit(reset));
    world.exact_hits(2, exact(3));
    world.apply(once(11, give_back.unwrap()));
    assert_eq!(world.exact_left(), 2);
}
