//! Reads that wait for a quorum: `linearizable` ones, those without a lease, and polls that must be recorded
//! before they are answered. One confirmation round a turn serves all of them.

use nowserving_replica::ReadId;
use nowserving_shard::clock::Micros;

use super::waiter::Waiter;
use crate::request::Ask;

/// Waiting reads of a shard at most; more are refused as overloaded.
const WAITING_MAX: usize = 8_192;

#[derive(Debug)]
pub(crate) struct Read {
    pub waiter: Waiter,
    pub ask: Ask,
    /// A command that marks its token as seen was queued for it.
    pub touched: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
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
pub(crate) struct WaitingReads {
    waiting: Vec<(Stage, Read)>,
}

impl WaitingReads {
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a read. A touched one waits for its queued command, any other for a confirmation round.
    pub fn push(&mut self, read: Read) {
        let stage = match read.touched {
            true => Stage::Queued,
            false => Stage::New,
        };
        self.waiting.push((stage, read));
    }

    /// All queued commands are in the log, at `index` or before it.
    pub fn proposed(&mut self, index: u64) {
        self.advance(Stage::Queued, Stage::Granted(index));
    }

    /// Whether some read has no confirmation under way.
    #[must_use]
    pub fn any_new(&self) -> bool {
        self.waiting.iter().any(|(stage, _)| *stage == Stage::New)
    }

    /// Makes all new reads part of the round `id`.
    pub fn asked(&mut self, id: ReadId) {
        self.advance(Stage::New, Stage::Asked(id));
    }

    /// The round `id` will never be confirmed: its reads become part of the next one.
    pub fn failed(&mut self, id: ReadId) {
        self.advance(Stage::Asked(id), Stage::New);
    }

    /// A quorum confirmed the round `id`: its reads see everything through `index`.
    pub fn granted(&mut self, id: ReadId, index: u64) {
        self.advance(Stage::Asked(id), Stage::Granted(index));
    }

    fn advance(&mut self, from: Stage, to: Stage) {
        for (stage, _) in &mut self.waiting {
            if *stage == from {
                *stage = to;
            }
        }
    }

    /// Takes the reads that can be answered from the state through `applied`.
    pub fn ready(&mut self, applied: u64) -> Vec<Read> {
        self.take(|stage, _| matches!(stage, Stage::Granted(index) if *index <= applied))
    }

    /// Takes the reads whose deadline has passed.
    pub fn expired(&mut self, now: Micros) -> Vec<Read> {
        self.take(|_, read| read.waiter.deadline <= now)
    }

    /// Takes all reads, as this node has lost the lead.
    pub fn drain(&mut self) -> Vec<Read> {
        self.take(|_, _| true)
    }

    fn take(&mut self, which: impl Fn(&Stage, &Read) -> bool) -> Vec<Read> {
        let taken = self
            .waiting
            .extract_if(.., |(stage, read)| which(stage, read));
        taken.map(|(_, read)| read).collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use nowserving_line::LineName;
    use nowserving_protocol::codec::Format;

    use super::*;
    use crate::delivery::{Delivery, Via};
    use crate::request::{Effect, Inbox, ReplyTo};

    fn push(reads: &mut WaitingReads, deadline: Micros) {
        let reply = ReplyTo {
            inbox: Inbox::None,
            format: Format::Json,
            op: nowserving_protocol::operation::Operation::Show,
            pass: false,
            taken: 0,
            trace: None,
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
                term: None,
            },
            reply,
            deadline,
            id: None,
            note: None,
            payload: Bytes::new(),
        };
        reads.push(Read {
            waiter,
            ask: Ask::Show,
            touched: false,
        });
    }

    fn deadlines(reads: &[Read]) -> Vec<Micros> {
        reads.iter().map(|read| read.waiter.deadline).collect()
    }

    #[test]
    fn one_round_serves_all_that_came_before_it_and_none_that_came_after() {
        let mut reads = WaitingReads::default();
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
        let mut reads = WaitingReads::default();
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
    fn at_the_deadline_they_expire_whatever_stage_they_are_in() {
        let mut reads = WaitingReads::default();
        for deadline in [10, 20, 30] {
            push(&mut reads, deadline);
            reads.asked(ReadId(deadline));
        }
        reads.granted(ReadId(20), 5);
        assert_eq!(deadlines(&reads.expired(20)), [10, 20]);
        assert_eq!(deadlines(&reads.drain()), [30]);
        assert!(reads.is_empty());
    }
}
