//! A node on the cluster's NATS that the others refuse: it serves no requests and reports why, and
//! clients notice nothing. Without the mapping line, so that every node that listens gets its share of
//! the requests.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{
    Cli, Cluster, HOUR_MS, Nats, NodeFlags, Process, eventually, line_in, write_key,
};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);
/// Each is asked in four ways: a third of them would go to the stranger.
const REQUESTS: u64 = 20;
/// The node whose place the stranger takes.
const ID: u64 = 3;
const OTHERS: [u64; 2] = [1, 2];
const LINE: &str = "visited";

/// A member that comes back without its disk; then with it.
pub async fn wiped(cluster: &mut Cluster) -> Result<()> {
    let settings = json!({"seats": 1, "queue_limit": 10_000, "claim_timeout_ms": HOUR_MS});
    cluster.api().admin(LINE, "create", settings).await?;
    for id in cluster.ids() {
        is_ready(cluster, id).await?;
    }
    let empty = cluster.folder().join("empty");
    stands_in(cluster, "wiped", |flags| flags.with("--data-dir", empty))
        .await?
        .serves_nobody(
            cluster,
            &["another disk", "refuses this node"],
            "another disk",
        )
        .await
}

/// The member with another key file can open no frame, and the others cannot open its frames.
pub async fn of_another_key(cluster: &mut Cluster) -> Result<()> {
    let key = cluster.folder().join("another.key");
    write_key(&key, 2)?;
    let flags = |flags: NodeFlags| flags.with("--key-file", key);
    stands_in(cluster, "of another key", flags)
        .await?
        .serves_nobody(
            cluster,
            &["fail authentication", "key file"],
            "fail authentication",
        )
        .await
}

/// A cluster of one node with another name, or of the same name with another key, is not founded on the same prefix.
/// Requests beside it are answered by the first cluster alone.
pub async fn of_another_cluster(cluster: &mut Cluster) -> Result<()> {
    let key = cluster.folder().join("another-cluster.key");
    write_key(&key, 3)?;
    for (name, advice) in [("other", "--cluster"), ("e2e", "--key-file")] {
        let data = cluster.folder().join(format!("another-cluster-{name}"));
        let flags = of_one_node(cluster.flags(ID)?, name)
            .with("--key-file", &key)
            .with("--data-dir", data);
        let mut process = cluster.start_stranger(name, &flags).await?;
        while process.is_alive()? {
            everybody_is_served(cluster).await?;
        }
        let status = process.ended(PATIENCE).await?;
        let printed = process.printed()?.replace('\\', "");
        ensure!(!status.success(), "{printed}");
        let ours = format!("of cluster \"{name}\"");
        for word in [
            &ours,
            "cluster \"e2e\"",
            "\"nowserving\"",
            "--prefix",
            advice,
        ] {
            ensure!(printed.contains(word), "{word} is missing:\n{printed}");
        }
    }
    Ok(())
}

fn of_one_node(flags: NodeFlags, name: &str) -> NodeFlags {
    flags
        .with("--id", "1")
        .with("--nodes", "1")
        .with("--cluster", name)
        .without(&["--metrics-addr"])
}

/// One that was founded elsewhere has a disk that belonged to a cluster: it serves here, and both report the other one.
pub async fn of_a_cluster_that_moved_here(cluster: &mut Cluster) -> Result<()> {
    let folder = cluster.folder().join("elsewhere");
    std::fs::create_dir(&folder)?;
    let elsewhere = Nats::start(&folder, None, "").await?;
    let data = folder.join("data");
    let flags = of_one_node(cluster.flags(ID)?, "moved").with("--data-dir", &data);
    let there = flags
        .clone()
        .with("--nats", elsewhere.url())
        .with("--peer-nats", elsewhere.url());
    let mut founded = cluster.start_stranger("founded-elsewhere", &there).await?;
    let cli = Cli::new(elsewhere.url());
    eventually("it is founded", PATIENCE, async || {
        let said = cli.run(&["cluster", "status"]).await?;
        ensure!(said.code == 0, "{said:?}");
        Ok(Some(()))
    })
    .await?;
    founded.stop(PATIENCE).await?;
    let mut moved = cluster.start_stranger("moved-here", &flags).await?;
    let cli = Cli::new(cluster.nats.url());
    let mut to_report = vec![("e2e", "moved"), ("moved", "e2e")];
    let reported = eventually("both report the other one", PATIENCE, async || {
        let said = cli.run(&["cluster", "status"]).await?;
        let status = said.lines.first().context("no status")?;
        let others = status["other_clusters"].as_array();
        to_report.retain(|(own, other)| {
            let names = |it: &Value| it["cluster"] == *other && it["cluster_id"].is_string();
            let reports = others.is_some_and(|all| all.iter().any(names));
            !(status["cluster"] == *own && reports && said.code == 1)
        });
        ensure!(to_report.is_empty(), "{to_report:?}: {said:?}");
        Ok(Some(()))
    });
    reported.await.with_context(|| moved.tail(20))?;
    ensure!(moved.is_alive()?, "it has ended: {}", moved.tail(20));
    moved.kill().await?;
    // Nothing of it remains.
    eventually("it is reported no longer", PATIENCE, async || {
        let said = cli.run(&["cluster", "status"]).await?;
        Ok((said.code == 0).then_some(()))
    })
    .await
}

