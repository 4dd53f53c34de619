//! One node that is not well after everything else was healed: the others must go on without it.

use crate::disk::FIRST_NODES;
use crate::nats::NodeId;
use crate::random::Random;
use crate::timeline::Time;

/// How long a sync takes on the disk of [`Ill::SlowDisk`].
pub const SLOW_SYNC_US: Time = 2_000_000;

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ill {
    /// It stays away for good.
    Gone,
    /// It loses power again and again, for a while.
    Restarts,
    /// Its disk is slow for a while.
    SlowDisk,
    /// Its disk is full for a while, from one write to the next.
    FullDisk,
}

impl Ill {
    /// Which node is ill in a run, if one is.
    pub fn draw(random: &mut Random) -> Option<(NodeId, Ill)> {
        let ill = match random.below(8) {
            0 | 1 => Ill::Gone,
            2 => Ill::Restarts,
            3 => Ill::SlowDisk,
            4 => Ill::FullDisk,
            _ => return None,
        };
        random.pick(&FIRST_NODES).map(|id| (*id, ill))
    }
}
