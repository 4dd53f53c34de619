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
mod health;
mod local;
mod options;
mod slices;

use std::sync::Arc;
use std::time::Duration;

use nowserving_line::LineName;
use nowserving_protocol::error::Code;
use nowserving_protocol::limits::{Check, CheckReply, Descriptor};
use rand::RngExt;
use tokio::time::Instant;
use tracing::{info, warn};

pub use self::counts::LimiterCounts;
pub use self::options::{LimitFallback, LimiterOptions, LocalLimit};
pub use self::slices::Slices;

use self::calls::{Calls, Remote};
use self::counts::{Counted, Counters};
use self::health::{Health, PROBE_EVERY};
use self::local::LocalCounters;
use crate::client::Client;
use crate::error::{Error, Kind, Result};

/// No two callers that were refused together ask again at the same moment.
const SPREAD_MAX: Duration = Duration::from_millis(50);

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
    /// so that the limit holds.
    ///
    /// # Errors
    /// `bad_request` naming the field; [`Kind::Forbidden`]; with [`LimitFallback::Fail`] what the call failed with.
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
    /// than `within`; hits that a leaking bucket has counted for a later moment stay counted.
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
        let decided = match self.ask(check, until).await {
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
        let Shared {
            options, health, ..
        } = &*self.shared;
        // A caller that wants the error gets that of its own call.
        if options.on_unavailable != LimitFallback::Fail && !health.may_ask() {
            return Ok(Asked::Unanswered(None));
        }
        let sent = Instant::now();
        let left = until.map_or(options.patience, |until| until - sent);
        let within = options.patience.min(left);
        match self.calls.check(check, within).await {
            Ok(reply) => {
                self.answered();
                Ok(Asked::Answered(reply))
            }
            Err(error) if is_unanswered(&error) => {
                // A call that was given less time proves nothing, and a busy cluster is not away.
                if within == options.patience && !is_overloaded(&error) {
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
            let domain = self.shared.domain.as_str();
            let decides = self.shared.options.on_unavailable;
            warn!(domain, %error, ?decides, "the cluster is away");
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
        let is_late = |pause| until.is_some_and(|until| Instant::now() + pause > until);
        loop {
            let reply = self.check(check, until).await?;
            if reply.allowed {
                let delay = Duration::from_millis(reply.delay_ms.unwrap_or(0));
                if is_late(delay) {
                    return Ok(None);
                }
                tokio::time::sleep(delay).await;
                return Ok(Some(reply));
            }
            let Some(retry_after_ms) = reply.retry_after_ms else {
                return Ok(None);
            };
            let pause = Duration::from_millis(retry_after_ms.max(1));
            if is_late(pause) {
                return Ok(None);
            }
            tokio::time::sleep(pause + spread(pause)).await;
        }
    }
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

/// Descriptors as one string of bytes: different ones differ.
fn key_of(descriptors: &[Descriptor]) -> Box<[u8]> {
    let mut key = Vec::new();
    let mut part = |bytes: &[u8]| {
        key.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        key.extend_from_slice(bytes);
    };
    for descriptor in descriptors {
        part(&(descriptor.len() as u32).to_le_bytes());
        for entry in descriptor {
            part(entry.key.as_bytes());
            part(entry.value.as_bytes());
        }
    }
    key.into()
}

#[cfg(test)]
mod tests;
