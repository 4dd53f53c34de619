//! The lines on the screen: by pressure or otherwise, all or some.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use nowserving_client::{LineName, LineSummary};

use crate::pace::{self, Detail, Pace};

/// What is known of one line.
#[derive(Debug, Clone)]
pub struct Known {
    pub summary: LineSummary,
    pub detail: Option<Detail>,
    pub pace: Option<Pace>,
}

/// People wait, and nobody is admitted until somebody acts: the line is paused, its quota is used up, nobody calls, or it
/// has no seats. `held_back_by` as in the contract, if it is known. The doctor asks the same.
pub fn is_stuck(line: &LineSummary, held_back_by: Option<&str>) -> bool {
    line.waiting > 0
        && (line.seats == 0
            || line.phase == "paused"
            || matches!(held_back_by, Some("quota" | "called")))
}

/// The column that lines are sorted by; the most pressing first, names from A to Z.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Sort {
    /// Lines that are stuck, then by waiting people per seat.
    #[default]
    Pressure,
    /// People who wait.
    Waiting,
    /// Seats that are held.
    Held,
    /// Entrants a second.
    Entered,
    /// Forecast of a newcomer's wait.
    Eta,
    /// Requests to enter that were refused.
    Refused,
    /// Name of the line.
    Name,
}

impl Sort {
    /// All of them, as they follow each other.
    pub const ALL: [Sort; 7] = [
        Sort::Pressure,
        Sort::Waiting,
        Sort::Held,
        Sort::Entered,
        Sort::Eta,
        Sort::Refused,
        Sort::Name,
    ];

    /// The next one, or the one before, round and round.
    pub fn turned(self, by: isize) -> Sort {
        let all = Sort::ALL;
        let at = all.iter().position(|it| *it == self).unwrap_or(0);
        let next = at.wrapping_add_signed(by).wrapping_add(all.len()) % all.len();
        all[next]
    }

    pub fn name(self) -> &'static str {
        match self {
            Sort::Pressure => "pressure",
            Sort::Waiting => "waiting",
            Sort::Held => "held",
            Sort::Entered => "entered",
            Sort::Eta => "eta",
            Sort::Refused => "refused",
            Sort::Name => "name",
        }
    }
}

impl Known {
    /// People who wait, per seat: how often all seats must change hands until the last of them is admitted. Of a line
    /// without seats, the people who wait.
    pub fn pressure(&self) -> f64 {
        self.summary.waiting as f64 / f64::from(self.summary.seats.max(1))
    }

    pub fn is_stuck(&self) -> bool {
        is_stuck(&self.summary, self.held_back_by())
    }

    /// As in `held_back_by` of the contract, if it is known.
    pub fn held_back_by(&self) -> Option<&str> {
        let detail = self.detail.as_ref()?;
        Some(detail.shown.held_back_by.by.as_ref())
    }

    /// `shadow` or `off`, if the line is known to hold nobody back.
    pub fn open_gate(&self) -> Option<&str> {
        let gate = self.detail.as_ref()?.shown.settings.gate.as_str();
        matches!(gate, "shadow" | "off").then_some(gate)
    }

    pub fn held(&self) -> u64 {
        self.summary.admitted + self.summary.in_checkout
    }

    pub fn refused(&self) -> Option<u64> {
        Some(pace::refused(&self.detail.as_ref()?.shown.counts))
    }

    pub fn newcomer_eta_ms(&self) -> Option<u64> {
        self.detail.as_ref()?.newcomer_eta_ms
    }

    /// The share of the queue's limit that is taken; 1 and more: newcomers are refused.
    pub fn full(&self) -> f64 {
        let most = u64::from(self.summary.seats) + u64::from(self.summary.queue_limit);
        (self.summary.waiting + self.held()) as f64 / most.max(1) as f64
    }

    fn compare(&self, other: &Known, by: Sort) -> Ordering {
        let entered = |known: &Known| known.pace.map_or(-1.0, |pace| pace.entered);
        let order = match by {
            Sort::Pressure => {
                let stuck = other.is_stuck().cmp(&self.is_stuck());
                stuck.then_with(|| other.pressure().total_cmp(&self.pressure()))
            }
            Sort::Waiting => other.summary.waiting.cmp(&self.summary.waiting),
            Sort::Held => other.held().cmp(&self.held()),
            Sort::Entered => entered(other).total_cmp(&entered(self)),
            Sort::Eta => other.newcomer_eta_ms().cmp(&self.newcomer_eta_ms()),
            Sort::Refused => other.refused().cmp(&self.refused()),
            Sort::Name => Ordering::Equal,
        };
        order.then_with(|| self.summary.line.cmp(&other.summary.line))
    }
}

/// All lines that the cluster has listed.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    known: BTreeMap<LineName, Known>,
    /// The cluster has more than are listed.
    pub more: bool,
}

impl Lines {
    /// Takes a new list: lines that it lacks are gone. Details of others are kept.
    pub fn take(&mut self, list: Vec<LineSummary>, more: bool, details: Vec<Detail>) {
        let mut before = std::mem::take(&mut self.known);
        for summary in list {
            let old = before.remove(&summary.line);
            // A line that was deleted and created again begins anew.
            let old = old.filter(|old| old.summary.incarnation == summary.incarnation);
            let (detail, pace) = old.map_or((None, None), |old| (old.detail, old.pace));
            let known = Known {
                summary,
                detail,
                pace,
            };
            self.known.insert(known.summary.line.clone(), known);
        }
        for detail in details {
            if let Some(known) = self.known.get_mut(&detail.shown.line) {
                let before = known.detail.as_ref();
                known.pace = before.and_then(|before| Pace::between(before, &detail));
                known.detail = Some(detail);
            }
        }
        self.more = more;
    }

    pub fn get(&self, name: &LineName) -> Option<&Known> {
        self.known.get(name)
    }

    pub fn all(&self) -> impl Iterator<Item = &Known> {
        self.known.values()
    }

    /// Those that fit the filter, in this order.
    pub fn sorted(&self, by: Sort, reverse: bool, filter: &str) -> Vec<&Known> {
        let mut lines: Vec<&Known> = self.all().filter(|it| fits(it, filter)).collect();
        lines.sort_by(|a, b| a.compare(b, by));
        if reverse {
            lines.reverse();
        }
        lines
    }
}

/// Every word of the filter fits: `label=value` is a label and the beginning of its value; another word is in the line's
/// name, its phase or the value of a label. Upper and lower case are the same.
fn fits(known: &Known, filter: &str) -> bool {
    filter.split_whitespace().all(|word| {
        let word = word.to_lowercase();
        let labels = &known.summary.labels;
        let mut labels = labels
            .iter()
            .map(|(name, value)| (name.to_lowercase(), value.to_lowercase()));
        match word.split_once('=') {
            Some((name, value)) => labels.any(|it| it.0 == name && it.1.starts_with(value)),
            None => {
                let name = known.summary.line.as_str().to_lowercase();
                name.contains(&word)
                    || known.summary.phase == word
                    || labels.any(|it| it.1.contains(&word))
            }
        }
    })
}
