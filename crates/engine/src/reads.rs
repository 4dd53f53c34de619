//! Reads that wait for a quorum: `linearizable` ones, those that found no lease, and polls that must be
//! recorded before they are answered.
//!
//! However many wait, one confirmation round a turn serves them all.

use std::collections::VecDeque;

use nowserving_replica::ReadId;
use nowserving_shard::clock::Micros;

use crate::request::Ask;
use crate::shard::Waiter;

/// Waiting reads of a shard at most; more are refused as overloaded.
const WAITING_MAX: usize = 8_192;

/// One of them.
#[derive(Debug)]
pub(crate) struct Read {
    pub waiter: Waiter,
    pub ask: Ask,
    /// The token that it asks for is marked as seen.
    pub touched: bool,
}

#[derive(Debug)]
enum Stage {
    /// The command that marks its token as seen is queued.
    Queued,
    /// Not yet part of a confirmation round.
    New,
    /// Part of this round.
    Asked(ReadId),
    /// May be answered once this index is applied.
    Granted(u64),
}

/// The waiting reads of one shard.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    waiting: VecDeque<(Stage, Read)>,
}

impl Reads {
    /// Whether there is no room for another.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes in a read that needs a confirmation round.
    pub fn push(&mut self, waiter: Waiter, ask: Ask) {
        let read = Read {
            waiter,
            ask,
            touched: false,
        };
        self.waiting.push_back((Stage::New, read));
    }

    /// Takes in a read that waits for a command which was queued for it.
    pub fn push_queued(&mut self, waiter: Waiter, ask: Ask) {
        let read = Read {
            waiter,
            ask,
            touched: true,
        };
        self.waiting.push_back((Stage::Queued, read));
    }

    /// All that was queued is in the log through `index`.
    pub fn proposed(&mut self, index: u64) {
        for (stage, _) in &mut self.waiting {
            if matches!(stage, Stage::Queued) {
                *stage = Stage::Granted(index);
            }
        }
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether some read has no confirmation under way.
    #[must_use]
    pub fn any_new(&self) -> bool {
        let is_new = |(stage, _): &(Stage, Read)| matches!(stage, Stage::New);
        self.waiting.iter().any(is_new)
    }

    /// All new ones ride on the round `id`.
    pub fn asked(&mut self, id: ReadId) {
        for (stage, _) in &mut self.waiting {
            if matches!(stage, Stage::New) {
                *stage = Stage::Asked(id);
            }
        }
    }

    /// The round `id` will never be confirmed: its reads ride on the next one.
    pub fn failed(&mut self, id: ReadId) {
        let (failed, mut rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|(stage, _)| matches!(stage, Stage::Asked(asked) if *asked == id));
        rest.extend(failed.into_iter().map(|(_, read)| (Stage::New, read)));
        self.waiting = rest;
    }

    /// A quorum confirmed the round `id`: its reads see everything through `index`.
    pub fn granted(&mut self, id: ReadId, index: u64) {
        for (stage, _) in &mut self.waiting {
            if matches!(stage, Stage::Asked(asked) if *asked == id) {
                *stage = Stage::Granted(index);
            }
        }
    }

    /// Those that can be answered now that `applied` is.
    pub fn ready(&mut self, applied: u64) -> Vec<Read> {
        self.take(|stage, _| matches!(stage, Stage::Granted(index) if *index <= applied))
    }

    /// Those whose deadline has passed.
    pub fn expired(&mut self, now: Micros) -> Vec<Waiter> {
        let expired = self.take(|_, read| read.waiter.deadline <= now);
        expired.into_iter().map(|read| read.waiter).collect()
    }

    /// All of them: this node leads no more.
    pub fn drain(&mut self) -> Vec<Waiter> {
        let all = std::mem::take(&mut self.waiting);
        all.into_iter().map(|(_, read)| read.waiter).collect()
    }

    fn take(&mut self, which: impl Fn(&Stage, &Read) -> bool) -> Vec<Read> {
        if !self.waiting.iter().any(|(s, r)| which(s, r)) {
            return Vec::new();
        }
        let (taken, kept): (Vec<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .fold((Vec::new(), VecDeque::new()), |(mut t, mut k), (s, r)| {
                if which(&s, &r) {
                    t.push(r);
                } else {
                    k.push_back((s, r));
                }
                (t, k)
            });
        self.waiting = kept;
        taken
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nowserving_line::LineName;
    use nowserving_protocol::codec::Format;

    use super::*;
    use crate::delivery::{Delivery, Via};
    use crate::request::{Effect, ReplyTo};

    fn push(reads: &mut Reads, deadline: Micros) {
        let reply = ReplyTo {
            inbox: None,
            format: Format::Json,
            op: "show",
            admin: true,
            taken: 0,
        };
        let waiter = Waiter {
            shard: 0,
            line: LineName::try_from("shop").unwrap_or_else(|_| unreachable!()),
            effect: Effect::Read,
            delivery: Delivery {
                via: Via::Plain,
                routed_after: 0,
                forwarded_at: None,
                shared: false,
            },
            reply,
            deadline,
            id: None,
            payload: Bytes::new(),
        };
        reads.push(waiter, Ask::Show);
    }

    fn deadlines(reads: &[Read]) -> Vec<Micros> {
        reads.iter().map(|read| read.waiter.deadline).collect()
    }

    #[test]
    fn one_round_serves_all_that_came_before_it_and_none_that_came_after() {
        let mut reads = Reads::default();
        push(&mut reads, 1);
        push(&mut reads, 2);
        assert!(reads.any_new());
        reads.asked(ReadId(1));
        assert!(!reads.any_new());
        push(&mut reads, 3);
        assert!(reads.any_new());
        reads.granted(ReadId(1), 7);
        assert!(deadlines(&reads.ready(6)).is_empty());
        assert_eq!(deadlines(&reads.ready(7)), [1, 2]);
        assert!(!reads.is_empty());
    }

    #[test]
    fn a_failed_round_is_asked_for_again() {
        let mut reads = Reads::default();
        push(&mut reads, 1);
        reads.asked(ReadId(1));
        push(&mut reads, 2);
        reads.asked(ReadId(2));
        reads.failed(ReadId(1));
        assert!(reads.any_new());
        reads.asked(ReadId(3));
        reads.granted(ReadId(1), 1);
        assert!(reads.ready(9).is_empty());
        reads.granted(ReadId(3), 1);
        assert_eq!(deadlines(&reads.ready(9)), [1]);
    }

    #[test]
    fn at_the_deadline_they_are_given_up_whatever_stage_they_are_in() {
        let mut reads = Reads::default();
        for deadline in [10, 20, 30] {
            push(&mut reads, deadline);
            reads.asked(ReadId(deadline));
        }
        reads.granted(ReadId(20), 5);
        let late = reads.expired(20).into_iter().map(|waiter| waiter.deadline);
        assert_eq!(late.collect::<Vec<_>>(), [10, 20]);
        let rest = reads.drain().into_iter().map(|waiter| waiter.deadline);
        assert_eq!(rest.collect::<Vec<_>>(), [30]);
        assert!(reads.is_empty());
    }
}
