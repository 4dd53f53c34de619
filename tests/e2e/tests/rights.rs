//! The README's table of NATS rights, read from there: it must let everybody do their work, and
//! keep them from what is not theirs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Api, Cli, Cluster, PASSWORD};
use nowserving_protocol::error::Code;
use serde_json::json;

const LINE: &str = "rights";
const PATIENCE: Duration = Duration::from_secs(10);

/// The `authorization` block for a NATS server; with a user `tests` who may everything.
pub fn of_the_readme() -> Result<String> {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme)?;
    let table = readme.lines().map(str::trim);
    let table = table.skip_while(|line| !line.starts_with("| who | publishes | subscribes |"));
    let rows = table.skip(2).take_while(|line| line.starts_with('|'));
    let mut users = vec![format!("{{user: tests, password: {PASSWORD:?}}}")];
    let mut before = [String::new(), String::new()];
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [who, rights @ ..] = &cells[..] else {
            continue;
        };
        for (cell, had) in rights.iter().zip(&mut before) {
            let same = cell.starts_with("the same");
            let subjects: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
            let more: String = subjects.iter().map(|s| format!("{s:?},")).collect();
            *had = if same { format!("{had}{more}") } else { more };
        }
        let [publish, subscribe] = &before;
        users.push(format!(
            "{{user: {who:?}, password: {PASSWORD:?}, permissions: {{\
             publish: {{allow: [{publish}], deny: [{}]}}, subscribe: [{subscribe}]}}}}",
            if publish.is_empty() { "\">\"" } else { "" },
        ));
    }
    ensure!(
        users.len() == 5,
        "backends, operators, push services, nodes: {users:?}"
    );
    Ok(format!(
        "authorization {{ users = [\n{}\n] }}\n",
        users.join("\n")
    ))
}

/// Everybody does their work, and is refused the rest.
pub async fn hold(cluster: &mut Cluster) -> Result<()> {
    work(cluster).await?;
    strangers(cluster).await?;
    listeners(cluster).await
}

async fn work(cluster: &Cluster) -> Result<()> {
    let operator = Cli::new(cluster.nats.url_as("operators"));
    let create = ["line", "create", LINE, "--seats", "1", "--queue-limit", "9"];
    operator.run(&create).await?.done()?;
    let backend = Cli::new(cluster.nats.url_as("backends"));
    let entered = backend.run(&["enter", LINE, "--key", "a"]).await?.done()?;
    let ticket = entered["ticket"].as_str().context("a ticket")?;
    backend.run(&["claim", LINE, ticket]).await?.done()?;
    backend.run(&["complete", LINE, ticket]).await?.done()?;
    operator.run(&["cluster", "status"]).await?.done()?;
    Ok(())
}

/// What backends and push services may not send does not arrive.
async fn strangers(cluster: &Cluster) -> Result<()> {
    let backend = connect(cluster, "backends").await?;
    let push = connect(cluster, "push services").await?;
    let create = json!({"seats": 1, "queue_limit": 1}).to_string();
    for subject in [
        "nowserving.admin.line.stranger.create",
        "nowserving.forward.admin.shard.0.stranger.create",
        "nowserving.raft.e2e.1.2",
        "nowserving.event.rights.board",
    ] {
        let mut heard = cluster.api().subscribe(subject).await?;
        for client in [&backend, &push] {
            client.publish(subject, create.clone().into()).await?;
        }
        backend
            .publish("nowserving.line.rights.info", "".into())
            .await?;
        settle(&backend, "nowserving.line.rights.info").await?;
        push.flush().await?;
        cluster
            .api()
            .client()
            .publish(subject, "mine".into())
            .await?;
        // Nodes speak there too.
        let mut payload = "".into();
        while payload != "mine" {
            let message = tokio::time::timeout(PATIENCE, heard.next()).await?;
            payload = message.context("a message")?.payload;
            let stranger = payload == create.as_bytes();
            ensure!(!stranger, "{subject}: a stranger got through");
        }
    }
    let api = cluster.api();
    api.admin_refused("stranger", "show", json!({}), Code::LineNotFound)
        .await?;
    Ok(())
}

/// Who may only listen hears boards, and takes no number.
async fn listeners(cluster: &Cluster) -> Result<()> {
    let push = connect(cluster, "push services").await?;
    let mut boards = push
        .subscribe(format!("nowserving.event.{LINE}.board"))
        .await?;
    push.flush().await?;
    push.publish(format!("nowserving.line.{LINE}.enter"), "".into())
        .await?;
    let api: &Api = cluster.api();
    let entered = api.enter(LINE, "b").await?;
    ensure!(entered["token"] == 2, "{entered}");
    let board = tokio::time::timeout(PATIENCE, boards.next()).await?;
    board.context("a board")?;
    let shown = api.admin(LINE, "show", json!({})).await?;
    ensure!(shown["counts"]["issued"] == 2, "{shown}");
    Ok(())
}

/// Returns once the server has looked at all that was sent before.
async fn settle(client: &async_nats::Client, subject: &'static str) -> Result<()> {
    client.request(subject, "".into()).await?;
    Ok(())
}

async fn connect(cluster: &Cluster, user: &str) -> Result<async_nats::Client> {
    let options = async_nats::ConnectOptions::with_user_and_password(user.into(), PASSWORD.into());
    Ok(options.connect(cluster.nats.url()).await?)
}
