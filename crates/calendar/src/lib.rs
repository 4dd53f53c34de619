//! When days, weeks, months and years begin in a time zone.
//!
//! Quotas that are renewed daily ([`next_daily`]) and rate limits by the calendar ([`Zone::window`]) ask here. The
//! database of time zones is the one that this build brings along: no file is read. Builds of different releases may
//! know zones differently; what must be the same on all nodes is computed by one of them, and replicated.

mod daily;
mod window;
mod zone;

pub use daily::next_daily;
pub use window::{CALENDAR_UNTIL_US, Span, Window};
pub use zone::{ZONE_BYTES_MAX, Zone, is_zone};
