//! One child process: started, signalled, reaped.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::sync::{mpsc, watch};

/// A child that was reaped.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The child's name: `node 1`, `nats-server`.
    pub name: String,
    /// Which node it was, if it was one.
    pub node: Option<u64>,
    /// Its process id while it lived.
    pub pid: u32,
    /// How it ended.
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
    pid: u32,
    /// Set while the process exists, reaped or not; signals are sent under this lock, so that they
    /// never reach another process that got the same id after the child was reaped.
    live: Arc<Mutex<Option<Pid>>>,
    status: watch::Receiver<Option<ExitStatus>>,
}

impl Child {
    /// Starts `command` with its output appended to `log`, and a thread that waits for its end and
    /// reports that to `ended`.
    ///
    /// The thread that waits is also the one that starts the child, because the leash
    /// ([`super::leash`]) is tied to the *thread* that forked: one of tokio's might end early.
    ///
    /// # Errors
    /// The log cannot be opened or the process not started.
    pub async fn start(
        name: String,
        node: Option<u64>,
        mut command: Command,
        log: &Path,
        ended: mpsc::Sender<Ended>,
    ) -> anyhow::Result<Child> {
        let output = append(log).with_context(|| format!("cannot write {}", log.display()))?;
        command
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output)
            // A group of its own: Ctrl-C in a terminal goes to the whole group, and nats-server
            // would be gone before the nodes could hand over.
            .process_group(0);
        let (started_tx, started) = tokio::sync::oneshot::channel();
        let (status_tx, status) = watch::channel(None);
        let live = Arc::new(Mutex::new(None));
        let thread = std::thread::Builder::new().name(format!("wait {name}"));
        let (thread_name, thread_live) = (name.clone(), Arc::clone(&live));
        thread.spawn(move || {
            let mut child = match command.spawn() {
                Ok(child) => child,
                Err(error) => return drop(started_tx.send(Err(error))),
            };
            let pid = child.id();
            *lock(&thread_live) = Some(Pid::from_child(&child));
            // A caller that is gone (interrupted while starting) cannot end the child any more.
            if started_tx.send(Ok(pid)).is_err() {
                signal(&thread_live, Signal::KILL);
            }
            if let Some(status) = reap(&mut child, &thread_live) {
                status_tx.send_replace(Some(status));
                // A full channel has no active reader, who could use the event.
                let _ = ended.try_send(Ended {
                    name: thread_name,
                    node,
                    pid,
                    status,
                });
            }
        })?;
        let pid = started
            .await
            .context("the thread that starts it is gone")
            .and_then(|started| started.map_err(anyhow::Error::from))
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Child {
            name,
            pid,
            live,
            status,
        })
    }

    /// Its process id; after its end, the one it had.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it has not been reaped yet.
    pub fn is_alive(&self) -> bool {
        self.status.borrow().is_none()
    }

    /// Sends SIGKILL; returns the moment after which no instruction of the child ran, to within
    /// what another processor needs to notice. Nothing happens if it has ended.
    pub fn kill(&self) -> Instant {
        signal(&self.live, Signal::KILL);
        Instant::now()
    }

    /// Asks the child to end (SIGTERM).
    pub fn ask_to_end(&self) {
        signal(&self.live, Signal::TERM);
    }

    /// Waits until the child has ended; kills it if that takes longer than `patience`. False if it
    /// had to be killed.
    pub async fn end_within(&mut self, patience: Duration) -> bool {
        if tokio::time::timeout(patience, self.ended()).await.is_ok() {
            return true;
        }
        self.kill();
        self.ended().await;
        false
    }

    /// Waits until the child has been reaped.
    pub async fn ended(&mut self) {
        // The sender is dropped without a status only if its thread died: then there is no child to
        // wait for.
        let _ = self.status.wait_for(Option::is_some).await;
    }

    /// The child's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn reap(child: &mut std::process::Child, live: &Mutex<Option<Pid>>) -> Option<ExitStatus> {
    let pid = Pid::from_child(child);
    // NOWAIT leaves the dead child in the process table, so its id stays taken until the lock below
    // is held.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
    let mut live = lock(live);
    *live = None;
    child.wait().ok()
}

fn signal(live: &Mutex<Option<Pid>>, signal: Signal) {
    if let Some(pid) = *lock(live) {
        // It can only fail for a process that is already dead.
        let _ = kill_process(pid, signal);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn shell(script: &str) -> (Child, mpsc::Receiver<Ended>, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let (tx, rx) = mpsc::channel(4);
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        let log = dir.path().join("log");
        let child = Child::start("shell".to_owned(), None, command, &log, tx)
            .await
            .unwrap();
        (child, rx, dir)
    }

    #[tokio::test]
    async fn a_child_that_ends_is_reaped_and_reported() {
        let (mut child, mut ended, dir) = shell("echo hello; exit 3").await;
        child.ended().await;
        assert!(!child.is_alive());
        let ended = ended.recv().await.unwrap();
        assert_eq!(
            ended.to_string(),
            format!("shell (pid {}) ended with exit code 3", child.pid())
        );
        assert_eq!(
            std::fs::read_to_string(dir.path().join("log")).unwrap(),
            "hello\n"
        );
        // Signals to a reaped child go nowhere.
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
    async fn who_ignores_sigterm_is_killed() {
        let (mut child, mut ended, dir) =
            shell("trap '' TERM; echo ready; while :; do sleep 0.05; done").await;
        prints(&dir, "ready\n").await;
        child.ask_to_end();
        assert!(!child.end_within(Duration::from_millis(300)).await);
        assert_eq!(ended.recv().await.unwrap().status.signal(), Some(9));
    }

    #[tokio::test]
    async fn a_program_that_does_not_exist_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let (tx, _rx) = mpsc::channel(4);
        let command = Command::new("/nonexistent/program");
        let log = dir.path().join("log");
        let error = Child::start("ghost".to_owned(), None, command, &log, tx).await;
        assert!(format!("{:#}", error.unwrap_err()).contains("cannot start ghost"));
    }
}
