//! The SDK over a real nats-server, against a node that is played by the test.
#![allow(clippy::unwrap_used)]

mod stage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use nowserving_client::{AnyEvent, Client, ClientOptions, Code, Kind, State};
use serde_json::json;
use stage::{Stage, board, status, timeout};

/// Its calls outlast a machine that stands still for some seconds.
async fn client(stage: &Stage) -> Client {
    Client::connect(&stage.url())
        .await
        .unwrap()
        .with_deadline(Duration::from_secs(15))
}

#[tokio::test]
async fn requests_go_to_the_leader_with_a_deadline_and_a_key() {
    let stage = Stage::open();
    let node = stage.node(Some(16), |_, _| Ok(status(18, 8, 100)));
    node.listens().await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let (line, first) = loop {
        let before = node.seen().len();
        let client = client(&stage).await;
        let line = client.line("shop-1").unwrap();
        let answer = timeout(line.enter_with(None, None)).await.unwrap();
        assert_eq!((answer.token, answer.position), (18, Some(8)));
        let first = node.seen()[before].clone();
        // 7 = FNV-1a-32("shop-1") mod 16
        if first.subject == "nowserving.shard.7.shop-1.enter" {
            break (line, first);
        }
        // On a slow machine discovery may have been given up, and then any node is asked.
        assert_eq!(first.subject, "nowserving.line.shop-1.enter");
        assert!(Instant::now() < deadline, "never to the leader");
    };
    assert!(first.body["key"].as_str().unwrap().starts_with("sdk-"));
    assert_eq!(first.timeout_ms, 2_000);
    let again = timeout(line.enter("order-1")).await.unwrap();
    assert_eq!(again.state, State::Waiting);
    assert_eq!(node.seen().last().unwrap().body["key"], "order-1");
}

#[tokio::test]
async fn without_discovery_any_node_is_asked() {
    let stage = Stage::open();
    let node = stage.node(None, |_, _| Ok(status(18, 8, 100)));
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    timeout(line.status("T")).await.unwrap();
    assert_eq!(node.seen()[0].subject, "nowserving.line.shop-1.status");
}

#[tokio::test]
async fn a_shard_without_a_leader_is_reached_over_any_node() {
    let stage = Stage::open();
    let node = stage.node(Some(16), |_, _| Ok(status(18, 8, 100)));
    node.listens().await;
    // Of another shard than the one this node leads.
    let line = client(&stage).await.line("shop-2").unwrap();
    timeout(line.enter("k")).await.unwrap();
    assert_eq!(node.seen()[0].subject, "nowserving.line.shop-2.enter");
}

#[tokio::test]
async fn refusals_are_final_and_typed() {
    let stage = Stage::open();
    let node = stage.node(None, |_, _| Err((Code::LineFull, Some(3_000))));
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    let error = timeout(line.enter("k")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Refused(Code::LineFull));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    assert_eq!(node.seen().len(), 1);
}

#[tokio::test]
async fn a_retry_carries_the_same_key_and_id() {
    let stage = Stage::open();
    let node = stage.node(None, |count, _| match count {
        0 => Err((Code::OutcomeUnknown, None)),
        1 => Err((Code::Unavailable, None)),
        _ => Ok(status(18, 8, 100)),
    });
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    timeout(line.enter_with(None, None)).await.unwrap();
    let seen = node.seen();
    assert_eq!(seen.len(), 3);
    assert!(
        seen.iter()
            .all(|one| one.body["key"] == seen[0].body["key"])
    );
    assert!(seen[0].request_id.is_some());
    assert!(seen.iter().all(|one| one.request_id == seen[0].request_id));
}

#[tokio::test]
async fn a_write_says_when_each_of_its_attempts_is_sent() {
    fn now_ms() -> u64 {
        let now = std::time::SystemTime::now();
        let since_1970 = now.duration_since(std::time::UNIX_EPOCH).unwrap();
        since_1970.as_millis().try_into().unwrap()
    }
    let stage = Stage::open();
    let node = stage.node(None, |count, _| match count {
        0 => Err((Code::Overloaded, Some(50))),
        _ => Ok(status(18, 8, 100)),
    });
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    let begin = now_ms();
    timeout(line.claim("T")).await.unwrap();
    timeout(line.status("T")).await.unwrap();
    let seen = node.seen();
    let sent: Vec<u64> = seen[..2].iter().map(|one| one.sent_ms.unwrap()).collect();
    assert!(begin <= sent[0] && sent[1] <= now_ms(), "{begin} {sent:?}");
    assert!(sent[1] >= sent[0] + 50, "{sent:?}");
    assert_eq!((seen[2].sent_ms, &seen[2].request_id), (None, &None));
}

