//! Made-up clusters for tests and for the pictures in the docs.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use nowserving_client::{ClusterStatus, LineReply, LineSummary};
use serde_json::json;

use super::lines::Sort;
use super::model::{LookedInto, Model, Refresh, TokensPage, Update};
use super::pace::Detail;

/// 12:00 of a day, on the wall clock of the nodes.
const NOON_MS: u64 = 1_794_484_800_000;
/// Between the refreshes of a scene.
const EVERY: Duration = Duration::from_secs(2);

pub fn summary(name: &str, phase: &str, seats: u64, waiting: u64) -> LineSummary {
    let in_checkout = if waiting > 0 {
        seats - seats / 10
    } else {
        seats / 3
    };
    serde_json::from_value(json!({
        "line": name, "incarnation": 1, "version": 4_711 + waiting, "phase": phase,
        "seats": seats, "queue_limit": 20_000, "waiting": waiting,
        "admitted": seats / 10, "in_checkout": in_checkout, "labels": {"city": "Taipei"}
    }))
    .unwrap()
}

pub fn detail(name: &str, at: Instant) -> Detail {
    detail_of(&summary(name, "open", 10, 15), at, 0)
}

/// After so many refreshes.
fn detail_of(it: &LineSummary, at: Instant, refreshes: u64) -> Detail {
    let held = it.admitted + it.in_checkout;
    let admits = it.phase == "open" || it.phase == "draining";
    let moved = if admits {
        u64::from(it.seats) / 12 * refreshes
    } else {
        0
    };
    let (completed, left, kicked) = (9 * held + moved, it.waiting / 20, 3);
    let issued = it.waiting + held + completed + left + kicked;
    let held_back = match it.phase.as_str() {
        "open" | "draining" if it.waiting == 0 => json!({"by": "nothing"}),
        "open" | "draining" => json!({"by": "seats"}),
        phase => json!({"by": "phase", "phase": phase}),
    };
    let board = json!({
        "line": it.line.as_str(), "incarnation": it.incarnation, "version": it.version,
        "at_ms": NOON_MS, "phase": it.phase, "seats": it.seats, "admitted": it.admitted,
        "in_checkout": it.in_checkout, "lanes": [
            {"lane": "normal", "next_token": issued + 1, "done_through": completed / 2,
             "admitted_through": completed + held, "accepts_through": issued + 900,
             "waiting": it.waiting},
            {"lane": "vip", "next_token": 18, "done_through": 17, "admitted_through": 17,
             "accepts_through": 517, "waiting": 0}]
    });
    let shown: LineReply = serde_json::from_value(json!({
        "line": it.line.as_str(), "incarnation": it.incarnation, "version": it.version,
        "settings_version": 4_000, "created_at_ms": NOON_MS - 7_200_000, "shard": 3, "leader": 1,
        "default_lane": "normal", "held_back_by": held_back,
        "settings": {"seats": it.seats, "queue_limit": it.queue_limit},
        "board": board,
        "counts": {"issued": issued, "waiting": it.waiting, "admitted": it.admitted,
            "in_checkout": it.in_checkout,
            "gone": {"completed": completed, "left": left, "kicked": kicked, "idle": 0},
            "gone_from": {"waiting": {"left": left, "kicked": kicked},
                "in_checkout": {"completed": completed}},
            "refused": {"line_full": it.waiting / 10, "sold_out": 0}}
    }))
    .unwrap();
    let eta_ms = match it.waiting {
        0 => Some(0),
        waiting if admits => Some(waiting * 11_000 / u64::from(it.seats.max(1))),
        _ => None,
    };
    Detail {
        at,
        shown,
        newcomer_eta_ms: eta_ms,
        newcomer_eta_from: None,
    }
}

