//! What clients are answered while leaders are dead: some node listens at any time, and one alone has a bounded number of
//! requests under way.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use async_nats::StatusCode;
use futures::StreamExt;
use nowserving_e2e::{Api, Cluster, Format, Route, eventually, pointers};
use nowserving_protocol::error::Code;
use nowserving_protocol::header::{ERROR_CODE_HEADER, TIMEOUT_HEADER};
use nowserving_protocol::subject::shard_of;
use serde_json::{Value, json};

/// Each of these depends on a race, which mostly goes right at the first try.
const PATIENCE: Duration = Duration::from_secs(40);
const TRIES_MAX: u32 = 3;
/// Longer than the deadline of a request, by some seconds in which a slow machine stands still: no answer comes after
/// such a pause.
const QUIET: Duration = Duration::from_secs(6);
/// A node forwards this many requests at once and refuses any more.
const UNDER_WAY_MAX: usize = 4_096;
/// Requests that the next leader must have served.
const AFTER_TAKEOVER: usize = 300;
const FLOOD: usize = UNDER_WAY_MAX + 1_000;

/// Once the other nodes listen in place of a dead leader, at every moment some node listens, also while
/// the next leader takes over; and the next leader serves.
pub async fn a_node_listens(cluster: &mut Cluster) -> Result<()> {
    // On a machine that stands still the next leader may be followed by another one, which says nothing.
    for nth in 1..=TRIES_MAX {
        if listens(cluster, &format!("listens-{nth}")).await? {
            return Ok(());
        }
    }
    bail!("the leader changes all the time")
}

/// False if the leader has changed more than once.
async fn listens(cluster: &mut Cluster, line: &str) -> Result<bool> {
    let api = by_shard(cluster, Format::Json);
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 100}))
        .await?;
    let leader = cluster.leader_of(line).await?;
    let asked = Cell::new(0);
    let taken_over = Cell::new(usize::MAX);
    let next_term = Cell::new(0);
    let answers = ask_all_along(cluster, &api, line, &asked, async |cluster| {
        cluster.process(leader)?.kill().await?;
        // Once it is answered, another node leads.
        api.ok(line, "enter", json!({"key": "a"})).await?;
        next_term.set(cluster.term_of(line).await?);
        taken_over.set(asked.get());
        let enough = asked.get() + AFTER_TAKEOVER;
        eventually("requests go to the next leader", PATIENCE, async || {
            Ok((asked.get() >= enough).then_some(()))
        })
        .await
    })
    .await?;
    let is_one = cluster.term_of(line).await? == next_term.get();
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    if !is_one {
        return Ok(false);
    }
    // At first nats-server takes the dead leader for alive, then its peers do not miss it yet. Of
    // the requests of that time some stay unanswered; from the first answered one on none may find
    // that no node listens.
    let mut after: Vec<Answered> = answers.values().copied().collect();
    after.dedup();
    let gaps = after.iter().filter(|it| **it == Answered::NoResponders);
    ensure!(gaps.count() <= 1, "listened, and then not again: {after:?}");
    let since = answers.range(taken_over.get()..);
    let served = since.filter(|(_, it)| **it == Answered::Served).count();
    let all = asked.get() - taken_over.get();
    ensure!(
        served == all,
        "of {all} requests to the next leader {served} were served"
    );
    Ok(true)
}

/// How a request to the shard's subject ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Answered {
    /// The answer carries the line.
    Served,
    /// With an error of a node.
    Refused,
    /// With the server's word that no node listens.
    NoResponders,
}

