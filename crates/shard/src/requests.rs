//! Which requests were answered lately, and how: so that a copy is answered, and not done again.
//!
//! Copies come about when a client repeats what was not answered in time, when a node passes a request
//! on twice, and when NATS gives one message to two nodes. The first case is known by the id that the
//! client gave; in the others the nodes made one up.

use nowserving_codec::{Codec, Malformed};
use nowserving_kv as kv;
use nowserving_line::{Refused, Reply, TokenRef};

use crate::limits::{HitsAnswer, LimitReply, RulesRefused};
use crate::members::{MembersChanged, MembersRefused};

mod ring;

use ring::Ring;

/// An answer is remembered for this long, on the service clock.
pub const MEMORY_MS: u64 = 120_000;
/// Answers of a shard that are remembered at most; the oldest go first. At 48 bytes each that is
/// 3 MB a shard.
pub const REQUESTS_MAX: usize = 65_536;

/// Names a request, by 128 bits of a hash.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestId {
    pub key: u128,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where the id of a request comes from.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The client gave it, the same for each repetition of one call.
    Client,
    /// Made up of the message itself, which came to this leader straight from its client.
    Direct,
    /// Made up by the node that forwarded the request.
    Forwarder,
}

/// As much of an answer as a copy needs to be answered the same.
#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The status of this token.
    Token(TokenRef),
    /// The line as it is now.
    Line,
    /// There was this place on the list of those that are told of room, or room.
    Callback { position: Option<u64> },
    /// The tokens that the call with the request's `call_id` admitted.
    Called,
    /// So many tokens of the deleted line were still to be ended.
    Deleted { remaining: u64 },
    /// Refused, for this reason.
    Refused(Refused),
    /// Refused, as a setting was out of its range.
    BadSettings,
    /// To a request about the members.
    Members(Result<MembersChanged, MembersRefused>),
    /// To an operation on a key-value.
    Kv(Result<kv::Reply, kv::Refused>),
    /// To hits on exact limits.
    LimitHits(HitsAnswer),
    /// To a request about the rules of limits: their version.
    LimitRules(Result<u64, RulesRefused>),
    /// There was such a counter, or not.
    LimitReset(bool),
}

impl Answer {
    /// The answer of a command about rate limits; a checkpoint has none.
    #[must_use]
    pub fn of_limit(reply: &LimitReply) -> Option<Self> {
        match reply {
            LimitReply::Hits(verdicts) => Some(Answer::LimitHits(HitsAnswer::new(verdicts))),
            LimitReply::Rules(result) => Some(Answer::LimitRules(*result)),
            LimitReply::Reset(was_there) => Some(Answer::LimitReset(*was_there)),
            LimitReply::Checkpoint { .. } => None,
        }
    }

    /// The answer of an operation on a line.
    #[must_use]
    pub fn of(result: &Result<Reply, Refused>) -> Self {
        match result {
            Ok(Reply::Token(at)) => Answer::Token(*at),
            Ok(Reply::Callback { position }) => Answer::Callback {
                position: *position,
            },
            Ok(Reply::Called) => Answer::Called,
            Ok(Reply::Deleted { remaining }) => Answer::Deleted {
                remaining: *remaining,
            },
            Ok(_) => Answer::Line,
            Err(Refused::BadField(_)) => Answer::BadSettings,
            Err(refused) => Answer::Refused(refused.clone()),
        }
    }
}

#[derive(Codec, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) origin: Origin,
    pub(crate) at_ms: u64,
    pub(crate) answer: Answer,
}

/// The memory. Each operation on it costs a look-up.
#[derive(Debug)]
pub struct Requests(Ring);

impl Default for Requests {
    fn default() -> Self {
        Requests::new(0)
    }
}

impl Requests {
    /// The seed should be unknown to clients: where the memory keeps an answer depends on it, and nothing else does.
    #[must_use]
    pub fn new(seed: u128) -> Self {
        Requests(Ring::new(seed))
    }

    /// The same with another seed.
    pub(crate) fn set_seed(&mut self, seed: u128) {
        self.0.set_seed(seed);
    }

    /// How a request with this id was answered.
    ///
    /// Two messages that came straight from clients are never copies of each other, unless a client
    /// says so: one that uses the same inbox for all it sends can send the same message twice and mean
    /// it.
    #[must_use]
    pub fn answer(&self, id: RequestId) -> Option<Answer> {
        if nowserving_bite::is(nowserving_bite::Break::S13Requests) {
            return None;
        }
        let found = self.0.get(id.key)?;
        let both_direct = (found.origin, id.origin) == (Origin::Direct, Origin::Direct);
        (!both_direct).then_some(found.answer)
    }

