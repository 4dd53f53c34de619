//! What a check answers.

/// The answer of one limit. Over the limit is an answer, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    /// `requests_per_unit`.
    pub limit: u32,
    /// How many more hits are allowed now, after those of this request if they are counted.
    pub remaining: u32,
    /// In how many µs the counter is as good as new if nobody comes; for a fixed window: when it ends.
    pub reset_us: u64,
    /// In how many µs the same request is allowed if nobody else comes, and not earlier. `None` if it is allowed now,
    /// or never, as it has more hits than [`crate::Limit::capacity`].
    pub retry_after_us: Option<u64>,
    /// How long the caller has to wait before it goes on, in µs; 0 but for a leaking bucket. If it is refused, because it
    /// accepts no delay as long as that ([`crate::Ask::max_delay_us`]), how long it would have had to wait.
    pub delay_us: u64,
}

impl Answer {
    /// The same decision, with the numbers of `uncounted`: the answer to no hits.
    pub fn without_hits(self, uncounted: &Self) -> Self {
        Self {
            remaining: uncounted.remaining,
            reset_us: uncounted.reset_us,
            ..self
        }
    }

    /// The least whole milliseconds after which [`Answer::reset_us`] has passed.
    pub fn reset_ms(&self) -> u64 {
        self.reset_us.div_ceil(1_000)
    }

    /// The least whole milliseconds after which [`Answer::retry_after_us`] has passed.
    pub fn retry_after_ms(&self) -> Option<u64> {
        self.retry_after_us.map(|us| us.div_ceil(1_000))
    }

    /// The least whole milliseconds after which [`Answer::delay_us`] has passed.
    pub fn delay_ms(&self) -> u64 {
        self.delay_us.div_ceil(1_000)
    }
}
