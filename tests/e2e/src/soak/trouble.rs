//! The kinds of trouble: how each begins and ends.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use rustix::process::Signal;

use super::{disks, upgrade};
use crate::api::line_in;
use crate::cluster::Cluster;
use crate::disk::SmallDisk;
use crate::nats::Nats;
use crate::options::Options;
use crate::proxy::Link;
use crate::recovery::first_acknowledged;
use crate::strace::strace_works;

/// Writes are acknowledged again within this time, whatever happened, on a slow machine too.
const PATIENCE: Duration = Duration::from_secs(60);
/// A node that was killed is started again after this; one that stands still or is cut off goes on.
const AWAY: Duration = Duration::from_secs(2);
/// A node that is asked to stop ends within this time.
const END: Duration = Duration::from_secs(30);

/// One kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Trouble {
    /// kill -9 of one node after the other.
    Kill,
    /// SIGTERM of one node after the other: a rolling restart.
    Restart,
    /// SIGSTOP, and SIGCONT later.
    Pause,
    /// kill -9 of nats-server.
    NatsKill,
    /// kill -9 of one nats-server of three after the other.
    OneNatsKill,
    /// A node's connections pass nothing on and stay open.
    CutOff,
    /// SIGTERM of one node after the other, on the way from another build to this one.
    Upgrade,
    /// What a node sends to its peers is not passed on; what they send to it is.
    CutOneWay,
    /// kill -9 of a node, whose disk is lost: a new one takes its place.
    Replace,
    /// The disk of one node after the other is full for a while.
    DiskFull,
    /// The disks of all nodes are full for a while.
    AllDisksFull,
    /// A sync fails, which ends the node.
    SyncError,
    /// A node comes back with an older copy of its data directory, and is replaced.
    RolledBack,
}

/// What came of one blow.
#[derive(Clone, Copy, Debug)]
pub struct Blow {
    /// For how long a shard that the node led acknowledged nothing.
    pub recovery: Duration,
    /// After how long all nodes took part again.
    pub whole: Duration,
}

