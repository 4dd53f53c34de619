//! System calls that fail, by strace.

use std::process::Stdio;

use anyhow::{Context as _, Result};
use tokio::process::{Child, Command};

/// Whether syncs can be made to fail: strace is there, and may trace.
pub async fn strace_works() -> bool {
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-e",
        "inject=fdatasync:error=EIO:when=1",
        "true",
    ]);
    let ran = strace.stdout(Stdio::null()).stderr(Stdio::null()).status();
    ran.await.is_ok_and(|status| status.success())
}

/// From now on the syncs of a process that runs fail, until the process or what is returned ends.
///
/// # Errors
/// There is no strace.
pub fn fail_syncs(pid: u32) -> Result<Child> {
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        "inject=fdatasync:error=EIO",
        "-p",
    ]);
    strace.arg(pid.to_string()).kill_on_drop(true);
    strace.stdin(Stdio::null()).spawn().context("strace")
}
