//! `nowserving envoy`: Envoy's rate limit service in front of a cluster.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use nowserving_client::{Client, ClientOptions, LineName};
use nowserving_envoy::{Options, Server};
use nowserving_node::health::Health;
use nowserving_node::metrics_server;
use tokio::sync::watch;

use crate::logs::{LogArgs, Logs};
use crate::reload::Reload;
use nowserving_terminal::duration;
use nowserving_terminal::global::Global;
use nowserving_terminal::signals::{HangUps, Interrupts};

/// Runs Envoy's rate limit service (v3, gRPC) until it is stopped: it answers by the cluster's rate limits.
///
/// It has no state, so as many as are needed can run side by side. It starts also while the cluster or NATS is away. SIGINT
/// and SIGTERM stop it; on SIGHUP it reads the file of --log and those of its login and of TLS again, unless nohup
/// started it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving envoy --listen 0.0.0.0:8081 --nats nats://10.0.0.5:4222
  nowserving envoy --listen 127.0.0.1:8081 --domain default/shop/http=shop --response-headers")]
pub struct EnvoyArgs {
    /// Where Envoy asks: gRPC without TLS.
    #[arg(long, value_name = "ADDR:PORT", env = "NOWSERVING_ENVOY_LISTEN")]
    listen: SocketAddr,
    /// What a request gets that the cluster does not decide.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value = "error",
        env = "NOWSERVING_ON_UNAVAILABLE"
    )]
    on_unavailable: OnUnavailable,
    /// How long the cluster may take to decide, 1ms to 1m; less than the timeout of Envoy's configuration.
    #[arg(
        long = "patience",
        value_name = "TIME",
        default_value = "100ms",
        env = "NOWSERVING_PATIENCE",
        value_parser = duration::between(1..=60_000)
    )]
    patience_ms: u64,
    /// Adds X-Ratelimit-Limit, X-Ratelimit-Remaining, Retry-After and the like to the responses that Envoy sends.
    #[arg(long, env = "NOWSERVING_RESPONSE_HEADERS")]
    response_headers: bool,
    /// A domain that has another name in the cluster, where names are [A-Za-z0-9_-]{1,64}. Can be repeated.
    #[arg(long, value_name = "ENVOYS=CLUSTERS", value_parser = renamed)]
    domain: Vec<(String, LineName)>,
    /// Where Prometheus may scrape; nowhere if not given.
    #[arg(long, value_name = "ADDR:PORT", env = "NOWSERVING_METRICS_ADDR")]
    metrics_addr: Option<SocketAddr>,
    #[command(flatten)]
    logs: LogArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum OnUnavailable {
    /// It passes
    Allow,
    /// It is over the limit
    Deny,
    /// Envoy gets an error, and does what its failure_mode_deny says
    Error,
}

impl EnvoyArgs {
    /// How it logs: needed before anything else is.
    pub fn logs(&self) -> &LogArgs {
        &self.logs
    }

    fn options(&self) -> Options {
        let mut options = Options::default();
        options.domains = self.domain.iter().cloned().collect();
        options.on_unavailable = match self.on_unavailable {
            OnUnavailable::Allow => nowserving_envoy::OnUnavailable::Allow,
            OnUnavailable::Deny => nowserving_envoy::OnUnavailable::Deny,
            OnUnavailable::Error => nowserving_envoy::OnUnavailable::Error,
        };
        options.patience = Duration::from_millis(self.patience_ms);
        options.response_headers = self.response_headers;
        options
    }
}

/// The last `=` separates: the cluster's names have none.
fn renamed(text: &str) -> Result<(String, LineName), String> {
    match text.rsplit_once('=') {
        Some(("", _)) | None => Err("as in default/shop/http=shop".to_owned()),
        Some((envoys, clusters)) => {
            let clusters = clusters.parse::<LineName>();
            Ok((
                envoys.to_owned(),
                clusters.map_err(|error| error.to_string())?,
            ))
        }
    }
}

/// Runs until a signal ends it.
pub async fn run(args: EnvoyArgs, global: &Global, logs: Logs) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::of_daemon()?;
    let mut hang_ups = HangUps::listen()?;
    let security = global.security()?;
    let files = Reload { logs, security };
    let health = Arc::new(Health::default());
    metrics_server::install(args.metrics_addr, &health, metrics_server::Process::Envoy)?;
    let client = connect(global).await?;
    let options = args.options();
    let on_unavailable = options.on_unavailable;
    let server = Server::bind(args.listen, &client, options).await;
    let server = server.with_context(|| format!("--listen {}", args.listen))?;
    let (addr, serves) = (server.addr()?, server.serves());
    tracing::info!(%addr, ?on_unavailable, "answers Envoy");
    let stop = async move {
        let mut report = std::pin::pin!(report(serves, &health));
        let signal = loop {
            tokio::select! {
                signal = interrupts.next() => break signal,
                () = hang_ups.next() => files.run(),
                never = &mut report => match never {},
            }
        };
        tracing::info!(signal, "stopping");
        health.set_serves(Err("stopping".to_owned()));
    };
    server.run(stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// `/readyz` says the same as the health service.
async fn report(mut serves: watch::Receiver<bool>, health: &Health) -> Infallible {
    loop {
        health.set_serves(match *serves.borrow_and_update() {
            true => Ok(()),
            false => Err("no connection to NATS".to_owned()),
        });
        if serves.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// In the background: Envoy is answered also while NATS is away, as `--on-unavailable` says.
async fn connect(global: &Global) -> anyhow::Result<Client> {
    let mut options = ClientOptions::default();
    options.name = "nowserving-envoy".to_owned();
    options.connect_in_background = true;
    global.connect_as(options).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn domains_are_renamed() {
        let (envoys, clusters) = renamed("a/b=c=shop").unwrap();
        assert_eq!((envoys.as_str(), clusters.as_str()), ("a/b=c", "shop"));
        for bad in ["shop", "=shop", "a=", "a=b.c"] {
            assert!(renamed(bad).is_err(), "{bad}");
        }
    }
}
