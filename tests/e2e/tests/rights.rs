//! The rights of deploy/nats at work: they must allow each role its work, and deny it what other roles do.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Api, Cli, Cluster, PASSWORD, free_port, inbox_of};
use nowserving_protocol::error::Code;
use serde_json::json;

const LINE: &str = "rights";
const PATIENCE: Duration = Duration::from_secs(10);

/// Each role can do its work and is refused the rest.
pub async fn hold(cluster: &mut Cluster) -> Result<()> {
    work(cluster).await?;
    capacity(cluster).await?;
    dispatchers(cluster).await?;
    key_values(cluster).await?;
    rate_limits(cluster).await?;
    strangers(cluster).await?;
    listeners(cluster).await?;
    missing(cluster).await?;
    nodes(cluster).await
}

async fn work(cluster: &Cluster) -> Result<()> {
    let operator = Cli::of_role(&cluster.nats, "operators");
    let create = ["line", "create", LINE, "--seats", "1", "--queue-limit", "9"];
    operator.run(&create).await?.done()?;
    let backend = Cli::of_role(&cluster.nats, "backends");
    let entered = backend.run(&["enter", LINE, "--key", "a"]).await?.done()?;
    let ticket = entered["ticket"].as_str().context("a ticket")?;
    backend.run(&["claim", LINE, ticket]).await?.done()?;
    backend.run(&["complete", LINE, ticket]).await?.done()?;
    operator.run(&["cluster", "status"]).await?.done()?;
    Ok(())
}

/// A backend that tells its capacity can do that, and nothing else of operators or users.
async fn capacity(cluster: &Cluster) -> Result<()> {
    let teller = Cli::of_role(&cluster.nats, "capacity");
    let words = ["line", "capacity", LINE, "--seats", "2", "--for", "1h"];
    let told = teller.run(&words).await?.done()?;
    ensure!(told["board"]["seats"] == 2, "{told}");
    for words in [
        &["line", "set", LINE, "--seats", "9"][..],
        &["enter", LINE, "--key", "stranger"][..],
    ] {
        let error = teller.run(words).await?.failed(1, "forbidden")?;
        ensure!(error["code"] == "forbidden", "{error}");
    }
    let operator = Cli::of_role(&cluster.nats, "operators");
    let words = ["line", "capacity", LINE, "--forget"];
    operator.run(&words).await?.done()?;
    Ok(())
}

