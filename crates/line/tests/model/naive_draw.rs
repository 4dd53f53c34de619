//! Draws on the naive line: all steps are listed when the draw begins.

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{
    Hash, Journaled, JournaledToken, LineChange, MovedBy, Opening, Phase, State, Timestamp,
    TokenChange, TokenRef,
};
use sha2::{Digest, Sha256};

use crate::naive::{Id, NaiveLine, Tok};
use crate::shard::Entry;

#[derive(Debug, Clone, Default)]
pub struct NaiveDraw {
    awaited: bool,
    pub seed: Option<Hash>,
    pub begun: Option<NaiveBegun>,
}

#[derive(Debug, Clone, Default)]
pub struct NaiveBegun {
    pub opened_at_ms: u64,
    pub took_part: u64,
    digest: Hash,
    todo: VecDeque<Todo>,
}

#[derive(Debug, Clone)]
enum Todo {
    /// The lots of so many.
    Lots(u32),
    /// A number, and the one that it becomes.
    Renumber(Id, Id),
}

fn hash(parts: &[&[u8]]) -> Hash {
    Sha256::digest(parts.concat()).into()
}

impl NaiveLine {
    pub fn awaits_draw(&self) -> bool {
        let begun = self.draw.as_ref().is_some_and(|draw| draw.begun.is_some());
        self.is_undrawn() && !begun
    }

    pub fn is_undrawn(&self) -> bool {
        match &self.draw {
            None => false,
            Some(NaiveDraw {
                begun: None,
                awaited,
                ..
            }) => *awaited && self.settings.opening == Opening::Draw,
            Some(NaiveDraw {
                begun: Some(begun), ..
            }) => !begun.todo.is_empty(),
        }
    }

    pub fn needs_seed(&self) -> bool {
        let draw = self.draw.as_ref().filter(|draw| draw.awaited);
        let unsealed = draw.is_some_and(|draw| draw.seed.is_none());
        unsealed && self.settings.opening == Opening::Draw && self.phase() != Phase::Closed
    }

    /// Whether it goes on, or can begin.
    pub fn has_to_draw(&self) -> bool {
        let admits = matches!(self.phase(), Phase::Open | Phase::Draining);
        let draw = self.draw.as_ref().filter(|_| self.is_undrawn());
        draw.is_some_and(|draw| draw.begun.is_some() || admits && draw.seed.is_some())
    }

    pub fn took_part(&self) -> u64 {
        let begun = self.draw.as_ref().and_then(|draw| draw.begun.as_ref());
        begun.map_or(0, |begun| begun.took_part)
    }

    /// When it counts as having entered, between lanes.
    pub fn counts_as_entered(&self, tok: &Tok) -> u64 {
        let begun = self.draw.as_ref().and_then(|draw| draw.begun.as_ref());
        let opened_at_ms = begun.map_or(0, |begun| begun.opened_at_ms);
        tok.entered.service_ms.max(opened_at_ms)
    }

    pub fn seal(&mut self, seed: Hash, entry: &mut Entry<'_>) {
        if self.needs_seed() {
            self.draw.as_mut().unwrap().seed = Some(seed);
            let commitment = hash(&[&seed]);
            self.line_event(LineChange::DrawSealed { commitment }, entry.events);
            self.keep(Journaled::DrawSealed);
            self.work(entry);
        }
    }

    pub fn run_draw(&mut self, entry: &mut Entry<'_>) {
        let by_lot = self.settings.opening == Opening::Draw;
        if by_lot && self.phase() == Phase::PreOpen {
            self.draw.get_or_insert_default().awaited = true;
        }
        let admits = matches!(self.phase(), Phase::Open | Phase::Draining);
        if let Some(draw) = self
            .draw
            .as_mut()
            .filter(|draw| admits && draw.begun.is_none())
        {
            draw.awaited &= by_lot;
            if let (true, Some(seed)) = (draw.awaited, draw.seed) {
                self.open_by_lot(seed, entry);
            }
        }
        while entry.work > 0
            && let Some(todo) = self.next_todo()
        {
            match todo {
                Todo::Lots(count) => entry.work = entry.work.saturating_sub(count.div_ceil(8)),
                Todo::Renumber(from, to) => {
                    entry.work -= 1;
                    self.renumber(from, to, entry);
                }
            }
            self.end_draw(entry);
        }
    }

