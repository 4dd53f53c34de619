#![allow(clippy::unwrap_used)]
//! Without a cluster: what becomes of streams while the line does not answer.

use std::sync::atomic::AtomicUsize;

use axum::body::Bytes;
use http_body_util::BodyExt as _;
use nowserving_client::{Client, ClientOptions, LineName};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::super::outlet::{Events, Place};
use super::*;
use crate::config::{Config, Secret};

struct Scene {
    joins: mpsc::Sender<Join>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Scene {
    async fn new() -> Scene {
        let mut options = ClientOptions::default();
        options.connect_in_background = true;
        // Nobody listens there.
        let client = Client::connect_with("nats://127.0.0.1:1", options)
            .await
            .unwrap();
        let line: LineName = "sale".parse().unwrap();
        let rule = LineRule::new(line.clone());
        let config = Config::new(
            "127.0.0.1:0".parse().unwrap(),
            Secret::from([7; 32]),
            vec![rule.clone()],
        );
        let view = LineView::start(&client, &line, &config);
        let (joins, joined) = mpsc::channel(4);
        let stop = watch::Sender::new(false);
        let streams = LineStreams::new(view, rule, None);
        let task = tokio::spawn(streams.run(joined, stop.subscribe()));
        Scene { joins, stop, task }
    }

    async fn join(&self, status: Option<StatusReply>) -> Events {
        let outlet = Outlet::new(event::retry(), "en");
        let place = Place::take(&std::sync::Arc::new(AtomicUsize::new(0)), 1).unwrap();
        let joined = Join {
            ticket: "ticket".to_owned(),
            status,
            outlet: Arc::clone(&outlet),
        };
        self.joins.send(joined).await.unwrap();
        Events {
            outlet,
            _place: place,
        }
    }
}

fn waiting() -> StatusReply {
    let status = json!({
        "line": "sale", "incarnation": 1, "lane": "normal", "token": 100, "state": "waiting", "admitted_through": 10,
        "position": 9, "ahead": 8, "phase": "open", "held_back_by": {"by": "seats"}, "call_ahead": false,
        "poll_after_ms": 5_000, "version": 10, "at_ms": 1_000,
    });
    serde_json::from_value(status).unwrap()
}

/// What comes next, within a minute of the test's time. None at the end.
async fn next(events: &mut Events) -> Option<String> {
    let frame = timeout(Duration::from_secs(60), events.frame())
        .await
        .unwrap()?;
    let bytes: Bytes = frame.unwrap().into_data().unwrap();
    Some(String::from_utf8(bytes.to_vec()).unwrap())
}

/// The `retry` of the beginning, and the first event.
async fn first(events: &mut Events) -> String {
    let mut first = next(events).await.unwrap();
    if !first.contains("event: ") {
        first += &next(events).await.unwrap();
    }
    first
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_begins_while_the_line_is_away_says_so_beats_and_ends_with_the_gateway() {
    let scene = Scene::new().await;
    let mut events = scene.join(None).await;
    let first = first(&mut events).await;
    assert!(
        first.starts_with("retry: ")
            && first.contains("event: phase\ndata: {\"page\":\"unavailable\""),
        "{first}"
    );
    let began = Instant::now();
    for _ in 0..3 {
        assert_eq!(
            next(&mut events).await.unwrap(),
            "event: beat\ndata: {}\n\n"
        );
    }
    let beats = began.elapsed();
    assert!(
        (Duration::from_secs(42)..=Duration::from_secs(49)).contains(&beats),
        "{beats:?}"
    );
    scene.stop.send_replace(true);
    assert!(next(&mut events).await.unwrap().starts_with("retry: "));
    assert_eq!(next(&mut events).await, None);
    scene.task.await.unwrap();
    assert!(scene.joins.is_closed());
}

#[tokio::test(start_paused = true)]
async fn a_known_place_stays_until_the_line_is_away_for_longer_than_a_change_of_leader() {
    let scene = Scene::new().await;
    let began = Instant::now();
    let mut events = scene.join(Some(waiting())).await;
    let first = first(&mut events).await;
    assert!(
        first.contains("\"page\":\"waiting\"") && first.contains("\"position\":9"),
        "{first}"
    );
    let second = next(&mut events).await.unwrap();
    assert!(second.contains("unavailable"), "{second}");
    let after = began.elapsed();
    assert!(
        (Duration::from_secs(4)..Duration::from_secs(12)).contains(&after),
        "{after:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn visitors_who_have_gone_are_forgotten() {
    let scene = Scene::new().await;
    let mut events = scene.join(Some(waiting())).await;
    next(&mut events).await.unwrap();
    let outlet = Arc::downgrade(&events.outlet);
    drop(events);
    tokio::time::sleep(3 * TICK).await;
    assert!(outlet.upgrade().is_none());
}
