//! Changes of settings at times of the wall clock, by the command and by JSON.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use nowserving_e2e::{CLOCKS_APART_MS, Cli, Cluster, number, under_one_leader};
use nowserving_protocol::time;
use serde_json::json;

use crate::events;

/// How far ahead changes are scheduled: on a slow machine, too, it takes less to set them and to look at the line before.
const AHEAD_MS: u64 = 10_000;

/// The machine's clock, which is that of all nodes here.
fn soon_ms() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(u64::try_from(now.as_millis())? + AHEAD_MS)
}

/// Tokens wait before the sale; at its time the line opens, and nobody does anything for it.
pub async fn a_sale_opens_by_itself(cluster: &Cluster) -> Result<()> {
    under_one_leader(cluster, "scheduled-sale", a_sale_opens).await
}

async fn a_sale_opens(cluster: &Cluster, line: &str) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let settings = json!({"seats": 1, "queue_limit": 10, "phase": "pre_open"});
    api.admin(line, "create", settings).await?;
    let ticket = api.enter(line, "early").await?["ticket"].clone();
    let events = format!("nowserving.event.{line}.line");
    let mut incoming = api.subscribe(events).await?;
    let at_ms = soon_ms()?;
    let opens = format!("{} --phase open", time::text(at_ms));
    let later = "9000-01-01T08:00:00+08:00 --seats 5 --unset labels";
    let words = [
        "line",
        "set",
        line,
        "--schedule",
        &opens,
        "--schedule",
        later,
        // On a slow machine the first one is past by then.
        "--yes",
    ];
    let set = cli.run(&words).await?.done()?;
    let shown = &set["settings"]["schedule"];
    ensure!(shown[0]["set"] == json!({"phase": "open"}), "{set}");
    ensure!(shown[1]["at"] == "9000-01-01T00:00:00Z", "{set}");
    ensure!(
        shown[1]["set"] == json!({"seats": 5, "labels": null}),
        "{set}"
    );
    // What is shown can be sent back.
    api.admin(line, "configure", json!({"schedule": shown}))
        .await?;
    let early = api.status(line, &ticket).await?;
    ensure!(early["state"] == "waiting", "{early}");

    let mut event = events::next(&mut incoming).await?;
    ensure!(event["event"] == "configured", "{event}");
    event = events::next(&mut incoming).await?;
    ensure!(
        event["event"] == "phase" && event["phase"] == "open",
        "{event}"
    );
    let opened_at_ms = number(&event, "at_ms")?;
    ensure!(
        opened_at_ms + CLOCKS_APART_MS >= at_ms,
        "not before {at_ms}: {event}"
    );
    let admitted = api.status(line, &ticket).await?;
    ensure!(admitted["state"] == "admitted", "{admitted}");
    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(shown["settings"]["phase"] == "open", "{shown}");
    ensure!(
        shown["settings"]["schedule"]
            .as_array()
            .is_some_and(|it| it.len() == 1),
        "{shown}"
    );
    ensure!(shown["settings_version"] == event["version"], "{shown}");

    let journal = cli.run(&["line", "journal", line]).await?.done()?;
    let entries = journal["entries"].as_array().cloned().unwrap_or_default();
    let entry = entries
        .iter()
        .find(|entry| entry["version"] == event["version"]);
    let entry = entry.cloned().unwrap_or_default();
    ensure!(entry["scheduled_at_ms"] == at_ms, "{journal}");
    let changes = json!([{"setting": "phase", "from": "pre_open", "to": "open"}]);
    ensure!(entry["changes"] == changes, "{journal}");
    let text = cli.run_as_text(&["line", "show", line]).await?;
    ensure!(
        format!("{text:?}").contains("9000-01-01T00:00:00Z labels -, seats 5"),
        "{text:?}"
    );
    let unset = cli
        .run(&["line", "set", line, "--unset", "schedule"])
        .await?
        .done()?;
    ensure!(unset["settings"]["schedule"] == json!([]), "{unset}");
    Ok(())
}
