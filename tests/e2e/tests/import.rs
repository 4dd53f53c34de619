//! A running queue is imported by the command.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, eventually, number};
use serde_json::{Value, json};

const ROWS: u64 = 5_000;
const PATIENCE: Duration = Duration::from_secs(20);
const USAGE: i32 = 2;

fn says(error: &Value, what: &str) -> Result<()> {
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(message.contains(what), "{what}: {error}");
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a folder that is no text")
}

/// A file of 5,000 rows; the command is killed on the way, and goes on.
pub async fn by_command(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let line = "imported";
    let settings = json!({
        "seats": 1, "queue_limit": 10_000,
        "claim_timeout_ms": 3_600_000, "waiting_idle_timeout_ms": 3_600_000,
    });
    api.admin(line, "create", settings).await?;
    let file = cluster.folder().join("queue.csv");
    let rows = (0..ROWS).map(|nth| format!("order-{nth},{}\n", 1_700_000_000_000 + nth));
    let rows: String = rows.collect();
    std::fs::write(&file, format!("key,entered_at\n{rows}"))?;
    let words = ["line", "import", line, text(&file)?, "--reason", "new shop"];
    let tried = cli.run(&[&words[..], &["--dry-run"][..]].concat()).await?;
    let tried = tried.done()?;
    ensure!(tried["rows"] == ROWS && tried["done"] == 0, "{tried}");
    let mut broken = cli.start(&words).await?;
    eventually("some rows are done", PATIENCE, async || {
        let shown = api.admin(line, "show", json!({})).await?;
        Ok(shown["imported"]["rows"].as_u64().map(|_| ()))
    })
    .await?;
    broken.child.kill().await?;
    let at = api.ok(line, "find", json!({"key": "order-0"})).await?;
    api.ok(line, "leave", json!({"ticket": at["ticket"]}))
        .await?;
    for _ in 0..2 {
        let done = cli.run(&words).await?.done()?;
        ensure!(done["done"] == ROWS && done["entered"] == ROWS, "{done}");
    }
    let journal = api.admin(line, "journal", json!({"limit": 1_000})).await?;
    let entries = journal["entries"].as_array().context("entries")?;
    let asked = |it: &Value| it["what"] == "entered" && it["operator_reason"] == "new shop";
    ensure!(entries.iter().any(asked), "{journal}");
    in_order(api, line).await?;
    let words = ["line", "set", line, "--gate", "shadow"];
    let unasked = cli.run(&words).await?.failed(USAGE, "bad_request")?;
    says(&unasked, "waiting tokens at once")?;
    wrong_files(cluster, line).await?;
    nobody_waits(cluster).await
}

/// The rows of a file, each with a key alone.
fn file_of(cluster: &Cluster, name: &str, rows: usize) -> Result<PathBuf> {
    let file = cluster.folder().join(name);
    let rows: String = (0..rows).map(|nth| format!("row-{nth}\n")).collect();
    std::fs::write(&file, format!("key\n{rows}"))?;
    Ok(file)
}

/// While the gate is off each row is admitted, which is asked about.
async fn nobody_waits(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let line = "import-open";
    let settings = json!({"seats": 1, "queue_limit": 1, "gate": "off"});
    api.admin(line, "create", settings).await?;
    let file = file_of(cluster, "open.csv", 12)?;
    let words = ["line", "import", line, text(&file)?];
    let at_once = "12 rows that are admitted at once, as the gate is off";
    let tried = [&words[..], &["--dry-run"]].concat();
    let tried = cli.run_as_text(&tried).await?;
    ensure!(tried.code == 0, "{tried:?}");
    ensure!(format!("{:?}", tried.lines).contains(at_once), "{tried:?}");
    let unasked = cli.run(&words).await?.failed(USAGE, "bad_request")?;
    says(&unasked, at_once)?;
    let done = cli.run(&[&words[..], &["--yes"]].concat()).await?.done()?;
    ensure!(done["entered"] == 12 && done["gate"] == "off", "{done}");
    let shown = api.admin(line, "show", json!({})).await?;
    ensure!(number(&shown["counts"], "admitted")? == 12, "{shown}");
    Ok(())
}

/// All but the first one, who has left.
async fn in_order(api: &Api, line: &str) -> Result<()> {
    let mut body = json!({"limit": 1_000});
    let mut next = 1;
    loop {
        let page = api.admin(line, "list_tokens", body.clone()).await?;
        for token in page["tokens"].as_array().context("tokens")? {
            ensure!(token["key"] == format!("order-{next}"), "{next}: {token}");
            ensure!(number(token, "token")? == next + 1, "{token}");
            ensure!(
                number(token, "entered_at_ms")? == 1_700_000_000_000 + next,
                "{token}"
            );
            next += 1;
        }
        body["after"] = page["next"].clone();
        if page["next"].is_null() {
            break;
        }
    }
    ensure!(next == ROWS, "{next}");
    Ok(())
}

async fn wrong_files(cluster: &Cluster, line: &str) -> Result<()> {
    let cli = Cli::new(cluster.nats.url());
    for (name, content, wants) in [
        (
            "noon.csv",
            "key,entered_at\na,1\nb,noon\n",
            "line 3: entered_at",
        ),
        (
            "color.jsonl",
            "{\"key\":\"a\",\"color\":1}\n",
            "line 1: \"color\"",
        ),
        (
            "lane.csv",
            "key,lane\na,\nx,vip\n",
            "line 3: lane: the line has no lane vip",
        ),
    ] {
        let file = cluster.folder().join(name);
        std::fs::write(&file, content)?;
        let words = ["line", "import", line, text(&file)?];
        let refused = cli.run(&words).await?.failed(2, "bad_request")?;
        says(&refused, wants)?;
    }
    Ok(())
}
