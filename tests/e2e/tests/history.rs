//! What a line counts: those who have gone by the state that they left, as the journal has it, and those it refused.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, number};
use nowserving_protocol::error::Code;
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
    ensure!(shown["counts"]["gone_from"] == expected, "{shown}");
    let journal = api.admin(line, "journal", json!({"limit": 1_000})).await?;
    let by_journal = by_the_journal(&journal)?;
    ensure!(by_journal == expected, "{by_journal} of {journal}");
    let by_command = cli.run(&["line", "show", line]).await?.done()?;
    ensure!(by_command["counts"] == shown["counts"], "{by_command}");
    let text = cli.run_as_text(&["line", "show", line]).await?;
    let text = format!("{text:?}");
    ensure!(
        text.contains("gone from admitted: 1 closed, 1 left"),
        "{text}"
    );
    Ok(())
}

/// Refusals are counted by code: exactly while a leader lives and over a hand-over. With a leader that dies go those that
/// it has not written down, and no more.
pub async fn refusals(cluster: &mut Cluster) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    let settings = json!({"seats": 1, "queue_limit": 0});
    let created = api.admin(REFUSES, "create", settings).await?;
    let none = json!({"line_full": 0, "sold_out": 0, "line_closed": 0, "bad_request": 0});
    ensure!(created["counts"]["refused"] == none, "{created}");
    api.enter(REFUSES, "in").await?;
    refuse(&api, "five", json!({}), Code::LineFull, 5).await?;
    refuse(&api, "gold", json!({"lane": "gold"}), Code::BadRequest, 1).await?;
    // Not of an entrant.
    let nobody = json!({"key": "nobody"});
    api.refused(REFUSES, "find", nobody, Code::TokenNotFound)
        .await?;
    // Copies of one request.
    for _ in 0..2 {
        refuse(&api, "copied", json!({}), Code::LineFull, 1).await?;
    }
    let drain = json!({"phase": "draining"});
    api.admin(REFUSES, "configure", drain).await?;
    refuse(&api, "draining", json!({}), Code::LineClosed, 1).await?;
    let expected = json!({"line_full": 6, "sold_out": 0, "line_closed": 1, "bad_request": 1});
    ensure!(refused(&api).await? == expected);
    let by_command = cli.run(&["line", "show", REFUSES]).await?.done()?;
    ensure!(by_command["counts"]["refused"] == expected, "{by_command}");
    let text = cli.run_as_text(&["line", "show", REFUSES]).await?;
    let words = "entrants refused: 1 bad_request, 1 line_closed, 6 line_full";
    ensure!(format!("{text:?}").contains(words), "{text:?}");

    let leader = cluster.leader_of(REFUSES).await?;
    let heir = cluster.ids().find(|id| *id != leader);
    let heir = heir.context("one node")?;
    cluster.transfer(&[0], heir).await?;
    ensure!(refused(&api).await? == expected, "as before");

    refuse(&api, "lost", json!({}), Code::LineClosed, 3).await?;
    cluster.process(heir)?.kill().await?;
    cluster.wait_served().await?;
    let known = refused(&api).await?;
    let closed = number(&known, "line_closed")?;
    ensure!(
        known["line_full"] == 6 && (1..=4).contains(&closed),
        "{known} after {expected} and 3 more"
    );
    // Else the shard goes back to the heir, and not home.
    let back = json!({"shards": [0]});
    api.cluster("transfer", back).await?;
    cluster.start_node(heir).await?;
    cluster.wait_ready().await
}

const REFUSES: &str = "refusals";

/// So many requests, each with an id of its own, so that none is counted twice.
async fn refuse(api: &Api, ids: &str, with: Value, code: Code, count: u32) -> Result<()> {
    for n in 0..count {
        let id = format!("{ids}-{n}");
        let mut body = json!({"key": id});
        if let Some(lane) = with.get("lane") {
            body["lane"] = lane.clone();
        }
        let once = api.with_request_id(id);
        once.refused(REFUSES, "enter", body, code).await?;
    }
    Ok(())
}

async fn refused(api: &Api) -> Result<Value> {
    let shown = api.admin(REFUSES, "show", json!({})).await?;
    Ok(shown["counts"]["refused"].clone())
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
