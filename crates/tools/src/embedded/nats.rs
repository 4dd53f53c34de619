//! The private nats-server of an embedded cluster: found, configured, started.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use nowserving_protocol::subject::Subjects;
use tokio::time::Instant;

use super::child::Child;
use super::data_dir::{DataDir, last_lines};
use super::leash;

const START_DEADLINE: Duration = Duration::from_secs(15);

/// Where nats-server is: `NATS_SERVER`, then `PATH`, then /usr/sbin (where Debian puts it, which is
/// not in everybody's `PATH`).
///
/// # Errors
/// It is nowhere; the message says what to install.
pub fn find_server() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("NATS_SERVER").filter(|given| !given.is_empty()) {
        let path = PathBuf::from(given);
        if !path.is_file() {
            bail!("NATS_SERVER={} is not a file", path.display());
        }
        return Ok(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|dir| dir.join("nats-server"))
        .find(|candidate| candidate.is_file())
        .context(
            "nats-server not found: install it (Debian, Ubuntu: apt install nats-server; macOS: \
             brew install nats-server), or set NATS_SERVER=/path/to/nats-server",
        )
}

/// The configuration: only this machine can connect, no JetStream, and plain requests are mapped
/// straight to the shard whose leader serves them, by the hash that the nodes use.
fn configuration(port: Option<u16>, shards: u32) -> String {
    let port = port.map_or("-1".to_owned(), |port| port.to_string());
    let mapping = Subjects::default().mapping_line(shards);
    format!(
        r#"# Written by nowserving at each start: changes here are lost.
host: "127.0.0.1"
port: {port}
# A node or client that hangs is noticed within two of these.
ping_interval: "5s"
ping_max: 2
{mapping}
"#
    )
}

/// A running nats-server.
#[derive(Debug)]
pub struct Nats {
    pub child: Child,
    /// Where it listens: `nats://127.0.0.1:<port>`.
    pub url: String,
}

impl Nats {
    /// Starts nats-server on `port` of 127.0.0.1 (any free one if `None`) and waits until it
    /// takes connections.
    ///
    /// # Errors
    /// It is not installed, the port is taken, or it does not come up within 15 s.
    pub async fn start(dir: &DataDir, port: Option<u16>, shards: u32) -> anyhow::Result<Nats> {
        let server = find_server()?;
        if let Some(port) = port {
            check_free(port)?;
        }
        let ports_dir = dir.path().join("nats");
        // A ports file of an earlier run must not be taken for this one's.
        match fs::remove_dir_all(&ports_dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir(&ports_dir)?,
        }
        let config = dir.path().join("nats.conf");
        fs::write(&config, configuration(port, shards))
            .with_context(|| format!("cannot write {}", config.display()))?;
        let mut command = leash::command(&server)?;
        command.arg("-c").arg(&config);
        command.arg("--ports_file_dir").arg(&ports_dir);
        let log = dir.log("nats-server");
        let mut child = Child::start("nats-server".to_owned(), None, command, &log)?;
        let url = wait_until_up(&mut child, &ports_dir, &log).await?;
        Ok(Nats { child, url })
    }
}

fn check_free(port: u16) -> anyhow::Result<()> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            bail!(
                "port {port} of 127.0.0.1 is in use by another program: `--nats-port PORT` chooses another one"
            )
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot listen on port {port} of 127.0.0.1"))
        }
    }
}

/// Waits for the ports file, which the server writes once it listens, then for a connection.
async fn wait_until_up(child: &mut Child, ports_dir: &Path, log: &Path) -> anyhow::Result<String> {
    let deadline = Instant::now() + START_DEADLINE;
    loop {
        let url = listening_at(&ports_dir.join(format!("nats-server_{}.ports", child.pid())));
        if let Some(url) = url
            && async_nats::connect(&url).await.is_ok()
        {
            return Ok(url);
        }
        if !child.is_alive() {
            bail!("nats-server did not start:\n{}", last_lines(log, 5));
        }
        if Instant::now() > deadline {
            bail!(
                "nats-server does not answer after {START_DEADLINE:?}:\n{}",
                last_lines(log, 5)
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn listening_at(ports_file: &Path) -> Option<String> {
    let text = fs::read_to_string(ports_file).ok()?;
    let ports: serde_json::Value = serde_json::from_str(&text).ok()?;
    ports["nats"][0].as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn nats_understands_the_mapping_line() {
        let text = configuration(Some(4222), 16);
        assert!(text.contains("port: 4222\n"));
        assert!(text.contains(
            r#""nowserving.line.*.*": "nowserving.shard.{{partition(16,1)}}.{{wildcard(1)}}.{{wildcard(2)}}""#
        ));
    }

    #[test]
    fn a_busy_port_is_named() {
        let held = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = held.local_addr().unwrap().port();
        let error = check_free(port).unwrap_err().to_string();
        assert!(error.contains(&format!("port {port} ")), "{error}");
        drop(held);
        check_free(port).unwrap();
    }
}
