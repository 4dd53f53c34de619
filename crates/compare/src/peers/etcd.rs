//! etcd, spoken to in JSON, and by gRPC where speed counts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::{MEMBERS, Peer, named, next};
use nowserving_e2e::Process;
use nowserving_e2e::http::post;
use nowserving_e2e::{eventually, free_port};

const START: Duration = Duration::from_secs(15);
/// `failover` in base64, which etcd takes keys and values in.
const KEY: &str = "ZmFpbG92ZXI=";

/// The program is `ETCD`, or `etcd` in PATH.
#[derive(Debug)]
pub struct Etcd {
    folder: PathBuf,
    ports: [Ports; MEMBERS],
    processes: Vec<Process>,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    clients: u16,
    members: u16,
}

impl Peer for Etcd {
    async fn start(folder: &Path) -> Result<Etcd> {
        let mut ports = Vec::new();
        for _ in 0..MEMBERS {
            let (clients, members) = (free_port()?, free_port()?);
            ports.push(Ports { clients, members });
        }
        let ports = ports
            .try_into()
            .ok()
            .context("as many as there are members")?;
        let folder = folder.to_owned();
        let mut etcd = Etcd {
            folder,
            ports,
            processes: Vec::new(),
        };
        for member in 0..MEMBERS {
            let process = etcd.start_member(member).await?;
            etcd.processes.push(process);
        }
        etcd.wait_served().await?;
        Ok(etcd)
    }

    async fn leader(&self) -> Result<usize> {
        for member in 0..MEMBERS {
            let status = self.ask(member, "/v3/maintenance/status", json!({}));
            let Ok(status) = status.await else { continue };
            if status["leader"].is_string() && status["leader"] == status["header"]["member_id"] {
                return Ok(member);
            }
        }
        anyhow::bail!("no member says that it leads")
    }

    async fn write(&self, not_by: usize) -> Result<()> {
        let body = json!({"key": KEY, "value": KEY});
        self.ask(next(not_by), "/v3/kv/put", body).await?;
        Ok(())
    }

    fn process(&mut self, member: usize) -> &mut Process {
        &mut self.processes[member]
    }

    async fn start_again(&mut self, member: usize) -> Result<()> {
        self.processes[member] = self.start_member(member).await?;
        self.wait_served().await
    }
}

impl Etcd {
    /// The members' processes.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter()
    }

    /// Where clients reach a member.
    pub fn url(&self, member: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[member].clients)
    }

    /// Its version.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn version(&self) -> Result<String> {
        let status = self.ask(0, "/v3/maintenance/status", json!({})).await?;
        Ok(status["version"].as_str().unwrap_or_default().to_owned())
    }

    async fn start_member(&self, member: usize) -> Result<Process> {
        let name = format!("etcd-{member}");
        let Ports { clients, members } = self.ports[member];
        let clients = format!("http://127.0.0.1:{clients}");
        let members = format!("http://127.0.0.1:{members}");
        let all = self.ports.iter().enumerate();
        let all = all.map(|(nth, it)| format!("etcd-{nth}=http://127.0.0.1:{}", it.members));
        let all = all.collect::<Vec<_>>().join(",");
        let folder = self.folder.join(&name);
        let folder = folder.to_str().context("a folder's name in UTF-8")?;
        let args = [
            ["--name", &name],
            ["--data-dir", folder],
            ["--listen-client-urls", &clients],
            ["--advertise-client-urls", &clients],
            ["--listen-peer-urls", &members],
            ["--initial-advertise-peer-urls", &members],
            ["--initial-cluster", &all],
        ];
        let program = named("ETCD", "etcd");
        let log = self.folder.join(format!("{name}.log"));
        Process::start(&name, &program, args.as_flattened(), &log).await
    }

    /// All members answer, and one of them leads.
    async fn wait_served(&self) -> Result<()> {
        eventually("etcd serves", START, async || {
            for member in 0..MEMBERS {
                self.ask(member, "/v3/maintenance/status", json!({}))
                    .await?;
            }
            let leader = self.leader().await?;
            self.write(leader).await.map(Some)
        })
        .await
    }

    async fn ask(&self, member: usize, path: &str, body: Value) -> Result<Value> {
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[member].clients));
        let (status, text) = post(addr, path, &body.to_string()).await?;
        ensure!(status == 200, "etcd: {status} {text}");
        Ok(serde_json::from_str(&text)?)
    }
}

/// Puts values over one HTTP/2 connection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Puts(Channel);

/// `etcdserverpb.PutRequest`, as far as it is used.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `etcdserverpb.PutResponse`, of which nothing is needed.
#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

impl Puts {
    /// Connects to a member.
    ///
    /// # Errors
    /// It does not listen.
    pub async fn connect(etcd: &Etcd, member: usize) -> Result<Puts> {
        let endpoint = Endpoint::from_shared(etcd.url(member))?.tcp_nodelay(true);
        Ok(Puts(endpoint.connect().await?))
    }

    /// Puts a value under a key, acknowledged by a majority.
    ///
    /// # Errors
    /// It was not acknowledged.
    pub async fn put(&self, key: &str) -> Result<()> {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await?;
        let request = PutRequest {
            key: key.into(),
            value: key.into(),
        };
        let codec: ProstCodec<PutRequest, PutResponse> = ProstCodec::default();
        let path = PathAndQuery::from_static("/etcdserverpb.KV/Put");
        grpc.unary(tonic::Request::new(request), path, codec)
            .await?;
        Ok(())
    }
}
