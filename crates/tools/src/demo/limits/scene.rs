//! The screen while the show of rate limits runs.

use super::book::{COLUMN, Pages};
use super::plan::{CLIENTS, EXACT, PER_SECOND, Shown};
use crate::demo::scene::Shown as OnScreen;

/// Columns of a plot.
const WIDTH: usize = 36;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Requests in a column that fill it: those of a burst, as it is asked for.
const FULL: u32 = 64;

/// Everything that is shown.
#[derive(Debug)]
pub struct Scene {
    pub pages: Pages,
    pub at_ms: u64,
    /// One per node, in words.
    pub nodes: Vec<String>,
}

impl Scene {
    /// What the crash did, once that is known.
    pub fn crash(&self) -> Vec<String> {
        let failover = self.pages.failover.map(|failover| {
            format!(
                "the next leader answered {} ms after the kill",
                failover.as_millis()
            )
        });
        let forgotten = self
            .pages
            .forgotten()
            .map(|forgotten| match forgotten.hits {
                0 => "it had forgotten nothing".to_owned(),
                hits => format!(
                    "it had forgotten {hits} hits of one counter: those of {} ms",
                    forgotten.within.as_millis()
                ),
            });
        failover.into_iter().chain(forgotten).collect()
    }
}

impl OnScreen for Scene {
    fn board(&self) -> String {
        let column_ms = COLUMN.as_millis();
        let mut lines = vec![
            format!(
                "{CLIENTS} clients share limits of {PER_SECOND} a second, {} s",
                self.seconds()
            ),
            format!(
                "a column: {column_ms} ms, the newest at the right; above: passed, below: refused"
            ),
            String::new(),
        ];
        // Those that leaking buckets let go on later are drawn when they do.
        let now = (u128::from(self.at_ms) / column_ms) as usize;
        for (shown, track) in Shown::ALL.into_iter().zip(&self.pages.tracks) {
            let name = match shown {
                Shown::Counted => continue,
                Shown::Exact => format!("exact, {EXACT} in all"),
                Shown::Of(algorithm) => algorithm.name().to_owned(),
            };
            let (above, below) = (plot(&track.went_on, now), plot(&track.turned_back, now));
            lines.push(format!("{name:22} {above} {:>6} passed", track.allowed));
            lines.push(format!("{:22} {below} {:>6} refused", "", track.refused));
        }
        lines.push(String::new());
        lines.extend(self.nodes.iter().cloned());
        lines.extend(self.crash());
        lines.iter().map(|line| format!("  {line}\n")).collect()
    }

    fn line(&self) -> String {
        let tracks = Shown::ALL.into_iter().zip(&self.pages.tracks);
        let tracks = tracks.filter(|(shown, _)| *shown != Shown::Counted);
        let words = tracks.map(|(shown, track)| {
            let (name, allowed, asked) = (shown.name(), track.allowed, track.asked);
            format!("{name} {allowed} of {asked}")
        });
        let words: Vec<String> = words.collect();
        format!(
            "{:>3} s: {}; {}",
            self.seconds(),
            words.join(", "),
            self.nodes.join(", ")
        )
    }

    fn seconds(&self) -> u64 {
        self.at_ms / 1_000
    }
}

/// The columns before the present one, which is not full yet.
fn plot(columns: &[u32], now: usize) -> String {
    let column = |nth: usize| nth.checked_sub(WIDTH).and_then(|nth| columns.get(nth));
    let level = |count: u32| match count {
        0 => 0,
        count => (count * 8).div_ceil(FULL).min(8) as usize,
    };
    let columns = (now..now + WIDTH).map(|nth| level(column(nth).copied().unwrap_or(0)));
    columns.map(|level| LEVELS[level]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::limits::book::Book;

    #[test]
    fn a_plot_ends_with_the_last_full_column() {
        assert_eq!(plot(&[], 0), " ".repeat(WIDTH));
        let text = plot(&[1, 64, 900, 7], 3);
        assert_eq!(text.chars().count(), WIDTH);
        assert!(text.ends_with(" ▁██"), "{text}");
    }

    #[test]
    fn a_scene_fits_a_small_terminal() {
        let scene = Scene {
            pages: Book::new().read(),
            at_ms: 12_345,
            nodes: vec!["node 1 leads the counters' shard".to_owned(); 3],
        };
        let board = scene.board();
        assert!(board.lines().count() <= 22, "{board}");
        assert!(
            board.lines().all(|line| line.chars().count() <= 80),
            "{board}"
        );
        for shown in Shown::ALL
            .into_iter()
            .filter(|shown| *shown != Shown::Counted)
        {
            assert!(board.contains(shown.name()) && scene.line().contains(shown.name()));
        }
    }
}
