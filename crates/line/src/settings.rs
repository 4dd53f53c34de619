//! What an operator can set on a line, and within which limits.

use std::collections::BTreeMap;

/// The most seats a line can have; the fewest is 1.
pub const SEATS_MAX: u32 = 1_000_000;
/// The largest `queue_limit`; the smallest is 0.
pub const QUEUE_LIMIT_MAX: u32 = 10_000_000;
/// The shortest of any timeout, in milliseconds.
pub const TIMEOUT_MS_MIN: u64 = 100;
/// The longest of any timeout, in milliseconds: seven days.
pub const TIMEOUT_MS_MAX: u64 = 7 * 24 * 60 * 60 * 1_000;
/// How many labels a line can have.
pub const LABELS_MAX: usize = 16;
/// The longest name, and the longest value, of a label, in bytes.
pub const LABEL_BYTES_MAX: usize = 64;

const WAITING_IDLE_TIMEOUT_MS: u64 = 300_000;
const CLAIM_TIMEOUT_MS: u64 = 120_000;
const CHECKOUT_TIMEOUT_MS: u64 = 600_000;
const CHECKOUT_MAX_MS: u64 = 3_600_000;

/// A field that is out of its range, and what the range is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {limit}")]
pub struct BadField {
    /// The field, as the contract names it.
    pub field: &'static str,
    /// What it must be, in words.
    pub limit: String,
}

impl BadField {
    /// `field` is not within `limit`.
    pub fn new(field: &'static str, limit: impl Into<String>) -> Self {
        let limit = limit.into();
        Self { field, limit }
    }
}

/// The settings of a line, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// How many may hold a seat at once: 1 to [`SEATS_MAX`].
    pub seats: u32,
    /// How many more than `seats` may be in the line: 0 to [`QUEUE_LIMIT_MAX`].
    pub queue_limit: u32,
    /// A waiting token not heard from for longer can be recycled.
    pub waiting_idle_timeout_ms: u64,
    /// How long an admitted token has to claim its seat.
    pub claim_timeout_ms: u64,
    /// How long a claimed seat lasts without `renew`.
    pub checkout_timeout_ms: u64,
    /// Where renewing ends, counted from the claim.
    pub checkout_max_ms: u64,
    /// Whether an event is published per token, not only boards.
    pub token_events: bool,
    /// Free words by which lines are listed: at most [`LABELS_MAX`] of [`LABEL_BYTES_MAX`] bytes.
    pub labels: BTreeMap<String, String>,
}

/// What a patch does to one setting that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change<T> {
    /// Gives it this value.
    Set(T),
    /// Puts it back to its default; refused for a required setting.
    Unset,
}

/// Any subset of the settings; `None` leaves one as it is (at creation: at its default).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SettingsPatch {
    /// See [`Settings::seats`]. Required at creation.
    pub seats: Option<Change<u32>>,
    /// See [`Settings::queue_limit`]. Required at creation.
    pub queue_limit: Option<Change<u32>>,
    /// See [`Settings::waiting_idle_timeout_ms`].
    pub waiting_idle_timeout_ms: Option<Change<u64>>,
    /// See [`Settings::claim_timeout_ms`].
    pub claim_timeout_ms: Option<Change<u64>>,
    /// See [`Settings::checkout_timeout_ms`].
    pub checkout_timeout_ms: Option<Change<u64>>,
    /// See [`Settings::checkout_max_ms`].
    pub checkout_max_ms: Option<Change<u64>>,
    /// See [`Settings::token_events`].
    pub token_events: Option<Change<bool>>,
    /// See [`Settings::labels`]. The whole map is replaced.
    pub labels: Option<Change<BTreeMap<String, String>>>,
}

impl SettingsPatch {
    /// Whether every field that is set is within its range, so that nothing is proposed that
    /// applying would refuse for its form.
    pub fn validate(&self) -> Result<(), BadField> {
        // Applied to anything valid, a patch fails exactly if one of its own fields is bad.
        Settings::new(1, 0).with(self).map(|_| ())
    }
}

impl Settings {
    /// The defaults, with the two settings that have none.
    pub fn new(seats: u32, queue_limit: u32) -> Self {
        Self {
            seats,
            queue_limit,
            waiting_idle_timeout_ms: WAITING_IDLE_TIMEOUT_MS,
            claim_timeout_ms: CLAIM_TIMEOUT_MS,
            checkout_timeout_ms: CHECKOUT_TIMEOUT_MS,
            checkout_max_ms: CHECKOUT_MAX_MS,
            token_events: true,
            labels: BTreeMap::new(),
        }
    }

    /// The settings of a new line. `seats` and `queue_limit` must be set.
    pub fn create(patch: &SettingsPatch) -> Result<Self, BadField> {
        if patch.seats.is_none() {
            return Err(required("seats"));
        }
        if patch.queue_limit.is_none() {
            return Err(required("queue_limit"));
        }
        Self::new(1, 0).with(patch)
    }

    /// These settings with `patch` on top; whole or not at all.
    pub fn with(&self, patch: &SettingsPatch) -> Result<Self, BadField> {
        let mut new = self.clone();
        change_required("seats", &mut new.seats, &patch.seats)?;
        change_required("queue_limit", &mut new.queue_limit, &patch.queue_limit)?;
        change(
            &mut new.waiting_idle_timeout_ms,
            &patch.waiting_idle_timeout_ms,
            WAITING_IDLE_TIMEOUT_MS,
        );
        change(
            &mut new.claim_timeout_ms,
            &patch.claim_timeout_ms,
            CLAIM_TIMEOUT_MS,
        );
        change(
            &mut new.checkout_timeout_ms,
            &patch.checkout_timeout_ms,
            CHECKOUT_TIMEOUT_MS,
        );
        change(
            &mut new.checkout_max_ms,
            &patch.checkout_max_ms,
            CHECKOUT_MAX_MS,
        );
        change(&mut new.token_events, &patch.token_events, true);
        change(&mut new.labels, &patch.labels, BTreeMap::new());
        new.validate()?;
        Ok(new)
    }

