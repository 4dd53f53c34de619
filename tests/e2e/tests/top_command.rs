//! `nowserving top` on a terminal and without one; `watch --csv`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cli, Cluster, Process, eventually, leashed, program};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;
use tokio::process::Child;

const LINE: &str = "top-line";
const CALM: &str = "calm-line";
const PATIENCE: Duration = Duration::from_secs(30);
/// Ends the alternate screen of a terminal: what was there before is shown again.
const GIVEN_BACK: &str = "\u{1b}[?1049l";

/// One line with people waiting, and one without.
pub async fn shows_the_cluster(cluster: &mut Cluster) -> Result<()> {
    let api = cluster.api().clone();
    // Nobody goes while the test looks, however slow the machine is.
    let settings = json!({"seats": 1, "queue_limit": 50, "labels": {"city": "Taipei"},
        "claim_timeout_ms": 3_600_000, "waiting_idle_timeout_ms": 3_600_000});
    api.admin(LINE, "create", settings).await?;
    api.admin(CALM, "create", json!({"seats": 5, "queue_limit": 50}))
        .await?;
    for nth in 1..=5 {
        api.enter(LINE, &format!("order-{nth}")).await?;
    }
    let url = cluster.nats.url();
    let cli = Cli::new(url.clone());
    as_json(&cli).await?;
    as_text(&cli).await?;
    as_table(cluster, &url).await?;
    on_a_terminal(&url).await
}

async fn as_json(cli: &Cli) -> Result<()> {
    let words = ["top", "--interval", "300ms"];
    eventually("it reports all of it", PATIENCE, async || {
        let report = cli.run(&words).await?.done()?;
        let (first, second) = (&report["lines"][0], &report["lines"][1]);
        ensure!(first["line"] == LINE && second["line"] == CALM, "{report}");
        ensure!(first["waiting"] == 4 && first["pressure"] == 4.0, "{first}");
        ensure!(first["held_back_by"]["by"] == "seats", "{first}");
        ensure!(first["lanes"][0]["next_token"] == 6, "{first}");
        ensure!(first["per_second"]["entered"] == 0.0, "{first}");
        ensure!(first["refused"] == 0 && first["stuck"] == false, "{first}");
        let nodes = report["cluster"]["nodes"].as_array();
        ensure!(nodes.is_some_and(|nodes| nodes.len() == 3), "{report}");
        ensure!(report["more_lines"] == false, "{report}");
        Ok(Some(()))
    })
    .await
}

async fn as_text(cli: &Cli) -> Result<()> {
    let words = ["top", "--once", "--interval", "300ms", "--filter", "city=t"];
    // Any node lists the lines, and may be behind.
    eventually("it shows the line", PATIENCE, async || {
        let shown = cli.run_as_text(&words).await?;
        let rows: Vec<&str> = shown.lines.iter().filter_map(|it| it.as_str()).collect();
        let text = rows.join("\n");
        ensure!(shown.code == 0, "{shown:?}");
        for words in ["nowserving top", "1 line: 4 waiting", LINE, "q quit"] {
            ensure!(text.contains(words), "{words}:\n{text}");
        }
        ensure!(!text.contains(CALM), "{text}");
        Ok(Some(()))
    })
    .await?;
    let refused = cli.run_as_text(&["top"]).await?;
    ensure!(refused.code == 2, "{refused:?}");
    ensure!(refused.stderr.contains("--once"), "{refused:?}");
    Ok(())
}

