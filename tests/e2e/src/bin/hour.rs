//! Runs an operator's hour and prints a table, or with `--json` one line of JSON. Exit code 1 if an effect came late, a seat
//! was oversold or somebody was lost.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use nowserving_e2e::build;
use nowserving_e2e::hour::{self, Outcome, Plan};
use serde_json::json;

/// Does what an operator does to a live cluster under load, and times each effect in the metrics
#[derive(Debug, Parser)]
#[command(name = "hour")]
struct Args {
    /// The steps are spread over so long
    #[arg(long, default_value_t = 60.0, value_parser = minutes)]
    minutes: f64,
    /// All of it in about a minute
    #[arg(long, conflicts_with = "minutes")]
    quick: bool,
    /// Each effect must be in the metrics within so many seconds
    #[arg(long, default_value_t = 5)]
    deadline: u64,
    /// One line of JSON instead of the table
    #[arg(long)]
    json: bool,
}

fn minutes(given: &str) -> Result<f64> {
    let minutes = given.parse()?;
    ensure!((0.5..=1_440.0).contains(&minutes), "must be 0.5 to 1440");
    Ok(minutes)
}

impl Args {
    fn plan(&self) -> Plan {
        let lasts = match self.quick {
            true => hour::QUICK,
            false => Duration::from_secs_f64(self.minutes * 60.0),
        };
        Plan {
            lasts,
            deadline: Duration::from_secs(self.deadline),
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let plan = args.plan();
    let build = build().await?;
    let outcome = hour::run(plan).await?;
    let good = outcome.is_well() && outcome.is_in_time();
    if args.json {
        let seconds = plan.lasts.as_secs();
        println!(
            "{}",
            json!({"build": build, "seconds": seconds, "good": good, "hour": outcome})
        );
    } else {
        println!("{build}, {} s\n", plan.lasts.as_secs());
        print(&outcome);
    }
    Ok(match good {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print(outcome: &Outcome) {
    println!("| step | its command took | metric | shows it after |\n|---|---|---|---|");
    for row in &outcome.rows {
        let late = if row.in_time { "" } else { " (late)" };
        println!(
            "| {} | {} ms | `{}` | {} ms{late} |",
            row.step, row.command_ms, row.metric, row.seen_after_ms
        );
    }
    let people = &outcome.people;
    println!(
        "\nIn the line: {} entered, {} completed, {} were kicked as asked, {} wrongly; {} lost, {} doubled, \
         {} oversold. Lost by the restore: {}.",
        people.entered,
        people.completed,
        people.kicked,
        people.wrongly_kicked,
        people.lost,
        people.doubled,
        people.oversold,
        outcome.lost_by_restore
    );
    println!("Beside it: {}", outcome.crowd);
}
