//! What operators do by the command line beside `line set`: phases with a reason, contexts, completions, manual pages.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cli, eventually};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(15);
const REFUSED: i32 = 1;
const USAGE: i32 = 2;

async fn done(cli: &Cli, words: &[&str]) -> Result<Value> {
    cli.run(words).await?.done()
}

/// Pauses, opens, drains and closes a line, with a reason; the journal says who did, and why.
pub async fn phases(cli: &Cli) -> Result<()> {
    let line = "cli-phases";
    let create = [
        "line",
        "create",
        line,
        "--seats",
        "1",
        "--queue-limit",
        "50",
        "--claim-timeout",
        "1h",
        "--by",
        "ann",
        "--reason",
        "for the sale",
    ];
    done(cli, &create).await?;
    for key in 0..12 {
        done(cli, &["enter", line, "--key", &format!("k{key}")]).await?;
    }
    let tried = ["line", "pause", line, "--dry-run"];
    ensure!(done(cli, &tried).await?["settings"]["phase"] == "paused");
    ensure!(done(cli, &["line", "show", line]).await?["settings"]["phase"] == "open");
    for (verb, phase, by) in [
        ("pause", "paused", "ann"),
        ("open", "open", "bob"),
        ("drain", "draining", "cat"),
    ] {
        let words = ["line", verb, line, "--reason", verb, "--by", by];
        ensure!(done(cli, &words).await?["settings"]["phase"] == phase);
    }
    let text = cli.run_as_text(&["line", "open", line]).await?;
    ensure!(
        format!("{text:?}").contains("phase draining → open"),
        "{text:?}"
    );
    closing(cli, line).await?;
    journal(cli, line).await?;
    nearest(cli).await
}

/// It sends 12 people away: that needs `--yes` where nobody can be asked.
async fn closing(cli: &Cli, line: &str) -> Result<()> {
    let refused = cli.run(&["line", "close", line]).await?;
    let refusal = refused.failed(USAGE, "bad_request")?;
    ensure!(
        refusal["message"]
            .as_str()
            .is_some_and(|it| it.contains("end 12 tokens")),
        "{refusal}"
    );
    let other_way = ["line", "set", line, "--phase", "closed"];
    cli.run(&other_way).await?.failed(USAGE, "bad_request")?;
    let long_ago = "2020-01-01T00:00:00Z --phase closed";
    let at_once = ["line", "set", line, "--schedule", long_ago];
    cli.run(&at_once).await?.failed(USAGE, "bad_request")?;
    past_times(cli).await?;
    let tried = ["line", "close", line, "--dry-run"];
    let text = format!("{:?}", cli.run_as_text(&tried).await?);
    ensure!(text.contains("this would end 12 tokens"), "{text}");
    let deletion = cli.run(&["line", "delete", line, "--force"]).await?;
    deletion.failed(USAGE, "bad_request")?;
    let node = cli.run(&["cluster", "remove-node", "3"]).await?;
    node.failed(USAGE, "bad_request")?;
    let words = [
        "line", "close", line, "--reason", "sold out", "--by", "dan", "--yes",
    ];
    ensure!(done(cli, &words).await?["settings"]["phase"] == "closed");
    Ok(())
}

/// A change whose time is past would be made at once: that needs `--yes`, whatever it changes. Changes to come stay.
async fn past_times(cli: &Cli) -> Result<()> {
    let line = "cli-past";
    let create = ["line", "create", line, "--seats", "1", "--queue-limit", "9"];
    let past = ["--schedule", "2020-01-01T00:00:00Z --seats 5"];
    let to_come = ["--schedule", "9000-01-01T00:00:00Z --seats 7"];
    let created = cli.run(&[&create[..], &past].concat()).await?;
    let refusal = created.failed(USAGE, "bad_request")?;
    ensure!(
        refusal["message"]
            .as_str()
            .is_some_and(|it| it.contains("2020-01-01T00:00:00Z seats 5")),
        "{refusal}"
    );
    done(cli, &[&create[..], &to_come].concat()).await?;
    let set = [&["line", "set", line][..], &past, &to_come].concat();
    cli.run(&set).await?.failed(USAGE, "bad_request")?;
    let shown = done(cli, &["line", "show", line]).await?;
    ensure!(shown["settings"]["seats"] == 1, "{shown}");
    done(cli, &[&set[..], &["--yes"]].concat()).await?;
    let shown = eventually("the change is made", PATIENCE, async || {
        let shown = done(cli, &["line", "show", line]).await?;
        Ok((shown["settings"]["seats"] == 5).then_some(shown))
    })
    .await?;
    let left = &shown["settings"]["schedule"];
    ensure!(left[0]["set"] == json!({"seats": 7}), "{shown}");
    let alone = [&["line", "set", line][..], &past, &["--yes"]].concat();
    let text = format!("{:?}", cli.run_as_text(&alone).await?);
    ensure!(
        text.contains("no longer has 9000-01-01T00:00:00Z seats 7"),
        "{text}"
    );
    Ok(())
}

