//! A watcher's own place, computed as docs/protocol/events.md describes it ("How a watcher computes its
//! place"), on purpose without the SDK's code.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::api::number;

/// A waiting token with its watcher's knowledge.
#[derive(Debug)]
pub struct Place {
    token: u64,
    lane: String,
    incarnation: u64,
    version: u64,
    admitted_through: u64,
    /// Numbers between `admitted_through` and `token` that no longer wait.
    holes: BTreeSet<u64>,
}

/// The effect of a board on the place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BoardEffect {
    /// Nothing: it is not newer.
    Nothing,
    /// Something was missed; `status` must be asked.
    Gap,
    /// It waits, at this position.
    Position(u64),
    /// It waits no longer.
    NotWaiting,
}

impl Place {
    /// Starts from a status that was asked with `"holes": true`; none if the token does not wait.
    ///
    /// # Errors
    /// A field is missing.
    pub fn start(status: &Value) -> Result<Option<Place>> {
        if status["state"] != "waiting" {
            return Ok(None);
        }
        let mut place = Place {
            token: number(status, "token")?,
            lane: status["lane"].as_str().context("lane")?.to_owned(),
            incarnation: number(status, "incarnation")?,
            version: number(status, "version")?,
            admitted_through: number(status, "admitted_through")?,
            holes: BTreeSet::new(),
        };
        place.add(
            status
                .get("holes")
                .context("a waiting token's status without holes")?,
        )?;
        Ok(Some(place))
    }

    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Up to which version of the line it knows everything.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// 1 + how many wait before it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.token - self.admitted_through - self.holes.len() as u64
    }

    /// Takes in a board.
    ///
    /// # Errors
    /// A field is missing.
    pub fn take(&mut self, board: &Value) -> Result<BoardEffect> {
        let version = number(board, "version")?;
        if number(board, "incarnation")? != self.incarnation || version <= self.version {
            return Ok(BoardEffect::Nothing);
        }
        let lanes = board["lanes"].as_array().context("lanes")?;
        let lane = lanes
            .iter()
            .find(|lane| lane["lane"] == self.lane.as_str())
            .context("lane")?;
        let holes = lane.get("holes");
        let Some(holes) =
            holes.filter(|_| number(board, "prev_version").ok() <= Some(self.version))
        else {
            return Ok(BoardEffect::Gap);
        };
        self.version = version;
        self.admitted_through = number(lane, "admitted_through")?;
        self.add(holes)?;
        if self.holes.contains(&self.token) || self.token <= self.admitted_through {
            return Ok(BoardEffect::NotWaiting);
        }
        // Holes behind its own token and before the pointer no longer matter.
        self.holes
            .retain(|hole| (self.admitted_through + 1..self.token).contains(hole));
        Ok(BoardEffect::Position(self.position()))
    }

    fn add(&mut self, ranges: &Value) -> Result<()> {
        for range in ranges.as_array().context("holes")? {
            let (first, last) = (range[0].as_u64(), range[1].as_u64());
            self.holes
                .extend(first.context("first")?..=last.context("last")?);
        }
        Ok(())
    }
}
