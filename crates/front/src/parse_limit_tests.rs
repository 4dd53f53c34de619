#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use nowserving_engine::{Now, ShardDelivery, Via};
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{Format, encode};
use nowserving_protocol::error::Code;
use nowserving_protocol::limits::Entry;

use super::*;
use crate::limits::KnownRules;
use crate::parse::Reading;
use crate::parse::tests::parser;
use crate::testing::{self, Owned, keys, known, shop};

const SHARDS: u32 = 4;

fn rules() -> KnownRules {
    KnownRules {
        domains: BTreeMap::from([(shop(), Arc::new(known()))]),
        version: 1,
    }
}

fn read(op: Operation, shard: u32, body: &impl serde::Serialize) -> Result<Ask, ApiError> {
    let (domain, rules) = (shop(), rules());
    let reading = Reading {
        via: Via::Shard(ShardDelivery::Leader),
        routed_after: 0,
        now: Now { us: 0, wall_ms: 0 },
        trace: None,
        keys: &keys(),
        rules: Some(&rules),
    };
    let note = OperatorNote {
        by: Some("ann".into()),
        reason: None,
    };
    let body = Body {
        op,
        name: &domain,
        shard: Some(shard),
        shards: SHARDS,
        payload: &encode(body, Format::MsgPack),
        reading: &reading,
        named: None,
        note: Some(&note),
    };
    body.limit_ask().map(|(_, ask)| ask)
}

fn check(key: &str) -> Check {
    Check::new(vec![vec![Entry::new(key, "a")]])
}

/// The shard that takes it; all others must not.
fn home(op: Operation, body: &Check) -> Option<u32> {
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
    assert!(home(Operation::LimitPart, &check("ip")).is_some());
    assert!(home(Operation::LimitExact, &check("id")).is_some());
    for (op, key) in [
        (Operation::LimitPart, "id"),
        (Operation::LimitExact, "ip"),
        (Operation::LimitPart, "free"),
        (Operation::LimitPart, "none"),
    ] {
        assert_eq!(home(op, &check(key)), None, "{op} {key}");
    }
    let shard = home(Operation::LimitPart, &check("ip")).unwrap();
    let hits = Check {
        hits: Some(3),
        dry_run: true,
        max_delay_ms: Some(1_500),
        ..check("ip")
    };
    let Ok(Ask::Limit(request)) = read(Operation::LimitPart, shard, &hits) else {
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
    };
    let reads =
        (0..SHARDS).filter_map(|shard| read(Operation::LimitReset, shard, &reset("shop")).ok());
    let reads: Vec<Ask> = reads.collect();
    let [Ask::Limit(request)] = &reads[..] else {
        panic!("{reads:?}")
    };
    let LimitRequest::Command(LimitCommand::Reset(asked)) = request.as_ref() else {
        panic!("{request:?}")
    };
    let said = (&*asked.descriptor, &*asked.by, &*asked.reason);
    assert_eq!(said, ("ip=a", "ann", ""));
    let error = read(Operation::LimitReset, 0, &reset("other")).unwrap_err();
    assert!(error.message.starts_with("domain: "), "{error}");
}

#[test]
fn rules_are_in_shard_0_and_valid() {
    let apply = |rules: &str| ApplyRules {
        rules: rules.to_owned(),
        ..ApplyRules::default()
    };
    assert!(read(Operation::LimitApply, 0, &apply("domain: shop")).is_ok());
    for (shard, rules, says) in [
        (1, "domain: shop", "subject"),
        (0, "domain: other", "rules: of another domain"),
        (0, "domain: [", "rules: line 2"),
    ] {
        let error = read(Operation::LimitApply, shard, &apply(rules)).unwrap_err();
        assert!(error.message.starts_with(says), "{error}");
    }
    assert!(read(Operation::LimitStats, 3, &LimitStats::default()).is_ok());
    assert!(read(Operation::LimitChanges, 3, &ListLimitChanges::default()).is_ok());
}

#[test]
fn hits_in_memory_come_only_where_no_second_node_gets_them() {
    let parser = parser();
    let read = |subject: &str, op: Operation, via| {
        let message = Owned::new(&format!("{subject}.{op}"), br#"{"name": "n"}"#.to_vec());
        let read = testing::read(&parser, &message, via);
        read.map(drop).map_err(|refused| refused.error.message)
    };
    let forwarded = "nowserving.forward.shard.3.shop";
    for op in [Operation::LimitGiveBack, Operation::LimitExactGiveBack] {
        assert_eq!(read(forwarded, op, Via::Forwarded), Ok(()));
    }
    use ShardDelivery::*;
    for via in [Leader, Leaderless, Draining].map(Via::Shard) {
        let own = "nowserving.shard.3.shop";
        assert_eq!(read(own, Operation::LimitExactGiveBack, via), Ok(()));
        for op in [
            Operation::LimitGiveBack,
            Operation::LimitPart,
            Operation::LimitApply,
        ] {
            let refused = read(own, op, via).unwrap_err();
            assert!(refused.starts_with("op: "), "{op}: {refused}");
        }
    }
}

/// On a shard's own subject the leader has a copy, which it may execute.
#[test]
fn a_write_by_unknown_rules_is_refused_as_done_by_nobody_only_if_nobody_else_can_do_it() {
    use ShardDelivery::*;
    let parser = parser();
    let own = "nowserving.shard.3.shop.limit_exact";
    let forwarded = "nowserving.forward.shard.3.shop.limit_exact";
    for (subject, via, code) in [
        (own, Via::Shard(Leader), OTHER_RULES),
        (own, Via::Shard(Leaderless), Code::OutcomeUnknown),
        (own, Via::Shard(Draining), Code::OutcomeUnknown),
        (forwarded, Via::Forwarded, Code::OutcomeUnknown),
    ] {
        for (dry_run, code) in [(false, code), (true, OTHER_RULES)] {
            let check = Check {
                dry_run,
                ..check("id")
            };
            let message = Owned::new(subject, encode(&check, Format::MsgPack));
            let refused = testing::read(&parser, &message, via).unwrap_err();
            assert_eq!(refused.error.code, code, "{via:?}, {dry_run}");
        }
    }
}

#[test]
fn a_give_back_names_the_hits_as_the_question_did() {
    let named = RequestId::new("a-name").unwrap();
    let back = GiveBackHits {
        name: named.as_str().to_owned(),
    };
    let name = hits_id(&named, &shop()).key;
    for (op, exact) in [
        (Operation::LimitGiveBack, false),
        (Operation::LimitExactGiveBack, true),
    ] {
        let Ok(Ask::Limit(request)) = read(op, 0, &back) else {
            panic!("refused")
        };
        assert_eq!(*request, LimitRequest::GiveBack { name, exact });
    }
    let nameless = GiveBackHits {
        name: String::new(),
    };
    assert!(read(Operation::LimitGiveBack, 0, &nameless).is_err());
}
