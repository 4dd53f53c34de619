//! Sends requests, a given number in flight at once, and measures how long each takes. The same code
//! for the echo and for the cells compared with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::{Message, RequestError, Subject};
use bytes::Bytes;
use hdrhistogram::Histogram;
use nowserving_protocol::codec;
use nowserving_protocol::error::ErrorReply;
use nowserving_protocol::header::ERROR_HEADER;
use tokio::task::JoinSet;

/// After a failure, so that a dead responder is not asked a million times.
const PAUSE: Duration = Duration::from_millis(5);
/// Three digits of each time are kept.
const DIGITS: u8 = 3;

/// Makes the request with this number.
pub type Source = Arc<dyn Fn(u64) -> (Subject, Bytes) + Send + Sync>;

/// Where a cell's requests come from, and how they are sent.
#[derive(Clone)]
pub struct Load {
    /// The requester's connection; all requests share it and its one inbox.
    pub nats: async_nats::Client,
    pub source: Source,
    /// The number of the next request.
    pub counter: Arc<AtomicU64>,
}

/// The result of measuring a load.
#[derive(Debug)]
pub struct Sample {
    /// Good answers a second.
    pub per_second: f64,
    /// The answers and failures.
    pub tally: Tally,
}

#[derive(Debug)]
pub struct Tally {
    /// Microseconds from asking to the answer.
    pub latency_us: Histogram<u64>,
    /// Failures by message, those of the warm-up included.
    pub failures: BTreeMap<String, u64>,
}

impl Tally {
    /// Of nothing yet.
    ///
    /// # Errors
    /// Never: the number of digits is one that histograms can have.
    pub fn new() -> anyhow::Result<Tally> {
        Ok(Tally {
            latency_us: Histogram::new(DIGITS)?,
            failures: BTreeMap::new(),
        })
    }

    /// A good answer.
    ///
    /// # Errors
    /// No memory could hold a histogram that reaches so far.
    pub fn count(&mut self, took: Duration) -> anyhow::Result<()> {
        // Not `saturating_record`: that does not make room for longer times, but cuts them down.
        Ok(self.latency_us.record(took.as_micros().try_into()?)?)
    }

    /// No good answer.
    pub fn fail(&mut self, why: String) {
        *self.failures.entry(why).or_default() += 1;
    }

    fn add(&mut self, other: Tally) -> anyhow::Result<()> {
        self.latency_us.add(other.latency_us)?;
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        Ok(())
    }
}

impl Load {
    /// Sends requests, so many at once, and counts the answers that come after the warm-up.
    ///
    /// # Errors
    /// No histogram can be made, or a task panicked.
    pub async fn run(
        self,
        in_flight: u32,
        warm_up: Duration,
        measured: Duration,
    ) -> anyhow::Result<Sample> {
        let from = Instant::now() + warm_up;
        let to = from + measured;
        let slots = (0..in_flight).map(|_| self.clone().one_by_one(from, to));
        let mut slots: JoinSet<_> = slots.collect();
        let mut tally = Tally::new()?;
        while let Some(slot) = slots.join_next().await {
            tally.add(slot??)?;
        }
        Ok(Sample {
            per_second: tally.latency_us.len() as f64 / measured.as_secs_f64(),
            tally,
        })
    }

    /// Sends one request after the other; counts the answers between the two moments.
    async fn one_by_one(self, from: Instant, to: Instant) -> anyhow::Result<Tally> {
        let mut tally = Tally::new()?;
        loop {
            let asked_at = Instant::now();
            if asked_at >= to {
                return Ok(tally);
            }
            let (subject, payload) = (self.source)(self.counter.fetch_add(1, Ordering::Relaxed));
            let answer = self.nats.request(subject, payload).await;
            let answered_at = Instant::now();
            if let Some(failure) = failure(answer) {
                tally.fail(failure);
                tokio::time::sleep(PAUSE).await;
            } else if (from..to).contains(&answered_at) {
                tally.count(answered_at - asked_at)?;
            }
        }
    }
}

/// Why an answer does not count.
fn failure(answer: Result<Message, RequestError>) -> Option<String> {
    let message = match answer {
        Ok(message) => message,
        Err(error) => return Some(error.to_string()),
    };
    // Good answers have no headers: nothing to look up for them.
    let headers = message.headers.as_ref()?;
    let text = headers.get(ERROR_HEADER)?;
    Some(match codec::decode::<ErrorReply>(&message.payload) {
        Ok(reply) => reply.error.to_string(),
        Err(_) => text.to_string(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_and_failures_add_up() {
        let mut all = Tally::new().unwrap();
        for ms in [1, 20, 3_000] {
            let mut one = Tally::new().unwrap();
            one.count(Duration::from_millis(ms)).unwrap();
            one.fail("why".to_owned());
            all.add(one).unwrap();
        }
        assert_eq!(all.failures["why"], 3);
        assert_eq!(all.latency_us.len(), 3);
        for (quantile, ms) in [(0.3, 1.0), (0.5, 20.0), (1.0, 3_000.0)] {
            let got_ms = all.latency_us.value_at_quantile(quantile) as f64 / 1_000.0;
            assert!((got_ms / ms - 1.0).abs() < 0.002, "{quantile}: {got_ms}");
        }
    }
}
