#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use nowserving_engine::refusals::{outcome_unknown, overloaded, unavailable};
use nowserving_engine::{Ask, Inbox, Input, Outcome, Subscription, Via};
use nowserving_limit::RULE_NAME_BYTES_MAX;
use nowserving_limit::{Answer, Verdict};
use nowserving_line::NUMBER_MAX;
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_protocol::error::Code;
use nowserving_protocol::header::TIMEOUT_HEADER;
use nowserving_protocol::limits::{
    COUNTER_KEY_BYTES_MAX, CheckReply, DESCRIPTORS_MAX, Descriptor, DescriptorReply, DomainReply,
    Entry, counter_key_bytes, limit_shard_of,
};
use nowserving_protocol::page::json_bytes;
use nowserving_shard::limits::{home_of, part_reply};

use super::super::parts::{Home, PartAnswer, place};
use super::super::{KnownRules, in_words, read_one};
use super::*;
use crate::gather::tests::{LEADER, START, Test};
use crate::testing::Owned;

const TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5, name: by_ip}}
  - {key: id, rate_limit: {unit: day, requests_per_unit: 5, exact: true}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
";

pub(crate) fn known() -> KnownDomain {
    crate::testing::known_of(TEXT)
}

pub(crate) fn shop() -> LineName {
    LineName::try_from("shop").unwrap()
}

fn descriptors(all: &[(&str, &str)]) -> Vec<Descriptor> {
    let entry = |(key, value): &(&str, &str)| vec![Entry::new(*key, *value)];
    all.iter().map(entry).collect()
}

pub(crate) fn verdict(allowed: bool, remaining: u32) -> Verdict {
    Verdict {
        answer: Answer {
            allowed,
            limit: 5,
            remaining,
            reset_us: 1_500,
            retry_after_us: (!allowed).then_some(2_001),
            delay_us: 0,
        },
        is_shadow: false,
        is_quota: false,
        is_untracked: false,
    }
}

#[test]
fn one_answer_is_made_of_all() {
    let known = known();
    let asked = descriptors(&[("ip", "a"), ("none", "x"), ("ip", "b"), ("free", "y")]);
    let matched = known.rules.matched("shop", entries(&asked));
    let verdicts = [Some(verdict(true, 3)), None, Some(verdict(false, 0)), None];
    let mut made = reply(&matched, &verdicts);
    assert!(!made.allowed && !made.unmatched);
    assert_eq!((made.limit, made.remaining), (Some(5), Some(0)));
    assert_eq!((made.reset_ms, made.retry_after_ms), (Some(2), Some(3)));
    let [first, none, second, free] = &made.descriptors[..] else {
        panic!("{made:?}")
    };
    assert!(first.allowed && !second.allowed && none.unmatched && free.unlimited);
    assert_eq!(first.name.as_deref(), Some("by_ip"));
    assert_eq!(first.unit.as_deref(), Some("minute"));
    let nothing = reply(&matched[1..2], &[None]);
    assert!(nothing.allowed && nothing.limit.is_none());
    explain(
        &mut made,
        &matched,
        (&shop(), &known.rules),
        entries(&asked),
    );
    let rules: Vec<_> = made.descriptors.iter().map(|it| it.rule.clone()).collect();
    let shown = known.rules.rules().into_iter();
    let shown: Vec<_> = shown.map(|(path, rule)| in_words(&path, rule)).collect();
    let shown = |key: &str| {
        shown
            .iter()
            .find(|it| it.starts_with(&format!("shop / {key}:")))
    };
    assert!(shown("ip").is_some() && shown("free").is_some());
    assert_eq!(
        rules.iter().map(Option::as_ref).collect::<Vec<_>>(),
        [shown("ip"), None, shown("ip"), shown("free")]
    );
}

#[test]
fn descriptors_of_one_shard_go_together_and_exact_ones_apart() {
    let known = known();
    let many: Vec<_> = (0..16).map(|nth| nth.to_string()).collect();
    let pairs: Vec<_> = many.iter().map(|value| ("ip", value.as_str())).collect();
    let mut asked = descriptors(&pairs);
    asked.extend(descriptors(&[("id", "x"), ("free", "y")]));
    let matched = resolve(&known, &shop(), &asked).unwrap();
    let parts = parts_of(&matched, 4);
    let places: usize = parts.values().map(Vec::len).sum();
    assert_eq!(places, 17, "an unlimited one is not asked");
    assert!(parts.keys().all(|home| home.shard < 4 && !home.quota));
    let exact: Vec<_> = parts.iter().filter(|(home, _)| home.exact).collect();
    assert_eq!(exact.len(), 1);
    assert_eq!(*exact[0].1, [16]);
    for (home, places) in &parts {
        for place in places {
            let Matched::Limited { key, .. } = &matched[*place] else {
                panic!("{place}")
            };
            assert_eq!(home_of(key, 4), home.shard);
        }
    }
}

/// A shard whose quotas are used up counts nothing of what it is asked together with them, though another quota lets the
/// request pass.
#[test]
fn quotas_of_several_parts_are_asked_apart_from_other_limits() {
    let known = known();
    let values: Vec<_> = (0..8).map(|nth| nth.to_string()).collect();
    let pairs = values
        .iter()
        .flat_map(|it| [("quota", it.as_str()), ("ip", it.as_str())]);
    let asked = descriptors(&pairs.collect::<Vec<_>>());
    let matched = resolve(&known, &shop(), &asked).unwrap();
    let parts = parts_of(&matched, 4);
    assert_eq!(parts.values().map(Vec::len).sum::<usize>(), 16);
    for (home, places) in &parts {
        // Quotas have the even places.
        assert!(
            places.iter().all(|place| (place % 2 == 0) == home.quota),
            "{parts:?}"
        );
    }
    // One part has them all: it decides them with the others.
    assert_eq!(parts_of(&matched, 1).len(), 1);
    assert!(parts_of(&matched[..2], 4).keys().all(|home| !home.quota));
}

#[test]
fn one_id_names_hits_on_different_counters_apart() {
    let call = call();
    let home = Home {
        shard: 1,
        exact: true,
        quota: false,
    };
    let part = |keys: &[&[u8]]| Part::new((home, keys.iter().map(|key| key.to_vec()).collect()));
    let first = call.id_of_hits(&part(&[b"ab", b"c"]), 1);
    assert_eq!(first, call.id_of_hits(&part(&[b"ab", b"c"]), 1));
    assert_ne!(first, call.id_of_hits(&part(&[b"a", b"bc"]), 1));
    assert_ne!(first, call.id_of_hits(&part(&[b"ab"]), 1));
    assert_ne!(first, call.id_of_hits(&part(&[b"ab", b"c"]), 50));
    // A repetition counts by the same name; what it gives back is another time.
    let again = Call { once: 9, ..call };
    assert_eq!(first, again.id_of_hits(&part(&[b"ab", b"c"]), 1));
    let back = |call: &Call| call.id_of_give_back(&first);
    assert_eq!(back(&again), back(&again));
    assert_ne!(
        back(&again),
        back(&Call {
            once: 10,
            ..self::call()
        })
    );
}

#[test]
fn an_error_after_a_part_has_counted_does_not_claim_that_nothing_happened() {
    let home = Home {
        shard: 1,
        exact: true,
        quota: false,
    };
    let answered = |allowed: &[bool], ask: &Check| {
        let verdicts: Vec<_> = allowed.iter().map(|it| verdict(*it, 0)).collect();
        let part = part_reply(&verdicts);
        Answered::from([(
            Part::new((home, Vec::new())),
            PartAnswer::new(part, !ask.dry_run && ask.hits() > 0),
        )])
    };
    let ask = Check::new(descriptors(&[("id", "x")]));
    let none = Check {
        hits: Some(0),
        ..ask.clone()
    };
    let dry = Check {
        dry_run: true,
        ..ask.clone()
    };
    let code = |answered: Answered| undone(unavailable(), &answered).code;
    assert_eq!(code(answered(&[true], &ask)), Code::OutcomeUnknown);
    assert_eq!(code(answered(&[false], &ask)), Code::Unavailable);
    // All or none of them.
    assert_eq!(code(answered(&[true, false], &ask)), Code::Unavailable);
    assert_eq!(code(Answered::new()), Code::Unavailable);
    assert_eq!(code(answered(&[true], &none)), Code::Unavailable);
    assert_eq!(code(answered(&[true], &dry)), Code::Unavailable);
}

#[test]
fn a_part_of_another_length_is_no_answer() {
    let mut verdicts = vec![None; 2];
    assert!(place(&mut verdicts, &[1], &[]).is_err());
    place(&mut verdicts, &[1], &[verdict(true, 1)]).unwrap();
    assert_eq!(verdicts, [None, Some(verdict(true, 1))]);
}

#[test]
fn the_keys_of_a_part_tell_it_from_another() {
    let known = known();
    let asked = descriptors(&[("ip", "a"), ("ip", "b"), ("free", "y")]);
    let matched = resolve(&known, &shop(), &asked).unwrap();
    assert_eq!(keys_of(&matched, &[0, 1, 2]).len(), 2);
    assert_ne!(keys_of(&matched, &[0]), keys_of(&matched, &[1]));
}

#[test]
fn rules_that_differ_are_told_only_if_nothing_else_is_wrong() {
    let (other, failed) = (ApiError::new(OTHER_RULES, ""), unavailable());
    assert_eq!(worse(None, other.clone()).code, OTHER_RULES);
    assert_eq!(worse(Some(other.clone()), failed.clone()).code, failed.code);
    assert_eq!(worse(Some(failed.clone()), other).code, failed.code);
    let unknown = outcome_unknown();
    assert_eq!(
        worse(Some(failed.clone()), unknown.clone()).code,
        unknown.code
    );
    assert_eq!(worse(Some(unknown.clone()), failed).code, unknown.code);
}

#[test]
fn clients_find_the_shard_of_a_descriptor_and_how_long_its_key_is() {
    assert_eq!(
        COUNTER_KEY_BYTES_MAX,
        nowserving_limit::COUNTER_KEY_BYTES_MAX
    );
    let known = known();
    for (key, value) in [("ip", "a"), ("ip", "ä"), ("id", ""), ("quota", "x")] {
        let asked = descriptors(&[(key, value)]);
        let matched = resolve(&known, &shop(), &asked).unwrap();
        let key = keys_of(&matched, &[0]).pop().unwrap();
        assert_eq!(counter_key_bytes("shop", &asked[0]), key.len());
        for shards in [1, 4, 16] {
            assert_eq!(
                limit_shard_of(&shop(), &asked[0], shards),
                home_of(&key, shards)
            );
        }
    }
}

fn call() -> Call {
    let message = Owned::new("nowserving.limit.shop.check", Vec::new());
    Call {
        id: 7,
        once: 8,
        times: Times::of(&message.view(), START).unwrap(),
        note: None,
    }
}

pub(crate) fn rules() -> KnownRules {
    KnownRules {
        domains: BTreeMap::from([(shop(), Arc::new(known()))]),
        version: 1,
    }
}

const SHARDS: u32 = 16;

fn check(ask: &Check) -> Owned {
    let payload = encode(ask, Format::Json);
    Owned::new("nowserving.limit.shop.check", payload)
}

fn of(key: &str, value: &str) -> Check {
    Check::new(descriptors(&[(key, value)]))
}

fn shard_of(descriptor: &Descriptor) -> u32 {
    limit_shard_of(&shop(), descriptor, SHARDS)
}

/// A node that knows the shop's rules and leads these shards.
fn leader(shards: impl IntoIterator<Item = u32>) -> Test {
    let mut test = Test::start(SHARDS);
    test.gather.learn(Arc::new(rules()), test.now);
    let leads = shards.into_iter().map(|shard| (shard, LEADER));
    test.gather.follow(leads, test.now);
    test
}

/// The questions that the node asks itself.
fn questions(test: &mut Test) -> Vec<(u64, LimitRequest)> {
    let inputs = test.engine();
    let questions = inputs.into_iter().map(|(id, input)| {
        let Input::Request { request, delivery } = input else {
            panic!("not a request");
        };
        assert_eq!(delivery.via, Via::Forwarded);
        assert_eq!(request.reply.inbox, Inbox::Task(id));
        let Ask::Limit(ask) = request.ask else {
            panic!("not about limits");
        };
        (id, *ask)
    });
    questions.collect()
}

fn answers(test: &mut Test, id: u64, verdict: Verdict) {
    let outcome = Outcome::LimitPart(Box::new(part_reply(&[verdict])));
    test.gather.own_answered(id, Ok(outcome), test.now);
}

fn reply_of(test: &mut Test) -> CheckReply {
    test.reply()
        .map(|bytes| serde_json::from_slice(&bytes).unwrap())
        .unwrap()
}

#[test]
fn a_node_that_is_cut_off_does_not_say_that_there_is_no_limit() {
    for (subscriptions, is_cut_off) in [
        (vec![], false),
        (vec![(0, Subscription::No)], false),
        (vec![(0, LEADER)], false),
        (vec![(0, Subscription::Leaderless), (3, LEADER)], false),
        (vec![(0, Subscription::Leaderless)], true),
    ] {
        let mut test = Test::start(SHARDS);
        test.gather.learn(Arc::default(), test.now);
        test.gather.follow(subscriptions, test.now);
        test.take(&check(&of("ip", "a")));
        if is_cut_off {
            assert!(test.replies.is_empty());
            test.gather.follow([(0, Subscription::No)], test.now);
            // It gets the entries that it lacks first.
            test.run();
            assert!(test.replies.is_empty());
            test.pass(LEARNING_US);
        }
        assert!(reply_of(&mut test).unmatched);
    }
    let mut test = Test::start(SHARDS);
    test.gather.learn(Arc::default(), test.now);
    test.gather
        .follow([(0, Subscription::Leaderless)], test.now);
    test.take(&check(&of("ip", "a")));
    test.pass(60_000_000);
    assert_eq!(test.reply(), Err(unavailable()));
}

#[test]
fn a_node_that_does_not_know_the_rules_waits_for_them() {
    let mut test = Test::start(SHARDS);
    test.take(&check(&of("free", "a")));
    test.take(&check(&of("free", "b")).with(TIMEOUT_HEADER, "1000"));
    assert!(test.replies.is_empty());
    test.pass(1_000_000);
    assert_eq!(test.reply(), Err(unavailable()));
    test.gather.learn(Arc::new(rules()), test.now);
    assert!(reply_of(&mut test).descriptors[0].unlimited);
}

#[test]
fn a_node_asks_itself_about_shards_that_it_leads() {
    let ask = of("ip", "a");
    let mut test = leader([shard_of(&ask.descriptors[0])]);
    test.take(&check(&ask));
    let questions = questions(&mut test);
    let [
        (
            id,
            LimitRequest::Check {
                asks,
                dry_run: false,
                hold: None,
            },
        ),
    ] = &questions[..]
    else {
        panic!("{questions:?}");
    };
    assert_eq!(asks.len(), 1);
    answers(&mut test, *id, verdict(true, 4));
    let reply = reply_of(&mut test);
    assert!(reply.allowed);
    assert_eq!((reply.limit, reply.remaining), (Some(5), Some(4)));
    assert!(test.gather.is_idle());
}

#[test]
fn a_node_that_leads_no_longer_asks_the_next_leader() {
    let ask = of("ip", "a");
    let shard = shard_of(&ask.descriptors[0]);
    let mut test = leader([shard]);
    test.take(&check(&ask));
    let (id, _) = questions(&mut test).remove(0);
    test.gather.own_answered(id, Err(unavailable()), test.now);
    let request = test.sent().remove(0);
    let forward = format!("nowserving.forward.shard.{shard}.shop.limit_part");
    assert_eq!(request.subject, forward);
    test.answers(&request, &part_reply(&[verdict(true, 4)]));
    assert!(reply_of(&mut test).allowed);
}

/// Sent to others then, it would end as "it may have counted".
#[test]
fn what_the_own_engine_could_not_answer_in_time_has_not_counted() {
    let ask = of("ip", "a");
    let mut test = leader([shard_of(&ask.descriptors[0])]);
    test.take(&check(&ask));
    let (id, _) = questions(&mut test).remove(0);
    let until = test.gather.next_due().unwrap();
    test.now.us += (until - test.now.us) * 9 / 10;
    test.gather.own_answered(id, Err(unavailable()), test.now);
    assert_eq!(test.reply(), Err(unavailable()));
    assert!(test.requests.is_empty());
}

/// Of hits in memory as of those in the log.
#[test]
fn an_answer_that_is_not_understood_may_have_counted() {
    for key in ["ip", "id"] {
        let ask = of(key, "a");
        for (dry_run, code) in [(false, Code::OutcomeUnknown), (true, Code::Unavailable)] {
            let mut test = leader([]);
            let ask = Check {
                dry_run,
                ..ask.clone()
            };
            test.take(&check(&ask));
            let request = test.sent().remove(0);
            test.answers(&request, &"another type");
            assert_eq!(test.reply().unwrap_err().code, code, "{key}");
        }
    }
}

#[test]
fn a_check_whose_time_is_over_does_not_begin_again() {
    let ask = of("ip", "a");
    let mut test = leader([shard_of(&ask.descriptors[0])]);
    test.take(&check(&ask));
    let (id, _) = questions(&mut test).remove(0);
    test.now.us += 60_000_000;
    test.gather.own_answered(id, Err(unavailable()), test.now);
    assert_eq!(test.reply(), Err(unavailable()));
    assert!(test.requests.is_empty());
}

#[test]
fn without_room_a_check_is_refused_at_once() {
    let ask = of("ip", "a");
    let mut test = leader([shard_of(&ask.descriptors[0])]);
    test.take(&check(&ask));
    let (id, _) = questions(&mut test).remove(0);
    test.gather.not_taken(id, test.now);
    assert_eq!(test.reply(), Err(overloaded()));
}

#[test]
fn hits_on_exact_limits_are_written_also_where_this_node_leads() {
    let ask = of("id", "a");
    let shard = shard_of(&ask.descriptors[0]);
    let mut test = leader([shard]);
    test.take(&check(&ask));
    let request = test.sent().remove(0);
    let own = format!("nowserving.shard.{shard}.shop.limit_exact");
    assert_eq!(request.subject, own);
    assert!(
        request
            .headers
            .iter()
            .any(|(name, _)| *name == REQUEST_ID_HEADER)
    );
}

/// Two descriptors whose counters are in two shards.
fn apart() -> Vec<Descriptor> {
    let of = |value: &str| descriptors(&[("ip", value)]);
    let shard = |value: &str| shard_of(&of(value)[0]);
    let mut others = (0..100).map(|nth| nth.to_string());
    let other = others.find(|it| shard(it) != shard("a")).unwrap();
    [of("a"), of(&other)].concat()
}

#[test]
fn a_check_that_one_shard_refuses_gives_back_what_the_other_counted_and_once() {
    let ask = Check::new(apart());
    for is_given_back in [true, false] {
        let mut test = leader(0..SHARDS);
        test.take(&check(&ask));
        let asked = questions(&mut test);
        let held = asked.iter().map(|(_, request)| match request {
            LimitRequest::Check { hold, .. } => hold.unwrap(),
            other => panic!("{other:?}"),
        });
        let held: Vec<_> = held.collect();
        assert_ne!(held[0], held[1]);
        answers(&mut test, asked[0].0, verdict(true, 1));
        answers(&mut test, asked[1].0, verdict(false, 0));
        let (id, back) = questions(&mut test).remove(0);
        let (name, exact) = (held[0], false);
        assert_eq!(back, LimitRequest::GiveBack { name, exact });
        match is_given_back {
            true => answers(&mut test, id, verdict(true, 2)),
            // This leader does not know the hits.
            false => {
                let nothing = Ok(Outcome::LimitPart(Box::default()));
                test.gather.own_answered(id, nothing, test.now);
            }
        }
        let reply = reply_of(&mut test);
        let left = reply.descriptors.iter();
        let mut left: Vec<_> = left.map(|it| (it.allowed, it.remaining.unwrap())).collect();
        left.sort();
        let expected = if is_given_back { 2 } else { 1 };
        assert_eq!(left, [(false, 0), (true, expected)]);
        assert!(questions(&mut test).is_empty(), "it is asked once");
    }
}

/// The caller does not wait for long, and the leader can give back later.
#[test]
fn a_refusal_does_not_wait_for_long_until_hits_are_given_back() {
    let mut test = leader(0..SHARDS);
    test.take(&check(&Check::new(apart())));
    let asked = questions(&mut test);
    answers(&mut test, asked[0].0, verdict(true, 1));
    answers(&mut test, asked[1].0, verdict(false, 0));
    assert_eq!(questions(&mut test).len(), 1);
    assert!(test.replies.is_empty());
    test.pass(GIVE_BACK_US);
    assert!(!reply_of(&mut test).allowed);
}

#[test]
fn an_error_gives_back_what_another_part_has_counted() {
    let mut test = leader(0..SHARDS);
    test.take(&check(&Check::new(apart())));
    let asked = questions(&mut test);
    answers(&mut test, asked[0].0, verdict(true, 1));
    test.gather.not_taken(asked[1].0, test.now);
    let (id, back) = questions(&mut test).remove(0);
    assert!(matches!(back, LimitRequest::GiveBack { .. }));
    answers(&mut test, id, verdict(true, 2));
    assert_eq!(test.reply(), Err(overloaded()));
}

#[test]
fn parts_that_have_counted_are_not_asked_again_when_another_knows_other_rules() {
    let mut test = leader(0..SHARDS);
    test.take(&check(&Check::new(apart())));
    let asked = questions(&mut test);
    answers(&mut test, asked[0].0, verdict(true, 1));
    let other = ApiError::new(OTHER_RULES, "");
    test.gather.own_answered(asked[1].0, Err(other), test.now);
    assert!(questions(&mut test).is_empty());
    test.pass(LEARNING_US);
    let again = questions(&mut test);
    assert_eq!(again.len(), 1);
    answers(&mut test, again[0].0, verdict(true, 4));
    assert!(reply_of(&mut test).allowed);
}

#[test]
fn a_refusal_by_former_rules_says_nothing() {
    let part = |exact| {
        let home = Home {
            shard: 1,
            exact,
            quota: false,
        };
        Part::new((home, vec![b"k".to_vec()]))
    };
    let refused = PartAnswer::new(part_reply(&[verdict(false, 0)]), false);
    let answered = Answered::from([(part(false), refused)]);
    let refuses = |exact| refuses_already(&vec![(part(exact), vec![0])], &answered);
    assert!(refuses(false));
    // The rules have made the limit exact meanwhile: what it says now has yet to be asked.
    assert!(!refuses(true));
}

/// `test` has the words of a rule for each descriptor.
#[test]
fn the_largest_answer_to_a_check_fits_a_message() {
    let limit = "rate_limit: {unit: minute, requests_per_unit: 5}";
    let value = r"\x01".repeat(1_024);
    let text = format!("domain: shop\ndescriptors:\n  - {{key: a, value: \"{value}\", {limit}}}\n");
    let (_, rules) = read_one(&text).unwrap();
    let (path, rule) = rules.rules().remove(0);
    let descriptor = DescriptorReply {
        allowed: false,
        limit: Some(u32::MAX),
        unit: Some("minute".to_owned()),
        burst: Some(u32::MAX),
        name: Some("\u{1}".repeat(RULE_NAME_BYTES_MAX)),
        remaining: Some(u32::MAX),
        reset_ms: Some(NUMBER_MAX),
        retry_after_ms: Some(NUMBER_MAX),
        delay_ms: Some(NUMBER_MAX),
        shadow: true,
        quota: true,
        untracked: true,
        rule: Some(in_words(&path, rule)),
        ..DescriptorReply::default()
    };
    let reply = CheckReply {
        descriptors: vec![descriptor; DESCRIPTORS_MAX],
        ..CheckReply::default()
    };
    let bytes = json_bytes(&reply);
    assert!(
        (50_000..MAX_PAYLOAD_MIN - 1_024).contains(&bytes),
        "{bytes}"
    );
}

#[test]
fn pages_of_two_versions_make_no_whole() {
    let page = |version| DomainReply {
        domain: shop(),
        version,
        at_ms: 0,
        by: String::new(),
        reason: String::new(),
        rules_total: 2,
        rules: vec!["a rule".to_owned()],
        text: None,
        next: Some(1),
    };
    let mut whole = page(3);
    assert!(!whole.append(page(4)));
    assert_eq!(whole, page(3));
    assert!(whole.append(page(3)) && whole.rules.len() == 2);
}
