//! What users are told in confidence stands in no log: tickets, keys, keys of key-values, values of descriptors.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nowserving_e2e::{Cli, Cluster, Options, run};
use serde_json::{Value, json};

const LINE: &str = "leaks";
/// A line whose tokens are called, moved, imported and so on.
const CALLED: &str = "leaks-called";
/// All that our own crates say, and what is asked of the NATS library, which would print whole messages.
const LOGS: &str = "trace,async_nats::connection=trace";
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
        of_operators(cluster, &mut said).await?;
        of_the_tool(cluster, &mut said).await?;
        of_files(cluster, &mut said).await?;
        let leader = cluster.leader_of(LINE).await?;
        cluster.process(leader)?.kill().await?;
        cluster.wait_served().await?;
        of_users(cluster, &mut said).await?;
        of_operators(cluster, &mut said).await?;
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
        let seen = json!({"tickets": [ticket, ticket]});
        api.ok(LINE, "seen", seen.clone()).await?;
        api.call("no-such-line", "seen", &seen).await?;
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

/// What operators ask about a line and its tokens. Some of it is refused, as it would be in a line of this state.
async fn of_operators(cluster: &Cluster, said: &mut Said) -> Result<()> {
    let (api, round) = (cluster.api(), said.rounds);
    if round == 1 {
        let settings = json!({
            "seats": 1, "queue_limit": 2, "admission": "called", "event_key": true, "callback_limit": 10,
            "lanes": [{"name": "normal"}, {"name": "vip", "jump": true}],
        });
        api.admin(CALLED, "create", settings).await?;
    }
    let key = |name: &str| format!("{SECRET}-{round}-{name}");
    let ask = async |of: &str, op: &str, body: Value| {
        let reply = api
            .ask_at(&format!("nowserving.{of}.{CALLED}.{op}"), &body)
            .await?;
        ensure!(reply.code.as_deref() != Some("bad_request"), "{op}");
        anyhow::Ok(reply.body)
    };
    let rows = json!([{"key": key("imported")}]);
    let import = json!({"import_id": key("import"), "first_row": 0, "rows": rows});
    ask("admin.line", "import", import).await?;
    for name in ["d", "e"] {
        let entered = api.enter(CALLED, &key(name)).await?;
        said.note(&entered)?;
    }
    let full = json!({"key": key("f")});
    ask("line", "enter", full.clone()).await?;
    ask("line", "callback", full).await?;
    let found = ask("line", "find", json!({"key": key("d")})).await?;
    let jumped = json!({"ticket": said.note(&found)?, "to": "vip"});
    let jumped = ask("line", "jump", jumped).await?;
    said.note(&jumped)?;
    ask("line", "jump", json!({"key": key("e"), "to": "vip"})).await?;
    let entered = ask("line", "find", json!({"key": key("imported")})).await?;
    said.note(&entered)?;
    let moved = json!({"lane": "normal", "token": entered["token"], "to": "vip"});
    let at = json!({"lane": "vip", "token": jumped["token"]});
    let change = json!({"seats": 2});
    for (op, body) in [
        ("move", moved),
        ("call_next", json!({"n": 1, "call_id": key("call")})),
        ("take", at),
        ("configure", change),
        ("capacity_told", json!({"seats": null})),
        ("list_tokens", json!({})),
        ("journal", json!({})),
        ("show", json!({})),
    ] {
        ask("admin.line", op, body).await?;
    }
    let all = ["imported", "d", "e"].map(key);
    let kick = json!({"keys": all});
    ask("admin.line", "kick", kick).await?;
    ask("admin.line", "journal", json!({})).await?;
    let request =
        json!({"domain": CALLED, "descriptor": [{"key": "order", "value": key("limit")}]});
    api.ask_at("nowserving.admin.limit.reset", &request).await?;
    Ok(())
}

/// By the command line tool: key sets, passes, rules and backups.
async fn of_files(cluster: &Cluster, said: &mut Said) -> Result<()> {
    let cli = Cli::new(cluster.nats.url()).with_logs(LOGS);
    let path = |name: &str| cluster.folder().join(name).display().to_string();
    let (jwks, rules, backup) = (path("leaks.jwks"), path("leaks.yaml"), path("leaks.backup"));
    let of_leaks = "domain: leaks\ndescriptors: [{key: order, rate_limit: {unit: hour, requests_per_unit: 1}}]\n";
    std::fs::write(&rules, of_leaks)?;
    let rows = path("leaks.jsonl");
    std::fs::write(&rows, format!("{{\"key\": \"{SECRET}-row\"}}\n"))?;
    let descriptor = format!("order={SECRET}-tool");
    let key = format!("{SECRET}-tool");
    for words in [
        &["cluster", "jwks", "--out", &jwks][..],
        &["limit", "apply", &rules],
        &["limit", "check", "leaks", &descriptor],
        &["limit", "test", "leaks", &descriptor],
        &["limit", "reset", "leaks", &descriptor],
        &["kv", "put", "leaks", &key, &key],
        &["kv", "list", "leaks"],
        &["line", "import", CALLED, &rows],
        &["line", "set", CALLED, "--seats", "3"],
        &["line", "tokens", CALLED],
        &["cluster", "backup", &backup],
        &[
            "cluster",
            "restore",
            &backup,
            "--line",
            CALLED,
            "--overwrite",
            "--yes",
        ],
        &["line", "journal", CALLED],
    ] {
        let output = cli.run(words).await?;
        ensure!(output.code != 2, "{words:?}: {}", output.stderr);
        said.logs += &output.stderr;
    }
    let entered = cli.run(&["enter", LINE, "--key", &key]).await?;
    said.logs += &entered.stderr;
    let ticket = said.note(&entered.done()?)?;
    let ticket = ticket.as_str().context("text")?;
    for op in ["status", "claim"] {
        let output = cli.run(&[op, LINE, ticket, "--pass"]).await?;
        said.logs += &output.stderr;
        let answer = output.done()?;
        let pass = answer["pass"].as_str().context("a pass")?.to_owned();
        let output = cli.run(&["pass", "verify", &pass, "--jwks", &jwks]).await?;
        ensure!(output.code == 0, "{}", output.stderr);
        said.logs += &output.stderr;
        said.tickets.push(pass);
    }
    let output = cli.run(&["leave", LINE, ticket]).await?;
    said.logs += &output.stderr;
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
    // A round: six tickets and more, and a pass. Two of the tool, and two passes.
    ensure!(said.tickets.len() >= 18, "{}", said.tickets.len());
    let secrets = said.tickets.iter().map(String::as_str).chain([SECRET]);
    for secret in secrets {
        for (who, text) in &logs {
            let line = text.lines().find(|line| line.contains(secret));
            ensure!(line.is_none(), "{who}: {line:?}");
        }
    }
    Ok(())
}
