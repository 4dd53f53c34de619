//! A shop, a gateway and a proxy: what stands before a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{self as e2e, Cluster, HOUR_MS, Process, eventually};
use serde_json::json;

use super::proxy::{Away, Behind, Kind, Proxy, loopback};
use super::shop::Shop;
use super::visitor::{Answer, Visitor};

pub const PATIENCE: Duration = Duration::from_secs(30);
/// The line before `/tickets`.
pub const TICKETS: &str = "tickets";
/// The line before `/vip`.
pub const VIP: &str = "vip";
/// A path behind the first one, as it is asked for.
pub const TO: &str = "/tickets/a?x=1&y=%2F";
/// An address that need not wait, which a client could make up.
pub const PARTNER: &str = "198.51.100.7";

/// Both lines.
pub async fn make_lines(cluster: &Cluster, seats: u32) -> Result<()> {
    for (line, seats) in [(TICKETS, seats), (VIP, 1)] {
        let settings = json!({
            "seats": seats,
            "queue_limit": 1_000,
            "claim_timeout_ms": HOUR_MS,
            "checkout_timeout_ms": HOUR_MS,
            "waiting_idle_timeout_ms": HOUR_MS,
        });
        cluster.api().admin(line, "create", settings).await?;
    }
    Ok(())
}

/// A gateway before both lines, with which Envoy speaks, too.
pub struct Gateway {
    gateway: e2e::Gateway,
    grpc: SocketAddr,
}

impl Gateway {
    /// Starts one that does this while the cluster is away, and waits until it has found the lines.
    pub async fn start(cluster: &Cluster, on_unavailable: &str) -> Result<Gateway> {
        let name = format!("gateway-{on_unavailable}");
        let settings =
            format!("on_unavailable = \"{on_unavailable}\"\nnotices_bucket = \"notices\"");
        Gateway::start_with(cluster, &name, &settings).await
    }

    /// The same, with lines of its file.
    pub async fn start_with(cluster: &Cluster, name: &str, settings: &str) -> Result<Gateway> {
        let (listen, grpc) = (loopback()?, loopback()?);
        let more = format!(
            r#"envoy_listen = "{grpc}"
{settings}

[[line]]
line = "{TICKETS}"
hosts = ["shop.example"]
paths = ["/tickets/*"]

[[line]]
line = "{VIP}"
hosts = ["shop.example"]
paths = ["/vip/*"]

# What a client could make up.
[[bypass]]
paths = ["/assets/*"]

[[bypass]]
methods = ["OPTIONS"]

[[bypass]]
from = ["{PARTNER}"]
"#
        );
        let gateway = e2e::Gateway::start(cluster, name, listen, &more).await?;
        gateway.ready().await?;
        Ok(Gateway { gateway, grpc })
    }

    pub fn addr(&self) -> SocketAddr {
        self.gateway.addr()
    }

    pub fn process(&self) -> &Process {
        &self.gateway.process
    }

    /// kill -9.
    pub async fn kill(&mut self) -> Result<()> {
        self.gateway.kill().await
    }

    /// Another one, at the same addresses.
    pub async fn start_again(&mut self) -> Result<()> {
        self.gateway.start_again().await?;
        self.gateway.ready().await
    }

    pub fn behind(&self, shop: &Shop) -> Behind {
        Behind {
            gateway: self.addr(),
            gateway_grpc: self.grpc,
            shop: shop.addr,
        }
    }
}

/// All of it, with one program.
pub struct Front {
    pub kind: Kind,
    pub program: PathBuf,
    pub shop: Shop,
    pub gateway: Gateway,
    pub proxy: Proxy,
}

impl Front {
    pub async fn start(
        cluster: &Cluster,
        kind: Kind,
        program: PathBuf,
        on_unavailable: &str,
        away: Away,
    ) -> Result<Front> {
        let shop = Shop::start().await?;
        let gateway = Gateway::start(cluster, on_unavailable).await?;
        let folder = format!("{}-{on_unavailable}", kind.name());
        let folder = cluster.folder().join(folder);
        let behind = gateway.behind(&shop);
        let proxy = kind.start(&program, &folder, behind, away).await?;
        let front = Front {
            kind,
            program,
            shop,
            gateway,
            proxy,
        };
        let answers = answers(&front.proxy).await;
        if answers.is_err() {
            front.show_logs();
        }
        answers?;
        front.shop.seen();
        Ok(front)
    }

    /// Somebody without cookies.
    pub fn stranger(&self) -> Visitor {
        Visitor::new(self.proxy.addr)
    }

    /// The shop has not been asked, and the client has got the waiting page or data with its status.
    pub fn kept_out(&self, answer: &Answer) -> Result<()> {
        ensure!(answer.status == 503, "not kept out: {answer:?}");
        self.shop_saw_nothing()
            .with_context(|| format!("{answer:?}"))
    }

    pub fn shop_saw_nothing(&self) -> Result<()> {
        let seen = self.shop.seen();
        ensure!(seen.is_empty(), "the shop saw {seen:?}");
        Ok(())
    }

    pub fn show_logs(&self) {
        eprint!("{}", self.proxy.process.tail(30));
        eprint!("{}", self.gateway.process().tail(30));
    }
}

/// Waits until a proxy answers by the gateway.
pub async fn answers(proxy: &Proxy) -> Result<()> {
    eventually("the page comes through the proxy", PATIENCE, async || {
        let answer = Visitor::new(proxy.addr).page(TO).await?;
        Ok((answer.page().as_deref() == Some("enter")).then_some(()))
    })
    .await
}
