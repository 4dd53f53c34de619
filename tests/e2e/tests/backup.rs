//! Backups: made under load, put back into another cluster and into the same one.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{Api, Cli, Cluster, HOUR_MS, Options, eventually, line_in, number};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::many_lines::known_everywhere;

/// So many that a restore can be broken off between any two.
const LINES: u32 = 120;
const PATIENCE: Duration = Duration::from_secs(30);
/// Nobody changes this line while it is saved.
const QUIET: &str = "quiet";
/// A crowd enters this one.
const BUSY: &str = "busy";
const PEOPLE: u64 = 40;

/// A backup comes back in a cluster of another size, and in its own one: tickets and positions are as they were, and
/// no number is issued twice.
pub async fn comes_back(cluster: &mut Cluster) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    let tickets = people(&api).await?;
    let before = statuses(&api, QUIET, &tickets).await?;
    let file = cluster.folder().join("shop.nsb");
    let early = back_up_under_load(&api, &cli, &file).await?;
    into_another(&file, &tickets, &before, &early).await?;
    into_the_same(&api, &cli, &file, &tickets, &before).await?;
    damaged(&cli, &file).await
}

/// A line in which some are admitted, claimed, gone, and many wait.
async fn people(api: &Api) -> Result<Vec<Value>> {
    for line in [QUIET, BUSY] {
        let settings = json!({
            "seats": 3, "queue_limit": 100_000, "claim_timeout_ms": HOUR_MS,
            "checkout_timeout_ms": HOUR_MS, "waiting_idle_timeout_ms": HOUR_MS,
        });
        api.admin(line, "create", settings).await?;
    }
    let mut tickets = Vec::new();
    for n in 0..PEOPLE {
        let entered = api.enter(QUIET, &format!("key-{n}")).await?;
        tickets.push(entered["ticket"].clone());
    }
    for (op, nth) in [("claim", 0), ("claim", 1), ("leave", 9)] {
        api.ok(QUIET, op, json!({"ticket": tickets[nth]})).await?;
    }
    let claimed = api.status(QUIET, &tickets[1]).await?;
    let complete = json!({"ticket": tickets[1], "epoch": claimed["epoch"]});
    api.ok(QUIET, "complete", complete).await?;
    Ok(tickets)
}

/// What holders of tickets see, without what depends on the moment.
async fn statuses(api: &Api, line: &str, tickets: &[Value]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for ticket in tickets {
        let status = api.status(line, ticket).await?;
        let fields = [
            "token",
            "state",
            "position",
            "epoch",
            "reason",
            "entered_at_ms",
        ];
        all.push(
            fields
                .map(|field| status[field].clone())
                .into_iter()
                .collect(),
        );
    }
    Ok(all)
}

fn words(words: &[&str], file: &Path) -> Vec<OsString> {
    let words = words.iter().map(|word| match *word {
        "FILE" => file.as_os_str().to_owned(),
        word => word.into(),
    });
    words.collect()
}

/// Returns the tickets of those who entered the busy line before the backup began.
async fn back_up_under_load(api: &Api, cli: &Cli, file: &Path) -> Result<Vec<Value>> {
    let (stop, stopped) = watch::channel(false);
    let crowd = async {
        let mut tickets = Vec::new();
        while !*stopped.borrow() {
            let key = format!("busy-{}", tickets.len());
            tickets.push(api.enter(BUSY, &key).await?["ticket"].clone());
        }
        anyhow::Ok(tickets)
    };
    let saved = async {
        let early = back_up(api, cli, file).await;
        stop.send_replace(true);
        early
    };
    let (tickets, early) = tokio::join!(crowd, saved);
    let mut tickets = tickets?;
    tickets.truncate(usize::try_from(early?)?);
    Ok(tickets)
}

