//! A line rehearsed in virtual time: a simulated crowd against the real `nowserving-line`.
//!
//! Ten thousand shoppers and an hour of their time take seconds. Everything follows from one seed: the
//! same seed gives the same summary, table and page, byte for byte.
//!
//! How data flows: `crowd` draws every shopper of a [`Config`] beforehand. `sim` takes the next event
//! from `timeline` and gives it to that `shopper` or to the `queue`; a shopper's requests and timers,
//! and the queue's answers, become later events. Behind the checkout may be a limiter (`transactions`), or a service
//! that gets slower by its load (`slowed`), which the seats can follow (`follow`); before it a dispatcher that calls
//! (`dispatcher`). The queue is `real` (the line and the duties of its
//! leader, as nodes run them) or `naive` (the seed article's algorithm, for comparison). `tally` counts
//! what happens. `books` in it derives all places from the answers, and never asks a queue for its
//! counters, so that a wrong queue is found out. At the end `tally` and `forecasts` make the [`Summary`]
//! and the rows of a [`Run`]; `words`, `verdict`, `figures` and `html` (with `plots` and `palette`) show
//! them as text and as a page. `limits` is a show of its own: the same requests against each algorithm of rate limits.
//!
//! Pure and synchronous: no I/O, no clock, no threads.

mod books;
mod config;
mod crowd;
mod dice;
mod dispatcher;
mod figures;
mod follow;
mod forecasts;
mod html;
mod limits;
mod naive;
mod palette;
mod plots;
mod queue;
mod real;
mod report;
mod shopper;
mod sim;
mod slowed;
mod tally;
mod text;
mod timeline;
mod transactions;
mod verdict;
mod words;

#[cfg(test)]
mod follow_tests;
#[cfg(test)]
mod pace_tests;
#[cfg(test)]
mod run_tests;
#[cfg(test)]
mod verdict_tests;
#[cfg(test)]
mod wrong_tests;

use nowserving_line::Admission;

pub use nowserving_adapt::{AutoSeats, BadAutoSeats, Target};

pub use config::{
    Arrival, BadConfig, Calls, Config, Crowd, DURATION_MS_MAX, Polls, SHOPPERS_MAX, Service,
    Slowdown,
};
pub use limits::{LimitRow, Picture, limit_pictures, limit_rows};
pub use plots::BadPlot;
pub use report::{FullSummary, LaneSummary, Report, Run, SAMPLE_EVERY_MS, Stages, Summary};
pub use text::{count, duration};

/// How far a rehearsal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub virtual_ms: u64,
    /// Shoppers that have gone home.
    pub gone_home: u64,
    pub shoppers: u64,
}

/// Runs a whole rehearsal. `progress` is called now and then.
///
/// # Errors
/// A field of the configuration is out of its range, or the line can't be made with it.
pub fn run(config: &Config, mut progress: impl FnMut(Progress)) -> Result<Report, BadConfig> {
    config.validate()?;
    let real = sim::run(
        config,
        real::Real::new(&config.settings, config.starts_at_ms, config.seed)?,
        &mut progress,
    );
    // The article's test gives the seat back before its limiter, which then changes nothing, and it has no
    // schedule and nobody who calls.
    let mut unlimited = config.clone();
    unlimited.transaction_rate = None;
    unlimited.calls = None;
    unlimited.auto_seats = None;
    unlimited.settings.admission = Admission::Auto;
    unlimited.settings.schedule.clear();
    let naive = config.compare_naive.then(|| {
        let naive = naive::Naive::new(&config.settings);
        sim::run(&unlimited, naive, &mut progress)
    });
    let fixed = match config.compare_fixed {
        true => Some(fixed(config, &mut progress)?),
        false => None,
    };
    Ok(Report {
        config: config.clone(),
        real,
        naive,
        fixed,
    })
}

/// The same crowd with the seats of the settings.
fn fixed(config: &Config, progress: &mut dyn FnMut(Progress)) -> Result<Run, BadConfig> {
    let mut fixed = config.clone();
    fixed.auto_seats = None;
    let line = real::Real::new(&fixed.settings, fixed.starts_at_ms, fixed.seed)?;
    Ok(sim::run(&fixed, line, progress))
}
