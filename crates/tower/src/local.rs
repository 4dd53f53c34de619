//! A limit of this process alone, for the time in which the cluster does not decide.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// So many requests of this process, all callers together: at once, and then in every `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalLimit {
    /// 0 refuses all.
    pub requests: u32,
    /// The time that these requests share; at most a year.
    pub per: Duration,
}

const PER_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A token bucket: the generic cell rate algorithm.
#[derive(Debug)]
pub(crate) struct LocalBucket {
    limit: LocalLimit,
    /// When it is full again.
    full_at: Mutex<Instant>,
}

impl LocalBucket {
    pub(crate) fn new(limit: LocalLimit) -> LocalBucket {
        let per = limit.per.min(PER_MAX);
        LocalBucket {
            limit: LocalLimit { per, ..limit },
            full_at: Mutex::new(Instant::now()),
        }
    }

    /// Counts these hits if they are within the limit. Else: after how long they would be; `None`: never.
    pub(crate) fn take(&self, hits: u32) -> Result<(), Option<Duration>> {
        if hits > self.limit.requests {
            return Err(None);
        }
        // Not zero, as it has at least so many hits. In 128 bits, in which it cannot overflow.
        let requests = u128::from(self.limit.requests.max(1));
        let cost = self.limit.per.as_nanos() * u128::from(hits) / requests;
        let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX));
        let now = Instant::now();
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let after = (*full_at).max(now) + cost;
        match (after - now).checked_sub(self.limit.per) {
            None | Some(Duration::ZERO) => {
                *full_at = after;
                Ok(())
            }
            Some(over) => Err(Some(over)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_at_once_and_then_as_time_goes_by() {
        let bucket = LocalBucket::new(LocalLimit {
            requests: 4,
            per: Duration::from_secs(2),
        });
        for _ in 0..3 {
            assert_eq!(bucket.take(1), Ok(()));
        }
        assert_eq!(bucket.take(2), Err(Some(Duration::from_millis(500))));
        assert_eq!(bucket.take(1), Ok(()));
        assert_eq!(bucket.take(1), Err(Some(Duration::from_millis(500))));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(bucket.take(1), Ok(()));
        assert!(bucket.take(1).is_err());
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(bucket.take(5), Err(None));
        assert_eq!(bucket.take(4), Ok(()));
        assert!(bucket.take(1).is_err());
        assert_eq!(bucket.take(0), Ok(()), "only asks");
    }

    #[tokio::test(start_paused = true)]
    async fn none_refuses_all() {
        let bucket = LocalBucket::new(LocalLimit {
            requests: 0,
            per: Duration::from_secs(1),
        });
        assert_eq!(bucket.take(1), Err(None));
    }
}
