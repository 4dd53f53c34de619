//! Installing programs by the system's package manager, where this can be done without asking.

use std::process::Command;

use anyhow::{Result, bail};

use crate::shell;

/// Installs packages by brew (macOS) or apt (Linux); elsewhere fails with `advice`.
pub fn install(advice: &str, brew: &str, apt: &str) -> Result<()> {
    if cfg!(target_os = "macos") && has("brew") {
        let mut install = shell::command("brew", &format!("install {brew}"));
        return shell::run(loud(&mut install));
    }
    let apt_get = apt_get(advice)?;
    apt_get("update -q")?;
    apt_get(&format!("install -y -q --no-install-recommends {apt}"))
}

/// Renews apt's list of packages; fails with `advice` where it cannot.
pub fn update(advice: &str) -> Result<()> {
    apt_get(advice)?("update -q")
}

/// Runs apt-get with the rights that it needs.
fn apt_get(advice: &str) -> Result<impl Fn(&str) -> Result<()> + use<>> {
    if !cfg!(target_os = "linux") || !has("apt-get") {
        bail!("{advice}");
    }
    let sudo = if is_root() {
        ""
    } else if shell::succeeds(&mut shell::command("sudo", "-n true")) {
        "sudo -n"
    } else {
        bail!(
            "{advice} (apt-get is here, but this user is neither root nor may use sudo without a password)"
        );
    };
    // `sudo` does not keep variables, so the second `env` sets it; the first starts what follows.
    Ok(move |what: &str| {
        let words = format!("{sudo} env DEBIAN_FRONTEND=noninteractive apt-get {what}");
        shell::run(loud(&mut shell::command("env", &words)))
    })
}

/// An installer's chatter goes to stderr: stdout is not ours.
fn loud(command: &mut Command) -> &mut Command {
    command.stdout(std::io::stderr())
}

/// Whether a program is there and runs.
pub fn has(program: &str) -> bool {
    shell::succeeds(&mut shell::command(program, "--version"))
}

fn is_root() -> bool {
    shell::output(&mut shell::command("id", "-u")).is_ok_and(|uid| uid.trim() == "0")
}
