//! Set-up and checks of the workspace:
//! `cargo xtask demo|test|ci|bench|flame|failover|soak|hour|guard|limits|crowd-http|upgrade|turns|sim|bite|dist|tidy|size|cost|metrics-doc|asyncapi`.
//!
//! Every command installs what it lacks first, so that a machine with Rust and
//! nothing else is enough. What xtask says of itself goes to stderr: stdout
//! belongs to the command that is run (`demo --json` ends in one line of JSON).

mod asyncapi;
mod browsers;
mod check;
mod cost;
mod debian;
mod deny;
mod deploy;
mod dist;
mod flame;
mod languages;
mod nats;
mod packages;
mod prometheus;
mod proxies;
mod python;
mod release;
mod sdks;
mod shell;
mod sim;
mod size;
mod steps;
mod tidy;
mod unpacked;
mod upgrade;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Set-up and checks of nowserving")]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a three-node cluster, a crowd of shoppers and a crash, for about a minute
    #[command(disable_help_flag = true)]
    Demo(PassedOn),
    /// Builds everything and runs the tests
    Test(Only),
    /// Runs the tests, and then all that must hold before a change goes in: doc tests, benchmarks once, the simulation, that its
    /// checkers bite, fmt, tidy, clippy, the files of deploy, a release, licences
    Ci(Ci),
    /// Measures nowserving beside JetStream, Redis, etcd and a bare NATS echo: [NAME…] [--rounds N] [--json FILE]
    /// [--binary PATH] [--write-docs DIR]
    #[command(disable_help_flag = true)]
    Bench(PassedOn),
    /// Draws where the processor time of nodes and nats-server goes, as SVG: needs perf
    Flame(flame::FlameArgs),
    /// Kills, stops and cuts off nodes of real clusters under an audited crowd
    #[command(disable_help_flag = true)]
    Soak(PassedOn),
    /// Does what an operator does to a live cluster under load, and times each effect in the metrics: [--minutes N] [--quick]
    #[command(disable_help_flag = true)]
    Hour(PassedOn),
    /// Puts many processes behind one concurrency guard, and counts from outside how many handlers run at once
    #[command(disable_help_flag = true)]
    Guard(PassedOn),
    /// Lets many processes share rate limits, with kill -9 of the leader that counts
    #[command(disable_help_flag = true)]
    Limits(PassedOn),
    /// Puts a crowd of browsers before two gateways, kills the leader and a gateway, and measures streams and checks:
    /// [crowd|streams|checks|all] [--json]
    #[command(disable_help_flag = true)]
    CrowdHttp(PassedOn),
    /// Rolls a cluster from the build of a revision to this one, under an audited crowd: REVISION [--minutes N]
    Upgrade {
        /// A commit, tag or branch
        revision: String,
        /// Passed on to the soak
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Measures how long large lines keep others waiting: [TOKENS] [LINES]
    #[command(disable_help_flag = true)]
    Turns(PassedOn),
    /// Measures how long a failed leader's shards are without service, beside etcd and JetStream
    #[command(disable_help_flag = true)]
    Failover(PassedOn),
    /// Simulates whole clusters under faults, a seed at a time, and checks what must hold
    #[command(disable_help_flag = true)]
    Sim(PassedOn),
    /// Shows that each checker of the simulation notices when its rule is broken on purpose
    #[command(disable_help_flag = true)]
    Bite(PassedOn),
    /// Makes a release: an archive with the stripped binary, a list of what is in it (SBOM), and their checksums
    Dist,
    /// Checks the repository's own rules (sizes, words, dependencies, links)
    Tidy,
    /// Counts lines of code, tests and documents, and the crates of others
    Size(size::SizeArgs),
    /// Counts allocations and instructions of a status, an enter and a check, and compares them with what is written down
    Cost {
        /// Writes it down: crates/front/tests/costs.txt
        #[arg(long)]
        write: bool,
    },
    /// Writes docs/metrics.md from the table of metrics in the code
    MetricsDoc,
    /// Writes docs/asyncapi.yaml from the operations and the types of their payloads
    Asyncapi,
}

#[derive(Args)]
struct Only {
    /// Runs only the steps whose name contains this word; may be given several times
    #[arg(long)]
    only: Vec<String>,
}

#[derive(Args)]
struct Ci {
    #[command(flatten)]
    only: Only,
    /// Also tries what is before the cluster with every proxy and browser, and in every case
    #[arg(long)]
    front: bool,
}

#[derive(Args)]
struct PassedOn {
    /// Passed on to the program (try --help)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let done = match CommandLine::parse().command {
        Command::Demo(PassedOn { args }) => release::run("demo", &args),
        Command::Bench(PassedOn { args }) => release::bench(&args),
        Command::Flame(args) => flame::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Soak(PassedOn { args }) => release::measure("soak", &args),
        Command::Hour(PassedOn { args }) => release::measure("hour", &args),
        Command::Guard(PassedOn { args }) => release::measure("guard", &args),
        Command::Limits(PassedOn { args }) => release::measure("limits", &args),
        Command::CrowdHttp(PassedOn { args }) => release::crowd_http(&args),
        Command::Upgrade { revision, args } => upgrade::run(&revision, &args),
        Command::Turns(PassedOn { args }) => release::measure("turns", &args),
        Command::Failover(PassedOn { args }) => release::failover(&args),
        Command::Sim(PassedOn { args }) => sim::run(&args),
        Command::Bite(PassedOn { args }) => sim::bite(&args),
        Command::Test(Only { only }) => check::test(&only),
        Command::Ci(Ci { only, front }) => check::ci(&only.only, front),
        Command::Dist => dist::run().map(|()| ExitCode::SUCCESS),
        Command::Tidy => tidy::run().map(|()| ExitCode::SUCCESS),
        Command::Size(args) => size::run(&args),
        Command::Cost { write } => cost::run(write).map(|()| ExitCode::SUCCESS),
        Command::MetricsDoc => metrics_doc().map(|()| ExitCode::SUCCESS),
        Command::Asyncapi => asyncapi::write().map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// The test that compares the document with the table writes it, if it may.
fn metrics_doc() -> anyhow::Result<()> {
    let test = "test --locked -p nowserving-node --lib the_document_is_that_of_the_table";
    shell::run(shell::cargo(test).env("NOWSERVING_WRITE_GOLDEN", "1"))
}
