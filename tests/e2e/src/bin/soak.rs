//! Runs long soaks, one kind of trouble after the other, and prints a table, or with `--json` one line of JSON.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nowserving_e2e::build;
use nowserving_e2e::soak::{self, OTHER_BUILD, Row, Trouble};
use serde_json::json;

/// The command line: `[--minutes N] [--json] [TROUBLE …]`.
struct Plan {
    each: Duration,
    json: bool,
    troubles: Vec<Trouble>,
}

impl Plan {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Plan> {
        let (mut minutes, mut json, mut troubles) = (5.0, false, Vec::new());
        while let Some(arg) = args.next() {
            if arg == "--json" {
                json = true;
                continue;
            }
            if arg == "--minutes" {
                let given = args.next().context("--minutes needs a number")?;
                minutes = given
                    .parse()
                    .with_context(|| format!("--minutes {given}"))?;
                continue;
            }
            match named(&arg) {
                Some(trouble) => troubles.push(trouble),
                None => bail!("{arg}: expected [--minutes N] [--json] [{}]", names()),
            }
        }
        if troubles.is_empty() {
            troubles.extend(Trouble::ALL);
        }
        if !(0.1..=1_440.0).contains(&minutes) {
            bail!("--minutes {minutes}: must be 0.1 to 1440");
        }
        Ok(Plan {
            each: Duration::from_secs_f64(minutes * 60.0),
            json,
            troubles,
        })
    }
}

/// [`Trouble::Upgrade`] needs another build, which `cargo xtask upgrade` makes.
fn named(name: &str) -> Option<Trouble> {
    let upgrade = std::env::var_os(OTHER_BUILD).map(|_| Trouble::Upgrade);
    let mut all = Trouble::ALL.into_iter().chain(upgrade);
    all.find(|it| it.name() == name)
}

fn names() -> String {
    Trouble::ALL.map(Trouble::name).join("|")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let plan = Plan::parse(std::env::args().skip(1))?;
    let build = build().await?;
    let mut rows = Vec::new();
    for trouble in plan.troubles {
        if let Some(lack) = trouble.lacks().await? {
            eprintln!("{}: left out, as this machine lacks {lack}", trouble.name());
            continue;
        }
        eprintln!("{} for {} s", trouble.name(), plan.each.as_secs());
        let row = soak::run(trouble, plan.each).await?;
        eprintln!("{}", line(&row));
        rows.push(row);
    }
    let seconds = plan.each.as_secs();
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
