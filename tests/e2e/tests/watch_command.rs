//! `nowserving watch` without a terminal, while no node answers.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::{Cluster, Process, eventually, program};
use rustix::process::Signal;
use serde_json::json;

const LINE: &str = "watched";
const PATIENCE: Duration = Duration::from_secs(60);
const TRIES_MAX: usize = 5;

/// It reports that its last state is outdated, and why; and later that it is current again.
pub async fn says_why_it_is_old(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    api.admin(LINE, "create", json!({"seats": 1, "queue_limit": 5}))
        .await?;
    let log = cluster.folder().join("watch.log");
    let url = cluster.nats.url();
    let words = ["--nats", &url, "watch", LINE];
    let own = program().await?;
    let watch = Process::start("watch", own.as_os_str(), words.map(OsStr::new), &log).await?;
    says_since(&watch, 0, "watched open").await?;
    for (stopped, why) in [
        (&[1, 2][..], "no answer from the line's leader"),
        (&[1, 2, 3], "no node answers"),
    ] {
        // It reports the loss of contact once, after three seconds: on a slow machine it may not know the reason by then.
        let mut tries = 0;
        while !is_said(cluster, &watch, stopped, why).await? {
            tries += 1;
            ensure!(tries < TRIES_MAX, "never {why:?}: {}", watch.printed()?);
        }
    }
    Ok(())
}

/// Whether it gives this reason while these nodes stand still.
async fn is_said(
    cluster: &mut Cluster,
    watch: &Process,
    stopped: &[u64],
    why: &str,
) -> Result<bool> {
    let before = watch.printed()?.len();
    for id in stopped {
        cluster.process(*id)?.signal(Signal::STOP)?;
    }
    says_since(watch, before, "no contact for").await?;
    let is_said = says(watch, before, why)?;
    for id in stopped {
        cluster.process(*id)?.signal(Signal::CONT)?;
    }
    says_since(watch, before, "in contact again").await?;
    cluster.wait_ready().await?;
    Ok(is_said)
}

fn says(watch: &Process, since: usize, words: &str) -> Result<bool> {
    let printed = watch.printed()?;
    Ok(printed.get(since..).is_some_and(|new| new.contains(words)))
}

async fn says_since(watch: &Process, since: usize, words: &str) -> Result<()> {
    eventually(&format!("it says {words:?}"), PATIENCE, async || {
        ensure!(says(watch, since, words)?, "{}", watch.printed()?);
        Ok(Some(()))
    })
    .await
}