/// Returns how many had entered the busy line before it began.
async fn back_up(api: &Api, cli: &Cli, file: &Path) -> Result<u64> {
    let busy = async || api.admin(BUSY, "show", json!({})).await;
    while number(&busy().await?["counts"], "issued")? < 50 {}
    let early = number(&busy().await?["counts"], "issued")?;
    // Broken off, it leaves no file.
    let mut broken = cli
        .start(&words(&["cluster", "backup", "FILE"], file))
        .await?;
    broken.child.kill().await?;
    // Unless it was done by then.
    let is_done = broken.child.wait().await?.success();
    ensure!(is_done || !file.exists(), "half a backup");
    for _ in 0..2 {
        let done = cli
            .run(&words(&["cluster", "backup", "FILE"], file))
            .await?
            .done()?;
        ensure!(done["lines"] == 2 && done["shards"] == 4, "{done}");
        ensure!(done["bytes"] == fs::metadata(file)?.len(), "{done}");
    }
    Ok(early)
}

async fn into_another(
    file: &Path,
    tickets: &[Value],
    before: &[Value],
    early: &[Value],
) -> Result<()> {
    let other = Cluster::start(Options {
        nodes: 1,
        shards: 7,
        ..Options::default()
    })
    .await?;
    let (api, cli) = (other.api().clone(), Cli::new(other.nats.url()));
    let dry = cli
        .run(&words(&["cluster", "restore", "FILE", "--dry-run"], file))
        .await?;
    let dry = dry.done()?;
    ensure!(dry["lines"][0]["outcome"] == "would_restore", "{dry}");
    let restore = words(&["cluster", "restore", "FILE"], file);
    let done = cli.run(&restore).await?.done()?;
    let lines = done["lines"].as_array().context("no list")?;
    ensure!(
        lines.len() == 2 && lines.iter().all(|line| line["outcome"] == "restored"),
        "{done}"
    );
    let after = statuses(&api, QUIET, tickets).await?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    for status in statuses(&api, BUSY, early).await? {
        ensure!(status[1] != "gone", "{status}");
    }
    let next = api.enter(QUIET, "somebody else").await?;
    ensure!(next["token"] == PEOPLE + 1, "{next}");
    let known = api.enter(QUIET, "key-20").await?;
    ensure!(known["token"] == 21, "{known}");
    // Repeated, it changes nothing and says so.
    let again = cli.run(&restore).await?;
    ensure!(again.code == 1, "exit code {}", again.code);
    let lines = &again.lines[0]["lines"];
    ensure!(lines[0]["outcome"] == "exists", "{lines}");
    let next = api.enter(QUIET, "one more").await?;
    ensure!(next["token"] == PEOPLE + 2, "{next}");
    one_is_refused(&api, &cli, &restore).await
}

/// A line of the backup exists, the other one does not: it comes back, and the exit code says that one is missing.
async fn one_is_refused(api: &Api, cli: &Cli, restore: &[OsString]) -> Result<()> {
    api.admin(QUIET, "delete", json!({"force": true})).await?;
    let busy = api.admin(BUSY, "show", json!({})).await?;
    let some = cli.run(restore).await?;
    ensure!(some.code == 1, "exit code {}", some.code);
    let lines = &some.lines[0]["lines"];
    let outcome = |name: &str| {
        let mut lines = lines.as_array().into_iter().flatten();
        lines.find(|it| it["line"] == name).map(|it| &it["outcome"])
    };
    ensure!(outcome(BUSY) == Some(&json!("exists")), "{lines}");
    ensure!(outcome(QUIET) == Some(&json!("restored")), "{lines}");
    let after = api.admin(BUSY, "show", json!({})).await?;
    ensure!(after["version"] == busy["version"], "{after} is not {busy}");
    let known = api.enter(QUIET, "key-20").await?;
    ensure!(known["token"] == 21, "{known}");
    Ok(())
}

