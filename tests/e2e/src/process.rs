//! One process that a test started: its log, signals to it, its end.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::process::{Child, Command};

use crate::program::program;

/// More of a line of output is not shown: a backtrace is 12 kB, and would push out what failed where only a part of a
/// test's output is kept.
const SHOWN_CHARS: usize = 400;
/// A process stands still so soon after it was told to.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// A process with its output in a file. It ends with this value, whatever happens: dropping kills
/// it, and should the test itself be killed, the leash does.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with `args`; stdout and stderr are added to the file `log`.
    ///
    /// # Errors
    /// It cannot be started, or the log not be written.
    pub async fn start(
        name: &str,
        of: &OsStr,
        args: impl IntoIterator<Item = impl AsRef<OsStr>>,
        log: &Path,
    ) -> Result<Process> {
        let output = File::options().create(true).append(true).open(log);
        let output = output.with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = leashed(of).await?;
        command
            .args(args)
            .stderr(output.try_clone()?)
            .stdout(output);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Process {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Process id; none once its end was seen.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// The system does not say.
    pub fn is_alive(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Sends a signal. After [`Signal::STOP`] it waits until all of its threads stand still: on a busy machine that comes
    /// milliseconds later, in which a node takes requests.
    ///
    /// # Errors
    /// It has ended, or does not stop.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // The id stays taken until the child is reaped, and then `id` is none.
        let pid = self
            .child
            .id()
            .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.with_context(|| format!("{} has ended", self.name))?;
        kill_process(pid, signal)?;
        let deadline = Instant::now() + STOPS_WITHIN;
        let how = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while signal == Signal::STOP && waitid(WaitId::Pid(pid), how)?.is_none() {
            ensure!(Instant::now() < deadline, "{} does not stop", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// The system does not say how it ended.
    pub async fn kill(&mut self) -> Result<ExitStatus> {
        self.child
            .start_kill()
            .with_context(|| format!("cannot kill {}", self.name))?;
        Ok(self.child.wait().await?)
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// It does not end in time.
    pub async fn stop(&mut self, patience: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM)?;
        self.ended(patience).await
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end in time.
    pub async fn ended(&mut self, patience: Duration) -> Result<ExitStatus> {
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!("{} has not ended within {patience:?}", self.name),
        }
    }

    /// All that it has printed so far.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn printed(&self) -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(&self.log)?).into_owned())
    }

    /// The end of its output.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        let text = self.printed().unwrap_or_else(|error| error.to_string());
        let all: Vec<&str> = text.lines().collect();
        let last = all
            .get(all.len().saturating_sub(lines)..)
            .unwrap_or_default();
        let shown = |line: &&str| line.chars().take(SHOWN_CHARS).collect::<String>();
        let last: Vec<String> = last.iter().map(shown).collect();
        format!(
            "── {} ({})\n{}\n",
            self.name,
            self.log.display(),
            last.join("\n")
        )
    }
}

/// A command for `program` that does not outlive this test, not even a killed one.
///
/// It runs under `nowserving leash`, which `dev` and `demo` use for the same purpose. The leash is
/// held by the thread that starts the process; so tests use tokio's single-threaded runtime, whose
/// one thread is the test's.
///
/// # Errors
/// The binary cannot be built.
pub async fn leashed(of: &OsStr) -> Result<Command> {
    let mut command = Command::new(program().await?);
    command
        .args(["leash", "--parent", &std::process::id().to_string(), "--"])
        .arg(of);
    // A group of its own: Ctrl-C in a terminal is for the test, which then ends its children.
    command
        .process_group(0)
        .kill_on_drop(true)
        .stdin(Stdio::null());
    // The user's shell may have settings for other clusters.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("NOWSERVING_") {
            command.env_remove(name);
        }
    }
    // So may their contexts.
    command.env("NOWSERVING_CONFIG_DIR", "/nonexistent/nowserving");
    Ok(command)
}
