//! The runbooks of docs/operate.md and of the pages in docs/operate, run as they stand there.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use nowserving_e2e::{
    Api, HOUR_MS, Site, SmallDisk, eventually, number, program, skipped, write_program,
};
use nowserving_protocol::error::Code;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Of the disk that is filled.
const DISK_BYTES: u64 = 96 << 20;
/// Of one that has room for all that a test writes.
const LARGE_DISK_BYTES: u64 = 512 << 20;
/// People wait and are served in this line while the runbooks are run.
const LINE: &str = "kept";
const PEOPLE: usize = 5;
/// The line of the big day.
const SALE: &str = "sale";
const ON_ONE_CLUSTER: [&str; 6] = [
    "First set-up",
    "A big day",
    "A rolling upgrade",
    "Restore from backup",
    "A line deleted",
    "A leaked key",
];
const OF_LOST_PARTS: [&str; 3] = ["A node lost", "A disk lost", "A disk full"];

/// The block of commands after these words.
fn block_after(text: &str, words: &str) -> Result<String> {
    let (_, after) = text.split_once(words).context("no such words")?;
    let (_, block) = after.split_once("\n```sh\n").context("no block")?;
    let (block, _) = block
        .split_once("\n```")
        .context("a block without an end")?;
    Ok(format!("{block}\n"))
}

/// A document's part below one heading: its blocks of commands, one after the other.
fn commands(text: &str, title: Option<&str>) -> Result<String> {
    let part = match title {
        // What stands before the first heading of a runbook.
        None => text.split("\n## ").next().unwrap_or_default(),
        Some(title) => {
            let mut parts = text.split("\n## ").skip(1);
            let found = parts.find(|part| part.lines().next() == Some(title));
            found.with_context(|| format!("no runbook {title:?}"))?
        }
    };
    let mut commands = String::new();
    for block in part.split("\n```sh\n").skip(1) {
        let (block, _) = block
            .split_once("\n```")
            .context("a block without an end")?;
        commands.push_str(block);
        commands.push('\n');
    }
    ensure!(!commands.is_empty(), "no commands: {title:?}");
    Ok(commands)
}

/// Gives variables other values. Each must be set once.
fn with_values(commands: &str, values: &[(&str, String)]) -> Result<String> {
    let mut lines: Vec<String> = commands.lines().map(str::to_owned).collect();
    for (name, value) in values {
        let starts = [format!("{name}="), format!("export {name}=")];
        let mut set = 0;
        for line in &mut lines {
            if let Some(start) = starts.iter().find(|start| line.starts_with(*start)) {
                *line = format!("{start}{value}");
                set += 1;
            }
        }
        ensure!(set == 1, "{name} is set {set} times: {commands}");
    }
    Ok(lines.join("\n") + "\n")
}

/// The pages and what their runbooks run on.
struct Operator {
    text: String,
    site: Site,
}

impl Operator {
    async fn at(machines: &[&str]) -> Result<Operator> {
        Ok(Operator {
            text: document()?,
            site: Site::start(machines).await?,
        })
    }

    /// Runs one, with these values of its own variables.
    async fn run(&mut self, title: &str, values: &[(&str, String)]) -> Result<String> {
        let own = with_values(&commands(&self.text, Some(title))?, values)?;
        self.run_commands(title, &own).await
    }

    /// Runs commands after the values that all runbooks share.
    async fn run_commands(&mut self, title: &str, own: &str) -> Result<String> {
        let backups = self.site.desk().display().to_string();
        let shared = [
            ("BACKUPS", backups),
            ("NODES_NATS", self.site.nats.url()),
            ("NOWSERVING_NATS", self.site.nats.url()),
        ];
        let shared = with_values(&commands(&self.text, None)?, &shared)?;
        eprintln!("runbook: {title}");
        let ran = self.site.run(&(shared + own)).await;
        ran.with_context(|| title.to_owned())
    }

    fn api(&self) -> &Api {
        self.site.api()
    }
}

/// All pages. The first one begins with the values that all runbooks share.
fn document() -> Result<String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut text = std::fs::read_to_string(docs.join("operate.md"))?;
    for page in std::fs::read_dir(docs.join("operate"))? {
        text.push('\n');
        text.push_str(&std::fs::read_to_string(page?.path())?);
    }
    Ok(text)
}