async fn into_the_same(
    api: &Api,
    cli: &Cli,
    file: &Path,
    tickets: &[Value],
    before: &[Value],
) -> Result<()> {
    for ticket in &tickets[20..25] {
        api.ok(QUIET, "leave", json!({"ticket": ticket})).await?;
    }
    let late = api.enter(QUIET, "late").await?;
    let present = api.admin(QUIET, "show", json!({})).await?;
    let replace = ["cluster", "restore", "FILE", "--line", QUIET, "--overwrite"];
    let unasked = cli.run(&words(&replace, file)).await?;
    let unasked = unasked.failed(2, "bad_request")?;
    ensure!(unasked.to_string().contains("replace line"), "{unasked}");
    let replace = words(&[&replace[..], &["--yes"]].concat(), file);
    let done = cli.run(&replace).await?.done()?;
    ensure!(done["lines"][0]["outcome"] == "replaced", "{done}");
    let after = statuses(api, QUIET, tickets).await?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    let shown = api.admin(QUIET, "show", json!({})).await?;
    for field in ["version", "settings_version"] {
        let least = number(&present, "version")?;
        ensure!(number(&shown, field)? > least, "{field}: {shown}");
    }
    let gone = api.status(QUIET, &late["ticket"]).await?;
    ensure!(
        gone["state"] == "gone" && gone["reason"] == "forgotten",
        "{gone}"
    );
    ensure!(shown["counts"]["gone"]["kicked"] == 1, "{shown}");
    let next = api.enter(QUIET, "late").await?;
    ensure!(next["token"] == number(&late, "token")? + 1, "{next}");
    let journal = api.admin(QUIET, "journal", json!({"limit": 1_000})).await?;
    let entries = journal["entries"].as_array().context("no entries")?;
    let restored = entries.iter().filter(|entry| entry["what"] == "restored");
    ensure!(restored.count() == 1, "{journal}");

    // Deleted and created since: it is another line, which ends.
    api.admin(QUIET, "delete", json!({"force": true})).await?;
    let settings = json!({"seats": 1, "queue_limit": 10});
    api.admin(QUIET, "create", settings).await?;
    let stranger = api.enter(QUIET, "stranger").await?;
    cli.run(&replace).await?.done()?;
    let after = statuses(api, QUIET, tickets).await?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    let refused = api
        .call(QUIET, "status", &json!({"ticket": stranger["ticket"]}))
        .await?;
    ensure!(refused.accepted(nowserving_e2e::Format::Json).is_err());
    // Numbers of the deleted line may have been issued: none comes again.
    let last = api.enter(QUIET, "last").await?;
    ensure!(number(&last, "token")? > number(&next, "token")?, "{last}");
    Ok(())
}

async fn damaged(cli: &Cli, file: &Path) -> Result<()> {
    let whole = fs::read(file)?;
    let path = file.with_extension("damaged");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let mut later = whole.clone();
    later[8] = 2;
    for (bytes, says) in [
        (&whole[..whole.len() / 2], "its digest does not hold"),
        (&flipped[..], "its digest does not hold"),
        (&later[..], "a backup of format 2, and this build reads 1"),
        (&b"something else"[..], "not a backup"),
    ] {
        fs::write(&path, bytes)?;
        let refused = cli
            .run(&words(&["cluster", "restore", "FILE"], &path))
            .await?;
        let error = refused.failed(1, "failed")?;
        ensure!(error.to_string().contains(says), "{error}");
    }
    let unknown = ["cluster", "restore", "FILE", "--line", "nobody"];
    let refused = cli.run(&words(&unknown, file)).await?;
    refused.failed(2, "bad_request")?;
    Ok(())
}

