//! Finding a nats-server, or installing one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::shell;

/// Tells every command started later which nats-server to use.
pub const ENV: &str = "NATS_SERVER";

/// Folders that a plain user's PATH often lacks, or that a package manager has just filled.
const MORE_FOLDERS: [&str; 5] = [
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/opt/homebrew/bin",
    "/home/linuxbrew/.linuxbrew/bin",
];

/// Returns a nats-server that runs, installing it where this can be done without asking.
pub fn ensure() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENV).map(PathBuf::from) {
        // Whoever names one wants that one: falling back to another would hide the mistake.
        if runs(&path) {
            return Ok(path);
        }
        bail!(
            "{ENV}={} is not a nats-server that can be run",
            path.display()
        );
    }
    if let Some(path) = find() {
        return Ok(path);
    }
    install()?;
    find().ok_or_else(|| {
        anyhow::anyhow!("nats-server was installed but cannot be found; set {ENV}=/path/to/it")
    })
}

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join("nats-server"))
        .find(|program| runs(program))
}

fn runs(program: &Path) -> bool {
    program.is_file()
        && shell::succeeds(Command::new(program).arg("--version").stdin(Stdio::null()))
}

fn install() -> Result<()> {
    const ADVICE: &str = "nats-server is missing: install it (https://github.com/nats-io/nats-server/releases) \
                          or set NATS_SERVER=/path/to/nats-server";
    if cfg!(target_os = "macos") && has("brew") {
        return shell::run(loud(&mut shell::command(
            "brew",
            &["install", "nats-server"],
        )));
    }
    if !cfg!(target_os = "linux") || !has("apt-get") {
        bail!(ADVICE);
    }
    let sudo: &[&str] = if is_root() {
        &[]
    } else if shell::succeeds(&mut shell::command("sudo", &["-n", "true"])) {
        &["sudo", "-n"]
    } else {
        bail!(
            "{ADVICE} (apt-get is here, but this user is neither root nor may use sudo without a password)"
        );
    };
    apt(sudo, &["update", "-q"])?;
    apt(
        sudo,
        &[
            "install",
            "-y",
            "-q",
            "--no-install-recommends",
            "nats-server",
        ],
    )
}

fn apt(sudo: &[&str], args: &[&str]) -> Result<()> {
    let words: Vec<&str> = sudo
        .iter()
        .chain(&["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"])
        .chain(args)
        .copied()
        .collect();
    shell::run(loud(&mut shell::command(words[0], &words[1..])))
}

/// An installer's chatter goes to stderr: stdout is not ours.
fn loud(command: &mut Command) -> &mut Command {
    command.stdout(std::io::stderr())
}

fn has(program: &str) -> bool {
    shell::succeeds(&mut shell::command(program, &["--version"]))
}

fn is_root() -> bool {
    shell::output(&mut shell::command("id", &["-u"])).is_ok_and(|uid| uid.trim() == "0")
}
