//! Nodes that are killed, end or are stopped, while clients go on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::future::{join_all, try_join_all};
use nowserving_e2e::{Api, Cluster, HOUR_MS, eventually, number, pointers};
use nowserving_protocol::subject::shard_of;
use rustix::process::Signal;
use serde_json::{Value, json};

const WORKERS: usize = 8;
/// Acknowledged entries before and after the crash.
const BEFORE: usize = 200;
const AFTER: usize = 200;
/// Polls for a stopped leader and for the next one.
const POLLS: usize = 20;
/// A node that gets SIGTERM ends sooner, and one that is started is ready sooner.
const END: Duration = Duration::from_secs(30);

/// A repetition so early overtakes requests that nodes hold while there is no leader.
const REPEAT_AFTER: Duration = Duration::from_millis(100);
/// Without a leader the cluster writes nothing for about a second, an election timeout and a bit. These
/// bounds leave room for a slow machine and for split votes, and no more than that.
const FAILOVER_MAX: Duration = Duration::from_secs(20);
const ELECTIONS_MAX: u64 = 5;

#[derive(Debug)]
struct Entry {
    key: String,
    token: u64,
    ticket: Value,
    /// From the first attempt to the acknowledgement.
    asked: Instant,
    answered: Instant,
    completed: bool,
}