/// A header, then a row each interval, with the same numbers while nothing happens.
async fn as_table(cluster: &Cluster, url: &str) -> Result<()> {
    let log = cluster.folder().join("top.csv");
    let words = ["--nats", url, "watch", LINE, "--csv", "--interval", "200ms"];
    let own = program().await?;
    let watch = Process::start("csv", own.as_os_str(), words.map(OsStr::new), &log).await?;
    let rows = eventually("it has three rows", PATIENCE, async || {
        let printed = watch.printed()?;
        // On stderr it says that an answer takes long.
        let is_row = |line: &&str| !line.ends_with("; still trying");
        let rows: Vec<String> = printed.lines().filter(is_row).map(str::to_owned).collect();
        Ok((rows.len() > 4).then_some(rows))
    })
    .await?;
    ensure!(
        rows[0]
            == "elapsed_ms,next_token,done_through,admitted_through,accepts_through,waiting,in_checkout,\
                completed,gone_from_seats,gone_waiting,refused,people",
        "{rows:?}"
    );
    let mut before = None;
    // The last one may be half written.
    for row in &rows[1..4] {
        let numbers: Vec<u64> = row
            .split(',')
            .map(str::parse::<u64>)
            .collect::<Result<_, _>>()?;
        // One token holds the seat, four wait, and nobody has claimed, completed or left.
        ensure!(
            numbers.len() == 12 && numbers[1..4] == [6, 0, 1],
            "{rows:?}"
        );
        ensure!(numbers[5..] == [4, 0, 0, 0, 0, 0, 5], "{rows:?}");
        ensure!(before < Some(numbers[0]), "{rows:?}");
        before = Some(numbers[0]);
    }
    Ok(())
}

/// Keys, `q` and SIGTERM.
async fn on_a_terminal(url: &str) -> Result<()> {
    let mut top = OnTerminal::start(url).await?;
    top.shows("lines by pressure").await?;
    top.shows(LINE).await?;
    top.press("\r")?;
    top.shows("TOKENS by number, page 1").await?;
    top.shows("order-3").await?;
    top.press("\t")?;
    top.shows("admitted").await?;
    top.press("q")?;
    ensure!(top.ended().await? == Some(0), "{}", top.printed());
    top.shows(GIVEN_BACK).await?;

    let mut top = OnTerminal::start(url).await?;
    top.shows(LINE).await?;
    let pid = top.child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(Pid::from_raw).context("it runs")?;
    kill_process(pid, Signal::TERM)?;
    ensure!(top.ended().await? == Some(143), "{}", top.printed());
    top.shows(GIVEN_BACK).await
}

/// `top` on a pseudoterminal.
struct OnTerminal {
    child: Child,
    keys: File,
    printed: Arc<Mutex<Vec<u8>>>,
}

impl OnTerminal {
    async fn start(url: &str) -> Result<OnTerminal> {
        let (ours, its) = terminal()?;
        let mut command = leashed(program().await?.as_os_str()).await?;
        command
            .args(["--nats", url, "top", "--interval", "300ms"])
            .env("TERM", "xterm-256color")
            .stdin(its.try_clone()?)
            .stdout(its.try_clone()?)
            .stderr(its);
        let child = command.spawn()?;
        // The command holds its side of the terminal: without it, reading ends with the process.
        drop(command);
        let printed = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, kept) = (ours.try_clone()?, Arc::clone(&printed));
        std::thread::spawn(move || {
            let mut piece = [0; 4_096];
            while let Ok(count @ 1..) = screen.read(&mut piece) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&piece[..count]);
            }
        });
        Ok(OnTerminal {
            child,
            keys: ours,
            printed,
        })
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    /// All that was drawn since the start.
    fn printed(&self) -> String {
        let printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&printed).into_owned()
    }

    async fn shows(&self, words: &str) -> Result<()> {
        eventually(&format!("it shows {words:?}"), PATIENCE, async || {
            let printed = self.printed();
            ensure!(printed.contains(words), "{printed:?}");
            Ok(Some(()))
        })
        .await
    }

    async fn ended(&mut self) -> Result<Option<i32>> {
        let status = tokio::time::timeout(PATIENCE, self.child.wait()).await;
        Ok(status.context("it does not end")??.code())
    }
}

/// The two sides of a terminal of 80 x 24.
fn terminal() -> Result<(File, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
    let ours = openpt(flags)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::<u8>::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let its = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
    let size = Winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&its, size)?;
    Ok((File::from(ours), its))
}