/// Runs `body`; shows and keeps the logs if that fails.
async fn operate(
    machines: &[&str],
    body: impl AsyncFnOnce(&mut Operator) -> Result<()>,
) -> Result<()> {
    let mut operator = Operator::at(machines).await?;
    let outcome = body(&mut operator).await;
    if let Err(error) = &outcome {
        eprintln!("failed: {error:?}");
        operator.site.show_logs();
        operator.site.keep();
    }
    outcome
}

#[test]
fn each_runbook_is_run() -> Result<()> {
    let text = document()?;
    let titles = text.lines().filter_map(|line| line.strip_prefix("## "));
    let mut titles: Vec<&str> = titles.collect();
    titles.sort_unstable();
    let mut run = [ON_ONE_CLUSTER.as_slice(), OF_LOST_PARTS.as_slice()].concat();
    run.sort_unstable();
    ensure!(titles == run, "{titles:?}");
    Ok(())
}

#[tokio::test]
async fn runbooks_of_a_cluster() -> Result<()> {
    operate(&["node-1", "node-2", "node-3"], async |operator| {
        let [set_up, big_day, upgrade, restore, deleted, leaked] = ON_ONE_CLUSTER;
        if SmallDisk::is_available()? {
            // Its data directory is a mount, which cannot be renamed.
            operator.site.mount_disk("node-1", LARGE_DISK_BYTES)?;
        }
        operator.run(set_up, &[]).await?;
        let people = People::come(operator.api()).await?;
        a_big_day(operator, big_day).await?;
        people.are_there(operator.api()).await?;
        a_poll_fails(operator).await?;
        people.are_there(operator.api()).await?;
        an_upgrade(operator, upgrade).await?;
        people.are_there(operator.api()).await?;
        let listed = operator.run(restore, &[]).await?;
        ensure!(listed.contains(LINE), "{listed}");
        for machine in ["node-1", "node-2", "node-3"] {
            let old = operator.site.data_dir(machine).join("old/log");
            ensure!(old.is_dir(), "{machine}: the old data is not there");
        }
        people.are_there(operator.api()).await?;
        let force = json!({"force": true});
        let gone = operator.api().admin(LINE, "delete", force).await?;
        ensure!(gone["deleted"] == true, "{gone}");
        operator.run(deleted, &[("LINE", LINE.to_owned())]).await?;
        people.are_there(operator.api()).await?;
        let before = operator.api().cluster("jwks", json!({})).await?;
        operator.run(leaked, &[]).await?;
        has_only_new_keys(operator, &before)?;
        people.get_new_tickets(operator.api()).await?;
        well(operator.api(), &[1, 2, 3]).await
    })
    .await
}

#[tokio::test]
async fn runbooks_of_lost_parts() -> Result<()> {
    operate(
        &["node-1", "node-2", "node-3", "node-4"],
        async |operator| {
            let [node, disk, full] = OF_LOST_PARTS;
            let fills = SmallDisk::is_available()?;
            if fills {
                operator.site.mount_disk("node-1", DISK_BYTES)?;
            }
            operator.run(ON_ONE_CLUSTER[0], &[]).await?;
            let people = People::come(operator.api()).await?;

            operator.site.lose("node-3").await?;
            silent(operator.api(), 3).await?;
            operator.run(node, &[]).await?;
            people.are_there(operator.api()).await?;
            well(operator.api(), &[1, 2, 4]).await?;

            operator.site.lose_disk("node-2").await?;
            silent(operator.api(), 2).await?;
            operator.run(disk, &[]).await?;
            people.are_there(operator.api()).await?;
            well(operator.api(), &[1, 4, 5]).await?;

            if !fills {
                return skipped(full, "mounting a small tmpfs needs root");
            }
            operator.site.disk("node-1")?.fill(0)?;
            let api = operator.api().clone();
            full_by_all(&api, 1, &[1, 4, 5]).await?;
            let ballast = ("JUNK", "/var/lib/nowserving/ballast".to_owned());
            operator.run(full, &[ballast]).await?;
            people.are_there(operator.api()).await?;
            well(operator.api(), &[1, 4, 5]).await
        },
    )
    .await
}

