//! Equal settings are in memory once: most lines of a shard are made alike.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::Settings;

/// So many different ones are remembered. Each line's are compared with them whenever they change.
const KEPT: usize = 8;

/// The settings of the lines that were made, restored or changed last.
#[derive(Debug, Default)]
pub(crate) struct SharedSettings {
    /// Newest first.
    newest: VecDeque<Arc<Settings>>,
}

impl SharedSettings {
    /// Those that are equal to these.
    pub(crate) fn share(&mut self, settings: &mut Arc<Settings>) {
        match self.newest.iter().position(|it| it == settings) {
            Some(place) => *settings = self.newest[place].clone(),
            None => {
                self.newest.truncate(KEPT - 1);
                self.newest.push_front(settings.clone());
            }
        }
    }
}
