//! What both shows have in common: a leader that is killed half way, and comes back.

use std::fmt::Display;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use nowserving_client::Client;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::scene::Screen;
use crate::embedded::{Cluster, NODES};

const FRAME: Duration = Duration::from_millis(200);
/// Often, so that the next leader is on the screen when it takes over.
const LEADER_INTERVAL: Duration = Duration::from_millis(200);
/// Asking for the leader must not delay the show.
const LEADER_PATIENCE: Duration = Duration::from_millis(1_500);

/// How far the drama has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Nobody has come to harm.
    Peace,
    /// This node was killed.
    Killed(u64),
    /// The killed node was started again.
    Over,
}

pub struct Drama {
    act: Act,
    kill_at: Duration,
    restart_at: Duration,
    shard: ShardOf,
    /// The leader of the shard, asked for every second.
    leaders: BoxStream<'static, Option<u64>>,
    leader: Option<u64>,
}

/// The shard whose leader is killed.
#[derive(Clone)]
struct ShardOf {
    client: Client,
    shard: u32,
}

impl Drama {
    pub fn new(client: &Client, shard: u32, kill_at: Duration, restart_at: Duration) -> Drama {
        let client = client.with_deadline(LEADER_PATIENCE);
        let shard = ShardOf { client, shard };
        let leaders = stream::unfold(shard.clone(), |shard| async move {
            let leader = shard.leader().await.ok();
            tokio::time::sleep(LEADER_INTERVAL).await;
            Some((leader, shard))
        });
        Drama {
            act: Act::Peace,
            kill_at,
            restart_at,
            shard,
            leaders: leaders.boxed(),
            leader: None,
        }
    }

    /// A killed node has yet to come back.
    pub fn is_under_way(&self) -> bool {
        matches!(self.act, Act::Killed(_))
    }

    /// A live node is known to lead.
    pub fn is_led(&self) -> bool {
        let killed = match self.act {
            Act::Killed(node) => Some(node),
            Act::Peace | Act::Over => None,
        };
        self.leader.is_some() && self.leader != killed
    }

    /// Waits for the next word of who leads.
    pub async fn look(&mut self) {
        if let Some(leader) = self.leaders.next().await {
            self.leader = leader;
        }
    }

    /// Does what is due now, since the show began.
    ///
    /// # Errors
    /// The node cannot be killed or started.
    pub async fn play(
        &mut self,
        now: Duration,
        cluster: &mut Cluster,
        screen: &Screen,
        kill: impl FnOnce(&mut Cluster, u64) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self.act {
            Act::Peace if now >= self.kill_at => {
                // Asked again: leadership may have moved since the screen was drawn.
                if let Ok(leader) = self.shard.leader().await {
                    kill(cluster, leader)?;
                    self.act = Act::Killed(leader);
                }
            }
            Act::Killed(node) if now >= self.restart_at => {
                cluster.restart(node)?;
                screen.say(&format!("node {node} was started again"));
                self.act = Act::Over;
            }
            _ => {}
        }
        Ok(())
    }

    /// Each node in words.
    pub fn nodes(&self, now: Duration, leads: &str) -> Vec<String> {
        let back_in = self.restart_at.saturating_sub(now).as_secs();
        let node = |id: u64| match self.act {
            Act::Killed(node) if node == id => {
                format!("node {id} killed (kill -9), back in {back_in} s")
            }
            _ if self.leader == Some(id) => format!("node {id} leads {leads}"),
            _ => format!("node {id} follows"),
        };
        NODES.into_iter().map(node).collect()
    }
}

impl ShardOf {
    async fn leader(&self) -> anyhow::Result<u64> {
        let status = self.client.admin().cluster_status().await?;
        let found = status.shards.iter().find(|it| it.shard == self.shard);
        found
            .and_then(|status| status.leader)
            .context("no leader is known")
    }
}

/// How many shards the cluster has.
pub async fn shards(client: &Client) -> anyhow::Result<u32> {
    let status = client.admin().cluster_status().await?;
    Ok(u32::try_from(status.shards.len())?)
}

pub fn frames() -> Interval {
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    frames
}

/// A process of the cluster has ended.
///
/// # Errors
/// It was nats-server.
pub fn ended(cluster: &mut Cluster, screen: &Screen, ended: &impl Display) -> anyhow::Result<()> {
    let goes_on = cluster.nats_is_alive();
    ensure!(goes_on, "{ended}: without it there is no show");
    screen.say(&ended.to_string());
    Ok(())
}
