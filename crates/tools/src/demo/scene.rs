//! The screen while the demo runs.

use crate::crowd::report::Report;
use nowserving_terminal::bar::bar;
use nowserving_terminal::progress::Progress;

const BAR_WIDTH: usize = 40;
/// Where there is no terminal, a line this often.
const LINE_EVERY_S: u64 = 5;

/// Everything that is shown.
#[derive(Debug, Clone, Default)]
pub struct Scene {
    /// Draws the same show again.
    pub seed: u64,
    /// The crowd's counts so far.
    pub report: Report,
    /// The line's, by its newest board: given or in checkout.
    pub held: u64,
    /// As the shoppers know it.
    pub in_checkout: u32,
    pub waiting: u64,
    /// The board's `admitted_through` and `next_token`.
    pub pointers: Option<(u64, u64)>,
    /// One per node, in words.
    pub nodes: Vec<String>,
    /// One of them leads.
    pub is_led: bool,
}

/// What a screen can show.
pub trait Shown {
    /// For a terminal.
    fn board(&self) -> String;
    /// For a log, in one line.
    fn line(&self) -> String;
    /// Since the show began.
    fn seconds(&self) -> u64;
}

impl Shown for Scene {
    fn board(&self) -> String {
        let (shoppers, seats) = (self.report.shoppers, self.report.seats);
        let (held, waiting, gone) = (self.held, self.waiting, self.gone());
        let (now_serving, next) = self.pointers.unwrap_or((0, 1));
        let blocks = |part, whole| bar(part, whole, BAR_WIDTH);
        let mut lines = vec![
            format!(
                "{shoppers} shoppers, {seats} seats, seed {}, {} s",
                self.seed,
                self.seconds()
            ),
            String::new(),
            format!("now serving through   {now_serving:>6}       next number {next:>6}"),
            format!(
                "seats    {}  {held} of {seats}, {} in checkout",
                blocks(held, seats.into()),
                self.in_checkout
            ),
            format!("waiting  {}  {waiting}", blocks(waiting, shoppers.into())),
            format!(
                "through  {}  {gone} of {shoppers}",
                blocks(gone, shoppers.into())
            ),
            String::new(),
        ];
        lines.extend(self.nodes.iter().cloned());
        // Once the next leader is known by name, too.
        let failover = self.report.failover_ms.filter(|_| self.is_led);
        lines.extend(failover.map(|ms| format!("the next leader took over after {ms} ms")));
        lines.iter().map(|line| format!("  {line}\n")).collect()
    }

    fn line(&self) -> String {
        format!(
            "{:>3} s: {} of {} came, {} waiting, {} of {} seats held, {} through; {}",
            self.seconds(),
            self.report.issued,
            self.report.shoppers,
            self.waiting,
            self.held,
            self.report.seats,
            self.gone(),
            self.nodes.join(", ")
        )
    }

    fn seconds(&self) -> u64 {
        self.report.duration_ms / 1_000
    }
}

impl Scene {
    fn gone(&self) -> u64 {
        self.report.gone.values().sum()
    }
}

/// Where it is shown: stderr, drawn over on a terminal, line by line elsewhere, or not at all.
#[derive(Debug)]
pub struct Screen {
    progress: Option<Progress>,
    next_line_s: u64,
}

impl Screen {
    /// `quiet`: nothing is shown.
    pub fn new(quiet: bool) -> Screen {
        Screen {
            progress: (!quiet).then(|| Progress::new(None, "{msg}")),
            next_line_s: 0,
        }
    }

    /// Shows the scene, if it is time to.
    pub fn show(&mut self, scene: &impl Shown) {
        let Some(Progress { bar }) = &self.progress else {
            return;
        };
        if !bar.is_hidden() {
            bar.set_message(scene.board());
            bar.tick();
        } else if scene.seconds() >= self.next_line_s {
            self.next_line_s = scene.seconds() + LINE_EVERY_S;
            eprintln!("{}", scene.line());
        }
    }

    /// Prints a line that stays.
    pub fn say(&self, text: &str) {
        if let Some(progress) = &self.progress {
            progress.say(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_names_what_matters() {
        let scene = Scene {
            report: Report {
                shoppers: 20,
                seats: 5,
                ..Report::default()
            },
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
