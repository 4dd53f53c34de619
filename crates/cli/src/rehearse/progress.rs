//! How far a rehearsal is, on a terminal.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter runs need no progress.
const QUIET_FOR: Duration = Duration::from_secs(2);

/// A bar on stderr: one line that is drawn again and again, and taken away at the end. Nothing where
/// stderr is no terminal: in a log or a pipe each step would be a line.
#[derive(Debug)]
pub struct Progress {
    begun: Instant,
    bar: Option<ProgressBar>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            bar: None,
        }
    }
}

impl Progress {
    /// Shows how far it is.
    pub fn tell(&mut self, now: nowserving_rehearse::Progress) {
        if self.begun.elapsed() < QUIET_FOR {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| bar(now.shoppers));
        bar.set_position(now.gone_home);
        let minutes = now.virtual_ms / 60_000;
        bar.set_message(format!("{minutes} min of virtual time"));
    }

    /// It is done.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(shoppers: u64) -> ProgressBar {
    let target = ProgressDrawTarget::stderr_with_hz(5);
    let bar = ProgressBar::with_draw_target(Some(shoppers), target);
    match ProgressStyle::with_template("{wide_bar} {pos}/{len} shoppers  {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
