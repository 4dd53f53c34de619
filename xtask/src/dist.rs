//! `dist`: a release in `target/dist`: an archive, the list of the crates in it (CycloneDX), the SDKs in `sdk`, and checksums.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::steps::Done;
use crate::{sdks, shell};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const SBOM_VERSION: &str = "0.10.0";
const SHELLS: [(&str, &str); 3] = [
    ("bash", "nowserving.bash"),
    ("zsh", "_nowserving"),
    ("fish", "nowserving.fish"),
];

/// Makes all of it in `target/dist`, and checks it.
pub fn run() -> Result<()> {
    // The texts are those of HEAD, the binary is that of the working tree: they must be the same.
    let changes = shell::output(&mut shell::command("git", "status --porcelain"))?;
    ensure!(
        changes.is_empty(),
        "a release is made of what is committed, and this is not:\n{changes}"
    );
    let dist = shell::root().join("target/dist");
    let binary = build(&dist.join("build"))?;
    let archive = make(&dist, &binary, Some(&bill_of_materials()?))?;
    eprintln!("xtask: {}", archive.display());
    Ok(())
}

/// The same with the binary of the other tests, which is no release, in another folder, and without the list of crates: the
/// program that makes it has some ninety dependencies, and building it takes minutes.
pub fn try_out() -> Result<Done> {
    if !cfg!(target_os = "linux") {
        let why = "it takes GNU tar and sha256sum";
        return Ok(Done::Skipped(why.to_owned()));
    }
    let binary = shell::build("--workspace --bin nowserving")?;
    make(&shell::root().join("target/dist-tried"), &binary, None)?;
    Ok(Done::Passed)
}

/// Everything that comes after the build, with the list of crates if there is one; returns the archive.
fn make(dist: &Path, binary: &Path, bill: Option<&str>) -> Result<PathBuf> {
    let name = format!("nowserving-{VERSION}-{}", target()?);
    let folder = dist.join(&name);
    for old in [&folder, &dist.join("check")] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| old.display().to_string())?;
        }
    }
    fs::create_dir_all(&folder)?;
    fill(&folder, binary)?;
    let archive = format!("{name}.tar.gz");
    pack(dist, &name, &archive)?;
    let sdk = dist.join("sdk");
    if sdk.exists() {
        fs::remove_dir_all(&sdk).with_context(|| sdk.display().to_string())?;
    }
    let packages = sdks::pack(&sdk, VERSION)?;
    let mut sums = shell::command("sha256sum", &archive);
    sums.args(packages.map(|name| format!("sdk/{name}")));
    if let Some(bill) = bill {
        let file = format!("{name}.cdx.json");
        fs::write(dist.join(&file), bill)?;
        sums.arg(file);
    }
    let sums = shell::output(sums.current_dir(dist))?;
    fs::write(dist.join("SHA256SUMS"), sums)?;
    check(dist, &name, &archive)?;
    Ok(dist.join(archive))
}

/// As `rustc` names this machine's kind.
fn target() -> Result<String> {
    let told = shell::output(&mut shell::command("rustc", "--version --verbose"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not tell its host")?.to_owned())
}

/// The stripped binary, in a target folder of its own: other builds keep their debug information, and stay fresh.
fn build(target: &Path) -> Result<PathBuf> {
    eprintln!("xtask: building the release (some minutes the first time)");
    let mut build = shell::cargo("build --locked --quiet --release --package nowserving");
    build
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    shell::run(build.arg("--target-dir").arg(target))?;
    Ok(target.join("release/nowserving"))
}

/// What the archive has: the binary, its man pages and completions, the texts and `deploy`.
fn fill(folder: &Path, binary: &Path) -> Result<()> {
    fs::copy(binary, folder.join("nowserving"))?;
    // What is committed, and nothing else: a trial's key may lie in the folders.
    let texts = folder.with_extension("texts.tar");
    let mut export = shell::command("git", "archive --format=tar --output");
    let names = [
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "deploy",
        "docs",
        "examples/shopper.py",
        "examples/shopper.mjs",
    ];
    shell::run(export.arg(&texts).arg("HEAD").args(names))?;
    let mut unpack = shell::command("tar", "-xf");
    shell::run(unpack.arg(&texts).arg("-C").arg(folder))?;
    fs::remove_file(&texts)?;
    let nowserving = binary.to_string_lossy();
    let completions = folder.join("completions");
    fs::create_dir(&completions)?;
    for (shell_name, file) in SHELLS {
        let words = format!("completions {shell_name}");
        let text = shell::output(&mut shell::command(&nowserving, &words))?;
        fs::write(completions.join(file), text)?;
    }
    let man = folder.join("man");
    fs::create_dir(&man)?;
    shell::run(shell::command(&nowserving, "man").arg(&man))?;
    ensure!(fs::read_dir(&man)?.next().is_some(), "no man pages");
    Ok(())
}

/// The same bytes from the same files: order, owners and times are fixed.
fn pack(dist: &Path, name: &str, archive: &str) -> Result<()> {
    let committed = shell::output(&mut shell::command("git", "log -1 --format=%ct"));
    let time = committed.map_or_else(|_| "0".to_owned(), |time| time.trim().to_owned());
    let words = format!(
        "--create --gzip --sort=name --owner=0 --group=0 --numeric-owner --mtime=@{time} --file {archive} {name}"
    );
    shell::run(shell::command("tar", &words).current_dir(dist))
}

/// The crates that the binary is built from, as CycloneDX.
fn bill_of_materials() -> Result<String> {
    let program = shell::cargo_program("cargo-sbom", SBOM_VERSION)?;
    let words = "--cargo-package nowserving --output-format cyclone_dx_json_1_6";
    let text = shell::output(&mut shell::command(&program.to_string_lossy(), words))?;
    let bill: Value = serde_json::from_str(&text).context("cargo-sbom printed no JSON")?;
    let components = bill["components"].as_array().map_or(0, Vec::len);
    ensure!(components > 10, "cargo-sbom names {components} components");
    Ok(text)
}

/// The checksums are right, and the binary out of the archive runs.
fn check(dist: &Path, name: &str, archive: &str) -> Result<()> {
    let mut sums = shell::command("sha256sum", "--check --strict --quiet SHA256SUMS");
    shell::run(sums.current_dir(dist))?;
    let unpacked = dist.join("check");
    fs::create_dir_all(&unpacked)?;
    let mut unpack = shell::command("tar", &format!("-xzf {archive} -C check"));
    shell::run(unpack.current_dir(dist))?;
    let binary = unpacked.join(name).join("nowserving");
    let told = shell::output(&mut shell::command(&binary.to_string_lossy(), "--version"))?;
    ensure!(told.contains(VERSION), "its --version is {told}");
    Ok(fs::remove_dir_all(&unpacked)?)
}
