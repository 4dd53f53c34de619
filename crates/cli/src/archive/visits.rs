//! The visits of a line: each token from entering to its end, under all its numbers.

use std::collections::BTreeMap;

use nowserving_client::Key;

use super::events::{Id, LineEvents, What};

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub struct Visit {
    /// Its lane and number now.
    pub id: Id,
    /// Its former numbers, oldest first.
    pub former: Vec<Id>,
    pub key: Option<Key>,
    /// Of its first event.
    pub first_at_ms: u64,
    /// `None`: its event `entered` is missing.
    pub entered_at_ms: Option<u64>,
    pub position: Option<u64>,
    pub admitted_at_ms: Option<u64>,
    /// An operator took it out of order.
    pub taken: bool,
    pub claimed_at_ms: Option<u64>,
    pub gone_at_ms: Option<u64>,
    pub reason: Option<Box<str>>,
}

impl Visit {
    fn new(id: Id, at_ms: u64) -> Visit {
        Visit {
            id,
            former: Vec::new(),
            key: None,
            first_at_ms: at_ms,
            entered_at_ms: None,
            position: None,
            admitted_at_ms: None,
            taken: false,
            claimed_at_ms: None,
            gone_at_ms: None,
            reason: None,
        }
    }

    /// The lane in which it entered.
    pub fn entered_in(&self) -> usize {
        self.former.first().unwrap_or(&self.id).0
    }

    /// As the protocol spells it.
    pub fn state(&self) -> &'static str {
        match () {
            () if self.gone_at_ms.is_some() => "gone",
            () => self.seat(),
        }
    }

    /// The state that it left, once it is gone.
    pub fn left(&self) -> Option<&'static str> {
        self.gone_at_ms.map(|_| self.seat())
    }

    fn seat(&self) -> &'static str {
        match (self.admitted_at_ms, self.claimed_at_ms) {
            (_, Some(_)) => "in_checkout",
            (Some(_), None) => "admitted",
            (None, None) => "waiting",
        }
    }

    /// How long it waited until it was admitted.
    pub fn waited_ms(&self) -> Option<u64> {
        let (entered, admitted) = (self.entered_at_ms?, self.admitted_at_ms?);
        // The wall clock can have jumped back in between.
        Some(admitted.saturating_sub(entered))
    }
}

/// All visits of which there is an event, in the order of their first one. A line that was put back from a backup can
/// have events of a token after its end: they go on with the visit.
pub fn of_line(events: &LineEvents) -> Vec<Visit> {
    let mut visits: Vec<Visit> = Vec::new();
    let mut places: BTreeMap<Id, usize> = BTreeMap::new();
    for happened in events.tokens.values() {
        let at_ms = happened.at_ms;
        let place = *places.entry(happened.id).or_insert_with(|| {
            visits.push(Visit::new(happened.id, at_ms));
            visits.len() - 1
        });
        let visit = &mut visits[place];
        if visit.key.is_none() {
            visit.key.clone_from(&happened.key);
        }
        match &happened.what {
            What::Entered { position } => {
                visit.entered_at_ms = Some(at_ms);
                visit.position = *position;
            }
            What::Admitted { taken } => {
                visit.reopen();
                visit.admitted_at_ms = Some(at_ms);
                visit.taken = *taken;
            }
            What::Claimed => {
                visit.reopen();
                visit.claimed_at_ms = Some(at_ms);
            }
            What::Gone { reason } => {
                visit.gone_at_ms = Some(at_ms);
                visit.reason = Some(reason.clone());
            }
            What::Moved { to, .. } => {
                visit.reopen();
                visit.former.push(happened.id);
                visit.id = *to;
                places.insert(*to, place);
            }
            What::Other => {}
        }
    }
    visits
}

impl Visit {
    fn reopen(&mut self) {
        self.gone_at_ms = None;
        self.reason = None;
    }
}
