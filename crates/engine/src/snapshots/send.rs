//! A leader's snapshot on its way to peers that lack entries which the leader has dropped.
//!
//! ```text
//!            raft sends MsgSnapshot             the peer asks for a part
//! (nothing) ───────────────────────► offered ──────────────────────────► fetches ─┐ asks again
//!     ▲                              ▲ │ ▲                                 │  │ ▲──┘
//!     │                              └─┘ └─────────────────────────────────┘  │
//!     │                       nothing from the peer for OFFER_AGAIN_US,       │ raft has the
//!     │                       refused, restarted: raft is told that it        │ acknowledgement
//!     │                       failed, and offers the newest one               ▼
//!     └────────────────────────────────────────────────────────────────── catches up
//!       the peer lacks few entries or comes no further; or this node leads no more
//! ```
//!
//! While a peer comes further, this node makes no newer file in place of the one that the peer fetches or has. So
//! it also drops no entries behind it, and the peer can go on from the log. That keeps at most twice
//! `log_bytes_max` of log (`own.rs`).
//!
//! Offering again costs one message, and the peer goes on with the same file. Raft sends nothing else
//! to the peer meanwhile, and with another node down nothing commits without it: its acknowledgement, or the
//! message about the snapshot, must not be lost for long.

use std::collections::BTreeMap;

use nowserving_replica::Replica;
use nowserving_shard::clock::Micros;

/// A node lacking more of a shard's log has not caught up. It gets no leadership, either: the hand-over would keep
/// writes waiting until it has.
pub(crate) const LAG_MAX: u64 = 64;

/// A peer that is silent about a snapshot for this long is offered it again.
const OFFER_AGAIN_US: Micros = 1_000_000;
/// The file stays in place while the peer comes further within this time.
const PROGRESS_US: Micros = 10_000_000;
/// So long if the peer has all of the file, which it must verify and decode.
const INSTALL_US: Micros = 60_000_000;

/// The snapshots of one shard that peers were offered, by peer.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSends(BTreeMap<u64, Transfer>);

#[derive(Debug)]
struct Transfer {
    /// The last entry in it.
    index: u64,
    /// When the peer was offered it, or asked for a part.
    active_at: Micros,
    /// How far the peer has come, and when it came there.
    progress: Option<(Progress, Micros)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// It was sent the file through this offset.
    Sent(u64),
    /// It was sent the last part, and installs the file.
    Whole,
    /// It has installed the file, and has the log through this index.
    Matched(u64),
}

impl Transfer {
    fn come_to(&mut self, new: Progress, now: Micros) {
        if self.progress.is_none_or(|(before, _)| new > before) {
            self.progress = Some((new, now));
        }
    }

    /// Whether the peer has come further lately, so that the file must stay.
    fn holds_file(&self, now: Micros) -> bool {
        self.progress.is_some_and(|(progress, at)| {
            let patience = match progress {
                Progress::Whole => INSTALL_US,
                Progress::Sent(_) | Progress::Matched(_) => PROGRESS_US,
            };
            now < at + patience
        })
    }

    fn is_installed(&self) -> bool {
        matches!(self.progress, Some((Progress::Matched(_), _)))
    }
}

impl SnapshotSends {
    /// Raft sends a peer a message about a snapshot through `index`.
    pub fn offered(&mut self, to: u64, index: u64, now: Micros) {
        let transfer = self.0.entry(to).or_insert(Transfer {
            index,
            active_at: now,
            progress: None,
        });
        transfer.active_at = now;
        if transfer.index != index {
            (transfer.index, transfer.progress) = (index, None);
        }
    }

    /// A peer asks for a part of the file.
    pub fn asked(&mut self, by: u64, now: Micros) {
        if let Some(transfer) = self.0.get_mut(&by) {
            transfer.active_at = now;
        }
    }

    /// A part that ends at `through` goes to a peer, of a file of so many bytes.
    pub fn sent(&mut self, to: u64, through: u64, bytes: u64, now: Micros) {
        let progress = match through < bytes {
            true => Progress::Sent(through),
            false => Progress::Whole,
        };
        self.come_to(to, progress, now);
    }

    fn come_to(&mut self, peer: u64, progress: Progress, now: Micros) {
        if let Some(transfer) = self.0.get_mut(&peer) {
            transfer.come_to(progress, now);
        }
    }

    /// Whether a peer fetches the file or catches up behind it, so that it must stay.
    pub fn hold_file(&self, now: Micros) -> bool {
        self.0.values().any(|transfer| transfer.holds_file(now))
    }

    /// Ends what peers no longer need, and offers it again to those that are silent. Returns whether raft was told.
    pub fn check(&mut self, replica: &mut Replica, now: Micros) -> bool {
        let matched = |peer| replica.progress_of(peer).map(|it| it.matched);
        count("acknowledged", self.end(replica.last_index(), matched, now));
        let silent = self.silent(now).into_iter();
        silent.fold(false, |told, peer| {
            self.offer_again(peer, replica, now) | told
        })
    }

