//! The cluster's key is rotated without a failed request; nodes are restarted only afterwards.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, HOUR_MS, eventually, line_in, number};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::members::{PATIENCE, change};

/// How long old tickets stay good: a node is restarted meanwhile.
const OLD_TICKETS: &str = "12s";
/// Answered while the key is rotated, at least.
const REQUESTS_MIN: usize = 40;
/// Answered after it, too.
const REQUESTS_AFTER: usize = 40;

async fn status(api: &Api) -> Result<Value> {
    api.cluster("status", json!({})).await
}

/// Waits until the nodes have loaded these keys, and each of them knows that: the leader decides by what it knows.
pub async fn loaded(api: &Api, ids: &[&[u64]]) -> Result<()> {
    let mut know = BTreeSet::new();
    eventually("the keys are loaded", PATIENCE, async || {
        let status = status(api).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        let as_wanted = nodes.iter().zip(ids).all(|(node, ids)| {
            let found = node["keys"].as_array().into_iter().flatten();
            let found: Vec<u64> = found.filter_map(|key| key["id"].as_u64()).collect();
            found == **ids
        });
        if as_wanted {
            know.insert(number(&status, "answered_by")?);
        }
        Ok((know.len() == ids.len()).then_some(()))
    })
    .await
}

/// Writes the first line of a key file and these of its key lines, from 1.
fn keep_lines(from: &Path, to: &Path, kept: &[usize]) -> Result<()> {
    let text = std::fs::read_to_string(from)?;
    let lines: Vec<&str> = text.lines().collect();
    let mut kept_text = format!("{}\n", lines.first().context("an empty file")?);
    for nth in kept {
        kept_text += &format!("{}\n", lines.get(*nth).context("no such line")?);
    }
    // The mode stays.
    Ok(std::fs::write(to, kept_text)?)
}

/// Does `work` while visits are made, one after the other, and until some more are made after it. A request that `ask`
/// calls failed ends it. `name` begins the keys. Returns how many requests were answered before `work` was done.
async fn under_load(
    name: &str,
    ask: impl AsyncFn(&str, &Value) -> Result<Value>,
    work: impl Future<Output = Result<()>>,
) -> Result<usize> {
    let (answered, end) = (Cell::new(0), Cell::new(usize::MAX));
    let visits = async {
        while answered.get() < end.get() {
            let key = format!("{name}-{}", answered.get());
            let entered = ask("enter", &json!({"key": key})).await?;
            let ticket = json!({"ticket": entered["ticket"]});
            for op in ["status", "claim", "complete"] {
                ask(op, &ticket).await?;
            }
            answered.set(answered.get() + 4);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    let work = async {
        work.await?;
        let done = answered.get();
        end.set(done + REQUESTS_AFTER);
        anyhow::Ok(done)
    };
    Ok(tokio::try_join!(visits, work)?.1)
}

async fn restart(cluster: &mut Cluster, id: u64) -> Result<()> {
    cluster.process(id)?.stop(PATIENCE).await?;
    cluster.start_node(id).await?;
    cluster.wait_ready().await
}

/// Each node has a key file of its own.
pub async fn rotated_under_load(cluster: &mut Cluster) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    let line = line_in(1, cluster.options().shards, "shop");
    let settings = json!({"seats": 100, "queue_limit": 1_000, "claim_timeout_ms": HOUR_MS});
    api.admin(&line, "create", settings).await?;
    let old = api.enter(&line, "early").await?["ticket"].clone();

    // No node is restarted here, and the one nats-server on this machine loses nothing: no request has a reason to fail.
    let patient = api.within(10_000);
    let once = async |op: &str, body: &Value| {
        let reply = patient.ask(&line, op, body).await?;
        reply.accepted(api.format()).context(op.to_owned())
    };
    let answered = under_load("once", once, rotate(cluster, (&api, &cli), &line, &old)).await?;
    ensure!(answered >= REQUESTS_MIN, "only {answered} requests");

    let again = async |op: &str, body: &Value| api.ok(&line, op, body.clone()).await;
    under_load(
        "again",
        again,
        remove_old(cluster, (&api, &cli), &line, &old),
    )
    .await?;
    starts_only_with_the_key_in_force(cluster).await
}

/// To a new key that is in force, and the old one's tickets still good.
async fn rotate(
    cluster: &Cluster,
    (api, cli): (&Api, &Cli),
    line: &str,
    old: &Value,
) -> Result<()> {
    let files = [1, 2, 3].map(|id| cluster.key_file_of(id));
    // Too early: node 3 lacks the key.
    let [first, second, third] = &files;
    let file = first.to_str().context("a path")?;
    let added = change(cli, &["new-key", file]).await?;
    ensure!(added["id"] == 2, "{added}");
    keep_lines(first, second, &[1, 2])?;
    loaded(api, &[&[1, 2], &[1, 2], &[1]]).await?;
    let words = ["cluster", "rotate-key", "--to", "2"];
    let refused = cli.run(&words).await?.failed(1, "members_refused")?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.contains("not loaded by node 3:"), "{refused}");

    keep_lines(first, third, &[1, 2])?;
    loaded(api, &[&[1, 2], &[1, 2], &[1, 2]]).await?;
    let words = ["rotate-key", "--tickets-until", OLD_TICKETS, "--by", "ops"];
    change(cli, &words).await?;
    ensure!(api.status(line, old).await?["token"].is_u64());
    // Any node answers, and may hear of it later.
    let last = eventually("the change is listed", PATIENCE, async || {
        let changes = change(cli, &["changes"]).await?;
        let last = changes["changes"].as_array().and_then(|all| all.last());
        Ok(last.filter(|it| it["op"] == "rotate_key").cloned())
    })
    .await?;
    ensure!(last["by"] == "ops", "{last}");
    eventually("tickets of the new key", PATIENCE, async || {
        let ticket = api.enter(line, "early").await?["ticket"].clone();
        Ok((ticket != *old).then_some(()))
    })
    .await
}