impl Trouble {
    /// Every one.
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What this machine lacks for it.
    ///
    /// # Errors
    /// There is no temporary folder.
    pub async fn lacks(self) -> Result<Option<&'static str>> {
        Ok(match self {
            Trouble::DiskFull | Trouble::AllDisksFull => {
                (!SmallDisk::is_available()?).then_some("the right to mount a tmpfs")
            }
            Trouble::SyncError => (!strace_works().await).then_some("strace that may trace"),
            Trouble::Upgrade => (upgrade::other_build().is_none())
                .then_some("another build (`cargo xtask upgrade` makes one)"),
            _ => None,
        })
    }

    /// The cluster that it comes over.
    #[must_use]
    pub fn options(self) -> Options {
        let fills_disks = matches!(self, Trouble::DiskFull | Trouble::AllDisksFull);
        Options {
            disk_bytes: fills_disks.then_some(disks::DISK_BYTES),
            proxied: matches!(self, Trouble::CutOff | Trouble::CutOneWay),
            other_build: match self {
                Trouble::Upgrade => upgrade::other_build(),
                _ => None,
            },
            nats_servers: if self == Trouble::OneNatsKill { 3 } else { 1 },
            // Every blow finds snapshots under way, and logs that were cut.
            snapshot_entries: 500,
            ..Options::default()
        }
    }

    /// Strikes a node, or nats-server, and makes it good again.
    ///
    /// # Errors
    /// The cluster does not come back.
    pub async fn strike(self, cluster: &mut Cluster, nth: usize) -> Result<Blow> {
        let node = match self {
            Trouble::Upgrade => upgrade::step(cluster, nth).await?,
            _ => nth as u64 % cluster.options().nodes + 1,
        };
        if self == Trouble::RolledBack {
            disks::copy(cluster, node).await?;
        }
        let number = cluster.number_of(node).await?;
        let line = led_by(cluster, number).await?;
        let api = cluster.api().within(2_000);
        let began = self.begin(cluster, node).await?;
        let recovery = first_acknowledged(&api, &line, began, PATIENCE).await?;
        tokio::time::sleep(AWAY.saturating_sub(began.elapsed())).await;
        self.end(cluster, node, number).await?;
        cluster.wait_served().await?;
        let whole = began.elapsed();
        Ok(Blow { recovery, whole })
    }

    /// Returns since when it can be expected that nothing is acknowledged.
    async fn begin(self, cluster: &mut Cluster, node: u64) -> Result<Instant> {
        let began = Instant::now();
        match self {
            Trouble::Kill | Trouble::Replace | Trouble::RolledBack => {
                cluster.process(node)?.kill().await?;
            }
            Trouble::Restart | Trouble::Upgrade => {
                cluster.process(node)?.signal(Signal::TERM)?;
            }
            Trouble::Pause => cluster.process(node)?.signal(Signal::STOP)?,
            Trouble::NatsKill => {
                let shards = cluster.options().shards;
                cluster.nats.restart(Some(shards)).await?;
            }
            Trouble::OneNatsKill => drop(nats(cluster, node).process.kill().await?),
            Trouble::CutOff => {
                cluster.set_link(node, Link::Silent)?;
                cluster.set_peer_link(node, Link::Silent)?;
            }
            Trouble::CutOneWay => cluster.set_peer_link(node, Link::Mute)?,
            Trouble::DiskFull => cluster.disk(node)?.fill(0)?,
            Trouble::AllDisksFull => return disks::fill_all(cluster, AWAY).await,
            Trouble::SyncError => return disks::fail_sync(cluster, node).await,
        }
        Ok(began)
    }

    /// `number`: the one that the node had.
    async fn end(self, cluster: &mut Cluster, node: u64, number: u64) -> Result<()> {
        match self {
            Trouble::Kill | Trouble::SyncError => cluster.start_node(node).await?,
            Trouble::Restart | Trouble::Upgrade => {
                let ended = cluster.process(node)?.ended(END).await?;
                ensure!(ended.success(), "node {node} was asked to stop: {ended}");
                cluster.start_node(node).await?;
            }
            Trouble::Pause => cluster.process(node)?.signal(Signal::CONT)?,
            Trouble::NatsKill => {}
            Trouble::OneNatsKill => {
                let shards = cluster.options().shards;
                nats(cluster, node).start_again(Some(shards)).await?;
            }
            Trouble::CutOff | Trouble::CutOneWay => {
                cluster.set_link(node, Link::Up)?;
                cluster.set_peer_link(node, Link::Up)?;
            }
            Trouble::Replace => disks::replace(cluster, node, number).await?,
            Trouble::RolledBack => disks::roll_back(cluster, node, number).await?,
            Trouble::DiskFull => {
                cluster.disk(node)?.clear()?;
                disks::has_room(cluster, node).await?;
            }
            Trouble::AllDisksFull => {
                for id in cluster.ids() {
                    disks::has_room(cluster, id).await?;
                }
            }
        }
        cluster.number_of(node).await.map(drop)
    }
}

/// The NATS server with the number of a node.
fn nats(cluster: &mut Cluster, node: u64) -> &mut Nats {
    let other = cluster.more_nats.iter_mut().zip(2..);
    let mut other = other.filter(|(_, number)| *number == node);
    other.next().map_or(&mut cluster.nats, |(nats, _)| nats)
}

/// A probed line whose shard the node leads, or any if it leads none.
async fn led_by(cluster: &Cluster, node: u64) -> Result<String> {
    let shards = cluster.options().shards;
    let leaders = cluster.leaders().await?;
    let led = (0..shards)
        .zip(leaders)
        .find(|(_, leader)| *leader == Some(node));
    Ok(line_in(led.map_or(0, |(shard, _)| shard), shards, "probe"))
}
