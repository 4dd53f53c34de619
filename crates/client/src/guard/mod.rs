//! A concurrency guard over a line: at most the line's `seats` handlers run at once, over all hosts.
//!
//! ```no_run
//! # async fn work() {}
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! use nowserving_client::{Ask, Client, Guard, GuardOptions, Refused};
//!
//! let client = Client::connect("nats://127.0.0.1:4222").await?;
//! let guard = Guard::new(client.line("reports")?, GuardOptions::default());
//! match guard.acquire(Ask::default()).await {
//!     Ok(slot) => {
//!         work().await;
//!         drop(slot); // as a return, an error, a panic or a cancelled future does
//!     }
//!     Err(Refused::Full { .. }) => println!("429: the line is full"),
//!     Err(Refused::WaitedTooLong { .. }) => println!("504: waited too long"),
//!     Err(other) => println!("503: {other}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each [`Guard::acquire`] is one visit to the line, under a key of its own: it enters, waits, claims a seat, renews the
//! claim at a third of its time for as long as the [`Slot`] lives, and completes. A task of the visit's own does that, so
//! the caller's future can be dropped at any moment: a waiter leaves the line, a slot is given back. At most
//! [`GuardOptions::in_flight_max`] visits are under way, those included that are being given back.
//!
//! The line is made by an operator, with `release_on_claim` off (the default):
//! `nowserving line create reports --seats 8 --queue-limit 200 …`.

mod calls;
mod counts;
mod options;
mod slot;
mod visit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nowserving_protocol::user::UserSettings;
use rand::RngExt;
use tokio::sync::{Semaphore, TryAcquireError, oneshot};
use tokio::time::Instant;
use tracing::{debug, info, warn};

pub use self::counts::GuardCounts;
pub use self::options::{Ask, GuardOptions, OnUnavailable, Refused};
pub use self::slot::{Lost, Slot, SlotKind};

use self::calls::Calls;
use self::counts::Counters;
use self::visit::{Stop, Visit};
use crate::error::{Error, Kind, Result};
use crate::line::Line;

/// While the cluster is away, it is asked this often whether it is back, and up to half as long later.
const PROBE_EVERY: Duration = Duration::from_millis(500);

/// At most a line's `seats` handlers at once. Cheap to clone; clones share the counts and limits.
///
/// A slot is given back also by a process that dies: its seats are free again after the line's `checkout_timeout_ms`.
#[derive(Clone)]
pub struct Guard {
    line: Line,
    shared: Arc<Shared>,
}

/// What the visits of one guard share.
pub(crate) struct Shared {
    line: String,
    options: GuardOptions,
    counts: Counters,
    in_flight: Arc<Semaphore>,
    /// With [`OnUnavailable::Local`].
    local: Arc<Semaphore>,
    /// A call has failed for want of the cluster, and no probe has been answered since.
    away: AtomicBool,
}

impl Guard {
    /// A guard over this line. Sends no request; [`Guard::check`] does.
    #[must_use]
    pub fn new(line: Line, options: GuardOptions) -> Guard {
        let client = line.client().with_deadline(options.patience);
        let shared = Arc::new(Shared::new(line.name().as_str(), options));
        let line = Line::new(client, line.name().clone());
        Guard { line, shared }
    }

    /// Whether the line is there and fits a guard, with its settings: for a service's start.
    ///
    /// # Errors
    /// `line_not_found`; [`Kind::BadArgument`] if `release_on_claim` is set, which gives a seat back at once;
    /// [`Kind::Unavailable`] within [`GuardOptions::patience`].
    pub async fn check(&self) -> Result<UserSettings> {
        let settings = self.line.info().await?.settings;
        match settings.release_on_claim {
            true => Err(released_on_claim(&self.shared.line)),
            false => Ok(settings),
        }
    }

    /// Waits for a slot, in the order of the line. Dropping this future leaves the line.
    ///
    /// Requires a tokio runtime.
    ///
    /// # Errors
    /// See [`Refused`].
    pub async fn acquire(&self, ask: Ask) -> Result<Slot, Refused> {
        acquire(&self.line, &self.shared, ask).await
    }

    /// The line's name.
    #[must_use]
    pub fn line(&self) -> &str {
        &self.shared.line
    }

    /// What the guard has decided since it was made.
    #[must_use]
    pub fn counts(&self) -> GuardCounts {
        self.shared.counts.snapshot()
    }

    /// Whether the cluster did not answer lately, so that [`GuardOptions::on_unavailable`] decides.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.shared.is_away()
    }

    /// Returns when all slots are given back and the cluster knows. For a service that stops: without it, seats whose
    /// release is under way when the process ends are free only after the line's `checkout_timeout_ms`. From the call on,
    /// [`Guard::acquire`] is refused as [`Refused::Busy`].
    pub async fn drained(&self) {
        self.shared.drained().await;
    }
}

