//! `flame`: a flame graph of the nodes and nats-server while they are asked.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use clap::Args;

use crate::{nats, shell};

/// Draws what perf has recorded. A program beside the workspace and no library in it: its licence is the CDDL.
const INFERNO: &str = "0.12.8";
/// Frames with less of the whole are left out, in percent.
const SMALLEST: &str = "0.4";

#[derive(Args)]
pub struct FlameArgs {
    /// `enter`, `lines` (entering 1,000 of them), `status` or `check` (of a rate limit)
    what: String,
    /// Requests in flight
    #[arg(long, default_value_t = 64)]
    in_flight: u32,
    /// Where the picture goes [default: docs/performance/WHAT.svg]
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Builds `nowserving` with frame pointers, has it asked under perf, and draws.
///
/// # Errors
/// There is no perf, or one of these fails.
pub fn run(args: &FlameArgs) -> Result<()> {
    if !shell::succeeds(&mut shell::command("perf", "--version")) {
        bail!("`flame` needs perf (Debian's package is linux-perf)");
    }
    let nats_server = nats::ensure()?;
    let inferno = |name| shell::cargo_programs("inferno", INFERNO, name);
    let (folds, draws) = (
        inferno("inferno-collapse-perf")?,
        inferno("inferno-flamegraph")?,
    );
    // Of its own folder: other flags would have everything built again each time.
    let flags = "--release --package nowserving --target-dir target/frames";
    let binary = shell::build_with(flags, |cargo| {
        cargo.env("RUSTFLAGS", "-C force-frame-pointers=yes")
    })?;
    let compare = shell::build("--release --package nowserving-compare")?;
    let samples = shell::scratch("perf.data")?;
    let in_flight = args.in_flight.to_string();
    let mut profile = shell::command(&compare.to_string_lossy(), "profile");
    profile
        .args([&args.what, "--in-flight", &in_flight, "--binary"])
        .arg(binary)
        .arg("--record")
        .arg(&samples)
        .env(nats::ENV, nats_server);
    shell::run(&mut profile)?;
    let svg = args
        .svg
        .clone()
        .unwrap_or_else(|| shell::root().join(format!("docs/performance/{}.svg", args.what)));
    if let Some(folder) = svg.parent() {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let (stacks, folded) = (shell::scratch("stacks")?, shell::scratch("folded")?);
    let mut script = shell::command("perf", "script --input");
    shell::run_into(script.arg(&samples), &stacks)?;
    let mut fold = shell::command(&folds.to_string_lossy(), "");
    shell::run_into(fold.arg(&stacks), &folded)?;
    let what = &args.what;
    let title = format!("{what}, {in_flight} in flight: three nodes and nats-server");
    let mut draw = shell::command(&draws.to_string_lossy(), "--deterministic --minwidth");
    draw.args([SMALLEST, "--title", &title]).arg(&folded);
    shell::run_into(&mut draw, &svg)
}
