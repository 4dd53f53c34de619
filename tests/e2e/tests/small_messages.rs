//! A NATS server that takes little in one message (`max_payload`), and changes that while the cluster runs.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use nowserving_e2e::{Cli, Cluster, HOUR_MS, Options, Route, eventually, line_in, run};
use nowserving_protocol::codec::{Format, MAX_PAYLOAD_MIN};
use nowserving_protocol::error::Code;
use nowserving_protocol::limits::RULES_BYTES_MAX;
use serde_json::{Value, json};

use crate::kv::Kv;

const VALUE_BYTES: usize = 10_240;
const PUTS: usize = 200;
const RULES: usize = 500;
const ENTRANTS: usize = 6_000;
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_cluster_works_with_what_the_nats_server_takes_in_a_message() -> Result<()> {
    let options = Options {
        max_payload: Some(MAX_PAYLOAD_MIN),
        ..Options::default()
    };
    run(options, async |cluster| {
        many_large_values(cluster, "first").await?;
        crowd(cluster).await?;
        every_shard_takes_writes(cluster, "after").await?;
        lists(cluster).await?;
        a_backup_is_downloaded_and_put_back(cluster).await?;
        rate_limits(cluster).await?;
        for bytes in [1 << 20, 262_144, MAX_PAYLOAD_MIN] {
            cluster.set_max_payload(bytes)?;
            many_large_values(cluster, &format!("reloaded-{bytes}")).await?;
            every_shard_takes_writes(cluster, &format!("reloaded-{bytes}-")).await?;
        }
        nobody_serves_below_the_minimum(cluster).await?;
        many_large_values(cluster, "last").await?;
        every_shard_takes_writes(cluster, "last").await
    })
    .await
}

/// All at once: they meet in log entries and frames.
async fn many_large_values(cluster: &Cluster, bucket: &str) -> Result<()> {
    let kv = Kv::new(cluster.api(), Format::MsgPack, None, bucket)?;
    let puts = (0..PUTS).map(|nth| {
        let kv = kv.clone();
        async move { kv.put(&format!("key-{nth}"), vec![7; VALUE_BYTES]).await }
    });
    try_join_all(puts).await.map(drop)
}

async fn crowd(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let settings =
        json!({"seats": 1, "queue_limit": 2 * ENTRANTS, "waiting_idle_timeout_ms": HOUR_MS});
    api.admin("crowd", "create", settings).await?;
    let enters =
        (0..ENTRANTS).map(|nth| async move { api.enter("crowd", &format!("k{nth}")).await });
    stream::iter(enters)
        .buffer_unordered(ENTRANTS)
        .try_for_each(|_| async { Ok(()) })
        .await
}

async fn every_shard_takes_writes(cluster: &Cluster, prefix: &str) -> Result<()> {
    let shards = cluster.options().shards;
    let lines = (0..shards).map(|shard| line_in(shard, shards, prefix));
    try_join_all(lines.map(|line| async move {
        cluster
            .api()
            .admin(&line, "create", json!({"seats": 1, "queue_limit": 10}))
            .await?;
        cluster.api().enter(&line, "one").await
    }))
    .await
    .map(drop)
}

/// Of any length: they come in more pages. What would not fit is refused before it is done.
async fn lists(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats_urls()));
    for (command, list, least) in [
        (
            &["line", "tokens", "crowd", "--limit", "9999"],
            "tokens",
            ENTRANTS,
        ),
        (
            &["line", "journal", "crowd", "--limit", "9999"],
            "entries",
            4_096,
        ),
        (&["kv", "list", "first", "--limit", "1000"], "entries", PUTS),
    ] {
        let all = cli.run(command).await?.done()?;
        let count = all[list].as_array().map_or(0, Vec::len);
        ensure!(count >= least, "{count} {list}");
    }
    let call = json!({"n": 1_024, "call_id": "all"});
    let refused = api.admin_refused("crowd", "call_next", call, Code::BadRequest);
    let refused = refused.await?;
    let message = refused["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("n: at most 73 "), "{refused}");
    let found = cli.run(&["doctor", "crowd"]).await?.done()?;
    let findings = found["findings"].as_array().into_iter().flatten();
    let codes: Vec<_> = findings.filter_map(|it| it["code"].as_str()).collect();
    ensure!(codes.contains(&"max_payload_small"), "{found}");
    ensure!(
        !codes
            .iter()
            .any(|code| ["no_answer", "refused"].contains(code)),
        "{found}"
    );
    Ok(())
}

