//! The screen while the demo runs.

use std::fmt::Write as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::bar::bar;

const BAR_WIDTH: usize = 40;
/// Where there is no terminal, a line this often.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Everything that is shown.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// Time since the crowd opened.
    pub elapsed: Duration,
    /// Draws the same show again.
    pub seed: u64,
    /// Shoppers in all.
    pub shoppers: u32,
    /// Numbers handed out.
    pub issued: u64,
    /// Of these, gone.
    pub gone: u64,
    /// Seats of the line.
    pub seats: u32,
    /// Seats held.
    pub held: u32,
    /// Shoppers waiting.
    pub waiting: u64,
    /// The board's `admitted_through` and `next_token`.
    pub pointers: Option<(u64, u64)>,
    /// One per node, in words.
    pub nodes: Vec<String>,
    /// Of the leader that was killed, once it has been made up for.
    pub failover: Option<Duration>,
}

impl Scene {
    /// For a terminal.
    fn board(&self) -> String {
        let mut text = String::new();
        let seconds = self.elapsed.as_secs();
        let (now_serving, next) = self.pointers.unwrap_or((0, 1));
        let mut line = |line: String| {
            let _ = writeln!(text, "  {line}");
        };
        line(format!(
            "{} shoppers, {} seats, seed {}, {seconds} s",
            self.shoppers, self.seats, self.seed
        ));
        line(String::new());
        line(format!(
            "now serving through   {now_serving:>6}       next number {next:>6}"
        ));
        line(format!(
            "seats    {}  {} of {}",
            bar(self.held.into(), self.seats.into(), BAR_WIDTH),
            self.held,
            self.seats
        ));
        line(format!(
            "waiting  {}  {}",
            bar(self.waiting, self.shoppers.into(), BAR_WIDTH),
            self.waiting
        ));
        line(format!(
            "through  {}  {} of {}",
            bar(self.gone, self.shoppers.into(), BAR_WIDTH),
            self.gone,
            self.shoppers
        ));
        line(String::new());
        for node in &self.nodes {
            line(node.clone());
        }
        if let Some(failover) = self.failover {
            line(format!(
                "the next leader took over after {} ms",
                failover.as_millis()
            ));
        }
        text
    }

    /// For a log.
    fn line(&self) -> String {
        format!(
            "{:>3} s: {} of {} came, {} waiting, {} of {} seats held, {} through; {}",
            self.elapsed.as_secs(),
            self.issued,
            self.shoppers,
            self.waiting,
            self.held,
            self.seats,
            self.gone,
            self.nodes.join(", ")
        )
    }
}

/// Where it is shown: stderr, drawn over on a terminal, line by line elsewhere, or not at all.
#[derive(Debug)]
pub struct Screen {
    bar: Option<ProgressBar>,
    next_line: Duration,
}

impl Screen {
    /// `quiet`: nothing is shown.
    pub fn new(quiet: bool) -> anyhow::Result<Screen> {
        let bar = if quiet {
            None
        } else {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
            Some(bar.with_style(ProgressStyle::with_template("{msg}")?))
        };
        Ok(Screen {
            bar,
            next_line: Duration::ZERO,
        })
    }

    /// Shows the scene, if it is time to.
    pub fn show(&mut self, scene: &Scene) {
        let Some(bar) = &self.bar else { return };
        if !bar.is_hidden() {
            bar.set_message(scene.board());
            bar.tick();
        } else if scene.elapsed >= self.next_line {
            self.next_line = scene.elapsed + LINE_INTERVAL;
            eprintln!("{}", scene.line());
        }
    }

    /// Says something that stays.
    pub fn say(&self, text: &str) {
        match &self.bar {
            None => {}
            Some(bar) if bar.is_hidden() => eprintln!("{text}"),
            Some(bar) => bar.println(text),
        }
    }

    /// Takes the board down, for the table.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_names_what_matters() {
        let scene = Scene {
            shoppers: 20,
            seats: 5,
            held: 4,
            waiting: 7,
            nodes: vec!["node 1 leads the line".to_owned()],
            pointers: Some((8, 16)),
            ..Scene::default()
        };
        for text in [scene.board(), scene.line()] {
            assert!(
                text.contains("4 of 5") && text.contains("node 1 leads"),
                "{text}"
            );
        }
    }
}
