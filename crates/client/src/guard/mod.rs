//! A concurrency guard over a line: at most the line's `seats` handlers run at once, over all hosts.
//!
//! ```no_run
//! # async fn work() -> Result<(), std::io::Error> { Ok(()) }
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! use nowserving_client::{Ask, Client, Guard, GuardOptions, Refused};
//!
//! let client = Client::connect("nats://127.0.0.1:4222").await?;
//! let guard = Guard::new(client.line("reports")?, GuardOptions::default());
//! match guard.acquire(Ask::default()).await {
//!     Ok(slot) => {
//!         // Gives the slot back however the work ends: a return, an error, a panic, or this future is dropped.
//!         slot.run_measured(work(), Result::is_ok).await??;
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

mod auto;
mod away;
mod calls;
mod counts;
mod health;
mod lease;
mod options;
mod slot;
mod visit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nowserving_protocol::error::Code;
use nowserving_protocol::user::UserSettings;
use rand::RngExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::Instant;
use tracing::debug;

pub use self::counts::{GuardCounts, GuardEvent};
pub use self::options::{Ask, GuardOptions, OnUnavailable, Refused};
pub use self::slot::{Lost, Slot, SlotKind};

use self::auto::Auto;
use self::calls::Calls;
use self::counts::Counters;
use self::health::Health;
use self::visit::{Stop, Visit};
use crate::error::{Error, Kind, Result};
use crate::line::Line;

/// [`GuardOptions::patience`] is no longer than this.
const PATIENCE_MAX: Duration = Duration::from_secs(3_600);

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
    /// How many slots of [`OnUnavailable::Allow`] are held. `in_flight_max` does not limit them.
    outside: watch::Sender<usize>,
    draining: AtomicBool,
    health: Health,
    /// With [`GuardOptions::auto_seats`].
    auto: Option<Arc<Auto>>,
}

/// Counts a slot of [`OnUnavailable::Allow`] while it lives.
pub(crate) struct Outside(Arc<Shared>);

impl Guard {
    /// A guard over this line. Sends no request; [`Guard::check`] does.
    #[must_use]
    pub fn new(line: Line, options: GuardOptions) -> Guard {
        let client = line.client();
        let client = client.with_deadline(options.patience.min(PATIENCE_MAX));
        let shared = Arc::new(Shared::new(line.name().as_str(), options));
        let line = Line::new(client, line.name().clone());
        Guard { line, shared }
    }

    /// Whether the line is there and fits a guard, with its settings: for a service's start. A service that is to start
    /// also while the cluster is away goes on after a [transient](Error::is_transient) error.
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

    /// Calls `observer` at each step of a count, for metrics. It must not block. Clones share one observer, the first.
    /// Returns whether it is this one.
    pub fn observe(&self, observer: impl Fn(GuardEvent) + Send + Sync + 'static) -> bool {
        self.shared.counts.observe(Box::new(observer))
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

    /// The load of this process or its machine, for [`Target::Load`](crate::Target::Load): 0.7 for 70 % of the CPU. To be
    /// called every second or so. What is not a number from 0 on is ignored, as is a load without such a target, and one
    /// while the cluster is away: it is not that of the line's seats.
    pub fn report_load(&self, load: f64) {
        self.shared.report_load(load);
    }

    /// Whether the cluster is away, so that [`GuardOptions::on_unavailable`] decides.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.shared.is_away()
    }

    /// Returns when all slots are given back and the cluster knows. For a service that stops: without it, seats whose
    /// release is under way when the process ends are free only after the line's `checkout_timeout_ms`. From the call on,
    /// [`Guard::acquire`] is refused as [`Refused::Busy`].
    ///
    /// While the cluster is away it does not learn of releases, and this does not return: limit it by a timeout.
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
            auto: options.auto_seats.map(|auto| Arc::new(Auto::new(auto))),
            options,
            counts: Counters::default(),
            outside: watch::Sender::new(0),
            draining: AtomicBool::new(false),
            health: Health::new(),
        }
    }

    fn is_away(&self) -> bool {
        self.health.is_away()
    }

    fn report_load(&self, load: f64) {
        if let Some(auto) = &self.auto
            && !self.is_away()
        {
            auto.load(load);
        }
    }

    /// A place among those under way.
    fn in_flight(&self) -> Result<OwnedSemaphorePermit, Refused> {
        let place = self.in_flight.clone().try_acquire_owned();
        let place = place.map_err(|_| Refused::Busy)?;
        self.takes_callers()?;
        Ok(place)
    }

    /// To be asked once the place is taken: either `drained` waits for that place, or this refuses.
    fn takes_callers(&self) -> Result<(), Refused> {
        match self.draining.load(Ordering::SeqCst) {
            true => Err(Refused::Busy),
            false => Ok(()),
        }
    }

    async fn drained(&self) {
        self.draining.store(true, Ordering::SeqCst);
        // These fail only if the semaphore were closed, and without the sender, which is `self`.
        let _ = self
            .in_flight
            .acquire_many(self.options.in_flight_max)
            .await;
        let mut outside = self.outside.subscribe();
        let _ = outside.wait_for(|slots| *slots == 0).await;
    }
}

