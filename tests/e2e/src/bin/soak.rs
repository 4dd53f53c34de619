//! Runs long soaks, one kind of trouble after the other, and prints a table, or with `--json` one line of JSON.

use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum as _};
use nowserving_e2e::build;
use nowserving_e2e::soak::{self, Row, Trouble};
use serde_json::json;

/// Runs soaks, one kind of trouble after the other
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Plan {
    /// Of each kind
    #[arg(long, default_value_t = 5.0, value_parser = minutes)]
    minutes: f64,
    /// One line of JSON instead of the table
    #[arg(long)]
    json: bool,
    /// [default: all but upgrade]
    #[arg(value_name = "TROUBLE")]
    troubles: Vec<Trouble>,
}

impl Plan {
    fn troubles(&self) -> Vec<Trouble> {
        if !self.troubles.is_empty() {
            return self.troubles.clone();
        }
        let all = Trouble::value_variants().iter().copied();
        all.filter(|it| *it != Trouble::Upgrade).collect()
    }
}

fn minutes(given: &str) -> Result<f64> {
    let minutes = given.parse()?;
    ensure!((0.1..=1_440.0).contains(&minutes), "must be 0.1 to 1440");
    Ok(minutes)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plan = Plan::parse();
    let each = Duration::from_secs_f64(plan.minutes * 60.0);
    let build = build().await?;
    let mut rows = Vec::new();
    for trouble in plan.troubles() {
        if let Some(lack) = trouble.lacks().await? {
            eprintln!("{}: left out, as this machine lacks {lack}", trouble.name());
            continue;
        }
        eprintln!("{} for {} s", trouble.name(), each.as_secs());
        let row = soak::run(trouble, each).await?;
        eprintln!("{}", line(&row));
        rows.push(row);
    }
    let seconds = each.as_secs();
    if plan.json {
        println!(
            "{}",
            json!({"build": build, "seconds": seconds, "rows": rows})
        );
        return Ok(());
    }
    println!("{build}, {seconds} s each\n");
    println!(
        "| trouble | blows | acknowledged | lost | doubled | overtaken | oversold | back after, median | at most | whole after, at most |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for row in &rows {
        println!("{}", line(row));
    }
    Ok(())
}

fn line(row: &Row) -> String {
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} ms | {} ms | {} ms |",
        row.trouble,
        row.blows,
        row.acknowledged,
        row.lost,
        row.doubled,
        row.overtaken,
        row.oversold,
        row.recovery_ms_median,
        row.recovery_ms_max,
        row.whole_ms_max
    )
}
