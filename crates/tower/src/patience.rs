//! How long a caller waits for the cluster, and that nobody waits for one that is away.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nowserving_client::{Error, Kind};
use tokio::time::Instant;
use tracing::{info, warn};

/// After so many questions without an answer, one after the other, the cluster is away.
const FAILURES_UNTIL_AWAY: u32 = 3;
/// While it is away, one question is asked in each such time.
const ASK_EVERY: Duration = Duration::from_millis(250);

/// Why a question about a rate limit has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unanswered {
    /// The cluster did not answer in time, or could not.
    Unavailable(String),
    /// The cluster has not answered lately, and was not asked.
    Away,
    /// The question was refused: a fault of the request or of the set-up.
    Failed(String),
}

impl From<Error> for Unanswered {
    fn from(error: Error) -> Unanswered {
        match error.kind() {
            Kind::Unavailable | Kind::Connection | Kind::OutcomeUnknown => {
                Unanswered::Unavailable(error.to_string())
            }
            _ => Unanswered::Failed(error.to_string()),
        }
    }
}

impl fmt::Display for Unanswered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unanswered::Away => f.write_str("the cluster has not answered lately"),
            Unanswered::Unavailable(why) | Unanswered::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Unanswered {}

/// Bounds how long questions to the cluster take. Clones share what they know of the cluster.
///
/// After three questions without an answer, one after the other, the cluster counts as away. Then one question in every
/// 250 ms is asked and the others end at once, until one is answered.
#[derive(Debug, Clone)]
pub struct Patience {
    within: Duration,
    cluster: Arc<Mutex<Cluster>>,
}

#[derive(Debug, Default)]
struct Cluster {
    /// Since the last answer.
    failures: u32,
    /// While it is away: when it is asked again.
    ask_at: Option<Instant>,
}

impl Patience {
    /// A question may take so long.
    #[must_use]
    pub fn new(within: Duration) -> Patience {
        Patience {
            within,
            cluster: Arc::default(),
        }
    }

    /// How long a question may take.
    #[must_use]
    pub fn within(&self) -> Duration {
        self.within
    }

    /// The answer to `question`, which is not polled if the cluster is away.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, Unanswered>>,
    ) -> Result<T, Unanswered> {
        if !self.may_ask() {
            return Err(Unanswered::Away);
        }
        let answer = match tokio::time::timeout(self.within, question).await {
            Ok(answer) => answer,
            Err(_) => {
                let late = format!("no answer within {:?}", self.within);
                Err(Unanswered::Unavailable(late))
            }
        };
        match &answer {
            Err(Unanswered::Unavailable(why)) => self.failed(why),
            Err(Unanswered::Away) => {}
            // It refuses, so it is there.
            Ok(_) | Err(Unanswered::Failed(_)) => self.answered(),
        }
        answer
    }

    fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_ask(&self) -> bool {
        let mut cluster = self.cluster();
        let now = Instant::now();
        match cluster.ask_at {
            Some(at) if now < at => false,
            Some(_) => {
                cluster.ask_at = Some(now + ASK_EVERY);
                true
            }
            None => true,
        }
    }

    fn failed(&self, why: &str) {
        let mut cluster = self.cluster();
        cluster.failures = cluster.failures.saturating_add(1);
        if cluster.failures >= FAILURES_UNTIL_AWAY && cluster.ask_at.is_none() {
            cluster.ask_at = Some(Instant::now() + ASK_EVERY);
            warn!(why, "the cluster does not decide about rate limits");
        }
    }

    fn answered(&self) {
        let mut cluster = self.cluster();
        cluster.failures = 0;
        if cluster.ask_at.take().is_some() {
            info!("the cluster decides about rate limits again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    async fn away() -> Patience {
        let patience = Patience::new(Duration::from_millis(100));
        for _ in 0..3 {
            let begin = Instant::now();
            let late = patience.ask(pending::<Result<(), Unanswered>>()).await;
            assert!(matches!(late, Err(Unanswered::Unavailable(_))), "{late:?}");
            assert_eq!(begin.elapsed(), Duration::from_millis(100));
        }
        patience
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_cluster_that_is_away() {
        let patience = away().await;
        for _ in 0..10 {
            let begin = Instant::now();
            let unasked = patience.clone().ask(ready(Ok(1))).await;
            assert_eq!(unasked, Err(Unanswered::Away));
            assert_eq!(begin.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_asks_now_and_then_until_it_is_back() {
        let patience = away().await;
        tokio::time::advance(ASK_EVERY).await;
        let failed = Unanswered::Unavailable("no leader".to_owned());
        let asked = patience.ask(ready(Err::<u8, _>(failed.clone()))).await;
        assert_eq!(asked, Err(failed));
        assert_eq!(patience.ask(ready(Ok(1))).await, Err(Unanswered::Away));
        tokio::time::advance(ASK_EVERY).await;
        for _ in 0..3 {
            assert_eq!(patience.ask(ready(Ok(1))).await, Ok(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_an_answer() {
        let patience = Patience::new(Duration::from_millis(100));
        for _ in 0..3 {
            for why in ["no leader", "no quorum"] {
                let failed = Unanswered::Unavailable(why.to_owned());
                let failed = patience.ask(ready(Err::<u8, _>(failed))).await;
                assert!(matches!(failed, Err(Unanswered::Unavailable(_))));
            }
            let refused = Unanswered::Failed("bad_request".to_owned());
            let answer = patience.ask(ready(Err::<u8, _>(refused.clone()))).await;
            assert_eq!(answer, Err(refused));
        }
    }
}
