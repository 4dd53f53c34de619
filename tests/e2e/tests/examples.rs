//! The programs in `examples/`: each tells a story, and fails if a step of it goes wrong.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cli, Cluster, example, leashed, number};
use nowserving_protocol::time;
use serde_json::{Value, json};

/// No story takes longer, on a slow machine either.
const PATIENCE: Duration = Duration::from_secs(200);

/// Each comes to its end, and once more: it clears up behind itself.
pub async fn tell_their_stories(cluster: &mut Cluster) -> Result<()> {
    let url = cluster.nats.url();
    let archive = cluster.folder().join("hive-7.jsonl");
    let archive = archive.to_str().context("a folder that is no text")?;
    for (words, part) in [
        (
            &["ride-hailing", &url, archive][..],
            "A driver is free and takes order 9, lane absolute.",
        ),
        (
            &["shop-sale", &url],
            "The next day there are eight tickets again. Shopper 8 is called back.",
        ),
    ] {
        for _ in 0..2 {
            let story = story(words).await?;
            ensure!(story.contains(part), "{words:?}: {story}");
            if words.contains(&archive) {
                archived(&Cli::new(url.clone()), &story).await?;
            }
        }
    }
    Ok(())
}

async fn story(words: &[&str]) -> Result<String> {
    let (name, args) = words.split_first().context("no name")?;
    let mut command = leashed(example(name).await?.as_os_str()).await?;
    let done = tokio::time::timeout(PATIENCE, command.args(args).output()).await;
    let done = done.with_context(|| format!("{name} does not end"))??;
    let story = String::from_utf8_lossy(&done.stdout).into_owned();
    let error = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "{name}: {story}{error}");
    Ok(story)
}

/// The command at the end of the story reports the day that was told.
async fn archived(cli: &Cli, story: &str) -> Result<()> {
    let last = story.lines().last().context("no story")?;
    let (_, words) = last.split_once(": nowserving ").context("no command")?;
    let words: Vec<&str> = words.split(' ').collect();
    let of_day = cli.run(&words).await?.done()?;
    let (before, from_day) = words.split_at(
        words
            .iter()
            .position(|it| *it == "--day")
            .context("no day")?,
    );
    let whole = cli.run(&[before, &["--tokens"]].concat()).await?.done()?;
    for field in ["gaps", "missing_numbers"] {
        ensure!(whole[field] == json!([]), "{field}: {whole}");
    }
    for (total, fields) in [
        (
            &whole["total"],
            json!({"entered": 14, "admitted": 10, "taken": 1, "claimed": 10, "live": {},
                "gone": {"completed": 10, "kicked": 2, "left": 1, "wait_expired": 1}}),
        ),
        (
            &whole["lines"][1],
            json!({"line": "hive-7-economy", "entered": 9, "admitted": 6,
                "gone": {"completed": 6, "kicked": 2, "left": 1}}),
        ),
    ] {
        for (field, value) in fields.as_object().context("no map")? {
            ensure!(total[field] == *value, "{field}: {total}");
        }
    }
    // The story may have been told around midnight.
    let day = from_day.get(1).context("no day")?;
    let begin_ms = time::parse(&format!("{day}T00:00:00+08:00")).context("no day")?;
    let day_ms = begin_ms..begin_ms + 24 * 3_600_000;
    let of_day_ms = rows(&whole)?
        .into_iter()
        .filter(|at_ms| day_ms.contains(at_ms));
    ensure!(of_day["total"]["entered"] == of_day_ms.count(), "{of_day}");
    Ok(())
}

/// When the tokens of a report entered.
fn rows(report: &Value) -> Result<Vec<u64>> {
    let lines = report["lines"].as_array().context("no lines")?.iter();
    let tokens = lines.filter_map(|line| line["tokens"].as_array()).flatten();
    tokens.map(|token| number(token, "entered_at_ms")).collect()
}
