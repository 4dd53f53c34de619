#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_engine::{Inbox, ShardDelivery};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::limits::Entry;

use super::*;
use crate::testing::{known, shop};

const SHARDS: u32 = 4;

fn rules() -> KnownRules {
    KnownRules {
        domains: BTreeMap::from([(shop(), Arc::new(known()))]),
        version: 1,
    }
}

fn read(op: &'static str, shard: u32, body: &impl serde::Serialize) -> Result<Ask, ApiError> {
    let (domain, rules) = (shop(), rules());
    let asked = Asked {
        op,
        domain: &domain,
        shard,
        shards: SHARDS,
        rules: Some(&rules),
        named: None,
    };
    let mut reply = ReplyTo {
        inbox: Inbox::None,
        format: Format::Json,
        op: "unknown",
        admin: false,
        pass: false,
        taken: 0,
        trace: None,
    };
    asked.read(&encode(body, Format::MsgPack), &mut reply)
}

fn check(key: &str) -> Check {
    Check::new(vec![vec![Entry::new(key, "a")]])
}

/// The shard that takes it; all others must not.
fn home(op: &'static str, body: &Check) -> Option<u32> {
    let taken = (0..SHARDS).filter(|shard| match read(op, *shard, body) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.code, OTHER_RULES, "{error}");
            false
        }
    });
    let taken: Vec<u32> = taken.collect();
    assert!(taken.len() <= 1, "{taken:?}");
    taken.first().copied()
}

#[test]
fn only_the_counters_of_the_shard_and_of_the_kind_are_asked() {
    assert!(home("limit_check", &check("ip")).is_some());
    assert!(home("limit_exact", &check("id")).is_some());
    for (op, key) in [
        ("limit_check", "id"),
        ("limit_exact", "ip"),
        ("limit_check", "free"),
        ("limit_check", "none"),
    ] {
        assert_eq!(home(op, &check(key)), None, "{op} {key}");
    }
    let shard = home("limit_check", &check("ip")).unwrap();
    let hits = Check {
        hits: Some(3),
        dry_run: true,
        max_delay_ms: Some(1_500),
        ..check("ip")
    };
    let Ok(Ask::Limit(request)) = read("limit_check", shard, &hits) else {
        panic!("refused")
    };
    let LimitRequest::Check {
        asks,
        dry_run,
        hold: None,
    } = *request
    else {
        panic!("{request:?}")
    };
    assert_eq!((asks.len(), asks[0].hits, dry_run), (1, 3, true));
    assert_eq!(asks[0].max_delay_us, Some(1_500_000));
}

#[test]
fn a_reset_says_what_it_forgets_and_who_asks() {
    let reset = |domain: &str| ResetLimit {
        domain: LineName::try_from(domain).unwrap(),
        descriptor: vec![Entry::new("ip", "a")],
        by: Some("ann".into()),
        reason: None,
    };
    let reads = (0..SHARDS).filter_map(|shard| read("limit_reset", shard, &reset("shop")).ok());
    let reads: Vec<Ask> = reads.collect();
    let [Ask::Limit(request)] = &reads[..] else {
        panic!("{reads:?}")
    };
    let LimitRequest::Command(LimitCommand::Reset(asked)) = request.as_ref() else {
        panic!("{request:?}")
    };
    let said = (&*asked.descriptor, &*asked.by, &*asked.reason);
    assert_eq!(said, ("ip=a", "ann", ""));
    let error = read("limit_reset", 0, &reset("other")).unwrap_err();
    assert!(error.message.starts_with("domain: "), "{error}");
}

#[test]
fn rules_are_in_shard_0_and_valid() {
    let apply = |rules: &str| ApplyRules {
        rules: rules.to_owned(),
        ..ApplyRules::default()
    };
    assert!(read("limit_apply", 0, &apply("domain: shop")).is_ok());
    for (shard, rules, says) in [
        (1, "domain: shop", "subject"),
        (0, "domain: other", "rules: of another domain"),
        (0, "domain: [", "rules: line 2"),
    ] {
        let error = read("limit_apply", shard, &apply(rules)).unwrap_err();
        assert!(error.message.starts_with(says), "{error}");
    }
    assert!(read("limit_stats", 3, &LimitStats::default()).is_ok());
    assert!(read("limit_changes", 3, &ListLimitChanges::default()).is_ok());
}

#[test]
fn only_these_are_about_limits() {
    let shard = Via::Shard(ShardDelivery::Leader);
    assert_eq!(limit_op("limit_exact", false, shard), Some("limit_exact"));
    assert_eq!(limit_op("limit_check", true, Via::Forwarded), None);
    assert_eq!(limit_op("limit_apply", false, shard), None);
    assert_eq!(limit_op("enter", false, shard), None);
}

#[test]
fn hits_in_memory_come_only_where_no_second_node_gets_them() {
    let check = |via| limit_op("limit_check", false, via);
    assert_eq!(check(Via::Forwarded), Some("limit_check"));
    use ShardDelivery::*;
    let shared = [Leader, Leaderless, Draining].map(Via::Shard);
    for via in shared.into_iter().chain([Via::Plain]) {
        assert_eq!(check(via), None, "{via:?}");
    }
}

#[test]
fn a_give_back_names_the_hits_as_the_question_did() {
    let named = RequestId::new("a-name").unwrap();
    let back = GiveBackHits {
        name: named.as_str().to_owned(),
    };
    let name = hits_id(&named, &shop()).key;
    for (op, exact) in [("limit_give_back", false), ("limit_exact_give_back", true)] {
        let Ok(Ask::Limit(request)) = read(op, 0, &back) else {
            panic!("refused")
        };
        assert_eq!(*request, LimitRequest::GiveBack { name, exact });
    }
    let nameless = GiveBackHits {
        name: String::new(),
    };
    assert!(read("limit_give_back", 0, &nameless).is_err());
    // Only the leader that counted gets it.
    let taken = |via| limit_op("limit_give_back", false, via);
    assert_eq!(taken(Via::Forwarded), Some("limit_give_back"));
    let shard = Via::Shard(ShardDelivery::Leader);
    assert_eq!([Via::Plain, shard].map(taken), [None, None]);
    // A write is forwarded with the leader's time, without which it counts as late: it does not go to the subject of forwards.
    let exact = |via| limit_op("limit_exact_give_back", false, via);
    let op = Some("limit_exact_give_back");
    assert_eq!([shard, Via::Plain, Via::Forwarded].map(exact), [op; 3]);
}
