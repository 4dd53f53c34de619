//! Why was X before me?

use crate::{
    JournalEntry, Journaled, JournaledToken, LaneName, LaneSettings, Line, OVERTAKERS_MAX,
};
use crate::{Refused, Token, TokenRef};

/// What a line can tell about one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Which token; what it is now, if it was moved.
    pub at: TokenRef,
    /// When it entered (service clock); `None` once that is forgotten, and then so is the rest.
    pub entered_at_ms: Option<u64>,
    /// Its own entries, those of the tokens that it was among them, oldest first.
    pub entries: Vec<JournalEntry>,
    /// How many of its own lane, with smaller numbers, were admitted since it entered and before
    /// it: as everybody's turn is.
    pub own_lane_before: u64,
    /// Who of other lanes was admitted before it, though it entered later; oldest first, at most
    /// [`OVERTAKERS_MAX`].
    pub overtakers: Vec<Overtaker>,
    /// How many those are, also those not listed.
    pub overtakers_total: u64,
    /// The journal may not reach back to when it entered: there may have been more.
    pub cut: bool,
}

/// Somebody who entered later and was admitted earlier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overtaker {
    /// Its lane.
    pub lane: LaneName,
    /// Its number there.
    pub token: Token,
    /// When it entered (service clock).
    pub entered_at_ms: u64,
    /// When it was admitted (service clock).
    pub admitted_at_ms: u64,
    /// The version at which it was.
    pub version: u64,
    /// Why.
    pub by: OvertookBy,
}

/// What put somebody first. That of the other lane is as it was then, that of the own lane as it
/// is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OvertookBy {
    /// Its lane was absolute, and the other one is not.
    Absolute,
    /// Its lane had the larger boost.
    Boost {
        /// By so much, in milliseconds.
        ms: u64,
    },
    /// Neither: the other one stood in its lane behind somebody who was not first yet, having been
    /// moved there, or the boosts were others then.
    BehindItsLane,
}

impl Line {
    /// What is known about a token, from its state and the journal. Goes through the journal once.
    ///
    /// [`Refused::TicketInvalid`] if this line never issued it.
    pub fn explain(&self, at: TokenRef) -> Result<Explanation, Refused> {
        let at = self.resolve(at);
        self.locate(at)?;
        let was = self.was(at);
        let (entries, entered_at_ms) = self.entries_of(at, &was);
        let mut told = Explanation {
            at,
            entered_at_ms,
            entries,
            own_lane_before: 0,
            overtakers: Vec::new(),
            overtakers_total: 0,
            cut: self.journal.is_full()
                && self.journal.after(0).next().map(|oldest| oldest.at_ms) >= entered_at_ms,
        };
        if let Some(entered_at_ms) = entered_at_ms {
            self.tell_who_came_before(&mut told, &was, entered_at_ms);
        }
        Ok(told)
    }

    /// All that the token ever was, oldest first, itself last.
    fn was(&self, at: TokenRef) -> Vec<(u8, Token)> {
        let this = (at.lane, at.token);
        let mut was = match self.live(at.lane, at.token) {
            Some(live) => live.moved_from.to_vec(),
            None => {
                let gone = self.gone.iter();
                let gone = gone.filter(|(_, _, gone)| gone.moved_to == Some(this));
                gone.map(|(lane, token, _)| (lane, token)).collect()
            }
        };
        was.push(this);
        was
    }

    fn entries_of(&self, at: TokenRef, was: &[(u8, Token)]) -> (Vec<JournalEntry>, Option<u64>) {
        let mut entered = self.live(at.lane, at.token).map(|live| live.entered_at_ms);
        let mut entries = Vec::new();
        for entry in self.journal.after(0) {
            if let Journaled::Token {
                lane,
                token,
                entered_at_ms,
                ..
            } = entry.what
                && was.contains(&(lane, token))
            {
                entered = Some(entered_at_ms);
                entries.push(*entry);
            }
        }
        (entries, entered)
    }

    fn tell_who_came_before(&self, told: &mut Explanation, was: &[(u8, Token)], entered_ms: u64) {
        let (mut own_lane, mut own_token) = was.first().copied().unwrap_or_default();
        for entry in self.journal.after(0) {
            let Journaled::Token {
                lane,
                token,
                entered_at_ms,
                what,
            } = entry.what
            else {
                continue;
            };
            if was.contains(&(lane, token)) {
                let JournaledToken::Moved { to_lane, to } = what else {
                    // It had its turn, or went.
                    break;
                };
                (own_lane, own_token) = (to_lane, to);
                continue;
            }
            let JournaledToken::Admitted { absolute, boost_ms } = what else {
                continue;
            };
            if lane == own_lane {
                let while_it_waited = token < own_token && entry.at_ms >= entered_ms;
                told.own_lane_before += u64::from(while_it_waited);
            } else if entered_at_ms > entered_ms {
                told.overtakers_total += 1;
                if told.overtakers.len() < OVERTAKERS_MAX {
                    let early_ms = entered_at_ms - entered_ms;
                    told.overtakers.push(Overtaker {
                        lane: self.lanes[usize::from(lane)].name.clone(),
                        token,
                        entered_at_ms,
                        admitted_at_ms: entry.at_ms,
                        version: entry.version,
                        by: self.overtook_by(own_lane, absolute, boost_ms, early_ms),
                    });
                }
            }
        }
    }

    fn overtook_by(&self, own: u8, absolute: bool, boost_ms: u64, early_ms: u64) -> OvertookBy {
        let mut listed = self.listed();
        let own = listed.find(|(id, _, _)| *id == own);
        let own = own.map_or_else(LaneSettings::default, |(_, _, set)| set.clone());
        let more_ms = boost_ms.saturating_sub(own.boost_ms);
        if absolute && !own.absolute {
            OvertookBy::Absolute
        } else if early_ms <= more_ms {
            OvertookBy::Boost { ms: more_ms }
        } else {
            OvertookBy::BehindItsLane
        }
    }
}
