//! The signals that end a command, and the one that has a daemon read its files again.
//!
//! SIGINT and SIGTERM always do, also if SIGINT was ignored when the program started, as shells start the background jobs
//! of scripts. SIGHUP ends a command that belongs to its terminal; `node`, `dev` and `envoy` go on. A SIGHUP that was ignored
//! when the program started (`nohup`) stays ignored.

use std::process::Command;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for the user or the system to end this program.
#[derive(Debug)]
pub struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hang_ups: HangUps,
}

impl Interrupts {
    /// Of a command that belongs to its terminal: from here on SIGINT, SIGTERM and SIGHUP do not end the process by
    /// themselves.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub fn listen() -> anyhow::Result<Interrupts> {
        Interrupts::with(HangUps::listen()?)
    }

    /// Of a daemon, for which SIGHUP is another word: [`HangUps`].
    ///
    /// # Errors
    /// As [`Interrupts::listen`].
    pub fn of_daemon() -> anyhow::Result<Interrupts> {
        Interrupts::with(HangUps(None))
    }

    fn with(hang_ups: HangUps) -> anyhow::Result<Interrupts> {
        Ok(Interrupts {
            interrupt: signal(SignalKind::interrupt()).context("SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("SIGTERM")?,
            hang_ups,
        })
    }

    /// The name of the next such signal.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            () = self.hang_ups.next() => "SIGHUP",
        }
    }
}

/// Waits for SIGHUP; for ever if that was ignored when the program started.
#[derive(Debug)]
pub struct HangUps(Option<Signal>);

impl HangUps {
    /// From here on SIGHUP does not end the process by itself.
    ///
    /// # Errors
    /// The system refuses the handler.
    pub fn listen() -> anyhow::Result<HangUps> {
        if is_ignored() {
            return Ok(HangUps(None));
        }
        let hang_ups = signal(SignalKind::hangup()).context("SIGHUP")?;
        Ok(HangUps(Some(hang_ups)))
    }

    /// The next one. Cancel-safe.
    pub async fn next(&mut self) {
        if let Some(signal) = &mut self.0
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}

/// Whether this program was started with SIGHUP ignored. To ask the system for it (`sigaction`) is unsafe code in Rust, and
/// no crate that we have wraps that. Children inherit it: a shell may not undo it, and survives the signal then.
fn is_ignored() -> bool {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "kill -HUP $$"]);
    // Without a shell (a small container image) nobody can have said `nohup`.
    shell.status().is_ok_and(|status| status.success())
}
