//! The answer to hits on exact limits, as it is remembered.

use nowserving_codec::Codec;
use nowserving_limit::{Algorithm, Answer, Saved, Verdict};

use super::{LimitAsk, TimedAsk};

/// What the limits of a request decided, in a few bytes however many they are. A copy of the request is told the same
/// decisions, with the numbers as they are by then.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct HitsAnswer {
    /// How many limits there were; the bits below are theirs, in order.
    pub(crate) limits: u32,
    pub(crate) allowed: u32,
    pub(crate) untracked: u32,
    /// The longest one.
    pub(crate) delay_us: u64,
}

impl HitsAnswer {
    #[must_use]
    pub fn new(verdicts: &[Verdict]) -> Self {
        let bits = |is_set: fn(&Verdict) -> bool| {
            let bits = verdicts.iter().take(32).enumerate();
            bits.fold(0, |bits, (nth, it)| bits | (u32::from(is_set(it)) << nth))
        };
        let allowed = verdicts.iter().filter(|verdict| verdict.answer.allowed);
        let delays = allowed.map(|verdict| verdict.answer.delay_us);
        HitsAnswer {
            limits: u32::try_from(verdicts.len()).unwrap_or(u32::MAX),
            allowed: bits(|verdict| verdict.answer.allowed),
            untracked: bits(|verdict| verdict.is_untracked),
            delay_us: delays.max().unwrap_or(0),
        }
    }

    /// The answer to a copy that asks for these limits. `None`: it asks for others, so it is no copy.
    #[must_use]
    pub fn again(&self, asks: &[TimedAsk], saved: &Saved) -> Option<Vec<Verdict>> {
        if asks.len() as u64 != u64::from(self.limits) {
            return None;
        }
        let verdicts = asks.iter().enumerate().map(|(nth, timed)| {
            let is_set = |bits: u32| bits.checked_shr(nth as u32).unwrap_or(0) & 1 == 1;
            let TimedAsk { ask, at } = timed;
            let now = saved.dry_run(
                &LimitAsk {
                    hits: 0,
                    max_delay_us: None,
                    ..ask.clone()
                }
                .at(*at),
            );
            let answer = match is_set(self.allowed) {
                true => self.allowed_again(ask, now),
                false => refused_again(ask, saved.dry_run(&ask.at(*at)), now),
            };
            Verdict {
                answer,
                is_shadow: ask.is_shadow,
                is_quota: ask.is_quota,
                is_untracked: is_set(self.untracked),
            }
        });
        Some(verdicts.collect())
    }

    fn allowed_again(&self, ask: &LimitAsk, now: Answer) -> Answer {
        let delays = ask.limit.algorithm() == Algorithm::LeakingBucket;
        Answer {
            allowed: true,
            retry_after_us: None,
            delay_us: if delays { self.delay_us } else { 0 },
            ..now
        }
    }
}

/// Another request with these hits may be allowed by now.
fn refused_again(ask: &LimitAsk, with_hits: Answer, now: Answer) -> Answer {
    let ever = ask.hits <= u64::from(ask.limit.capacity());
    let retry_after_us = with_hits.retry_after_us.unwrap_or(0);
    Answer {
        allowed: false,
        retry_after_us: ever.then_some(retry_after_us),
        // Not 0 if it would be refused because of its delay.
        delay_us: if with_hits.allowed {
            0
        } else {
            with_hits.delay_us
        },
        ..now
    }
}
