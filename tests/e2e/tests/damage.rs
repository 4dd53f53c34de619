//! Damage on a node's disk, met when the node starts or while it runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cli, Cluster, HOUR_MS, eventually, number};
use nowserving_line::{Change, Op, SettingsPatch};
use nowserving_shard::command::{Command, Entry, FORMAT};
use nowserving_shard::snapshot;
use serde_json::{Value, json};

use crate::snapshots::written;

const LINE: &str = "damaged";
const SHARD: u32 = 0;
const PATIENCE: Duration = Duration::from_secs(30);
/// Entries a snapshot, with which the clusters here are started.
pub const SNAPSHOT_ENTRIES: u64 = 100;
const NODE: u64 = 3;

/// Any bit flips in any file: the node starts and has the state of the others, or it refuses and names
/// the file. With the file put back it is as before.
pub async fn flipped_bits(cluster: &mut Cluster) -> Result<()> {
    create(cluster).await?;
    prepare(cluster).await?;
    let report = checked(cluster, NODE).await?;
    let in_use = report["problems"][0]["what"].as_str().unwrap_or_default();
    ensure!(in_use.contains("in use"), "{report}");
    cluster.process(NODE)?.stop(PATIENCE).await?;
    let report = checked(cluster, NODE).await?;
    ensure!(
        report["ok"] == true && report["node"]["id"] == NODE,
        "{report}"
    );
    let data = cluster.data_dir(NODE);
    let mut refused = Vec::new();
    for (file, at) in flips(&data)? {
        let whole = std::fs::read(&file)?;
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        std::fs::write(&file, flipped)?;
        let report = checked(cluster, NODE).await?;
        let named = report["problems"].to_string();
        cluster.start_node(NODE).await?;
        let status = cluster.process(NODE)?.ended(PATIENCE).await?;
        let printed = cluster.process(NODE)?.printed()?;
        let last = printed.lines().last().unwrap_or_default();
        let name = file.file_name().context("no name")?.to_string_lossy();
        let context = format!("{} at {at}: {status}: {last}", file.display());
        ensure!(!status.success() && last.contains(&*name), "{context}");
        ensure!(
            report["ok"] == false && named.contains(&*name),
            "{context}: {report}"
        );
        let advice = ["start again", "Put the file back", "Delete the file"];
        ensure!(advice.iter().any(|it| last.contains(it)), "{context}");
        ensure!(!printed.contains("panicked"), "{context}");
        if name.ends_with(".segment") {
            ensure!(last.contains("at byte "), "{context}");
        }
        refused.push(file.clone());
        std::fs::write(&file, whole)?;
    }
    for kind in ["segment", "snap", "identity.toml", "peers.toml"] {
        let met = |file: &PathBuf| file.to_string_lossy().ends_with(kind);
        ensure!(refused.iter().any(met), "no {kind} among {refused:?}");
    }

    // Every file is as it was.
    let report = checked(cluster, NODE).await?;
    ensure!(report["ok"] == true, "{report}");
    cluster.start_node(NODE).await?;
    cluster.wait_ready().await?;
    same_everywhere(cluster).await
}

/// The report of `node --check`, which must not change anything.
pub async fn checked(cluster: &Cluster, id: u64) -> Result<Value> {
    let data = cluster.data_dir(id);
    let before = contents(&data);
    let words = [
        "node".into(),
        "--check".into(),
        "--data-dir".into(),
        data.clone(),
    ];
    let mut output = Cli::new(cluster.nats.url()).run(&words).await?;
    ensure!(output.lines.len() == 1, "{output:?}");
    let report = output.lines.remove(0);
    let code = i32::from(report["ok"] != true);
    ensure!(output.code == code, "exit code {}: {report}", output.code);
    // A node that runs writes, and removes what is read at that moment.
    let in_use = report["problems"].to_string().contains("in use");
    ensure!(
        in_use || contents(&data)? == before?,
        "{} has changed",
        data.display()
    );
    Ok(report)
}

/// Every file of a data directory with its content.
fn contents(data: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut contents = BTreeMap::new();
    // With several loops the log has folders of its own.
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for file in std::fs::read_dir(folder)? {
            let file = file?.path();
            if file.is_dir() {
                folders.push(file);
            } else if file.is_file() {
                contents.insert(file.clone(), std::fs::read(&file)?);
            }
        }
    }
    Ok(contents)
}

