//! The members of a cluster change, by the commands that operators use.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{
    Api, Cli, Cluster, HOUR_MS, Metrics, NodeFlags, Process, candidate, eventually, free_port,
    http, line_in,
};
use serde_json::{Value, json};

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The status as the leader of shard 0 has it, which decides about members; the other nodes hear of a change a moment
/// later.
async fn status(api: &Api) -> Result<Value> {
    eventually("the leader of shard 0 answers", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let decides = status["shards"][0]["leader"] == status["answered_by"];
        Ok(decides.then_some(status))
    })
    .await
}

/// The state of each shard as its leader has it.
async fn by_leaders(api: &Api) -> Result<Vec<Value>> {
    let mut told = BTreeMap::new();
    eventually("the leader of each shard answers", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let shards = status["shards"].as_array().context("shards")?;
        let is_led = |it: &&Value| it["leader"] == status["answered_by"];
        let own = shards.iter().filter(is_led);
        told.extend(own.filter_map(|it| Some((it["shard"].as_u64()?, it.clone()))));
        let is_whole = told.len() == shards.len();
        Ok(is_whole.then(|| told.values().cloned().collect()))
    })
    .await
}

/// Runs `nowserving cluster` with these words, and returns its answer.
pub async fn change(cli: &Cli, words: &[&str]) -> Result<Value> {
    let words: Vec<&str> = std::iter::once("cluster")
        .chain(words.iter().copied())
        .collect();
    cli.run(&words)
        .await?
        .done()
        .with_context(|| words.join(" "))
}

/// The nodes that vote in every shard, as its leader has it.
pub async fn voters(api: &Api) -> Result<BTreeSet<u64>> {
    let shards = by_leaders(api).await?;
    let mut all = BTreeSet::new();
    for shard in &shards {
        let voters: BTreeSet<u64> = serde_json::from_value(shard["voters"].clone())?;
        ensure!(shard["learners"].is_null(), "{shard}");
        ensure!(all.is_empty() || all == voters, "shards differ: {shards:?}");
        all = voters;
    }
    Ok(all)
}

/// Waits until a node leads such a number of shards.
async fn leads(api: &Api, node: u64, such: impl Fn(usize) -> bool) -> Result<()> {
    let what = format!("node {node} leads what it should");
    eventually(&what, PATIENCE, async || {
        let shards = by_leaders(api).await?;
        let led = shards.iter().filter(|it| it["leader"] == node).count();
        ensure!(such(led), "it leads {led}");
        Ok(Some(()))
    })
    .await
}

/// Runs such a command until it is accepted: a node may hear a moment later than the one that answered last that the
/// change before is made, or that a node asks to be added; one that asks is forgotten for a moment on a slow machine.
pub async fn change_soon(cli: &Cli, words: &[&str]) -> Result<Value> {
    eventually("the change is made", PATIENCE, async || {
        change(cli, words).await.map(Some)
    })
    .await
}

pub async fn drained_and_removed(cluster: &mut Cluster) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    let shards = cluster.options().shards;
    let line = line_in(1, shards, "stays");
    let settings = json!({"seats": 1, "queue_limit": 10, "claim_timeout_ms": HOUR_MS});
    api.admin(&line, "create", settings).await?;

    change(
        &cli,
        &["drain", "2", "--reason", "new memory", "--by", "ops"],
    )
    .await?;
    leads(&api, 2, |led| led == 0).await?;
    refuses_transfer(&api, &cli, 2).await?;
    change(&cli, &["drain", "2", "--undo"]).await?;
    leads(&api, 2, |led| led > 0).await?;
    stopped_and_caught_up(cluster, &cli).await?;
    change(&cli, &["transfer", "all", "--to", "3"]).await?;
    leads(&api, 3, |led| led == shards as usize).await?;

    // It leads everything, and hands it over first.
    let removed = change(&cli, &["remove-node", "3", "--yes"]).await?;
    let ended = cluster.process(3)?.ended(PATIENCE).await?;
    ensure!(ended.code() == Some(1), "{ended}");
    let said = cluster.process(3)?.printed()?;
    ensure!(said.contains("was removed from the cluster"), "{said}");
    ensure!(voters(&api).await? == BTreeSet::from([1, 2]));
    ensure!(
        change(&cli, &["remove-node", "3", "--yes"]).await? == removed,
        "a repetition"
    );
    api.ok(&line, "enter", json!({"key": "k"})).await?;
    // It is told again.
    cluster.start_node(3).await?;
    let ended = cluster.process(3)?.ended(PATIENCE).await?;
    ensure!(ended.code() == Some(1), "{ended}");

    for (words, code) in [
        (
            &["cluster", "remove-node", "9", "--yes"][..],
            "node_not_found",
        ),
        (&["cluster", "drain", "3"], "node_not_found"),
        (
            &["cluster", "replace-node", "1", "00000000000000ff"],
            "node_not_found",
        ),
    ] {
        cli.run(words).await?.failed(1, code)?;
    }
    let changes = change(&cli, &["changes"]).await?;
    let first = &changes["changes"][0];
    ensure!(first["op"] == "drain" && first["by"] == "ops", "{changes}");
    ensure!(first["reason"] == "new memory", "{changes}");
    Ok(())
}

