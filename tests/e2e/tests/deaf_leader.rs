//! Nodes whose service connection is cut while their peers still reach them, and a cluster without
//! a quorum. Without the mapping line here, so plain requests are taken by any node.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use nowserving_e2e::{Api, Cluster, Link, eventually, line_in};
use rustix::process::Signal;
use serde_json::{Value, json};

const IDLE_MS: u64 = 3_000;
const SEAT_MS: u64 = 3_000;
/// More than twice what would throw everybody out.
const CUT: Duration = Duration::from_secs(6);
/// Each request gives up early, so that fifteen fit into `IDLE_MS`: through a silent link NATS
/// goes on giving every third to the deaf node, and what nobody heard cannot be counted.
const POLL_MS: u64 = 150;
const PAUSE_MS: u64 = 50;

/// The leader's service connection is cut, silently and then openly, for much longer than anybody
/// may be silent. All go on asking, and nobody is recycled for what could not be heard.
pub async fn nobody_is_recycled(cluster: &mut Cluster) -> Result<()> {
    let line = "deaf";
    let api = cluster.api();
    let settings = json!({
        "seats": 2, "queue_limit": 100, "waiting_idle_timeout_ms": IDLE_MS,
        "claim_timeout_ms": SEAT_MS, "checkout_timeout_ms": SEAT_MS,
    });
    api.admin(line, "create", settings).await?;
    let mut gone = api
        .subscribe(format!("nowserving.event.{line}.token.>"))
        .await?;
    let mut asks = Vec::new();
    for nth in 0..8 {
        let ticket = api.enter(line, &format!("k{nth}")).await?["ticket"].clone();
        // Two hold seats and renew; the others wait and poll.
        asks.push(if nth < 2 {
            let claimed = api.ok(line, "claim", json!({"ticket": ticket})).await?;
            (
                "renew",
                json!({"ticket": ticket, "epoch": claimed["epoch"]}),
            )
        } else {
            ("status", json!({"ticket": ticket}))
        });
    }
    let leader = cluster.leader_of(line).await?;
    let end = Instant::now() + 2 * CUT + Duration::from_secs(1);
    let polling = asks
        .iter()
        .map(|(op, body)| keep_asking(api, line, op, body, end));
    let cutting = async {
        cluster.set_link(leader, Link::Silent)?;
        tokio::time::sleep(CUT).await;
        cluster.set_link(leader, Link::Up)?;
        // Whoever leads now, perhaps the same.
        let leader = cluster.leader_of(line).await?;
        cluster.set_link(leader, Link::Closed)?;
        tokio::time::sleep_until((end - Duration::from_secs(1)).into()).await;
        cluster.set_link(leader, Link::Up)
    };
    let (answered, ()) = tokio::try_join!(try_join_all(polling), cutting)?;
    eprintln!("answers while the leader was deaf: {answered:?}");

    for (_, body) in &asks {
        let status = api.status(line, &body["ticket"]).await?;
        ensure!(status["state"] != "gone", "recycled: {status}");
    }
    while let Ok(Some(message)) =
        tokio::time::timeout(Duration::from_millis(100), gone.next()).await
    {
        let event: Value = serde_json::from_slice(&message.payload)?;
        ensure!(event["event"] != "gone", "recycled: {event}");
    }
    cluster.wait_ready().await
}

/// Returns how many were answered in kind.
async fn keep_asking(api: &Api, line: &str, op: &str, body: &Value, end: Instant) -> Result<usize> {
    let api = api.within(POLL_MS);
    let mut answered = 0;
    let mut last = (Instant::now(), Value::Null);
    while Instant::now() < end {
        // Neither an error nor silence is an error here: what counts is who is still in line.
        let ask = tokio::time::timeout(Duration::from_millis(POLL_MS), api.ask(line, op, body));
        if let Ok(Ok(reply)) = ask.await {
            let is_gone = reply.code.as_deref() == Some("token_gone");
            ensure!(
                !is_gone && reply.body["state"] != "gone",
                "recycled: {op} {}; {:?} ago: {}",
                reply.body,
                last.0.elapsed(),
                last.1
            );
            if reply.code.is_none() {
                answered += 1;
                last = (Instant::now(), reply.body);
            }
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS)).await;
    }
    Ok(answered)
}

/// Only one node hears users, whichever: it answers for all shards, by the deadline.
pub async fn whoever_takes_it_answers(cluster: &mut Cluster) -> Result<()> {
    let lines = line_in_every_shard(cluster, "plain").await?;
    for only in cluster.ids() {
        for other in cluster.ids().filter(|id| *id != only) {
            cluster.set_link(other, Link::Closed)?;
        }
        // A request that was on its way to a cut node is lost, as NATS has it. From when the
        // server knows of the cut on, none is: at once, and when things have settled.
        eventually(
            "the server knows of the cut",
            Duration::from_secs(5),
            async || Ok((instances(cluster.api()).await? == 1).then_some(())),
        )
        .await?;
        for _ in 0..3 {
            let codes = all_answered(cluster.api(), &lines, "info", 1_500).await?;
            ensure!(
                !codes.contains(&"no responders".to_owned()),
                "nobody took it: {codes:?}"
            );
            eprintln!("only node {only} hears: {codes:?}");
        }
        for id in cluster.ids() {
            cluster.set_link(id, Link::Up)?;
        }
        cluster.wait_ready().await?;
    }
    Ok(())
}

