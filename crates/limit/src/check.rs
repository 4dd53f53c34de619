//! The limits of one request, decided together.
//!
//! All or nothing: if the request is refused, none of its limits counts it. So a refused request costs nothing
//! elsewhere, and `retry_after_us` can be exact. Lyft's ratelimit counts each descriptor on its own, also those of
//! refused requests, unless `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT` is set; it is refused, there as here, if any
//! descriptor is over its limit. Together are decided the limits whose counters one shard has. Those of other shards
//! are decided there, each shard on its own; [`combine`] makes one answer of all, and what was counted for a request that is
//! refused is given back (`held`).
//!
//! A limit in shadow mode never refuses: if it is over, the request does not count there. Those in quota mode refuse only
//! if all of them are over (`quota_mode` in Lyft's `src/service/ratelimit.go`).

use nowserving_codec::Codec;

use crate::{Algorithm, Answer, Counter, Limit, Moment, Now};

/// What happens to a request whose counter does not exist and finds no room.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// It is allowed and not counted: [`Verdict::is_untracked`].
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

/// After how long a caller that was refused for want of room is told to come again, in µs. When there is room, is not
/// known.
pub const RETRY_WHEN_FULL_US: u64 = 1_000_000;

/// One limit of a request.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub limit: &'a Limit,
    /// Of [`crate::key::encode`], with the algorithm and the unit of the limit.
    pub key: &'a [u8],
    /// 0 asks and counts nothing.
    pub hits: u64,
    /// By [`crate::Windows`], or out of the log.
    pub at: Moment,
    /// The longest delay that the caller accepts, in µs: hits that would have to wait for longer are refused.
    pub max_delay_us: Option<u64>,
    pub when_full: WhenFull,
    pub is_shadow: bool,
    pub is_quota: bool,
}

/// What one limit says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// `allowed` also tells here whether a limit in shadow mode would have refused.
    pub answer: Answer,
    pub is_shadow: bool,
    pub is_quota: bool,
    /// There was no room for a counter.
    pub is_untracked: bool,
}

/// What all limits of a request say together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overall {
    pub allowed: bool,
    /// The answer to show: of the limits that decide, the one that is nearest to its end, or that refuses for
    /// longest. `None` if no limit decides. Its `retry_after_us` and `delay_us` are those of the whole request.
    pub shown: Option<Answer>,
    /// The place of [`Overall::shown`] in the list.
    pub shown_from: Option<usize>,
}

/// What a set of counters says of a request that is not counted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peeked {
    pub answer: Answer,
    pub place: Place,
}

/// Whether there is a counter of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Known,
    /// No, and there is room for one.
    New,
    Full,
}

