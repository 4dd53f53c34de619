//! `nowserving watch` without a terminal, while no node answers.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Result, ensure};
use nowserving_e2e::{Cluster, Process, eventually, program};
use rustix::process::Signal;
use serde_json::json;

const LINE: &str = "watched";
const PATIENCE: Duration = Duration::from_secs(60);

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
    says(&watch, "watched open").await?;
    for (stopped, why) in [
        (&[1, 2][..], "no answer from the line's leader"),
        (&[1, 2, 3], "no node answers"),
    ] {
        let before = watch.printed()?.len();
        for id in stopped {
            cluster.process(*id)?.signal(Signal::STOP)?;
        }
        says_since(&watch, before, why).await?;
        for id in stopped {
            cluster.process(*id)?.signal(Signal::CONT)?;
        }
        says_since(&watch, before, "in contact again").await?;
        cluster.wait_ready().await?;
    }
    Ok(())
}

async fn says(watch: &Process, words: &str) -> Result<()> {
    says_since(watch, 0, words).await
}

async fn says_since(watch: &Process, since: usize, words: &str) -> Result<()> {
    eventually(&format!("it says {words:?}"), PATIENCE, async || {
        let printed = watch.printed()?;
        let new = printed.get(since..).unwrap_or_default();
        ensure!(new.contains(words), "{printed}");
        Ok(Some(()))
    })
    .await
}
