//! `nowserving gateway`: between browsers and a shop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use nowserving_client::{Client, ClientOptions, Security};
use nowserving_gateway::page::Preview;
use nowserving_gateway::{Admin, Config, Handle, OnUnavailable, Server};
use nowserving_node::health::Health;
use nowserving_node::metrics_server;

use crate::logs::{LogArgs, Logs};
use crate::reload::Reload;
use nowserving_terminal::global::{Global, NATS_DEFAULT, masked};
use nowserving_terminal::output::{Output, WrongUsage};
use nowserving_terminal::signals::{HangUps, Interrupts};

/// How often `/readyz` of the metrics address follows the gateway.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Runs a gateway before a shop until it is stopped: it keeps visitors in line, shows them a waiting page, and lets in those
/// whose turn it is.
///
/// It has no state, so as many as are needed can run side by side with the same configuration and secret. It starts also while
/// the cluster or NATS is away. SIGINT and SIGTERM stop it; on SIGHUP it reads the file of --log, those of its login and of
/// TLS again, unless nohup started it.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  nowserving gateway --config gateway.toml --nats nats://10.0.0.5:4222
  nowserving gateway page --preview                  every state of the waiting page, in a browser
  nowserving gateway page --preview --dir our-page   the same with the templates of a shop"
)]
pub struct GatewayArgs {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Its configuration (TOML), see docs/front/configuration.md.
    #[arg(
        long,
        value_name = "FILE",
        env = "NOWSERVING_GATEWAY_CONFIG",
        required = true
    )]
    config: Option<PathBuf>,
    /// Where browsers or the shop's proxy reach it, in place of `listen` in the file.
    #[arg(long, value_name = "ADDR:PORT", env = "NOWSERVING_GATEWAY_LISTEN")]
    listen: Option<SocketAddr>,
    /// Where the dashboard for operators is, in place of `admin_listen` in the file.
    #[arg(
        long,
        value_name = "ADDR:PORT",
        env = "NOWSERVING_GATEWAY_ADMIN_LISTEN"
    )]
    admin_listen: Option<SocketAddr>,
    /// The dashboard may change lines, as `allow_changes` in the file's section `[admin]`.
    #[arg(long)]
    allow_changes: bool,
    /// What visitors get while the cluster does not answer, in place of `on_unavailable` in the file.
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        env = "NOWSERVING_GATEWAY_ON_UNAVAILABLE"
    )]
    on_unavailable: Option<WhenUnavailable>,
    /// Where Prometheus may scrape; nowhere if not given.
    #[arg(long, value_name = "ADDR:PORT", env = "NOWSERVING_METRICS_ADDR")]
    metrics_addr: Option<SocketAddr>,
    #[command(flatten)]
    logs: LogArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum WhenUnavailable {
    /// The waiting page, which tries again
    Hold,
    /// The shop, without a pass
    Allow,
    /// An error
    Deny,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    Page(PageArgs),
}

/// Checks the templates, catalogues and assets of a shop, or shows every state of the page with made-up data.
#[derive(Debug, Args)]
struct PageArgs {
    /// Serves every state of the page, until it is stopped. Files of the folder are read again for each page.
    #[arg(long)]
    preview: bool,
    /// The shop's folder, as `page_dir` in the configuration; without it the page is ours alone.
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Where the preview is.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8089")]
    listen: SocketAddr,
}

impl GatewayArgs {
    /// How it logs: needed before anything else is.
    pub fn logs(&self) -> &LogArgs {
        &self.run.logs
    }
}

/// Runs until a signal ends it.
pub async fn run(
    args: GatewayArgs,
    global: &Global,
    output: &Output,
    logs: Logs,
) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(GatewayCommand::Page(args)) => page(args, output).await,
        None => serve(args.run, global, logs).await,
    }
}

