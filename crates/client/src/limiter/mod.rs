//! Rate limits: whether a request may pass.
//!
//! ```no_run
//! # async fn work() {}
//! # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
//! use nowserving_client::Client;
//! use nowserving_client::limits::Entry;
//!
//! let client = Client::connect("nats://127.0.0.1:4222").await?;
//! let limiter = client.limiter("shop")?;
//! let reply = limiter.check(vec![vec![Entry::new("remote_address", "127.0.0.1")]]).await?;
//! if reply.allowed {
//!     work().await;
//! } else {
//!     println!("429: come again in {:?} ms", reply.retry_after_ms);
//! }
//! # Ok(())
//! # }
//! ```

mod calls;
mod counts;
mod finish;
mod health;
mod keys;
mod local;
mod options;
mod slices;
mod slot;

use std::sync::Arc;
use std::time::Duration;

use nowserving_line::LineName;
use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{Check, CheckReply, Descriptor};
use rand::RngExt;
use tokio::time::Instant;
use tracing::{info, warn};

pub use self::counts::LimiterCounts;
pub use self::options::{LimitFallback, LimiterOptions, LocalLimit};
pub use self::slices::Slices;

use self::calls::{Calls, Remote};
use self::counts::{Counted, Counters};
use self::finish::Finish;
use self::health::{Health, PROBE_EVERY};
use self::local::LocalCounters;
use crate::client::Client;
use crate::error::{Error, Kind, Result};

/// No two callers that were refused together ask again at the same moment.
const SPREAD_MAX: Duration = Duration::from_millis(50);
/// A caller that waits until it is allowed asks again after at least the first, and after each refusal twice as long, up to
/// the second. A token bucket of 1,000 hits a second says 1 ms to all who wait for it.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MIN_MAX: Duration = Duration::from_millis(250);

/// The rate limits of one domain. Cheap to clone; clones share the counts, and whether the cluster is away.
#[derive(Clone)]
pub struct Limiter {
    core: Core<Remote>,
}

/// A limiter over anything that answers checks.
#[derive(Clone)]
struct Core<C> {
    calls: C,
    shared: Arc<Shared>,
}

struct Shared {
    domain: LineName,
    options: LimiterOptions,
    counts: Counters,
    health: Health,
    local: LocalCounters,
}

/// What came of asking the cluster.
enum Asked {
    Answered(CheckReply),
    /// With the error of the call, if there was one: while the cluster is away there is none.
    Unanswered(Option<Error>),
}

impl Limiter {
    pub(crate) fn new(client: Client, domain: LineName, options: LimiterOptions) -> Limiter {
        let calls = Remote::new(client, domain.clone());
        let core = Core::new(calls, domain, options);
        Limiter { core }
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> &LineName {
        &self.core.shared.domain
    }

    /// One hit on each of these descriptors. Over the limit is an answer, not an error: [`CheckReply::allowed`]. If the
    /// cluster does not answer, [`LimiterOptions::on_unavailable`] decides: [`CheckReply::without_cluster`].
    ///
    /// The attempts of one call are one hit on exact limits. On others an attempt whose answer was lost may count as well,
    /// so that the limit holds. A call that its caller drops is ended by the runtime, and counts.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] naming the field, before anything is sent; [`Kind::Refused`]; [`Kind::Forbidden`]; with
    /// [`LimitFallback::Fail`] what the call failed with.
    pub async fn check(&self, descriptors: Vec<Descriptor>) -> Result<CheckReply> {
        self.check_with(&Check::new(descriptors)).await
    }

    /// [`Limiter::check`] with several hits, or only asking.
    ///
    /// # Errors
    /// As its.
    pub async fn check_with(&self, check: &Check) -> Result<CheckReply> {
        self.core.check(check, None).await
    }

    /// Asks until the request is allowed, and waits as long as a leaking bucket says. `None`: not within this time, or
    /// never, as it has more hits than the limit allows at once. It returns as soon as it knows that, and never later
    /// than `within`. A leaking bucket whose delay is longer than what is left of that counts nothing.
    ///
    /// # Errors
    /// As [`Limiter::check`].
    pub async fn wait_until_allowed(
        &self,
        check: &Check,
        within: Duration,
    ) -> Result<Option<CheckReply>> {
        self.core.wait_until_allowed(check, within).await
    }

    /// Takes this many hits at once, and spends them without asking: see [`Slices`].
    #[must_use]
    pub fn slices(&self, hits: u32) -> Slices {
        Slices::new(self.core.clone(), hits)
    }

    /// What was decided since the limiter was made, by its clones and [`Slices`], too.
    #[must_use]
    pub fn counts(&self) -> LimiterCounts {
        self.core.shared.counts.snapshot()
    }

    /// Whether the cluster is away, so that [`LimiterOptions::on_unavailable`] decides without asking it.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.core.shared.health.is_away()
    }
}

