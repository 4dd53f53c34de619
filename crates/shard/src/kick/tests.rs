#![allow(clippy::unwrap_used)]
use nowserving_line::{Op, Reason, Settings, SettingsPatch, State as TokenState};
use nowserving_protocol::kick::KICK_SAMPLE;
use nowserving_protocol::user::Key;

use super::*;
use crate::leader_state::LeaderState;
use crate::test_world::{World, lane, lanes, name};

const ID: RequestId = RequestId {
    key: 7,
    origin: Origin::Client,
};

fn crowd(seats: u32, count: u64) -> World {
    let mut settings = Settings::new(seats, 10_000);
    settings.lanes = lanes(&["normal", "vip"]);
    let mut world = World::new(settings);
    for _ in 0..count {
        world.enter().unwrap();
    }
    world
}

fn all() -> Kick {
    Kick {
        all: true,
        ..Kick::default()
    }
}

impl World {
    fn begin(&mut self, ask: &Kick, id: Option<RequestId>) -> Begun {
        let kicks = &mut self.leader_state.kicks;
        kicks.begin(&self.state, &name("shop"), (ask, None), id)
    }

    fn answer(&mut self) -> Option<Result<KickReply, ApiError>> {
        let mut finished = self.leader_state.kicks.take_finished();
        finished.pop().map(|(_, answer)| answer)
    }

    /// Begins, and works until the answer is there. Also how many operations it took.
    fn kick(&mut self, ask: &Kick) -> (Result<KickReply, ApiError>, usize) {
        if let Begun::Answered(answer) = self.begin(ask, None) {
            return (answer, 0);
        }
        let mut ops = 0;
        for _ in 0..100 {
            self.wait(3);
            ops += self.pass().iter().filter(|it| is_kick(it)).count();
            if let Some(answer) = self.answer() {
                return (answer, ops);
            }
        }
        panic!("a kick never ends");
    }

    fn kicked(&self) -> u64 {
        self.line().counts().gone_for(Reason::Kicked)
    }
}

#[test]
fn only_tokens_that_were_counted_go() {
    let mut world = crowd(1, 3);
    let counted = world
        .kick(&Kick {
            dry_run: true,
            ..all()
        })
        .0
        .unwrap();
    assert_eq!(counted.kicked, 3);
    let later: Vec<_> = (0..2).map(|_| world.enter().unwrap()).collect();
    let ask = Kick {
        through_version: Some(counted.through_version),
        incarnation: Some(counted.incarnation),
        ..all()
    };
    let elsewhere = Kick {
        incarnation: Some(counted.incarnation + 1),
        ..ask.clone()
    };
    let refused = world.kick(&elsewhere).0.unwrap_err();
    assert_eq!(refused.code, Code::VersionConflict);
    assert_eq!(world.kick(&ask).0.unwrap().kicked, 3);
    assert!(later.into_iter().all(|token| world.lives(token)));
    let one = Kick {
        most: Some(1),
        ..all()
    };
    assert_eq!(world.kick(&one).0.unwrap().kicked, 1);
    // A version that the line has not reached means no more than the present one.
    let ask = Kick {
        through_version: Some(u64::MAX),
        ..all()
    };
    assert_eq!(world.kick(&ask).0.unwrap().kicked, 1);
}

#[test]
fn the_answer_says_which_of_the_named_were_passed_over() {
    let mut world = crowd(1, 3);
    let tokens = |tokens: &[u64]| {
        let tokens = tokens
            .iter()
            .map(|token| nowserving_protocol::kick::TokenName {
                lane: lane("normal"),
                token: *token,
            });
        Some(tokens.collect())
    };
    let ask = Kick {
        // The first one holds a seat, and no number 9 was issued.
        tokens: tokens(&[9, 1, 2, 2]),
        state: Some(nowserving_protocol::kick::LiveState::Waiting),
        ..Kick::default()
    };
    let dry = Kick {
        dry_run: true,
        ..ask.clone()
    };
    for ask in [dry, ask] {
        let reply = world.kick(&ask).0.unwrap();
        assert_eq!(reply.kicked, 1);
        assert_eq!((reply.not_found, reply.other_state), (vec![0], vec![1]));
    }
    let key = |key: &str| Key::new(key.as_bytes()).unwrap();
    let keys = Kick {
        keys: Some(vec![key("nobody"), key("neither")]),
        ..Kick::default()
    };
    assert_eq!(world.kick(&keys).0.unwrap().not_found, [0, 1]);
    assert!(world.kick(&all()).0.unwrap().not_found.is_empty());
}

