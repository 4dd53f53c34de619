//! A nats-server of the test's own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use crate::process::Process;
use crate::program::nats_server;
use crate::wait::{eventually, free_port};

const START: Duration = Duration::from_secs(15);
/// The password of every user.
pub const PASSWORD: &str = "between us";

/// How a cluster of servers keeps streams.
#[derive(Clone, Debug)]
pub struct Streams {
    /// Which nats-server.
    pub program: PathBuf,
    /// Whether it syncs each message before it acknowledges it, which servers before 2.10 cannot.
    pub sync_always: bool,
}

/// A running nats-server on a port of 127.0.0.1 that it chose itself.
#[derive(Debug)]
pub struct Nats {
    pub process: Process,
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    /// Its configuration beyond the port and the mapping.
    more: String,
}

impl Nats {
    /// Starts one. With `mapped_shards` it has the mapping line of docs/protocol/subjects.md, which routes
    /// plain requests straight to the leader of their shard. `more` is put into its configuration
    /// as it is.
    ///
    /// # Errors
    /// There is no nats-server, or it does not come up.
    pub async fn start(folder: &Path, mapped_shards: Option<u32>, more: &str) -> Result<Nats> {
        // With room for streams of any definition: only written data takes disk.
        let more = streams_in(folder, false) + more;
        Nats::start_with(nats_server()?, folder, mapped_shards, more).await
    }

    /// Starts one with this configuration, and without streams: with JWTs these would need a system account.
    ///
    /// # Errors
    /// There is no nats-server, or it does not come up.
    pub async fn start_without_streams(folder: &Path, configuration: &str) -> Result<Nats> {
        Nats::start_with(nats_server()?, folder, None, configuration.to_owned()).await
    }

    /// Starts so many, connected by routes to one cluster; the servers are named `nats-1` and so on.
    ///
    /// # Errors
    /// There is no nats-server, or one does not come up.
    pub async fn start_cluster(
        folder: &Path,
        count: usize,
        mapped_shards: Option<u32>,
        streams: Option<&Streams>,
    ) -> Result<Vec<Nats>> {
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect::<Result<_>>()?;
        let routes = ports.iter().map(|port| format!("nats://127.0.0.1:{port}"));
        let routes = routes.collect::<Vec<_>>().join(", ");
        let mut servers = Vec::new();
        for (nth, port) in (1..).zip(&ports) {
            let folder = folder.join(format!("nats-{nth}"));
            std::fs::create_dir_all(&folder)?;
            let mut more = format!(
                "server_name: \"nats-{nth}\"\n\
                 cluster {{ name: \"e2e\", listen: \"127.0.0.1:{port}\", routes: [{routes}] }}\n"
            );
            let program = match streams {
                Some(streams) => {
                    more += &streams_in(&folder, streams.sync_always);
                    streams.program.clone()
                }
                None => nats_server()?,
            };
            servers.push(Nats::start_with(program, &folder, mapped_shards, more).await?);
        }
        Ok(servers)
    }

    async fn start_with(
        program: PathBuf,
        folder: &Path,
        mapped_shards: Option<u32>,
        more: String,
    ) -> Result<Nats> {
        let configuration = configuration(None, mapped_shards) + &more;
        let process = start(&program, folder, &configuration).await?;
        let ports = folder.join("ports");
        let port = eventually("nats-server tells its port", START, async || {
            port_in(&ports, process.pid())
        });
        let port = port.await.with_context(|| process.tail(20))?;
        Ok(Nats {
            process,
            program,
            folder: folder.to_owned(),
            port,
            more,
        })
    }

    /// Kills it and starts it again on the same port.
    ///
    /// # Errors
    /// It does not come up again.
    pub async fn restart(&mut self, mapped_shards: Option<u32>) -> Result<()> {
        self.process.kill().await?;
        self.start_again(mapped_shards).await
    }

