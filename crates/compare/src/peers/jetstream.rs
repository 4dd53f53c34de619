//! A JetStream stream with three replicas in files.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use super::{MEMBERS, Peer, next};
use nowserving_e2e::{Nats, Process, Streams, eventually, nats_server};

const START: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(5);
/// The stream, and its subject.
pub const STREAM: &str = "compared";

#[derive(Debug)]
pub struct JetStream {
    servers: Vec<Nats>,
    /// One to each server: a client of the killed one would measure its own reconnect.
    clients: Vec<async_nats::Client>,
}

impl Peer for JetStream {
    /// It keeps the last message alone.
    async fn start(folder: &Path) -> Result<JetStream> {
        let streams = Streams {
            program: nats_server()?,
            sync_always: false,
        };
        JetStream::start_with(folder, &streams, 1).await
    }

    /// Once no replica is behind: a stream that heals after the last failure is no fair beginning of the next.
    async fn leader(&self) -> Result<usize> {
        eventually("JetStream's replicas are current", START, async || {
            self.leader_told_to(0).await.map(Some)
        })
        .await
    }

    async fn write(&self, not_by: usize) -> Result<()> {
        self.ask(next(not_by), STREAM, &json!({})).await?;
        Ok(())
    }

    fn process(&mut self, member: usize) -> &mut Process {
        &mut self.servers[member].process
    }

    async fn start_again(&mut self, member: usize) -> Result<()> {
        self.servers[member].start_again(None).await?;
        self.wait_served().await
    }
}

impl JetStream {
    /// With servers of this kind; it keeps so many messages, or all of them with -1.
    ///
    /// # Errors
    /// It does not come up.
    pub async fn start_with(folder: &Path, streams: &Streams, kept: i64) -> Result<JetStream> {
        let servers = Nats::start_cluster(folder, MEMBERS, None, Some(streams)).await?;
        let mut clients = Vec::new();
        for server in &servers {
            // It is to stay with its server.
            let options = async_nats::ConnectOptions::new()
                .ignore_discovered_servers()
                .retry_on_initial_connect();
            clients.push(options.connect(server.url()).await?);
        }
        let stream = JetStream { servers, clients };
        let config = json!({
            "name": STREAM, "subjects": [STREAM], "num_replicas": MEMBERS, "storage": "file",
            "retention": "limits", "max_msgs_per_subject": kept,
        });
        let subject = format!("$JS.API.STREAM.CREATE.{STREAM}");
        eventually("JetStream has a stream", START, async || {
            stream.ask(0, &subject, &config).await.map(Some)
        })
        .await?;
        stream.wait_served().await?;
        Ok(stream)
    }

    /// The servers' processes.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.servers.iter().map(|server| &server.process)
    }

    /// A connection to a member.
    pub fn client(&self, member: usize) -> &async_nats::Client {
        &self.clients[member]
    }

    /// Removes all messages.
    ///
    /// # Errors
    /// There is no leader.
    pub async fn purge(&self) -> Result<()> {
        let subject = format!("$JS.API.STREAM.PURGE.{STREAM}");
        self.ask(0, &subject, &json!({})).await.map(drop)
    }

    /// All servers answer, and know the same leader and no member that is behind.
    async fn wait_served(&self) -> Result<()> {
        eventually("JetStream serves", START, async || {
            let leader = self.leader_told_to(0).await?;
            for client in 1..MEMBERS {
                if self.leader_told_to(client).await? != leader {
                    return Ok(None);
                }
            }
            self.write(leader).await.map(Some)
        })
        .await
    }

    async fn leader_told_to(&self, client: usize) -> Result<usize> {
        let subject = format!("$JS.API.STREAM.INFO.{STREAM}");
        let info = self.ask(client, &subject, &json!({})).await?;
        let cluster = &info["cluster"];
        let replicas = cluster["replicas"].as_array().context("no replicas")?;
        if !replicas.iter().all(|replica| replica["current"] == true) {
            bail!("a replica is behind: {cluster}");
        }
        let leader = cluster["leader"].as_str().context("no leader")?;
        let number = leader
            .strip_prefix("nats-")
            .and_then(|n| n.parse::<usize>().ok());
        let number = number.and_then(|number| number.checked_sub(1));
        number.with_context(|| format!("a leader named {leader}"))
    }

    async fn ask(&self, client: usize, subject: &str, body: &Value) -> Result<Value> {
        let request = self.clients[client].request(subject.to_owned(), body.to_string().into());
        let reply = tokio::time::timeout(PATIENCE, request).await??;
        let reply: Value = serde_json::from_slice(&reply.payload)?;
        if reply["error"].is_object() {
            bail!("{subject}: {}", reply["error"]);
        }
        Ok(reply)
    }
}