fn is_kick(command: &Command) -> bool {
    match command {
        Command::Once(_, inner) => is_kick(inner),
        command => matches!(command, Command::Line(Op::Kick { .. })),
    }
}

fn refused(answer: Result<KickReply, ApiError>) -> Code {
    answer.unwrap_err().code
}

#[test]
fn all_are_ended_page_by_page_and_none_is_admitted_on_the_way() {
    let mut world = crowd(2, 2_500);
    let (answer, ops) = world.kick(&all());
    let answer = answer.unwrap();
    assert_eq!((answer.kicked, ops), (2_500, 3));
    assert_eq!(world.kicked(), 2_500);
    let states = answer.sample.iter().map(|it| (it.token, it.state));
    let waiting = (3..13).map(|token| (token, TokenState::Waiting));
    assert!(states.eq(waiting), "waiting ones come first");
    let journal: Vec<_> = world.line().journal_after(0).map(|it| it.what).collect();
    let admitted = journal.iter().filter(|it| {
        matches!(it, nowserving_line::Journaled::Token { what, .. }
            if matches!(what, nowserving_line::JournaledToken::Admitted { .. }))
    });
    assert!(admitted.count() <= 2, "the first two");
    let notes = journal
        .iter()
        .filter(|it| **it == nowserving_line::Journaled::Kicked);
    assert_eq!(notes.count(), 1);
}

#[test]
fn a_dry_run_counts_and_proposes_nothing() {
    let mut world = crowd(1, 3_000);
    let ask = Kick {
        state: Some(nowserving_protocol::kick::LiveState::Waiting),
        dry_run: true,
        ..all()
    };
    let (answer, ops) = world.kick(&ask);
    let answer = answer.unwrap();
    assert_eq!((answer.kicked, answer.dry_run, ops), (2_999, true, 0));
    assert_eq!((answer.sample.len(), world.kicked()), (KICK_SAMPLE, 0));
}

#[test]
fn tokens_that_enter_meanwhile_are_not_hit_and_moved_ones_are() {
    let mut world = crowd(1, 1_500);
    let first = world.enter_lane(Some(lane("vip"))).unwrap();
    assert!(matches!(world.begin(&all(), None), Begun::Waits));
    world.wait(3);
    world.pass();
    let late = world.enter().unwrap();
    // To a lane in which the job has been already.
    let moved = world.move_to(first, "normal").unwrap();
    for _ in 0..10 {
        world.wait(3);
        world.pass();
    }
    assert_eq!(world.answer().unwrap().unwrap().kicked, 1_501);
    assert!(!world.lives(moved) && world.lives(late));
}

#[test]
fn idle_ones_are_those_that_no_leader_can_have_seen() {
    let mut settings = Settings::new(1, 100);
    settings.waiting_idle_timeout_ms = 160_000;
    settings.claim_timeout_ms = 1_000_000;
    let mut world = World::new(settings);
    let tokens: Vec<_> = (0..3).map(|_| world.enter().unwrap()).collect();
    world.wait(20_000);
    world.poll(tokens[1]);
    let idle = |ms| Kick {
        idle_over_ms: Some(ms),
        ..Kick::default()
    };
    let (answer, _) = world.kick(&Kick {
        dry_run: true,
        ..idle(10_000)
    });
    let shown = answer.unwrap().sample;
    assert_eq!(shown.iter().map(|it| it.token).collect::<Vec<_>>(), [3]);
    // The next leader knows less: it grants what an earlier one may have seen.
    world.change_leader();
    assert_eq!(world.kick(&idle(10_000)).0.unwrap().kicked, 0);
    world.wait(70_000);
    assert_eq!(world.kick(&idle(10_000)).0.unwrap().kicked, 2);
    assert!(world.lives(tokens[0]), "a seat holder is never idle");
}

