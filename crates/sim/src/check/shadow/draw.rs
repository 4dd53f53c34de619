//! S7 and S8: a draw, as one would do it by hand. Each who waits at the opening gets one new number, in the order of the lots that
//! the seed gives, and nobody is admitted before all have theirs.

use std::collections::BTreeMap;

use nowserving_line::{
    DrawState, Event, Hash, LaneName, Line, LineChange, Lots, Token, commitment,
};

use super::{Broken, Id, Kept, ShadowLine};

/// Of one line.
#[derive(Clone, Debug, Default)]
pub struct Draw {
    /// It is to come.
    awaited: bool,
    /// The hash that was shown last.
    commitment: Option<Hash>,
    /// Once it has begun: who is still to be drawn, and the number that each gets.
    to_come: Option<BTreeMap<Id, Id>>,
    done: bool,
    /// From which versions on it is awaited or goes on, and from which it is not.
    undrawn: Vec<(u64, bool)>,
    took_part: u64,
}

impl Draw {
    pub fn is_undrawn(&self) -> bool {
        !self.done && (self.awaited || self.to_come.is_some())
    }

    /// Whether it was at a version of the line.
    pub fn was_undrawn(&self, version: u64) -> bool {
        let until = self.undrawn.partition_point(|(at, _)| *at <= version);
        let last = until.checked_sub(1).and_then(|at| self.undrawn.get(at));
        last.is_some_and(|(_, undrawn)| *undrawn)
    }

    /// How many numbers were replaced, or are to be.
    pub fn took_part(&self) -> u64 {
        self.took_part
    }

    /// An operation is done, and this is the line.
    pub fn set(&mut self, line: &Line) {
        self.awaited = line
            .draw()
            .is_some_and(|draw| draw.state == DrawState::Awaited);
        let undrawn = self.is_undrawn();
        if self.undrawn.last().is_some_and(|(_, last)| *last) != undrawn {
            self.undrawn.push((line.version(), undrawn));
        }
    }

    /// The line was put back: what was shown before counts no more.
    pub fn put_back(&mut self) {
        if self.to_come.is_none() {
            self.commitment = None;
        }
    }
}

impl ShadowLine {
    pub(super) fn draws(&mut self, now: Option<&Line>, event: &Event) -> Result<(), Broken> {
        let Event::Line { what, .. } = event else {
            return Ok(());
        };
        match what {
            LineChange::DrawSealed { commitment } => {
                self.draw.commitment = Some(*commitment);
                Ok(())
            }
            LineChange::DrawBegun {
                seed,
                beacon,
                took_part,
            } => {
                if self.draw.commitment != Some(commitment(seed)) {
                    let shown = self.draw.commitment;
                    return Err((
                        "S7",
                        format!("the draw is by {seed:?}, shown was {shown:?}"),
                    ));
                }
                if self.draw.to_come.is_some() {
                    return Err(("S7", "a second draw".to_owned()));
                }
                if let Some(now) = now {
                    let lanes: Vec<&LaneName> = now.lane_names().collect();
                    self.begin_draw(&Lots::new(seed, beacon, now.incarnation()), &lanes);
                }
                match self.draw.took_part == *took_part {
                    true => Ok(()),
                    false => Err((
                        "S7",
                        format!("{took_part} take part, and {} wait", self.draw.took_part),
                    )),
                }
            }
            LineChange::Drawn { .. } => self.end_draw(),
            _ => Ok(()),
        }
    }

    /// Everybody's number is decided now, and all of them are taken.
    fn begin_draw(&mut self, lots: &Lots, lanes: &[&LaneName]) {
        let mut to_come = BTreeMap::new();
        for (lane, waiting) in self.waiting.clone() {
            let Some(name) = lanes.get(usize::from(lane)) else {
                continue;
            };
            let first = self.next_token(lane);
            let mut order: Vec<(u64, Token)> = waiting
                .iter()
                .map(|token| (lots.lot(name, *token), *token))
                .collect();
            order.sort_unstable();
            for ((_, token), new) in order.into_iter().zip(first..) {
                to_come.insert((lane, token), (lane, new));
                self.tokens.insert((lane, new), Kept::nobody());
            }
        }
        self.draw.took_part = to_come.len() as u64;
        self.draw.to_come = Some(to_come);
    }

    /// S7: who waited has the number that the seed gives, and one that nobody had.
    pub(super) fn drawn(&mut self, id: Id, to: Id, version: u64) -> Result<(), Broken> {
        let to_come = self.draw.to_come.as_mut();
        let expected = to_come.and_then(|to_come| to_come.remove(&id));
        if expected != Some(to) {
            return Err(("S7", format!("{id:?} is drawn as {to:?}, not {expected:?}")));
        }
        if !self.stops_waiting_if(id, version) {
            return Err(("S10", format!("{id:?} is drawn and did not wait")));
        }
        let Some(old) = self.tokens.get(&id).cloned() else {
            return Ok(());
        };
        self.forget(id);
        if let Some(token) = self.tokens.get_mut(&id) {
            token.moved_to = Some(to);
        }
        if let Some(key) = &old.key {
            self.keys.insert(key.clone(), to);
        }
        let new = Kept {
            left_at: None,
            issued_at: version,
            moved_to: None,
            ..old
        };
        self.waiting.entry(to.0).or_default().insert(to.1);
        self.tokens.insert(to, new);
        Ok(())
    }

    /// S7: nobody who still waits was left out.
    fn end_draw(&mut self) -> Result<(), Broken> {
        self.draw.done = true;
        let left = self.draw.to_come.as_ref().map(BTreeMap::keys);
        let waits = |id: &&Id| self.waiting.get(&id.0).is_some_and(|it| it.contains(&id.1));
        match left.into_iter().flatten().find(waits) {
            Some(id) => Err((
                "S7",
                format!("{id:?} took part in the draw, and is not drawn"),
            )),
            None => Ok(()),
        }
    }

    /// S8: nobody is admitted while a draw is awaited or goes on.
    pub(super) fn is_drawn(&self, id: Id) -> Result<(), Broken> {
        match self.draw.is_undrawn() {
            true => Err(("S8", format!("{id:?} is admitted before the draw is done"))),
            false => Ok(()),
        }
    }
}