/// A snapshot that is whole, and of another state: the node stops when the hashes are compared, and
/// the others name it.
pub async fn another_state(cluster: &mut Cluster) -> Result<()> {
    prepare(cluster).await?;
    cluster.process(NODE)?.stop(PATIENCE).await?;
    let file = cluster
        .data_dir(NODE)
        .join(format!("snap/shard-{SHARD}.snap"));
    let (header, mut state) = snapshot::decode(std::fs::read(&file)?.into(), FORMAT, "e2e", SHARD)?;
    let patch = SettingsPatch {
        seats: Some(Change::Set(7)),
        ..SettingsPatch::default()
    };
    let op = Op::Configure {
        line: LINE.parse()?,
        patch: patch.into(),
        if_version: None,
        incarnation: None,
    };
    let entry = Entry {
        now_ms: state.now_ms(),
        commands: vec![Command::Line(op)],
        ..Entry::default()
    };
    state.apply_entry(header.index, &entry, &mut ());
    std::fs::write(&file, snapshot::encode(&header, &state))?;

    cluster.start_node(NODE).await?;
    let api = cluster.api().clone();
    eventually("the node stops", PATIENCE, async || {
        api.ok(LINE, "enter", json!({"key": "k1"})).await?;
        Ok((!cluster.process(NODE)?.is_alive()?).then_some(()))
    })
    .await?;
    let status = cluster.process(NODE)?.ended(PATIENCE).await?;
    let printed = cluster.process(NODE)?.printed()?;
    ensure!(!status.success(), "{status}");
    // Connections may say after it that they are closed.
    let named = ["shard 0", "has the hash", "Start it again"];
    let is_reason = |line: &str| named.iter().all(|it| line.contains(it));
    ensure!(printed.lines().any(is_reason), "{printed}");
    // The others compare what it has sent before it ended.
    eventually("the others name it", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        ensure!(status["shards"][0]["differs"] == json!([NODE]), "{status}");
        Ok(Some(()))
    })
    .await
}

/// The line of both scenarios.
async fn create(cluster: &Cluster) -> Result<()> {
    let settings = json!({"seats": 2, "queue_limit": 10_000, "claim_timeout_ms": HOUR_MS});
    cluster
        .api()
        .admin(LINE, "create", settings)
        .await
        .map(drop)
}

/// Enters until each node has written a snapshot.
async fn prepare(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    for nth in 0..3 * SNAPSHOT_ENTRIES {
        api.ok(LINE, "enter", json!({"key": format!("k{nth}")}))
            .await?;
    }
    for id in cluster.ids() {
        eventually("a snapshot", PATIENCE, async || {
            Ok((written(cluster, id).await? > 0.0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// A few bytes of every file with data. Not the last ones of the log: a commit index is not synced.
fn flips(data: &Path) -> Result<Vec<(PathBuf, usize)>> {
    let has_data = |file: &Path| {
        let kind = file.extension().unwrap_or_default();
        ["segment", "snap", "toml"]
            .iter()
            .any(|known| kind == *known)
    };
    let mut flips = Vec::new();
    for (file, bytes) in contents(data)? {
        if !has_data(&file) {
            continue;
        }
        let last = bytes.iter().rposition(|byte| *byte != 0);
        let end = last.unwrap_or_default();
        flips.extend((0..=4).map(|part| (file.clone(), end * part / 5)));
    }
    Ok(flips)
}

/// Every node has applied the same entries, and none of them has found another's state to differ.
async fn same_everywhere(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let mut applied: BTreeMap<u64, u64> = BTreeMap::new();
    eventually("all nodes have the same", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let shard = &status["shards"][SHARD as usize];
        ensure!(shard.get("differs").is_none(), "{status}");
        applied.insert(number(&status, "answered_by")?, number(shard, "applied")?);
        let same = applied
            .values()
            .all(|index| Some(index) == applied.values().next());
        let all = applied.len() as u64 == cluster.options().nodes;
        Ok((all && same).then_some(()))
    })
    .await
}
