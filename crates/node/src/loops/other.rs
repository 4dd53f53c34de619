//! The loops after the first one, each on a thread of its own. They end when the first one has ended.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use nowserving_engine::{Input, LoopPlace, RestoredShard};
use nowserving_log::DiskLog;
use tokio::sync::mpsc;

use super::{Beginning, Loop, Part, Shared, WORDS_MAX, start, why};
use crate::nats::stats::Stats;
use crate::shards::outputs::Beyond;
use crate::shards::worker::{Done, EndWithMe};

/// The ways between the first loop and the others.
pub(super) struct Ways {
    /// To the others, by their indexes from 1.
    pub loops: Vec<mpsc::Sender<Input>>,
    /// From them.
    pub words: mpsc::Receiver<Input>,
    pub of_others: Vec<OfOther>,
}

/// The ends of another loop.
pub(super) struct OfOther {
    words: mpsc::Receiver<Input>,
    first: mpsc::Sender<Input>,
}

impl Ways {
    /// For so many loops.
    pub fn new(count: u32) -> Ways {
        let (first, words) = mpsc::channel(WORDS_MAX);
        let ways = (1..count).map(|_| {
            let (to_loop, words) = mpsc::channel(WORDS_MAX);
            let first = first.clone();
            (to_loop, OfOther { words, first })
        });
        let (loops, of_others) = ways.unzip();
        Ways {
            loops,
            words,
            of_others,
        }
    }
}

/// A loop before its thread has begun.
pub(super) struct Other {
    pub place: LoopPlace,
    pub shared: Shared,
    pub beginning: Beginning,
    pub log: Arc<DiskLog>,
    pub stats: Arc<Stats>,
    pub ways: OfOther,
}

impl Other {
    /// Starts its thread, which takes its shards out of `restored`. An error of it goes to `failed`, and ends the first
    /// loop.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        self,
        restored: &mut Vec<RestoredShard>,
        failed: mpsc::UnboundedSender<Done>,
    ) -> std::io::Result<JoinHandle<()>> {
        let own = restored.extract_if(.., |it| self.place.has(it.shard));
        let own = own.collect();
        let name = format!("loop-{}", self.place.index);
        let thread = std::thread::Builder::new().name(name.clone());
        thread.spawn(move || {
            let _end = EndWithMe;
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().context("a runtime");
            let tell = |ended: anyhow::Result<()>| {
                if let Err(error) = ended {
                    // Closed only while the node ends.
                    let _ = failed.send(Err(error.context(name.clone())));
                }
            };
            let run = |it: tokio::runtime::Runtime| it.block_on(self.run(own, &tell));
            tell(runtime.and_then(run));
        })
    }

    /// Runs it until the first loop has ended. Why the engine has ended goes to `tell` at once.
    async fn run(
        self,
        restored: Vec<RestoredShard>,
        tell: impl Fn(anyhow::Result<()>),
    ) -> anyhow::Result<()> {
        let fatal = self.shared.fatal.clone();
        let this = Loop::connect(self.shared, self.place, self.stats).await?;
        let limits = this.limits(&self.beginning.peers_limit);
        start("limits of messages", limits.watch(false, fatal));
        let part = Part {
            log: self.log,
            restored,
            words: self.ways.words,
            done: mpsc::unbounded_channel(),
        };
        let beyond = Beyond::FirstLoop(self.ways.first);
        let mut running = this.start(&self.beginning, part, beyond, None)?;
        tell(why((&mut running.ended).await));
        running.last_words().await;
        Ok(())
    }
}

/// Waits for the threads of other loops.
pub(super) async fn join(threads: Vec<JoinHandle<()>>) {
    let join = move || threads.into_iter().for_each(|it| drop(it.join()));
    // A thread that panics has ended the process.
    let _ = tokio::task::spawn_blocking(join).await;
}
