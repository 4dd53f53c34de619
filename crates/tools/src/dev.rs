//! `nowserving dev`: a cluster on this machine, to develop against.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use nowserving_client::{Client, Code, LineName};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::embedded::tail::Tail;
use crate::embedded::{Cluster, DataDir, NODES, last_lines};
use crate::web::{self, Web};
use nowserving_terminal::number;
use nowserving_terminal::signals::{HangUps, Interrupts};

/// A node that dies at every start must not keep the machine busy.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Runs a three-node cluster with its own nats-server on this machine until SIGINT or SIGTERM; SIGHUP changes nothing.
///
/// On stdout: one line `node N pid P` for each node, then, when every shard has a leader,
/// `ready nats://127.0.0.1:PORT`. The nodes' logs go to stderr and to DATA_DIR/logs, without
/// elections and connections (for those: RUST_LOG=info); nats-server's log is only there. The
/// gateway of --web logs problems to stderr (also requests: RUST_LOG=info).
///
/// A node that dies is reported with the command that starts it again; with --restart it is started
/// again after a second, and has another line `node N pid P`.
#[derive(Debug, clap::Args)]
pub struct DevArgs {
    /// Port of 127.0.0.1 on which the private nats-server listens.
    #[arg(long, default_value_t = 4222, value_parser = number::between::<u16>(1..=65_535))]
    nats_port: u16,
    /// Where the cluster's key, data and logs are kept; made if missing. The next start comes back
    /// with what is there.
    #[arg(long, default_value = "nowserving-data")]
    data_dir: PathBuf,
    /// Restarts a node that dies, one second later.
    #[arg(long)]
    restart: bool,
    /// Opens a shop behind a gateway at this port of 127.0.0.1: a browser waits in the line of --web-line.
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        default_missing_value = "8080",
        value_parser = number::between::<u16>(1..=65_535)
    )]
    web: Option<u16>,
    /// The line in which browsers wait; it may be created later.
    #[arg(long, value_name = "LINE", default_value = "shop-1", requires = "web")]
    web_line: LineName,
}

/// Runs until a signal ends it (exit code 0) or nats-server dies (1).
///
/// # Errors
/// The port of --web is taken, or the cluster cannot be started.
pub async fn run(args: DevArgs) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::of_daemon()?;
    // Taken, so that the end of the terminal does not end it. There is nothing to read again: its nodes look at their
    // key file by themselves, and have no other files.
    let _hang_ups = HangUps::listen()?;
    let dir = DataDir::open(&args.data_dir)?;
    let listener = web::listen(args.web).await?;
    let mut messages = Messages::open(&dir.log("dev"))?;
    let tail = start_tail(&dir)?;
    let outcome = live(&args, dir, listener, &tail, &mut messages, &mut interrupts);
    let outcome = outcome.await;
    tail.finish();
    outcome
}

async fn live(
    args: &DevArgs,
    dir: DataDir,
    listener: Option<TcpListener>,
    tail: &Tail,
    messages: &mut Messages,
    interrupts: &mut Interrupts,
) -> anyhow::Result<ExitCode> {
    let start = Cluster::start(dir, "dev", Some(args.nats_port));
    let mut cluster = tokio::select! {
        cluster = start => cluster?,
        // Dropping the unfinished start kills the processes started so far.
        signal = interrupts.next() => {
            messages.say(&format!("{signal} while starting"));
            return Ok(ExitCode::SUCCESS);
        }
    };
    let ending = tokio::select! {
        ending = serve(&mut cluster, args, listener, tail, messages) => ending,
        signal = interrupts.next() => Ok(signal),
    };
    if let Ok(signal) = &ending {
        messages.say(&format!("{signal}: stopping"));
    }
    tokio::select! {
        killed = cluster.stop() => {
            for name in killed {
                messages.say(&format!("{name} did not end in time and was killed"));
            }
        }
        // Interrupted a second time: dropping the cluster kills the remaining processes.
        signal = interrupts.next() => messages.say(&format!("{signal} again: killing what is left")),
    }
    ending.map(|_| ExitCode::SUCCESS)
}

