//! A node that joins an existing cluster: it knows NATS, the key and an empty directory, and asks for the rest.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use nowserving_engine::envelope::Candidate;
use nowserving_front::cluster::identity::Identity;
use nowserving_protocol::admin::DiskId;
use nowserving_protocol::subject::Subjects;
use nowserving_security::Security;
use tokio::sync::{mpsc, watch};

use crate::config::{self, Config, ConfigError};
use crate::keys::Keys;
use crate::nats::payload_limit::PayloadLimit;
use crate::nats::peers::NatsLink;
use crate::nats::rights::Rights;
use crate::nats::{candidates, connect};
use crate::{Ended, data_dir, key_file, metrics_server, run_on_its_thread};

/// Runs a node that was added to its cluster, or asks for that until it is; then as [`crate::run`]. In the
/// configuration are only the settings that do not come from the cluster.
///
/// # Errors
/// As [`crate::run`].
pub async fn run(
    settings: toml::Table,
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    tokio::pin!(stop);
    let draft = Draft::read(settings)?;
    let lock = data_dir::lock(&draft.data_dir)?;
    // Written down before the first question: it may have been added when it was started last.
    let known = data_dir::identity_or_new(&draft.data_dir)?;
    // While it asks it lives, and is not ready: who probes it must not end it.
    let health = metrics_server::of_node(draft.metrics_addr)?;
    let identity = match known.node {
        0 => {
            health.set_serves(Err("asks the cluster to be added".to_owned()));
            tokio::select! {
                () = &mut stop => return Ok(Ended::Stopped),
                asked = draft.ask(known.candidate) => asked?,
            }
        }
        _ => known,
    };
    let config = draft.complete(&identity)?;
    run_on_its_thread(config, lock, health, reload, stop).await
}

/// The settings of a node that does not know its cluster yet.
struct Draft {
    table: toml::Table,
    data_dir: PathBuf,
    key_file: PathBuf,
    peer_nats: String,
    subjects: Subjects,
    security: Security,
    metrics_addr: Option<SocketAddr>,
}

impl Draft {
    fn read(table: toml::Table) -> anyhow::Result<Draft> {
        let text = |field| table.get(field).and_then(toml::Value::as_str);
        let needed = |field| {
            text(field).ok_or(ConfigError::OutOfRange {
                field,
                limit: format!(
                    "is needed by a node that joins (flag --{})",
                    field.replace('_', "-")
                ),
            })
        };
        for field in ["id", "nodes", "cluster", "shards"] {
            if table.contains_key(field) {
                let limit = format!("is given by the cluster: leave out --{field} with --join");
                return Err(ConfigError::OutOfRange { field, limit }.into());
            }
        }
        Ok(Draft {
            data_dir: needed("data_dir")?.into(),
            key_file: needed("key_file")?.into(),
            peer_nats: text("peer_nats")
                .map_or_else(|| needed("nats"), Ok)?
                .to_owned(),
            subjects: match text("prefix") {
                Some(prefix) => Subjects::new(prefix)?,
                None => Subjects::default(),
            },
            security: config::security_of(&table)?,
            metrics_addr: config::metrics_addr_of(&table)?,
            table,
        })
    }

    /// Asks the cluster to add this node, and writes down what it is told.
    async fn ask(&self, disk_id: u64) -> anyhow::Result<Identity> {
        let keys = Keys::new(key_file::load(&self.key_file)?, None)?;
        let (fatal, mut denied) = mpsc::channel(1);
        let rights = Rights::new("peers", self.subjects.clone(), fatal)?;
        let name = "nowserving node that joins";
        let servers = self.peer_nats.parse()?;
        let (security, stats) = (&self.security, Arc::default());
        let (client, _) =
            connect::connect(&servers, security, name, "peers", stats, rights).await?;
        let link = NatsLink {
            limit: PayloadLimit::of(&client),
            client,
            subjects: self.subjects.clone(),
        };
        let candidate = Candidate {
            disk_id,
            number: 0,
            reason: "it is new".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let disk = DiskId(disk_id);
        tracing::info!(
            "asking to be added. To add this node: nowserving cluster add-node {disk}; to give it the place of a dead \
             one: nowserving cluster replace-node <dead node> {disk}"
        );
        let welcome = tokio::select! {
            Some(missing) = denied.recv() => return Err(missing),
            welcome = candidates::ask(&link, &keys, candidate) => welcome?,
        };
        data_dir::take_number(&self.data_dir, &welcome, 0)?;
        Ok(data_dir::identity_of(&self.data_dir)?)
    }

    fn complete(&self, identity: &Identity) -> anyhow::Result<Config> {
        let mut table = self.table.clone();
        let nodes: Vec<i64> = identity.nodes.iter().map(|id| *id as i64).collect();
        table.insert("id".to_owned(), (identity.configured() as i64).into());
        table.insert("nodes".to_owned(), nodes.into());
        table.insert("cluster".to_owned(), identity.cluster.clone().into());
        table.insert("shards".to_owned(), i64::from(identity.shards).into());
        Ok(Config::joined(table)?)
    }
}