/// Chunks and parts fit.
async fn a_backup_is_downloaded_and_put_back(cluster: &Cluster) -> Result<()> {
    let cli = Cli::new(cluster.nats_urls());
    let file = cluster.folder().join("small-messages.backup");
    let file = file.to_string_lossy();
    cli.run(&["cluster", "backup", &file]).await?.done()?;
    let restore = [
        "cluster",
        "restore",
        &file,
        "--line",
        "crowd",
        "--overwrite",
        "--yes",
    ];
    cli.run(&restore).await?.done()?;
    let counts = cluster.api().admin("crowd", "show", json!({})).await?["counts"].clone();
    ensure!(counts["issued"] == ENTRANTS, "{counts}");
    Ok(())
}

/// As large as they can be: 500 rules in 48 KiB of characters that JSON escapes, and changes with long reasons.
async fn rate_limits(cluster: &Cluster) -> Result<()> {
    let cli = Cli::new(cluster.nats_urls());
    let file = cluster.folder().join("rules.yaml");
    let path = file.to_string_lossy();
    let limit = "rate_limit: {unit: day, requests_per_unit: 9}";
    let rules = (0..RULES).map(|nth| format!("  - {{key: k{nth}, value: '\"', {limit}}}\n"));
    let mut text = format!(
        "domain: small\ndescriptors:\n{}#",
        rules.collect::<String>()
    );
    text.extend(std::iter::repeat_n('"', RULES_BYTES_MAX - text.len() - 1));
    text.push('\n');
    std::fs::write(&file, &text)?;
    let applied = cli.run(&["limit", "apply", &path]).await?.done()?;
    let changes = applied["changes"].as_array().map_or(0, Vec::len);
    ensure!(changes > 100, "{changes}");
    let shown = eventually("the rules are shown", PATIENCE, async || {
        let shown = cli.run(&["limit", "show", "small"]).await?;
        Ok((shown.code == 0).then_some(shown))
    });
    let shown = shown.await?.done()?;
    let of = &shown["domains"][0];
    let listed = of["rules"].as_array().map_or(0, Vec::len);
    ensure!(listed == RULES && of["text"] == text.as_str(), "{listed}");
    ensure!(json_pages(cluster, of).await? > 1);
    // Shown, saved and applied again it is the same.
    let yaml = ["limit", "show", "small", "--yaml"];
    let lines = cli.run_as_text(&yaml).await?.lines.into_iter();
    let lines = lines.map(|line| line.as_str().unwrap_or_default().to_owned() + "\n");
    let yaml: String = lines.collect();
    ensure!(yaml == text, "{} and {} bytes", yaml.len(), text.len());
    std::fs::write(&file, &yaml)?;
    let again = cli.run(&["limit", "apply", &path]).await?.done()?;
    ensure!(again["changes"] == json!([]), "{again}");
    hits_of_all(cluster).await?;
    long_reasons(cluster).await?;
    let changes = cli.run(&["limit", "changes"]).await?.done()?;
    ensure!(changes["left_out"] == true, "{changes:.200}");
    let deleted = cli.run(&["limit", "delete", "small", "--yes"]).await?;
    let deleted = deleted.done()?["changes"].as_array().map_or(0, Vec::len);
    ensure!(deleted > 100, "{deleted}");
    Ok(())
}

