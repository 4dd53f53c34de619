//! Progress on stderr.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// On a terminal a bar that is drawn again and again, and taken away at the end. Elsewhere the bar is
/// hidden.
#[derive(Debug)]
pub struct Progress {
    pub bar: ProgressBar,
}

impl Progress {
    /// `template`: what indicatif shows.
    pub fn new(len: Option<u64>, template: &str) -> Progress {
        let target = ProgressDrawTarget::stderr_with_hz(5);
        let mut bar = ProgressBar::with_draw_target(len, target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar = bar.with_style(style);
        }
        Progress { bar }
    }

    /// Prints a line that stays.
    pub fn say(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Prints a line where no bar is drawn, so that the log of a script says what goes on.
pub fn note(text: &str) {
    if ProgressDrawTarget::stderr().is_hidden() {
        eprintln!("{text}");
    }
}
