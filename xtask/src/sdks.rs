//! The SDKs in other languages: packed, and tried as they are packed.

use std::fs;
use std::path::Path;
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::steps::Done;
use crate::{languages, shell};

/// Those that need nothing but their language.
const PLAIN: [&str; 2] = ["python", "js"];
/// Installs what a lock file of npm names.
pub const NPM_CI: &str = "ci --no-audit --no-fund --loglevel=error";

/// Builds, installs and tests the packages for Python and Node.js, side by side: they wait for most of the time.
pub fn check() -> Result<Done> {
    languages::ensure()?;
    let nowserving = shell::build("--workspace --bin nowserving")?;
    thread::scope(|scope| {
        let run = |sdk| {
            let nowserving = &nowserving;
            (sdk, scope.spawn(move || check_one(sdk, nowserving)))
        };
        for (sdk, checked) in PLAIN.map(run) {
            let checked = checked.join().map_err(|_| anyhow!("it panicked"));
            checked.flatten().with_context(|| format!("sdk/{sdk}"))?;
        }
        Ok(Done::Passed)
    })
}

fn check_one(sdk: &str, nowserving: &Path) -> Result<()> {
    let mut check = shell::command("sh", "check.sh");
    check.current_dir(shell::root().join("sdk").join(sdk));
    check.env("NOWSERVING", nowserving);
    // What both print at once would be mixed.
    let ran = check.output().context("cannot start its check.sh")?;
    let printed = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    ensure!(
        ran.status.success(),
        "its tests fail:\n{}",
        printed.concat()
    );
    Ok(())
}

/// Packs all of them into `folder`: a wheel, and tarballs as npm installs them. Returns the names of the files.
///
/// # Errors
/// One has another version than the crates.
pub fn pack(folder: &Path, version: &str) -> Result<[String; 3]> {
    languages::ensure()?;
    let sdk = shell::root().join("sdk");
    fs::create_dir_all(folder)?;
    let mut wheel = shell::command(
        "python3",
        "-m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir",
    );
    shell::run(wheel.arg(folder).arg(sdk.join("python")))?;
    for name in ["js", "browser"] {
        if !sdk.join(name).join("node_modules").exists() {
            let mut install = shell::command("npm", NPM_CI);
            shell::run(
                install
                    .current_dir(sdk.join(name))
                    .stdout(std::io::stderr()),
            )?;
        }
        let mut pack = shell::command("npm", "pack --silent --pack-destination");
        shell::run(
            pack.arg(folder)
                .current_dir(sdk.join(name))
                .stdout(std::io::stderr()),
        )?;
    }
    let wanted = [
        format!("nowserving-{version}-py3-none-any.whl"),
        format!("nowserving-{version}.tgz"),
        format!("nowserving-browser-{version}.tgz"),
    ];
    for name in &wanted {
        ensure!(
            folder.join(name).is_file(),
            "{name} was not made: is its version that of the crates?"
        );
    }
    Ok(wanted)
}