impl<C: Calls> Core<C> {
    fn new(calls: C, domain: LineName, options: LimiterOptions) -> Core<C> {
        let shared = Shared {
            domain,
            options,
            counts: Counters::default(),
            health: Health::default(),
            local: LocalCounters::default(),
        };
        Core {
            calls,
            shared: Arc::new(shared),
        }
    }

    /// `until`: an answer is of no use after that.
    async fn check(&self, check: &Check, until: Option<Instant>) -> Result<CheckReply> {
        self.decided(check, self.ask(check, until).await)
    }

    fn decided(&self, check: &Check, asked: Result<Asked>) -> Result<CheckReply> {
        let decided = match asked {
            Ok(Asked::Answered(reply)) => Ok(reply),
            Ok(Asked::Unanswered(error)) => self.without_cluster(check, error),
            Err(error) => Err(error),
        };
        if !check.dry_run {
            self.shared.counts.decided(&decided);
        }
        decided
    }

    async fn ask(&self, check: &Check, until: Option<Instant>) -> Result<Asked> {
        well_formed(check)?;
        let Shared {
            options, health, ..
        } = &*self.shared;
        // A caller that wants the error gets that of its own call.
        if options.on_unavailable != LimitFallback::Fail && !health.may_ask(options.patience) {
            return Ok(Asked::Unanswered(None));
        }
        let left = until.map_or(options.patience, |until| until - Instant::now());
        let within = options.patience.min(left);
        Finish::new(self.clone().call(check.clone(), within)).await
    }

    async fn call(self, check: Check, within: Duration) -> Result<Asked> {
        let sent = Instant::now();
        match self.calls.check(&check, within).await {
            Ok(reply) => {
                self.answered();
                Ok(Asked::Answered(reply))
            }
            Err(error) if is_unanswered(&error) => {
                // A call that was given less time proves nothing, and a busy cluster is not away.
                if within == self.shared.options.patience && !is_overloaded(&error) {
                    self.unanswered(sent, &error);
                }
                Ok(Asked::Unanswered(Some(error)))
            }
            Err(error) => {
                if matches!(error.kind(), Kind::Refused(_)) {
                    self.answered();
                }
                Err(error)
            }
        }
    }

    fn answered(&self) {
        if self.shared.health.answered() {
            info!(domain = self.shared.domain.as_str(), "the cluster is back");
        }
    }

    fn unanswered(&self, sent: Instant, error: &Error) {
        if self.shared.health.failed(sent) {
            // Not which fallback decides: a service in front of the limiter may decide otherwise.
            let domain = self.shared.domain.as_str();
            warn!(domain, %error, "the cluster is away");
        }
    }

