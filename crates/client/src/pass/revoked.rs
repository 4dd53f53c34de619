//! What events say about passes: which tokens are gone, and which were claimed since. Bounded.

use std::collections::{HashMap, VecDeque};

use nowserving_line::LaneName;
use nowserving_pass::{PASS_MS_MAX, PassClaims};
use nowserving_protocol::event::{LineEvent, TokenEvent};

/// So many tokens are remembered, some 30 MB; beyond that the oldest are forgotten, and passes that are as old refused.
pub(super) const MARKS_MAX: usize = 262_144;
/// Between the clocks of nodes and of the edge, and for its leeway.
const SLACK_S: u64 = 60;
/// After an event, older passes are good for no longer than this.
const KEPT_S: u64 = PASS_MS_MAX / 1_000 + SLACK_S;

type Id = (LaneName, u64);

#[derive(Debug, Clone, Copy)]
struct Mark {
    /// Passes with an older epoch are revoked; `None`: all are, as the token is gone.
    epoch: Option<u64>,
    until_s: u64,
    /// The line's, at the newest of its events.
    version: u64,
}

#[derive(Debug)]
pub(super) struct Revoked {
    incarnation: u64,
    /// Passes that were signed in this second or before are revoked.
    floor_s: Option<u64>,
    /// Events up to this second are missing: passes that were signed until then are revoked, of whatever incarnation.
    missed_s: Option<u64>,
    /// The line's version at the newest event of a token; `None` before the first one.
    newest: Option<u64>,
    /// The line's version when it was last put back or deleted: events of tokens up to it say nothing any more.
    since: u64,
    marks: HashMap<Id, Mark>,
    /// The marks by age. A token that was marked again is in it twice; the older one has another time.
    by_age: VecDeque<(Id, u64)>,
    marks_max: usize,
}

impl Default for Revoked {
    fn default() -> Revoked {
        Revoked::with_room(MARKS_MAX)
    }
}

impl Revoked {
    pub(super) fn with_room(marks_max: usize) -> Revoked {
        Revoked {
            incarnation: 0,
            floor_s: None,
            missed_s: None,
            newest: None,
            since: 0,
            marks: HashMap::new(),
            by_age: VecDeque::new(),
            marks_max,
        }
    }

    /// Whether the pass is of a token that is gone, or that was claimed since.
    pub(super) fn has(&self, claims: &PassClaims) -> bool {
        if self.missed_s.is_some_and(|missed_s| claims.iat <= missed_s) {
            return true;
        }
        if claims.incarnation != self.incarnation {
            // Of a line that was deleted. One of a later creation comes before its first event at times.
            return claims.incarnation < self.incarnation;
        }
        if self.floor_s.is_some_and(|floor_s| claims.iat <= floor_s) {
            return true;
        }
        let mark = self.marks.get(&(claims.lane.clone(), claims.token));
        mark.is_some_and(|mark| mark.epoch.is_none_or(|epoch| claims.epoch < epoch))
    }

    /// Takes a token event.
    pub(super) fn token(&mut self, event: &TokenEvent, now_s: u64) {
        if !self.is_of(event.incarnation) {
            return;
        }
        if self
            .newest
            .is_some_and(|newest| event.prev_version > newest)
        {
            self.missed(event.at_ms / 1_000);
        }
        self.newest = self.newest.max(Some(event.version));
        if event.version <= self.since {
            return;
        }
        let epoch = match event.event.as_str() {
            "gone" | "moved" => None,
            // Without an epoch, from an older release: passes from before the claim have none.
            "claimed" => Some(event.epoch.unwrap_or(1)),
            _ => return,
        };
        let until_s = (event.at_ms / 1_000).saturating_add(KEPT_S);
        let id = (event.lane.clone(), event.token);
        let mut mark = Mark {
            epoch,
            until_s,
            version: event.version,
        };
        // An event of an earlier leader may come after those of the next one: nothing that was revoked is good again.
        if let Some(known) = self.marks.get(&id) {
            mark.epoch = known.epoch.zip(epoch).map(|(known, it)| known.max(it));
            mark.until_s = known.until_s.max(until_s);
            mark.version = known.version.max(event.version);
        }
        self.marks.insert(id.clone(), mark);
        self.by_age.push_back((id, mark.until_s));
        self.forget(now_s);
    }

    /// Events up to this time are missing. Any token may have gone meanwhile: its holder gets a new pass if it has not.
    pub(super) fn missed(&mut self, until_s: u64) {
        self.missed_s = self.missed_s.max(Some(until_s));
    }

    /// Takes a line event.
    pub(super) fn line(&mut self, event: &LineEvent) {
        if !self.is_of(event.incarnation) {
            return;
        }
        // In a line that was put back tokens live that were gone, and others are gone, without events.
        if matches!(event.event.as_str(), "restored" | "deleted") {
            // Events of tokens come on another subscription: some that are newer than this may be here already.
            self.since = self.since.max(event.version);
            self.marks.retain(|_, mark| mark.version > event.version);
            let marks = &self.marks;
            self.by_age.retain(|(id, _)| marks.contains_key(id));
            self.raise_floor(event.at_ms / 1_000);
        }
    }

    /// Drops what is no longer needed, and then the oldest.
    fn forget(&mut self, now_s: u64) {
        while let Some((_, until_s)) = self.by_age.front() {
            let too_many = self.by_age.len() > self.marks_max;
            if *until_s >= now_s && !too_many {
                return;
            }
            let Some((id, until_s)) = self.by_age.pop_front() else {
                return;
            };
            let is_newest = |mark: &Mark| mark.until_s == until_s;
            if self.marks.get(&id).is_some_and(is_newest) {
                self.marks.remove(&id);
                if until_s >= now_s {
                    self.raise_floor(until_s.saturating_sub(KEPT_S));
                }
            }
        }
    }

    fn raise_floor(&mut self, to_s: u64) {
        self.floor_s = self.floor_s.max(Some(to_s));
    }

    /// A later creation of the line begins with nothing but what was missed; events of an earlier one are dropped.
    fn is_of(&mut self, incarnation: u64) -> bool {
        if incarnation > self.incarnation {
            *self = Revoked {
                incarnation,
                missed_s: self.missed_s,
                ..Revoked::with_room(self.marks_max)
            };
        }
        incarnation == self.incarnation
    }

    #[cfg(test)]
    pub(super) fn marks(&self) -> usize {
        self.marks.len().max(self.by_age.len())
    }
}
