//! Operators end tokens by the command.

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cli, HOUR_MS};
use serde_json::json;

/// More than one entry of the log, with the command; it asks before it ends many.
pub async fn by_command(api: &Api, cli: &Cli) -> Result<()> {
    let line = "kick-command";
    let settings = json!({"seats": 1, "queue_limit": 5_000, "claim_timeout_ms": HOUR_MS});
    api.admin(line, "create", settings).await?;
    let keys: Vec<String> = (0..1_200).map(|n| format!("k{n}")).collect();
    for some in keys.chunks(100) {
        let entered = some.iter().map(|key| api.enter(line, key));
        try_join_all(entered).await?;
    }
    let dry = cli
        .run(&["line", "kick", line, "--all", "--dry-run"])
        .await?;
    let dry = dry.done()?;
    ensure!(dry["kicked"] == 1_200 && dry["sample"].as_array().is_some_and(|it| it.len() == 10));
    let unasked = cli.run(&["line", "kick", line, "--all"]).await?;
    unasked.failed(2, "bad_request")?;
    let few = [
        "line", "kick", line, "--token", "normal:1", "--key", "k-none",
    ];
    cli.run(&few).await?.failed(2, "bad_request")?;
    let one = cli
        .run(&["line", "kick", line, "--token", "normal:1"])
        .await?;
    ensure!(one.done()?["kicked"] == 1);
    for (which, count) in [
        ("--key k5", 1),
        ("--lane normal --state waiting", 1_198),
        ("--idle-over 10m", 0),
    ] {
        let words = format!("line kick {line} {which} --dry-run");
        let words: Vec<&str> = words.split(' ').collect();
        let dry = cli.run(&words).await?.done()?;
        ensure!(dry["kicked"] == count, "{which}: {dry}");
    }
    let rest = [
        "line",
        "kick",
        line,
        "--all",
        "--yes",
        "--reason",
        "fire drill",
    ];
    ensure!(cli.run(&rest).await?.done()?["kicked"] == 1_199);
    let none = cli.run(&["line", "kick", "nowhere", "--all"]).await?;
    none.failed(1, "line_not_found")?;
    Ok(())
}