#[test]
fn named_tokens_are_found_by_key_and_by_every_number_once() {
    let mut world = crowd(1, 3);
    let op = Op::Enter {
        line: name("shop"),
        key: Some(b"ann"[..].into()),
        lane: None,
    };
    world.apply(&op).unwrap();
    let keys = |keys: &[&[u8]]| Kick {
        keys: Some(keys.iter().map(|key| Key::new(*key).unwrap()).collect()),
        ..Kick::default()
    };
    let answer = world.kick(&keys(&[b"ann", b"bob", b"ann"])).0.unwrap();
    assert_eq!(answer.kicked, 1);
    assert_eq!(answer.sample[0].key.as_ref().unwrap().as_bytes(), b"ann");
    let second = TokenRef {
        incarnation: world.line().incarnation(),
        lane: 0,
        token: 2,
    };
    world.move_to(second, "vip").unwrap();
    let token = |lane_name: &str, token| nowserving_protocol::kick::TokenName {
        lane: lane(lane_name),
        token,
    };
    let named = |tokens| Kick {
        tokens: Some(tokens),
        ..Kick::default()
    };
    let twice = vec![token("normal", 2), token("vip", 1), token("normal", 99)];
    assert_eq!(world.kick(&named(twice)).0.unwrap().kicked, 1);
    let nowhere = named(vec![token("vip", 1), token("staff", 1)]);
    let error = world.kick(&nowhere).0.unwrap_err();
    assert!(error.message.starts_with("tokens[1].lane: "), "{error}");
}

#[test]
fn one_kick_a_line_and_its_copies_get_its_answer() {
    let mut world = crowd(1, 1_100);
    assert!(matches!(world.begin(&all(), Some(ID)), Begun::Waits));
    assert!(
        matches!(world.begin(&all(), Some(ID)), Begun::Waits),
        "a copy"
    );
    let other = RequestId { key: 8, ..ID };
    let Begun::Answered(busy) = world.begin(&all(), Some(other)) else {
        panic!("two kicks of one line");
    };
    assert_eq!(refused(busy), Code::Overloaded);
    for _ in 0..5 {
        world.wait(3);
        world.pass();
    }
    let answer = world.answer().unwrap().unwrap();
    assert_eq!(answer.kicked, 1_100);
    let late = world.enter().unwrap();
    let Begun::Answered(copy) = world.begin(&all(), Some(ID)) else {
        panic!("a copy is executed");
    };
    assert_eq!(copy.unwrap(), answer);
    // The next leader knows only that it was begun.
    world.change_leader();
    let Begun::Answered(copy) = world.begin(&all(), Some(ID)) else {
        panic!("a copy is executed");
    };
    assert_eq!(refused(copy), Code::OutcomeUnknown);
    assert!(world.lives(late));
}

#[test]
fn a_closed_line_refuses_and_one_that_is_closed_meanwhile_answers_what_was_ended() {
    let mut world = crowd(1, 2_000);
    assert!(matches!(world.begin(&all(), None), Begun::Waits));
    world.wait(3);
    world.pass();
    let close = SettingsPatch {
        phase: Some(nowserving_line::Change::Set(nowserving_line::Phase::Closed)),
        ..SettingsPatch::default()
    };
    world.configure(close).unwrap();
    let LeaderState { kicks, .. } = &mut world.leader_state;
    kicks.after(&name("shop"), &Err(Refused::LineClosed));
    assert_eq!(world.answer().unwrap().unwrap().kicked, 1_024);
    assert_eq!(refused(world.kick(&all()).0), Code::LineClosed);
    let nowhere = world
        .leader_state
        .kicks
        .begin(&world.state, &name("no"), (&all(), None), None);
    let Begun::Answered(answer) = nowhere else {
        panic!("there is no such line");
    };
    assert_eq!(refused(answer), Code::LineNotFound);
}

#[test]
fn one_that_is_given_up_stops_with_what_is_in_flight() {
    let mut world = crowd(1, 3_000);
    assert!(matches!(world.begin(&all(), None), Begun::Waits));
    world.wait(3);
    world.pass();
    world.leader_state.kicks.give_up(&name("shop"));
    world.wait(3);
    assert!(!world.pass().iter().any(is_kick));
    assert_eq!(world.kicked(), 1_024);
    assert!(world.answer().is_none());
    assert_eq!(world.kick(&all()).0.unwrap().kicked, 1_976);
}

#[test]
fn moves_do_not_hold_it_up() {
    let mut world = crowd(1, 5_000);
    let mut moved: Vec<_> = (0..20)
        .map(|_| world.enter_lane(Some(lane("vip"))).unwrap())
        .collect();
    assert!(matches!(world.begin(&all(), None), Begun::Waits));
    for at in &mut moved {
        world.wait(3);
        world.pass();
        if world.lives(*at) {
            *at = world.move_to(*at, "normal").unwrap();
        }
    }
    assert_eq!(world.answer().unwrap().unwrap().kicked, 5_020);
}

