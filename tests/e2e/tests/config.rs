//! A node's configuration. Bad ones are started beside a cluster that works, so that nothing else can
//! be the reason of a refusal.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cluster, HOUR_MS, NodeFlags, Process, eventually, free_port};
use serde_json::json;

/// A node that refuses its configuration ends sooner, and so does one that gets a signal.
const END: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(15);
/// Frames of the impostor that each of the others has dropped: by then it has stood for election more
/// than once.
const REFUSED_MIN: f64 = 10.0;
/// At least this many enter meanwhile.
const PEOPLE_MIN: u64 = 40;
const LINE: &str = "configured";

/// Values that are wrong in themselves, in the file and as flags.
pub async fn bad_flags_and_files(cluster: &mut Cluster) -> Result<()> {
    let settings = json!({"seats": 1, "queue_limit": 10, "claim_timeout_ms": HOUR_MS});
    cluster.api().admin(LINE, "create", settings).await?;
    let stranger = stranger(cluster, "refused")?;
    for (flag, value, word) in [
        ("--id", "4", "id"),
        ("--shards", "257", "shards"),
        ("--no-such-flag", "1", "no-such-flag"),
    ] {
        let flags = stranger.clone().with(flag, value);
        refuses(cluster, &flags, word)
            .await
            .with_context(|| format!("{flag} {value:?}"))?;
    }

    let file = cluster.folder().join("node.toml");
    let good = file_of(&stranger);
    let only_file = NodeFlags::default().with("--config", file.clone());
    std::fs::write(&file, format!("{good}\nno_such_key = 1\n"))?;
    refuses(cluster, &only_file, "no_such_key").await?;
    std::fs::remove_file(&file)?;
    refuses(cluster, &only_file, "node.toml")
        .await
        .context("a missing file")?;
    undisturbed(cluster).await
}

/// The key file: missing, open to others, not a key.
pub async fn key_files(cluster: &mut Cluster) -> Result<()> {
    let stranger = stranger(cluster, "refused-key")?;
    let good = std::fs::read(cluster.key_file())?;
    let file = cluster.folder().join("other.key");
    let with_file = stranger.with("--key-file", file.clone());
    let missing = format!("key file {}: not found\n", file.display());
    refuses(cluster, &with_file, &missing)
        .await
        .context("missing")?;
    for (content, mode) in [(&good[..], 0o640), (&good[..40], 0o600)] {
        std::fs::write(&file, content)?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode))?;
        let refused = refuses(cluster, &with_file, "other.key").await;
        refused.with_context(|| format!("{} bytes, mode {mode:o}", content.len()))?;
    }
    undisturbed(cluster).await
}

/// A second process on the data directory of a living node.
pub async fn two_on_one_data_directory(cluster: &mut Cluster) -> Result<()> {
    let flags = cluster
        .flags(1)?
        .with("--metrics-addr", format!("127.0.0.1:{}", free_port()?));
    refuses(cluster, &flags, "node-1").await?;
    undisturbed(cluster).await
}

/// Data of one node and cluster under the name of another.
pub async fn another_identity(cluster: &mut Cluster) -> Result<()> {
    ensure!(cluster.process(1)?.stop(END).await?.success());
    let flags = cluster.flags(1)?;
    for (other, word) in [
        (flags.clone().with("--shards", "8"), "shards"),
        (flags.clone().with("--cluster", "another"), "cluster"),
        (
            flags.clone().with("--id", "2").with("--nodes", "2"),
            "node 1",
        ),
    ] {
        refuses(cluster, &other, word)
            .await
            .with_context(|| format!("another {word}"))?;
    }
    // None of the attempts has harmed it.
    cluster.start_node(1).await?;
    cluster.wait_ready().await?;
    undisturbed(cluster).await
}