/// People come to the sale and are served, while the operator does what the runbook says.
async fn a_big_day(operator: &mut Operator, title: &str) -> Result<()> {
    let values = [
        ("OPENS", "$(date -u -d '+1 hour' +%FT%TZ)".to_owned()),
        ("CROWD", "\"--shoppers 60 --seats 10 --for 5s\"".to_owned()),
    ];
    let api = operator.api().clone();
    let served = async {
        eventually("the line is there", PATIENCE, async || {
            let shown = api.admin(SALE, "show", json!({})).await?;
            Ok((shown["line"] == SALE).then_some(()))
        })
        .await?;
        let buyers = (0..PEOPLE).map(|nth| serve(&api, format!("buyer-{nth}")));
        try_join_all(buyers).await
    };
    let (ran, served) = tokio::join!(operator.run(title, &values), served);
    let (ran, served) = (ran?, served?);
    let lost_none = |row: &str| row.starts_with("│ lost ") && row.contains(" 0   must be 0");
    ensure!(ran.lines().any(lost_none), "{ran}");
    let served = served.into_iter().filter(|served| *served).count();
    let shown = api.admin(SALE, "show", json!({})).await?;
    ensure!(shown["settings"]["phase"] == "closed", "{shown}");
    ensure!(shown["settings"]["seats"] == 80, "{shown}");
    let completed = &shown["counts"]["gone"]["completed"];
    ensure!(served > 0 && *completed == served, "{served}: {shown}");
    Ok(())
}

/// Returns false if the operator was quicker: the line gave no more numbers.
async fn serve(api: &Api, key: String) -> Result<bool> {
    let entered = api.call(SALE, "enter", &json!({"key": key})).await?;
    if entered.code.is_some() {
        eprintln!("{key} came too late: {}", entered.body);
        return Ok(false);
    }
    let ticket = json!({"ticket": entered.body["ticket"]});
    eventually("admitted", PATIENCE, async || {
        let status = api.ok(SALE, "status", ticket.clone()).await?;
        Ok((status["state"] == "admitted").then_some(()))
    })
    .await?;
    for op in ["claim", "complete"] {
        api.ok(SALE, op, ticket.clone()).await?;
    }
    Ok(true)
}

/// The end of the big day in a line that people are in: a question that fails does not count as "nobody is in it".
async fn a_poll_fails(operator: &mut Operator) -> Result<()> {
    let drain = block_after(&operator.text, "**Drain.**")?;
    operator.site.fail_next("line tokens")?;
    let commands = format!("LINE={LINE}\n{drain}");
    let ended = operator.run_commands("Drain", &commands).await;
    let error = ended.err().context("the runbook closed the line")?;
    ensure!(
        format!("{error:#}").contains("as the test wants"),
        "{error:#}"
    );
    let api = operator.api();
    let shown = api.admin(LINE, "show", json!({})).await?;
    ensure!(shown["settings"]["phase"] == "draining", "{shown}");
    api.admin(LINE, "configure", json!({"phase": "open"}))
        .await?;
    Ok(())
}

/// The edge's file of public keys has none of those from before.
fn has_only_new_keys(operator: &Operator, before: &Value) -> Result<()> {
    let file = std::fs::read_to_string(operator.site.desk().join("jwks.json"))?;
    let after: Value = serde_json::from_str(&file)?;
    let keys = |set: &Value| -> Vec<Value> {
        let keys = set["keys"].as_array().into_iter().flatten();
        keys.map(|key| key["kid"].clone()).collect()
    };
    let (before, after) = (keys(before), keys(&after));
    ensure!(
        !before.is_empty() && after.len() == 1,
        "{before:?}, {after:?}"
    );
    ensure!(!before.contains(&after[0]), "{before:?}, {after:?}");
    Ok(())
}

/// The new release is a script beside the binary, so that it can be told from the old one.
async fn an_upgrade(operator: &mut Operator, title: &str) -> Result<()> {
    let binary = program().await?;
    let new = operator.site.desk().join("nowserving-new");
    let text = format!("#!/bin/sh\nexec '{}' \"$@\"\n", binary.display());
    write_program(&new, &text)?;
    operator.run(title, &[]).await?;
    for machine in ["node-1", "node-2", "node-3"] {
        let path = operator.site.root(machine).join("usr/local/bin/nowserving");
        ensure!(std::fs::read_to_string(&path)? == text, "{machine}");
    }
    well(operator.api(), &[1, 2, 3]).await
}

/// Those who hold tickets of a line.
struct People(Vec<Value>);

impl People {
    async fn come(api: &Api) -> Result<People> {
        let settings = json!({
            "seats": 2, "queue_limit": 100, "claim_timeout_ms": HOUR_MS, "waiting_idle_timeout_ms": HOUR_MS,
        });
        api.admin(LINE, "create", settings).await?;
        let mut tickets = Vec::new();
        for nth in 0..PEOPLE {
            tickets.push(api.enter(LINE, &key(nth)).await?["ticket"].clone());
        }
        Ok(People(tickets))
    }