async fn serve(args: RunArgs, global: &Global, logs: Logs) -> anyhow::Result<ExitCode> {
    let mut interrupts = Interrupts::of_daemon()?;
    let mut hang_ups = HangUps::listen()?;
    let config = config(&args)?;
    let security = global.security()?;
    let files = Reload { logs, security };
    let health = Arc::new(Health::default());
    metrics_server::install(args.metrics_addr, &health, metrics_server::Process::Gateway)?;
    let operator = operator(global, &config.admin).await?;
    let client = connect(global).await?;
    let nats = Nats {
        url: masked(global.nats.as_deref().unwrap_or(NATS_DEFAULT)),
        client: client.clone(),
    };
    let server = Server::bind(config, client).await?;
    let server = match operator {
        Some(operator) => server.with_operator(operator),
        None => server,
    };
    if let Some(addr) = server.admin_addr()? {
        tracing::info!(%addr, "has a dashboard");
    }
    let handle = server.handle();
    tracing::info!(addr = %server.addr()?, "answers browsers");
    let stop = async move {
        let mut report = std::pin::pin!(report(&handle, &health, &nats));
        let signal = loop {
            tokio::select! {
                signal = interrupts.next() => break signal,
                () = hang_ups.next() => {
                    files.run();
                    if let Err(error) = handle.reload_tls() {
                        tracing::error!(%error, "the certificate stays as it is");
                    }
                }
                () = &mut report => {}
            }
        };
        tracing::info!(signal, "stopping");
        health.set_serves(Err("stopping".to_owned()));
    };
    server.run(stop).await;
    Ok(ExitCode::SUCCESS)
}

/// The file, and the flags over it.
fn config(args: &RunArgs) -> anyhow::Result<Config> {
    let path = args.config.as_ref().context("--config is required")?;
    let file = path.display().to_string();
    let wrong = |error: nowserving_gateway::ConfigError| {
        let text = match error.field == file {
            true => error.to_string(),
            false => format!("{file}: {error}"),
        };
        anyhow::Error::from(WrongUsage(text))
    };
    let mut config = Config::load(path).map_err(wrong)?;
    if let Some(listen) = args.listen {
        config.listen = listen;
    }
    config.admin_listen = args.admin_listen.or(config.admin_listen);
    config.admin.allow_changes |= args.allow_changes;
    if let Some(on_unavailable) = args.on_unavailable {
        config.on_unavailable = match on_unavailable {
            WhenUnavailable::Hold => OnUnavailable::Hold,
            WhenUnavailable::Allow => OnUnavailable::Allow,
            WhenUnavailable::Deny => OnUnavailable::Deny,
        };
    }
    config.check().map_err(wrong)?;
    Ok(config)
}

/// The connection to NATS, which is made in the background.
struct Nats {
    url: String,
    client: Client,
}

/// `/readyz` of the metrics address says the same as that of the gateway. Whether NATS is reached is in the log.
async fn report(handle: &Handle, health: &Health, nats: &Nats) {
    let mut is_reached = true;
    loop {
        // The first connection has this long.
        tokio::time::sleep(LOOK_EVERY).await;
        let was_reached = std::mem::replace(&mut is_reached, nats.client.is_connected());
        match (was_reached, is_reached) {
            (true, false) => tracing::warn!(
                nats = nats.url,
                "NATS is not reached, and tried again and again: visitors get what on_unavailable says"
            ),
            (false, true) => tracing::info!(nats = nats.url, "NATS is reached"),
            _ => {}
        }
        health.set_serves(handle.ready());
    }
}

/// In the background: browsers are answered also while NATS is away, as `on_unavailable` says.
async fn connect(global: &Global) -> anyhow::Result<Client> {
    let mut options = ClientOptions::default();
    options.name = "nowserving-gateway".to_owned();
    options.connect_in_background = true;
    global.connect_as(options).await
}

/// A connection of the dashboard's own, if the file has a login for it.
async fn operator(global: &Global, admin: &Admin) -> anyhow::Result<Option<Client>> {
    if !admin.has_login() {
        return Ok(None);
    }
    let mut options = ClientOptions::default();
    options.name = "nowserving-dashboard".to_owned();
    options.connect_in_background = true;
    options.inbox_prefix.clone_from(&admin.inbox_prefix);
    options.security = Security {
        credentials_file: admin.creds_file.clone(),
        nkey_file: admin.nkey_file.clone(),
        ..global.security()?
    };
    Ok(Some(global.connect_with(options).await?))
}

async fn page(args: PageArgs, output: &Output) -> anyhow::Result<ExitCode> {
    if !args.preview {
        nowserving_gateway::page::check(args.dir.as_deref())?;
        output.line("every state of the page is rendered in every language")?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut interrupts = Interrupts::of_daemon()?;
    let preview = Preview::bind(args.listen, args.dir).await;
    let preview = preview.with_context(|| format!("--listen {}", args.listen))?;
    output.line(&format!("http://{}/", preview.addr()?))?;
    let stop = async move {
        interrupts.next().await;
    };
    preview.run(stop).await?;
    Ok(ExitCode::SUCCESS)
}
