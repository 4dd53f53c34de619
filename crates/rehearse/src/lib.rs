//! A line rehearsed in virtual time: a simulated crowd against the real `nowserving-line`.
//!
//! Ten thousand shoppers and an hour of their time take seconds, and everything follows from one
//! seed: the same seed gives the same summary, table and report, byte for byte.
//!
//! [`run`] lets the crowd of a [`Config`] come, wait (asking again or watching), claim, check out
//! or give up, each message taking its time. The line under them is the state machine that nodes
//! run, with a leader that recycles and does jobs as a node's does. On the same crowd the seed
//! article's algorithm can be run beside it, for comparison.
//!
//! Pure and synchronous: no I/O, no clock, no threads.

mod books;
mod config;
mod crowd;
mod dice;
mod figures;
mod forecasts;
mod html;
mod naive;
mod palette;
mod plots;
mod queue;
mod real;
mod report;
mod shopper;
mod sim;
mod tally;
mod text;
mod timeline;
mod verdict;
mod words;

#[cfg(test)]
mod pace_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod verdict_tests;
#[cfg(test)]
mod wrong_tests;

pub use config::{
    Arrival, BadConfig, Config, Crowd, DURATION_MS_MAX, Polls, SHOPPERS_MAX, Service,
};
pub use plots::BadPlot;
pub use report::{FullSummary, LaneSummary, Report, Run, SAMPLE_EVERY_MS, Summary};
pub use text::{count, duration};

/// How far a rehearsal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time passed.
    pub virtual_ms: u64,
    /// Shoppers that have gone home.
    pub gone_home: u64,
    /// Shoppers in all.
    pub shoppers: u64,
}

/// Runs a whole rehearsal. `progress` is called now and then.
///
/// # Errors
/// A field of the configuration is out of its range, or the line can't be made with it.
pub fn run(config: &Config, mut progress: impl FnMut(Progress)) -> Result<Report, BadConfig> {
    config.validate()?;
    let real = sim::run(config, real::Real::new(&config.settings)?, &mut progress);
    let naive = config
        .compare_naive
        .then(|| sim::run(config, naive::Naive::new(&config.settings), &mut progress));
    Ok(Report {
        config: config.clone(),
        real,
        naive,
    })
}
