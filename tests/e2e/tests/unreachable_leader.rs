//! Nodes whose service connection is cut while their peers still reach them, and a cluster without
//! a quorum. Without the mapping line here, so plain requests are taken by any node.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use nowserving_e2e::{Api, Cluster, HOUR_MS, Link, eventually, line_in, number};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::all_unreachable::{Asking, CUT, ask, crowd, each_is_answered};

/// Each request has a short deadline, so that many fit into a timeout: through a silent link NATS goes
/// on giving every third to the unreachable node.
const POLL_MS: u64 = 300;
const PAUSE_MS: u64 = 50;
const PATIENCE: Duration = Duration::from_secs(15);
/// Of a race that mostly goes right at the first try.
const TRIES_MAX: u32 = 10;

/// The leader's service connection passes nothing on for longer than every timeout. All clients go on asking; no token is
/// recycled for lost requests, and the other nodes serve.
pub async fn no_token_is_recycled(cluster: &mut Cluster) -> Result<()> {
    let line = "unreachable";
    let api = cluster.api();
    let mut gone = api
        .subscribe(format!("nowserving.event.{line}.token.>"))
        .await?;
    let asks = crowd(api, line).await?;
    let done = Cell::new(false);
    let answered: Vec<Cell<usize>> = asks.iter().map(|_| Cell::new(0)).collect();
    let asking = asks
        .iter()
        .zip(&answered)
        .map(|(one, answered)| keep_asking(api, line, one, answered, &done));
    let cutting = async {
        let leader = cluster.leader_of(line).await?;
        cluster.set_link(leader, Link::Silent)?;
        let before: Vec<usize> = answered.iter().map(Cell::get).collect();
        // The length of the cut is under test: it exceeds every timeout.
        tokio::time::sleep(CUT).await;
        // The other nodes take the shard over and serve it: a cluster that refused all requests
        // would recycle no token either.
        eventually("everybody is served during the cut", PATIENCE, async || {
            let mut counts = before.iter().zip(&answered);
            Ok(counts
                .all(|(before, now)| now.get() > *before)
                .then_some(()))
        })
        .await
        .with_context(|| format!("answers before {before:?}, now {answered:?}"))?;
        cluster.set_link(leader, Link::Up)?;
        done.set(true);
        Ok(())
    };
    tokio::try_join!(try_join_all(asking), cutting)?;
    eprintln!("answers while the leader was unreachable: {answered:?}");

    each_is_answered(api, line, &asks).await?;
    while let Ok(Some(message)) =
        tokio::time::timeout(Duration::from_millis(100), gone.next()).await
    {
        let event: Value = serde_json::from_slice(&message.payload)?;
        ensure!(event["event"] != "gone", "recycled: {event}");
    }
    cluster.wait_ready().await
}

/// Counts the answers that report a state in `answered`. A single request may fail or stay unanswered;
/// an answer that the token is gone is an error.
async fn keep_asking(
    api: &Api,
    line: &str,
    one: &Asking,
    answered: &Cell<usize>,
    done: &Cell<bool>,
) -> Result<()> {
    let mut last = Instant::now();
    while !done.get() {
        let is_answered = ask(api, line, one, POLL_MS).await;
        if is_answered.with_context(|| format!("last answered {:?} ago", last.elapsed()))? {
            answered.set(answered.get() + 1);
            last = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(PAUSE_MS)).await;
    }
    Ok(())
}

/// Clients reach only one node: it answers for all shards.
pub async fn any_node_answers(cluster: &mut Cluster) -> Result<()> {
    let lines = line_in_every_shard(cluster, "plain").await?;
    for other in [2, 3] {
        cluster.set_link(other, Link::Closed)?;
    }
    // From then on each request is answered, and soon each is served: the unreachable leaders
    // hand their shards over, or the node forwards to them.
    one_is_left(cluster.api()).await?;
    eventually("every line is served", PATIENCE, async || {
        let codes = match all_answered(cluster.api(), &lines, "info", 1_500).await {
            Ok(codes) => codes,
            // An unanswered request is a failure at any time.
            Err(unanswered) => return Ok(Some(Err(unanswered))),
        };
        if codes.contains(&"no responders".to_owned()) {
            return Ok(Some(Err(anyhow!("no node took it: {codes:?}"))));
        }
        ensure!(codes.iter().all(|code| code == "ok"), "{codes:?}");
        Ok(Some(Ok(())))
    })
    .await??;
    for other in [2, 3] {
        cluster.set_link(other, Link::Up)?;
    }
    cluster.wait_ready().await
}