    /// A peer refuses a snapshot, asks for another one, is silent, or has been started again. Returns whether raft was
    /// told.
    pub fn offer_again(&mut self, peer: u64, replica: &mut Replica, now: Micros) -> bool {
        let transfer = self.0.get_mut(&peer);
        let Some(transfer) = transfer.filter(|_| replica.awaits_install(peer)) else {
            return false;
        };
        count("offered_again", 1);
        transfer.active_at = now;
        replica.report_snapshot_failed(peer);
        true
    }

    /// Ends what a peer no longer needs, given the last index of the log and what of it each member has. Returns how
    /// many have installed it just now.
    fn end(&mut self, last: u64, matched: impl Fn(u64) -> Option<u64>, now: Micros) -> u64 {
        let mut installed = 0;
        self.0.retain(|peer, transfer| {
            let Some(matched) = matched(*peer) else {
                return false;
            };
            if matched < transfer.index {
                return true;
            }
            installed += u64::from(!transfer.is_installed());
            transfer.come_to(Progress::Matched(matched), now);
            last.saturating_sub(matched) > LAG_MAX && transfer.holds_file(now)
        });
        installed
    }

    /// How many of its `bytes` a peer was sent of the snapshot through `index`, until it has installed it.
    pub fn sent_of(&self, peer: u64, index: u64, bytes: u64) -> Option<u64> {
        let transfer = self.0.get(&peer).filter(|it| it.index == index)?;
        match transfer.progress {
            None => Some(0),
            Some((Progress::Sent(through), _)) => Some(through),
            Some((Progress::Whole, _)) => Some(bytes),
            Some((Progress::Matched(_), _)) => None,
        }
    }

    fn silent(&self, now: Micros) -> Vec<u64> {
        let silent = |it: &Transfer| now >= it.active_at + OFFER_AGAIN_US && !it.is_installed();
        let silent = self.0.iter().filter(|(_, transfer)| silent(transfer));
        silent.map(|(peer, _)| *peer).collect()
    }
}

const OUTCOMES: [&str; 2] = ["acknowledged", "offered_again"];

pub fn begin_counters() {
    for outcome in OUTCOMES {
        count(outcome, 0);
    }
}

fn count(outcome: &'static str, by: u64) {
    nowserving_bite::require(OUTCOMES.contains(&outcome), outcome);
    metrics::counter!("nowserving_snapshots_sent_total", "outcome" => outcome).increment(by);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_while_its_fetching_makes_progress() {
        let mut sends = SnapshotSends::default();
        sends.come_to(2, Progress::Sent(1), 5);
        assert!(!sends.hold_file(5), "nothing was offered");
        sends.offered(2, 100, 10);
        assert!(!sends.hold_file(10));
        sends.come_to(2, Progress::Sent(1), 20);
        sends.come_to(2, Progress::Sent(7), 30);
        // The same again, and an earlier one, are no progress; nor is being offered it again.
        sends.come_to(2, Progress::Sent(7), 40);
        sends.come_to(2, Progress::Sent(1), 50);
        sends.offered(2, 100, 60);
        assert!(sends.hold_file(PROGRESS_US + 29));
        assert!(!sends.hold_file(PROGRESS_US + 30));
        sends.come_to(2, Progress::Whole, 70);
        assert!(sends.hold_file(INSTALL_US + 69), "it is being verified");
        // Another one begins anew.
        sends.offered(2, 200, 80);
        assert!(!sends.hold_file(80));
    }

    #[test]
    fn a_file_is_held_until_its_receiver_has_caught_up() {
        let mut sends = SnapshotSends::default();
        sends.offered(2, 100, 0);
        sends.come_to(2, Progress::Whole, 0);
        assert_eq!(sends.end(500, |_| Some(99), 10), 0);
        assert_eq!(sends.end(500, |_| Some(100), 20), 1);
        assert!(sends.hold_file(20));
        assert_eq!(sends.end(900, |_| Some(700), PROGRESS_US), 0);
        assert!(sends.hold_file(2 * PROGRESS_US - 1));
        // Nothing came since.
        sends.end(999, |_| Some(700), 2 * PROGRESS_US);
        assert!(!sends.hold_file(2 * PROGRESS_US));
        assert!(sends.0.is_empty());
        // Or it lacks few entries.
        sends.offered(3, 100, 0);
        sends.end(164, |_| Some(100), 1);
        assert!(sends.0.is_empty());
    }

    #[test]
    fn a_silent_peer_is_offered_it_again() {
        let mut sends = SnapshotSends::default();
        sends.offered(2, 100, 10);
        assert!(sends.silent(OFFER_AGAIN_US + 9).is_empty());
        assert_eq!(sends.silent(OFFER_AGAIN_US + 10), [2]);
        sends.asked(2, 20);
        assert!(sends.silent(OFFER_AGAIN_US + 19).is_empty());
        sends.offered(2, 100, 30);
        assert!(sends.silent(OFFER_AGAIN_US + 29).is_empty());
        assert_eq!(sends.silent(OFFER_AGAIN_US + 30), [2]);
        sends.end(500, |_| Some(100), 40);
        assert!(sends.silent(3 * OFFER_AGAIN_US).is_empty(), "it has it");
    }
}