/// Asks on the shard's subject while `meanwhile` runs, without waiting for answers, which nodes hold
/// back while there is no leader. `asked` counts the requests. Returns the answers by the number of
/// their request, in the order in which the server took the requests.
async fn ask_all_along(
    cluster: &mut Cluster,
    api: &Api,
    line: &str,
    asked: &Cell<usize>,
    meanwhile: impl AsyncFnOnce(&mut Cluster) -> Result<()>,
) -> Result<BTreeMap<usize, Answered>> {
    let client = api.client();
    let inbox = client.new_inbox();
    let mut answers = api.subscribe(format!("{inbox}.*")).await?;
    let subject = subject(cluster, line, "info");
    let done = Cell::new(false);
    let ask = async {
        while !done.get() {
            let reply = format!("{inbox}.{}", asked.get());
            let sent = client.publish_with_reply(subject.clone(), reply, "{}".into());
            sent.await?;
            asked.set(asked.get() + 1);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        api.settle().await
    };
    let meanwhile = async {
        let outcome = meanwhile(cluster).await;
        done.set(true);
        outcome
    };
    tokio::try_join!(ask, meanwhile)?;
    let mut answered = BTreeMap::new();
    while answered.len() < asked.get()
        && let Ok(Some(answer)) = tokio::time::timeout(QUIET, answers.next()).await
    {
        let (_, nth) = answer.subject.rsplit_once('.').context("no number")?;
        let outcome = if answer.status == Some(StatusCode::NO_RESPONDERS) {
            Answered::NoResponders
        } else if code_header(&answer).is_some() {
            Answered::Refused
        } else {
            Answered::Served
        };
        // Two nodes may answer one request: the client takes the first answer.
        answered.entry(nth.parse()?).or_insert(outcome);
    }
    Ok(answered)
}

/// A node without a quorum keeps a bounded number of requests open until their deadline and refuses the
/// rest at once. Each is answered, and none takes effect.
pub async fn too_much_to_do(cluster: &mut Cluster) -> Result<()> {
    let line = "flood";
    let api = by_shard(cluster, Format::Json);
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 10_000}))
        .await?;
    let leader = cluster.leader_of(line).await?;
    let others: Vec<u64> = cluster.ids().filter(|id| *id != leader).collect();
    let asked = Cell::new(0);
    let answers = ask_all_along(cluster, &api, line, &asked, async |cluster| {
        // Killed, not stopped: a stopped node would take its requests up later.
        for id in &others {
            cluster.process(*id)?.kill().await?;
        }
        let alone = api.within(500);
        eventually("a leader finds that it is alone", PATIENCE, async || {
            let reply = alone.ask(line, "find", &json!({"key": "first"})).await?;
            Ok((reply.code.as_deref() == Some("unavailable")).then_some(()))
        })
        .await
    })
    .await?;
    let unheard = answers
        .values()
        .filter(|it| **it == Answered::NoResponders)
        .count();
    ensure!(
        unheard == 0 && answers.len() == asked.get(),
        "of {} requests to a leader alone {unheard} found no node, {} were answered",
        asked.get(),
        answers.len()
    );
    let counts = flood(cluster, &api, line).await?;
    eprintln!("{FLOOD} requests without a quorum: {counts:?}");
    for id in others {
        cluster.start_node(id).await?;
    }
    cluster.wait_ready().await?;

    for format in ["Json", "MsgPack"] {
        let code = "outcome_unknown";
        let count = counts.get(&(format.to_owned(), code.to_owned()));
        ensure!(count.is_some(), "never {code} in {format}: {counts:?}");
    }
    // On a shard's subject a node cannot rule out that a leader has the write too.
    let allowed = ["overloaded", "unavailable", "outcome_unknown"];
    let others = counts.keys().find(|(_, code)| !allowed.contains(&&**code));
    ensure!(others.is_none(), "{others:?}");
    let unknown = counts
        .iter()
        .filter(|((_, code), _)| code == "outcome_unknown");
    let unknown: usize = unknown.map(|(_, count)| count).sum();
    let info = api.ok(line, "info", json!({})).await?;
    let entered = usize::try_from(pointers(&info)?[3])? - 1;
    ensure!(entered <= unknown, "{entered} have entered: {counts:?}");
    Ok(())
}

/// Asks for all at once, every other time in MessagePack; counts the answers by format and code.
async fn flood(
    cluster: &Cluster,
    api: &Api,
    line: &str,
) -> Result<BTreeMap<(String, String), usize>> {
    let client = api.client();
    let inbox = client.new_inbox();
    let mut answers = api.subscribe(inbox.clone()).await?;
    let subject = subject(cluster, line, "enter");
    for nth in 0..FLOOD {
        let format = [Format::Json, Format::MsgPack][nth % 2];
        let body = encode(format, &json!({"key": format!("f{nth}")}))?;
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(TIMEOUT_HEADER, "4000");
        client
            .publish_with_reply_and_headers(subject.clone(), inbox.clone(), headers, body.into())
            .await?;
    }
    let mut counts = BTreeMap::new();
    for nth in 0..FLOOD {
        let answer = tokio::time::timeout(PATIENCE, answers.next()).await;
        let Ok(Some(answer)) = answer else {
            bail!("only {nth} of {FLOOD} were answered: {counts:?}");
        };
        let format = match answer.payload.first() {
            Some(b'{') => Format::Json,
            _ => Format::MsgPack,
        };
        let body = decode(format, &answer.payload)?;
        let code = body["error"]["code"].as_str().unwrap_or_default();
        let header = Code::parse(code).map(|code| code.http().to_string());
        ensure!(code_header(&answer) == header.as_deref(), "{body}");
        *counts
            .entry((format!("{format:?}"), code.to_owned()))
            .or_default() += 1;
    }
    Ok(counts)
}

fn by_shard(cluster: &Cluster, format: Format) -> Api {
    let route = Route::Shard(cluster.options().shards);
    cluster.api().by(format, route)
}

fn subject(cluster: &Cluster, line: &str, op: &str) -> String {
    let shard = shard_of(line, cluster.options().shards);
    format!("nowserving.shard.{shard}.{line}.{op}")
}

fn code_header(answer: &async_nats::Message) -> Option<&str> {
    let code = answer.headers.as_ref()?.get(ERROR_CODE_HEADER)?;
    Some(code.as_str())
}

fn encode(format: Format, body: &Value) -> Result<Vec<u8>> {
    Ok(match format {
        Format::Json => serde_json::to_vec(body)?,
        Format::MsgPack => rmp_serde::to_vec_named(body)?,
    })
}

fn decode(format: Format, payload: &[u8]) -> Result<Value> {
    ensure!(!payload.is_empty(), "nobody listens");
    Ok(match format {
        Format::Json => serde_json::from_slice(payload)?,
        Format::MsgPack => rmp_serde::from_slice(payload)?,
    })
}