/// A node is restarted before the old key's time is over, and one after it is removed.
async fn remove_old(
    cluster: &mut Cluster,
    (api, cli): (&Api, &Cli),
    line: &str,
    old: &Value,
) -> Result<()> {
    let files = [1, 2, 3].map(|id| cluster.key_file_of(id));
    let new = api.enter(line, "early").await?["ticket"].clone();
    restart(cluster, 2).await?;

    eventually("the old key's time is over", PATIENCE, async || {
        let status = status(api).await?;
        Ok((status["key"]["old_is_over"] == true).then_some(()))
    })
    .await?;
    let ticket = json!({"ticket": old});
    api.refused(line, "status", ticket, Code::TicketInvalid)
        .await?;
    let table = cli.run_as_text(&["cluster", "status"]).await?;
    ensure!(format!("{table:?}").contains("can be removed"), "{table:?}");

    for file in &files {
        keep_lines(file, file, &[2])?;
    }
    loaded(api, &[&[2], &[2], &[2]]).await?;
    restart(cluster, 1).await?;
    ensure!(api.status(line, &new).await?["token"].is_u64());
    Ok(())
}

async fn starts_only_with_the_key_in_force(cluster: &mut Cluster) -> Result<()> {
    let file = cluster.key_file_of(3);
    let good = std::fs::read(&file)?;
    cluster.process(3)?.stop(PATIENCE).await?;
    let digits = "01".repeat(32);
    std::fs::write(&file, format!("nowserving-cluster-key-v1\n1 {digits}\n"))?;
    cluster.start_node(3).await?;
    let ended = cluster.process(3)?.ended(PATIENCE).await?;
    ensure!(ended.code() == Some(1), "{ended}");
    let said = cluster.process(3)?.printed()?;
    ensure!(said.contains("it lacks key 2"), "{said}");
    std::fs::write(&file, good)?;
    cluster.start_node(3).await?;
    cluster.wait_ready().await
}