    /// Whether every setting is within its range.
    pub fn validate(&self) -> Result<(), BadField> {
        if !(1..=SEATS_MAX).contains(&self.seats) {
            return Err(BadField::new("seats", "1 to 1000000"));
        }
        if self.queue_limit > QUEUE_LIMIT_MAX {
            return Err(BadField::new("queue_limit", "0 to 10000000"));
        }
        for (field, timeout_ms) in [
            ("waiting_idle_timeout_ms", self.waiting_idle_timeout_ms),
            ("claim_timeout_ms", self.claim_timeout_ms),
            ("checkout_timeout_ms", self.checkout_timeout_ms),
            ("checkout_max_ms", self.checkout_max_ms),
        ] {
            if !(TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX).contains(&timeout_ms) {
                return Err(BadField::new(field, "100 to 604800000 (7 days)"));
            }
        }
        self.validate_labels()
    }

    fn validate_labels(&self) -> Result<(), BadField> {
        if self.labels.len() > LABELS_MAX {
            return Err(BadField::new("labels", "at most 16"));
        }
        for (name, value) in &self.labels {
            if name.is_empty() || name.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
                return Err(BadField::new(
                    "labels",
                    "names of 1 to 64 bytes, values of at most 64",
                ));
            }
        }
        Ok(())
    }
}

fn required(field: &'static str) -> BadField {
    BadField::new(field, "required")
}

fn change<T: Clone>(value: &mut T, change: &Option<Change<T>>, default: T) {
    match change {
        None => {}
        Some(Change::Set(new)) => *value = new.clone(),
        Some(Change::Unset) => *value = default,
    }
}

fn change_required(
    field: &'static str,
    value: &mut u32,
    change: &Option<Change<u32>>,
) -> Result<(), BadField> {
    match change {
        None => Ok(()),
        Some(Change::Set(new)) => {
            *value = *new;
            Ok(())
        }
        Some(Change::Unset) => Err(required(field)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(seats: u32, queue_limit: u32) -> SettingsPatch {
        SettingsPatch {
            seats: Some(Change::Set(seats)),
            queue_limit: Some(Change::Set(queue_limit)),
            ..SettingsPatch::default()
        }
    }

    #[test]
    fn the_required_two_and_defaults() {
        let made = Settings::create(&patch(7, 15));
        assert_eq!(made, Ok(Settings::new(7, 15)));
        let none = Settings::create(&SettingsPatch::default());
        assert_eq!(none.map_err(|e| e.field), Err("seats"));
        let unset = SettingsPatch {
            queue_limit: Some(Change::Unset),
            ..patch(1, 0)
        };
        assert_eq!(
            Settings::create(&unset).map_err(|e| e.field),
            Err("queue_limit")
        );
        assert_eq!(unset.validate().map_err(|e| e.field), Err("queue_limit"));
    }

    #[test]
    fn the_ends_of_every_range() {
        for (seats, queue_limit, ok) in [
            (0, 0, false),
            (1, 0, true),
            (SEATS_MAX, QUEUE_LIMIT_MAX, true),
            (SEATS_MAX + 1, 0, false),
            (1, QUEUE_LIMIT_MAX + 1, false),
            (u32::MAX, u32::MAX, false),
        ] {
            assert_eq!(patch(seats, queue_limit).validate().is_ok(), ok);
        }
        for (timeout_ms, ok) in [
            (0, false),
            (99, false),
            (100, true),
            (TIMEOUT_MS_MAX, true),
            (TIMEOUT_MS_MAX + 1, false),
            (u64::MAX, false),
        ] {
            let mut p = patch(1, 0);
            p.checkout_max_ms = Some(Change::Set(timeout_ms));
            assert_eq!(p.validate().is_ok(), ok, "{timeout_ms}");
        }
    }

    #[test]
    fn labels_are_few_and_short() {
        let labels = |n: usize, name: usize, value: usize| SettingsPatch {
            labels: Some(Change::Set(
                (0..n)
                    .map(|i| (format!("{i:0name$}"), "v".repeat(value)))
                    .collect(),
            )),
            ..SettingsPatch::default()
        };
        assert!(labels(16, 64, 64).validate().is_ok());
        assert!(labels(17, 4, 4).validate().is_err());
        assert!(labels(1, 65, 1).validate().is_err());
        assert!(labels(1, 1, 65).validate().is_err());
        let empty = [(String::new(), String::new())].into();
        let empty = SettingsPatch {
            labels: Some(Change::Set(empty)),
            ..SettingsPatch::default()
        };
        assert!(empty.validate().is_err());
    }

    #[test]
    fn unset_goes_back_to_the_default() {
        let mut p = patch(3, 4);
        p.claim_timeout_ms = Some(Change::Set(5_000));
        p.token_events = Some(Change::Set(false));
        let Ok(set) = Settings::create(&p) else {
            panic!("valid")
        };
        let back = SettingsPatch {
            claim_timeout_ms: Some(Change::Unset),
            token_events: Some(Change::Unset),
            ..SettingsPatch::default()
        };
        assert_eq!(set.with(&back), Ok(Settings::new(3, 4)));
    }
}