/// The member with its disk, and a mistake in its configuration: it is told to correct that, and does not ask for
/// another number.
pub async fn misconfigured(cluster: &mut Cluster) -> Result<()> {
    let key = cluster.folder().join("another-id.key");
    std::fs::copy(cluster.key_file(), &key)?;
    let text = std::fs::read_to_string(&key)?;
    std::fs::write(&key, text.replace("\n1 ", "\n0 "))?;
    let reason = "the key id 0";
    let change = |flags: NodeFlags| flags.with("--key-file", key);
    let stranger = stands_in(cluster, "misconfigured", change).await?;
    eventually("it says what to correct", PATIENCE, async || {
        let log = stranger.process.printed()?;
        ensure!(!log.contains("lost its number"), "{log}");
        Ok(log.contains("correct its configuration").then_some(()))
    })
    .await?;
    let words = [reason, "refuses this node"];
    stranger.serves_nobody(cluster, &words, reason).await?;
    let status = cluster.api().cluster("status", json!({})).await?;
    ensure!(status["members"]["candidates"] == json!([]), "{status}");
    Ok(())
}

/// The member itself is accepted again after all that.
pub async fn back_as_itself(cluster: &mut Cluster) -> Result<()> {
    cluster.start_node(ID).await?;
    cluster.wait_ready().await?;
    for id in cluster.ids() {
        is_ready(cluster, id).await?;
    }
    eventually("the others miss it no more", PATIENCE, async || {
        let status = cluster.api().cluster("status", json!({})).await?;
        ensure!(status["nodes"][2]["alive"] == true, "{status}");
        Ok(Some(()))
    })
    .await
}

/// From the cluster's birth on one of three nodes has eight shards, the others sixteen.
pub async fn of_another_shard_count(cluster: &mut Cluster) -> Result<()> {
    let ids: Vec<u64> = cluster.ids().collect();
    for id in &ids {
        cluster.process(*id)?.kill().await?;
        std::fs::remove_dir_all(cluster.data_dir(*id))?;
    }
    // The different one first: it must not lead.
    let stranger = stranger(cluster, "of another shard count", |flags| {
        flags.with("--shards", "8")
    });
    let stranger = stranger.await?;
    for id in OTHERS {
        cluster.start_node(id).await?;
    }
    cluster.wait_served().await?;
    let settings = json!({"seats": 1, "queue_limit": 10_000, "claim_timeout_ms": HOUR_MS});
    cluster.api().admin(LINE, "create", settings).await?;
    let stranger = stranger.serves_nobody(
        cluster,
        &["node 3 has 8 shards", "16", "refuses this node"],
        "node 3 has 8 shards",
    );
    stranger.await?;
    // Keys of many shards: each number once.
    for nth in 0..30 {
        let line = line_in(nth % 16, 16, &format!("born-{nth}"));
        let settings = json!({"seats": 1, "queue_limit": 9, "claim_timeout_ms": HOUR_MS});
        cluster.api().admin(&line, "create", settings).await?;
        for token in 1..=2 {
            let status = cluster.api().enter(&line, &format!("k{token}")).await?;
            let state = ["admitted", "waiting"][token - 1];
            ensure!(
                status["token"] == token && status["state"] == state,
                "{status}"
            );
        }
    }
    Ok(())
}

/// Two of three are dead: the third reports that its shards have no leader, and that it is not ready.
pub async fn without_a_quorum(cluster: &mut Cluster) -> Result<()> {
    for id in OTHERS {
        cluster.process(id)?.kill().await?;
    }
    let cli = Cli::new(cluster.nats.url());
    let status = eventually("status ends with 1", PATIENCE, async || {
        let said = cli.run(&["cluster", "status"]).await?;
        Ok((said.code == 1 && !said.lines.is_empty()).then_some(said))
    });
    let status = status.await?.lines.remove(0);
    let leaderless = |shard: &Value| shard["leader"].is_null();
    let shards = status["shards"].as_array().context("shards")?;
    ensure!(shards.iter().any(leaderless), "{status}");
    is_not_ready(cluster, "no quorum", &["1, 2"]).await?;
    let (code, text) = cluster.http(ID, "/healthz").await?;
    ensure!(code == 200, "{code} {text}");
    let (code, text) = cluster.http(ID, "/nothing").await?;
    ensure!(code == 404, "{code} {text}");
    for id in OTHERS {
        cluster.start_node(id).await?;
    }
    cluster.wait_ready().await?;
    is_ready(cluster, ID).await?;
    // Any node answers: one that was restarted hears of each leader a moment later.
    eventually("status ends with 0", PATIENCE, async || {
        let said = cli.run(&["cluster", "status"]).await?;
        ensure!(said.code == 0, "{said:?}");
        Ok(Some(()))
    })
    .await
}

