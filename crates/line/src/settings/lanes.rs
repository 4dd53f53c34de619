//! Settings of a lane.

use nowserving_codec::Codec;

use super::{BadField, QUEUE_LIMIT_MAX, TIMEOUT_MS_MAX};
use crate::{LANES_MAX, LaneName};

/// The largest `boost_ms` of a lane, in milliseconds: seven days. The smallest is 0.
pub const BOOST_MS_MAX: u64 = TIMEOUT_MS_MAX;

/// One lane: its name, and how it stands to the others.
#[derive(Codec, Debug, Clone, Default, PartialEq, Eq)]
pub struct LaneSettings {
    pub name: LaneName,
    /// Its tokens count as having entered so much earlier: 0 to [`BOOST_MS_MAX`]. They overtake
    /// tokens that entered earlier by less than the difference of the boosts; an equal difference
    /// is a tie, which goes to the lane listed first.
    pub boost_ms: u64,
    /// While a token waits in it, lanes that are not absolute get no seat.
    pub absolute: bool,
    /// The most tokens that wait in it: 0 to [`QUEUE_LIMIT_MAX`]; `None`: only the line's limit.
    pub queue_limit: Option<u32>,
    /// Holders of waiting tokens may move them into it: [`crate::Op::Jump`].
    pub jump: bool,
}

impl LaneSettings {
    /// A lane without any privilege.
    pub fn new(name: LaneName) -> Self {
        Self {
            name,
            ..Self::default()
        }
    }
}

/// The names of the lanes as an error message lists them.
pub(crate) fn names(lanes: &[LaneSettings]) -> String {
    let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
    names.join(", ")
}

pub(super) fn validate(lanes: &[LaneSettings]) -> Result<(), BadField> {
    if !(1..=LANES_MAX).contains(&lanes.len()) {
        return Err(BadField::new("lanes", "1 to 8"));
    }
    for (i, lane) in lanes.iter().enumerate() {
        if lanes[..i].iter().any(|other| other.name == lane.name) {
            return Err(BadField::new("lanes", "names that differ"));
        }
        if lane.boost_ms > BOOST_MS_MAX {
            let limit = "boost_ms: 0 to 604800000 (7 days)";
            return Err(BadField::new("lanes", limit));
        }
        if lane.queue_limit.is_some_and(|n| n > QUEUE_LIMIT_MAX) {
            return Err(BadField::new("lanes", "queue_limit: 0 to 10000000"));
        }
    }
    Ok(())
}
