//! What users are told in confidence stands in no log: tickets, keys, keys of key-values, values of descriptors.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cli, Cluster, Options, run};
use serde_json::{Value, json};

const LINE: &str = "leaks";
/// All that our own crates say; nodes and the tool are named so, too.
const LOGS: &str = "nowserving=trace";
/// In every key and value here, so that one search finds them all.
const SECRET: &str = "confidential";

/// Every operation and some errors, while nodes and the tool log all that they can; then the logs are searched.
#[tokio::test]
async fn logs_have_no_tickets_and_no_keys() -> Result<()> {
    let options = Options {
        shards: 4,
        ..Options::default()
    };
    run(options, async |cluster| {
        talkative(cluster).await?;
        let mut said = Said::default();
        of_users(cluster, &mut said).await?;
        of_the_tool(cluster, &mut said).await?;
        let leader = cluster.leader_of(LINE).await?;
        cluster.process(leader)?.kill().await?;
        cluster.wait_served().await?;
        of_users(cluster, &mut said).await?;
        search(cluster, &said)
    })
    .await
}

/// What must be found nowhere, and what the tool has logged.
#[derive(Default)]
struct Said {
    tickets: Vec<String>,
    logs: String,
    rounds: u64,
}

impl Said {
    fn note(&mut self, answer: &Value) -> Result<Value> {
        let ticket = answer["ticket"].as_str().context("a ticket")?;
        self.tickets.push(ticket.to_owned());
        Ok(ticket.into())
    }
}

/// All nodes begin anew, with all their logs.
async fn talkative(cluster: &mut Cluster) -> Result<()> {
    let ids: Vec<u64> = cluster.ids().collect();
    for id in &ids {
        let process = cluster.process(*id)?;
        process.stop(Duration::from_secs(30)).await?;
    }
    for id in &ids {
        let filter = format!("RUST_LOG={LOGS}");
        cluster.start_node_under(*id, &["env", &filter]).await?;
    }
    cluster.wait_ready().await
}

/// By requests made by hand: bad ones among them.
async fn of_users(cluster: &Cluster, said: &mut Said) -> Result<()> {
    said.rounds += 1;
    let (api, round) = (cluster.api(), said.rounds);
    if round == 1 {
        let settings = json!({"seats": 2, "queue_limit": 20, "token_events": true});
        api.admin(LINE, "create", settings).await?;
    }
    let key = |name: &str| format!("{SECRET}-{round}-{name}");
    for name in ["a", "b", "c"] {
        let entered = api.enter(LINE, &key(name)).await?;
        let ticket = said.note(&entered)?;
        api.status(LINE, &ticket).await?;
        api.ok(LINE, "find", json!({"key": key(name)})).await?;
        if name == "a" {
            let claim = json!({"ticket": ticket, "pass": true});
            let claimed = api.ok(LINE, "claim", claim).await?;
            let pass = claimed["pass"].as_str().context("a pass")?;
            said.tickets.push(pass.to_owned());
            let wrong = json!({"ticket": ticket, "epoch": 9_999});
            api.call(LINE, "renew", &wrong).await?;
            let right = json!({"ticket": ticket, "epoch": claimed["epoch"]});
            api.ok(LINE, "renew", right.clone()).await?;
            api.ok(LINE, "complete", right).await?;
        } else {
            api.ok(LINE, "leave", json!({"ticket": ticket})).await?;
        }
        let changed = ticket.as_str().context("text")?.replace(['A', 'B'], "C");
        for bad in [
            json!({"ticket": changed}),
            json!({"ticket": [ticket]}),
            json!({"ticket": ticket, "key": key("both")}),
            json!({"tiket": ticket}),
            json!({"key": format!("{SECRET}{}", "k".repeat(200))}),
        ] {
            api.call(LINE, "status", &bad).await?;
            api.call("no-such-line", "status", &bad).await?;
        }
    }
    for bad in [json!({"kee": key("kee")}), json!({"key": [key("list")]})] {
        api.call(LINE, "enter", &bad).await?;
    }
    let request = json!({"descriptors": [[{"key": "order", "value": key("limit")}]]});
    api.check("leaks", &request).await?;
    Ok(())
}

/// By the command line tool.
async fn of_the_tool(cluster: &Cluster, said: &mut Said) -> Result<()> {
    let cli = Cli::new(cluster.nats.url()).with_logs(LOGS);
    let key = format!("{SECRET}-tool");
    let entered = cli.run(&["enter", LINE, "--key", &key]).await?;
    said.logs += &entered.stderr;
    let ticket = said.note(&entered.done()?)?;
    let ticket = ticket.as_str().context("text")?;
    for words in [
        &["status", LINE, ticket][..],
        &["claim", LINE, ticket],
        &["renew", LINE, ticket, "--epoch", "9999"],
        &["complete", LINE, ticket],
        &["leave", LINE, ticket],
        &["status", "no-such-line", ticket],
        &["kv", "put", "leaks", &key, &key],
        &["kv", "get", "leaks", &key],
        &["kv", "delete", "leaks", &key],
        &["line", "tokens", LINE],
        &["line", "kick", LINE, "--key", &key, "--reason", "a test"],
        &["limit", "check", "leaks", &format!("order={key}")],
        &["enter", "no-such-line", "--key", &key],
    ] {
        let output = cli.run(words).await?;
        said.logs += &output.stderr;
    }
    Ok(())
}

fn search(cluster: &Cluster, said: &Said) -> Result<()> {
    let mut logs = vec![("the tool".to_owned(), said.logs.clone())];
    for id in cluster.ids() {
        let log = cluster.folder().join(format!("node-{id}.log"));
        let text = std::fs::read_to_string(&log)?;
        ensure!(text.contains("TRACE") || text.contains("DEBUG"), "{text}");
        logs.push((format!("node {id}"), text));
    }
    // Three tickets and a pass a round, and the tool's ticket.
    ensure!(said.tickets.len() == 9, "{}", said.tickets.len());
    let secrets = said.tickets.iter().map(String::as_str).chain([SECRET]);
    for secret in secrets {
        for (who, text) in &logs {
            let line = text.lines().find(|line| line.contains(secret));
            ensure!(line.is_none(), "{who}: {line:?}");
        }
    }
    Ok(())
}
