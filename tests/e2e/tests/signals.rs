//! SIGHUP has a daemon read its files again, or does nothing if it was ignored when the daemon started. SIGINT stops it,
//! also if that was ignored.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cluster, Process, eventually, free_port, program};
use rustix::process::Signal;
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(60);
/// As `nohup` starts programs, and a script its background jobs.
const IGNORING: [&str; 4] = ["/bin/sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh"];
/// Of the node it shows problems alone.
const QUIET: &str = "# until it is changed\nwarn\nnowserving=info\nnowserving_node=warn\n";

pub async fn of_a_node(cluster: &mut Cluster) -> Result<()> {
    let filter = cluster.folder().join("filter");
    std::fs::write(&filter, QUIET)?;
    let log = format!("NOWSERVING_LOG=@{}", filter.display());
    let before = start_again(cluster, &["/usr/bin/env", &log]).await?;
    let node = Watched {
        process: cluster.process(1)?,
        before,
    };
    node.reads(&filter, QUIET, "the log filter was read again")
        .await?;
    let key_file = "the key file was read again";
    ensure!(!node.printed()?.contains(key_file), "{}", node.printed()?);
    node.reads(&filter, "info", key_file).await?;
    node.reads(&filter, "a=b=c", "the log filter stays as it was")
        .await?;
    let settings = json!({"seats": 1, "queue_limit": 1});
    let api = cluster.api().clone();
    api.admin("hang-up", "create", settings).await?;

    let before = start_again(cluster, &IGNORING).await?;
    let node = cluster.process(1)?;
    node.signal(Signal::HUP)?;
    // It goes on.
    api.enter("hang-up", "a").await?;
    is_interrupted(node, before).await
}

pub async fn of_envoys_service(cluster: &Cluster) -> Result<()> {
    let filter = cluster.folder().join("envoys-filter");
    std::fs::write(&filter, "info")?;
    let log = format!("NOWSERVING_LOG=@{}", filter.display());
    let mut service = envoy(cluster, "told", &["/usr/bin/env", &log]).await?;
    let watched = Watched {
        process: &mut service,
        before: 0,
    };
    watched
        .reads(&filter, "info", "the log filter was read again")
        .await?;
    service.signal(Signal::INT)?;
    ensure!(service.ended(PATIENCE).await?.success());

    let mut service = envoy(cluster, "untold", &IGNORING).await?;
    service.signal(Signal::HUP)?;
    is_interrupted(&mut service, 0).await
}

/// A daemon, and how much was in its log when it started.
struct Watched<'a> {
    process: &'a mut Process,
    before: usize,
}

impl Watched<'_> {
    /// On SIGHUP, after the file has changed, it says this once more than before.
    async fn reads(&self, file: &Path, content: &str, words: &str) -> Result<()> {
        let count = || anyhow::Ok(self.printed()?.matches(words).count());
        let before = count()?;
        std::fs::write(file, content)?;
        self.process.signal(Signal::HUP)?;
        eventually(words, PATIENCE, async || {
            Ok((count()? > before).then_some(()))
        })
        .await
        .with_context(|| self.process.tail(20))
    }

    fn printed(&self) -> Result<String> {
        Ok(self.process.printed()?.split_off(self.before))
    }
}

/// Starts the one node again, under this command. Returns how much was in its log before.
async fn start_again(cluster: &mut Cluster, command: &[&str]) -> Result<usize> {
    let node = cluster.process(1)?;
    ensure!(node.stop(PATIENCE).await?.success());
    let before = node.printed()?.len();
    cluster.start_node_under(1, command).await?;
    cluster.wait_ready().await?;
    Ok(before)
}

/// SIGINT ends it, and of SIGHUP it knows nothing.
async fn is_interrupted(daemon: &mut Process, before: usize) -> Result<()> {
    daemon.signal(Signal::INT)?;
    let ended = daemon.ended(PATIENCE).await;
    let ended = ended.with_context(|| daemon.tail(20))?;
    ensure!(ended.success(), "{ended}: {}", daemon.tail(20));
    let printed = daemon.printed()?.split_off(before);
    ensure!(printed.contains("SIGINT"), "{printed}");
    ensure!(!printed.contains("SIGHUP"), "{printed}");
    Ok(())
}

/// A running `nowserving envoy` under this command.
async fn envoy(cluster: &Cluster, name: &str, command: &[&str]) -> Result<Process> {
    let listen = format!("127.0.0.1:{}", free_port()?);
    let mut words: Vec<PathBuf> = command.iter().map(PathBuf::from).collect();
    words.push(program().await?);
    let flags = ["envoy", "--listen", &listen, "--nats", &cluster.nats.url()].map(PathBuf::from);
    words.extend(flags);
    let (of, args) = words.split_first().context("no program")?;
    let log = cluster.folder().join(format!("envoy-{name}.log"));
    let process = Process::start("envoy", of.as_os_str(), args, &log).await?;
    eventually("it answers Envoy", PATIENCE, async || {
        Ok(process.printed()?.contains("answers Envoy").then_some(()))
    })
    .await
    .with_context(|| process.tail(20))?;
    Ok(process)
}
