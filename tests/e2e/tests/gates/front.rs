//! A shop, a gateway and a proxy: what stands before a cluster.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nowserving_e2e::{Cluster, HOUR_MS, Process, eventually, http, program};
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

/// A running `nowserving gateway`.
pub struct Gateway {
    pub process: Process,
    pub listen: SocketAddr,
    grpc: SocketAddr,
    name: String,
    args: Vec<String>,
    log: PathBuf,
}

impl Gateway {
    /// Starts one that does this while the cluster is away, and waits until it has found the lines.
    pub async fn start(cluster: &Cluster, on_unavailable: &str) -> Result<Gateway> {
        let name = format!("gateway-{on_unavailable}");
        let setting = format!("on_unavailable = \"{on_unavailable}\"");
        Gateway::start_with(cluster, &name, &setting).await
    }

    /// The same, with lines of its file.
    pub async fn start_with(cluster: &Cluster, name: &str, settings: &str) -> Result<Gateway> {
        let (listen, grpc) = (loopback()?, loopback()?);
        let secret = cluster.folder().join("gateway.secret");
        if !secret.exists() {
            write_secret(&secret)?;
        }
        let text = format!(
            r#"listen = "{listen}"
envoy_listen = "{grpc}"
secret_file = "gateway.secret"
trusted_proxies = ["127.0.0.1/32"]
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
        let file = cluster.folder().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        let file = file.to_string_lossy().into_owned();
        let nats = cluster.nats_urls();
        let args = ["gateway", "--nats", &nats, "--config", &file];
        let args: Vec<String> = args.map(str::to_owned).into();
        let log = cluster.folder().join(format!("{name}.log"));
        let program = program().await?;
        let process = Process::start(name, program.as_os_str(), &args, &log).await?;
        let gateway = Gateway {
            process,
            listen,
            grpc,
            name: name.to_owned(),
            args,
            log,
        };
        let ready = gateway.ready().await;
        if ready.is_err() {
            eprintln!("{}", gateway.process.tail(20));
        }
        ready.map(|()| gateway)
    }

    /// kill -9.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await.map(drop)
    }

    /// Another one, at the same addresses.
    pub async fn start_again(&mut self) -> Result<()> {
        let program = program().await?;
        let args = &self.args;
        self.process = Process::start(&self.name, program.as_os_str(), args, &self.log).await?;
        self.ready().await
    }

    pub fn behind(&self, shop: &Shop) -> Behind {
        Behind {
            gateway: self.listen,
            gateway_grpc: self.grpc,
            shop: shop.addr,
        }
    }

    async fn ready(&self) -> Result<()> {
        eventually("the gateway knows its lines", PATIENCE, async || {
            let (status, why) = http::get(self.listen, "/readyz").await?;
            ensure!(status == 200, "{why}");
            Ok(Some(()))
        })
        .await
    }
}

fn write_secret(path: &std::path::Path) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    Ok(writeln!(file?, "{}", "5e".repeat(32))?)
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
        eprint!("{}", self.gateway.process.tail(30));
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
