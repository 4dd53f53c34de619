//! A `nowserving gateway` of a test's own.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::http;
use crate::process::Process;
use crate::program::program;
use crate::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(30);

/// A running gateway. It believes the forwarded headers of 127.0.0.1.
#[derive(Debug)]
pub struct Gateway {
    pub process: Process,
    addr: SocketAddr,
    name: String,
    args: Vec<String>,
    log: PathBuf,
}

impl Gateway {
    /// Starts one that listens there. `more`: its configuration but for the address, the secret, which all gateways of a
    /// cluster share, and the trusted proxies.
    ///
    /// # Errors
    /// It cannot be started, or its files not be written.
    pub async fn start(
        cluster: &Cluster,
        name: &str,
        addr: SocketAddr,
        more: &str,
    ) -> Result<Gateway> {
        let secret = cluster.folder().join("gateway.secret");
        if !secret.exists() {
            write_secret(&secret)?;
        }
        let text = format!(
            "listen = \"{addr}\"\nsecret_file = \"gateway.secret\"\ntrusted_proxies = [\"127.0.0.1/32\"]\n{more}"
        );
        let file = cluster.folder().join(format!("{name}.toml"));
        std::fs::write(&file, text)?;
        let (file, nats) = (file.to_string_lossy().into_owned(), cluster.nats_urls());
        let args = ["gateway", "--nats", &nats, "--config", &file];
        let args: Vec<String> = args.map(str::to_owned).into();
        let log = cluster.folder().join(format!("{name}.log"));
        let program = program().await?;
        let process = Process::start(name, program.as_os_str(), &args, &log).await?;
        Ok(Gateway {
            process,
            addr,
            name: name.to_owned(),
            args,
            log,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// kill -9, and waits for the end.
    ///
    /// # Errors
    /// The system does not say how it ended.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await.map(drop)
    }

    /// Another one, at the same address.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn start_again(&mut self) -> Result<()> {
        let program = program().await?;
        let (name, args, log) = (&self.name, &self.args, &self.log);
        self.process = Process::start(name, program.as_os_str(), args, log).await?;
        Ok(())
    }

    /// Waits until it has found its lines.
    ///
    /// # Errors
    /// It does not in time.
    pub async fn ready(&self) -> Result<()> {
        let ready = eventually("the gateway knows its lines", PATIENCE, async || {
            let (status, why) = http::get(self.addr, "/readyz").await?;
            ensure!(status == 200, "{why}");
            Ok(Some(()))
        });
        let ready = ready.await;
        if ready.is_err() {
            eprintln!("{}", self.process.tail(20));
        }
        ready
    }
}

fn write_secret(path: &Path) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    Ok(writeln!(file?, "{}", "5e".repeat(32))?)
}
