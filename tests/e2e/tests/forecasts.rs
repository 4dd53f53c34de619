//! The operator's guess of how long a seat is held gives forecasts until measurements do; by the command and by JSON.

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

use crate::command_line::done;

/// Seats come back until the line has measured as much as the guess counts.
pub async fn by_guess(api: &Api, cli: &Cli) -> Result<()> {
    let line = "forecasts-guess";
    let words = format!("line create {line} --seats 2 --queue-limit 9 --checkout-expected 5m");
    let made = done(cli, &words).await?;
    ensure!(
        made["settings"]["checkout_expected_ms"] == 300_000,
        "{made}"
    );
    let mut held = vec![api.enter(line, "a").await?, api.enter(line, "b").await?];
    ensure!(held[0].get("eta_from").is_none(), "{held:?}");
    let mut waiting = Vec::new();
    for key in "cdefghijk".chars() {
        waiting.push(api.enter(line, &key.to_string()).await?);
    }
    let last = waiting.last().context("nobody waits")?["ticket"].clone();
    let status = api.status(line, &last).await?;
    // Nine places, 2 seats, 5 min each.
    let eta_ms = status["eta_ms"].as_u64().unwrap_or_default();
    ensure!((20 * 60_000..26 * 60_000).contains(&eta_ms), "{status}");
    ensure!(status["eta_from"] == "expected", "{status}");
    let info = done(cli, &format!("info {line}")).await?;
    ensure!(info["newcomer_eta_from"] == "expected", "{info}");
    let ticket = last.as_str().context("ticket")?;
    let text = cli.run_as_text(&["status", line, ticket]).await?;
    ensure!(
        format!("{text:?}").contains("(by the operator's guess)"),
        "{text:?}"
    );

    for _ in 0..8 {
        let ticket = json!({"ticket": held.remove(0)["ticket"]});
        api.ok(line, "claim", ticket.clone()).await?;
        api.ok(line, "complete", ticket).await?;
        held.push(waiting.remove(0));
    }
    let status = api.status(line, &last).await?;
    ensure!(status["eta_from"] == "measured", "{status}");
    ensure!(status["eta_ms"].as_u64() < Some(eta_ms / 4), "{status}");
    let shown = done(cli, &format!("line show {line}")).await?;
    ensure!(shown["forecast"]["told_expected"] == 9, "{shown}");
    ensure!(shown["forecast"]["told"] == 0, "{shown}");
    out_of_range(api, cli, line).await?;

    done(cli, &format!("line set {line} --unset checkout_expected")).await?;
    let status = api.status(line, &last).await?;
    ensure!(status.get("eta_ms").is_some_and(Value::is_null), "{status}");
    ensure!(status.get("eta_from").is_none(), "{status}");
    Ok(())
}

async fn out_of_range(api: &Api, cli: &Cli, line: &str) -> Result<()> {
    let change = json!({"checkout_expected_ms": 99});
    let refused = api
        .admin_refused(line, "configure", change, Code::BadRequest)
        .await?;
    let message = refused["message"].as_str().unwrap_or_default();
    for words in ["checkout_expected_ms: ", "from 100 to 604800000"] {
        ensure!(message.contains(words), "{words}: {refused}");
    }
    let words = ["line", "set", line, "--checkout-expected", "99ms"];
    cli.run(&words).await?.failed(2, "bad_request")?;
    Ok(())
}
