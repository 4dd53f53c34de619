//! Positions in a lane at which a token event says how far a waiting token has come.

use super::BadField;

/// How many positions can be named.
pub const POSITION_EVENTS_MAX: usize = 8;
/// The largest position; the smallest is 1.
pub const POSITION_EVENT_MAX: u32 = 10_000_000;

const FIELD: &str = "position_events";

pub(super) fn validate(positions: &[u32]) -> Result<(), BadField> {
    if positions.len() > POSITION_EVENTS_MAX {
        let limit = format!("at most {POSITION_EVENTS_MAX} positions");
        return Err(BadField::new(FIELD, limit));
    }
    let in_range = |position: &u32| (1..=POSITION_EVENT_MAX).contains(position);
    if let Some(place) = positions.iter().position(|it| !in_range(it)) {
        let limit = format!("1 to {POSITION_EVENT_MAX}");
        return Err(BadField::new(format!("{FIELD}[{place}]"), limit));
    }
    if !positions.is_sorted_by(|a, b| a > b) {
        let limit = "different positions, the largest first";
        return Err(BadField::new(FIELD, limit));
    }
    Ok(())
}