/// kill -9 of the leader under load: every acknowledged number is there, once, in order.
pub async fn of_a_leader_under_load(cluster: &mut Cluster) -> Result<()> {
    let line = "crash";
    let api = cluster.api().clone();
    api.admin(
        line,
        "create",
        json!({
            "seats": 20, "queue_limit": 100_000, "claim_timeout_ms": HOUR_MS,
            "waiting_idle_timeout_ms": HOUR_MS,
        }),
    )
    .await?;
    let leader = cluster.leader_of(line).await?;
    let term = cluster.term_of(line).await?;

    let entries = RefCell::new(Vec::new());
    let stop_at = RefCell::new(None::<usize>);
    let work = (0..WORKERS).map(|worker| {
        let (api, entries, stop_at) = (api.within(1_000), &entries, &stop_at);
        async move {
            for nth in 0.. {
                if stop_at
                    .borrow()
                    .is_some_and(|end| entries.borrow().len() >= end)
                {
                    break;
                }
                let entry = visit(&api, line, format!("{worker}-{nth}"), None).await?;
                entries.borrow_mut().push(entry);
            }
            anyhow::Ok(())
        }
    });
    let crash = async {
        while entries.borrow().len() < BEFORE {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let killed = Instant::now();
        cluster.process(leader)?.kill().await?;
        *stop_at.borrow_mut() = Some(entries.borrow().len() + AFTER);
        anyhow::Ok(killed)
    };
    let (_, killed) = tokio::try_join!(try_join_all(work), crash)?;
    let entries = entries.into_inner();

    let after = entries
        .iter()
        .filter(|entry| entry.asked > killed)
        .map(|entry| entry.answered);
    let failover = after.min().context("nothing after the crash")? - killed;
    let elections = cluster.term_of(line).await?.saturating_sub(term);
    eprintln!(
        "kill -9 of node {leader}, then {failover:?} and {elections} terms to the next acknowledged write"
    );
    ensure!(
        failover < FAILOVER_MAX && elections <= ELECTIONS_MAX,
        "{failover:?} and {elections} terms without a leader"
    );
    check(&api, line, &entries).await?;

    // The dead one comes back from its disk, and nothing changes.
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    check(&api, line, &entries).await
}

/// Each node in turn ends and is started again, the next one as soon as that one reports that it is
/// ready. Clients go on all the while: they use their seats and go, and repeat a request while its first copy
/// may be on its way. A copy of an `enter` that took effect after its token is gone would take a number
/// that no client knows.
pub async fn rolling_restart(cluster: &mut Cluster) -> Result<()> {
    let line = "visitors";
    let api = cluster.api().clone();
    let settings = json!({
        "seats": 20, "queue_limit": 100_000, "claim_timeout_ms": HOUR_MS,
        "waiting_idle_timeout_ms": HOUR_MS,
    });
    api.admin(line, "create", settings).await?;
    let entries = RefCell::new(Vec::new());
    let done = Cell::new(false);
    let work = (0..WORKERS).map(|worker| {
        let (api, entries, done) = (api.within(1_000), &entries, &done);
        async move {
            for nth in 0.. {
                if done.get() {
                    break;
                }
                let key = format!("{worker}-{nth}");
                let entry = visit(&api, line, key, Some(REPEAT_AFTER)).await?;
                entries.borrow_mut().push(entry);
            }
            anyhow::Ok(())
        }
    });
    let restarts = async {
        for id in cluster.ids() {
            let ended = cluster.process(id)?.stop(END).await?;
            ensure!(ended.success(), "node {id}: {ended}");
            cluster.start_node(id).await?;
            eventually("it is ready", END, async || {
                let (code, text) = cluster.http(id, "/readyz").await?;
                ensure!(code == 200, "{code} {text}");
                Ok(Some(()))
            })
            .await?;
        }
        let enough = entries.borrow().len() + AFTER;
        eventually("people are served", END, async || {
            Ok((entries.borrow().len() >= enough).then_some(()))
        })
        .await?;
        done.set(true);
        anyhow::Ok(())
    };
    tokio::try_join!(try_join_all(work), restarts)?;
    let entries = entries.into_inner();
    let longest = entries
        .iter()
        .map(|entry| entry.answered - entry.asked)
        .max();
    eprintln!(
        "a rolling restart: {} entered, {longest:?} at most",
        entries.len()
    );
    check(&api, line, &entries).await
}

/// Enters with `key` until that is acknowledged, and uses the seat if there is one at once. Each
/// operation is one call with a request id. `repeat_after`: repeats a request that is not answered by
/// then, instead of waiting until it can no longer take effect.
async fn visit(
    api: &Api,
    line: &str,
    key: String,
    repeat_after: Option<Duration>,
) -> Result<Entry> {
    let patience = repeat_after.unwrap_or(Duration::MAX);
    let call = async |op: &str, body: &Value| {
        let call = api.with_request_id(format!("{line}-{key}-{op}"));
        insist_within(&call, line, op, body, patience).await
    };
    let asked = Instant::now();
    let status = call("enter", &json!({"key": key})).await?;
    let answered = Instant::now();
    let ticket = status["ticket"].clone();
    let body = json!({"ticket": ticket});
    let completed = status["state"] == "admitted";
    if completed {
        call("claim", &body).await?;
        let done = call("complete", &body).await?;
        ensure!(done["reason"] == "completed", "{done}");
    }
    Ok(Entry {
        key,
        token: number(&status, "token")?,
        ticket,
        asked,
        answered,
        completed,
    })
}

/// Repeats a request until its answer is not an error: also after `outcome_unknown` and after no answer, for which it waits
/// for at most `patience`. Every request here has one effect however often it is sent.
async fn insist_within(
    api: &Api,
    line: &str,
    op: &str,
    body: &Value,
    patience: Duration,
) -> Result<Value> {
    let start = Instant::now();
    loop {
        let seen = match tokio::time::timeout(patience, api.ask(line, op, body)).await {
            Ok(Ok(reply)) if reply.code.is_none() => return Ok(reply.body),
            Ok(Ok(reply)) if reply.passes() || reply.is_unknown() => format!("{:?}", reply.code),
            Ok(Ok(reply)) => anyhow::bail!("{op} {line} {body}: {}", reply.body),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer after {patience:?}"),
        };
        ensure!(
            start.elapsed() < Duration::from_secs(120),
            "{op} {line} {body}: still {seen}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn check(api: &Api, line: &str, entries: &[Entry]) -> Result<()> {
    // Unique, and without gaps: there is no other client, and every entry was repeated until done.
    let tokens: BTreeSet<u64> = entries.iter().map(|entry| entry.token).collect();
    ensure!(tokens.len() == entries.len(), "a number was given twice");
    ensure!(
        tokens.iter().copied().eq(1..=entries.len() as u64),
        "a number is missing"
    );
    let info = api.ok(line, "info", json!({})).await?;
    ensure!(pointers(&info)?[3] == entries.len() as u64 + 1, "{info}");

    // A number that was answered before another was asked for is the smaller one.
    let mut by_answer: Vec<&Entry> = entries.iter().collect();
    by_answer.sort_by_key(|entry| entry.answered);
    let mut by_asked: Vec<&Entry> = entries.iter().collect();
    by_asked.sort_by_key(|entry| entry.asked);
    let mut answered = by_answer.into_iter().peekable();
    let mut largest = 0;
    for entry in by_asked {
        while let Some(earlier) = answered.next_if(|earlier| earlier.answered < entry.asked) {
            largest = largest.max(earlier.token);
        }
        ensure!(
            entry.token > largest,
            "{entry:?} asked after {largest} was answered"
        );
    }

    // Each is as it was acknowledged, by its ticket and by its key.
    let mut checks = futures::stream::iter(entries.iter().map(async |entry| {
        let status = api.status(line, &entry.ticket).await?;
        ensure!(status["token"] == entry.token, "{status} of {entry:?}");
        if entry.completed {
            ensure!(status["reason"] == "completed", "{status} of {entry:?}");
        } else {
            ensure!(status["state"] != "gone", "{status} of {entry:?}");
            let again = api.enter(line, &entry.key).await?;
            ensure!(again["ticket"] == entry.ticket, "{again} but {entry:?}");
        }
        anyhow::Ok(())
    }))
    .buffer_unordered(16);
    while let Some(checked) = checks.next().await {
        checked?;
    }
    Ok(())
}

/// All three killed at once and started again: everything acknowledged is there.
pub async fn of_all_nodes(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let lines: Vec<String> = (0..20).map(|nth| format!("all-{nth}")).collect();
    let mut people = Vec::new();
    for line in &lines {
        // A poll of one that waits for long would change the line.
        let settings = json!({
            "seats": 3, "queue_limit": 100, "claim_timeout_ms": HOUR_MS,
            "waiting_idle_timeout_ms": HOUR_MS,
        });
        api.admin(line, "create", settings).await?;
        let entered = try_join_all((0..12).map(|nth| {
            let (api, line) = (&api, line.clone());
            async move { api.enter(&line, &format!("k{nth}")).await }
        }));
        for status in entered.await? {
            people.push((line.clone(), status["ticket"].clone()));
        }
    }
    for (nth, (line, ticket)) in people.iter().enumerate() {
        let body = json!({"ticket": ticket});
        let claims = api.status(line, ticket).await?["state"] == "admitted";
        match nth % 4 {
            0 if claims => {
                api.ok(line, "claim", body.clone()).await?;
                api.ok(line, "complete", body).await?;
            }
            1 if claims => drop(api.ok(line, "claim", body).await?),
            2 => drop(api.ok(line, "leave", body).await?),
            _ => {}
        }
    }
    let before = seen(&api, &people).await?;

    cluster.restart_all().await?;
    let after = seen(&api, &people).await?;
    for (before, after) in before.iter().zip(&after) {
        ensure!(before == after, "{before} has become {after}");
    }
    // Numbers go on from there.
    for line in &lines {
        let status = api.enter(line, "late").await?;
        ensure!(status["token"] == 13, "{status}");
    }
    Ok(())
}

/// The fields of each status that must not change by themselves.
async fn seen(api: &Api, people: &[(String, Value)]) -> Result<Vec<Value>> {
    let asks = people.iter().map(async |(line, ticket)| {
        let status = api.status(line, ticket).await?;
        let mut kept = json!({"line": line});
        for field in [
            "token",
            "state",
            "position",
            "reason",
            "epoch",
            "version",
            "incarnation",
        ] {
            kept[field] = status[field].clone();
        }
        anyhow::Ok(kept)
    });
    try_join_all(asks).await
}

/// SIGTERM: the node hands its shards over, then ends with 0; clients hardly notice.
pub async fn graceful_stop(cluster: &mut Cluster) -> Result<()> {
    let line = "graceful";
    // A slow machine stands still for some seconds.
    let api = cluster.api().within(5_000);
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 100_000}))
        .await?;
    let leader = cluster.leader_of(line).await?;
    let ticket = api.enter(line, "poller").await?["ticket"].clone();
    let (done, longest) = (RefCell::new(false), RefCell::new(Duration::ZERO));
    // Many under way at any moment, so that some are on their way to the node as it ends.
    let (polls, silent) = (RefCell::new(0), RefCell::new(0));
    let poll = join_all((0..32).map(|_| async {
        while !*done.borrow() {
            let reply = api.ask(line, "status", &json!({"ticket": ticket})).await;
            *polls.borrow_mut() += 1;
            *silent.borrow_mut() += usize::from(reply.is_err());
        }
    }));
    let poll = async {
        poll.await;
        anyhow::Ok(())
    };
    let write = async {
        for nth in 0.. {
            if *done.borrow() {
                return Ok(());
            }
            let start = Instant::now();
            api.ok(line, "enter", json!({"key": format!("k{nth}")}))
                .await?;
            let took = start.elapsed();
            longest.replace_with(|longest| took.max(*longest));
        }
        anyhow::Ok(())
    };
    let stop = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let status = cluster.process(leader)?.stop(END).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        *done.borrow_mut() = true;
        ensure!(status.success(), "node {leader} ended with {status}");
        Ok(())
    };
    tokio::try_join!(write, poll, stop)?;
    let (polls, silent) = (polls.into_inner(), silent.into_inner());
    eprintln!(
        "graceful stop of node {leader}: at most {:?} to a write; {silent} of {polls} polls silent",
        longest.borrow()
    );
    ensure!(
        silent == 0,
        "{silent} of {polls} polls were not answered by their deadline"
    );
    // It did hand over, instead of leaving the others to miss it.
    let log = cluster.process(leader)?.printed()?;
    let (_, last) = log.split_once("stopping").context(log.clone())?;
    ensure!(
        last.contains("handing over shard="),
        "ended without a hand-over: {last}"
    );
    cluster.start_node(leader).await?;
    cluster.wait_ready().await
}

