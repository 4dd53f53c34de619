//! Equal settings are in memory once: most lines of a shard are made alike.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{Line, Settings};

/// So many different ones are remembered. Each line's are compared with them whenever they change.
const KEPT: usize = 8;

/// The settings of the lines that were made, restored or changed last.
#[derive(Debug, Default)]
pub(crate) struct SharedSettings {
    /// Newest first.
    newest: VecDeque<Arc<Settings>>,
}

impl SharedSettings {
    /// Gives a line the settings that are equal to its own, and its lanes the names in them.
    pub(crate) fn share(&mut self, line: &mut Line) {
        match self.newest.iter().find(|it| **it == line.settings) {
            Some(known) => line.settings = known.clone(),
            None => {
                self.newest.truncate(KEPT - 1);
                self.newest.push_front(line.settings.clone());
            }
        }
        for (id, set) in line.order.iter().zip(&line.settings.lanes) {
            line.lanes[usize::from(*id)].name = set.name.clone();
        }
    }
}
