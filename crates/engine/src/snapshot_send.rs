//! A leader's snapshot on its way to peers that lack entries which the leader has dropped.
//!
//! ```text
//!            raft sends MsgSnapshot             the peer asks for a part
//! (nothing) ───────────────────────► told ─────────────────────────────► fetches ─┐ asks again
//!     ▲                              ▲ │ ▲                                 │  ▲───┘
//!     │                              └─┘ └─────────────────────────────────┘
//!     │                       nothing from the peer for TELL_AGAIN_US, refused, restarted:
//!     │                       raft is told that it failed, and tells the peer of the newest one
//!     └──── raft has the peer's acknowledgement, or this node leads no more
//! ```
//!
//! While a peer fetches the file and makes progress, this node makes no newer one in its place. So it also
//! drops no entries behind it, and the peer can go on from the log.
//!
//! Telling a peer again costs one message, and it goes on with the same file. Raft sends nothing else
//! to the peer meanwhile, and with another node down nothing commits without it: its acknowledgement, or the
//! message about the snapshot, must not be lost for long.

use std::collections::BTreeMap;

use nowserving_shard::clock::Micros;

use crate::envelope::SnapshotRequest;
use crate::io::Output;
use crate::outbox::NodeCtx;
use crate::shard::Shard;

/// A peer that is silent about a snapshot for this long is told of it again.
const TELL_AGAIN_US: Micros = 1_000_000;
/// The file stays in place while the peer comes further within this time; also for its last step, between the
/// last part and the acknowledgement.
const PROGRESS_US: Micros = 10_000_000;

/// The snapshots of one shard that peers were told of, by peer.
#[derive(Debug, Default)]
pub(crate) struct SnapshotSends(BTreeMap<u64, Send>);

#[derive(Debug)]
struct Send {
    /// The last entry in it.
    index: u64,
    /// When the peer was told of it, or asked for a part.
    active_at: Micros,
    /// The largest offset that the peer asked for, and when first.
    progress: Option<(u64, Micros)>,
}

impl SnapshotSends {
    /// Raft sends a peer a message about a snapshot through `index`.
    pub fn told(&mut self, to: u64, index: u64, now: Micros) {
        let send = self.0.entry(to).or_insert(Send {
            index,
            active_at: now,
            progress: None,
        });
        send.active_at = now;
        if send.index != index {
            (send.index, send.progress) = (index, None);
        }
    }

    fn asked(&mut self, by: u64, offset: u64, now: Micros) {
        let Some(send) = self.0.get_mut(&by) else {
            return;
        };
        send.active_at = now;
        if send.progress.is_none_or(|(before, _)| offset > before) {
            send.progress = Some((offset, now));
        }
    }

    /// Whether a peer is fetching the file, so that it must stay.
    pub fn hold_file(&self, now: Micros) -> bool {
        let mut progress = self.0.values().filter_map(|send| send.progress);
        progress.any(|(_, at)| now < at + PROGRESS_US)
    }

    fn silent(&self, now: Micros) -> Vec<u64> {
        let silent = |send: &Send| now >= send.active_at + TELL_AGAIN_US;
        let silent = self.0.iter().filter(|(_, send)| silent(send));
        silent.map(|(peer, _)| *peer).collect()
    }
}

impl Shard {
    /// A peer asks for a part of this node's snapshot.
    pub fn snapshot_asked(&mut self, from: u64, request: SnapshotRequest, ctx: &mut NodeCtx) {
        let same = self
            .snapshot_file
            .is_some_and(|file| file.digest[..] == request.digest[..]);
        if request.refused || !same {
            return self.tell_of_snapshot_again(from, ctx.now.us);
        }
        self.snapshot_sends.asked(from, request.offset, ctx.now.us);
        ctx.out
            .outputs
            .push(Output::ReadSnapshot { to: from, request });
    }

    /// Ends what raft has seen the end of, and has silent peers told again.
    pub fn check_snapshot_sends(&mut self, now: Micros) {
        let replica = &self.replica;
        self.snapshot_sends.0.retain(|peer, send| {
            let matched = replica.member_matched(*peer);
            if matched.is_some_and(|matched| matched >= send.index) {
                count("acknowledged");
            }
            matched.is_some_and(|matched| matched < send.index)
        });
        for peer in self.snapshot_sends.silent(now) {
            self.tell_of_snapshot_again(peer, now);
        }
    }

    /// A peer refuses a snapshot, asks for another one, is silent, or has been started again.
    pub fn tell_of_snapshot_again(&mut self, peer: u64, now: Micros) {
        if let Some(send) = self.snapshot_sends.0.get_mut(&peer)
            && self.replica.awaits_install(peer)
        {
            count("told_again");
            send.active_at = now;
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
        assert!(!sends.hold_file(5), "nothing was offered");
        sends.told(2, 100, 10);
        assert!(!sends.hold_file(10));
        sends.asked(2, 0, 20);
        sends.asked(2, 7, 30);
        // The same again, and an earlier one, are no progress; nor is being told again.
        sends.asked(2, 7, 40);
        sends.asked(2, 0, 50);
        sends.told(2, 100, 60);
        assert!(sends.hold_file(PROGRESS_US + 29));
        assert!(!sends.hold_file(PROGRESS_US + 30));
        // Another one begins anew.
        sends.told(2, 200, 70);
        assert!(!sends.hold_file(70));
    }

    #[test]
    fn a_silent_peer_is_told_again() {
        let mut sends = SnapshotSends::default();
        sends.told(2, 100, 10);
        assert!(sends.silent(TELL_AGAIN_US + 9).is_empty());
        assert_eq!(sends.silent(TELL_AGAIN_US + 10), [2]);
        sends.asked(2, 0, 20);
        assert!(sends.silent(TELL_AGAIN_US + 19).is_empty());
        sends.told(2, 100, 30);
        assert!(sends.silent(TELL_AGAIN_US + 29).is_empty());
        assert_eq!(sends.silent(TELL_AGAIN_US + 30), [2]);
    }
}
