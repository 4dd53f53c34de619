//! The node: one process of a nowserving cluster.
//!
//! One thread, or several, each with a part of the shards ([`loops`]), has a runtime of its own, and in it all that a
//! request meets: the connections to NATS ([`nats`]), and the engine with its Raft groups and lines
//! ([`shards::engine_loop`]). Other threads do what takes long: they write the log where syncs take long
//! ([`shards::persist`]), make snapshots and give back old log files ([`shards::snapshots`]), and serve metrics.

pub mod backups;
pub mod check;
pub mod clock;
pub mod config;
pub mod damage;
pub mod data_dir;
pub mod disk_space;
mod ended;
pub mod health;
pub mod join;
pub mod key_file;
pub mod keys;
pub mod link;
mod loops;
mod members;
pub mod metrics_server;
pub mod nats;
pub mod shards;
pub mod throttle;
#[cfg_attr(not(feature = "otlp"), path = "traces/none.rs")]
pub mod traces;

use std::sync::Arc;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

pub use crate::config::{Config, ConfigError};
use crate::data_dir::DataDir;
pub use crate::ended::{Ended, Removed};
use crate::health::Health;
use crate::loops::first::Node;

/// Runs a node until `stop` completes, then hands its leadership over and ends. On a change of `reload` it looks at its
/// key file at once, and says what it found. Metrics are served by the caller's runtime, all else by a thread of the
/// node's own.
///
/// # Errors
/// The configuration, the key file or the data directory is not usable; or the node met something
/// that it must not go on with.
pub async fn run(
    config: Config,
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    let lock = data_dir::lock(&config.data_dir)?;
    let health = metrics_server::of_node(config.metrics_addr)?;
    run_on_its_thread(config, lock, health, reload, stop).await
}

pub(crate) async fn run_on_its_thread(
    config: Config,
    lock: std::fs::File,
    health: Arc<Health>,
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    let (stopping, stopped) = oneshot::channel();
    let (ending, mut ended) = oneshot::channel();
    let aside = Handle::current();
    let thread = std::thread::Builder::new().name("node".to_owned());
    thread.spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().context("a runtime");
        // Dropped with the other end: the caller waits no longer.
        let stop = async { drop(stopped.await) };
        let run = open_and_run(config, lock, (health, aside), reload, stop);
        let result = runtime.and_then(|it| it.block_on(run));
        let _ = ending.send(result.map_err(damage::advise));
    })?;
    tokio::select! {
        result = &mut ended => return result.context("the node's thread panicked")?,
        () = stop => drop(stopping.send(())),
    }
    ended.await.context("the node's thread panicked")?
}

async fn open_and_run(
    mut config: Config,
    lock: std::fs::File,
    (health, aside): (Arc<Health>, Handle),
    reload: watch::Receiver<()>,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Ended> {
    config.check()?;
    // Once: how many cores there are can change.
    config.loops = Some(config.loops());
    let loaded = key_file::load(&config.key_file)?;
    let data = DataDir::open_locked(&config, lock)?;
    let rotation = data_dir::members_in(&data.path)?.rotation;
    let keys = keys::at_start(&config.key_file, loaded, rotation)?;
    config.id = data.identity.node;
    if let Some(endpoint) = &config.otlp {
        let _spans_are_sent_there = aside.enter();
        traces::install(endpoint, &config)?;
    }
    tracing::info!(
        node = config.id, cluster = %config.cluster, shards = config.shards,
        boots = data.identity.boots, "starting"
    );
    let node = Node::open(config, keys, data, health)?;
    let ended = node.run(reload, stop).await;
    traces::flush().await;
    ended
}