    fn next_todo(&mut self) -> Option<Todo> {
        self.draw.as_mut()?.begun.as_mut()?.todo.pop_front()
    }

    fn open_by_lot(&mut self, seed: Hash, entry: &mut Entry<'_>) {
        let beacon = self.settings.draw_beacon.clone().unwrap_or_default();
        let key = hash(&[b"draw", &seed, beacon.as_bytes()]);
        let incarnation = self.incarnation.to_be_bytes();
        let mut begun = NaiveBegun {
            opened_at_ms: entry.now_ms,
            ..NaiveBegun::default()
        };
        let mut digests = BTreeMap::new();
        for lane in 0..self.table.len() as u8 {
            let waiting = self.waiting(lane);
            let name = self.table[usize::from(lane)].as_str().to_owned();
            let mut of_lane = Hash::default();
            let mut pages: BTreeMap<u64, u32> = BTreeMap::new();
            let mut lots = Vec::new();
            for token in waiting {
                let number = token.to_be_bytes();
                of_lane = hash(&[&of_lane, &number]);
                *pages.entry(token / 512).or_default() += 1;
                let lot = hash(&[&key, &incarnation, &number, name.as_bytes()]);
                lots.push((lot[..8].to_vec(), token));
            }
            if !lots.is_empty() {
                digests.insert(name, of_lane);
            }
            begun.todo.extend(pages.into_values().map(Todo::Lots));
            lots.sort();
            let first = self.issued(lane) + 1;
            for ((_, token), new) in lots.into_iter().zip(first..) {
                begun.took_part += 1;
                begun
                    .todo
                    .push_back(Todo::Renumber((lane, token), (lane, new)));
                let mut reserved = Tok::newcomer(None, Timestamp::default());
                reserved.state = State::Gone;
                self.tokens.insert((lane, new), reserved);
            }
        }
        for (name, of_lane) in digests {
            begun.digest = hash(&[&begun.digest, &of_lane, name.as_bytes()]);
        }
        let took_part = begun.took_part;
        self.draw.as_mut().unwrap().begun = Some(begun);
        self.version += took_part;
        let what = LineChange::DrawBegun {
            seed,
            beacon,
            took_part,
        };
        self.line_event(what, entry.events);
        self.keep(Journaled::DrawBegun { took_part });
        self.end_draw(entry);
    }

    fn end_draw(&mut self, entry: &mut Entry<'_>) {
        let begun = self.draw.as_ref().and_then(|draw| draw.begun.as_ref());
        if let Some(begun) = begun.filter(|begun| begun.todo.is_empty()) {
            let digest = begun.digest;
            self.line_event(LineChange::Drawn { digest }, entry.events);
            self.keep(Journaled::Drawn);
        }
    }

    fn renumber(&mut self, from: Id, to: Id, entry: &mut Entry<'_>) {
        let old = self.tokens.get_mut(&from).unwrap();
        old.drawn_to = Some(to);
        if old.state != State::Waiting {
            return;
        }
        let mut tok = old.clone();
        (tok.drawn_to, tok.called) = (None, false);
        tok.told.clear();
        old.renumbered = true;
        old.state = State::Gone;
        old.key = tok.key.clone();
        self.tokens.insert(to, tok);
        for former in self.tokens.values_mut() {
            if former.moved_to == Some(from) {
                former.moved_to = Some(to);
            }
        }
        let what = TokenChange::Moved {
            to_lane: self.table[usize::from(to.0)].clone(),
            to: TokenRef {
                incarnation: self.incarnation,
                lane: to.0,
                token: to.1,
            },
            by: MovedBy::Draw,
        };
        self.event(from, what, entry.events);
        let (to_lane, to) = to;
        let by = MovedBy::Draw;
        self.note(from, JournaledToken::Moved { to_lane, to, by });
    }
}