#[tokio::test]
async fn nobody_there_is_unavailable_by_the_deadline() {
    let stage = Stage::open();
    let hasty = client(&stage)
        .await
        .with_deadline(Duration::from_millis(500));
    let line = hasty.line("shop-1").unwrap();
    let begin = Instant::now();
    let error = timeout(line.enter("k")).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    // Far below the time that a client takes which ignores the deadline, on a slow machine too.
    let without = ClientOptions::default().deadline;
    assert!(begin.elapsed() < without, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_watcher_sees_each_board_once_and_every_gap() {
    let stage = Stage::open();
    let node = stage.node(None, |_, _| Ok(stage::info(100)));
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    let mut boards = line.watch();
    let first = timeout(boards.next()).await.unwrap().unwrap();
    assert_eq!((first.board.version, first.gap), (100, false));

    for (version, prev_version) in [(101, 100), (101, 100), (99, 98), (103, 101), (110, 107)] {
        node.publish(board(version, prev_version, 10, json!([[15, 15]])))
            .await;
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        let update = timeout(boards.next()).await.unwrap().unwrap();
        let holes = update.board.lanes[0].holes.is_some();
        seen.push((update.board.version, update.gap, holes));
    }
    assert_eq!(
        seen,
        [(101, false, true), (103, false, true), (110, true, false)]
    );
}

#[tokio::test]
async fn a_deleted_line_ends_the_watch() {
    let stage = Stage::open();
    let node = stage.node(None, |count, _| match count {
        0 => Ok(stage::info(100)),
        _ => Err((Code::LineNotFound, None)),
    });
    node.listens().await;
    let mut boards = client(&stage).await.line("shop-1").unwrap().watch();
    timeout(boards.next()).await.unwrap().unwrap();
    node.publish_to("line", stage::line_event("deleted")).await;
    let error = timeout(boards.next()).await.unwrap().unwrap_err();
    assert_eq!(error.code(), Some(Code::LineNotFound));
    assert!(timeout(boards.next()).await.is_none());
}

#[tokio::test]
async fn after_a_lost_connection_the_watch_is_made_whole() {
    let mut stage = Stage::open();
    let version = Arc::new(std::sync::atomic::AtomicU64::new(100));
    let now = Arc::clone(&version);
    let node = stage.node(None, move |_, _| {
        Ok(stage::info(now.load(std::sync::atomic::Ordering::SeqCst)))
    });
    node.listens().await;
    let mut boards = client(&stage).await.line("shop-1").unwrap().watch();
    timeout(boards.next()).await.unwrap().unwrap();
    version.store(120, std::sync::atomic::Ordering::SeqCst);
    stage.restart().await;
    // Nothing is published: the watcher asks by itself once it is back.
    let update = loop {
        match timeout(boards.next()).await.unwrap() {
            Ok(update) => break update,
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
    };
    assert_eq!((update.board.version, update.gap), (120, true));
    // And receives boards again.
    node.listens().await;
    node.publish(board(121, 120, 10, json!([]))).await;
    let update = timeout(boards.next()).await.unwrap().unwrap();
    assert_eq!((update.board.version, update.gap), (121, false));
}

#[tokio::test]
async fn a_place_is_followed_from_boards_alone() {
    let stage = Stage::open();
    let node = stage.node(None, |count, body| match count {
        0 => {
            assert_eq!(body["holes"], true);
            Ok(status(18, 8, 100))
        }
        1 => Ok(stage::admitted(18, 140)),
        _ => Ok(stage::gone(18, 150)),
    });
    node.listens().await;
    let mut place = client(&stage).await.line("shop-1").unwrap().track("T");
    let mut positions = Vec::new();
    let first = timeout(place.next()).await.unwrap().unwrap();
    positions.push(first.position);
    node.publish(board(101, 100, 10, json!([[15, 15]]))).await;
    node.publish(board(103, 101, 12, json!([]))).await;
    for _ in 0..2 {
        positions.push(timeout(place.next()).await.unwrap().unwrap().position);
    }
    assert_eq!(positions, [Some(8), Some(7), Some(5)]);
    assert_eq!(node.seen().len(), 1, "no poll was needed for that");

    node.publish(board(140, 103, 18, json!([]))).await;
    let admitted = timeout(place.next()).await.unwrap().unwrap();
    assert_eq!(admitted.state, State::Admitted);
    let gone = timeout(place.next()).await.unwrap().unwrap();
    assert_eq!(
        (gone.state, gone.reason.as_deref()),
        (State::Gone, Some("no_show"))
    );
    assert!(timeout(place.next()).await.is_none());
}

#[tokio::test]
async fn watchers_of_a_line_share_a_subscription() {
    let stage = Stage::open();
    let node = stage.node(None, |_, _| Ok(stage::info(100)));
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    let before = node.subscribers().await;
    let mut watchers: Vec<_> = (0..20).map(|_| line.watch()).collect();
    for watcher in &mut watchers {
        timeout(watcher.next()).await.unwrap().unwrap();
    }
    // Boards, line events; and the inbox for all answers.
    assert!(node.subscribers().await - before <= 3);
    node.publish(board(101, 100, 10, json!([]))).await;
    for watcher in &mut watchers {
        assert_eq!(
            timeout(watcher.next())
                .await
                .unwrap()
                .unwrap()
                .board
                .version,
            101
        );
    }
    drop(watchers);
    for _ in 0..200 {
        if node.subscribers().await <= before + 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("nobody watches, and the subscription is still there");
}

#[tokio::test]
async fn all_events_of_a_line_are_one_stream_that_says_when_some_are_missing() {
    let mut stage = Stage::open();
    let node = stage.node(None, |_, _| Ok(stage::info(100)));
    node.listens().await;
    let line = client(&stage).await.line("shop-1").unwrap();
    let mut events = timeout(line.all_events()).await.unwrap();
    // The server has the subscriptions once it has answered what was sent after them.
    timeout(line.info()).await.unwrap();
    let whole = {
        let mut whole = board(101, 100, 10, json!([[12, 13]]));
        whole["whole"] = json!(true);
        whole
    };
    node.publish(whole).await;
    let AnyEvent::Board(event) = timeout(events.next()).await.unwrap().unwrap() else {
        panic!("a board was published");
    };
    assert!(event.whole);
    assert_eq!(event.board.lanes[0].holes, Some(vec![[12, 13]]));
    let of_token = json!({
        "line": "shop-1", "incarnation": 7, "version": 102, "prev_version": 99, "at_ms": 1, "event": "gone",
        "lane": "normal", "token": 12, "reason": "left",
    });
    // A copy, too.
    for _ in 0..2 {
        node.publish_to("token.normal.12", of_token.clone()).await;
        let event = timeout(events.next()).await.unwrap().unwrap();
        assert!(matches!(event, AnyEvent::Token(event) if event.token == 12));
    }
    let of_line = json!({
        "line": "shop-1", "incarnation": 7, "version": 103, "prev_version": 90, "at_ms": 1, "event": "phase",
        "phase": "paused",
    });
    node.publish_to("line", of_line).await;
    let event = timeout(events.next()).await.unwrap().unwrap();
    assert!(matches!(event, AnyEvent::Line(event) if event.event == "phase"));
    stage.restart().await;
    assert_eq!(
        timeout(events.next()).await.unwrap().unwrap(),
        AnyEvent::Missed
    );
}

#[tokio::test]
async fn another_prefix_is_another_cluster() {
    let stage = Stage::open();
    let node = stage.node(Some(16), |_, _| Ok(status(18, 8, 100)));
    node.listens().await;
    let mut options = ClientOptions::default();
    options.prefix = "other".to_owned();
    options.deadline = Duration::from_millis(500);
    let client = Client::connect_with(&stage.url(), options).await.unwrap();
    let error = timeout(client.line("shop-1").unwrap().info())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(node.seen().is_empty());
}
