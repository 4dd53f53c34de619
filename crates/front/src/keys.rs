//! What a node derives from the cluster's keys.

use nowserving_engine::envelope::{FrameKey, FrameKeys};
use nowserving_pass::{PassKey, PassKeys};
use nowserving_protocol::keys::{ClusterKey, KeyPrint, KeyRing};
use nowserving_protocol::ticket::TicketKeys;

use crate::cluster::link::LinkKeys;
use crate::cluster::peers::PeerKeys;

/// All that is derived from the keys in use.
#[derive(Debug)]
pub struct InUse {
    /// The keys that others are derived from, too.
    pub ring: KeyRing,
    pub tickets: TicketKeys,
    pub passes: PassKeys,
    pub frames: FrameKeys,
    /// Of the messages between a cluster and a node that asks to be added, or founds it.
    pub joining: FrameKeys,
    /// Of what opens a direct link, and of the answer.
    pub links: LinkKeys,
    /// The names of the keys, whether they are still accepted or not.
    pub prints: Vec<KeyPrint>,
    /// When the other key is accepted no more.
    until_ms: Option<u64>,
}

impl InUse {
    /// Of these keys, at this time.
    #[must_use]
    pub fn new(ring: KeyRing, now_ms: u64) -> InUse {
        let (current, other) = (ring.current(), ring.other(now_ms));
        let keys = |of: fn(&ClusterKey) -> FrameKey| FrameKeys::new(of(current), other.map(of));
        InUse {
            tickets: ring.ticket_keys(now_ms),
            passes: PassKeys {
                current: PassKey::of(current),
                other: other.map(PassKey::of),
            },
            frames: keys(FrameKey::of),
            joining: keys(FrameKey::for_joining),
            links: LinkKeys {
                hellos: keys(FrameKey::for_links),
                answers: keys(FrameKey::for_link_answers),
            },
            prints: ring.each().map(ClusterKey::print).collect(),
            until_ms: ring.other_until_ms().filter(|until| now_ms < *until),
            ring,
        }
    }

    /// Whether no key of them has ended since.
    #[must_use]
    pub fn is_current(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until| now_ms < until)
    }

    /// What seals and opens frames, and names the keys in them.
    pub fn of_frames(&self) -> PeerKeys<'_> {
        PeerKeys {
            frames: &self.frames,
            in_force: self.ring.current().id(),
            prints: &self.prints,
        }
    }

    /// The keys of a node that asks something of a cluster whose key in force it may not know yet.
    #[must_use]
    pub fn asking(&self) -> FrameKeys {
        let mut keys = self.ring.each().map(FrameKey::for_joining);
        let current = keys.next();
        let current = current.unwrap_or_else(|| FrameKey::for_joining(self.ring.current()));
        FrameKeys::new(current, keys.next())
    }
}
