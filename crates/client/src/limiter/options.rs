//! How a limiter behaves.

use std::time::Duration;

/// The options of a [`Limiter`](crate::Limiter).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LimiterOptions {
    /// What happens to requests while the cluster does not answer; default [`LimitFallback::Allow`].
    pub on_unavailable: LimitFallback,
    /// How long the cluster may take to answer a check, all attempts together. Default 1 s. A check that is not answered
    /// within that is decided by `on_unavailable`. If one that begins after it is not answered either, the cluster is away:
    /// further ones are decided at once, but for one about every half second, until one is answered.
    pub patience: Duration,
}

impl Default for LimiterOptions {
    fn default() -> LimiterOptions {
        LimiterOptions {
            on_unavailable: LimitFallback::default(),
            patience: Duration::from_secs(1),
        }
    }
}

/// What happens to requests while the cluster does not answer. A cluster with too many requests counts as one that does
/// not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LimitFallback {
    /// They pass, without a limit. A service stays available.
    #[default]
    Allow,
    /// They are refused.
    Deny,
    /// This process counts by itself, for each list of descriptors apart.
    Local(LocalLimit),
    /// The call fails with its error, and the cluster is asked each time: for callers that decide themselves.
    Fail,
}

/// A limit of one process: a token bucket with room for `hits`, which `per` fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalLimit {
    /// So many.
    pub hits: u32,
    /// In this time.
    pub per: Duration,
}