    /// Remembers an answer in place of a former one with this id, and forgets the oldest ones beyond the limits.
    /// `now_ms` never falls.
    pub fn remember(&mut self, id: RequestId, answer: Answer, now_ms: u64) {
        self.forget(now_ms);
        let remembered = Remembered {
            origin: id.origin,
            at_ms: now_ms,
            answer,
        };
        self.0.push(id.key, remembered);
    }

    /// The hits of this request are given back: a copy counts anew. Whether it is remembered that they counted.
    pub(crate) fn forget_hits(&mut self, key: u128) -> bool {
        let found = self.0.get(key);
        let counted = found
            .is_some_and(|it| matches!(it.answer, Answer::LimitHits(hits) if hits.allowed != 0));
        if counted {
            self.0.remove(key);
        }
        counted
    }

    /// Forgets requests that are too old.
    pub fn forget(&mut self, now_ms: u64) {
        self.0.forget(now_ms);
    }

    /// From when on [`Requests::forget`] forgets all of them. `None`: none is remembered.
    #[must_use]
    pub fn all_forgotten_at_ms(&self) -> Option<u64> {
        let newest_ms = self.0.newest_ms()?;
        Some(newest_ms.saturating_add(MEMORY_MS))
    }

    /// What it has allocated.
    #[cfg(test)]
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.0.allocated_bytes()
    }

    /// Puts the next answer of a snapshot at the end.
    pub(crate) fn add(&mut self, key: u128, remembered: Remembered) -> Result<(), Malformed> {
        let is_earlier = (self.0.newest_ms()).is_some_and(|newest| newest > remembered.at_ms);
        if is_earlier || self.0.get(key).is_some() {
            return Err(Malformed("requests out of order"));
        }
        let oldest_ms = self.0.oldest_ms().unwrap_or(remembered.at_ms);
        if remembered.at_ms - oldest_ms >= MEMORY_MS || self.len() == REQUESTS_MAX {
            return Err(Malformed("requests that should be forgotten"));
        }
        self.0.push(key, remembered);
        Ok(())
    }

    /// How many are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The key that was remembered last, and its answer.
    #[must_use]
    pub fn newest(&self) -> Option<(u128, Answer)> {
        self.0.newest().map(|(key, it)| (key, it.answer))
    }

    /// From this place on, in order of time.
    pub(crate) fn iter_from(&self, place: usize) -> impl Iterator<Item = (u128, Remembered)> {
        self.0.iter_from(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(key: u128, origin: Origin) -> RequestId {
        RequestId { key, origin }
    }

    #[test]
    fn two_direct_messages_are_never_copies_and_all_others_are() {
        use Origin::{Client, Direct, Forwarder};
        for first in [Client, Direct, Forwarder] {
            for second in [Client, Direct, Forwarder] {
                let mut requests = Requests::default();
                requests.remember(id(7, first), Answer::Line, 0);
                let copy = requests.answer(id(7, second)).is_some();
                assert_eq!(
                    copy,
                    (first, second) != (Direct, Direct),
                    "{first:?} {second:?}"
                );
                assert_eq!(requests.answer(id(8, second)), None);
            }
        }
    }

    #[test]
    fn hits_that_are_given_back_are_forgotten_and_nothing_else() {
        let hits = |allowed| {
            Answer::LimitHits(HitsAnswer {
                limits: 1,
                allowed,
                untracked: 0,
                delay_us: 0,
            })
        };
        let mut requests = Requests::default();
        let answers = [hits(1), hits(0), Answer::Line, hits(1)];
        for (key, answer) in (0..).zip(answers) {
            requests.remember(id(key, Origin::Client), answer, 5);
        }
        let forgotten: Vec<_> = (0..3).map(|key| requests.forget_hits(key)).collect();
        assert_eq!(forgotten, [true, false, false]);
        assert!(!requests.forget_hits(0), "once");
        let known = (0..4).map(|key| requests.answer(id(key, Origin::Client)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), [false, true, true, true]);
        assert_eq!(requests.len(), 3);
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut requests = Requests::default();
        for key in 0..=REQUESTS_MAX as u128 {
            requests.remember(id(key, Origin::Client), Answer::Line, 5);
        }
        assert_eq!(requests.len(), REQUESTS_MAX);
        assert_eq!(requests.answer(id(0, Origin::Client)), None);
        assert!(requests.answer(id(1, Origin::Client)).is_some());
    }
}
