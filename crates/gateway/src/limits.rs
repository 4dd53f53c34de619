//! Rate limits by address: nowserving's own, of a domain of the cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nowserving_client::limits::{Check, CheckReply, Descriptor, Entry};
use nowserving_client::{Client, Code, Error, LimitFallback, Limiter, LimiterOptions, LineName};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use crate::config::{Config, ConfigError};
use crate::metrics;

/// A refusal without a time.
const RETRY_AFTER_MS: u64 = 10_000;
/// How often the gateway looks whether the domain has rules, also if nobody visits.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// The same while it has none, or nobody answers.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Asks the cluster whether an address may do something.
pub(crate) struct AddressLimits {
    asks: Arc<Asks>,
    requests: Vec<String>,
    look: JoinHandle<()>,
}

impl Drop for AddressLimits {
    fn drop(&mut self) {
        self.look.abort();
    }
}

struct Asks {
    limiter: Limiter,
    /// Why no address is limited, by the newest answer.
    unlimited: Mutex<Option<Unlimited>>,
}

/// Why no address is limited: a mistake of the set-up, which keeps nobody out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unlimited {
    /// The domain has no rules.
    NoRules(LineName),
    /// The login lacks the right to ask.
    Forbidden(LineName, String),
    /// The cluster refuses the question.
    Refused(LineName, String),
}

impl AddressLimits {
    /// `None`: none are configured.
    pub fn new(client: &Client, config: &Config) -> Result<Option<AddressLimits>, ConfigError> {
        let Some(limits) = &config.address_limits else {
            return Ok(None);
        };
        let mut options = LimiterOptions::default();
        options.patience = Duration::from_millis(config.patience_ms);
        // While the cluster is away nobody enters anyway.
        options.on_unavailable = LimitFallback::Allow;
        let limiter = client.limiter_with(&limits.domain, options);
        let limiter =
            limiter.map_err(|error| ConfigError::new("address_limits.domain", error.message()))?;
        let asks = Arc::new(Asks {
            limiter,
            unlimited: Mutex::default(),
        });
        let look = tokio::spawn(Arc::clone(&asks).look());
        Ok(Some(AddressLimits {
            asks,
            requests: limits.requests.clone(),
            look,
        }))
    }

    /// Counts a request. Over the limit: after how many milliseconds to come again.
    pub async fn refuses(&self, what: &'static str, client: IpAddr) -> Option<u64> {
        if !self.requests.iter().any(|it| it == what) {
            return None;
        }
        let check = Check::new(vec![descriptor(what, client)]);
        let reply = match self.asks.ask(&check).await {
            Ok(reply) if !reply.unmatched => reply,
            Ok(_) => {
                metrics::limit_failed();
                return None;
            }
            Err(error) => {
                metrics::limit_failed();
                debug!(%error, "an address was not limited");
                return None;
            }
        };
        if reply.allowed {
            return None;
        }
        metrics::limited(what);
        Some(reply.retry_after_ms.unwrap_or(RETRY_AFTER_MS).max(1_000))
    }

    /// Why no address is limited, as far as is known now.
    pub fn unlimited(&self) -> Option<Unlimited> {
        self.asks.unlimited().clone()
    }
}

impl Asks {
    fn unlimited(&self) -> MutexGuard<'_, Option<Unlimited>> {
        self.unlimited
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a wrong domain at the start, not with the first visitor.
    async fn look(self: Arc<Asks>) {
        let check = Check {
            dry_run: true,
            ..Check::new(vec![descriptor("enter", Ipv4Addr::UNSPECIFIED.into())])
        };
        loop {
            let pause = match self.ask(&check).await {
                Ok(reply) if reply.unmatched || reply.without_cluster => LOOK_AGAIN,
                // Each question without the right to ask is a line in the NATS server's log.
                Ok(_) | Err(_) => LOOK_EVERY,
            };
            sleep(pause).await;
        }
    }

    async fn ask(&self, check: &Check) -> Result<CheckReply, Error> {
        let answer = self.limiter.check_with(check).await;
        self.note(&answer);
        answer
    }

    /// Keeps what an answer says of the domain, and logs it when it is another one than before.
    fn note(&self, answer: &Result<CheckReply, Error>) {
        let domain = self.limiter.domain().clone();
        let unlimited = match answer {
            // Nobody has answered.
            Ok(reply) if reply.without_cluster => return,
            Err(error) if error.is_transient() => return,
            Ok(reply) => reply.unmatched.then(|| Unlimited::NoRules(domain.clone())),
            Err(error) => {
                let why = error.message().to_owned();
                Some(match error.kind().code() {
                    Code::Forbidden => Unlimited::Forbidden(domain.clone(), why),
                    _ => Unlimited::Refused(domain.clone(), why),
                })
            }
        };
        let before = std::mem::replace(&mut *self.unlimited(), unlimited.clone());
        if before == unlimited {
            return;
        }
        match unlimited {
            Some(Unlimited::NoRules(_)) => warn!(
                %domain,
                "no address is limited: the domain of address_limits has no rules in the cluster"
            ),
            Some(Unlimited::Forbidden(_, error) | Unlimited::Refused(_, error)) => {
                warn!(%domain, error, "no address is limited")
            }
            None => info!(%domain, "addresses are limited"),
        }
    }
}

fn descriptor(what: &str, client: IpAddr) -> Descriptor {
    vec![
        Entry::new("request", what),
        Entry::new("remote_address", counted(client).to_string()),
    ]
}

/// By what an address is counted: a whole network of 64 bits is one visitor's.
pub(crate) fn counted(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            Ipv6Addr::from_bits(network).into()
        }
    }
}
