//! `nowserving dev`: the cluster for development of clients.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nowserving_e2e::{Api, Process, eventually, free_port, leashed, number, program};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(20);
/// A start that takes longer shows how far it is.
const QUIET_FOR: Duration = Duration::from_secs(3);
const LINE: &str = "dev-line";

/// Started, used, crippled, interrupted, started again, and killed.
pub async fn dev_runs_a_cluster() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("made/if/need/be");
    let port = free_port()?;

    let mut dev = Dev::start(port, &data, folder.path(), &[]).await?;
    let ticket = use_it(&dev).await.with_context(|| dev.stderr())?;
    // The terminal is closed: it goes on.
    kill_process(dev.pid()?, Signal::HUP)?;
    lose_a_node(&dev, folder.path())
        .await
        .with_context(|| dev.stderr())?;
    busy(port, &data, folder.path()).await?;
    dev.interrupt().await.with_context(|| dev.stderr())?;

    // It comes back from its data, the lost node too.
    let web = free_port()?.to_string();
    let flags = ["--restart", "--web", &web, "--web-line", LINE];
    let mut dev = Dev::start(port, &data, folder.path(), &flags).await?;
    knows_the_line(&dev).await.with_context(|| dev.stderr())?;
    let api = dev.api().await?;
    let status = api.status(LINE, &ticket).await?;
    ensure!(
        status["state"] == "in_checkout" && status["token"] == 1,
        "{status}"
    );
    dev.restarts_a_node().await.with_context(|| dev.stderr())?;
    dev.kill().await.with_context(|| dev.stderr())?;
    ready_is_the_last_line(port, &data, folder.path()).await
}

async fn use_it(dev: &Dev) -> Result<serde_json::Value> {
    let api = dev.api().await?;
    api.admin(LINE, "create", json!({"seats": 1, "queue_limit": 10}))
        .await?;
    let entered = api.enter(LINE, "a").await?;
    let claimed = api
        .ok(LINE, "claim", json!({"ticket": entered["ticket"]}))
        .await?;
    ensure!(number(&claimed, "epoch")? > 0, "{claimed}");
    Ok(entered["ticket"].clone())
}

/// It says what to do with a line that is there.
async fn knows_the_line(dev: &Dev) -> Result<()> {
    let watch = format!("nowserving watch {LINE} --nats {}", dev.url);
    eventually(
        "dev names the next step",
        Duration::from_secs(5),
        async || Ok(dev.stderr().contains(&watch).then_some(())),
    )
    .await?;
    ensure!(!dev.stderr().contains("line create"));
    Ok(())
}

/// A node dies: dev reports it, does not start it again, and goes on with two. The command that it prints
/// starts it.
async fn lose_a_node(dev: &Dev, folder: &Path) -> Result<()> {
    let (id, pid) = dev.nodes[1];
    kill_process(pid, Signal::KILL)?;
    let said = format!("node {id} (pid {}) ", pid.as_raw_nonzero());
    let command = eventually(
        "dev says that a node died, and how to start it",
        Duration::from_secs(5),
        async || {
            let words = dev.stderr();
            let line = words.lines().find(|line| line.contains(&said));
            let command = line.and_then(|line| line.split_once("; start it again with: "));
            Ok(command.map(|(_, command)| command.to_owned()))
        },
    )
    .await?;
    ensure!(!is_alive(pid));
    let api = dev.api().await?;
    ensure!(api.enter(LINE, "b").await?["token"] == 2);
    // It seems alive for a while after its death.
    alive(&api, 2).await?;
    // `exec`: the leash is on the process itself.
    let command = format!("exec {command}");
    let shell = OsStr::new("/bin/sh");
    let log = folder.join("by-hand.log");
    let mut node = Process::start("node by hand", shell, ["-c", &command], &log).await?;
    // The nodes that are asked may not all have noticed that it was gone: `alive` alone does not say that it is back.
    eventually("the node takes part", START, async || {
        Ok(node.tail(100).contains("it takes part").then_some(()))
    })
    .await?;
    alive(&api, 3).await.with_context(|| node.tail(10))?;
    ensure!(node.stop(STOP).await?.success());
    Ok(())
}

