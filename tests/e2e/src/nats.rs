//! A nats-server of the test's own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Process;
use crate::program::nats_server;
use crate::wait::eventually;

const START: Duration = Duration::from_secs(15);
/// The password of every user.
pub const PASSWORD: &str = "between us";

/// A running nats-server on a port of 127.0.0.1 that it chose itself.
#[derive(Debug)]
pub struct Nats {
    pub process: Process,
    folder: PathBuf,
    port: u16,
}

impl Nats {
    /// Starts one. With `mapped_shards` it has the mapping line of docs/protocol.md, which routes
    /// plain requests straight to the leader of their shard. `more` is put into its configuration
    /// as it is.
    ///
    /// # Errors
    /// There is no nats-server, or it does not come up.
    pub async fn start(folder: &Path, mapped_shards: Option<u32>, more: &str) -> Result<Nats> {
        let configuration = configuration(folder, None, mapped_shards) + more;
        let process = start(folder, &configuration).await?;
        let ports = folder.join("ports");
        let port = eventually("nats-server tells its port", START, async || {
            port_in(&ports, process.pid())
        });
        let port = port.await.with_context(|| process.tail(20))?;
        Ok(Nats {
            process,
            folder: folder.to_owned(),
            port,
        })
    }

    /// Kills it and starts it again on the same port.
    ///
    /// # Errors
    /// It does not come up again.
    pub async fn restart(&mut self, mapped_shards: Option<u32>) -> Result<()> {
        self.process.kill().await?;
        let configuration = configuration(&self.folder, Some(self.port), mapped_shards);
        self.process = start(&self.folder, &configuration).await?;
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

async fn start(folder: &Path, configuration: &str) -> Result<Process> {
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
        nats_server()?.as_os_str(),
        args,
        &folder.join("nats.log"),
    )
    .await
}

fn configuration(folder: &Path, port: Option<u16>, mapped_shards: Option<u32>) -> String {
    let port = port.map_or("-1".to_owned(), |port| port.to_string());
    // With room for streams of any definition: only written data takes disk.
    let mut text = format!(
        "host: \"127.0.0.1\"\nport: {port}\n\
         jetstream {{ store_dir: {:?}, max_file_store: 100G }}\n",
        folder.join("jetstream"),
    );
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
