//! `nowserving demo --limits`: clients that share rate limits, seen live, and a leader that dies.

mod book;
mod plan;
mod report;
mod scene;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use nowserving_client::limits::Entry;
use nowserving_client::{Client, LimitFallback, Limiter, LimiterOptions};
use tokio::task::JoinSet;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::scene::Screen;
use crate::embedded::{Cluster, NODES};
use book::Book;
use plan::{CLIENTS, DOMAIN, KILL, RESTART, SHOW, Shown};
use report::Report;
use scene::Scene;

const FRAME: Duration = Duration::from_millis(200);
/// A request is repeated for so long: through the failover.
const PATIENCE: Duration = Duration::from_secs(15);

/// How far the drama has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Peace,
    /// This node was killed.
    Killed(u64),
    /// The killed node was started again.
    Over,
}

/// Plays the show on a cluster that has just been started.
///
/// # Errors
/// The cluster fails in a way that is not part of the show.
pub async fn perform(cluster: &mut Cluster, screen: Screen) -> anyhow::Result<Report> {
    screen.say("starting nats-server and three nodes");
    cluster
        .wait_ready(&mut |waiting_for| screen.say(&waiting_for))
        .await?;
    let client = Client::connect(cluster.url())
        .await?
        .with_deadline(PATIENCE);
    Cluster::apply_limits(&client, DOMAIN, plan::rules()).await?;
    let status = client.admin().cluster_status().await?;
    let shards = u32::try_from(status.shards.len())?;
    // Any will do.
    let shard = shards / 2;
    // A service would rather let its users pass while a leader is elected; here only the cluster decides.
    let mut options = LimiterOptions::default();
    options.on_unavailable = LimitFallback::Fail;
    options.patience = PATIENCE;
    let book = Arc::new(Book::new());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let own = Client::connect(cluster.url())
            .await?
            .with_deadline(PATIENCE);
        for (nth, shown) in Shown::ALL.into_iter().enumerate() {
            let value = shown
                .value_in(shard, shards)
                .context("no key is in this shard")?;
            let entry = Entry::new(shown.name(), value);
            let limiter = own.limiter_with(DOMAIN, options.clone())?;
            clients.spawn(ask(limiter, nth, entry, Arc::clone(&book)));
        }
    }
    let mut show = Show {
        cluster,
        client,
        shard,
        book,
        screen,
        leader: None,
        act: Act::Peace,
    };
    show.run(clients).await?;
    Ok(Report::new(&show.book.read(), show.book.now()))
}

/// One client and one limit, until the show is over.
async fn ask(limiter: Limiter, nth: usize, entry: Entry, book: Arc<Book>) {
    let mut next = Duration::ZERO;
    loop {
        let now = book.now();
        if now >= SHOW {
            return;
        }
        if now < next {
            tokio::time::sleep(next - now).await;
        }
        let asked_at = book.now();
        match limiter.check(vec![vec![entry.clone()]]).await {
            Ok(reply) => book.answered(nth, asked_at, &reply),
            Err(error) => book.failed(nth, format!("{}: {error}", entry.key)),
        }
        // A client that had to wait goes on from there, and does not make up for it.
        let pause = Duration::from_secs_f64(1.0 / Shown::ALL[nth].demand(asked_at));
        next = (next + pause).max(asked_at);
    }
}

struct Show<'a> {
    cluster: &'a mut Cluster,
    client: Client,
    /// It has all counters.
    shard: u32,
    book: Arc<Book>,
    screen: Screen,
    leader: Option<u64>,
    act: Act,
}

impl Show<'_> {
    async fn run(&mut self, mut clients: JoinSet<()>) -> anyhow::Result<()> {
        let mut frames = frames();
        while !clients.is_empty() || matches!(self.act, Act::Killed(_)) {
            tokio::select! {
                Some(client) = clients.join_next() => client?,
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
            }
        }
        Ok(())
    }

    /// Does what is due now.
    async fn play(&mut self) -> anyhow::Result<()> {
        let now = self.book.now();
        match self.act {
            Act::Peace => {
                // It stays where it is for all we know: asked often, so that the right one is killed.
                let status = self.client.admin().cluster_status().await?;
                let found = status.shards.iter().find(|it| it.shard == self.shard);
                self.leader = found.and_then(|it| it.leader);
                if let Some(leader) = self.leader.filter(|_| now >= KILL) {
                    self.book.kill(|| self.cluster.kill(leader))?;
                    self.act = Act::Killed(leader);
                }
            }
            Act::Killed(node) if now >= RESTART => {
                self.cluster.restart(node)?;
                self.screen.say(&format!("node {node} was started again"));
                self.act = Act::Over;
            }
            Act::Killed(_) | Act::Over => {}
        }
        Ok(())
    }

    fn draw(&mut self) {
        let now = self.book.now();
        let back_in = RESTART.saturating_sub(now).as_secs();
        let node = |id: u64| match (self.act, self.leader) {
            (Act::Killed(node), _) if node == id => {
                format!("node {id} killed (kill -9), back in {back_in} s")
            }
            (Act::Peace, Some(leader)) if leader == id => {
                format!("node {id} leads the shard of all counters")
            }
            _ => format!("node {id}"),
        };
        let scene = Scene {
            pages: self.book.read(),
            at_ms: now.as_millis() as u64,
            nodes: NODES.into_iter().map(node).collect(),
        };
        self.screen.show(&scene);
    }
}

fn frames() -> Interval {
    let mut frames = interval(FRAME);
    frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
    frames
}