/// Leadership is not given to a node that cannot take it, and nothing changes.
async fn refuses_transfer(api: &Api, cli: &Cli, to: u64) -> Result<()> {
    let version = status(api).await?["members"]["version"].clone();
    let words = ["cluster", "transfer", "all", "--to", &to.to_string()];
    cli.run(&words).await?.failed(1, "members_refused")?;
    let after = status(api).await?;
    ensure!(after["members"]["version"] == version, "{after}");
    Ok(())
}

/// Node 2 is away for a while; `status --wait` says when it has caught up.
async fn stopped_and_caught_up(cluster: &mut Cluster, cli: &Cli) -> Result<()> {
    let (api, shards) = (cluster.api().clone(), cluster.options().shards);
    cluster.process(2)?.kill().await?;
    eventually("node 2 is silent", PATIENCE, async || {
        let nodes = status(&api).await?["nodes"].clone();
        Ok((nodes[1]["alive"] == false).then_some(()))
    })
    .await?;
    refuses_transfer(&api, cli, 2).await?;
    let words = ["cluster", "status", "--wait", "--within", "1s"];
    eventually("node 2 is waited for", PATIENCE, async || {
        // On a slow machine no node answers within the second.
        let error = cli.run(&words).await?.failed(3, "failed")?;
        ensure!(error.to_string().contains("node 2 is silent"), "{error}");
        Ok(Some(()))
    })
    .await?;
    cluster.start_node(2).await?;
    let well = change(cli, &["status", "--wait"]).await?;
    for node in well["nodes"].as_array().into_iter().flatten() {
        ensure!(node["caught_up_in"] == shards, "{well}");
    }
    Ok(())
}

/// Starts a node that knows NATS, the key and an empty directory.
pub async fn joining(cluster: &Cluster, name: &str) -> Result<Process> {
    let flags = joining_flags(cluster, name);
    cluster.start_joining(name, &flags).await
}

fn joining_flags(cluster: &Cluster, name: &str) -> NodeFlags {
    NodeFlags::default()
        .with("--data-dir", cluster.folder().join(name))
        .with("--key-file", cluster.key_file())
        .with("--nats", cluster.nats.url())
}

/// A node that asks to be added is alive and not ready (docs/protocol/nodes.md, "Health"): Kubernetes does not restart its
/// pod, and an update waits for it (deploy/README.md, "More replicas").
async fn alive_and_not_ready(addr: SocketAddr) -> Result<()> {
    alive(addr).await?;
    let (code, text) = http::get(addr, "/readyz").await?;
    let reason = "asks the cluster to be added\n";
    ensure!(code == 503 && text == reason, "/readyz: {code} {text}");
    let metrics = Metrics::scrape(addr).await?;
    ensure!(metrics.has("nowserving_ready"), "{metrics:?}");
    let ready = metrics.sum("nowserving_ready", &[]);
    ensure!(ready == 0.0, "nowserving_ready {ready}");
    Ok(())
}

