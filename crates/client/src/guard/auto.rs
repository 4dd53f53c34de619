//! `auto_seats`: measures the handlers of this process and publishes the line's seats (`capacity_told`).
//!
//! The line's seats are read before each step, and the step adds this process's part to them: see [`nowserving_adapt`].
//! Another process can publish between this one's read and the moment at which its own report takes effect; then one of the
//! two parts is lost. Parts are small and come again, so that costs a moment, and the report needs no condition.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nowserving_adapt::{AutoSeats, Began, Outcome, Rule};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::calls::Calls;
use super::counts::GuardEvent;
use super::{Shared, up_to};
use crate::error::Result;

/// How often the task polls whether a step is due.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The seats are published at least this often, and up to half as long later,
pub(super) const TELL_EVERY: Duration = Duration::from_secs(10);
/// and hold for so long. Then the line counts as silent, unless another process publishes.
pub(super) const TOLD_FOR: Duration = Duration::from_secs(35);

/// The pause after a report, or the read before it, that failed.
const AFTER_ERROR: Duration = Duration::from_secs(2);

/// What this process has measured.
pub(crate) struct Auto {
    rule: Mutex<Rule>,
    began: Instant,
    /// A task looks after it.
    is_running: AtomicBool,
}

/// Measures a slot while it lives.
pub(crate) struct Timed {
    auto: Arc<Auto>,
    began: Began,
    pub(super) outcome: Outcome,
}

impl Auto {
    pub(super) fn new(auto: AutoSeats) -> Auto {
        Auto {
            rule: Mutex::new(Rule::new(auto, rand::random())),
            began: Instant::now(),
            is_running: AtomicBool::new(false),
        }
    }

    pub(super) fn begin(self: &Arc<Auto>, from_line: bool) -> Timed {
        let began = self.rule().began(self.began.elapsed(), from_line);
        Timed {
            auto: self.clone(),
            began,
            outcome: Outcome::Done,
        }
    }

    /// Whether enough is measured for a step.
    pub(super) fn is_due(&self) -> bool {
        self.rule().is_due(self.began.elapsed())
    }

    pub(super) fn load(&self, load: f64) {
        self.rule().load(load);
    }

    /// No rule is left half-way by a panic.
    fn rule(&self) -> MutexGuard<'_, Rule> {
        self.rule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let outcome = match std::thread::panicking() {
            true => Outcome::Failed,
            false => self.outcome,
        };
        let now = self.auto.began.elapsed();
        self.auto.rule().ended(self.began, now, outcome);
    }
}

/// Looks after the seats from now on, until the guard is dropped or drains. Does nothing without `auto_seats`, and if that
/// is done already.
pub(super) fn start<C: Calls>(calls: &C, shared: &Arc<Shared>) {
    if let Some(auto) = &shared.auto
        && !auto.is_running.swap(true, Ordering::SeqCst)
    {
        let task = Task(auto.clone());
        tokio::spawn(task.run(calls.clone(), Arc::downgrade(shared)));
    }
}

/// One that ends early, with its runtime, leaves the work to the next caller's.
struct Task(Arc<Auto>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::SeqCst);
    }
}

impl Task {
    async fn run<C: Calls>(self, calls: C, shared: Weak<Shared>) {
        let mut next_report = Instant::now();
        let mut not_before = next_report;
        let mut fails = false;
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if shared.draining.load(Ordering::SeqCst) {
                return;
            }
            if Instant::now() < not_before {
                continue;
            }
            let is_time = next_report <= Instant::now();
            let is_due = self.0.is_due();
            if shared.is_away() || !(is_time || is_due) {
                continue;
            }
            let (line, counts) = (&shared.line, &shared.counts);
            match self.step(&calls, is_time).await {
                Ok(None) => {}
                Ok(Some(seats)) => {
                    debug!(line, seats, "seats told");
                    counts.add(GuardEvent::SeatsTold(seats));
                    if std::mem::take(&mut fails) {
                        info!(line, "the line's seats can be told again");
                    }
                }
                Err(error) => {
                    counts.add(GuardEvent::TellFailed);
                    if !std::mem::replace(&mut fails, true) {
                        warn!(line, %error, "the line's seats cannot be told: they stay as they are");
                    }
                    not_before = Instant::now() + AFTER_ERROR;
                }
            }
            if is_time && !fails {
                next_report = Instant::now() + TELL_EVERY + up_to(TELL_EVERY / 2);
            }
        }
    }

    /// Publishes the seats, if they change or if it is time. Returns what it published.
    async fn step<C: Calls>(&self, calls: &C, is_time: bool) -> Result<Option<u32>> {
        let line = calls.seats().await?;
        let seats = self.0.rule().step(self.0.began.elapsed(), line);
        if seats == line.seats && !is_time {
            return Ok(None);
        }
        calls.tell(seats, TOLD_FOR).await?;
        Ok(Some(seats))
    }
}