/// A dispatcher calls tokens, and does nothing else.
async fn dispatchers(cluster: &Cluster) -> Result<()> {
    let line = "rights-called";
    let operator = Cli::of_role(&cluster.nats, "operators");
    let create = format!("line create {line} --seats 5 --queue-limit 9 --admission called");
    let words: Vec<&str> = create.split(' ').collect();
    operator.run(&words).await?.done()?;
    let backend = Cli::of_role(&cluster.nats, "backends");
    for key in ["a", "b", "c"] {
        let entered = backend.run(&["enter", line, "--key", key]).await?.done()?;
        ensure!(entered["state"] == "waiting", "{entered}");
    }
    let dispatcher = Cli::of_role(&cluster.nats, "dispatchers");
    let listed = dispatcher.run(&["line", "tokens", line]).await?.done()?;
    ensure!(listed["tokens"][2]["key"] == "c", "{listed}");
    let called = dispatcher.run(&["line", "call-next", line]).await?.done()?;
    ensure!(called["admitted"][0]["key"] == "a", "{called}");
    let take = ["line", "take", line, "--key", "c"];
    let taken = dispatcher.run(&take).await?.done()?;
    ensure!(taken["admitted"][0]["token"] == 3, "{taken}");
    for (words, subject) in [
        ("line set rights-called --seats 9", "show"),
        ("line show rights-called", "show"),
        ("line kick rights-called --all", "kick"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let error = dispatcher.run(&words).await?.failed(1, "forbidden")?;
        let message = error["message"].as_str().unwrap_or_default();
        let named = message.contains("publish to nowserving.admin.")
            && message.contains(&format!(".{subject}"));
        ensure!(named, "{words:?}: {message}");
    }
    let enter = ["enter", line, "--key", "d"];
    dispatcher.run(&enter).await?.failed(1, "forbidden")?;
    // Nor may a backend call.
    let call = ["line", "call-next", line];
    backend.run(&call).await?.failed(1, "forbidden")?;
    Ok(())
}

/// A backend that keeps key-values does that, and nothing else.
async fn key_values(cluster: &Cluster) -> Result<()> {
    let keeper = Cli::of_role(&cluster.nats, "key-values");
    for words in [
        "kv put rights k v",
        "kv get rights k",
        "kv list rights",
        "kv delete rights k",
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        keeper.run(&words).await?.done()?;
    }
    let enter = ["enter", LINE, "--key", "stranger"];
    keeper.run(&enter).await?.failed(1, "forbidden")?;
    let backend = Cli::of_role(&cluster.nats, "backends");
    backend
        .run(&["kv", "put", "rights", "k", "v"])
        .await?
        .done()?;
    Ok(())
}

/// A service that checks rate limits does that, and nothing else.
async fn rate_limits(cluster: &Cluster) -> Result<()> {
    for who in ["limits", "backends"] {
        let service = Cli::of_role(&cluster.nats, who);
        let checked = service.run(&["limit", "check", "rights", "ip=1"]).await?;
        ensure!(checked.done()?["allowed"] == true, "{who}");
        service
            .run(&["limit", "show"])
            .await?
            .failed(1, "forbidden")?;
    }
    let service = Cli::of_role(&cluster.nats, "limits");
    let enter = ["enter", LINE, "--key", "stranger"];
    service.run(&enter).await?.failed(1, "forbidden")?;
    Ok(())
}

/// Messages that backends and push services may not send do not arrive.
async fn strangers(cluster: &Cluster) -> Result<()> {
    let backend = connect(cluster, "backends").await?;
    let push = connect(cluster, "push-services").await?;
    let create = json!({"seats": 1, "queue_limit": 1}).to_string();
    for subject in [
        "nowserving.admin.line.stranger.create",
        "nowserving.forward.admin.shard.0.stranger.create",
        "nowserving.raft.e2e.1.2",
        "nowserving.event.rights.board",
    ] {
        let mut incoming = cluster.api().subscribe(subject).await?;
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
        // Nodes publish there too.
        let mut payload = "".into();
        while payload != "mine" {
            let message = tokio::time::timeout(PATIENCE, incoming.next()).await?;
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

/// A role that may only subscribe gets boards, and takes no number.
async fn listeners(cluster: &Cluster) -> Result<()> {
    let push = connect(cluster, "push-services").await?;
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
    hear_no_keys(cluster, &push).await
}

/// Of all that is published, a push service gets the events of lines, and none of key-values.
async fn hear_no_keys(cluster: &Cluster, push: &async_nats::Client) -> Result<()> {
    let mut all = push.subscribe("nowserving.event.>").await?;
    push.flush().await?;
    let keeper = connect(cluster, "key-values").await?;
    let mut of_keys = keeper.subscribe("nowserving.event.kv.*.*").await?;
    keeper.flush().await?;
    let cli = Cli::of_role(&cluster.nats, "key-values");
    cli.run(&["kv", "put", "rights", "k", "v"]).await?.done()?;
    let event = tokio::time::timeout(PATIENCE, of_keys.next()).await?;
    let published = event.context("an event")?.subject;
    // Published after it: a push service that got the first would get it before this one.
    let marker = "nowserving.event.kv.board";
    cluster.api().client().publish(marker, "{}".into()).await?;
    loop {
        let message = tokio::time::timeout(PATIENCE, all.next()).await?;
        let subject = message.context("a message")?.subject;
        ensure!(subject != published, "a push service hears of keys");
        if subject.as_str() == marker {
            return Ok(());
        }
    }
}

/// A command without the right for it reports that at once, in both forms; `watch` too.
async fn missing(cluster: &Cluster) -> Result<()> {
    let wrong = PASSWORD.to_uppercase().replace(' ', "%20");
    let stranger = format!("nats://backends:{wrong}@127.0.0.1:{}", cluster.nats.port());
    let backend = cluster.nats.url_as("backends");
    let board = format!("subscribe to nowserving.event.{LINE}.board");
    let create = format!("line create {LINE}-2 --seats 1 --queue-limit 1");
    for (url, words, named) in [
        (
            &backend,
            create.as_str(),
            "publish to nowserving.admin.line.rights-2.create",
        ),
        (
            &backend,
            "cluster status",
            "publish to nowserving.admin.cluster.status",
        ),
        // Their answers cannot reach them.
        (
            &cluster.nats.url_as("push-services"),
            &format!("info {LINE}"),
            "subscribe to _INBOX.",
        ),
        (
            &cluster.nats.url_as("mute"),
            &format!("watch {LINE}"),
            &board,
        ),
        (&stranger, &format!("info {LINE}"), "refused the login"),
        (&stranger, &format!("watch {LINE}"), "refused the login"),
    ] {
        let words: Vec<&str> = words.split(' ').collect();
        let cli = Cli::new(url.clone()).with_inbox_of("backends");
        let mut said = cli.run(&words).await?;
        // The board as it was asked for may come first.
        said.lines.drain(..said.lines.len().saturating_sub(1));
        ensure!(said.stderr.is_empty(), "{said:?}");
        let error = said.failed(1, "forbidden")?;
        let message = error["message"].as_str().unwrap_or_default();
        ensure!(message.contains(named), "{words:?}: {message}");
        let said = cli.run_as_text(&words).await?;
        let text = format!("error: forbidden: {message}\n");
        // The name of an inbox is another each time.
        let same = said.stderr == text || named.ends_with("_INBOX.");
        ensure!(said.code == 1 && same, "want {text:?}: {said:?}");
        ensure!(said.stderr.lines().count() == 1, "{said:?}");
    }
    Ok(())
}

/// A node without its rights, or with a wrong password, ends and names the missing right.
async fn nodes(cluster: &Cluster) -> Result<()> {
    let wrong = format!("nats://nodes:wrong@127.0.0.1:{}", cluster.nats.port());
    for (name, url, named) in [
        (
            "unprivileged",
            cluster.nats.url_as("backends"),
            "this NATS user may not ",
        ),
        ("unknown", wrong, "the NATS server refused the login"),
    ] {
        let flags = cluster
            .flags(1)?
            .with("--cluster", name)
            .with("--data-dir", cluster.folder().join(name))
            .with("--metrics-addr", format!("127.0.0.1:{}", free_port()?))
            .with("--peer-nats", url.clone())
            .with("--nats", url);
        let mut node = cluster.start_stranger(name, &flags).await?;
        let status = node.ended(PATIENCE).await?;
        let printed = node.printed()?;
        ensure!(status.code() == Some(1), "{status}: {printed}");
        let errors = printed.lines().filter(|line| line.starts_with("error: "));
        let errors: Vec<&str> = errors.collect();
        ensure!(errors.len() == 1 && errors[0].contains(named), "{printed}");
    }
    Ok(())
}

/// Returns once the server has handled everything sent before.
async fn settle(client: &async_nats::Client, subject: &'static str) -> Result<()> {
    client.request(subject, "".into()).await?;
    Ok(())
}

async fn connect(cluster: &Cluster, user: &str) -> Result<async_nats::Client> {
    let options = async_nats::ConnectOptions::with_user_and_password(user.into(), PASSWORD.into());
    let options = options.custom_inbox_prefix(inbox_of(user));
    Ok(options.connect(cluster.nats.url()).await?)
}
