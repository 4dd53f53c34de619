#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use bytes::Bytes;
use nowserving_engine::refusals::unavailable;
use nowserving_engine::{Ask, Inbox, Input, LimitRequest, Request, Subscription};
use nowserving_protocol::codec::Format;
use nowserving_protocol::limits::{CheckReply, limit_shard_of};
use nowserving_protocol::limits::{Descriptor, Entry};

use super::super::super::testing::{SHARDS, Sent, TestService};
use super::super::tests::{known, message, shop, verdict};
use super::*;
use nowserving_front::limits::KnownRules;

const CHECK: &str = r#"{"descriptors": [[{"key": "ip", "value": "a"}]]}"#;

fn rules() -> KnownRules {
    KnownRules {
        domains: BTreeMap::from([(shop(), Arc::new(known()))]),
        version: 1,
    }
}

fn shard_of(key: &str, value: &str) -> u32 {
    let descriptor: Descriptor = vec![Entry::new(key, value)];
    limit_shard_of(&shop(), &descriptor, SHARDS)
}

/// A node with room for one request, that knows the shop's rules and leads the shard of its counter.
async fn leader() -> TestService {
    let test = TestService::start_with(1, rules()).await;
    lead(&test, Subscription::Leader { term: 1 });
    test
}

fn lead(test: &TestService, subscription: Subscription) {
    let shard = shard_of("ip", "a");
    test.subscriptions
        .send_replace([(shard, subscription)].into());
}

fn check(payload: &str) -> Message {
    Message {
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        ..message("nowserving.limit.shop.check")
    }
}

fn requester() -> ReplyTo {
    ReplyTo {
        inbox: Inbox::Subject("_INBOX.1".into()),
        format: Format::Json,
        op: nowserving_protocol::operation::Operation::LimitCheck,
        pass: false,
        taken: monotonic_us(),
        trace: None,
    }
}

async fn asked(test: &TestService) -> Box<Request> {
    match test.next_input().await {
        Input::Request { request, .. } => request,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_check_of_this_node_s_counters_is_answered_by_its_engine() {
    let mut test = leader().await;
    let limits = test.service.limits.clone();
    limits.handle(check(CHECK), requester()).await;
    let request = asked(&test).await;
    let Ask::Limit(ask) = &request.ask else {
        panic!("not about limits")
    };
    assert!(
        matches!(&**ask, LimitRequest::Check { asks, dry_run: false, hold: None } if asks.len() == 1)
    );
    let part = nowserving_shard::limits::part_reply(&[verdict(true, 4)]);
    let outcome = Ok(Outcome::LimitPart(Box::new(part)));
    test.service.responder.answer(&request.reply, outcome).await;
    let published = test.server.next_published().await;
    assert_eq!(published.subject, "_INBOX.1");
    let reply: CheckReply = serde_json::from_value(published.json()).unwrap();
    assert!(reply.allowed);
    assert_eq!((reply.limit, reply.remaining), (Some(5), Some(4)));
}

#[tokio::test]
async fn a_node_that_leads_no_longer_asks_the_leader() {
    let mut test = leader().await;
    let limits = test.service.limits.clone();
    limits.handle(check(CHECK), requester()).await;
    let request = asked(&test).await;
    lead(&test, Subscription::No);
    let refused = Err(unavailable());
    test.service.responder.answer(&request.reply, refused).await;
    let published = loop {
        // It subscribes to the answers of its requests first.
        if let Sent::Publish(published) = test.server.next().await {
            break published;
        }
    };
    let shard = shard_of("ip", "a");
    assert_eq!(
        published.subject,
        format!("nowserving.shard.{shard}.shop.limit_part")
    );
}

#[tokio::test]
async fn a_check_whose_time_is_over_does_not_begin_again() {
    let mut test = leader().await;
    let limits = test.service.limits.clone();
    let long_ago = ReplyTo {
        taken: 0,
        ..requester()
    };
    limits.handle(check(CHECK), long_ago).await;
    let request = asked(&test).await;
    let refused = Err(unavailable());
    test.service.responder.answer(&request.reply, refused).await;
    let published = test.server.next_published().await;
    assert_eq!(published.json()["error"]["code"], "unavailable");
}

#[tokio::test]
async fn only_a_check_of_one_shard_s_counters_that_this_node_leads_goes_the_short_way() {
    let test = leader().await;
    let limits = test.service.limits.clone();
    let takes = |payload: &str| limits.direct(&check(payload), monotonic_us()).is_some();
    let one = |key: &str, value: &str| {
        format!(r#"{{"descriptors": [[{{"key": "{key}", "value": "{value}"}}]]}}"#)
    };
    let elsewhere = (0..)
        .map(|nth: u32| nth.to_string())
        .find(|value| shard_of("ip", value) != shard_of("ip", "a"))
        .unwrap();
    assert!(takes(CHECK));
    assert!(!takes(&one("ip", &elsewhere)), "of another node");
    assert!(!takes(&one("free", "a")), "nothing to ask");
    assert!(!takes(r#"{"descriptors": []}"#), "an error is told");
    let exact = (0..)
        .map(|nth: u32| nth.to_string())
        .find(|value| shard_of("id", value) == shard_of("ip", "a"))
        .unwrap();
    assert!(!takes(&one("id", &exact)), "through the log");
    lead(&test, Subscription::No);
    assert!(!takes(CHECK));
}

#[tokio::test]
async fn without_room_it_is_refused_at_once() {
    let mut test = leader().await;
    let limits = test.service.limits.clone();
    limits.handle(check(CHECK), requester()).await;
    limits.handle(check(CHECK), requester()).await;
    let published = test.server.next_published().await;
    assert_eq!(published.json()["error"]["code"], "overloaded");
    assert_eq!(test.inbox.len(), 1);
}
