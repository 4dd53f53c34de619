#![allow(clippy::unwrap_used)]

use nowserving_front::limits::{KnownDomain, read_one};
use nowserving_limit::RULE_NAME_BYTES_MAX;
use nowserving_line::NUMBER_MAX;
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_protocol::limits::{
    COUNTER_KEY_BYTES_MAX, DESCRIPTORS_MAX, Descriptor, DomainReply, Entry, counter_key_bytes,
    limit_shard_of,
};
use nowserving_protocol::page::json_bytes;
use nowserving_shard::limits::DomainRules;

use nowserving_engine::{Ask, Input, LimitRequest, Outcome, ReplyTo, Subscription, Via};

use super::super::testing::TestService;
use super::own::OwnPart;
use super::*;

const TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5, name: by_ip}}
  - {key: id, rate_limit: {unit: day, requests_per_unit: 5, exact: true}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 5}}
";

pub(in super::super) fn known() -> KnownDomain {
    let (_, rules) = read_one(TEXT).unwrap();
    KnownDomain {
        of: DomainRules {
            version: 1,
            text: TEXT.into(),
            at_ms: 0,
            by: String::new(),
            reason: String::new(),
        },
        rules,
    }
}

pub(in super::super) fn shop() -> LineName {
    LineName::try_from("shop").unwrap()
}

fn descriptors(all: &[(&str, &str)]) -> Vec<Descriptor> {
    let entry = |(key, value): &(&str, &str)| vec![Entry::new(*key, *value)];
    all.iter().map(entry).collect()
}

pub(super) fn verdict(allowed: bool, remaining: u32) -> Verdict {
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
    let entries = entries(&asked);
    let matched = resolve(&known, &shop(), &entries).unwrap();
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
    explain(&mut made, &matched, (&shop(), &known.rules), &entries);
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
    let entries = entries(&asked);
    let matched = resolve(&known, &shop(), &entries).unwrap();
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
    let entries = entries(&asked);
    let matched = resolve(&known, &shop(), &entries).unwrap();
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
    let call = call(Instant::now());
    let home = Home {
        shard: 1,
        exact: true,
        quota: false,
    };
    let part = |keys: &[&[u8]]| (home, keys.iter().map(|key| key.to_vec()).collect());
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
    assert_ne!(back(&again), back(&self::call(Instant::now())));
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
        let part = nowserving_shard::limits::part_reply(&verdicts);
        Answered::from([((home, Vec::new()), PartAnswer::new(part, ask))])
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
    let part = PartReply::default();
    assert!(place(&mut verdicts, &[1], &part).is_err());
    let one = nowserving_shard::limits::part_reply(&[verdict(true, 1)]);
    place(&mut verdicts, &[1], &one).unwrap();
    assert_eq!(verdicts, [None, Some(verdict(true, 1))]);
}

