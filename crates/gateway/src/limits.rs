//! Rate limits by address: nowserving's own, of a domain of the cluster.

use std::collections::BTreeSet;
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
/// The same while rules are missing, or nobody answers.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Asks the cluster whether an address may do something.
pub(crate) struct AddressLimits {
    asks: Arc<Asks>,
    look: JoinHandle<()>,
}

impl Drop for AddressLimits {
    fn drop(&mut self) {
        self.look.abort();
    }
}

struct Asks {
    limiter: Limiter,
    /// Which requests are counted.
    requests: BTreeSet<String>,
    /// Why addresses are not limited, by the newest look that was answered. Not by checks of visitors: each of them is
    /// about one request alone.
    unlimited: Mutex<Option<Unlimited>>,
}

/// Why addresses are not limited: a mistake of the set-up, which keeps nobody out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unlimited {
    /// The domain has no rules.
    NoRules(LineName),
    /// It has rules, but none for these requests.
    NoRulesFor(LineName, Vec<String>),
    /// The login lacks the right to ask.
    Forbidden(LineName, String),
    /// The cluster refuses the question.
    Refused(LineName, String),
}

impl Unlimited {
    /// By the answer about one descriptor for each of these requests.
    fn of_reply(
        domain: &LineName,
        requests: &BTreeSet<String>,
        reply: &CheckReply,
    ) -> Option<Unlimited> {
        if reply.unmatched {
            return Some(Unlimited::NoRules(domain.clone()));
        }
        let said = requests.iter().zip(&reply.descriptors);
        let without_rule = said.filter(|(_, said)| said.unmatched);
        let without_rule: Vec<String> = without_rule.map(|(it, _)| it.clone()).collect();
        match without_rule.is_empty() {
            true => None,
            false => Some(Unlimited::NoRulesFor(domain.clone(), without_rule)),
        }
    }

    fn of_error(domain: &LineName, error: &Error) -> Unlimited {
        let why = error.message().to_owned();
        match error.kind().code() {
            Code::Forbidden => Unlimited::Forbidden(domain.clone(), why),
            _ => Unlimited::Refused(domain.clone(), why),
        }
    }
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
            requests: limits.requests.iter().cloned().collect(),
            unlimited: Mutex::default(),
        });
        let look = tokio::spawn(Arc::clone(&asks).look());
        Ok(Some(AddressLimits { asks, look }))
    }

    /// Counts a request. Over the limit: after how many milliseconds to come again.
    pub async fn refuses(&self, what: &'static str, client: IpAddr) -> Option<u64> {
        if !self.asks.requests.contains(what) {
            return None;
        }
        let check = Check::new(vec![descriptor(what, client)]);
        let reply = match self.asks.limiter.check_with(&check).await {
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

    /// Why addresses are not limited, as far as is known now.
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
        let domain = self.limiter.domain();
        let requests = self.requests.iter();
        let descriptors = requests.map(|it| descriptor(it, Ipv4Addr::UNSPECIFIED.into()));
        let check = Check {
            dry_run: true,
            ..Check::new(descriptors.collect())
        };
        loop {
            let pause = match self.limiter.check_with(&check).await {
                // Nobody has answered.
                Ok(reply) if reply.without_cluster => LOOK_AGAIN,
                Ok(reply) => {
                    let unlimited = Unlimited::of_reply(domain, &self.requests, &reply);
                    let is_limited = unlimited.is_none();
                    self.note(unlimited);
                    if is_limited { LOOK_EVERY } else { LOOK_AGAIN }
                }
                Err(error) => {
                    self.note(Some(Unlimited::of_error(domain, &error)));
                    // Each question without the right to ask is a line in the NATS server's log.
                    LOOK_EVERY
                }
            };
            sleep(pause).await;
        }
    }

    /// Keeps what a look has found, and logs it when it is another thing than before.
    fn note(&self, unlimited: Option<Unlimited>) {
        let before = std::mem::replace(&mut *self.unlimited(), unlimited.clone());
        if before == unlimited {
            return;
        }
        let domain = self.limiter.domain();
        match unlimited {
            Some(Unlimited::NoRules(_)) => warn!(
                %domain,
                "no address is limited: the domain of address_limits has no rules in the cluster"
            ),
            Some(Unlimited::NoRulesFor(_, requests)) => warn!(
                %domain,
                requests = requests.join(", "),
                "address_limits does not limit these requests: the domain has rules, but none for them"
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_client::limits::DescriptorReply;

    use super::*;

    /// `unmatched`: of each request's descriptor.
    fn unlimited(is_domain_unmatched: bool, unmatched: &[bool]) -> Option<Unlimited> {
        let domain = "web".parse().unwrap();
        let requests = ["enter", "page", "status"].map(str::to_owned).into();
        let of_one = |unmatched: &bool| DescriptorReply {
            unmatched: *unmatched,
            ..DescriptorReply::default()
        };
        let reply = CheckReply {
            unmatched: is_domain_unmatched,
            descriptors: unmatched.iter().map(of_one).collect(),
            ..CheckReply::default()
        };
        Unlimited::of_reply(&domain, &requests, &reply)
    }

    #[test]
    fn requests_without_a_rule_are_named() {
        let domain: LineName = "web".parse().unwrap();
        assert_eq!(unlimited(false, &[false, false, false]), None);
        let requests = vec!["page".to_owned(), "status".to_owned()];
        assert_eq!(
            unlimited(false, &[false, true, true]),
            Some(Unlimited::NoRulesFor(domain.clone(), requests))
        );
        assert_eq!(
            unlimited(true, &[true, true, true]),
            Some(Unlimited::NoRules(domain))
        );
    }
}