/// A leader that is stopped (SIGSTOP) for longer than its lease and then goes on gives no outdated
/// answer.
pub async fn pause_longer_than_a_lease(cluster: &mut Cluster) -> Result<()> {
    let line = "pause";
    let api = cluster.api().within(1_000);
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 100}))
        .await?;
    let first = api.enter(line, "a").await?["ticket"].clone();
    let second = api.enter(line, "b").await?["ticket"].clone();
    let leader = cluster.leader_of(line).await?;
    cluster.process(leader)?.signal(Signal::STOP)?;

    // The others go on: the seat changes hands.
    let claimed = api.ok(line, "claim", json!({"ticket": first})).await?;
    ensure!(claimed["state"] == "in_checkout", "{claimed}");
    let done = api.ok(line, "complete", json!({"ticket": first})).await?;
    let known = number(&done, "version")?;

    // The stopped leader gets all of these, beside the new one.
    let client = api.client().clone();
    let inbox = client.new_inbox();
    let mut replies = api.subscribe(inbox.clone()).await?;
    let shards = cluster.options().shards;
    let shard = shard_of(line, shards);
    let subject = format!("nowserving.shard.{shard}.{line}.status");
    let body = serde_json::to_vec(&json!({"ticket": second}))?;
    let polls = (0..POLLS)
        .map(|_| client.publish_with_reply(subject.clone(), inbox.clone(), body.clone().into()));
    for published in join_all(polls).await {
        published?;
    }
    api.settle().await?;
    cluster.process(leader)?.signal(Signal::CONT)?;
    let mut answers = 0;
    loop {
        // The new leader must answer each; another node that answers does so by the deadline, which is
        // two seconds.
        let patience = if answers < POLLS { 60_000 } else { 2_500 };
        let reply = tokio::time::timeout(Duration::from_millis(patience), replies.next());
        let Ok(Some(reply)) = reply.await else { break };
        let reply: Value = serde_json::from_slice(&reply.payload)?;
        if reply.get("error").is_none() {
            ensure!(
                number(&reply, "version")? >= known,
                "stale, want {known}: {reply}"
            );
            ensure!(reply["state"] == "admitted", "{reply}");
            answers += 1;
        }
    }
    ensure!(answers >= POLLS, "only {answers} answers of {POLLS}");
    cluster.wait_ready().await
}
