//! `cargo xtask test`, and `cargo xtask ci`: everything that must hold before a change goes in.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::steps::{Done, Steps};
use crate::{
    asyncapi, browsers, cost, deny, deploy, dist, languages, nats, packages, prometheus, proxies,
    sdks, shell, sim, tidy,
};

/// Names the file in which tests note that they were skipped, a line each.
const SKIPPED: &str = "NOWSERVING_SKIPPED_TESTS";
/// Names the folder of the programs under test, which are fresh.
const PROGRAMS: &str = "NOWSERVING_PROGRAMS";
/// How many clusters of tests run at once, by `.config/nextest.toml`.
const CLUSTERS: usize = 5;
/// With it, tests of what is before the cluster try all cases.
const ALL_CASES: &str = "NOWSERVING_FRONT";

/// `cargo xtask test`: builds everything and runs the tests, all steps or those named by `only`.
pub fn test(only: &[String]) -> Result<ExitCode> {
    let mut steps = Steps::new(only);
    test_steps(&mut steps);
    Ok(ended(&steps))
}

/// `cargo xtask ci`: the tests, and everything else that must hold before a change goes in. With `front` also what is
/// before the cluster, with every proxy and browser: the usual tests try each kind once.
pub fn ci(only: &[String], front: bool) -> Result<ExitCode> {
    let mut steps = Steps::new(only);
    test_steps(&mut steps);
    if front {
        steps.step("front", || run_tests(Which::Front));
        steps.step("pages", browsers::pages);
        steps.step("scenarios", browsers::scenarios);
    }
    // Whole clusters of the real engine, with faults: they take processors for minutes, and the next steps wait for most
    // of their time.
    let sim = steps.begin("sim", || sim::in_background(120));
    steps.step("browser", browsers::smoke);
    steps.step("sdks", sdks::check);
    steps.step("asyncapi", asyncapi::check);
    steps.step("doc-tests", || {
        cargo("test --locked --workspace --doc --quiet")
    });
    // Each once, and without a clock: that they still do what they measure. Of the workspace, whose build is there.
    steps.step("benches", || {
        cargo("test --locked --workspace --bench status --bench check")
    });
    steps.step("instructions", cost::instructions);
    steps.step("deploy", deploy::check);
    steps.step("dist", dist::try_out);
    steps.end(sim);
    steps.step("bite", || {
        passed(sim::bite(&[])?, "a checker of the simulation")
    });
    steps.step("components", components);
    steps.step("fmt", || cargo("fmt --all -- --check"));
    steps.step("tidy", || tidy::run().map(|()| Done::Passed));
    steps.step("clippy", || {
        cargo("clippy --locked --workspace --all-targets -- -D warnings")
    });
    steps.step("deny", deny::licenses_bans_sources);
    steps.step("advisories", deny::advisories);
    Ok(ended(&steps))
}

fn test_steps(steps: &mut Steps) {
    steps.step("set-up", set_up);
    steps.step("build", || shell::build_all().map(|_| Done::Passed));
    steps.step("tests", || run_tests(Which::Usual));
}

fn ended(steps: &Steps) -> ExitCode {
    match steps.summary() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// What the tests need beside Rust.
fn set_up() -> Result<Done> {
    let nats_server = nats::ensure()?;
    eprintln!("   nats-server: {}", nats_server.display());
    languages::ensure()?;
    if cfg!(target_os = "linux") && !packages::has("strace") {
        // Without it, the tests of failed syncs are skipped.
        let advice = "strace is missing: install it";
        unless_ci(packages::install(advice, "strace", "strace"))?;
    }
    Ok(Done::Passed)
}

/// A minimal toolchain lacks rustfmt and clippy; rustup can add them.
fn components() -> Result<Done> {
    for (component, command) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !shell::has_cargo(command) {
            let mut add = shell::command("rustup", &format!("component add {component}"));
            shell::run(&mut add).with_context(|| {
                format!("`cargo {command}` is missing and rustup could not add it")
            })?;
        }
    }
    Ok(Done::Passed)
}

/// Which tests are run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// All; the end-to-end ones on real processes are among them.
    Usual,
    /// What is before the cluster, in all cases.
    Front,
}

impl Which {
    /// `--no-fail-fast`: one run tells everything that is wrong.
    fn args(self, has_nextest: bool) -> &'static [&'static str] {
        match (self, has_nextest) {
            (Which::Usual, true) => &[
                "nextest",
                "run",
                "--locked",
                "--workspace",
                "--no-fail-fast",
            ],
            (Which::Usual, false) => &[
                "test",
                "--locked",
                "--workspace",
                "--lib",
                "--bins",
                "--tests",
                "--no-fail-fast",
            ],
            (Which::Front, true) => &[
                "nextest",
                "run",
                "--locked",
                "--workspace",
                "--no-fail-fast",
                "--filterset",
                "package(nowserving-e2e) & test(/^gates_/)",
            ],
            (Which::Front, false) => &[
                "test",
                "--locked",
                "--workspace",
                "--test",
                "e2e",
                "--no-fail-fast",
                "gates_",
            ],
        }
    }
}

fn run_tests(which: Which) -> Result<Done> {
    let nats_server = nats::ensure()?;
    let mut tests = shell::cargo("");
    tests.args(which.args(shell::has_cargo("nextest")));
    if which == Which::Front {
        tests.env(ALL_CASES, "1");
    }
    tests.env(nats::ENV, nats_server);
    // Or else each test asks cargo for them.
    tests.env(PROGRAMS, shell::build_all()?);
    // Those of clusters wait for most of the time. Beside them run as many as there are cores.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tests.env("NEXTEST_TEST_THREADS", (CLUSTERS + cores).to_string());
    // Without it, the test of the dashboards' queries is skipped.
    if let Some(programs) = unless_ci(prometheus::ensure())? {
        tests.env(prometheus::ENV, programs.prometheus);
    }
    // Without one, the tests of its configuration are skipped.
    tests.envs(proxies::ensure()?);
    let skipped = shell::scratch("skipped-tests")?;
    fs::write(&skipped, "")?;
    shell::run(tests.env(SKIPPED, &skipped))?;
    let skipped = fs::read_to_string(&skipped)?;
    let mut skipped: Vec<String> = skipped.lines().map(str::to_owned).collect();
    skipped.sort();
    Ok(Done::passed_without(skipped))
}

/// Programs that a package has are skipped with what needs them where they cannot be had; in CI, nobody would notice.
pub fn unless_ci<T>(installed: Result<T>) -> Result<Option<T>> {
    match installed {
        Err(error) if std::env::var("CI").is_ok_and(|ci| ci == "true") => Err(error),
        Err(error) => {
            eprintln!("   {error:#}");
            Ok(None)
        }
        Ok(installed) => Ok(Some(installed)),
    }
}

fn passed(code: ExitCode, what: &str) -> Result<Done> {
    match code == ExitCode::SUCCESS {
        true => Ok(Done::Passed),
        false => bail!("{what} failed, see above"),
    }
}

fn cargo(words: &str) -> Result<Done> {
    shell::run(&mut shell::cargo(words)).map(|()| Done::Passed)
}
