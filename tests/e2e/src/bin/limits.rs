//! Lets many processes share rate limits, and prints a table, or with `--json` one line of JSON.

use anyhow::Result;
use clap::Parser;
use nowserving_e2e::build;
use nowserving_e2e::limited::{self, Plan};
use serde_json::json;

/// Lets many processes share a limit of 100 a second, one that is not refilled, and an exact one: first undisturbed,
/// then with kill -9 of the leader that counts
#[derive(Debug, Parser)]
#[command(name = "limits")]
struct Args {
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=200))]
    processes: u64,
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(3..=3_600))]
    seconds: u64,
    /// One line of JSON instead of the table
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    let build = build().await?;
    let mut reports = Vec::new();
    for leader_dies in [false, true] {
        let report = limited::run(Plan {
            processes: args.processes,
            seconds: args.seconds,
            quota_per_s: 10,
            exact_per_s: 2,
            leader_dies,
        });
        reports.push((leader_dies, report.await?));
    }
    if args.json {
        let reports: Vec<_> = reports.iter().map(|(_, report)| report).collect();
        println!("{}", json!({"build": build, "reports": reports}));
        return Ok(());
    }
    println!(
        "{build}\n\n\
         | leader | processes | 100/s: passed in | longest gap | quota: passed of | maybe forgotten | exact: passed of | unanswered |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for (leader_dies, report) in reports {
        println!(
            "| {} | {} | {} in {} ms | {} ms | {} of {} | {} | {} of {} | {} |",
            if leader_dies { "killed" } else { "stays" },
            report.processes,
            report.rate_passed,
            report.took_ms,
            report.rate_gap_ms,
            report.quota_passed,
            report.quota,
            report.quota_may_be_forgotten,
            report.exact_passed,
            report.exact,
            report.exact_unknown
        );
    }
    Ok(())
}