/// A process with a living node's number and an empty disk: its votes could undo writes that the real
/// one has acknowledged.
pub async fn impostor(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    let settings = json!({"seats": 1, "queue_limit": 10_000, "claim_timeout_ms": HOUR_MS});
    api.admin(LINE, "create", settings).await?;
    let before = refused_frames(cluster).await?;
    let data = cluster.folder().join("impostor-data");
    let flags = cluster.flags(1)?;
    let metrics = format!("127.0.0.1:{}", free_port()?);
    let flags = flags
        .with("--data-dir", data)
        .with("--metrics-addr", metrics);
    let mut stranger = cluster.start_stranger("impostor", &flags).await?;
    let mut last = 0;
    let refused = eventually("both others refuse its frames", PATIENCE, async || {
        let status = api.enter(LINE, &format!("k{}", last + 1)).await?;
        last += 1;
        let now = refused_frames(cluster).await?;
        let mut refused = now.iter().zip(before).map(|(now, before)| now - before);
        let enough = refused.all(|refused| refused >= REFUSED_MIN) && last >= PEOPLE_MIN;
        // No number twice, and none left out.
        let in_order = status["token"] == last;
        Ok((enough || !in_order).then_some((in_order, status)))
    });
    let (in_order, status) = refused.await?;
    ensure!(in_order, "{status}");
    if stranger.is_alive()? {
        stranger.kill().await?;
    }
    eprint!("{}", stranger.tail(5));
    let ids: Vec<u64> = cluster.ids().collect();
    for id in ids {
        ensure!(cluster.process(id)?.is_alive()?, "node {id} died of it");
    }
    cluster.wait_ready().await?;
    ensure!(api.enter(LINE, "k1").await?["token"] == 1);
    Ok(())
}

/// How many frames nodes 2 and 3 have refused.
async fn refused_frames(cluster: &Cluster) -> Result<[f64; 2]> {
    let refused = async |id| {
        let metrics = cluster.metrics(id).await?;
        anyhow::Ok(metrics.sum("nowserving_frames_refused_total", &[]))
    };
    Ok([refused(2).await?, refused(3).await?])
}

/// Flags of a node that would be fine, were it not for what is changed in them.
fn stranger(cluster: &Cluster, folder: &str) -> Result<NodeFlags> {
    let metrics = format!("127.0.0.1:{}", free_port()?);
    Ok(cluster
        .flags(1)?
        .with("--data-dir", cluster.folder().join(folder))
        .with("--metrics-addr", metrics))
}

/// It ends by itself, not with success, and its last output contains `word`.
async fn refuses(cluster: &Cluster, flags: &NodeFlags, word: &str) -> Result<()> {
    let log = cluster.folder().join("refused.log");
    let _ = std::fs::remove_file(&log);
    let mut process = cluster.start_stranger("refused", flags).await?;
    let status = process.ended(END).await.with_context(|| process.tail(10))?;
    let said = process.printed()?;
    ensure!(
        !status.success() && status.code().is_some(),
        "{status}: {said}"
    );
    ensure!(!said.contains("panicked"), "{said}");
    ensure!(said.contains(word), "does not speak of {word}: {said}");
    Ok(())
}

async fn undisturbed(cluster: &mut Cluster) -> Result<()> {
    let alive = Process::is_alive(cluster.process(1)?)?;
    ensure!(alive, "the node that worked has died");
    let status = cluster.api().enter(LINE, "a").await?;
    ensure!(status["token"] == 1, "{status}");
    Ok(())
}

/// The same settings as a file has them.
fn file_of(flags: &NodeFlags) -> String {
    let lines = flags.iter().map(|(flag, value)| {
        let name = flag.trim_start_matches("--").replace('-', "_");
        let value = Path::new(value).display().to_string();
        match name.as_str() {
            "id" | "loops" | "shards" | "snapshot_entries" | "log_bytes_max" => {
                format!("{name} = {value}")
            }
            "nodes" => format!("{name} = [{value}]"),
            _ => format!("{name} = {value:?}"),
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