impl Shared {
    fn new(line: &str, options: GuardOptions) -> Shared {
        let local = match options.on_unavailable {
            OnUnavailable::Local(limit) => limit,
            OnUnavailable::Allow | OnUnavailable::Deny => 0,
        };
        Shared {
            line: line.to_owned(),
            in_flight: Arc::new(Semaphore::new(options.in_flight_max as usize)),
            local: Arc::new(Semaphore::new(local as usize)),
            options,
            counts: Counters::default(),
            away: AtomicBool::new(false),
        }
    }

    fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    async fn drained(&self) {
        // Fails only if the semaphore were closed.
        let _ = self
            .in_flight
            .acquire_many(self.options.in_flight_max)
            .await;
    }
}

/// Decides for one caller, and counts.
pub(crate) async fn acquire<C: Calls>(
    calls: &C,
    shared: &Arc<Shared>,
    ask: Ask,
) -> Result<Slot, Refused> {
    let decided = decide(calls, shared, ask).await;
    let counts = &shared.counts;
    let line = &shared.line;
    match &decided {
        Ok(slot) => {
            counts.allowed.add();
            debug!(line, token = slot.token(), "allowed");
        }
        Err(refused) => {
            counts.blocked.add();
            match refused {
                Refused::Full { .. } => counts.full.add(),
                Refused::WaitedTooLong { .. } => counts.late.add(),
                _ => {}
            }
            debug!(line, %refused, "blocked");
        }
    }
    decided
}

async fn decide<C: Calls>(calls: &C, shared: &Arc<Shared>, ask: Ask) -> Result<Slot, Refused> {
    let begin = Instant::now();
    let max_wait = ask.max_wait.or(shared.options.max_wait);
    let gives_up = max_wait.map(|wait| begin + wait);
    if !shared.is_away() {
        let in_flight = shared.in_flight.clone().try_acquire_owned();
        let (caller, outcome) = oneshot::channel();
        let visit = Visit {
            key: ask.key()?,
            lane: ask.lane,
            begin,
            gives_up,
            caller,
            _in_flight: in_flight.map_err(busy)?,
        };
        tokio::spawn(visit.run(calls.clone(), shared.clone()));
        match outcome.await {
            Ok(Ok(slot)) => return Ok(slot),
            Ok(Err(Stop::Refused(refused))) => return Err(refused),
            Ok(Err(Stop::Away | Stop::CallerGone)) => {}
            // The task was dropped with its runtime.
            Err(_) => return Err(Refused::Busy),
        }
    }
    without_cluster(shared, begin, gives_up).await
}

/// [`GuardOptions::on_unavailable`] decides.
async fn without_cluster(
    shared: &Arc<Shared>,
    begin: Instant,
    gives_up: Option<Instant>,
) -> Result<Slot, Refused> {
    shared.counts.unavailable.add();
    match shared.options.on_unavailable {
        OnUnavailable::Allow => Ok(Slot::allowed(begin.elapsed())),
        OnUnavailable::Deny => Err(Refused::Unavailable),
        OnUnavailable::Local(_) => {
            // Bounds those that wait here.
            let in_flight = shared.in_flight.clone().try_acquire_owned();
            let in_flight = in_flight.map_err(busy)?;
            tokio::select! {
                local = shared.local.clone().acquire_owned() => {
                    // Fails only if the semaphore were closed.
                    let local = local.map_err(|_| Refused::Unavailable)?;
                    Ok(Slot::local([local, in_flight], begin.elapsed()))
                }
                () = at(gives_up) => Err(Refused::WaitedTooLong { waited: begin.elapsed() }),
            }
        }
    }
}

fn busy(_: TryAcquireError) -> Refused {
    Refused::Busy
}

/// Whether the error says that the cluster is away, and not that it refuses.
fn is_away(error: &Error) -> bool {
    error.is_transient() || error.kind() == Kind::Connection
}

/// From now until a probe is answered, nobody waits for the cluster.
fn note_away<C: Calls>(calls: &C, shared: &Arc<Shared>, error: &Error) {
    if shared.away.swap(true, Ordering::Relaxed) {
        return;
    }
    warn!(line = shared.line, %error, decides = ?shared.options.on_unavailable, "the cluster is away");
    let calls = calls.clone();
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(PROBE_EVERY + up_to(PROBE_EVERY / 2)).await;
            let is_back = calls.is_back().await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            if is_back {
                shared.away.store(false, Ordering::Relaxed);
                info!(line = shared.line, "the cluster is back");
                return;
            }
        }
    });
}

/// Never, without a time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn up_to(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random::<f64>())
}

fn released_on_claim(line: &str) -> Error {
    let what = format!("line {line} has release_on_claim set: a guard needs it off");
    Error::new(Kind::BadArgument, what)
}

#[cfg(test)]
mod tests;