#[test]
fn a_client_that_is_seen_after_it_was_chosen_stays() {
    let mut settings = Settings::new(1, 10_000);
    settings.waiting_idle_timeout_ms = 160_000;
    settings.claim_timeout_ms = 1_000_000;
    let mut world = World::new(settings);
    let idle: Vec<_> = (0..10).map(|_| world.enter().unwrap()).collect();
    world.wait(20_000);
    // So many that one step does not look at all of them.
    for _ in 0..LOOKS {
        world.enter().unwrap();
    }
    let ask = Kick {
        idle_over_ms: Some(10_000),
        ..Kick::default()
    };
    assert!(matches!(world.begin(&ask, None), Begun::Waits));
    world.wait(3);
    assert!(!world.pass().iter().any(is_kick), "not all are looked at");
    world.poll(idle[5]);
    world.wait(3);
    world.pass();
    // The first has the seat.
    assert_eq!(world.answer().unwrap().unwrap().kicked, 8);
    assert!(world.lives(idle[5]));
}

#[test]
fn an_idle_one_is_found_whenever_the_leader_writes_down_its_last_poll() {
    for waited_ms in (5_000..100_000).step_by(5_000) {
        let mut settings = Settings::new(1, 10_000);
        settings.waiting_idle_timeout_ms = 160_000;
        let mut world = World::new(settings);
        world.enter().unwrap();
        let idle = world.enter().unwrap();
        world.wait(1_000);
        world.pass();
        world.poll(idle);
        // Nothing is written meanwhile: perhaps in the step that kicks.
        world.wait(waited_ms);
        let ask = Kick {
            idle_over_ms: Some(1_000),
            ..Kick::default()
        };
        assert_eq!(world.kick(&ask).0.unwrap().kicked, 1, "{waited_ms}");
    }
}

#[test]
fn a_copy_of_one_that_was_given_up_or_refused_is_not_executed() {
    let mut world = crowd(1, 3_000);
    let copy = |world: &mut World, id| match world.begin(&all(), Some(id)) {
        Begun::Answered(answer) => refused(answer),
        Begun::Waits => panic!("a copy is executed"),
    };
    assert!(matches!(world.begin(&all(), Some(ID)), Begun::Waits));
    world.wait(3);
    let in_flight = world.proposed();
    world.leader_state.kicks.give_up(&name("shop"));
    assert_eq!(copy(&mut world, ID), Code::OutcomeUnknown, "in flight");
    world.apply_all(in_flight);
    assert_eq!(copy(&mut world, ID), Code::OutcomeUnknown, "and later");
    let phase = |phase| SettingsPatch {
        phase: Some(nowserving_line::Change::Set(phase)),
        ..SettingsPatch::default()
    };
    let other = RequestId { key: 8, ..ID };
    world
        .configure(phase(nowserving_line::Phase::Closed))
        .unwrap();
    assert_eq!(copy(&mut world, other), Code::LineClosed);
    for _ in 0..10 {
        world.wait(50);
        world.pass();
    }
    world
        .configure(phase(nowserving_line::Phase::Open))
        .unwrap();
    world.enter().unwrap();
    assert_eq!(copy(&mut world, other), Code::LineClosed);
}

#[test]
fn an_id_of_another_request_ends_it() {
    let mut world = crowd(1, 3);
    assert!(matches!(world.begin(&all(), Some(ID)), Begun::Waits));
    world.wait(3);
    let kick = world.proposed();
    assert_eq!(kick.len(), 1);
    // Another request with this id came first: the log's kick is a copy of that.
    let Command::Once(_, inner) = &kick[0] else {
        panic!("{kick:?}");
    };
    world.leader_state.not_executed(inner);
    assert_eq!(refused(world.answer().unwrap()), Code::BadRequest);
    assert_eq!(world.kick(&all()).0.unwrap().kicked, 3);
}

#[test]
fn a_dry_run_that_nobody_waits_for_keeps_its_answer_until_it_is_given_up() {
    let mut world = crowd(1, 3_000);
    let ask = Kick {
        dry_run: true,
        ..all()
    };
    assert!(matches!(world.begin(&ask, None), Begun::Waits));
    for _ in 0..3 {
        world.wait(3);
        world.pass();
    }
    let Begun::Answered(answer) = world.begin(&ask, None) else {
        panic!("it counts anew");
    };
    assert_eq!(answer.unwrap().kicked, 3_000);
    world.leader_state.kicks.give_up(&name("shop"));
    assert!(matches!(world.begin(&ask, None), Begun::Waits));
}
