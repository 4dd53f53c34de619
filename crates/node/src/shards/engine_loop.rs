//! The loop: who has something for the engine steps it, and once the others have done the same, the turn ends.
//!
//! Everything runs in one runtime of one thread: the connections to NATS, the tasks that read requests and frames, the
//! engine, and the tasks that write answers. A request crosses no thread on its way. The order comes from the runtime's
//! queue: a message wakes the task that reads it, that task wakes the loop, and the loop runs behind all tasks that
//! were woken before. So a turn takes in what the sockets hold, and makes one write of it.
//!
//! The engine is behind a mutex that is never contended, and not behind a `RefCell`: so the compiler refuses a step that
//! waits in the midst of it, and the tasks need no runtime of their own kind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nowserving_engine::Input;
use nowserving_shard::clock::Micros;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep_until};

use super::to_engine::{NoEngine, ToEngine};
use super::turn::Turns;
use super::worker::Done;
use crate::clock::monotonic_us;
use crate::nats::stats::Stats;

/// After the engine ends, requests on their way to it arrive within this time.
const LAST_REQUESTS: Duration = Duration::from_millis(20);
/// Longer than any timer's: the loop wakes for nothing then.
const LONGEST_WAIT_US: Micros = 3_600_000_000;

/// The engine, shared by the tasks of the loop's thread.
#[derive(Clone)]
pub struct EngineLoop(Arc<Shared>);

#[derive(Default)]
struct Shared {
    running: Mutex<Running>,
    /// Something came in.
    woken: Notify,
    stats: Arc<Stats>,
}

#[derive(Default)]
struct Running {
    /// The requests that were refused unread until the last turn.
    turned_away: u64,
    /// `None` before it begins and after it has ended.
    turns: Option<Turns>,
    failed: Option<anyhow::Error>,
}

/// What a turn leaves to be done.
struct Turned {
    next_due: Micros,
    has_own_writes: bool,
    has_ended: bool,
}

impl EngineLoop {
    /// It does not run yet.
    #[must_use]
    pub fn new(stats: Arc<Stats>) -> EngineLoop {
        EngineLoop(Arc::new(Shared {
            stats,
            ..Shared::default()
        }))
    }

    /// The way for inputs.
    #[must_use]
    pub fn inputs(&self) -> ToEngine {
        let this = self.clone();
        ToEngine::new(move |input| {
            let mut input = Some(input);
            this.with(|turns| input.take().map_or(Ok(()), |it| turns.step(it)));
            match input {
                None => {
                    this.0.woken.notify_one();
                    Ok(())
                }
                Some(input) => Err(NoEngine(Box::new(input))),
            }
        })
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.0
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs this on the engine. `None`: it does not run, or has failed just now.
    fn with<T>(&self, run: impl FnOnce(&mut Turns) -> anyhow::Result<T>) -> Option<T> {
        let mut running = self.running();
        let turns = running.turns.as_mut()?;
        // Caught to be reported; the process ends all the same.
        let result = catch_unwind(AssertUnwindSafe(|| run(turns)))
            .unwrap_or_else(|panic| Err(panicked(panic.as_ref())));
        match result {
            Ok(result) => Some(result),
            Err(error) => {
                tracing::error!(error = format!("{error:#}"), "the engine loop ended");
                running.failed = Some(error);
                running.turns = None;
                self.0.woken.notify_one();
                None
            }
        }
    }

    /// Runs the engine until it ends. `words`: what the node's other loops tell this one.
    ///
    /// # Errors
    /// A log entry that this build cannot read, a state that is wrong, or a thread that died.
    pub async fn run(
        self,
        turns: Turns,
        mut done: mpsc::UnboundedReceiver<Done>,
        mut words: mpsc::Receiver<Input>,
    ) -> anyhow::Result<()> {
        let (is_first, mut has_others) = (turns.engine.place().is_first(), true);
        self.running().turns = Some(turns);
        let sleep = sleep_until(Instant::now());
        tokio::pin!(sleep);
        while let Some(turned) = self.turn() {
            if turned.has_ended {
                tokio::time::sleep(LAST_REQUESTS).await;
                break;
            }
            let left = turned.next_due.saturating_sub(monotonic_us());
            if turned.has_own_writes {
                // Frames leave before the sync, so that the followers sync at the same time.
                tokio::task::yield_now().await;
                self.with(Turns::write_own);
                // The sockets are read again first: the sync may have taken long.
                tokio::task::yield_now().await;
            } else if left == 0 {
                tokio::task::yield_now().await;
            } else {
                let left = Duration::from_micros(left.min(LONGEST_WAIT_US));
                sleep.as_mut().reset(Instant::now() + left);
                tokio::select! {
                    biased;
                    () = self.0.woken.notified() => {}
                    Some(first) = done.recv() => self.take_done(first),
                    word = words.recv(), if has_others => match word {
                        Some(word) => self.take_done(Ok(word)),
                        None => has_others = false,
                    },
                    () = &mut sleep => {}
                }
            }
            while let Ok(more) = done.try_recv() {
                self.take_done(more);
            }
            while let Ok(more) = words.try_recv() {
                self.take_done(Ok(more));
            }
            if !is_first && !has_others {
                self.with(|turns| turns.step(Input::Stop));
            }
        }
        let (turns, failed) = {
            let mut running = self.running();
            (running.turns.take(), running.failed.take())
        };
        match (turns, failed) {
            (_, Some(failed)) => Err(failed),
            (None, None) => Ok(()),
            // The last writes may take long, and the last answers must leave.
            (Some(turns), None) => tokio::task::spawn_blocking(|| turns.end()).await?,
        }
    }

    fn take_done(&self, done: Done) {
        self.with(|turns| turns.step(done?));
    }

    /// `None`: the engine has failed.
    fn turn(&self) -> Option<Turned> {
        let inbox_empty = self.0.stats.all_read();
        let turned_away = self.0.stats.turned_away();
        let before = std::mem::replace(&mut self.running().turned_away, turned_away);
        let requests_dropped = before != turned_away;
        self.with(|turns| {
            Ok(Turned {
                next_due: turns.end_turn(requests_dropped, inbox_empty)?,
                has_own_writes: turns.persister.has_own(),
                has_ended: turns.exit.is_some(),
            })
        })
    }
}

/// A panic as an error, with its own message; where it happened is logged by the panic hook.
fn panicked(panic: &(dyn std::any::Any + Send)) -> anyhow::Error {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    anyhow::anyhow!(
        "the engine loop panicked: {}",
        message.unwrap_or("no message")
    )
}
