//! Rate limits by address: nowserving's own, of a domain of the cluster.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use nowserving_client::limits::Entry;
use nowserving_client::{Client, LimitFallback, Limiter, LimiterOptions};

use crate::config::{Config, ConfigError};
use crate::metrics;

/// A refusal without a time.
const RETRY_AFTER_MS: u64 = 10_000;

/// Asks the cluster whether an address may do something.
pub(crate) struct AddressLimits {
    limiter: Limiter,
    requests: Vec<String>,
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
        Ok(Some(AddressLimits {
            limiter,
            requests: limits.requests.clone(),
        }))
    }

    /// Counts a request. Over the limit: after how many milliseconds to come again.
    pub async fn refuses(&self, what: &'static str, client: IpAddr) -> Option<u64> {
        if !self.requests.iter().any(|it| it == what) {
            return None;
        }
        let descriptor = vec![
            Entry::new("request", what),
            Entry::new("remote_address", counted(client).to_string()),
        ];
        let reply = match self.limiter.check(vec![descriptor]).await {
            Ok(reply) => reply,
            Err(error) => {
                // No rules of this domain, or no right to ask: a mistake of the set-up keeps nobody out.
                metrics::limit_failed();
                tracing::debug!(%error, "an address was not limited");
                return None;
            }
        };
        if reply.allowed {
            return None;
        }
        metrics::limited(what);
        Some(reply.retry_after_ms.unwrap_or(RETRY_AFTER_MS).max(1_000))
    }
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