/// Waits until so many nodes are alive, as the others see them.
async fn alive(api: &Api, count: usize) -> Result<()> {
    eventually(&format!("{count} nodes are alive"), START, async || {
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        let alive = nodes.iter().filter(|node| node["alive"] == true);
        ensure!(alive.count() == count, "{status}");
        Ok(Some(()))
    })
    .await
}

/// The hand-overs that follow the start are not printed.
async fn ready_is_the_last_line(port: u16, data: &Path, folder: &Path) -> Result<()> {
    let log = folder.join("screen");
    let (port, url) = (port.to_string(), format!("nats://127.0.0.1:{port}"));
    let own = program().await?;
    let mut command: Vec<&OsStr> = ["dev", "--nats-port", &port, "--data-dir"]
        .map(OsStr::new)
        .into();
    command.push(data.as_os_str());
    let began = Instant::now();
    let mut dev = Process::start("dev", own.as_os_str(), command, &log).await?;
    let ready = format!("ready {url}\n");
    eventually("dev is ready", START, async || {
        Ok(dev.printed()?.contains(&ready).then_some(()))
    })
    .await?;
    let is_quick = began.elapsed() < QUIET_FOR;
    let api = Api::new(async_nats::connect(&url).await?);
    eventually("shards are spread evenly", START, async || {
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("nodes")?;
        ensure!(
            nodes.iter().all(|node| node["leads"].as_u64() >= Some(5)),
            "{status}"
        );
        Ok(Some(()))
    })
    .await?;
    let screen = dev.printed()?;
    let (start, after) = screen.split_once(&ready).context("ready")?;
    // A busy machine may cause warnings, here and after it.
    let is_warning = |line: &&str| line.contains(" WARN ");
    let start: Vec<&str> = start.lines().filter(|line| !is_warning(line)).collect();
    let mut unsaid = vec!["leading", "handing over", "connected"];
    unsaid.extend(is_quick.then_some("shards have a leader"));
    for word in unsaid {
        let said = start.iter().find(|line| line.contains(word));
        ensure!(said.is_none(), "{word}: {screen}");
    }
    ensure!(after.lines().all(|line| is_warning(&line)), "{screen}");
    ensure!(dev.stop(STOP).await?.success(), "{}", dev.tail(20));
    ensure!(
        !dev.printed()?.contains("handing over"),
        "{}",
        dev.printed()?
    );
    Ok(())
}

/// Neither the ports nor the data directory can be had twice. No node has started by then.
async fn busy(port: u16, data: &Path, folder: &Path) -> Result<()> {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let web = taken.local_addr()?.port().to_string();
    let other = folder.join("other");
    let (in_use, is_free) = (port.to_string(), free_port()?.to_string());
    let shown = data.display().to_string();
    let no_shop: &[&str] = &[];
    let shop: &[&str] = &["--web", &web];
    for (port, data, more, named) in [
        (&in_use, other.as_path(), no_shop, &in_use),
        (&is_free, data, no_shop, &shown),
        (&is_free, other.as_path(), shop, &web),
    ] {
        let mut command = leashed(program().await?.as_os_str()).await?;
        command
            .arg("dev")
            .arg("--nats-port")
            .arg(port)
            .arg("--data-dir")
            .arg(data)
            .args(more);
        let done = tokio::time::timeout(START, command.output()).await??;
        let said = String::from_utf8_lossy(&done.stderr);
        ensure!(!done.status.success(), "a second dev runs: {said}");
        ensure!(
            done.stdout.is_empty() && !said.contains("panicked"),
            "{said}"
        );
        ensure!(said.contains(named), "does not name {named}: {said}");
    }
    Ok(())
}

struct Dev {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
    /// Its stderr goes here.
    log: std::path::PathBuf,
    url: String,
    port: u16,
    nodes: Vec<(u64, Pid)>,
}