/// One node of three: it says `unavailable`, in time, and means it: nothing has happened. With the
/// mapping line too: a request for a shard without a leader is taken by whoever is there.
pub async fn without_a_quorum(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let lines = line_in_every_shard(cluster, "alone").await?;
    let ticket = api.enter(&lines[0], "before").await?["ticket"].clone();
    for id in [1, 2] {
        cluster.process(id)?.kill().await?;
    }
    // From the first moment on each request is answered; soon all say the same.
    eventually("all say unavailable", Duration::from_secs(15), async || {
        let codes = all_answered(&api, &lines, "enter", 1_000).await?;
        // NATS itself may answer while the last node believes in a leader that is dead.
        let taken = cluster.options().mapping || !codes.contains(&"no responders".to_owned());
        ensure!(taken, "nobody took it: {codes:?}");
        Ok(codes.iter().all(|code| code == "unavailable").then_some(()))
    })
    .await?;
    let mut unavailable = Vec::new();
    for line in &lines {
        let reply = api
            .within(500)
            .ask(line, "enter", &json!({"key": "never"}))
            .await?;
        if reply.code.as_deref() == Some("unavailable") {
            unavailable.push(line);
        }
    }
    ensure!(!unavailable.is_empty());
    let reply = api
        .ask(&lines[0], "status", &json!({"ticket": ticket}))
        .await?;
    ensure!(
        reply.code.as_deref() == Some("unavailable"),
        "{}",
        reply.body
    );
    // What needs no leader goes on.
    let local = json!({"ticket": ticket, "consistency": "local"});
    let status = api.ok(&lines[0], "status", local).await?;
    ensure!(status["state"] == "admitted", "{status}");
    let status = api.cluster("status", json!({})).await?;
    ensure!(status["answered_by"] == 3, "{status}");

    for id in [1, 2] {
        cluster.start_node(id).await?;
    }
    cluster.wait_ready().await?;
    for line in unavailable {
        let reply = api.call(line, "find", &json!({"key": "never"})).await?;
        ensure!(
            reply.code.as_deref() == Some("token_not_found"),
            "{line}: {}",
            reply.body
        );
    }
    ensure!(api.status(&lines[0], &ticket).await?["state"] == "admitted");
    Ok(())
}

/// A deaf leader hands over to a node that has just stopped (and does not know it yet). It must not
/// be left with a shard that it leads and does not serve.
pub async fn a_hand_over_to_a_dead_node(cluster: &mut Cluster) -> Result<()> {
    let lines = line_in_every_shard(cluster, "handed").await?;
    let (leader, target) = (3, 1);
    let mut led = Vec::new();
    for line in lines {
        if cluster.leader_of(&line).await? == leader {
            led.push(line);
        }
    }
    ensure!(!led.is_empty(), "node {leader} leads nothing");
    cluster.set_link(leader, Link::Closed)?;
    // It takes a second for a leader to find that it is deaf, and longer for a node to be missed.
    tokio::time::sleep(Duration::from_millis(700)).await;
    cluster.process(target)?.signal(Signal::STOP)?;
    tokio::time::sleep(Duration::from_millis(900)).await;
    cluster.set_link(leader, Link::Up)?;

    // Two of three nodes are well: that is enough for every shard, and soon.
    let api = cluster.api().within(500);
    for line in &led {
        eventually(
            &format!("{line} is served"),
            Duration::from_secs(10),
            async || {
                let reply = api.ask(line, "enter", &json!({"key": "somebody"})).await?;
                ensure!(reply.code.is_none(), "{}", reply.body);
                Ok(Some(()))
            },
        )
        .await?;
    }
    cluster.process(target)?.signal(Signal::CONT)?;
    cluster.wait_ready().await
}

/// How many nodes NATS's service discovery reaches.
async fn instances(api: &Api) -> Result<usize> {
    let inbox = api.client().new_inbox();
    let mut answers = api.subscribe(inbox.clone()).await?;
    let ping = api
        .client()
        .publish_with_reply("$SRV.PING.nowserving", inbox, "".into());
    ping.await?;
    let mut count = 0;
    while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(200), answers.next()).await {
        count += 1;
    }
    Ok(count)
}

/// Asks for each line at once; every one must be answered by the deadline. Returns the codes.
async fn all_answered(
    api: &Api,
    lines: &[String],
    op: &str,
    timeout_ms: u64,
) -> Result<Vec<String>> {
    let api = api.within(timeout_ms);
    let key = format!("any-{op}");
    let asks = lines.iter().map(async |line| {
        let start = Instant::now();
        let body = if op == "enter" {
            json!({"key": key})
        } else {
            json!({})
        };
        let reply = api
            .ask(line, op, &body)
            .await
            .with_context(|| line.clone())?;
        let took = start.elapsed();
        // The client's and the test's own share of the machine comes on top.
        let in_time = took <= Duration::from_millis(timeout_ms + 500);
        ensure!(
            in_time,
            "{op} {line}: answered after {took:?}, {:?}",
            reply.code
        );
        let code = reply.code.unwrap_or_else(|| "ok".to_owned());
        Ok(code)
    });
    join_all(asks).await.into_iter().collect()
}

async fn line_in_every_shard(cluster: &Cluster, prefix: &str) -> Result<Vec<String>> {
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..shards)
        .map(|shard| line_in(shard, shards, prefix))
        .collect();
    for line in &lines {
        cluster
            .api()
            .admin(line, "create", json!({"seats": 1, "queue_limit": 100}))
            .await?;
    }
    Ok(lines)
}
