//! Sends requests, a given number in flight at once, and measures how long each takes. The same code
//! for all systems.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::{Message, Subject};
use bytes::Bytes;
use hdrhistogram::Histogram;
use nowserving_protocol::codec;
use nowserving_protocol::error::ErrorReply;
use nowserving_protocol::header::ERROR_HEADER;
use tokio::task::JoinSet;

/// After a failure, so that a dead responder is not asked a million times.
const PAUSE: Duration = Duration::from_millis(5);
/// How often a request that must succeed is sent.
const TRIES: u32 = 200;
/// Three digits of each time are kept.
const DIGITS: u8 = 3;

/// Makes the request with this number.
pub type Source = Arc<dyn Fn(u64) -> (Subject, Bytes) + Send + Sync>;

/// Which server is asked, and what. All requests of a cell share one connection of the requester.
pub trait Ask: Clone + Send + Sync + 'static {
    /// Why there is no good answer to the request with this number, if there is none.
    fn ask(&self, number: u64) -> impl Future<Output = Option<String>> + Send;
}

/// Requests over NATS.
#[derive(Clone)]
pub struct Requests {
    pub nats: async_nats::Client,
    pub source: Source,
}

impl Ask for Requests {
    async fn ask(&self, number: u64) -> Option<String> {
        let (subject, payload) = (self.source)(number);
        match self.nats.request(subject, payload).await {
            Ok(message) => failure(&message),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Where a cell's requests come from, and how they are sent.
#[derive(Clone)]
pub struct Load<A> {
    pub asked: A,
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

impl Sample {
    /// This share of the answers came within so many microseconds.
    pub fn quantile_us(&self, share: f64) -> f64 {
        self.tally.latency_us.value_at_quantile(share) as f64
    }
}

#[derive(Debug)]
pub struct Tally {
    /// Microseconds from asking to the answer.
    pub latency_us: Histogram<u64>,
    /// Good answers, those of the warm-up included.
    pub answers: u64,
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
            answers: 0,
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

    /// Those of another one, too.
    ///
    /// # Errors
    /// Never: both have the same digits.
    pub fn add(&mut self, other: Tally) -> anyhow::Result<()> {
        self.latency_us.add(other.latency_us)?;
        self.answers += other.answers;
        for (failure, count) in other.failures {
            *self.failures.entry(failure).or_default() += count;
        }
        Ok(())
    }
}

impl<A: Ask> Load<A> {
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
            let number = self.counter.fetch_add(1, Ordering::Relaxed);
            let failure = self.asked.ask(number).await;
            let answered_at = Instant::now();
            if let Some(failure) = failure {
                tally.fail(failure);
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            tally.answers += 1;
            if (from..to).contains(&answered_at) {
                tally.count(answered_at - asked_at)?;
            }
        }
    }

    /// Sends the requests from the counter's number up to this one, each until it has a good answer.
    ///
    /// # Errors
    /// One fails again and again.
    pub async fn each_up_to(self, in_flight: u32, end: u64) -> anyhow::Result<()> {
        let slots = (0..in_flight).map(|_| self.clone().until_done(end));
        let mut slots: JoinSet<_> = slots.collect();
        while let Some(slot) = slots.join_next().await {
            slot??;
        }
        Ok(())
    }

    async fn until_done(self, end: u64) -> anyhow::Result<()> {
        loop {
            let number = self.counter.fetch_add(1, Ordering::Relaxed);
            if number >= end {
                return Ok(());
            }
            let mut tries = 0;
            while let Some(failure) = self.asked.ask(number).await {
                tries += 1;
                anyhow::ensure!(tries < TRIES, "{failure}, {tries} times");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Why an answer does not count.
pub fn failure(message: &Message) -> Option<String> {
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
