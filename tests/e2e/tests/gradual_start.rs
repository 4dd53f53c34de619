//! A gradual start: the gate is switched by label, live and back; a running queue is imported.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join;
use nowserving_e2e::{Api, Cli, Cluster, eventually, number};
use serde_json::{Value, json};

use crate::many_lines::known_everywhere;

const LINES: [&str; 3] = ["gradual-a", "gradual-b", "gradual-c"];
const ROWS: u64 = 5_000;
const PATIENCE: Duration = Duration::from_secs(20);
const REFUSED: i32 = 1;
const USAGE: i32 = 2;

/// So many enter each of the lines; their states.
async fn enter(api: &Api, word: &str, count: usize) -> Result<Vec<Value>> {
    let mut states = Vec::new();
    for nth in 0..count {
        for line in LINES {
            let entered = api.enter(line, &format!("{word}-{nth}")).await?;
            states.push(entered["state"].clone());
        }
    }
    Ok(states)
}

async fn switch(cli: &Cli, gate: &str) -> Result<()> {
    let words = [
        "line",
        "set",
        "--label",
        "city=gradual",
        "--gate",
        gate,
        "--yes",
    ];
    let done = cli.run(&words).await?.done()?;
    let lines = done["lines"].as_array().context("lines")?;
    ensure!(lines.len() == LINES.len(), "{done}");
    ensure!(lines.iter().all(|it| it["error"].is_null()), "{done}");
    Ok(())
}

/// Off, shadow, on, and back, while people come.
pub async fn by_label(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    for line in LINES {
        let words = "--seats 1 --queue-limit 1000 --gate off --label city=gradual \
                     --claim-timeout 1h --waiting-idle-timeout 1h";
        let words = ["line", "create", line].into_iter().chain(words.split(' '));
        let made = cli.run(&words.collect::<Vec<_>>()).await?.done()?;
        ensure!(made["settings"]["gate"] == "off", "{made}");
    }
    known_everywhere(api).await?;
    let people = enter(api, "people", 20);
    let (states, ()) = try_join(people, switch(&cli, "shadow")).await?;
    ensure!(states.iter().all(|state| state == "admitted"), "{states:?}");
    let states = enter(api, "more", 5).await?;
    ensure!(states.iter().all(|state| state == "admitted"), "{states:?}");
    for line in LINES {
        let shown = api.admin(line, "show", json!({})).await?;
        let shadow = &shown["shadow"];
        ensure!(number(shadow, "held_back")? >= 5, "{shown}");
        ensure!(number(shadow, "over_seats")? == 24, "{shown}");
        ensure!(shown["held_back_by"]["by"] == "nothing", "{shown}");
        let lane = &shown["board"]["lanes"][0];
        let (through, next) = (
            number(lane, "admitted_through")?,
            number(lane, "next_token")?,
        );
        ensure!(through + 1 == next, "{shown}");
    }
    switch(&cli, "on").await?;
    let states = enter(api, "waits", 4).await?;
    ensure!(states.iter().all(|state| state == "waiting"), "{states:?}");
    for line in LINES {
        let shown = api.admin(line, "show", json!({})).await?;
        ensure!(shown["held_back_by"]["by"] == "seats", "{shown}");
        ensure!(number(&shown["board"], "admitted")? == 25, "{shown}");
    }
    known_everywhere(api).await?;
    // Taken back, which lets in all twelve.
    let words = ["line", "set", "--label", "city=gradual", "--gate", "off"];
    let unasked = cli.run(&words).await?.failed(USAGE, "bad_request")?;
    says(&unasked, "admit all 12 waiting tokens at once")?;
    for words in [
        &["line", "set", "--label", "city=gradul", "--gate", "off"][..],
        &["line", "pause", "--label", "city=gradul"],
        &["line", "open", "--label", "city=gradul", "--dry-run"],
    ] {
        eventually("the nearest label is named", PATIENCE, async || {
            // The command looks for labels for a second at most.
            let refused = cli.run(words).await?.failed(REFUSED, "line_not_found")?;
            says(&refused, "city=gradul; the nearest: city=gradual").map(Some)
        })
        .await?;
    }
    switch(&cli, "off").await?;
    for line in LINES {
        eventually("all are admitted", PATIENCE, async || {
            let shown = api.admin(line, "show", json!({})).await?;
            Ok((number(&shown["board"], "admitted")? == 29).then_some(()))
        })
        .await?;
    }
    Ok(())
}

fn says(error: &Value, what: &str) -> Result<()> {
    let message = error["message"].as_str().unwrap_or_default();
    ensure!(message.contains(what), "{what}: {error}");
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a folder that is no text")
}

/// A file of 5,000 rows; the command is killed on the way, and goes on.
pub async fn import(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let line = "gradual-import";
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
    nobody_waits(cluster).await?;
    no_room(cluster).await
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
    let line = "gradual-open";
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

/// The dry run fails where the import would.
async fn no_room(cluster: &Cluster) -> Result<()> {
    let (api, cli) = (cluster.api(), Cli::new(cluster.nats.url()));
    let line = "gradual-full";
    let settings = json!({"seats": 1, "queue_limit": 11});
    api.admin(line, "create", settings).await?;
    let try_rows = async |rows: usize| {
        let file = file_of(cluster, "full.csv", rows)?;
        let words = ["line", "import", line, text(&file)?, "--dry-run"];
        cli.run(&words).await
    };
    try_rows(12).await?.done()?;
    let full = try_rows(13).await?.failed(REFUSED, "line_full")?;
    says(&full, "room for 12 more, and the file has 13 rows")?;
    for nth in 0..3 {
        api.enter(line, &format!("row-{nth}")).await?;
    }
    try_rows(12).await?.done()?;
    let full = try_rows(13).await?.failed(REFUSED, "line_full")?;
    says(&full, "room for 9 more, and the file has 10 rows")?;
    api.admin(line, "configure", json!({"phase": "draining"}))
        .await?;
    try_rows(3).await?.done()?;
    let closed = try_rows(4).await?.failed(REFUSED, "line_closed")?;
    says(&closed, "draining")
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