    /// Each ticket is good, and each token is where it was.
    async fn are_there(&self, api: &Api) -> Result<()> {
        for (ticket, token) in self.0.iter().zip(1..) {
            is_in_place(&api.status(LINE, ticket).await?, token)?;
        }
        Ok(())
    }

    /// The tickets are void, and everybody gets a new one for the same token.
    async fn get_new_tickets(&self, api: &Api) -> Result<()> {
        for (nth, old) in self.0.iter().enumerate() {
            eventually("the old ticket is void", PATIENCE, async || {
                let reply = api.ask(LINE, "status", &json!({"ticket": old})).await?;
                Ok((reply.code.as_deref() == Some(Code::TicketInvalid.as_str())).then_some(()))
            })
            .await?;
            let entered = api.enter(LINE, &key(nth)).await?;
            ensure!(entered["ticket"] != *old, "{entered}");
            let status = api.status(LINE, &entered["ticket"]).await?;
            is_in_place(&status, nth as u64 + 1)?;
        }
        Ok(())
    }
}

fn key(nth: usize) -> String {
    format!("visitor-{nth}")
}

fn is_in_place(status: &Value, token: u64) -> Result<()> {
    let state = if token <= 2 { "admitted" } else { "waiting" };
    let found = number(status, "token")?;
    ensure!(found == token && status["state"] == state, "{status}");
    Ok(())
}

async fn node_status(api: &Api, number: u64) -> Result<Value> {
    let status = api.cluster("status", json!({})).await?;
    let nodes = status["nodes"].as_array().context("no nodes")?;
    let found = nodes.iter().find(|node| node["id"] == number);
    found
        .cloned()
        .with_context(|| format!("no node {number}: {status}"))
}

/// The others notice that a node is gone, and serve.
async fn silent(api: &Api, number: u64) -> Result<()> {
    eventually("the node is silent", PATIENCE, async || {
        let status = node_status(api, number).await?;
        Ok((status["alive"] == false).then_some(()))
    })
    .await?;
    eventually("each shard has a leader", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let shards = status["shards"].as_array().context("no shards")?;
        let led = |shard: &Value| shard["leader"].as_u64().is_some_and(|it| it != number);
        Ok(shards.iter().all(led).then_some(()))
    })
    .await
}

/// Each of `nodes` says that the disk of `number` is full: whichever the next command asks, it says so.
async fn full_by_all(api: &Api, number: u64, nodes: &[u64]) -> Result<()> {
    let mut said = BTreeSet::new();
    eventually("all know that the disk is full", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let listed = status["nodes"].as_array().context("no nodes")?;
        let is_full = |node: &Value| node["id"] == number && node["disk_full"] == true;
        if listed.iter().any(is_full) {
            said.extend(status["answered_by"].as_u64());
        }
        Ok(nodes.iter().all(|node| said.contains(node)).then_some(()))
    })
    .await
}

/// The cluster has just these nodes; all are alive, and each shard has a leader.
async fn well(api: &Api, numbers: &[u64]) -> Result<()> {
    eventually("the cluster is well", PATIENCE, async || {
        let status = api.cluster("status", json!({})).await?;
        let nodes = status["nodes"].as_array().context("no nodes")?;
        let alive = nodes.iter().filter(|node| node["alive"] == true);
        let alive: Vec<u64> = alive.filter_map(|node| node["id"].as_u64()).collect();
        ensure!(alive == numbers && nodes.len() == numbers.len(), "{status}");
        let shards = status["shards"].as_array().context("no shards")?;
        let led = shards.iter().all(|shard| shard["leader"].is_u64());
        Ok(led.then_some(()))
    })
    .await
}

#[test]
fn values_replace_variables() -> Result<()> {
    let given = [("A", "1".to_owned()), ("B", "2".to_owned())];
    let set = with_values("A=x\nexport B=y\nC=$A", &given)?;
    ensure!(set == "A=1\nexport B=2\nC=$A\n", "{set}");
    ensure!(with_values("C=1", &given).is_err());
    let text = "a\n\n```sh\nx\n```\n\n## T\n\n```toml\nn\n```\n\n```sh\ny\n```\n";
    ensure!(commands(text, None)? == "x\n" && commands(text, Some("T"))? == "y\n");
    Ok(())
}