impl Dev {
    async fn start(port: u16, data: &Path, folder: &Path, more: &[&str]) -> Result<Dev> {
        let log = folder.join("dev.stderr");
        let mut command = leashed(program().await?.as_os_str()).await?;
        command
            .arg("dev")
            .arg("--nats-port")
            .arg(port.to_string())
            .arg("--data-dir")
            .arg(data)
            .args(more);
        command
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(&log)?);
        let mut child = command.spawn()?;
        let out = BufReader::new(child.stdout.take().context("stdout")?).lines();
        let mut dev = Dev {
            child,
            out,
            log,
            url: String::new(),
            port,
            nodes: Vec::new(),
        };
        let ready = tokio::time::timeout(START, dev.until_ready()).await;
        ready
            .context("not ready in time")
            .flatten()
            .with_context(|| dev.stderr())?;
        Ok(dev)
    }

    /// `node 1 pid 123`, and so on, then `ready nats://127.0.0.1:P`.
    async fn until_ready(&mut self) -> Result<()> {
        while let Some(line) = self.out.next_line().await? {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["node", id, "pid", pid] => {
                    self.nodes
                        .push((id.parse()?, Pid::from_raw(pid.parse()?).context("pid 0")?));
                }
                ["ready", url] => {
                    ensure!(url == format!("nats://127.0.0.1:{}", self.port), "{line}");
                    self.url = url.to_owned();
                    let ids: Vec<u64> = self.nodes.iter().map(|(id, _)| *id).collect();
                    ensure!(ids == [1, 2, 3], "nodes {ids:?}");
                    return Ok(());
                }
                _ => bail!("on stdout: {line:?}"),
            }
        }
        bail!("dev has ended")
    }

    async fn api(&self) -> Result<Api> {
        Ok(Api::new(async_nats::connect(&self.url).await?))
    }

    /// With `--restart` a node that was killed comes back.
    async fn restarts_a_node(&mut self) -> Result<()> {
        let (id, pid) = self.nodes[2];
        kill_process(pid, Signal::KILL)?;
        let line = tokio::time::timeout(START, self.out.next_line()).await;
        let line = line
            .context("not started again")??
            .context("dev has ended")?;
        let again = line.strip_prefix(&format!("node {id} pid "));
        let again = again.with_context(|| format!("on stdout: {line:?}"))?;
        self.nodes[2].1 = Pid::from_raw(again.parse()?).context("pid 0")?;
        let again = self.nodes[2].1;
        ensure!(again != pid && is_alive(again), "{line}");
        Ok(())
    }

    fn stderr(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_else(|error| error.to_string());
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    fn pid(&self) -> Result<Pid> {
        let pid = self.child.id().context("dev has ended")?;
        Pid::from_raw(i32::try_from(pid)?).context("pid 0")
    }

    /// Ctrl-C: it ends with 0, and everything with it.
    async fn interrupt(&mut self) -> Result<()> {
        kill_process(self.pid()?, Signal::INT)?;
        let status = tokio::time::timeout(STOP, self.child.wait())
            .await
            .context("lives on")??;
        ensure!(status.success(), "dev ended with {status}");
        let more = self.out.next_line().await?;
        ensure!(more.is_none(), "more on stdout: {more:?}");
        self.all_gone(Duration::ZERO).await
    }

    /// kill -9 of dev itself: its children do not outlive it. (On other systems they can.)
    async fn kill(&mut self) -> Result<()> {
        self.child.kill().await?;
        if cfg!(target_os = "linux") {
            self.all_gone(Duration::from_secs(5)).await?;
        }
        Ok(())
    }

    async fn all_gone(&self, patience: Duration) -> Result<()> {
        // A while also without patience: the system reaps orphaned processes.
        eventually(
            "all of dev's children are gone",
            patience + Duration::from_secs(1),
            async || {
                let left = self.nodes.iter().filter(|(_, pid)| is_alive(*pid)).count();
                let port = std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok();
                ensure!(
                    left == 0 && !port,
                    "{left} nodes left, nats-server left: {port}"
                );
                Ok(Some(()))
            },
        )
        .await
    }
}

/// A process that has died and was not reaped counts as dead: no parent reaps it once dev is gone.
fn is_alive(pid: Pid) -> bool {
    let stat = format!("/proc/{}/stat", pid.as_raw_nonzero());
    let is_zombie = std::fs::read_to_string(stat).is_ok_and(|stat| stat.contains(") Z "));
    !is_zombie && test_kill_process(pid).is_ok()
}
