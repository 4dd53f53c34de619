#![allow(clippy::unwrap_used)]

use nowserving_protocol::limits::Entry;
use nowserving_shard::limits::DomainRules;

use super::rules::read_one;
use super::*;

const TEXT: &str = "
domain: shop
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 5, name: by_ip}}
  - {key: id, rate_limit: {unit: day, requests_per_unit: 5, exact: true}}
  - {key: free, rate_limit: {unlimited: true}}
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

fn verdict(allowed: bool, remaining: u32) -> Verdict {
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
    let made = reply(&matched, &verdicts, false);
    assert!(!made.allowed && !made.unmatched);
    assert_eq!((made.limit, made.remaining), (Some(5), Some(0)));
    assert_eq!((made.reset_ms, made.retry_after_ms), (Some(2), Some(3)));
    let [first, none, second, free] = &made.descriptors[..] else {
        panic!("{made:?}")
    };
    assert!(first.allowed && !second.allowed && none.unmatched && free.unlimited);
    assert_eq!(first.name.as_deref(), Some("by_ip"));
    assert_eq!(first.unit.as_deref(), Some("minute"));
    let nothing = reply(&matched[1..2], &[None], true);
    assert!(nothing.allowed && nothing.limit.is_none());
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
    assert!(parts.keys().all(|(shard, _)| *shard < 4));
    let exact: Vec<_> = parts.iter().filter(|((_, exact), _)| *exact).collect();
    assert_eq!(exact.len(), 1);
    assert_eq!(*exact[0].1, [16]);
    for ((shard, _), places) in &parts {
        for place in places {
            let Matched::Limited { key, .. } = &matched[*place] else {
                panic!("{place}")
            };
            assert_eq!(home_of(key, 4), *shard);
        }
    }
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
}
