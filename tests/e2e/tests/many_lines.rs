//! One change of settings for all lines with a label, over all shards: by raw requests and by the command.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Api, Cli, eventually, number};
use nowserving_protocol::error::Code;
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

/// The lines of the answer.
async fn ask(api: &Api, label: &str, set: Value, dry_run: bool) -> Result<Vec<Value>> {
    let body = json!({"labels": {"city": label}, "set": set, "dry_run": dry_run});
    let answer = api.cluster("configure_lines", body).await?;
    ensure!(
        answer["next"].is_null() && answer["dry_run"] == dry_run,
        "{answer}"
    );
    answer["lines"].as_array().cloned().context("lines")
}

async fn seats(api: &Api, line: &str) -> Result<Value> {
    let shown = api.admin(line, "show", json!({})).await?;
    Ok(shown["settings"]["seats"].clone())
}

/// Each is changed whole or not at all; what is repeated changes nothing.
pub async fn by_request(api: Api, label: &str) -> Result<()> {
    let names = lines(&api, label).await?;
    let changes = json!([{"setting": "seats", "from": 5, "to": 9}]);
    for dry_run in [true, false] {
        let answer = ask(&api, label, json!({"seats": 9}), dry_run).await?;
        let answered: Vec<_> = answer.iter().map(|it| &it["line"]).collect();
        ensure!(answered.iter().copied().eq(names.iter()), "{answer:?}");
        ensure!(
            answer.iter().all(|it| it["changes"] == changes),
            "{answer:?}"
        );
        let expected = if dry_run { 5 } else { 9 };
        for name in &names {
            ensure!(seats(&api, name).await? == expected, "{name}");
        }
    }
    let again = ask(&api, label, json!({"seats": 9}), false).await?;
    ensure!(
        again.iter().all(|it| it["changes"] == json!([])),
        "{again:?}"
    );

    // Somebody is in the lane that would go.
    let set = json!({"seats": 3, "lanes": [{"name": "vip"}]});
    for dry_run in [true, false] {
        let answer = ask(&api, label, set.clone(), dry_run).await?;
        let refused: Vec<_> = answer.iter().filter(|it| !it["error"].is_null()).collect();
        ensure!(refused.len() == 1, "{answer:?}");
        ensure!(refused[0]["line"] == names[2].as_str(), "{answer:?}");
        ensure!(refused[0]["error"]["code"] == "bad_request", "{answer:?}");
    }
    ensure!(seats(&api, &names[2]).await? == 9, "not at all");
    ensure!(seats(&api, &names[3]).await? == 3, "whole");

    let page = json!({"labels": {"city": label}, "set": {"seats": 4}, "limit": 2});
    let page = api.cluster("configure_lines", page).await?;
    ensure!(page["next"] == names[1].as_str(), "{page}");
    let rest = json!({"labels": {"city": label}, "set": {"seats": 4}, "after": page["next"]});
    let rest = api.cluster("configure_lines", rest).await?;
    ensure!(
        rest["lines"].as_array().map(Vec::len) == Some(LINES - 2),
        "{rest}"
    );

    for (bad, named) in [
        (json!({"set": {"seats": 1}}), "labels"),
        (json!({"labels": {"city": label}, "set": {}}), "set"),
        (
            json!({"labels": {"city": label}, "set": {"seats": 0}}),
            "set.seats",
        ),
    ] {
        let refused = api.cluster_refused("configure_lines", bad, Code::BadRequest);
        let message = refused.await?.to_string();
        ensure!(message.contains(named), "want {named}: {message}");
    }
    Ok(())
}

pub async fn by_command(api: Api, cli: Cli, label: &str) -> Result<()> {
    let names = lines(&api, label).await?;
    let label = format!("city={label}");
    let set = |more: &'static [&'static str]| {
        let words = ["line", "set", "--label", &label, "--seats", "7"];
        [&words[..], more].concat()
    };
    let shown = cli.run_as_text(&set(&["--dry-run"])).await?;
    ensure!(format!("{shown:?}").contains("seats 5 → 7"), "{shown:?}");
    ensure!(seats(&api, &names[0]).await? == 5);
    let done = cli.run(&set(&[])).await?.done()?;
    ensure!(
        done["lines"].as_array().map(Vec::len) == Some(LINES),
        "{done}"
    );
    ensure!(seats(&api, &names[4]).await? == 7);

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
    ensure!(seats(&api, &names[0]).await? == 7);
    Ok(())
}