    /// [`LimiterOptions::on_unavailable`] decides.
    fn without_cluster(&self, check: &Check, error: Option<Error>) -> Result<CheckReply> {
        let reply = match self.shared.options.on_unavailable {
            LimitFallback::Allow => without_limit(check, true),
            LimitFallback::Deny => CheckReply {
                retry_after_ms: Some(PROBE_EVERY.as_millis() as u64),
                ..without_limit(check, false)
            },
            LimitFallback::Local(limit) => self.shared.local.check(check, limit),
            LimitFallback::Fail => {
                let unknown = || Error::new(Kind::Unavailable, "the cluster does not answer");
                return Err(error.unwrap_or_else(unknown));
            }
        };
        if !check.dry_run {
            self.shared.counts.add(Counted::Unavailable);
        }
        Ok(CheckReply {
            without_cluster: true,
            ..reply
        })
    }

    async fn wait_until_allowed(
        &self,
        check: &Check,
        within: Duration,
    ) -> Result<Option<CheckReply>> {
        // A time out of the clock's range is no limit.
        let until = Instant::now().checked_add(within);
        let left = || until.map_or(Duration::MAX, |until| until - Instant::now());
        let patience = self.shared.options.patience;
        let mut was_refused = false;
        let mut pause_min = PAUSE_MIN;
        loop {
            let is_short = left() < patience;
            // Some of the time that is left is for the answer: hits that are counted for later than `until` would wait in
            // the queue for nobody.
            let max_delay = left() - patience.min(left() / 4);
            let patient = check.clone().with_max_delay(max_delay);
            let reply = match self.ask(&patient, until).await {
                // It was over its limit, and its last attempt had too little time: that says nothing of the cluster.
                Ok(Asked::Unanswered(Some(_))) if was_refused && is_short => return Ok(None),
                asked => self.decided(check, asked)?,
            };
            if reply.allowed {
                return Ok(wait_out_delay(reply, left()).await);
            }
            let retry_after = reply
                .retry_after_ms
                .map(|ms| Duration::from_millis(ms.max(1)));
            // The delay and the time that is left get shorter together.
            let is_too_late = reply
                .delay_ms
                .is_some_and(|ms| Duration::from_millis(ms) > max_delay);
            let retry_after = retry_after.filter(|it| *it < left() && !is_too_late);
            let Some(retry_after) = retry_after else {
                return Ok(None);
            };
            was_refused |= !reply.without_cluster;
            // As above.
            let pause = retry_after.max(pause_min.min(left() / 2));
            let spare = left().saturating_sub(pause) / 2;
            tokio::time::sleep(pause + spread(pause).min(spare)).await;
            pause_min = (pause_min * 2).min(PAUSE_MIN_MAX);
            // A check that nobody waits for would count all the same.
            if left().is_zero() {
                return Ok(None);
            }
        }
    }
}

/// `None`: a leaking bucket delays it for longer than what is left.
async fn wait_out_delay(reply: CheckReply, left: Duration) -> Option<CheckReply> {
    let delay = Duration::from_millis(reply.delay_ms.unwrap_or(0));
    if delay > left {
        return None;
    }
    tokio::time::sleep(delay).await;
    Some(reply)
}

/// Nodes would refuse it. Checked here too, so that nothing is kept of it, and also while the cluster is away.
fn well_formed(check: &Check) -> Result<()> {
    let bad = |error: ApiError| Error::new(Kind::BadArgument, error.message);
    check.check().map_err(bad)
}

/// An answer that no limit has given.
fn without_limit(check: &Check, allowed: bool) -> CheckReply {
    let descriptor = nowserving_protocol::limits::DescriptorReply {
        allowed,
        ..Default::default()
    };
    CheckReply {
        allowed,
        descriptors: vec![descriptor; check.descriptors.len()],
        ..CheckReply::default()
    }
}

fn spread(pause: Duration) -> Duration {
    (pause / 8)
        .min(SPREAD_MAX)
        .mul_f64(rand::rng().random::<f64>())
}

/// Whether the cluster may answer the same call later.
fn is_unanswered(error: &Error) -> bool {
    error.is_transient() || error.kind() == Kind::Connection
}

fn is_overloaded(error: &Error) -> bool {
    error.api().is_some_and(|api| api.code == Code::Overloaded)
}

#[cfg(test)]
mod tests;
