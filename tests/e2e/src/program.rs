//! The programs under test: their paths, freshly built.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use tokio::process::Command;
use tokio::sync::OnceCell;

static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();

/// From now on [`program`] is this one.
///
/// # Errors
/// It was asked for before.
pub fn use_program(path: PathBuf) -> Result<()> {
    PROGRAM.set(path).context("a program was started before")
}

/// The `nowserving` binary, freshly built.
///
/// # Errors
/// It cannot be built.
pub async fn program() -> Result<PathBuf> {
    let built = PROGRAM.get_or_try_init(|| fresh("nowserving"));
    built.await.cloned()
}

/// A program of `examples/`, freshly built.
///
/// # Errors
/// It cannot be built.
pub async fn example(name: &str) -> Result<PathBuf> {
    fresh(name).await
}

/// From the folder `NOWSERVING_PROGRAMS`, whose programs `cargo xtask test` has just built, or else by cargo.
///
/// Cargo knows no dependency of a test on another package's binary. So without that variable the test has it built: that
/// takes half a second if it is fresh, and a stale one can never pass for the code at hand.
async fn fresh(program: &str) -> Result<PathBuf> {
    let Some(folder) = std::env::var_os("NOWSERVING_PROGRAMS") else {
        return by_cargo(program).await;
    };
    let path = in_folder(Path::new(&folder), program);
    ensure!(path.is_file(), "NOWSERVING_PROGRAMS has no {program}");
    Ok(path)
}

fn in_folder(folder: &Path, program: &str) -> PathBuf {
    folder.join(format!("{program}{}", std::env::consts::EXE_SUFFIX))
}

async fn by_cargo(program: &str) -> Result<PathBuf> {
    // target/<folder of the profile>/deps/e2e-<hash> for a test, without `deps` for a program.
    let test = std::env::current_exe().context("where is this program?")?;
    let folder = test
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"))
        .context("this program is not in a target folder")?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => bail!("{}: not in a target folder", test.display()),
    };
    let target = folder
        .parent()
        .context("this program is not in a target folder")?;
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let mut command = Command::new(cargo);
    // `--workspace`: with the features that the whole workspace gives its dependencies, as when
    // this test was built; for one package alone they would be built a second time.
    command.args([
        "build",
        "--quiet",
        "--workspace",
        "--bin",
        program,
        "--profile",
        profile,
    ]);
    command.arg("--target-dir").arg(target);
    // Build scripts would take the variables that cargo sets for a test as a change: half of the
    // dependencies would be built again.
    for (name, _) in std::env::vars_os() {
        let own = [
            "CARGO_MANIFEST_",
            "CARGO_PKG_",
            "CARGO_CRATE_",
            "CARGO_BIN_",
        ];
        if own
            .iter()
            .any(|own| name.to_string_lossy().starts_with(own))
        {
            command.env_remove(name);
        }
    }
    command
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .stdin(Stdio::null());
    let status = command.status().await.context("cannot start cargo")?;
    if !status.success() {
        bail!("{program} cannot be built: {status}");
    }
    Ok(in_folder(folder, program))
}

/// What it is: its version, and the profile with which it was built.
///
/// # Errors
/// It cannot be built or run.
pub async fn build() -> Result<String> {
    let path = program().await?;
    let ran = Command::new(&path).arg("--version").output().await?;
    let version = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    let folder = path.parent().and_then(|folder| folder.file_name());
    let profile = folder.unwrap_or_default().to_string_lossy();
    Ok(format!("{version}, {profile} build"))
}

/// A nats-server: `NATS_SERVER`, or else one in PATH or where packages put it.
///
/// # Errors
/// There is none.
pub fn nats_server() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NATS_SERVER") {
        return Ok(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/bin", "/opt/homebrew/bin"].map(PathBuf::from))
        .map(|folder| folder.join("nats-server"))
        .find(|program| program.is_file())
        .context("no nats-server: run `cargo xtask test`, which installs one, or set NATS_SERVER")
}