async fn journal(cli: &Cli, line: &str) -> Result<()> {
    let journal = done(cli, &["line", "journal", line]).await?;
    let entries = journal["entries"].as_array().context("entries")?;
    let named = |what: &str| -> Vec<Value> {
        let such = entries.iter().filter(|it| it["what"] == what);
        such.map(|it| json!([it["by"], it["reason"]])).collect()
    };
    ensure!(
        named("created") == [json!(["ann", "for the sale"])],
        "{journal}"
    );
    let configured = named("configured");
    ensure!(
        configured.len() == 5
            && configured[..3]
                == [
                    json!(["ann", "pause"]),
                    json!(["bob", "open"]),
                    json!(["cat", "drain"]),
                ]
            && configured[4] == json!(["dan", "sold out"]),
        "{journal}"
    );
    let text = cli.run_as_text(&["line", "journal", line]).await?;
    ensure!(format!("{text:?}").contains("by dan, sold out"), "{text:?}");
    Ok(())
}

/// Every command names lines that exist.
async fn nearest(cli: &Cli) -> Result<()> {
    for words in [
        &["line", "pause", "cli-phasse"][..],
        &["line", "kick", "cli-phasse", "--all"],
        &["line", "take", "cli-phasse", "--key", "k"],
    ] {
        eventually("the nearest line is named", PATIENCE, async || {
            // The command looks for names for a second at most.
            let refusal = cli.run(words).await?.failed(REFUSED, "line_not_found")?;
            let message = refusal["message"].as_str().context("message")?;
            ensure!(message.contains("cli-phases"), "{words:?}: {refusal}");
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

/// An operator moves and calls tokens: their entries say who asked.
pub async fn calls(cli: &Cli) -> Result<()> {
    let line = "cli-called";
    let create = [
        "line",
        "create",
        line,
        "--seats",
        "2",
        "--queue-limit",
        "9",
        "--admission",
        "called",
        "--lane",
        "normal",
        "--lane",
        "vip",
    ];
    done(cli, &create).await?;
    for key in ["a", "b"] {
        done(cli, &["enter", line, "--key", key]).await?;
    }
    let to_vip = [
        "line", "move", line, "--lane", "normal", "--token", "1", "--to", "vip", "--by", "ann",
    ];
    done(cli, &to_vip).await?;
    let next = [
        "line",
        "call-next",
        line,
        "--n",
        "2",
        "--by",
        "bob",
        "--reason",
        "desk 2",
    ];
    done(cli, &next).await?;
    let told = [
        "line",
        "capacity",
        line,
        "--seats",
        "5",
        "--for",
        "1h",
        "--reason",
        "more staff",
    ];
    done(cli, &told).await?;
    let journal = done(cli, &["line", "journal", line]).await?;
    let entries = journal["entries"].as_array().context("entries")?;
    let first = |what: &str| {
        let mut such = entries.iter().filter(|it| it["what"] == what);
        such.next().cloned().unwrap_or_default()
    };
    ensure!(first("moved")["operator"] == "ann", "{journal}");
    let called = first("admitted");
    ensure!(
        called["operator"] == "bob" && called["operator_reason"] == "desk 2",
        "{journal}"
    );
    let told = first("capacity_told");
    ensure!(
        told["seats"] == 5 && told["reason"] == "more staff",
        "{journal}"
    );
    Ok(())
}

/// Adds a context and uses it instead of `--nats`.
pub async fn contexts(url: &str) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let run = async |words: &[&str]| Cli::run_by_contexts(dir.path(), words).await;
    let secret = url.replace("nats://", "nats://ann:secret@");
    run(&["context", "add", "other", "--nats", &secret])
        .await?
        .done()?;
    let added = run(&["context", "add", "here", "--nats", url])
        .await?
        .done()?;
    ensure!(added["current"] == false, "the first one counts: {added}");
    let all = run(&["context", "list"]).await?.done()?;
    ensure!(all[1]["current"] == true && all.as_array().is_some_and(|it| it.len() == 2));
    ensure!(!all.to_string().contains("secret"), "{all}");
    let twice = run(&["context", "add", "here", "--nats", url]).await?;
    twice.failed(USAGE, "bad_request")?;
    let unknown = run(&["context", "use", "heer"]).await?;
    let unknown = unknown.failed(USAGE, "bad_request")?;
    ensure!(
        unknown["message"]
            .as_str()
            .is_some_and(|it| it.contains("here")),
        "{unknown}"
    );
    run(&["context", "use", "here"]).await?.done()?;
    run(&[
        "line",
        "create",
        "by-context",
        "--seats",
        "1",
        "--queue-limit",
        "1",
    ])
    .await?
    .done()?;
    let shown = run(&["--context", "here", "line", "show", "by-context"]).await?;
    ensure!(shown.done()?["line"] == "by-context");
    run(&["context", "remove", "here"]).await?.done()?;
    let current = run(&["context", "show"]).await?;
    current.failed(USAGE, "bad_request")?;
    Ok(())
}

/// Completions and manual pages are made without a cluster.
pub async fn papers(cli: &Cli) -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        let script = cli.run_as_text(&["completions", shell]).await?;
        ensure!(
            script.code == 0 && format!("{script:?}").contains("call-next"),
            "{shell}"
        );
    }
    let dir = tempfile::tempdir()?;
    let folder = dir.path().to_str().context("a folder's name")?;
    done(cli, &["man", folder]).await?;
    let page = std::fs::read_to_string(dir.path().join("nowserving-line-kick.1"))?;
    ensure!(page.contains("idle"), "{page}");
    Ok(())
}
