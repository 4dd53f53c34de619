//! A fixed window in memory, on tokio's paused clock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use nowserving_protocol::error::{ApiError, Code};
use nowserving_protocol::limits::{Check, CheckReply, DescriptorReply};
use tokio::time::Instant;

use crate::error::{Error, Kind, Result};
use crate::limiter::calls::Calls;
use crate::limiter::keys::{Key, key_of};

/// A call takes this long.
pub(super) const TRIP: Duration = Duration::from_millis(2);

#[derive(Clone)]
pub(super) struct Fake(Arc<Mutex<Window>>);

struct Window {
    limit: u32,
    per: Duration,
    began: Instant,
    counted: BTreeMap<Key, u32>,
    checks: u32,
    answers: Answers,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answers {
    Always,
    Never,
    /// Too many requests.
    Busy,
    Forbids,
    /// As a leaking bucket.
    Delayed(Duration),
    /// No rule counts.
    Unlimited,
    /// As a limit that is always full, and says that it is not in 1 ms.
    Full,
}

impl Fake {
    pub(super) fn new(limit: u32, per: Duration) -> Fake {
        Fake(Arc::new(Mutex::new(Window {
            limit,
            per,
            began: Instant::now(),
            counted: BTreeMap::new(),
            checks: 0,
            answers: Answers::Always,
        })))
    }

    pub(super) fn answers(&self, answers: Answers) {
        self.lock().answers = answers;
    }

    pub(super) fn limit(&self, limit: u32) {
        self.lock().limit = limit;
    }

    /// How often it was asked.
    pub(super) fn checks(&self) -> u32 {
        self.lock().checks
    }

    /// All hits of this window.
    pub(super) fn counted(&self) -> u32 {
        self.lock().counted.values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        let mut window = self.0.lock().expect("a test has failed");
        while window.began.elapsed() >= window.per {
            let per = window.per;
            window.began += per;
            window.counted.clear();
        }
        window
    }
}

impl Window {
    fn check(&mut self, check: &Check) -> CheckReply {
        let counted = self.counted.entry(key_of(&check.descriptors)).or_default();
        let hits = check.hits();
        let delay_ms = match self.answers {
            Answers::Delayed(delay) => Some(delay.as_millis() as u64),
            _ => None,
        };
        let max_delay_ms = check.max_delay_ms.unwrap_or(u64::MAX);
        let too_long_ms = delay_ms.unwrap_or(0).saturating_sub(max_delay_ms);
        let allowed = *counted + hits <= self.limit && too_long_ms == 0;
        if allowed && !check.dry_run {
            *counted += hits;
        }
        let reset_ms = (self.per - self.began.elapsed()).as_millis() as u64;
        let descriptor = DescriptorReply {
            allowed,
            limit: Some(self.limit),
            remaining: Some(self.limit - *counted),
            reset_ms: Some(reset_ms),
            ..DescriptorReply::default()
        };
        CheckReply {
            allowed,
            limit: descriptor.limit,
            remaining: descriptor.remaining,
            reset_ms: Some(reset_ms),
            retry_after_ms: (!allowed && hits <= self.limit).then_some(match too_long_ms {
                0 => reset_ms,
                too_long_ms => too_long_ms,
            }),
            delay_ms,
            descriptors: vec![descriptor],
            ..CheckReply::default()
        }
    }
}

impl Calls for Fake {
    async fn check(&self, check: &Check, within: Duration) -> Result<CheckReply> {
        let answers = {
            let mut window = self.lock();
            window.checks += 1;
            window.answers
        };
        let nobody = || Error::new(Kind::Unavailable, "nobody answers");
        match answers {
            Answers::Never => {
                tokio::time::sleep(within).await;
                Err(nobody())
            }
            Answers::Busy => {
                tokio::time::sleep(within).await;
                Err(nobody().with_api(ApiError::new(Code::Overloaded, "busy")))
            }
            Answers::Forbids => Err(Error::new(Kind::Forbidden, "a right is missing")),
            Answers::Unlimited => {
                tokio::time::sleep(TRIP).await;
                Ok(CheckReply {
                    allowed: true,
                    unmatched: true,
                    ..CheckReply::default()
                })
            }
            Answers::Full => {
                tokio::time::sleep(TRIP).await;
                Ok(CheckReply {
                    retry_after_ms: Some(1),
                    ..CheckReply::default()
                })
            }
            Answers::Always | Answers::Delayed(_) => {
                tokio::time::sleep(TRIP).await;
                Ok(self.lock().check(check))
            }
        }
    }
}