struct Stranger {
    name: &'static str,
    process: Process,
}

/// Starts a process in the place of the member, which is dead by then.
async fn stands_in(
    cluster: &mut Cluster,
    name: &'static str,
    change: impl FnOnce(NodeFlags) -> NodeFlags,
) -> Result<Stranger> {
    if cluster.process(ID)?.is_alive()? {
        cluster.process(ID)?.kill().await?;
    }
    stranger(cluster, name, change).await
}

async fn stranger(
    cluster: &Cluster,
    name: &'static str,
    change: impl FnOnce(NodeFlags) -> NodeFlags,
) -> Result<Stranger> {
    let flags = change(cluster.flags(ID)?);
    let process = cluster
        .start_stranger(&name.replace(' ', "-"), &flags)
        .await?;
    Ok(Stranger { name, process })
}

impl Stranger {
    /// It serves no requests and has `words` in its log and readiness; the others have `shown` in their
    /// status, and serve.
    async fn serves_nobody(mut self, cluster: &Cluster, words: &[&str], shown: &str) -> Result<()> {
        let name = self.name;
        is_not_ready(cluster, name, words).await?;
        let (code, text) = cluster.http(ID, "/healthz").await?;
        ensure!(code == 200, "{name}: {code} {text}");
        let what = format!("{name}: says why in its log");
        eventually(&what, PATIENCE, async || {
            let log = self.process.printed()?;
            let mut warnings = log.lines().filter(|line| line.contains("serves nobody"));
            let says_all = |line: &str| {
                words
                    .iter()
                    .all(|word| line.replace('\\', "").contains(word))
            };
            Ok(warnings.any(says_all).then_some(()))
        })
        .await
        .with_context(|| self.process.tail(20))?;
        for id in OTHERS {
            is_ready(cluster, id).await?;
        }
        everybody_is_served(cluster).await.context(name)?;
        let what = format!("{name}: each of the others shows why it is refused");
        let mut to_show = OTHERS.to_vec();
        eventually(&what, PATIENCE, async || {
            let status = cluster.api().cluster("status", json!({})).await?;
            let node = &status["nodes"][2];
            ensure!(node["id"] == ID, "{status}");
            let refused = node["refused"].as_str();
            let refused = refused.with_context(|| format!("not refused: {status}"))?;
            ensure!(refused.contains(shown), "{status}");
            ensure!(node["alive"] == false, "{status}");
            to_show.retain(|id| status["answered_by"] != *id);
            Ok(to_show.is_empty().then_some(()))
        })
        .await?;
        ensure!(self.process.is_alive()?, "{name} has ended");
        self.process.kill().await?;
        Ok(())
    }
}

/// Requests that any node may take; none of them is answered by the stranger.
async fn everybody_is_served(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    for nth in 0..REQUESTS {
        let entered = api.enter(LINE, &format!("k{nth}")).await?;
        ensure!(entered["token"] == nth + 1, "{entered}");
        let status = api.status(LINE, &entered["ticket"]).await?;
        ensure!(status["token"] == nth + 1, "{status}");
        let listed = api.cluster("list_lines", json!({})).await?;
        let lines = listed["lines"].as_array().context("lines")?;
        ensure!(lines.iter().any(|line| line["line"] == LINE), "{listed}");
        let status = api.cluster("status", json!({})).await?;
        let by = status["answered_by"].as_u64();
        ensure!(by.is_some_and(|id| OTHERS.contains(&id)), "{status}");
    }
    Ok(())
}

async fn is_ready(cluster: &Cluster, id: u64) -> Result<()> {
    eventually("a good node is ready", PATIENCE, async || {
        let (code, text) = cluster.http(id, "/readyz").await?;
        ensure!(code == 200, "node {id}: {code} {text}");
        Ok(Some(()))
    })
    .await
}

async fn is_not_ready(cluster: &Cluster, name: &str, words: &[&str]) -> Result<()> {
    let what = format!("{name}: is not ready, and says why");
    eventually(&what, PATIENCE, async || {
        let (code, text) = cluster.http(ID, "/readyz").await?;
        let says_all = words.iter().all(|word| text.contains(word));
        ensure!(code == 503 && says_all, "{code} {text}");
        Ok(Some(()))
    })
    .await
}