#[test]
fn the_keys_of_a_part_tell_it_from_another() {
    let known = known();
    let asked = descriptors(&[("ip", "a"), ("ip", "b"), ("free", "y")]);
    let entries = entries(&asked);
    let matched = resolve(&known, &shop(), &entries).unwrap();
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
        let entries = entries(&asked);
        let matched = resolve(&known, &shop(), &entries).unwrap();
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

fn call(until: Instant) -> Call {
    Call {
        id: 7,
        once: 8,
        times: Times::until(until),
        note: None,
    }
}

#[tokio::test]
async fn a_node_that_is_cut_off_does_not_say_that_there_is_no_limit() {
    let test = TestService::start(1).await;
    let limits = test.service.limits.clone();
    let ask = Check::new(descriptors(&[("ip", "a")]));
    let (over, long) = (Instant::now(), Instant::now() + Duration::from_secs(60));
    let leader = Subscription::Leader { term: 1 };
    for (subscriptions, is_cut_off) in [
        (BTreeMap::new(), false),
        ([(0, Subscription::No)].into(), false),
        ([(0, leader)].into(), false),
        ([(0, Subscription::Leaderless), (3, leader)].into(), false),
        ([(0, Subscription::Leaderless)].into(), true),
    ] {
        test.subscriptions.send_replace(subscriptions);
        let checked = limits.check(&shop(), &ask, &call(over), false).await;
        match is_cut_off {
            true => assert_eq!(checked, Err(unavailable())),
            false => assert!(checked.unwrap().unmatched),
        }
    }
    let asking = tokio::spawn(async move {
        let checked = limits.check(&shop(), &ask, &call(long), false).await;
        checked.unwrap().unmatched
    });
    tokio::task::yield_now().await;
    test.subscriptions
        .send_replace([(0, Subscription::No)].into());
    assert!(asking.await.unwrap());
}

pub(super) fn message(subject: &str) -> Message {
    Message {
        subject: subject.into(),
        reply: Some("_INBOX.1".into()),
        payload: Vec::new().into(),
        headers: None,
        status: None,
        description: None,
        length: 0,
    }
}

fn part() -> OwnPart {
    let (known, domain) = (known(), shop());
    let ask = Check {
        hits: Some(3),
        ..Check::new(descriptors(&[("ip", "a")]))
    };
    let entries = entries(&ask.descriptors);
    let matched = resolve(&known, &domain, &entries).unwrap();
    OwnPart {
        shard: 2,
        request: LimitRequest::Check {
            asks: asks_of(&matched, &[0], &ask),
            dry_run: false,
            hold: None,
        },
        domain,
    }
}

#[tokio::test]
async fn a_node_asks_itself_about_shards_that_it_leads() {
    let test = TestService::start(1).await;
    let own = test.service.limits.own.clone();
    assert!(!own.leads(2));
    let leader = Subscription::Leader { term: 1 };
    test.subscriptions.send_replace([(2, leader)].into());
    assert!(own.leads(2) && !own.leads(1));

    let until = Instant::now() + Duration::from_secs(60);
    let asked = tokio::spawn(async move { own.ask(part(), until).await });
    let Input::Request { request, delivery } = test.next_input().await else {
        panic!("not a request");
    };
    assert_eq!((request.shard, delivery.via), (2, Via::Forwarded));
    let Ask::Limit(ask) = &request.ask else {
        panic!("not about limits");
    };
    assert!(
        matches!(&**ask, LimitRequest::Check { asks, dry_run: false, hold: None } if asks[0].hits == 3)
    );
    let reply = PartReply::default();
    let outcome = Ok(Outcome::LimitPart(Box::new(reply.clone())));
    test.service.responder.answer(&request.reply, outcome).await;
    assert_eq!(asked.await.unwrap(), Some(Ok(reply)));
}

#[tokio::test]
async fn without_room_a_node_refuses_itself_at_once() {
    let test = TestService::start(1).await;
    let own = test.service.limits.own.clone();
    let until = Instant::now() + Duration::from_secs(60);
    let waiting = own.clone();
    let first = tokio::spawn(async move { waiting.ask(part(), until).await });
    while test.inbox.is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(own.ask(part(), until).await, Some(Err(overloaded())));
    first.abort();
}

/// The next question that this node asks itself, for whose answer it waits.
async fn next_limit(test: &TestService) -> (ReplyTo, LimitRequest) {
    let Input::Request { request, .. } = test.next_input().await else {
        panic!("not a request");
    };
    let Ask::Limit(ask) = request.ask else {
        panic!("not about limits");
    };
    (request.reply, *ask)
}

async fn answers(test: &TestService, reply: &ReplyTo, verdict: Verdict) {
    let part = nowserving_shard::limits::part_reply(&[verdict]);
    let outcome = Ok(Outcome::LimitPart(Box::new(part)));
    test.service.responder.answer(reply, outcome).await;
}

/// Two descriptors whose counters are in two shards.
fn apart(shards: u32) -> Vec<Descriptor> {
    let of = |value: &str| descriptors(&[("ip", value)]);
    let shard = |value: &str| limit_shard_of(&shop(), &of(value)[0], shards);
    let mut others = (0..100).map(|nth| nth.to_string());
    let other = others.find(|it| shard(it) != shard("a")).unwrap();
    [of("a"), of(&other)].concat()
}

#[tokio::test]
async fn a_check_that_one_shard_refuses_gives_back_what_the_other_counted_and_once() {
    let test = TestService::start(8).await;
    let limits = test.service.limits.clone();
    let leader = Subscription::Leader { term: 1 };
    let leads = (0..limits.shards).map(|shard| (shard, leader));
    test.subscriptions.send_replace(leads.collect());
    let ask = Check::new(apart(limits.shards));
    for is_given_back in [true, false] {
        let (limits, ask) = (limits.clone(), ask.clone());
        let asked = tokio::spawn(async move {
            let known = self::known();
            let entries = entries(&ask.descriptors);
            let matched = resolve(&known, &shop(), &entries).unwrap();
            assert_eq!(parts_of(&matched, limits.shards).len(), 2);
            let call = call(Instant::now() + Duration::from_secs(60));
            let mut answered = Answered::new();
            let domain = shop();
            let verdicts = limits.ask_parts(&matched, &domain, &ask, &call, &mut answered);
            let verdicts = verdicts.await.unwrap();
            let counted = answered.values().any(|it| it.counted);
            (verdicts, counted)
        });
        let (first, second) = (next_limit(&test).await, next_limit(&test).await);
        let held = |request: &LimitRequest| match request {
            LimitRequest::Check { hold, .. } => hold.unwrap(),
            other => panic!("{other:?}"),
        };
        assert_ne!(held(&first.1), held(&second.1));
        answers(&test, &first.0, verdict(true, 1)).await;
        answers(&test, &second.0, verdict(false, 0)).await;
        let (reply, back) = next_limit(&test).await;
        let name = held(&first.1);
        assert_eq!(back, LimitRequest::GiveBack { name, exact: false });
        match is_given_back {
            true => answers(&test, &reply, verdict(true, 2)).await,
            // This leader does not know the hits.
            false => {
                let nothing = Ok(Outcome::LimitPart(Box::default()));
                test.service.responder.answer(&reply, nothing).await;
            }
        }
        let (verdicts, counted) = asked.await.unwrap();
        let mut left: Vec<_> = verdicts
            .iter()
            .flatten()
            .map(|it| (it.answer.allowed, it.answer.remaining))
            .collect();
        left.sort();
        let expected = if is_given_back { 2 } else { 1 };
        assert_eq!(left, [(false, 0), (true, expected)]);
        assert_eq!(counted, !is_given_back);
        assert!(test.inbox.is_empty(), "it is asked once");
    }
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
