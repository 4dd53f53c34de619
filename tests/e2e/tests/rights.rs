//! The rights of deploy/nats at work: they must allow each role its work, and deny it what other roles do.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, StreamExt};
use nowserving_client::{BadPass, Client, ClientOptions, PassChecker, PassVerifier};
use nowserving_e2e::{Api, Cli, Cluster, PASSWORD, eventually, free_port, inbox_of};
use nowserving_protocol::error::Code;
use serde_json::json;

const LINE: &str = "rights";
const PATIENCE: Duration = Duration::from_secs(30);

/// Each role can do its work and is refused the rest.
pub async fn hold(cluster: &mut Cluster) -> Result<()> {
    work(cluster).await?;
    capacity(cluster).await?;
    dispatchers(cluster).await?;
    key_values(cluster).await?;
    rate_limits(cluster).await?;
    auditors(cluster).await?;
    edges(cluster).await?;
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

/// An auditor looks at all that the role's comment names, and changes nothing.
async fn auditors(cluster: &Cluster) -> Result<()> {
    let auditor = Cli::of_role(&cluster.nats, "auditors");
    for command in [
        "info rights",
        "line show rights",
        "line tokens rights",
        "line journal rights",
        "line list",
        "cluster status",
        "cluster changes",
        "cluster jwks",
        "limit show",
        "limit stats",
        "limit changes",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let said = auditor.run(&words).await?;
        ensure!(
            said.code == 0 && !said.lines.is_empty(),
            "{command}: {said:?}"
        );
    }
    for command in [
        "enter rights --key stranger",
        "line set rights --seats 9",
        "line kick rights --all --yes",
        "line call-next rights",
        "line delete rights --force --yes",
        "line capacity rights --seats 2 --for 1h",
        "cluster drain 1",
        "limit reset rights ip=1",
        "limit check rights ip=1",
        "kv get rights k",
        "kv put rights k v",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let said = auditor.run(&words).await?;
        let error = said.failed(1, "forbidden");
        let message = error.with_context(|| command.to_owned())?["message"].clone();
        let named = message
            .as_str()
            .is_some_and(|it| it.contains("publish to nowserving."));
        ensure!(named, "{command}: {message}");
    }
    let auditor = connect(cluster, "auditors").await?;
    let mut events = auditor.subscribe("nowserving.event.>").await?;
    settle(&auditor, "nowserving.line.rights.info").await?;
    let marker = "nowserving.event.rights.line";
    cluster.api().client().publish(marker, "{}".into()).await?;
    let heard = tokio::time::timeout(PATIENCE, events.next()).await?;
    heard.context("an event")?;
    Ok(())
}

/// An edge fetches the public keys and knows at once which passes are good no more. It does nothing else.
async fn edges(cluster: &Cluster) -> Result<()> {
    let line = "rights-edges";
    let operator = Cli::of_role(&cluster.nats, "operators");
    let create = ["line", "create", line, "--seats", "1", "--queue-limit", "9"];
    operator.run(&create).await?.done()?;
    let edge = Cli::of_role(&cluster.nats, "edges");
    let jwks = edge.run(&["cluster", "jwks"]).await?.done()?;
    let keys = PassVerifier::new(&serde_json::from_value(jwks)?)?.of_cluster("e2e");
    let checker = PassChecker::new(line.parse()?, keys);
    let mut options = ClientOptions::default();
    options.inbox_prefix = Some(inbox_of("edges"));
    let client = Client::connect_with(&cluster.nats.url_as("edges"), options).await?;
    let _following = checker.follow(&client.line(line)?).await?;
    let api = cluster.api();
    let ticket = api.enter(line, "a").await?["ticket"].clone();
    let body = json!({"ticket": ticket, "pass": true});
    let claimed = api.ok(line, "claim", body).await?;
    let pass = claimed["pass"].as_str().context("a pass")?;
    checker.check(pass)?;
    api.ok(line, "complete", json!({"ticket": ticket})).await?;
    eventually("the pass is revoked", PATIENCE, async || {
        Ok((checker.check(pass) == Err(BadPass::Revoked)).then_some(()))
    })
    .await?;
    for command in [
        "info rights",
        "line show rights",
        "line tokens rights",
        "cluster status",
        "enter rights --key stranger",
        "kv get rights k",
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        let said = edge.run(&words).await?;
        said.failed(1, "forbidden")
            .with_context(|| command.to_owned())?;
    }
    hear_no_keys(cluster, "edges").await
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
    hear_no_keys(cluster, "push-services").await
}

/// Whatever listeners of lines subscribe to, they get none of the events of key-values. The server would filter what a
/// role denies only for a connection with a subscription that contains it: others, as most of these, only overlap it.
async fn hear_no_keys(cluster: &Cluster, role: &str) -> Result<()> {
    let mark = async |api: &Api, text: &'static str| {
        let subject = "nowserving.event.kv.line";
        api.client().publish(subject, text.into()).await
    };
    let mut listeners = Vec::new();
    for subject in [
        "nowserving.event.>",
        "nowserving.event.kv.*.*",
        "nowserving.event.kv.>",
        "nowserving.event.*.token.>",
        "nowserving.event.*.token.*",
        "nowserving.event.*.token.*.>",
        "nowserving.event.*.token.*.*",
        "nowserving.event.*.*.>",
        "nowserving.*.kv.token.*",
        "*.*.kv.token.*",
        ">",
    ] {
        for group in [None, Some("group")] {
            let client = connect(cluster, role).await?;
            let heard = match group {
                Some(group) => client.queue_subscribe(subject, group.to_owned()).await?,
                None => client.subscribe(subject).await?,
            };
            let mut markers = client.subscribe("nowserving.event.*.line").await?;
            client.flush().await?;
            eventually("it listens", PATIENCE, async || {
                mark(cluster.api(), "begin").await?;
                cluster.api().settle().await?;
                Ok(markers.next().now_or_never().flatten())
            })
            .await?;
            listeners.push((subject, group, client, heard, markers));
        }
    }
    let keeper = connect(cluster, "key-values").await?;
    let mut of_keys = keeper.subscribe("nowserving.event.kv.*.*").await?;
    settle(&keeper, "nowserving.kv.token.list").await?;
    let cli = Cli::of_role(&cluster.nats, "key-values");
    cli.run(&["kv", "put", "token", role, "v"]).await?.done()?;
    let event = tokio::time::timeout(PATIENCE, of_keys.next()).await?;
    let published = event.context("an event")?.subject;
    // Published after it: a listener that gets the first gets it before this one.
    mark(cluster.api(), "end").await?;
    for (subject, group, _client, heard, markers) in &mut listeners {
        loop {
            let message = tokio::time::timeout(PATIENCE, markers.next()).await?;
            if message.context("a message")?.payload == "end" {
                break;
            }
        }
        while let Some(Some(message)) = heard.next().now_or_never() {
            let is_key = message.subject == published;
            ensure!(!is_key, "{role}: {subject} ({group:?}) hears of keys");
        }
    }
    Ok(())
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
