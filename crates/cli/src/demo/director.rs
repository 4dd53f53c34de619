//! Runs the demo: the crowd, the kill half way, and the screen.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream, Fuse};
use nowserving_client::{BoardStream, Client};
use nowserving_protocol::subject::shard_of;
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::scene::{Scene, Screen};
use crate::crowd::Crowd;
use crate::crowd::audit::audit;
use crate::crowd::plan::Part;
use crate::crowd::shopper;
use crate::embedded::{Cluster, NODES};

const FRAME: Duration = Duration::from_millis(200);
const LEADER_INTERVAL: Duration = Duration::from_secs(1);
/// Asking for the leader must not delay the demo.
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

pub struct Director<'a> {
    cluster: &'a mut Cluster,
    crowd: Arc<Crowd>,
    client: Client,
    board: Fuse<BoardStream>,
    /// The leader of the line, asked for every second.
    leaders: BoxStream<'static, Option<u64>>,
    screen: &'a mut Screen,
    scene: Scene,
    leader: Option<u64>,
    act: Act,
}

impl<'a> Director<'a> {
    /// `scene`: what does not change during the show.
    pub fn new(
        cluster: &'a mut Cluster,
        crowd: Arc<Crowd>,
        screen: &'a mut Screen,
        scene: Scene,
    ) -> Director<'a> {
        let client = crowd.line.client().with_deadline(LEADER_PATIENCE);
        let asked = (client.clone(), crowd.line.name().as_str().to_owned());
        let leaders = stream::unfold(asked, |(client, line)| async move {
            let leader = leader_of(&client, &line).await.ok();
            tokio::time::sleep(LEADER_INTERVAL).await;
            Some((leader, (client, line)))
        });
        Director {
            cluster,
            board: crowd.line.watch().fuse(),
            crowd,
            client,
            leaders: leaders.boxed(),
            screen,
            scene,
            leader: None,
            act: Act::Peace,
        }
    }

    /// From the first arrival until every token's end is confirmed.
    ///
    /// # Errors
    /// The cluster fails in a way that is not part of the show.
    pub async fn run(&mut self, parts: Vec<Part>) -> anyhow::Result<()> {
        let visit = |part| shopper::visit(Arc::clone(&self.crowd), part);
        let mut tasks: JoinSet<()> = parts.into_iter().map(visit).collect();
        let mut frames = frames();
        // A killed node comes back even if the crowd has left.
        while !tasks.is_empty() || matches!(self.act, Act::Killed(_)) {
            self.attend(&mut frames, &mut tasks).await?;
        }
        tasks.spawn(audit(Arc::clone(&self.crowd)));
        while !tasks.is_empty() {
            self.attend(&mut frames, &mut tasks).await?;
        }
        Ok(())
    }

    /// Waits for the next thing that needs attention, and gives it. Attention is never cut short by
    /// the next thing: a node half started would be killed.
    async fn attend(
        &mut self,
        frames: &mut Interval,
        tasks: &mut JoinSet<()>,
    ) -> anyhow::Result<()> {
        tokio::select! {
            Some(task) = tasks.join_next() => {
                if let Err(error) = task {
                    self.crowd.trouble(format!("a task broke down: {error}"));
                }
            }
            _ = frames.tick() => {
                self.play().await?;
                self.draw();
            }
            ended = self.cluster.next_ended() => {
                if !self.cluster.nats_is_alive() {
                    bail!("{ended}: without it there is no show");
                }
                self.screen.say(&ended.to_string());
            }
            Some(leader) = self.leaders.next() => self.leader = leader,
            Some(Ok(update)) = self.board.next() => {
                let lane = update.board.lanes.first();
                self.scene.pointers = lane.map(|lane| (lane.admitted_through, lane.next_token));
            }
        }
        Ok(())
    }

    /// Does what is due now.
    async fn play(&mut self) -> anyhow::Result<()> {
        let times = self.crowd.times;
        match self.act {
            Act::Peace if self.crowd.now() >= times.kill => {
                // Asked again: leadership may have moved since the screen was drawn.
                let line = self.crowd.line.name().as_str();
                let Ok(leader) = leader_of(&self.client, line).await else {
                    return Ok(());
                };
                // Under the lock of the book, so that no write can slip in between.
                let crowd = &self.crowd;
                crowd.note(|book, _| {
                    let moment = self.cluster.kill(leader)?;
                    book.killed(crowd.at(moment));
                    anyhow::Ok(())
                })?;
                self.act = Act::Killed(leader);
            }
            Act::Killed(node) if self.crowd.now() >= times.restart => {
                self.cluster.restart(node)?;
                self.screen.say(&format!("node {node} was started again"));
                self.act = Act::Over;
            }
            _ => {}
        }
        Ok(())
    }

    fn draw(&mut self) {
        let scene = &mut self.scene;
        self.crowd.note(|book, at| {
            scene.report = book.report(at);
            (scene.held, scene.waiting) = book.held_and_waiting(at);
        });
        let leader = self.leader;
        let left = self.crowd.times.restart.saturating_sub(self.crowd.now());
        let back_in = left.as_secs();
        let act = self.act;
        scene.nodes = NODES
            .iter()
            .map(|&id| match act {
                Act::Killed(node) if node == id => {
                    format!("node {id} killed (kill -9), back in {back_in} s")
                }
                _ if leader == Some(id) => format!("node {id} leads the line"),
                _ => format!("node {id} follows"),
            })
            .collect();
        self.screen.show(scene);
    }
}

fn frames() -> Interval {
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    frames
}

/// The node that leads the shard of a line.
async fn leader_of(client: &Client, line: &str) -> anyhow::Result<u64> {
    let status = client.admin().cluster_status().await?;
    let shard = shard_of(line, u32::try_from(status.shards.len())?);
    let found = status.shards.iter().find(|status| status.shard == shard);
    found
        .and_then(|status| status.leader)
        .context("no leader is known")
}