/// As a client without our SDK reads it. How many pages they were.
async fn json_pages(cluster: &Cluster, whole: &Value) -> Result<usize> {
    let api = cluster.api();
    let (mut text, mut rules, mut pages) = (String::new(), Vec::new(), 0);
    let mut from = json!(0);
    while !from.is_null() {
        let shown = json!({"domain": "small", "from": from});
        let shown = api.limit("show", shown).await?;
        let page = &shown["domains"][0];
        ensure!(page["version"] == whole["version"]);
        text += page["text"].as_str().unwrap_or_default();
        rules.extend(page["rules"].as_array().cloned().unwrap_or_default());
        pages += 1;
        from = page["next"].clone();
    }
    ensure!(whole["text"] == text && whole["rules"] == json!(rules));
    Ok(pages)
}

/// `stats` has each rule then.
async fn hits_of_all(cluster: &Cluster) -> Result<()> {
    let api = cluster.api();
    let all: Vec<_> = (0..RULES)
        .map(|nth| json!([{"key": format!("k{nth}"), "value": "\""}]))
        .collect();
    for descriptors in all.chunks(16) {
        let ask = json!({"descriptors": descriptors});
        let checked = api.check("small", &ask).await?.accepted(api.format())?;
        ensure!(checked["allowed"] == true, "{checked:.200}");
    }
    for api in [
        api.clone(),
        api.by(nowserving_e2e::Format::MsgPack, Route::Plain),
    ] {
        let stats = eventually("each node tells", PATIENCE, async || {
            let stats = api.limit("stats", json!({})).await?;
            let all = ["unanswered", "nodes_unanswered"];
            Ok(all
                .iter()
                .all(|it| stats.get(it).is_none())
                .then_some(stats))
        });
        let stats = stats.await?;
        let rules = stats["rules"].as_array().cloned().unwrap_or_default();
        let hits: u64 = rules.iter().filter_map(|it| it["allowed"].as_u64()).sum();
        ensure!(hits == RULES as u64, "{hits} hits of {} rules", rules.len());
    }
    Ok(())
}

async fn long_reasons(cluster: &Cluster) -> Result<()> {
    let (api, reason) = (cluster.api(), "\"".repeat(128));
    for nth in 0..64 {
        let text = format!("domain: other\n# {nth}\n");
        let api = api.noted(&reason, &reason);
        api.limit("apply", json!({ "rules": text })).await?;
    }
    for api in [
        api.clone(),
        api.by(nowserving_e2e::Format::MsgPack, Route::Plain),
    ] {
        let changes = api.limit("changes", json!({"domain": "other"})).await?;
        let newest = changes["changes"].as_array().cloned().unwrap_or_default();
        ensure!(
            newest.len() > 10 && newest.len() < 64 && changes["left_out"] == true,
            "{} changes",
            newest.len()
        );
        ensure!(
            newest
                .last()
                .is_some_and(|it| it["reason"] == reason.as_str())
        );
    }
    Ok(())
}

async fn nobody_serves_below_the_minimum(cluster: &mut Cluster) -> Result<()> {
    cluster.set_max_payload(MAX_PAYLOAD_MIN / 2)?;
    // Nodes find out when too much is published.
    let told = async {
        for id in cluster.ids() {
            eventually(
                "a node says that it serves nobody, and why",
                PATIENCE,
                async || {
                    let (status, text) = cluster.http(id, "/readyz").await?;
                    Ok((status == 503 && text.contains("max_payload")).then_some(()))
                },
            )
            .await?;
        }
        anyhow::Ok(())
    };
    let load = async {
        loop {
            // Refused from some time on.
            let _ = tokio::time::timeout(
                Duration::from_secs(2),
                many_large_values(cluster, "too-small"),
            )
            .await;
        }
    };
    tokio::select! {
        told = told => told?,
        () = load => {}
    }
    cluster.process(3)?.kill().await?;
    cluster.start_node(3).await?;
    let ended = cluster.process(3)?.ended(PATIENCE).await?;
    ensure!(!ended.success(), "it starts: {ended}");
    let log = cluster.process(3)?.tail(20);
    let limit = (MAX_PAYLOAD_MIN / 2).to_string();
    ensure!(log.contains("max_payload") && log.contains(&limit), "{log}");
    cluster.set_max_payload(1 << 20)?;
    cluster.start_node(3).await?;
    cluster.wait_ready().await
}
