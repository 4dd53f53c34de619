//! What is tried in real browsers: the package for them, the waiting page, the dashboard, and the gateway with all of it.

use anyhow::{Context as _, Result, ensure};

use crate::check::unless_ci;
use crate::sdks::NPM_CI;
use crate::steps::Done;
use crate::{languages, nats, packages, shell};

/// The tests of the waiting page and of the dashboard, with made-up gateways.
const PAGES: &str = "crates/gateway/page/test";
/// Those with a real gateway and cluster.
const SCENARIOS: &str = "tests/browsers";

/// The package for browsers, the waiting page and the dashboard, in Chromium.
pub fn pages() -> Result<Done> {
    languages::ensure()?;
    ensure_chromium()?;
    let mut sdk = shell::command("sh", "check.sh");
    shell::run(sdk.current_dir(shell::root().join("sdk/browser")))?;
    for words in [NPM_CI, "test", "run dashboard"] {
        npm(PAGES, words)?;
    }
    Ok(Done::Passed)
}

/// Visitors of a real gateway, in Chromium and Firefox.
pub fn scenarios() -> Result<Done> {
    ensure_chromium()?;
    ensure_firefox()?;
    against_the_real_thing("test")
}

/// One visitor in Chromium, from the end of the line into the shop.
pub fn smoke() -> Result<Done> {
    match unless_ci(ensure_chromium())? {
        Some(()) => against_the_real_thing("run smoke"),
        None => Ok(Done::Skipped("Chromium is missing".to_owned())),
    }
}

fn against_the_real_thing(words: &str) -> Result<Done> {
    languages::ensure()?;
    ensure_openssl()?;
    let nowserving = shell::build("--workspace --bin nowserving")?;
    npm(SCENARIOS, NPM_CI)?;
    let mut tests = shell::command("npm", words);
    tests.current_dir(shell::root().join(SCENARIOS));
    tests.env("NOWSERVING", nowserving);
    tests.env(nats::ENV, nats::ensure()?);
    shell::run(&mut tests)?;
    Ok(Done::Passed)
}

fn npm(folder: &str, words: &str) -> Result<()> {
    let mut npm = shell::command("npm", words);
    shell::run(npm.current_dir(shell::root().join(folder)))
        .with_context(|| format!("npm {words} in {folder}"))
}

fn ensure_chromium() -> Result<()> {
    let packages = "chromium fonts-noto-core fonts-noto-cjk";
    ensure_program("CHROMIUM", "chromium", "chromium", packages)
}

fn ensure_firefox() -> Result<()> {
    ensure_program("FIREFOX", "firefox-esr", "firefox", "firefox-esr")
}

/// A program that a variable names counts, too.
fn ensure_program(variable: &str, program: &str, brew: &str, apt: &str) -> Result<()> {
    let is_named = std::env::var_os(variable).is_some_and(|given| !given.is_empty());
    if is_named || packages::has(program) {
        return Ok(());
    }
    let advice = format!("{program} is missing: install it, or set {variable}=/path/to/it");
    packages::install(&advice, brew, apt)
}

/// For the certificate of the shop: none is in the repository.
fn ensure_openssl() -> Result<()> {
    let runs = || shell::succeeds(&mut shell::command("openssl", "version"));
    if !runs() {
        packages::install("openssl is missing: install it", "openssl", "openssl")?;
        ensure!(runs(), "openssl was installed, but does not run");
    }
    Ok(())
}
