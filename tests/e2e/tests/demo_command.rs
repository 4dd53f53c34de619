//! `nowserving demo`, as a script would run it.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cli, number};
use serde_json::Value;

/// The last line's fields, as the demo's documentation lists them.
const FIELDS: [&str; 15] = [
    "nodes",
    "shoppers",
    "acknowledged",
    "issued",
    "completed",
    "gone",
    "refused",
    "seats",
    "in_checkout_max",
    "overtakes",
    "duplicates",
    "lost",
    "failover_ms",
    "seat_use_percent",
    "duration_ms",
];

/// What limits of 100 a second let through in any second and in any five: fixed window, sliding window counter, sliding
/// window log, token and leaking bucket of 50.
const ALLOWED: [[u64; 2]; 5] = [[200, 600], [200, 600], [100, 500], [150, 550], [101, 501]];

/// What those limits let through in a second for good.
const PER_SECOND: u64 = 100;

/// A hundred shoppers before ten seats, and a leader that is killed half way.
pub async fn a_small_crowd() -> Result<()> {
    // It brings a cluster of its own; the address is not used.
    let cli = Cli::new("nats://127.0.0.1:1".to_owned());
    let words = ["demo", "--shoppers", "100", "--seats", "10", "--seed", "1"];
    let said = cli.run(&words).await?;
    let stderr = said.stderr.clone();
    let report = said.done()?;
    for field in FIELDS {
        ensure!(report.get(field).is_some(), "no {field} in {report}");
    }
    for field in ["overtakes", "duplicates", "lost", "refused"] {
        ensure!(report[field] == 0, "{field}: {report}\n{stderr}");
    }
    ensure!(report["nodes"] == 3 && report["shoppers"] == 100 && report["seats"] == 10);
    ensure!(
        (1..=10).contains(&number(&report, "in_checkout_max")?),
        "{report}"
    );
    // The leader did die, and a write followed.
    ensure!(number(&report, "failover_ms")? > 0, "{report}");
    sums(&report)
}

/// Clients that share rate limits, and a leader that is killed half way.
pub async fn rate_limits() -> Result<()> {
    // As above.
    let cli = Cli::new("nats://127.0.0.1:1".to_owned());
    let said = cli.run(&["demo", "--limits"]).await?;
    let stderr = said.stderr.clone();
    let report = said.done()?;
    ensure!(report["errors"] == 0, "{report}\n{stderr}");
    ensure!(number(&report, "failover_ms")? > 0, "{report}");
    for field in ["forgotten", "forgotten_ms"] {
        ensure!(report[field].is_u64(), "{field}: {report}");
    }
    let limits = report["limits"].as_array().context("limits")?;
    ensure!(limits.len() == 6, "{report}");
    // What one leader forgets, the next one allows again: it was asked for up to 250 a second, and buckets of 50 were full.
    let forgotten_ms = number(&report, "forgotten_ms")?;
    ensure!(forgotten_ms <= 1_000, "{report}");
    let again = 50 + 250 * (forgotten_ms + 200) / 1_000;
    let for_good = PER_SECOND * number(&report, "duration_ms")?.div_ceil(1_000);
    for (row, [second, five]) in limits.iter().zip(ALLOWED) {
        let (asked, allowed) = (number(row, "asked")?, number(row, "allowed")?);
        ensure!(asked == allowed + number(row, "refused")?, "{row}");
        // Of the calm alone, 60 a second, all pass; a slow machine asks for no more at any time.
        ensure!(
            allowed > 0 && (allowed < asked || asked <= for_good),
            "{row}"
        );
        let peaks = row["peaks"].as_array().context("peaks")?;
        ensure!(peaks.len() == 2, "{row}");
        for (peak, most) in peaks.iter().zip([second, five]) {
            ensure!(number(peak, "most")? <= most + again, "{row}");
        }
    }
    let exact = limits.last().context("exact")?;
    let asked = number(exact, "asked")?;
    ensure!(number(exact, "allowed")? == asked.min(1_800), "{exact}");
    ensure!(
        number(exact, "refused")? == asked.saturating_sub(1_800),
        "{exact}"
    );
    Ok(())
}

/// Every shopper is accounted for: at most one in five gives up or vanishes.
fn sums(report: &Value) -> Result<()> {
    let gone = report["gone"].as_object().context("gone")?;
    let sum: u64 = gone.values().filter_map(Value::as_u64).sum();
    ensure!(number(report, "issued")? == sum, "{report}");
    let completed = number(report, "completed")?;
    ensure!(gone.get("completed").and_then(Value::as_u64) == Some(completed));
    ensure!((80..=100).contains(&completed), "{report}");
    Ok(())
}