/// A set of counters: [`crate::Table`] and [`crate::Saved`].
pub trait Counters {
    /// Answers so many hits and counts nothing. `reserved` counters are yet to be added for this request.
    fn peek(&mut self, ask: &Ask<'_>, hits: u64, reserved: u32, now: Now) -> Peeked;

    /// Counts the hits of a request that [`Counters::peek`] allowed, if there is a counter or room for one.
    fn record(&mut self, ask: &Ask<'_>, now: Now);
}

/// Decides a request and, unless it is refused or a `dry_run`, counts its hits. A verdict for each limit, in the same
/// order. What is left is told without hits that are not counted: those of a refused request, and of a dry run.
pub fn check<C: Counters>(
    counters: &mut C,
    asks: &[Ask<'_>],
    dry_run: bool,
    now: Now,
) -> Vec<Verdict> {
    let mut verdicts = peek_all(counters, asks, now);
    if dry_run || !is_allowed(verdicts.iter()) {
        without_hits(counters, asks, &mut verdicts, now);
    } else {
        for (ask, verdict) in asks.iter().zip(&verdicts) {
            if verdict.answer.allowed && ask.hits > 0 {
                counters.record(ask, now);
            }
        }
    }
    verdicts
}

/// What each limit says. Descriptors with the same counter are answered as if one came after the other.
fn peek_all<C: Counters>(counters: &mut C, asks: &[Ask<'_>], now: Now) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> = Vec::with_capacity(asks.len());
    let mut reserved = 0_u32;
    for ask in asks {
        let earlier = asks.iter().zip(&verdicts);
        let mut earlier = earlier.filter(|(other, _)| other.key == ask.key);
        let first = earlier.clone().next();
        // A counter that is reserved for an earlier one is there for this one too.
        let has_reserved = first.is_some_and(|(_, verdict)| !verdict.is_untracked);
        let reserved_for_others = reserved.saturating_sub(u32::from(has_reserved));
        let hits = earlier.try_fold(ask.hits, |hits, (other, verdict)| {
            hits.checked_add(verdict.counts(other.hits))
        });
        let hits = hits.unwrap_or(u64::MAX);
        let peeked = counters.peek(ask, hits, reserved_for_others, now);
        reserved += u32::from(first.is_none() && peeked.place == Place::New);
        verdicts.push(Verdict {
            answer: peeked.answer,
            is_shadow: ask.is_shadow,
            is_quota: ask.is_quota,
            is_untracked: peeked.place == Place::Full,
        });
    }
    verdicts
}

/// Tells what is left without the hits of a request that is not counted.
fn without_hits<C: Counters>(
    counters: &mut C,
    asks: &[Ask<'_>],
    verdicts: &mut [Verdict],
    now: Now,
) {
    let is_refused = !is_allowed(verdicts.iter());
    let both = asks.iter().zip(verdicts);
    for (ask, verdict) in both.filter(|(_, verdict)| verdict.answer.allowed) {
        let uncounted = counters.peek(ask, 0, 0, now).answer;
        verdict.answer = verdict.answer.without_hits(&uncounted);
        if is_refused {
            verdict.answer.delay_us = 0;
        }
    }
}

impl Verdict {
    /// Whether it is over its limit and that counts.
    pub fn refuses(&self) -> bool {
        !self.answer.allowed && !self.is_shadow
    }

    /// How many of its hits count before those of another descriptor with the same counter: none if the request can
    /// pass without them.
    fn counts(&self, hits: u64) -> u64 {
        let can_be_over = self.is_shadow || self.is_quota;
        match self.answer.allowed || !can_be_over {
            true => hits,
            false => 0,
        }
    }
}

/// The answer to the whole request, also if its limits are those of several shards.
pub fn combine<'v>(verdicts: impl IntoIterator<Item = &'v Verdict, IntoIter: Clone>) -> Overall {
    let verdicts = verdicts.into_iter();
    let allowed = is_allowed(verdicts.clone());
    let shown_from = match allowed {
        true => nearest(verdicts.clone()),
        false => longest(&verdicts),
    };
    let mut all = verdicts.clone();
    let shown = shown_from.and_then(|place| all.nth(place));
    let delays = verdicts.filter(|verdict| !verdict.is_shadow && verdict.answer.allowed);
    let delay_us = delays.map(|verdict| verdict.answer.delay_us).max();
    Overall {
        allowed,
        shown: shown.map(|verdict| Answer {
            allowed,
            delay_us: match allowed {
                true => delay_us.unwrap_or(0),
                false => verdict.answer.delay_us,
            },
            ..verdict.answer
        }),
        shown_from,
    }
}

fn is_allowed<'v>(verdicts: impl Iterator<Item = &'v Verdict> + Clone) -> bool {
    let mut quotas = verdicts.clone().filter(|verdict| verdict.is_quota);
    let has_quotas = quotas.clone().next().is_some();
    let quotas_refuse = has_quotas && quotas.all(Verdict::refuses);
    let mut others = verdicts.filter(|verdict| !verdict.is_quota);
    !quotas_refuse && !others.any(Verdict::refuses)
}

/// The one with the least left.
fn nearest<'v>(verdicts: impl Iterator<Item = &'v Verdict>) -> Option<usize> {
    let deciding = verdicts.enumerate();
    let deciding = deciding.filter(|(_, verdict)| !verdict.is_shadow && verdict.answer.allowed);
    let nearest = deciding.min_by_key(|(_, verdict)| verdict.answer.remaining);
    nearest.map(|(place, _)| place)
}

/// The one whose refusal lasts longest. Of those in quota mode only the shortest counts, and only if all refuse.
fn longest<'v>(verdicts: &(impl Iterator<Item = &'v Verdict> + Clone)) -> Option<usize> {
    // A refusal without an end is the longest.
    let lasts = |verdict: &Verdict| verdict.answer.retry_after_us.unwrap_or(u64::MAX);
    let refusing = |is_quota| {
        let all = verdicts.clone().enumerate();
        all.filter(move |(_, verdict)| verdict.is_quota == is_quota && verdict.refuses())
    };
    let all_quotas = verdicts.clone().filter(|verdict| verdict.is_quota).count();
    let quota = refusing(true).min_by_key(|(_, verdict)| lasts(verdict));
    let quota = quota.filter(|_| refusing(true).count() == all_quotas);
    let longest = refusing(false).chain(quota);
    // The first of several.
    let longest = longest.reduce(|longest, other| match lasts(other.1) > lasts(longest.1) {
        true => other,
        false => longest,
    });
    longest.map(|(place, _)| place)
}

impl Ask<'_> {
    /// What a counter says to so many hits. A queue that is too long for the caller is one without room: what was counted
    /// would wait there for nobody, and keep others out.
    pub(crate) fn peek(&self, counter: &mut Counter, hits: u64) -> Answer {
        let answer = counter.peek(self.limit, &self.at, hits);
        let (Some(max_us), Algorithm::LeakingBucket) = (self.max_delay_us, self.limit.algorithm())
        else {
            return answer;
        };
        let queue = counter.peek(self.limit, &self.at, 0);
        let too_long_us = queue.reset_us.saturating_sub(max_us);
        if too_long_us == 0 {
            return answer;
        }
        let retry_after_us = match answer.allowed {
            true => Some(too_long_us),
            false => answer.retry_after_us.map(|us| us.max(too_long_us)),
        };
        Answer {
            allowed: false,
            remaining: 0,
            retry_after_us,
            delay_us: queue.reset_us,
            ..queue
        }
    }
}

impl Peeked {
    /// For a key without a counter.
    pub(crate) fn without_counter(ask: &Ask<'_>, hits: u64, has_room: bool) -> Self {
        let fresh = || ask.peek(&mut Counter::fresh(ask.limit.algorithm()), hits);
        let (answer, place) = match (has_room, ask.when_full) {
            (true, _) => (fresh(), Place::New),
            (false, WhenFull::Allow) => (fresh(), Place::Full),
            (false, WhenFull::Deny) => (refused_for_room(ask.limit), Place::Full),
        };
        Self { answer, place }
    }
}

fn refused_for_room(limit: &Limit) -> Answer {
    Answer {
        allowed: false,
        limit: limit.requests_per_unit(),
        remaining: 0,
        reset_us: RETRY_WHEN_FULL_US,
        retry_after_us: Some(RETRY_WHEN_FULL_US),
        delay_us: 0,
    }
}
