//! S11 and S16: who waits and where, by counting.

use std::collections::BTreeSet;

use nowserving_line::{Token, TokenRef};

use super::{Id, Kept, ShadowLine};

impl ShadowLine {
    /// Since which version of the line the key has a live token, if it has one.
    #[must_use]
    pub fn live_since(&self, key: &[u8]) -> Option<u64> {
        let live = self.keys.get(key)?;
        self.tokens.get(live).map(|token| token.entered_at)
    }

    /// S11: a token's position at a version of the line, by counting; `None` if it did not wait, or waited for a draw.
    #[must_use]
    pub fn position(&self, at: TokenRef, version: u64) -> Option<u64> {
        if self.draw.was_undrawn(version) {
            return None;
        }
        let waited = |token: &Kept| {
            token.issued_at <= version && token.left_at.is_none_or(|left| left > version)
        };
        self.tokens
            .get(&(at.lane, at.token))
            .filter(|it| waited(it))?;
        let before = self.tokens.range((at.lane, 0)..(at.lane, at.token));
        Some(1 + before.filter(|(_, token)| waited(token)).count() as u64)
    }

    /// Whether a draw was awaited or went on at a version of the line.
    #[must_use]
    pub fn was_undrawn(&self, version: u64) -> bool {
        self.draw.was_undrawn(version)
    }

    /// Who waits.
    pub fn waiting(&self) -> impl Iterator<Item = Id> {
        let lanes = self.waiting.iter();
        lanes.flat_map(|(lane, tokens)| tokens.iter().map(|token| (*lane, *token)))
    }

    /// How many of a lane waited at a version.
    #[must_use]
    pub fn waiting_at(&self, lane: u8, version: u64) -> u64 {
        let tokens = self.tokens.range((lane, 0)..=(lane, u64::MAX));
        let waited = tokens.filter(|(_, token)| {
            token.issued_at <= version && token.left_at.is_none_or(|left| left > version)
        });
        waited.count() as u64
    }

    /// Who of a lane stopped waiting without a seat after one version, through another.
    #[must_use]
    pub fn holes(&self, lane: u8, after: u64, through: u64) -> BTreeSet<Token> {
        let holes = self.holes.range(after + 1..through + 1);
        holes
            .filter(|(_, id)| id.0 == lane)
            .map(|(_, id)| id.1)
            .collect()
    }
}