/// The command that added the node has waited for its vote in every shard. The node itself may still wait for the
/// first proof that requests reach it.
async fn alive_and_ready(addr: SocketAddr) -> Result<()> {
    eventually("the node that was added is ready", PATIENCE, async || {
        alive(addr).await?;
        let (code, text) = http::get(addr, "/readyz").await?;
        ensure!(code == 200, "/readyz: {code} {text}");
        let ready = Metrics::scrape(addr).await?.sum("nowserving_ready", &[]);
        ensure!(ready == 1.0, "nowserving_ready {ready}");
        Ok(Some(()))
    })
    .await
}

async fn alive(addr: SocketAddr) -> Result<()> {
    let answer = http::get(addr, "/healthz").await;
    let (code, text) = answer.context("/healthz of a node that joins")?;
    ensure!(code == 200, "/healthz: {code} {text}");
    Ok(())
}

pub async fn added_and_replaced(cluster: &mut Cluster) -> Result<()> {
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..shards)
        .map(|shard| line_in(shard, shards, "load"))
        .collect();
    let settings = json!({"seats": 1, "queue_limit": 1_000_000, "claim_timeout_ms": HOUR_MS});
    for line in &lines {
        cluster
            .api()
            .admin(line, "create", settings.clone())
            .await?;
    }
    let stop = Cell::new(false);
    let mut added = Vec::new();
    let api = cluster.api().clone();
    let load = async {
        let mut entered = 0;
        while !stop.get() {
            for line in &lines {
                let reply = api
                    .ok(line, "enter", json!({"key": format!("k{entered}")}))
                    .await?;
                ensure!(reply["token"] == entered + 1, "{line}: {reply}");
            }
            entered += 1;
        }
        Ok(entered)
    };
    let changes = async {
        let result = changes(cluster, &mut added).await;
        stop.set(true);
        result
    };
    let (changed, entered) = futures::join!(changes, load);
    changed?;
    let entered: u64 = entered?;
    ensure!(entered > 50, "no load: {entered}");
    Ok(())
}

/// The nodes that were added are put into `added`: they must outlive the load.
async fn changes(cluster: &mut Cluster, added: &mut Vec<Process>) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    // Three to five.
    for id in 4..=5 {
        let name = format!("added-{id}");
        let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let flags = joining_flags(cluster, &name).with("--metrics-addr", metrics.to_string());
        added.push(cluster.start_joining(&name, &flags).await?);
        candidate(&api).await?;
        alive_and_not_ready(metrics).await?;
        let reply = change_soon(&cli, &["add-node"]).await?;
        ensure!(reply["node"] == id, "{reply}");
        alive_and_ready(metrics).await?;
    }
    ensure!(voters(&api).await? == (1..=5).collect());
    // And back: the first two go.
    for id in [1, 2] {
        change_soon(&cli, &["remove-node", &id.to_string(), "--yes"]).await?;
        cluster.process(id)?.ended(PATIENCE).await?;
    }
    ensure!(voters(&api).await? == BTreeSet::from([3, 4, 5]));
    // Node 3 loses its disk: it is refused, and comes back as node 6 with one command.
    cluster.process(3)?.kill().await?;
    std::fs::remove_dir_all(cluster.data_dir(3))?;
    cluster.start_node(3).await?;
    let asks = candidate(&api).await?;
    ensure!(asks["node"] == 3, "{asks}");
    let reason = asks["reason"].as_str().unwrap_or_default();
    ensure!(reason.contains("another disk"), "{asks}");
    let reply = change_soon(&cli, &["replace-node", "3"]).await?;
    ensure!(reply["node"] == 6, "{reply}");
    ensure!(voters(&api).await? == BTreeSet::from([4, 5, 6]));
    ensure!(
        cluster.process(3)?.is_alive()?,
        "it took its number without a restart"
    );
    // It keeps the number, also with the configuration of node 3.
    cluster.process(3)?.kill().await?;
    cluster.start_node(3).await?;
    eventually("node 6 is there", PATIENCE, async || {
        let status = status(&api).await?;
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let alive = nodes.into_iter().all(|it| it["alive"] == true);
        Ok(alive.then_some(()))
    })
    .await
}
