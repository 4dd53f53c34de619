//! Why was X before me?

use crate::{JournalEntry, Journaled, JournaledToken, LaneName, Line, OVERTAKERS_MAX};
use crate::{Refused, Timestamp, Token, TokenRef};

/// What a line can tell about one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Which token; what it is now, if it was moved.
    pub at: TokenRef,
    /// When it entered (wall clock); `None` once that is forgotten, and then so is the rest.
    pub entered_at_ms: Option<u64>,
    /// Its own entries, those of the tokens that it was among them, oldest first.
    pub entries: Vec<JournalEntry>,
    /// How many of its own lane who had entered before it were admitted since, and before it: as
    /// everybody's turn is. Its own lane is the one that it was in at the time.
    pub own_lane_before: u64,
    /// Who was admitted before it, though it entered later, of whichever lane; oldest first, at
    /// most [`OVERTAKERS_MAX`].
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
    /// When it entered (wall clock).
    pub entered_at_ms: u64,
    /// When it was admitted (wall clock).
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
    /// They tied, and its lane is listed first.
    ListedFirst,
    /// None of these: the other one stood in its lane behind somebody who was not first yet, having
    /// been moved there (maybe behind this very one), or the boosts were others then.
    BehindItsLane,
}

/// Somebody's time and version of entering. The version decides: all that is in one log entry has
/// the same time.
type Entered = (Timestamp, u64);

impl Line {
    /// What is known about a token, from its state and the journal. Goes through the journal, which
    /// has the moves, too: nothing else that is long is looked at.
    ///
    /// [`Refused::TicketInvalid`] if this line never issued it.
    pub fn explain(&self, at: TokenRef) -> Result<Explanation, Refused> {
        let at = self.resolve(at);
        self.locate(at)?;
        let entries = self.entries_of((at.lane, at.token));
        let live = self.live(at.lane, at.token);
        let entered = live.map(|live| (live.entered, live.entered_version));
        let entered = entered.or_else(|| entries.first().and_then(entered_of));
        let oldest = self.journal.after(0).next();
        let reaches_back = oldest
            .zip(entered)
            .is_some_and(|(oldest, (_, version))| oldest.version <= version);
        let mut told = Explanation {
            at,
            entered_at_ms: entered.map(|(at, _)| at.wall_ms),
            entries,
            own_lane_before: 0,
            overtakers: Vec::new(),
            overtakers_total: 0,
            cut: self.journal.is_full() && !reaches_back,
        };
        if let Some(entered) = entered {
            self.tell_who_came_before(&mut told, entered);
        }
        Ok(told)
    }

    /// What the journal has of a token, by whatever number it had, oldest first. Each number that
    /// it had before ended with a move to the next one.
    fn entries_of(&self, at: (u8, Token)) -> Vec<JournalEntry> {
        let (mut this, mut entries) = (at, Vec::new());
        for entry in self.journal.after(0).rev() {
            let Journaled::Token {
                lane, token, what, ..
            } = entry.what
            else {
                continue;
            };
            if matches!(what, JournaledToken::Moved { to_lane, to } if (to_lane, to) == this) {
                this = (lane, token);
            }
            if (lane, token) == this {
                entries.push(*entry);
            }
        }
        entries.reverse();
        entries
    }

    fn tell_who_came_before(&self, told: &mut Explanation, mine: Entered) {
        let mut this = match told.entries.first().map(|oldest| oldest.what) {
            Some(Journaled::Token { lane, token, .. }) => (lane, token),
            _ => (told.at.lane, told.at.token),
        };
        for entry in self.journal.after(mine.1) {
            let Journaled::Token {
                lane, token, what, ..
            } = entry.what
            else {
                continue;
            };
            match what {
                JournaledToken::Moved { to_lane, to } if (lane, token) == this => {
                    this = (to_lane, to);
                }
                // It had its turn, or went.
                _ if (lane, token) == this => break,
                JournaledToken::Admitted { .. } => match self.overtaker(this.0, mine, entry) {
                    Some(overtaker) => {
                        told.overtakers_total += 1;
                        if told.overtakers.len() < OVERTAKERS_MAX {
                            told.overtakers.push(overtaker);
                        }
                    }
                    None => told.own_lane_before += u64::from(lane == this.0),
                },
                _ => {}
            }
        }
    }

    /// Who was admitted, if it entered later than `mine`.
    fn overtaker(&self, own: u8, mine: Entered, entry: &JournalEntry) -> Option<Overtaker> {
        let Journaled::Token {
            lane,
            token,
            entered,
            entered_version,
            what: JournaledToken::Admitted { absolute, boost_ms },
        } = entry.what
        else {
            return None;
        };
        if entered_version <= mine.1 {
            return None;
        }
        let later_ms = entered.service_ms.saturating_sub(mine.0.service_ms);
        Some(Overtaker {
            lane: self.lanes[usize::from(lane)].name.clone(),
            token,
            entered_at_ms: entered.wall_ms,
            admitted_at_ms: entry.at_ms,
            version: entry.version,
            by: if lane == own {
                OvertookBy::BehindItsLane
            } else {
                self.overtook_by((lane, absolute, boost_ms), own, later_ms)
            },
        })
    }

    fn overtook_by(
        &self,
        (lane, absolute, boost_ms): (u8, bool, u64),
        own: u8,
        later_ms: u64,
    ) -> OvertookBy {
        let place = |id| self.order.iter().position(|listed| *listed == id);
        let (theirs, own) = (place(lane), place(own));
        let listed_first = theirs.zip(own).is_some_and(|(theirs, own)| theirs < own);
        let set = own.and_then(|own| self.settings.lanes.get(own));
        let own_absolute = set.is_some_and(|set| set.absolute);
        let more_ms = boost_ms.saturating_sub(set.map_or(0, |set| set.boost_ms));
        if absolute && !own_absolute {
            OvertookBy::Absolute
        } else if later_ms < more_ms {
            OvertookBy::Boost { ms: more_ms }
        } else if later_ms == more_ms && listed_first {
            OvertookBy::ListedFirst
        } else {
            OvertookBy::BehindItsLane
        }
    }
}

fn entered_of(entry: &JournalEntry) -> Option<Entered> {
    match entry.what {
        Journaled::Configured => None,
        Journaled::Token {
            entered,
            entered_version,
            ..
        } => Some((entered, entered_version)),
    }
}
