//! A leader's lease, and the rounds of `read_index` that renew it.

use std::collections::VecDeque;

use crate::{Micros, ReadGrant, ReadId};

/// Rounds that may wait for a quorum. Without a quorum a leader steps down within two election
/// timeouts, so this only bounds a burst.
const MAX_PENDING: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    id: ReadId,
    term: u64,
    /// Which of this node's connections it had.
    connection: u64,
    asked_at: Micros,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Granted {
    term: u64,
    index: u64,
    until: Micros,
}

/// A leader's lease and its read rounds. Each round carries the term in which it began, so that nothing of
/// an earlier leadership counts in a later one; and the number of this node's service connection, so that a
/// lease ends with that.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    lease_us: Micros,
    last_id: u64,
    /// The round that all reads of this turn share.
    this_turn: Option<ReadId>,
    pending: VecDeque<Pending>,
    /// Granted, but their index is not applied yet.
    granted: VecDeque<Granted>,
    /// Term and end.
    current: Option<(u64, Micros)>,
    /// The term in which leadership was offered to another node: no further lease in it.
    offered_term: Option<u64>,
    /// Counts this node's service connections.
    connection: u64,
}

impl Lease {
    pub fn new(lease_us: Micros) -> Lease {
        Lease {
            lease_us,
            last_id: 0,
            this_turn: None,
            pending: VecDeque::new(),
            granted: VecDeque::new(),
            current: None,
            offered_term: None,
            connection: 0,
        }
    }

    pub fn this_turn(&self) -> Option<ReadId> {
        self.this_turn
    }

    pub fn is_full(&self) -> bool {
        self.pending.len() >= MAX_PENDING
    }

    /// Opens a round. Raft carries its id as context.
    pub fn ask(&mut self, term: u64, now: Micros) -> ReadId {
        self.last_id += 1;
        let id = ReadId(self.last_id);
        self.pending.push_back(Pending {
            id,
            term,
            connection: self.connection,
            asked_at: now,
        });
        self.this_turn = Some(id);
        id
    }

    /// Withdraws the round just asked for, as raft did not take it.
    pub fn take_back(&mut self) {
        self.pending.pop_back();
        self.this_turn = None;
    }

    /// Later reads need a round of their own.
    pub fn end_turn(&mut self) {
        self.this_turn = None;
    }

    /// A quorum confirmed a round.
    pub fn grant(&mut self, context: &[u8], index: u64, applied: u64) -> Option<ReadGrant> {
        let id = ReadId(u64::from_be_bytes(context.try_into().ok()?));
        let at = self.pending.iter().position(|pending| pending.id == id)?;
        let Pending {
            term,
            connection,
            asked_at,
            ..
        } = self.pending.remove(at)?;
        if self.offered_term != Some(term) && connection == self.connection {
            self.granted.push_back(Granted {
                term,
                index,
                until: asked_at.saturating_add(self.lease_us),
            });
            self.applied(applied);
        }
        Some(ReadGrant { id, index })
    }

    /// A lease begins once its index is applied: before that the state may lack writes that an earlier
    /// leader acknowledged.
    pub fn applied(&mut self, applied: u64) {
        while self
            .granted
            .front()
            .is_some_and(|granted| granted.index <= applied)
        {
            if let Some(Granted { term, until, .. }) = self.granted.pop_front() {
                let same_term = self.current.filter(|lease| lease.0 == term);
                self.current = Some((term, same_term.map_or(until, |lease| lease.1.max(until))));
            }
        }
    }

    /// Ends the lease; this term gets no further one.
    pub fn end_in_term(&mut self, term: u64) {
        self.offered_term = Some(term);
        self.granted.clear();
        self.current = None;
    }

    /// This node's service connection was lost: the lease ends, and rounds that are under way renew it no more.
    /// They still confirm reads, which depends on no voter's loyalty.
    pub fn connection_lost(&mut self) {
        if nowserving_bite::is(nowserving_bite::Break::S15Connection) {
            return;
        }
        self.connection += 1;
        self.granted.clear();
        self.current = None;
    }

    /// Ends the rounds and the lease of all terms but the one that this node leads. Returns the failed rounds.
    pub fn only(&mut self, leads_term: Option<u64>) -> Vec<ReadId> {
        let mut failed = Vec::new();
        self.pending.retain(|pending| {
            let keep = Some(pending.term) == leads_term;
            if !keep {
                failed.push(pending.id);
            }
            keep
        });
        self.granted
            .retain(|granted| Some(granted.term) == leads_term);
        self.current = self.current.filter(|lease| Some(lease.0) == leads_term);
        failed
    }

    pub fn lease_until(&self, term: u64) -> Option<Micros> {
        self.current
            .filter(|lease| lease.0 == term)
            .map(|lease| lease.1)
    }
}