    /// [`Nats::restart`] with another configuration in place of the last one, and no logins of users to wait for.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn restart_with(&mut self, more: &str) -> Result<()> {
        self.process.kill().await?;
        self.more = more.to_owned();
        let configuration = configuration(Some(self.port), None) + &self.more;
        self.process = start(&self.program, &self.folder, &configuration).await?;
        Ok(())
    }

    /// Changes one line of its configuration, that of `field`, while it runs.
    ///
    /// # Errors
    /// It has ended, or its file cannot be written.
    pub fn reload(&mut self, mapped_shards: Option<u32>, field: &str, line: &str) -> Result<()> {
        let rest = self.more.lines().filter(|it| !it.starts_with(field));
        self.more = rest.map(|it| format!("{it}\n")).collect::<String>() + line;
        let configuration = configuration(None, mapped_shards) + &self.more;
        std::fs::write(self.folder.join("nats.conf"), configuration)?;
        self.process.signal(Signal::HUP)
    }

    /// Starts it again on the same port after it was killed.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start_again(&mut self, mapped_shards: Option<u32>) -> Result<()> {
        let configuration = configuration(Some(self.port), mapped_shards) + &self.more;
        self.process = start(&self.program, &self.folder, &configuration).await?;
        let url = self.url();
        eventually("nats-server is back", START, async || {
            Ok(async_nats::connect(&url).await.ok())
        })
        .await
        .with_context(|| self.process.tail(20))?;
        Ok(())
    }

    /// The port of 127.0.0.1 that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL at which clients connect.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Where `user` connects, whose password is [`PASSWORD`].
    #[must_use]
    pub fn url_as(&self, user: &str) -> String {
        let password = PASSWORD.replace(' ', "%20");
        format!("nats://{user}:{password}@127.0.0.1:{}", self.port)
    }
}

fn streams_in(folder: &Path, sync_always: bool) -> String {
    let store = folder.join("jetstream");
    let sync = if sync_always {
        ", sync_interval: always"
    } else {
        ""
    };
    format!("jetstream {{ store_dir: {store:?}, max_file_store: 100G{sync} }}\n")
}

async fn start(program: &Path, folder: &Path, configuration: &str) -> Result<Process> {
    let (config, ports) = (folder.join("nats.conf"), folder.join("ports"));
    std::fs::create_dir_all(&ports)?;
    std::fs::write(&config, configuration)?;
    let args = [
        "-c".as_ref(),
        config.as_os_str(),
        "--ports_file_dir".as_ref(),
        ports.as_os_str(),
    ];
    Process::start(
        "nats-server",
        program.as_os_str(),
        args,
        &folder.join("nats.log"),
    )
    .await
}

fn configuration(port: Option<u16>, mapped_shards: Option<u32>) -> String {
    let port = port.map_or("-1".to_owned(), |port| port.to_string());
    let mut text = format!("host: \"127.0.0.1\"\nport: {port}\n");
    if let Some(shards) = mapped_shards {
        let to = format!(
            "nowserving.shard.{{{{partition({shards},1)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"
        );
        text.push_str(&format!(
            "mappings = {{\n  \"nowserving.line.*.*\": \"{to}\"\n}}\n"
        ));
    }
    text
}

/// The port in the file that the server writes once it listens.
fn port_in(folder: &Path, pid: Option<u32>) -> Result<Option<u16>> {
    let pid = pid.context("nats-server has ended")?;
    let text = std::fs::read(folder.join(format!("nats-server_{pid}.ports")))?;
    let ports: serde_json::Value = serde_json::from_slice(&text)?;
    let port = ports["nats"][0]
        .as_str()
        .and_then(|url| url.rsplit(':').next()?.parse().ok());
    Ok(port)
}

/// The prefix of the inboxes that a role of deploy/nats may use.
#[must_use]
pub fn inbox_of(role: &str) -> String {
    format!("_INBOX.{role}")
}
