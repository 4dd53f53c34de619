//! Reads that wait for a quorum: `linearizable` ones, and those that found no lease.
//!
//! However many wait, one confirmation round a turn serves them all.

use std::collections::VecDeque;

use nowserving_replica::ReadId;

use crate::request::Request;
use nowserving_shard::clock::Micros;

/// Waiting reads of a shard at most; more are refused as overloaded.
const WAITING_MAX: usize = 8_192;

#[derive(Debug)]
enum Stage {
    /// Not yet part of a confirmation round.
    New,
    /// Part of this round.
    Asked(ReadId),
    /// Confirmed: may be answered once this index is applied.
    Granted(u64),
}

/// The waiting reads of one shard.
#[derive(Debug, Default)]
pub struct Reads {
    waiting: VecDeque<(Stage, Request)>,
}

impl Reads {
    /// Whether there is no room for another.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes a read in.
    pub fn push(&mut self, request: Request) {
        self.waiting.push_back((Stage::New, request));
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether some read has no confirmation under way.
    #[must_use]
    pub fn any_new(&self) -> bool {
        // New ones are at the end: the newest tells.
        matches!(self.waiting.back(), Some((Stage::New, _)))
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
        rest.extend(failed.into_iter().map(|(_, request)| (Stage::New, request)));
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
    pub fn ready(&mut self, applied: u64) -> Vec<Request> {
        self.take(|stage, _| matches!(stage, Stage::Granted(index) if *index <= applied))
    }

    /// Those whose deadline has passed.
    pub fn expired(&mut self, now: Micros) -> Vec<Request> {
        self.take(|_, request| request.deadline <= now)
    }

    /// All of them: this node leads no more.
    pub fn drain(&mut self) -> Vec<Request> {
        self.take(|_, _| true)
    }

    fn take(&mut self, which: impl Fn(&Stage, &Request) -> bool) -> Vec<Request> {
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
    use nowserving_line::LineName;
    use nowserving_protocol::codec::Format;

    use super::*;
    use crate::request::ReplyTo;
    use nowserving_engine::Ask;

    fn read(deadline: Micros) -> Request {
        Request {
            shard: 0,
            line: LineName::try_from("shop").unwrap_or_else(|_| unreachable!()),
            ask: Ask::Show,
            reply: ReplyTo {
                subject: None,
                format: Format::Json,
                op: "show",
                admin: true,
                taken: 0,
                plain: None,
                doubtful: false,
            },
            deadline,
        }
    }

    fn deadlines(reads: &[Request]) -> Vec<Micros> {
        reads.iter().map(|read| read.deadline).collect()
    }

    #[test]
    fn one_round_serves_all_that_came_before_it_and_none_that_came_after() {
        let mut reads = Reads::default();
        reads.push(read(1));
        reads.push(read(2));
        assert!(reads.any_new());
        reads.asked(ReadId(1));
        assert!(!reads.any_new());
        reads.push(read(3));
        assert!(reads.any_new());
        reads.granted(ReadId(1), 7);
        assert!(deadlines(&reads.ready(6)).is_empty());
        assert_eq!(deadlines(&reads.ready(7)), [1, 2]);
        assert!(!reads.is_empty());
    }

    #[test]
    fn a_failed_round_is_asked_for_again() {
        let mut reads = Reads::default();
        reads.push(read(1));
        reads.asked(ReadId(1));
        reads.push(read(2));
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
            reads.push(read(deadline));
            reads.asked(ReadId(deadline));
        }
        reads.granted(ReadId(20), 5);
        assert_eq!(deadlines(&reads.expired(20)), [10, 20]);
        assert_eq!(deadlines(&reads.drain()), [30]);
        assert!(reads.is_empty());
    }
}