/// Announces the cluster, then reports each node that ends, or starts it again. Returns only with an
/// error.
async fn serve(
    cluster: &mut Cluster,
    args: &DevArgs,
    listener: Option<TcpListener>,
    tail: &Tail,
    messages: &mut Messages,
) -> anyhow::Result<&'static str> {
    for (id, pid, metrics) in cluster.nodes() {
        announce(&format!("node {id} pid {pid}"))?;
        messages.say(&format!("node {id}: metrics at http://{metrics}/metrics"));
    }
    cluster
        .wait_ready(&mut |waiting_for| messages.say(&waiting_for))
        .await?;
    let client = Client::connect(cluster.url()).await?;
    let is_there = exists(&args.web_line, &client).await;
    messages.say(&next_step(args, is_there, cluster.url()));
    let _web = open_web(client, args, listener, messages).await?;
    // The log so far is shown first, so that this is the last line of the start.
    tail.catch_up().await;
    announce(&format!("ready {}", cluster.url()))?;
    loop {
        let ended = cluster.next_ended().await;
        if !cluster.nats_is_alive() {
            let log = cluster.dir().log("nats-server");
            let last = last_lines(&log, 5);
            anyhow::bail!("{ended}: without it the nodes cannot serve\n{last}");
        }
        let Some(id) = ended.node else { continue };
        if args.restart {
            messages.say(&format!("{ended}; starting it again"));
            tokio::time::sleep(RESTART_PAUSE).await;
            let pid = cluster.restart(id)?;
            // The terminal may be gone.
            let _ = announce(&format!("node {id} pid {pid}"));
        } else {
            let command = cluster.node_command(id)?;
            messages.say(&format!("{ended}; start it again with: {command}"));
            messages.say("stop that node yourself before the next `dev`");
        }
    }
}

/// Whether there is this line: so also if nobody answers that.
async fn exists(line: &LineName, client: &Client) -> bool {
    let info = client.line_by_name(line.clone()).info().await;
    !info.is_err_and(|error| error.code() == Some(Code::LineNotFound))
}

/// What to do with the line that browsers wait in, or would wait in.
fn next_step(args: &DevArgs, is_there: bool, nats: &str) -> String {
    let line = &args.web_line;
    if is_there {
        return format!(
            "the line {line} is there; next, in another terminal: nowserving watch {line} --nats {nats}"
        );
    }
    let create = format!(
        "next, in another terminal: nowserving line create {line} --seats 1 --queue-limit 100 --nats {nats}"
    );
    match args.web {
        Some(_) => format!(
            "until the line {line} exists, the shop's visitors are told that it cannot be reached; {create}"
        ),
        None => create,
    }
}

/// The shop for browsers, which closes when what is returned is dropped.
async fn open_web(
    client: Client,
    args: &DevArgs,
    listener: Option<TcpListener>,
    messages: &mut Messages,
) -> anyhow::Result<Option<JoinSet<()>>> {
    let Some(listener) = listener else {
        return Ok(None);
    };
    let web = Web::open(listener, client, &args.web_line).await?;
    messages.say(&format!(
        "the shop behind the line {}: {}",
        args.web_line,
        web.urls()
    ));
    let mut open = JoinSet::new();
    open.spawn(web.run());
    Ok(Some(open))
}

/// One of the few lines that belong on stdout.
fn announce(line: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .context("cannot write to stdout")
}

fn start_tail(dir: &DataDir) -> anyhow::Result<Tail> {
    let nodes = NODES.iter().map(|id| format!("node-{id}"));
    let names = std::iter::once("dev".to_owned()).chain(nodes);
    let files = names.map(|name| {
        let path = dir.log(&name);
        (name, path)
    });
    Ok(Tail::start(files.collect())?)
}

/// Messages of dev itself. They go to a file that is copied to stderr like the others, so that
/// a stderr that nobody reads cannot stop dev from ending its children.
struct Messages {
    file: File,
}

impl Messages {
    fn open(path: &Path) -> anyhow::Result<Messages> {
        let file = OpenOptions::new().create(true).append(true).open(path);
        Ok(Messages {
            file: file.with_context(|| format!("cannot write {}", path.display()))?,
        })
    }

    fn say(&mut self, text: &str) {
        // A full disk must not keep dev from ending its children either.
        let _ = writeln!(self.file, "{text}");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Dev {
        #[command(flatten)]
        args: DevArgs,
    }

    const NATS: &str = "nats://127.0.0.1:4222";
    const PLAIN: &[&str] = &["dev"];
    const WEB: &[&str] = &["dev", "--web", "8080", "--web-line", "tickets"];

    #[test]
    fn the_next_step_creates_a_line_that_does_not_exist() {
        for (given, line) in [(PLAIN, "shop-1"), (WEB, "tickets")] {
            let args = Dev::parse_from(given).args;
            let said = next_step(&args, false, NATS);
            let create = format!("nowserving line create {line} --seats 1");
            assert!(said.contains(&create) && said.ends_with(NATS), "{said}");
            // Only a shop has visitors that miss it.
            assert_eq!(said.contains("visitors"), args.web.is_some(), "{said}");
        }
    }

    #[test]
    fn the_next_step_watches_a_line_that_exists() {
        for (given, line) in [(PLAIN, "shop-1"), (WEB, "tickets")] {
            let said = next_step(&Dev::parse_from(given).args, true, NATS);
            let watch = format!("nowserving watch {line} --nats {NATS}");
            assert!(said.ends_with(&watch) && !said.contains("create"), "{said}");
        }
    }
}
