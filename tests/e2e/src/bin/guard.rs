//! Runs many processes behind one concurrency guard and prints a table, or with `--json` one line of JSON.

use anyhow::Result;
use clap::Parser;
use nowserving_e2e::build;
use nowserving_e2e::guarded::{self, Plan};
use serde_json::json;

/// Puts many processes behind one guard; one is killed (-9), and so is the line's leader
#[derive(Debug, Parser)]
#[command(name = "guard")]
struct Args {
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(2..=200))]
    processes: u16,
    /// In all processes together
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    handlers: u32,
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=1_000))]
    seats: u16,
    /// The guard's default options in place of `Deny`
    #[arg(long)]
    default_options: bool,
    /// One line of JSON instead of the table
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let build = build().await?;
    let report = guarded::run(Plan {
        processes: args.processes.into(),
        handlers: args.handlers as usize,
        seats: args.seats.into(),
        leader_dies: true,
        default_options: args.default_options,
    })
    .await?;
    if args.json {
        println!("{}", json!({"build": build, "report": report}));
        return Ok(());
    }
    println!("{build}\n");
    println!(
        "| processes | seats | handlers run | most at once | overtaken | seat of the killed process free after | took |\n\
         |---|---|---|---|---|---|---|\n\
         | {} | {} | {} | {} | {} | {} ms | {} ms |\n\n{}",
        report.processes,
        report.seats,
        report.started,
        report.at_once,
        report.overtaken,
        report.freed_ms,
        report.took_ms,
        report.ended
    );
    Ok(())
}
