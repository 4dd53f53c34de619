//! Whom the naive line tells how far they have come.

use crate::naive::{Id, NaiveLine};

impl NaiveLine {
    /// Whom to call, over all lanes.
    pub fn to_call(&self) -> Vec<Id> {
        let mut call = Vec::new();
        if self.is_undrawn() {
            return call;
        }
        for (lane, _) in self.lanes() {
            let waiting = (1..).zip(self.waiting(lane));
            let not_called = waiting.filter(|(_, token)| !self.tokens[&(lane, *token)].called);
            let near = not_called.take_while(|(position, token)| {
                let eta_ms = self.etas.get(&(lane, *token));
                let within_ms = Some(self.settings.call_ahead_ms).filter(|ms| *ms > 0);
                let soon = within_ms.zip(eta_ms).is_some_and(|(most, ms)| *ms <= most);
                *position <= self.settings.call_ahead || soon
            });
            call.extend(near.map(|(_, token)| (lane, token)));
        }
        call
    }

    /// The next token to tell its position, over all lanes; of a lane the smallest position comes first.
    pub fn to_tell(&self) -> Option<(Id, u64)> {
        if self.is_undrawn() {
            return None;
        }
        for (lane, _) in self.lanes() {
            for mark in self.settings.position_events.iter().rev() {
                let first = (1..).zip(self.waiting(lane)).take(*mark as usize);
                for (position, token) in first {
                    let id = (lane, token);
                    if !self.tokens[&id].told.contains(mark) {
                        return Some((id, position));
                    }
                }
            }
        }
        None
    }

    pub fn tell(&mut self, id: Id, position: u64) {
        let marks = self.settings.position_events.clone();
        let come_to = marks.into_iter().filter(|mark| position <= (*mark).into());
        self.tokens.get_mut(&id).unwrap().told.extend(come_to);
    }

    /// The newest token of its lane is told where it entered, unless one before it is still to be told.
    pub fn tell_newcomer(&mut self, id: Id) {
        if self.is_undrawn() {
            return;
        }
        let (position, waiting) = (self.position(id), self.waiting(id.0));
        for mark in self.settings.position_events.clone() {
            let mut before = waiting.iter().filter(|token| **token < id.1);
            let all_told = before.all(|token| self.tokens[&(id.0, *token)].told.contains(&mark));
            if position <= mark.into() && all_told {
                self.tokens.get_mut(&id).unwrap().told.insert(mark);
            }
        }
    }

    /// Those who stand at a new position, or before it, have not come to it.
    pub fn change_marks(&mut self, old: &[u32]) {
        let new = self.settings.position_events.clone();
        if self.is_undrawn() && old != new {
            for tok in self.tokens.values_mut() {
                tok.told.clear();
            }
            return;
        }
        for id in self.tokens.keys().copied().collect::<Vec<_>>() {
            let position = self.position(id);
            let tok = self.tokens.get_mut(&id).unwrap();
            tok.told.retain(|mark| new.contains(mark));
            let mut told_of_larger = true;
            for mark in &new {
                if !old.contains(mark) && position <= (*mark).into() && told_of_larger {
                    tok.told.insert(*mark);
                }
                told_of_larger = tok.told.contains(mark);
            }
        }
    }
}
