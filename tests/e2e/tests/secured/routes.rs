//! Routes between NATS servers, as deploy/nats has them.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures::{FutureExt, StreamExt};
use nowserving_e2e::{Nats, eventually, free_port};

use super::PATIENCE;
use super::certificates::Authority;

/// The certificate of a client, with which a server asks for a route, opens none; that of a server does.
#[tokio::test]
async fn only_servers_open_routes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    Authority::new("route")?.write(folder, "route")?;
    Authority::new("good")?.write(folder, "client")?;
    let ports = [free_port()?, free_port()?, free_port()?];
    let all = cluster(folder, "route", ports[0], ports[1])?;
    let first = Nats::start_without_streams(&folder.join("first"), &all).await?;
    // It takes the first for a server: what counts is whom the first takes for one.
    let stranger = cluster(folder, "client", ports[2], ports[0])?;
    let stranger = Nats::start_without_streams(&folder.join("stranger"), &stranger).await?;
    eventually("the stranger is refused", PATIENCE, async || {
        let refused = first.process.printed()?;
        Ok(refused.contains("TLS route handshake error").then_some(()))
    })
    .await
    .with_context(|| first.process.tail(20) + &stranger.process.tail(20))?;
    let second = cluster(folder, "route", ports[1], ports[0])?;
    let second = Nats::start_without_streams(&folder.join("second"), &second).await?;
    let (from, to) = (
        async_nats::connect(first.url()).await?,
        async_nats::connect(second.url()).await?,
    );
    let outside = async_nats::connect(stranger.url()).await?;
    let (mut heard, mut overheard) = (to.subscribe("a").await?, outside.subscribe("a").await?);
    to.flush().await?;
    outside.flush().await?;
    eventually("a message takes the route", PATIENCE, async || {
        from.publish("a", "".into()).await?;
        from.flush().await?;
        to.flush().await?;
        Ok(heard.next().now_or_never().flatten())
    })
    .await
    .with_context(|| first.process.tail(20) + &second.process.tail(20))?;
    outside.flush().await?;
    let overheard = overheard.next().now_or_never().flatten();
    ensure!(overheard.is_none(), "{overheard:?}");
    Ok(())
}

/// `cluster.conf` with the certificate of this name, and ports of loopback.
fn cluster(folder: &Path, certificate: &str, port: u16, other: u16) -> Result<String> {
    let shipped = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../deploy/nats/cluster.conf"
    );
    let shipped = std::fs::read_to_string(shipped)?;
    let routes = |line: &&str| !line.contains("nats://nats-");
    let text: Vec<&str> = shipped.lines().filter(routes).collect();
    Ok(text
        .join("\n")
        .replace(
            "routes: [",
            &format!("routes: [ \"nats://127.0.0.1:{other}\""),
        )
        .replace("0.0.0.0:6222", &format!("127.0.0.1:{port}"))
        .replace(
            "/etc/nats/tls/route.",
            &format!("/etc/nats/tls/{certificate}."),
        )
        .replace("/etc/nats/tls", &folder.display().to_string()))
}