fn cluster(lines: usize) -> ClusterStatus {
    let shards: Vec<_> = (0..16_u64)
        .map(|shard| {
            json!({"shard": shard, "leader": shard % 3 + 1, "term": 7, "applied": 81_204 + shard,
                "committed": 81_204 + shard, "voters": [1, 2, 3]})
        })
        .collect();
    let node = |id: u64, leads: u64, heard: Option<u64>| {
        json!({"id": id, "alive": true, "leads": leads, "votes_in": 16, "caught_up_in": 16,
            "version": "0.1.0", "last_heard_ms": heard, "metrics_addr": "10.0.0.1:9464"})
    };
    let nodes = [node(1, 6, None), node(2, 5, Some(40)), node(3, 5, Some(65))];
    serde_json::from_value(json!({"cluster": "shop", "lines": lines, "answered_by": 1,
        "nodes": nodes, "shards": shards}))
    .unwrap()
}

fn model_of(list: &[LineSummary], now: Instant) -> Model {
    let mut model = Model::new(Sort::Pressure, "", EVERY);
    for refreshes in 0..2_u32 {
        let at = now - EVERY + EVERY * refreshes;
        let details = list
            .iter()
            .map(|it| detail_of(it, at, u64::from(refreshes)));
        model.take(Update::Refreshed(Box::new(Refresh {
            at,
            cluster: cluster(list.len()),
            list: list.to_vec(),
            more: false,
            details: details.collect(),
            looked_into: None,
        })));
    }
    model
}

/// Nine lines: one of them is paused, one is not open yet, one is full.
pub fn busy_day(now: Instant) -> Model {
    let list = [
        ("tickets-tour-7", "open", 200, 20_018),
        ("sneaker-drop", "paused", 50, 940),
        ("concert-evening", "pre_open", 100, 4_021),
        ("concert-matinee", "draining", 100, 60),
        ("shop-taipei", "open", 50, 311),
        ("shop-tainan", "open", 50, 35),
        ("reports", "open", 24, 120),
        ("clinic-east", "open", 12, 17),
        ("pickup", "open", 30, 0),
    ];
    let list = list.map(|(name, phase, seats, waiting)| summary(name, phase, seats, waiting));
    model_of(&list, now)
}

/// So many lines.
pub fn many(count: u64, now: Instant) -> Model {
    let name = |nth: u64| format!("line-{nth:05}");
    let list: Vec<LineSummary> = (0..count)
        .map(|nth| summary(&name(nth), "open", 10, nth % 97))
        .collect();
    model_of(&list, now)
}

/// The answer to a page of tokens.
pub fn looked_into(name: &str, page: TokensPage) -> LookedInto {
    let waiting = (0..page.limit).map(|nth| {
        json!({"lane": "normal", "token": 2_001 + nth, "key": format!("order-{}", 88_120 + nth * 7),
            "state": if nth < 3 { "in_checkout" } else { "waiting" },
            "entered_at_ms": NOON_MS - 60_000 + nth,
            "position": (nth >= 3).then(|| nth - 2), "turn": (nth >= 3).then(|| nth - 2),
            "last_seen_ms": (nth >= 3).then(|| 400 * nth)})
    });
    let tokens = json!({"line": name, "incarnation": 1, "version": 24_729, "at_ms": NOON_MS,
        "tokens": waiting.collect::<Vec<_>>(), "next": [{"lane": "normal", "token": 2_019}]});
    let journal = json!([
        {"version": 24_729, "at_ms": NOON_MS, "what": "claimed", "lane": "normal", "token": 2_003,
         "epoch": 1, "entered_at_ms": NOON_MS - 61_000},
        {"version": 24_728, "at_ms": NOON_MS - 40, "what": "gone", "lane": "normal",
         "token": 1_987, "reason": "completed", "entered_at_ms": NOON_MS - 90_000},
        {"version": 24_727, "at_ms": NOON_MS - 5_000, "what": "configured", "by": "ann",
         "reason": "the second counter is open until the printer is repaired",
         "changes": [{"setting": "seats", "from": 150, "to": 200}]},
    ]);
    LookedInto {
        line: name.parse().unwrap(),
        page,
        tokens: Ok(serde_json::from_value(tokens).unwrap()),
        journal: Ok(serde_json::from_value(journal).unwrap()),
    }
}
