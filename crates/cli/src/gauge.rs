//! A line's seats and its queue as bars, on the screens of `watch` and `top`.

use nowserving_client::BoardReply;
use nowserving_terminal::bar::bar;

/// How many of the seats are held, or of the places taken.
pub struct Gauge {
    label: &'static str,
    part: u64,
    whole: u64,
}

impl Gauge {
    /// Of the seats.
    pub fn seats(board: &BoardReply) -> Gauge {
        Gauge {
            label: "seats",
            part: board.admitted + board.in_checkout,
            whole: board.seats.into(),
        }
    }

    /// Of the queue; without a known limit it is full.
    pub fn waiting(board: &BoardReply, limit: Option<u32>) -> Gauge {
        let part = waiting(board);
        Gauge {
            label: "waiting",
            part,
            whole: limit.map_or(part, u64::from),
        }
    }

    /// As wide for each.
    pub fn label(&self) -> String {
        format!("{:<9}", self.label)
    }

    pub fn bar(&self, width: usize) -> String {
        bar(self.part, self.whole, width)
    }

    /// The numbers beside the bar.
    pub fn words(&self) -> String {
        format!("  {} of {}", self.part, self.whole)
    }
}

/// How many wait in all lanes.
pub fn waiting(board: &BoardReply) -> u64 {
    board.lanes.iter().map(|lane| lane.waiting).sum()
}
