//! Runs the demo: the crowd, the kill half way, and the screen.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::Fuse;
use nowserving_client::BoardStream;
use tokio::task::JoinSet;
use tokio::time::Interval;

use super::drama::{self, Drama};
use super::scene::{Scene, Screen};
use crate::crowd::Crowd;
use crate::crowd::audit::audit;
use crate::crowd::plan::Part;
use crate::crowd::shopper;
use crate::embedded::Cluster;

pub struct Director<'a> {
    cluster: &'a mut Cluster,
    crowd: Arc<Crowd>,
    board: Fuse<BoardStream>,
    screen: &'a mut Screen,
    scene: Scene,
    drama: Drama,
}

impl<'a> Director<'a> {
    /// `scene`: what does not change during the show.
    pub fn new(
        cluster: &'a mut Cluster,
        crowd: Arc<Crowd>,
        screen: &'a mut Screen,
        scene: Scene,
        drama: Drama,
    ) -> Director<'a> {
        Director {
            cluster,
            board: crowd.line.watch().fuse(),
            crowd,
            screen,
            scene,
            drama,
        }
    }

    /// From the first arrival until every token's end is confirmed.
    ///
    /// # Errors
    /// The cluster fails in a way that is not part of the show.
    pub async fn run(&mut self, parts: Vec<Part>) -> anyhow::Result<()> {
        let visit = |part| shopper::visit(Arc::clone(&self.crowd), part);
        let mut tasks: JoinSet<()> = parts.into_iter().map(visit).collect();
        let mut frames = drama::frames();
        // A killed node comes back even if the crowd has left.
        while !tasks.is_empty() || self.drama.is_under_way() {
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
            ended = self.cluster.next_ended() => drama::ended(self.cluster, self.screen, &ended)?,
            () = self.drama.look() => {}
            Some(Ok(update)) = self.board.next() => {
                self.scene.held = update.board.admitted + update.board.in_checkout;
                let lane = update.board.lanes.first();
                self.scene.pointers = lane.map(|lane| (lane.admitted_through, lane.next_token));
            }
        }
        Ok(())
    }

    async fn play(&mut self) -> anyhow::Result<()> {
        let crowd = &self.crowd;
        // Under the lock of the book, so that no write can slip in between.
        let kill = |cluster: &mut Cluster, leader| {
            crowd.note(|book, _| {
                let moment = cluster.kill(leader)?;
                book.killed(crowd.at(moment));
                anyhow::Ok(())
            })
        };
        let play = self
            .drama
            .play(crowd.now(), self.cluster, self.screen, kill);
        play.await
    }

    fn draw(&mut self) {
        let scene = &mut self.scene;
        self.crowd.note(|book, at| {
            scene.report = book.report(at);
            (scene.in_checkout, scene.waiting) = book.in_checkout_and_waiting(at);
        });
        scene.nodes = self.drama.nodes(self.crowd.now(), "the line");
        scene.is_led = self.drama.is_led();
        self.screen.show(scene);
    }
}
