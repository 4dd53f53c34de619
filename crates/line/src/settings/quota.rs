//! How many tokens of a line can complete.

use super::BadField;

/// The largest `total` of a quota; the smallest is 1.
pub const QUOTA_TOTAL_MAX: u64 = 1_000_000_000;
/// The largest `standby_percent` of a quota; the smallest is 0.
pub const STANDBY_PERCENT_MAX: u32 = 1_000;

/// A limit on completions, counted over the incarnation of the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Tokens are admitted only while completed tokens and held seats together are fewer than
    /// this: 1 to [`QUOTA_TOTAL_MAX`].
    pub total: u64,
    /// Numbers issued beyond `total`, because some holders of seats will not complete: 0 to
    /// [`STANDBY_PERCENT_MAX`].
    pub standby_percent: u32,
}

impl Quota {
    /// No number is issued once so many tokens have completed or are live: `total` and its
    /// standby share, rounded down.
    pub fn entries_max(&self) -> u64 {
        let percent = u64::from(self.standby_percent).saturating_add(100);
        self.total.saturating_mul(percent) / 100
    }

    pub(super) fn validate(&self) -> Result<(), BadField> {
        if !(1..=QUOTA_TOTAL_MAX).contains(&self.total) {
            return Err(BadField::new("quota", "total: 1 to 1000000000"));
        }
        if self.standby_percent > STANDBY_PERCENT_MAX {
            return Err(BadField::new("quota", "standby_percent: 0 to 1000"));
        }
        Ok(())
    }
}
