//! What a line keeps of those who have gone: by the state that they left, as the journal has it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cli, Cluster};
use serde_json::{Value, json};

/// By JSON and by the command, and it agrees with the journal.
pub async fn departures(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let line = "departures";
    let lanes = json!([{"name": "normal"}, {"name": "vip"}]);
    let settings = json!({"seats": 1, "queue_limit": 20, "lanes": lanes});
    let created = api.admin(line, "create", settings).await?;
    let none = json!({"waiting": {}, "admitted": {}, "in_checkout": {}});
    ensure!(created["counts"]["gone_from"] == none, "{created}");
    let mut tickets = Vec::new();
    for key in ["served", "leaves", "moves", "gives up", "is kicked"] {
        tickets.push(json!({"ticket": api.enter(line, key).await?["ticket"]}));
    }
    api.ok(line, "claim", tickets[0].clone()).await?;
    api.ok(line, "leave", tickets[1].clone()).await?;
    let to = json!({"lane": "normal", "token": 3, "to": "vip"});
    api.admin(line, "move", to).await?;
    api.ok(line, "complete", tickets[0].clone()).await?;
    api.ok(line, "leave", tickets[2].clone()).await?;
    let kick = json!({"keys": ["is kicked"]});
    api.admin(line, "kick", kick).await?;
    let close = json!({"phase": "closed"});
    api.admin(line, "configure", close).await?;

    let shown = api.admin(line, "show", json!({})).await?;
    let expected = json!({
        "waiting": {"left": 1, "moved": 1, "kicked": 1},
        "admitted": {"left": 1, "closed": 1},
        "in_checkout": {"completed": 1},
    });
    // The seat of the one who is served goes to one of two lanes.
    ensure!(shown["counts"]["gone_from"] == expected, "{shown}");
    let journal = api.admin(line, "journal", json!({"limit": 1_000})).await?;
    let by_journal = by_the_journal(&journal)?;
    ensure!(by_journal == expected, "{by_journal} of {journal}");
    let by_command = cli.run(&["line", "show", line]).await?.done()?;
    ensure!(by_command["counts"] == shown["counts"], "{by_command}");
    let text = cli.run_as_text(&["line", "show", line]).await?;
    let text = format!("{text:?}");
    ensure!(text.contains("gone from admitted: 1 closed, 1 left"), "{text}");
    Ok(())
}

/// Who left which state, and why, by the entries of a journal.
fn by_the_journal(journal: &Value) -> Result<Value> {
    let mut states = BTreeMap::new();
    let mut gone = json!({"waiting": {}, "admitted": {}, "in_checkout": {}});
    let entries = journal["entries"].as_array().context("no entries")?;
    for entry in entries.iter().filter(|entry| entry["token"].is_u64()) {
        let id = (entry["lane"].to_string(), entry["token"].to_string());
        let what = entry["what"].as_str().unwrap_or_default();
        let now = match what {
            "entered" => "waiting",
            "claimed" => "in_checkout",
            state => state,
        };
        let left = states.insert(id, now);
        let reason = match what {
            "moved" => {
                let to = (entry["to_lane"].to_string(), entry["to_token"].to_string());
                states.insert(to, "waiting");
                "moved"
            }
            "gone" => entry["reason"].as_str().context("no reason")?,
            _ => continue,
        };
        let left = left.context("gone, and never entered")?;
        let before = gone[left][reason].as_u64().unwrap_or(0);
        gone[left][reason] = json!(before + 1);
    }
    Ok(gone)
}
