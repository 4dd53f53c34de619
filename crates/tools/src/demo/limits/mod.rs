//! `nowserving demo --limits`: clients that share rate limits, seen live, and a leader that dies.

mod book;
mod plan;
mod report;
mod scene;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nowserving_client::limits::Entry;
use nowserving_client::{Client, LimitFallback, Limiter, LimiterOptions};
use tokio::task::JoinSet;

use super::drama::{self, Drama};
use super::scene::Screen;
use crate::embedded::{Cluster, apply_limits};
use book::Book;
use plan::{CLIENTS, DOMAIN, KILL, RESTART, SHOW, Shown};
use report::Report;
use scene::Scene;

/// A request is repeated for so long: through the failover.
const PATIENCE: Duration = Duration::from_secs(15);

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
    apply_limits(&client, DOMAIN, plan::rules()).await?;
    let shards = drama::shards(&client).await?;
    // It has all counters. Any will do.
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
        book,
        screen,
        drama: Drama::new(&client, shard, KILL, RESTART),
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
    book: Arc<Book>,
    screen: Screen,
    drama: Drama,
}

impl Show<'_> {
    async fn run(&mut self, mut clients: JoinSet<()>) -> anyhow::Result<()> {
        let mut frames = drama::frames();
        while !clients.is_empty() || self.drama.is_under_way() {
            tokio::select! {
                Some(client) = clients.join_next() => client?,
                _ = frames.tick() => {
                    self.play().await?;
                    self.draw();
                }
                ended = self.cluster.next_ended() => drama::ended(self.cluster, &self.screen, &ended)?,
                () = self.drama.look() => {}
            }
        }
        Ok(())
    }

    async fn play(&mut self) -> anyhow::Result<()> {
        let (book, now) = (&self.book, self.book.now());
        let kill = |cluster: &mut Cluster, leader| book.kill(|| cluster.kill(leader));
        let play = self.drama.play(now, self.cluster, &self.screen, kill);
        play.await
    }

    fn draw(&mut self) {
        let now = self.book.now();
        let scene = Scene {
            pages: self.book.read(),
            at_ms: now.as_millis() as u64,
            nodes: self.drama.nodes(now, "the shard of all counters"),
        };
        self.screen.show(&scene);
    }
}
