//! `nowserving doctor`: each line here stands for another reason, and the printed command mends it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Api, Cli, Cluster, eventually};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(15);

/// The cluster is well, and each reason is found and mended.
pub async fn lines(api: Api, cli: Cli) -> Result<()> {
    let well = diagnosis(&cli, &["doctor"]).await?;
    let codes = codes(&well);
    ensure!(!codes.iter().any(|code| code == "no_leader"), "{well}");
    for (line, settings, code) in [
        ("doctor-paused", json!({"phase": "paused"}), "phase"),
        ("doctor-seats", json!({}), "seats"),
        ("doctor-called", json!({"admission": "called"}), "called"),
        ("doctor-quota", json!({"quota": {"total": 1}}), "quota"),
        (
            "doctor-rate",
            json!({"seats": 50, "admission_rate": {"per_second": 0.001, "burst": 1}}),
            "admission_rate",
        ),
    ] {
        let mut all = json!({"seats": 1, "queue_limit": 10});
        for (name, value) in settings.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        api.admin(line, "create", all).await?;
        for key in ["ann", "bob"] {
            api.call(line, "enter", &json!({"key": key})).await?;
        }
        let found = diagnosis(&cli, &["doctor", line]).await?;
        let finding = finding(&found, code).with_context(|| format!("{line}: {found}"))?;
        mended(&cli, line, code, finding).await?;
    }
    stuck_lines_are_found(&api, &cli).await?;
    holders_are_listed(&api, &cli).await?;
    eventually("the nearest line is named", PATIENCE, async || {
        // The command looks for names for a second at most.
        let none = cli.run(&["doctor", "doctor-pausd"]).await?;
        let refusal = none.failed(1, "line_not_found")?;
        let message = refusal["message"].as_str().context("message")?;
        ensure!(message.contains("doctor-paused"), "{refusal}");
        Ok(Some(()))
    })
    .await
}

/// Runs the doctor until nothing is broken: a shard may have no leader for a moment, or its leader may be slow to answer.
async fn diagnosis(cli: &Cli, words: &[&str]) -> Result<Value> {
    eventually("nothing is broken", PATIENCE, async || {
        cli.run(words).await?.done().map(Some)
    })
    .await
}

/// Runs the first command of the finding as it is printed; the reason is gone then.
async fn mended(cli: &Cli, line: &str, code: &str, finding: &Value) -> Result<()> {
    // Of held seats, the first command only shows the holders.
    let changes = |text: &&str| !text.contains(" tokens ");
    let all = commands(finding);
    let mut all = all.iter().map(String::as_str).filter(changes);
    let command = all.next().with_context(|| format!("{finding}"))?;
    as_printed(command).await?;
    let after = diagnosis(cli, &["doctor", line]).await?;
    ensure!(self::finding(&after, code).is_none(), "{command}: {after}");
    Ok(())
}

/// Without a line, as `top` marks them.
async fn stuck_lines_are_found(api: &Api, cli: &Cli) -> Result<()> {
    let line = "doctor-stuck";
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 20}))
        .await?;
    // Of all lines those with the most waiting people are listed.
    for nth in 0..10 {
        let order = json!({"key": format!("order-{nth}")});
        api.call(line, "enter", &order).await?;
    }
    let paused = cli.run(&["line", "pause", line]).await?.done()?;
    let changes = json!([{"setting": "phase", "from": "open", "to": "paused"}]);
    ensure!(paused["changes"] == changes, "{paused}");
    let ours = eventually("the line is found", PATIENCE, async || {
        // The node that answers may apply the newest change a moment later.
        let found = diagnosis(cli, &["doctor"]).await?;
        let all = found["findings"].as_array().into_iter().flatten();
        let stuck = all.filter(|it| it["code"] == "line_stuck");
        let mut ours = stuck.filter(|it| it["text"].to_string().contains(line));
        let ours = ours.next().cloned();
        ours.with_context(|| format!("{found}")).map(Some)
    })
    .await?;
    ensure!(ours["text"].to_string().contains("paused"), "{ours}");
    Ok(())
}

/// With the command that ends them.
async fn holders_are_listed(api: &Api, cli: &Cli) -> Result<()> {
    let line = "doctor-held";
    api.admin(line, "create", json!({"seats": 1, "queue_limit": 10}))
        .await?;
    for key in ["ann", "bob"] {
        api.call(line, "enter", &json!({"key": key})).await?;
    }
    let found = diagnosis(cli, &["doctor", line]).await?;
    let seats = finding(&found, "seats").with_context(|| format!("{found}"))?;
    let holder = seats["details"][0].as_str().unwrap_or_default();
    ensure!(
        holder.starts_with("normal 1 (ann): admitted for ") && holder.contains("unless claimed"),
        "{seats}"
    );
    let kick = commands(seats).into_iter().find(|it| it.contains("kick"));
    let kick = kick.with_context(|| format!("{seats}"))?;
    let kicked = as_printed(&kick).await?;
    ensure!(kicked["kicked"] == 1, "{kicked}");
    Ok(())
}

/// Runs a command as it stands: it says itself which cluster.
async fn as_printed(command: &str) -> Result<Value> {
    let words: Vec<&str> = command.split_whitespace().skip(1).collect();
    let dir = tempfile::tempdir()?;
    let done = Cli::run_by_contexts(dir.path(), &words).await?;
    done.done().with_context(|| command.to_owned())
}

/// One of the nodes ends: it is found, with the command that replaces it.
pub async fn a_node_is_down(cluster: &mut Cluster, cli: &Cli) -> Result<()> {
    cluster.process(3)?.kill().await?;
    eventually(
        "the doctor finds the node",
        Duration::from_secs(10),
        async || {
            let found = cli.run(&["doctor"]).await?;
            let it = found.lines.first().context("no diagnosis")?;
            let absent = finding(it, "node_absent").map(|it| it["mend"].to_string());
            let replace = format!(
                "nowserving cluster replace-node 3 --nats {}",
                cluster.nats.url()
            );
            Ok(absent.filter(|mend| mend.contains(&replace) && mend.contains("--join")))
        },
    )
    .await
    .map(drop)
}

/// Nobody listens there: exit code 3, and the finding says so.
pub async fn nothing_answers() -> Result<()> {
    let cli = Cli::new("nats://127.0.0.1:1".to_owned());
    let found = cli.run(&["doctor"]).await?;
    ensure!(found.code == 3, "{found:?}");
    let it = found.lines.first().context("no diagnosis")?;
    ensure!(finding(it, "nats_unreachable").is_some(), "{it}");
    Ok(())
}

fn finding<'a>(diagnosis: &'a Value, code: &str) -> Option<&'a Value> {
    let mut all = diagnosis["findings"].as_array()?.iter();
    all.find(|it| it["code"] == code)
}

fn commands(finding: &Value) -> Vec<String> {
    let mend = finding["mend"].as_array().into_iter().flatten();
    mend.filter_map(|it| it["command"].as_str().map(str::to_owned))
        .collect()
}

fn codes(diagnosis: &Value) -> Vec<String> {
    let all = diagnosis["findings"].as_array().into_iter().flatten();
    all.map(|it| it["code"].as_str().unwrap_or_default().to_owned())
        .collect()
}