/// A restore is killed half way and repeated. Then a leader dies in the middle, and a backup is made: every line is there
/// once, as it was.
pub async fn broken_off(cluster: &mut Cluster) -> Result<()> {
    let (api, cli) = (cluster.api().clone(), Cli::new(cluster.nats.url()));
    let shards = cluster.options().shards;
    let lines: Vec<String> = (0..LINES)
        .map(|nth| line_in(nth % shards, shards, &format!("l{nth}")))
        .collect();
    let tickets = try_join_all(lines.iter().map(|line| one_inside(&api, line))).await?;
    let before = each_status(&api, &lines, &tickets).await?;
    let file = cluster.folder().join("all.nsb");
    cli.run(&words(&["cluster", "backup", "FILE"], &file))
        .await?
        .done()?;
    // An election takes its time on a slow machine.
    let patient = ["--timeout", "60s"];
    let restore = ["cluster", "restore", "FILE"];
    let restore = words(&[&restore[..], &patient].concat(), &file);

    let present = eventually("a restore is broken off half way", PATIENCE, async || {
        for line in &lines {
            api.admin(line, "delete", json!({"force": true})).await.ok();
        }
        // Any node counts those that it knows.
        known_everywhere(&api).await?;
        let mut broken = cli.start(&restore).await?;
        some_are_back(&api, 0).await?;
        broken.child.kill().await?;
        known_everywhere(&api).await?;
        let present = count(&api).await?;
        Ok((present < u64::from(LINES)).then_some(present))
    })
    .await?;

    let mut again = cli.start(&restore).await?;
    some_are_back(&api, present).await?;
    let dies = cluster.leader_of(&lines[lines.len() - 1]).await?;
    cluster.process(dies)?.kill().await?;
    let under_it = file.with_extension("under-it");
    let backup = ["cluster", "backup", "FILE"];
    let backup = words(&[&backup[..], &patient].concat(), &under_it);
    let saved = cli.run(&backup).await?;
    let saved = number(&saved.done()?, "lines")?;
    ensure!(saved >= present, "{saved} lines of {present}");
    let done = again.next().await?.context("no outcome")?;
    let outcomes = done["lines"].as_array().context("no list")?;
    let restored = outcomes.iter().filter(|it| it["outcome"] == "restored");
    let restored = restored.count() as u64;
    let exist = outcomes.iter().filter(|it| it["outcome"] == "exists");
    let exist = exist.count() as u64;
    // The one that was under way when the first was killed may have come after the count.
    let all = u64::from(LINES);
    ensure!(
        restored + exist == all && exist <= present + 1,
        "{present}: {done}"
    );

    cluster.start_node(dies).await?;
    cluster.wait_ready().await?;
    let after = each_status(&api, &lines, &tickets).await?;
    ensure!(after == before, "{after:?} instead of {before:?}");
    for line in &lines {
        let next = api.enter(line, "next").await?;
        // Numbers of the deleted line may have been issued: none comes again.
        ensure!(
            number(&next, "token")? > 2 && next["position"] == 2,
            "{line}: {next}"
        );
    }
    let dry = words(&["cluster", "restore", "FILE", "--dry-run"], &under_it);
    let dry = cli.run(&dry).await?;
    let listed = dry.lines[0]["lines"].as_array().context("no list")?.len() as u64;
    ensure!(listed == saved, "{listed} of {saved}");
    Ok(())
}

/// A line with one in checkout and one that waits, whose ticket this returns.
async fn one_inside(api: &Api, line: &str) -> Result<Value> {
    let settings = json!({
        "seats": 1, "queue_limit": 10, "claim_timeout_ms": HOUR_MS,
        "checkout_timeout_ms": HOUR_MS, "waiting_idle_timeout_ms": HOUR_MS,
    });
    api.admin(line, "create", settings).await?;
    let first = api.enter(line, "first").await?;
    api.ok(line, "claim", json!({"ticket": first["ticket"]}))
        .await?;
    Ok(api.enter(line, "second").await?["ticket"].clone())
}

async fn each_status(api: &Api, lines: &[String], tickets: &[Value]) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for (line, ticket) in lines.iter().zip(tickets) {
        all.extend(statuses(api, line, std::slice::from_ref(ticket)).await?);
    }
    Ok(all)
}

/// How many lines there are.
async fn count(api: &Api) -> Result<u64> {
    number(&api.cluster("status", json!({})).await?, "lines")
}

async fn some_are_back(api: &Api, present: u64) -> Result<()> {
    eventually("some lines are back", PATIENCE, async || {
        Ok((count(api).await? > present + 5).then_some(()))
    })
    .await
}
