//! Tests of the harness, without any node.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::Subscriber;
use futures::StreamExt;
use nowserving_e2e::{Api, Link, Nats, Proxy, RawNats, eventually};
use nowserving_protocol::subject::shard_of;

const SHORT: Duration = Duration::from_secs(60);

/// NATS's own mapping sends a plain request to the shard that our hash gives.
pub async fn mapping_and_hash_agree() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nats = Nats::start(folder.path(), Some(16), "").await?;
    let client = async_nats::connect(nats.url()).await?;
    let mut incoming = client.subscribe("nowserving.shard.>").await?;
    for line in (0..200).map(|nth| format!("Line_{nth}-x")) {
        client
            .publish(format!("nowserving.line.{line}.enter"), "".into())
            .await?;
        let message = next(&mut incoming).await.with_context(|| line.clone())?;
        let expected = format!("nowserving.shard.{}.{line}.enter", shard_of(&line, 16));
        ensure!(
            message.subject.as_str() == expected,
            "{} not {expected}",
            message.subject
        );
    }
    Ok(())
}

/// A silent link passes nothing on until it is up again; a closed one ends connections.
pub async fn links_can_be_cut() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut nats = Nats::start(folder.path(), None, "").await?;
    let proxy = Proxy::start(SocketAddr::from((Ipv4Addr::LOCALHOST, nats.port()))).await?;
    let behind = Api::new(async_nats::connect(proxy.url()).await?);
    let direct = async_nats::connect(nats.url()).await?;
    let mut incoming = behind.subscribe("x").await?;

    proxy.set(Link::Silent);
    direct.publish("x", "late".into()).await?;
    let early = tokio::time::timeout(Duration::from_millis(300), incoming.next()).await;
    ensure!(early.is_err(), "through a silent link: {early:?}");
    proxy.set(Link::Up);
    let late = next(&mut incoming).await.context("what was under way")?;
    ensure!(late.payload == "late", "{late:?}");

    let mut raw = RawNats::connect(nats.port()).await?;
    proxy.set(Link::Closed);
    eventually("the server knows that it is cut off", SHORT, async || {
        let answer = raw.ask(b"x", b"", Duration::from_millis(200)).await?;
        Ok(answer.filter(|answer| answer.contains("503")))
    })
    .await?;
    proxy.set(Link::Up);
    // The client connects again by itself, also after the server was away.
    nats.restart(None).await?;
    eventually("the client is back", SHORT, async || {
        direct.publish("x", "again".into()).await?;
        direct.flush().await?;
        let message = tokio::time::timeout(Duration::from_millis(200), incoming.next()).await?;
        Ok(message.filter(|message| message.payload == "again"))
    })
    .await?;
    Ok(())
}

async fn next(incoming: &mut Subscriber) -> Result<async_nats::Message> {
    tokio::time::timeout(SHORT, incoming.next())
        .await?
        .context("the subscription has ended")
}