impl Outside {
    fn new(shared: &Arc<Shared>) -> Result<Outside, Refused> {
        shared.outside.send_modify(|slots| *slots += 1);
        let outside = Outside(shared.clone());
        shared.takes_callers()?;
        Ok(outside)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.0.outside.send_modify(|slots| *slots -= 1);
    }
}

/// Decides for one caller, and counts.
pub(crate) async fn acquire<C: Calls>(
    calls: &C,
    shared: &Arc<Shared>,
    ask: Ask,
) -> Result<Slot, Refused> {
    auto::start(calls, shared);
    let decided = decide(calls, shared, &ask).await;
    let counts = &shared.counts;
    let line = &shared.line;
    match &decided {
        Ok(slot) => {
            counts.add(GuardEvent::Allowed);
            debug!(line, token = slot.token(), "allowed");
        }
        Err(refused) => {
            counts.add(GuardEvent::Blocked);
            match refused {
                Refused::Full { .. } => counts.add(GuardEvent::Full),
                Refused::WaitedTooLong { .. } => counts.add(GuardEvent::Late),
                _ => {}
            }
            debug!(line, %refused, "blocked");
        }
    }
    decided
}

async fn decide<C: Calls>(calls: &C, shared: &Arc<Shared>, ask: &Ask) -> Result<Slot, Refused> {
    let begin = Instant::now();
    let max_wait = ask.max_wait.or(shared.options.max_wait);
    // A time out of the clock's range is no limit.
    let gives_up = max_wait.and_then(|wait| begin.checked_add(wait));
    loop {
        if !shared.is_away()
            && let Some(slot) = visit(calls, shared, ask, begin, gives_up).await?
        {
            return Ok(slot);
        }
        if let Some(slot) = without_cluster(shared, begin, gives_up).await? {
            return Ok(slot);
        }
    }
}

/// One visit to the line. `None` if the cluster does not answer.
async fn visit<C: Calls>(
    calls: &C,
    shared: &Arc<Shared>,
    ask: &Ask,
    begin: Instant,
    gives_up: Option<Instant>,
) -> Result<Option<Slot>, Refused> {
    let in_flight = shared.in_flight()?;
    let (caller, outcome) = oneshot::channel();
    let visit = Visit {
        key: ask.key()?,
        lane: ask.lane.clone(),
        begin,
        gives_up,
        caller,
        from_line: false,
        _in_flight: in_flight,
    };
    tokio::spawn(visit.run(calls.clone(), shared.clone()));
    tokio::select! {
        biased;
        outcome = outcome => match outcome {
            Ok(Ok(mut slot)) => {
                slot.time(|from_line| shared.auto.as_ref().map(|auto| auto.begin(from_line)));
                Ok(Some(slot))
            }
            Ok(Err(Stop::Refused(refused))) => Err(refused),
            Ok(Err(Stop::Away | Stop::CallerGone)) => Ok(None),
            // The task was dropped with its runtime.
            Err(_) => Err(Refused::Busy),
        },
        // The visit goes on until it has left the line.
        () = at(gives_up) => Err(too_late(begin)),
    }
}

/// [`GuardOptions::on_unavailable`] decides. `None` if the cluster is back first.
async fn without_cluster(
    shared: &Arc<Shared>,
    begin: Instant,
    gives_up: Option<Instant>,
) -> Result<Option<Slot>, Refused> {
    let decided = match shared.options.on_unavailable {
        OnUnavailable::Allow => {
            Outside::new(shared).map(|outside| Slot::allowed(outside, begin.elapsed()))
        }
        OnUnavailable::Deny => Err(Refused::Unavailable),
        OnUnavailable::Local(_) => {
            // Bounds those that wait here.
            let in_flight = shared.in_flight()?;
            tokio::select! {
                biased;
                local = shared.local.clone().acquire_owned() => match local {
                    Ok(local) => Ok(Slot::local([local, in_flight], begin.elapsed())),
                    // The semaphore is never closed.
                    Err(_) => Err(Refused::Unavailable),
                },
                () = shared.health.back() => return Ok(None),
                () = at(gives_up) => Err(too_late(begin)),
            }
        }
    };
    shared.counts.add(GuardEvent::Unavailable);
    decided.map(Some)
}

fn too_late(begin: Instant) -> Refused {
    Refused::WaitedTooLong {
        waited: begin.elapsed(),
    }
}

/// Whether the cluster may answer the same call later.
fn is_unanswered(error: &Error) -> bool {
    error.is_transient() || error.kind() == Kind::Connection
}

/// A busy cluster is not away.
fn is_away(error: &Error) -> bool {
    is_unanswered(error) && !is_overloaded(error)
}

fn is_overloaded(error: &Error) -> bool {
    error.api().is_some_and(|api| api.code == Code::Overloaded)
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
