//! `nowserving leash`: starts a program that does not outlive its parent process.
//!
//! A `dev` that is killed with -9 can no longer end its children, and one process must not leave
//! four behind that hold a port and a data directory. Linux can do that: a process asks to be killed
//! when its parent dies. It has to ask by itself, between fork and exec, which in Rust takes unsafe
//! code (`pre_exec`). So a small detour does it: this hidden command asks, then becomes the program
//! (the request survives exec, the process id stays). That covers nats-server too, which has no flag
//! for it. On other systems the program simply starts, and can outlive a parent killed with -9.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context as _;

/// Name of the hidden subcommand, as `main` must know it.
pub const NAME: &str = "leash";

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub struct LeashArgs {
    /// Process id of the parent; ends at once if that process is gone already.
    #[arg(long)]
    parent: i32,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// A command that runs `program` on a leash held by this process.
///
/// # Errors
/// The path of the running program is unknown.
pub fn command(program: &Path) -> anyhow::Result<Command> {
    let own = std::env::current_exe().context("where is this program?")?;
    let mut command = Command::new(own);
    command
        .arg(NAME)
        .arg("--parent")
        .arg(std::process::id().to_string())
        .arg("--")
        .arg(program);
    Ok(command)
}

/// Becomes the program; returns only when that fails.
///
/// # Errors
/// The parent is gone, or the program cannot be started.
pub fn run(args: LeashArgs) -> anyhow::Result<ExitCode> {
    tie_to_parent(args.parent)?;
    let (program, rest) = args.command.split_first().context("no program given")?;
    let error = Command::new(program).args(rest).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}

#[cfg(target_os = "linux")]
fn tie_to_parent(parent: i32) -> anyhow::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    // KILL rather than TERM: no process is left that could follow up if TERM were ignored.
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl")?;
    // The parent may have died before the request was in place.
    let found = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    anyhow::ensure!(
        found == parent,
        "process {parent}, which started this, is gone"
    );
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn tie_to_parent(_parent: i32) -> anyhow::Result<()> {
    Ok(())
}
