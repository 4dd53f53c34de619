//! One change of settings for all lines with a label, over all shards, by the command.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Api, Cli, eventually, number};
use serde_json::{Value, json};

const LINES: usize = 5;
const PATIENCE: Duration = Duration::from_secs(15);

/// Lines with the label, of which one has somebody in its lane `normal`.
async fn lines(api: &Api, label: &str) -> Result<Vec<String>> {
    let names: Vec<String> = (0..LINES).map(|nth| format!("{label}-{nth}")).collect();
    for name in &names {
        let labels = json!({"city": label});
        let settings = json!({"seats": 5, "queue_limit": 10, "labels": labels});
        api.admin(name, "create", settings).await?;
    }
    api.enter(&names[2], "somebody").await?;
    known_everywhere(api).await?;
    Ok(names)
}

/// Waits until each node has applied all that any of them has by now: a request about all lines with a label is about
/// those that the node that answers knows.
pub async fn known_everywhere(api: &Api) -> Result<()> {
    let (mut applied, mut wanted) = (BTreeMap::new(), None);
    eventually("every node knows the lines", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let shards = status["shards"].as_array().context("shards")?.iter();
        let own: Result<Vec<u64>> = shards.map(|shard| number(shard, "applied")).collect();
        applied.insert(number(&status, "answered_by")?, own?);
        let nodes = status["nodes"].as_array().context("nodes")?;
        if applied.len() < nodes.len() {
            return Ok(None);
        }
        let wanted = wanted.get_or_insert_with(|| newest(&applied));
        let has_all = |own: &Vec<u64>| own.iter().zip(wanted.iter()).all(|(own, it)| own >= it);
        Ok(applied.values().all(has_all).then_some(()))
    })
    .await
}

/// How far the node is that is ahead of the others, of each shard.
fn newest(applied: &BTreeMap<u64, Vec<u64>>) -> Vec<u64> {
    let ahead = |one: Vec<u64>, other: Vec<u64>| -> Vec<u64> {
        let both = one.into_iter().zip(other);
        both.map(|(one, other)| one.max(other)).collect()
    };
    let nodes = applied.values().cloned();
    nodes.reduce(ahead).unwrap_or_default()
}

async fn seats(api: &Api, line: &str) -> Result<Value> {
    let shown = api.admin(line, "show", json!({})).await?;
    Ok(shown["settings"]["seats"].clone())
}

pub async fn by_command(api: &Api, cli: &Cli) -> Result<()> {
    let label = "taipei";
    let names = lines(api, label).await?;
    let label = format!("city={label}");
    let set = |more: &'static [&'static str]| {
        let words = ["line", "set", "--label", &label, "--seats", "7"];
        [&words[..], more].concat()
    };
    let shown = cli.run_as_text(&set(&["--dry-run"])).await?;
    ensure!(format!("{shown:?}").contains("seats 5 → 7"), "{shown:?}");
    ensure!(seats(api, &names[0]).await? == 5);
    let done = cli.run(&set(&[])).await?.done()?;
    ensure!(
        done["lines"].as_array().map(Vec::len) == Some(LINES),
        "{done}"
    );
    ensure!(seats(api, &names[4]).await? == 7);

    let lanes = cli
        .run(&["line", "set", "--label", &label, "--lane", "vip"])
        .await?;
    ensure!(lanes.code == 1, "one is refused: {lanes:?}");
    for wrong in [
        &["line", "set", "--seats", "7"][..],
        &["line", "set", "--label", "city=x"],
        &[
            "line",
            "set",
            "--label",
            "city=x",
            "--seats",
            "7",
            "--if-version",
            "1",
        ],
    ] {
        let output = cli.run(wrong).await?;
        ensure!(output.code == 2, "{output:?}");
    }
    let one = cli
        .run_as_text(&["line", "set", &names[0], "--seats", "8", "--dry-run"])
        .await?;
    ensure!(
        format!("{one:?}").contains("would change: seats 7 → 8"),
        "{one:?}"
    );
    ensure!(seats(api, &names[0]).await? == 7);
    Ok(())
}
