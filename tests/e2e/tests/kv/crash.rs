//! Key-values over the death of a leader, by way of snapshots, and from a backup into another cluster.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Cli, Cluster, Options, eventually};
use nowserving_protocol::codec::Format;
use nowserving_protocol::error::Code;
use nowserving_protocol::kv::KvReply;
use nowserving_protocol::user::Consistency;
use serde_json::json;

use super::{Kv, PATIENCE};
use crate::snapshots::written;

const WORKERS: u64 = 8;
const ROUNDS: u64 = 60;
/// Entries of the log that make a snapshot due, and a few more.
const BEFORE: u64 = 110;

/// kill -9 of the leader while keys are put and a counter is raised by `if_revision`: what was acknowledged is there, and
/// no revision was taken twice. It starts again from a snapshot and the log behind it, and has the same as the others.
pub async fn of_a_leader(cluster: &mut Cluster) -> Result<()> {
    let shards = cluster.options().shards;
    let kv = Kv::new(cluster.api(), Format::MsgPack, Some(shards), "crash")?;
    kv.put("counter", "0").await?;
    // One after the other: each is an entry.
    for nth in 0..BEFORE {
        kv.put("before", nth.to_string()).await?;
    }
    let leader = cluster.leaders().await?[0].context("no leader")?;
    eventually("the leader has a snapshot", PATIENCE, async || {
        Ok((written(cluster, leader).await? > 0.0).then_some(()))
    })
    .await?;
    let work = (0..WORKERS).map(|worker| {
        let kv = kv.clone();
        async move {
            let (mut newest, mut raised) = (BTreeMap::new(), 0_u64);
            for round in 0..ROUNDS {
                let key = format!("w{worker}-{}", round % 7);
                let value = format!("{worker}/{round}");
                let revision = kv.put(&key, value.as_str()).await?;
                let before = newest.insert(key, (revision, value));
                ensure!(
                    before.is_none_or(|(before, _)| before < revision),
                    "revisions fall"
                );
                let counter = kv.get("counter", None).await?;
                let count: u64 = std::str::from_utf8(counter.value.as_bytes())?.parse()?;
                let put = kv.put_if("counter", (count + 1).to_string(), Some(counter.revision));
                match put.await? {
                    Ok(_) => raised += 1,
                    Err(error) => ensure!(error.code == Code::VersionConflict, "{error}"),
                }
            }
            Ok((newest, raised))
        }
    });
    let crash = async {
        eventually("some have been raised", PATIENCE, async || {
            let counter = kv.get("counter", None).await?;
            Ok((counter.revision > BEFORE + 150).then_some(()))
        })
        .await?;
        cluster.process(leader)?.kill().await?;
        anyhow::Ok(())
    };
    let (done, ()) = tokio::try_join!(try_join_all(work), crash)?;
    let raised: u64 = done.iter().map(|(_, raised)| raised).sum();
    let counter = kv.get("counter", Some(Consistency::Linearizable)).await?;
    ensure!(
        counter.value.as_bytes() == raised.to_string().as_bytes(),
        "{raised}"
    );
    cluster.start_node(leader).await?;
    cluster.wait_ready().await?;
    // The node that was restarted: what it answers is its own state.
    cluster.transfer(&[0], leader).await?;
    for (key, (revision, value)) in done.iter().flat_map(|(newest, _)| newest) {
        let got = kv.get(key, None).await?;
        let shown = (got.revision, got.value.as_bytes());
        ensure!(shown == (*revision, value.as_bytes()), "{key}: {got:?}");
    }
    let before = kv.get("before", None).await?;
    let last = (BEFORE - 1).to_string();
    ensure!(before.value.as_bytes() == last.as_bytes(), "{before:?}");
    let leaders = cluster.leaders().await?;
    ensure!(leaders == [Some(leader)], "others answered: {leaders:?}");
    Ok(())
}

fn words(words: &[&str], file: &Path) -> Vec<OsString> {
    let words = words.iter().map(|word| match *word {
        "FILE" => file.as_os_str().to_owned(),
        word => word.into(),
    });
    words.collect()
}

/// A backup comes back in a cluster of another size; revisions never go back.
pub async fn backup(cluster: &mut Cluster) -> Result<()> {
    let kv = Kv::new(cluster.api(), Format::MsgPack, None, "saved")?;
    let mut newest = 0;
    for nth in 0..40_u8 {
        newest = newest.max(kv.put(&format!("k{nth}"), vec![nth, 0xff]).await?);
    }
    let long = json!({"key": "long", "value": "", "ttl_ms": 3_600_000});
    let long: KvReply = kv.call("long", "put", &long).await??;
    let gone: KvReply = kv.call("k0", "delete", &json!({"key": "k0"})).await??;
    newest = newest.max(long.revision).max(gone.revision);
    let file = cluster.folder().join("keys.nsb");
    let cli = Cli::new(cluster.nats.url());
    let saved = cli
        .run(&words(&["cluster", "backup", "FILE"], &file))
        .await?;
    let saved = saved.done()?;
    ensure!(saved["keys"] == 40 && saved["lines"] == 0, "{saved}");

    let options = Options {
        nodes: 1,
        shards: 7,
        ..Options::default()
    };
    let other = Cluster::start(options).await?;
    let cli = Cli::new(other.nats.url());
    let dry = words(&["cluster", "restore", "FILE", "--dry-run"], &file);
    let dry = cli.run(&dry).await?.done()?;
    ensure!(dry["keys"]["restored"] == 40, "{dry}");
    let dry = words(
        &["cluster", "restore", "FILE", "--dry-run", "--overwrite"],
        &file,
    );
    let dry = cli.run(&dry).await?.done()?;
    ensure!(dry["keys"]["restored"] == 40, "{dry}");
    let restore = words(&["cluster", "restore", "FILE"], &file);
    let done = cli.run(&restore).await?.done()?;
    ensure!(
        done["keys"]["restored"] == 40 && done["keys"]["exist"] == 0,
        "{done}"
    );
    let back = Kv::new(other.api(), Format::MsgPack, Some(7), "saved")?;
    for nth in 1..40_u8 {
        let got = back.get(&format!("k{nth}"), None).await?;
        ensure!(got.value.as_bytes() == [nth, 0xff], "{got:?}");
        ensure!(got.revision > newest, "{got:?} after {newest}");
    }
    let left = back.get("long", None).await?.expires_in_ms;
    ensure!(left.is_some_and(|ms| ms <= 3_600_000), "{left:?}");
    let body = json!({"key": "k0"});
    let gone = back.call::<KvReply>("k0", "delete", &body).await?;
    ensure!(gone.is_err_and(|error| error.code == Code::KeyNotFound));

    let dry = words(&["cluster", "restore", "FILE", "--dry-run"], &file);
    let dry = cli.run(&dry).await?;
    ensure!(dry.lines[0]["keys"]["exist"] == 40, "{:?}", dry.lines);

    // Repeated, it leaves alone what is there, and says so.
    let changed = back.put("k1", "new").await?;
    let again = cli.run(&restore).await?;
    ensure!(
        again.code == 1 && again.lines[0]["keys"]["exist"] == 40,
        "{:?}",
        again.lines
    );
    ensure!(back.get("k1", None).await?.revision == changed);
    let replace = words(
        &["cluster", "restore", "FILE", "--overwrite", "--yes"],
        &file,
    );
    cli.run(&replace).await?.done()?;
    let got = back.get("k1", None).await?;
    ensure!(
        got.value.as_bytes() == [1, 0xff] && got.revision > changed,
        "{got:?}"
    );
    Ok(())
}
