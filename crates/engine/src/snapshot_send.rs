//! A leader's snapshot on its way to peers that lack entries which the leader has dropped.
//!
//! ```text
//!            raft sends MsgSnapshot              the peer asks for a part
//! (nothing) ───────────────────────► Offered ──────────────────────────► Fetched ─┐ asks again
//!     ▲                                 │ not asked for within OFFER_US      │ ▲──┘
//!     │                                 ▼                                    ▼ no progress in PROGRESS_US,
//!     ├──── raft is told that it failed, and offers the newest one ◄─────────┘ refused, another file, restart
//!     └──── raft has the peer's acknowledgement (or this node leads no more)
//! ```
//!
//! While a peer fetches the file, this node makes no newer one in its place. So it also drops no entries
//! behind it, and the peer can go on from the log.

use std::collections::BTreeMap;

use nowserving_shard::clock::Micros;

use crate::envelope::SnapshotRequest;
use crate::io::Output;
use crate::outbox::NodeCtx;
use crate::shard::Shard;

/// A peer that wants a snapshot asks for its first part within this time.
const OFFER_US: Micros = 2_000_000;
/// A peer that fetches a snapshot asks for new parts at least this often. Also for its last step, between
/// the last part and the acknowledgement.
const PROGRESS_US: Micros = 10_000_000;

/// The snapshots of one shard that peers were told of, by peer.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSends(BTreeMap<u64, Send>);

#[derive(Debug)]
struct Send {
    state: State,
    /// When it came into this state, or got further in it.
    since: Micros,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Offered,
    Fetched {
        /// The largest that it asked for.
        offset: u64,
    },
}

impl SnapshotSends {
    /// Raft sends a peer a message about a snapshot.
    pub fn offered(&mut self, to: u64, now: Micros) {
        let send = Send {
            state: State::Offered,
            since: now,
        };
        self.0.insert(to, send);
    }

    fn asked(&mut self, by: u64, offset: u64, now: Micros) {
        let Some(send) = self.0.get_mut(&by) else {
            return;
        };
        let further = match send.state {
            State::Offered => true,
            State::Fetched { offset: before } => offset > before,
        };
        if further {
            send.state = State::Fetched { offset };
            send.since = now;
        }
    }

    /// Whether a peer is fetching the file, so that it must stay.
    pub fn hold_file(&self) -> bool {
        self.0.values().any(|send| send.state != State::Offered)
    }

    fn failed(&self, now: Micros) -> Vec<u64> {
        let failed = |send: &Send| {
            let limit = match send.state {
                State::Offered => OFFER_US,
                State::Fetched { .. } => PROGRESS_US,
            };
            now.saturating_sub(send.since) >= limit
        };
        let failed = self.0.iter().filter(|(_, send)| failed(send));
        failed.map(|(peer, _)| *peer).collect()
    }
}

impl Shard {
    /// A peer asks for a part of this node's snapshot.
    pub fn snapshot_asked(&mut self, from: u64, request: SnapshotRequest, ctx: &mut NodeCtx) {
        let same = self
            .snapshot_file
            .is_some_and(|file| file.digest[..] == request.digest[..]);
        if request.refused || !same {
            return self.snapshot_send_failed(from);
        }
        self.snapshot_sends.asked(from, request.offset, ctx.now.us);
        ctx.out
            .outputs
            .push(Output::ReadSnapshot { to: from, request });
    }

    /// Ends what raft has seen the end of, and tells raft of what failed.
    pub fn check_snapshot_sends(&mut self, now: Micros) {
        let replica = &self.replica;
        self.snapshot_sends.0.retain(|peer, _| {
            let waits = replica.awaits_install(*peer);
            if !waits && self.leader_state.is_some() {
                count("acknowledged");
            }
            waits
        });
        for peer in self.snapshot_sends.failed(now) {
            self.snapshot_send_failed(peer);
        }
    }

    /// A peer refuses what it was told of, makes no progress, or has been started again.
    pub fn snapshot_send_failed(&mut self, peer: u64) {
        if self.snapshot_sends.0.remove(&peer).is_some() {
            count("failed");
            self.replica.report_snapshot_failed(peer);
            self.dirty = true;
        }
    }
}

fn count(outcome: &'static str) {
    metrics::counter!("nowserving_snapshots_sent_total", "outcome" => outcome).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_while_its_fetching_makes_progress() {
        let mut sends = SnapshotSends::default();
        sends.asked(2, 0, 5);
        assert!(!sends.hold_file(), "nothing was offered");
        sends.offered(2, 10);
        assert!(!sends.hold_file());
        assert!(sends.failed(OFFER_US).is_empty());
        assert_eq!(sends.failed(OFFER_US + 10), [2]);
        sends.asked(2, 0, 20);
        assert!(sends.hold_file());
        sends.asked(2, 7, 30);
        // The same again, and an earlier one, are no progress.
        sends.asked(2, 7, 40);
        sends.asked(2, 0, 50);
        assert!(sends.failed(PROGRESS_US + 29).is_empty());
        assert_eq!(sends.failed(PROGRESS_US + 30), [2]);
    }
}