/// One node of three: it answers `unavailable` if it knows that nothing has happened.
pub async fn without_a_quorum(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let lines = line_in_every_shard(cluster, "alone").await?;
    let ticket = api.enter(&lines[0], "before").await?["ticket"].clone();
    // The last node could not know of entries that only the two others have.
    all_know(&api, 0).await?;
    for id in [1, 2] {
        cluster.process(id)?.kill().await?;
    }
    one_is_left(&api).await?;
    all_say_unavailable(&api, &lines).await?;
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
    ensure!(!unavailable.is_empty(), "nothing is known");
    let reply = api
        .ask(&lines[0], "status", &json!({"ticket": ticket}))
        .await?;
    ensure!(
        reply.code.as_deref() == Some("unavailable"),
        "{}",
        reply.body
    );
    // Requests that need no leader are served.
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

/// From the first one on each request is answered, and soon all with `unavailable`.
async fn all_say_unavailable(api: &Api, lines: &[String]) -> Result<()> {
    let all_say_it = |codes: &[String]| codes.iter().all(|code| code == "unavailable");
    let codes = eventually("all say unavailable", PATIENCE, async || {
        let codes = match all_answered(api, lines, "enter", 1_000).await {
            Ok(codes) => codes,
            // Permanent.
            Err(silence) => return Ok(Some(Err(silence))),
        };
        // NATS itself may answer while the last node does not miss the dead leader yet.
        let untaken = codes.contains(&"no responders".to_owned());
        Ok((untaken || all_say_it(&codes)).then_some(Ok(codes)))
    });
    let codes = codes.await??;
    ensure!(all_say_it(&codes), "no node took it: {codes:?}");
    Ok(())
}

/// An unreachable leader hands over to a node that has just been stopped. It must not keep leading a
/// shard that it does not serve.
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
    let mut tries = 1;
    while !is_handed_to_the_stopped(cluster, leader, target).await? {
        ensure!(tries < TRIES_MAX, "never handed over to the stopped node");
        tries += 1;
        cluster.process(target)?.signal(Signal::CONT)?;
        cluster.wait_ready().await?;
        // A node does not hand the same shard over again for so long.
        tokio::time::sleep(Duration::from_secs(5)).await;
    }

    // Two of three nodes are well: that is enough for every shard.
    let api = cluster.api().within(500);
    for line in &led {
        eventually(&format!("{line} is served"), PATIENCE, async || {
            let body = json!({"key": "somebody"});
            let ask = api.ask(line, "enter", &body);
            let reply = tokio::time::timeout(Duration::from_secs(1), ask).await??;
            ensure!(reply.code.is_none(), "{}", reply.body);
            Ok(Some(()))
        })
        .await?;
    }
    cluster.process(target)?.signal(Signal::CONT)?;
    cluster.wait_ready().await
}

/// Makes the leader unreachable and stops the target before a hand-over. False if that went wrong, as
/// it may on a machine that pauses: handed over too early, or the target missed.
async fn is_handed_to_the_stopped(cluster: &mut Cluster, leader: u64, target: u64) -> Result<bool> {
    let before = cluster.process(leader)?.printed()?.len();
    cluster.set_link(leader, Link::Closed)?;
    // A leader takes a second to find that it is unreachable, and longer to miss a node.
    tokio::time::sleep(Duration::from_millis(400)).await;
    cluster.process(target)?.signal(Signal::STOP)?;
    let stopped = cluster.process(leader)?.printed()?.len();
    let offers = |log: &str, since: usize| -> Vec<String> {
        let lines = log.get(since..).unwrap_or_default().lines();
        let offers = lines.filter(|line| line.contains("handing over"));
        offers.map(str::to_owned).collect()
    };
    let log = eventually("the leader hands over", PATIENCE, async || {
        let log = cluster.process(leader)?.printed()?;
        Ok((!offers(&log, before).is_empty()).then_some(log))
    })
    .await?;
    cluster.set_link(leader, Link::Up)?;
    let to_it = format!("target={target}");
    Ok(offers(&log, stopped)
        .iter()
        .any(|one| one.ends_with(&to_it)))
}

/// Returns once the server knows that only one node is left. Requests sent to the others before that are
/// lost.
async fn one_is_left(api: &Api) -> Result<()> {
    eventually("the server knows of the cut", PATIENCE, async || {
        Ok((instances(api).await? == 1).then_some(()))
    })
    .await
}

/// Returns once all three nodes have applied the same entries of a shard.
async fn all_know(api: &Api, shard: usize) -> Result<()> {
    let mut applied = BTreeMap::new();
    eventually("all know it", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let its_own = number(&status["shards"][shard], "applied")?;
        applied.insert(number(&status, "answered_by")?, its_own);
        let same = applied.values().all(|one| *one == its_own);
        Ok((applied.len() == 3 && same).then_some(()))
    })
    .await
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
    while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(300), answers.next()).await {
        count += 1;
    }
    Ok(count)
}

/// Asks for each line at once; every one must be answered. Returns the codes.
async fn all_answered(
    api: &Api,
    lines: &[String],
    op: &str,
    timeout_ms: u64,
) -> Result<Vec<String>> {
    let api = api.within(timeout_ms);
    let key = format!("any-{op}");
    let asks = lines.iter().map(async |line| {
        let body = if op == "enter" {
            json!({"key": key})
        } else {
            json!({})
        };
        let reply = api
            .ask(line, op, &body)
            .await
            .with_context(|| line.clone())?;
        Ok(reply.code.unwrap_or_else(|| "ok".to_owned()))
    });
    join_all(asks).await.into_iter().collect()
}

async fn line_in_every_shard(cluster: &Cluster, prefix: &str) -> Result<Vec<String>> {
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..shards)
        .map(|shard| line_in(shard, shards, prefix))
        .collect();
    let settings = json!({"seats": 1, "queue_limit": 100, "claim_timeout_ms": HOUR_MS});
    for line in &lines {
        let create = cluster.api().admin(line, "create", settings.clone());
        create.await?;
    }
    Ok(lines)
}
