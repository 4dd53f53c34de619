//! How the rate limits' algorithms let traffic through: the same requests against each of them, in virtual time.
//!
//! `traffic` sends the requests through a [`Counter`](nowserving_limit::Counter), which is the code that nodes run, and
//! counts what it let through; `pictures` draws that. Nothing is random: the same build draws the same bytes.

mod pictures;
mod traffic;

pub use pictures::{Picture, limit_pictures};
pub use traffic::{LimitRow, limit_rows};

#[cfg(test)]
mod tests;
