//! One child process: started, signalled, reaped.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

/// A child that was reaped.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The child's name: `node 1`, `nats-server`.
    pub name: String,
    /// Which node it was, if it was one.
    pub node: Option<u64>,
    /// Its process id while it lived.
    pub pid: u32,
    pub status: ExitStatus,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ended {
            name, pid, status, ..
        } = self;
        match (status.code(), status.signal()) {
            (Some(code), _) => write!(f, "{name} (pid {pid}) ended with exit code {code}"),
            (None, Some(signal)) => write!(f, "{name} (pid {pid}) was ended by signal {signal}"),
            (None, None) => write!(f, "{name} (pid {pid}) ended"),
        }
    }
}

/// A running (or ended) child. Dropping it kills the process.
#[derive(Debug)]
pub struct Child {
    name: String,
    node: Option<u64>,
    pid: u32,
    /// Reaps the process only when asked for its end, so a process id that it knows is never another's.
    process: tokio::process::Child,
    /// Its end has been reported.
    reported: bool,
}

impl Child {
    /// Starts `command` with its output appended to `log`.
    ///
    /// To be called from a future that `main` itself drives: the leash ([`super::leash`]) is tied to the
    /// *thread* that starts the child, and one of tokio's might end early.
    ///
    /// # Errors
    /// The log cannot be opened or the process not started.
    pub fn start(
        name: String,
        node: Option<u64>,
        mut command: Command,
        log: &Path,
    ) -> anyhow::Result<Child> {
        let output = append(log).with_context(|| format!("cannot write {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            // A group of its own: Ctrl-C in a terminal goes to the whole group, and nats-server
            // would be gone before the nodes could hand over.
            .process_group(0);
        let process = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Child {
            pid: process.id().context("it has no process id")?,
            name,
            node,
            process,
            reported: false,
        })
    }

    /// Its process id; after its end, the one it had.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Reports its end, once. Cancel-safe.
    pub async fn next_end(&mut self) -> Ended {
        match self.process.wait().await {
            Ok(status) if !self.reported => {
                self.reported = true;
                Ended {
                    name: self.name.clone(),
                    node: self.node,
                    pid: self.pid,
                    status,
                }
            }
            _ => std::future::pending().await,
        }
    }

    /// Sends SIGKILL; returns the moment after which no instruction of the child ran, to within
    /// what another processor needs to notice. Nothing happens if it has ended.
    pub fn kill(&mut self) -> Instant {
        // It can only fail for a process that has ended.
        let _ = self.process.start_kill();
        Instant::now()
    }

    /// Asks the child to end (SIGTERM).
    pub fn ask_to_end(&self) {
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // As in `kill`.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits until the child has ended; kills it if that takes longer than `patience`. False if it
    /// had to be killed.
    pub async fn end_within(&mut self, patience: Duration) -> bool {
        let ended = tokio::time::timeout(patience, self.process.wait()).await;
        if ended.is_err() {
            self.kill();
            // It fails only if somebody else has reaped it.
            let _ = self.process.wait().await;
        }
        ended.is_ok()
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt as _;

    use super::*;

    fn shell(script: &str) -> (Child, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let log = dir.path().join("log");
        let child = Child::start("shell".to_owned(), None, command, &log).unwrap();
        (child, dir)
    }

    #[tokio::test]
    async fn a_child_that_ends_is_reaped_and_reported_once() {
        let (mut child, dir) = shell("echo hello; exit 3");
        assert_eq!(
            child.next_end().await.to_string(),
            format!("shell (pid {}) ended with exit code 3", child.pid())
        );
        assert!(!child.is_alive());
        assert!(child.next_end().now_or_never().is_none());
        assert_eq!(
            std::fs::read_to_string(dir.path().join("log")).unwrap(),
            "hello\n"
        );
        // Signals to a reaped child go nowhere.
        child.ask_to_end();
        child.kill();
    }

    /// Waits until the script has printed this.
    async fn prints(dir: &tempfile::TempDir, words: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::fs::read_to_string(dir.path().join("log")).unwrap() != words {
            assert!(Instant::now() < deadline, "does not print {words:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test]
    async fn a_child_that_ignores_sigterm_is_killed() {
        let (mut child, dir) = shell("trap '' TERM; echo ready; while :; do sleep 0.05; done");
        prints(&dir, "ready\n").await;
        child.ask_to_end();
        assert!(!child.end_within(Duration::from_millis(300)).await);
        assert_eq!(child.next_end().await.status.signal(), Some(9));
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let command = Command::new("/nonexistent/program");
        let log = dir.path().join("log");
        let error = Child::start("ghost".to_owned(), None, command, &log);
        assert!(format!("{:#}", error.unwrap_err()).contains("cannot start ghost"));
    }
}
