//! Progress on stderr while it runs.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::load::Sample;
use super::report::grouped;

/// A bar on a terminal, lines elsewhere.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For this many cells over all rounds.
    ///
    /// # Errors
    /// Never: the bar's template is right.
    pub fn new(cells: usize) -> anyhow::Result<Progress> {
        let bar = ProgressBar::with_draw_target(
            u64::try_from(cells).ok(),
            ProgressDrawTarget::stderr_with_hz(5),
        );
        let style = ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}  {eta} left")?;
        Ok(Progress {
            bar: bar.with_style(style),
        })
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// A cell is measured now.
    pub fn begin(&self, cell: &str) {
        self.bar.set_message(cell.to_owned());
        self.bar.tick();
    }

    /// It has been.
    pub fn done(&self, cell: &str, sample: &Sample) {
        self.bar.inc(1);
        self.say(&format!("{cell}: {}/s", grouped(sample.per_second)));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
