//! Direct links between nodes are encrypted where the connections to NATS are.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cli, Metrics, eventually, free_port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::certificates::Authority;
use super::{PATIENCE, Site, words};
use crate::roles;

/// How the record begins by which TLS says what is wrong.
const TLS_ALERT: u8 = 21;

#[tokio::test]
async fn direct_links_are_encrypted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let good = Authority::new("good")?;
    good.write(folder.path(), "server")?;
    let (node, operator) = (
        good.write(folder.path(), "node")?,
        good.write(folder.path(), "client")?,
    );
    let configuration = roles::as_shipped(Some(folder.path()))?;
    let site = Site::start(folder, &configuration).await?;
    let (mut nodes, mut metrics, mut links) = (Vec::new(), Vec::new(), Vec::new());
    for id in 1..=3 {
        let link = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let of_node = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let flags = [
            ("--id", id.to_string()),
            ("--nodes", "1,2,3".to_owned()),
            ("--metrics-addr", of_node.to_string()),
            ("--peer-listen", link.to_string()),
        ];
        let url = site.urls().nodes;
        nodes.push(
            site.start_node(&format!("node-{id}"), "linked", &url, &flags, &node)
                .await?,
        );
        metrics.push(of_node);
        links.push(link);
    }
    eventually("all links are open", PATIENCE, async || {
        let open = sum(&metrics, "nowserving_direct_links").await?;
        Ok((open == 6.0).then_some(()))
    })
    .await
    .with_context(|| nodes[0].tail(20))?;
    let cli = Cli::of_role(&site.nats, "operators");
    let before = sum(&metrics, "nowserving_peer_frames_direct_total").await?;
    let create = "line create linked --seats 1 --queue-limit 9";
    eventually("the cluster serves", PATIENCE, async || {
        Ok((cli.run(&words(create, &operator)).await?.code == 0).then_some(()))
    })
    .await?;
    let after = sum(&metrics, "nowserving_peer_frames_direct_total").await?;
    ensure!(
        after > before,
        "{before} frames by links before, {after} after"
    );
    for link in links {
        in_the_clear(link).await?;
    }
    let open = sum(&metrics, "nowserving_direct_links").await?;
    ensure!(open == 6.0, "{open} links");
    Ok(())
}

async fn sum(metrics: &[SocketAddr], name: &str) -> Result<f64> {
    let mut sum = 0.0;
    for addr in metrics {
        sum += Metrics::scrape(*addr).await?.sum(name, &[]);
    }
    Ok(sum)
}

/// One who does not speak TLS is told nothing but that.
async fn in_the_clear(link: SocketAddr) -> Result<()> {
    let mut stranger = TcpStream::connect(link).await?;
    stranger.write_all(&[b'x'; 256]).await?;
    let mut said = Vec::new();
    // It may be closed before all was read there.
    let _ = timeout(Duration::from_secs(20), stranger.read_to_end(&mut said)).await?;
    let is_alert = said.first().is_none_or(|first| *first == TLS_ALERT);
    ensure!(is_alert && said.len() < 16, "{said:?}");
    Ok(())
}
