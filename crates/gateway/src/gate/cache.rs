//! Which tickets hold seats, as the line said last: so that a check of an admitted visitor needs no request. No I/O.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::http::HeaderValue;
use tokio::time::Instant;

/// The hash of a line and a ticket of it, keyed, so that nobody can look for two tickets with one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TicketHash(pub u128);

/// The same of a line, a lane and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TokenHash(pub u128);

/// A seat, as an answer of the line tells of it.
#[derive(Debug, Clone)]
pub(super) struct Seat {
    pub token: TokenHash,
    /// The pass for the shop behind. None if the line gave none.
    pub pass: Option<HeaderValue>,
    /// Of its claim; `None` before it.
    pub epoch: Option<u64>,
    /// Until when it is believed without asking.
    pub believed_until: Instant,
    /// Until when it is believed while the line does not answer: the pass's end.
    pub held_until: Instant,
    /// From when a visitor who is active has it renewed.
    pub renew_from: Instant,
}

/// Whether events of a line were missed: shared by its entries.
#[derive(Debug, Clone, Default)]
pub(super) struct Gaps(Arc<AtomicU64>);

impl Gaps {
    /// Makes all entries that were made before outdated.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Take it before the question is sent.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is known of a ticket.
#[derive(Debug)]
pub(super) enum Looked {
    /// It holds a seat.
    Held(Held),
    /// It did when the line was last asked: to be asked again, and believed if the line does not answer.
    Outdated(Held),
    Unknown,
}

#[derive(Debug, Clone)]
pub(super) struct Held {
    pub pass: Option<HeaderValue>,
    pub epoch: Option<u64>,
    /// The caller is to renew the seat. Said once for each third of the time that it is held for.
    pub renews: bool,
}

#[derive(Debug)]
struct Entry {
    seat: Seat,
    gaps: Gaps,
    /// [`Gaps::count`] when the line was asked.
    asked_at: u64,
    /// A visit that is being completed is not renewed, and completed once.
    completes: bool,
}

/// A bounded part of the cache; the caller has several, each with a lock.
#[derive(Debug)]
pub(super) struct Cache {
    capacity: usize,
    entries: HashMap<TicketHash, Entry>,
    /// In the order in which they came, the first to be dropped if there is no room. Some are not there any more.
    order: VecDeque<TicketHash>,
}

impl Cache {
    pub fn new(capacity: usize) -> Cache {
        Cache {
            capacity,
            entries: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// `renew_every`: a third of the time that a seat is held for.
    pub fn look(
        &mut self,
        ticket: TicketHash,
        now: Instant,
        renew_every: Option<Duration>,
    ) -> Looked {
        let Some(entry) = self.entries.get_mut(&ticket) else {
            return Looked::Unknown;
        };
        if now >= entry.seat.held_until {
            return Looked::Unknown;
        }
        let mut held = Held {
            pass: entry.seat.pass.clone(),
            epoch: entry.seat.epoch,
            renews: false,
        };
        if let Some(renew_every) = renew_every
            && now >= entry.seat.renew_from
            && !entry.completes
        {
            entry.seat.renew_from = now + renew_every;
            held.renews = held.epoch.is_some();
        }
        match now >= entry.seat.believed_until || entry.gaps.count() != entry.asked_at {
            true => Looked::Outdated(held),
            false => Looked::Held(held),
        }
    }

    /// Keeps what the line answered. `asked_at`: the gaps before the question. Returns the entry that had to go for it.
    pub fn put(
        &mut self,
        ticket: TicketHash,
        mut seat: Seat,
        gaps: &Gaps,
        asked_at: u64,
    ) -> Option<(TicketHash, TokenHash)> {
        let known = self.entries.get(&ticket);
        let completes = known.is_some_and(|known| known.completes);
        match known {
            // At its longest a seat cannot be renewed: it is not tried at each answer.
            Some(known) => seat.renew_from = seat.renew_from.max(known.seat.renew_from),
            None => self.order.push_back(ticket),
        }
        let entry = Entry {
            seat,
            gaps: gaps.clone(),
            asked_at,
            completes,
        };
        self.entries.insert(ticket, entry);
        let dropped = if self.entries.len() > self.capacity {
            self.drop_oldest()
        } else {
            None
        };
        if self.order.len() > 2 * self.capacity.max(16) {
            self.tidy();
        }
        dropped
    }

    /// Returns the token that the ticket was of.
    pub fn remove(&mut self, ticket: TicketHash) -> Option<TokenHash> {
        let entry = self.entries.remove(&ticket);
        entry.map(|entry| entry.seat.token)
    }

    /// Whether the caller is the first that completes this visit.
    pub fn completes(&mut self, ticket: TicketHash) -> bool {
        let entry = self.entries.get_mut(&ticket);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.completes, true))
    }

    /// The token that the ticket is of.
    pub fn token(&self, ticket: TicketHash) -> Option<TokenHash> {
        self.entries.get(&ticket).map(|entry| entry.seat.token)
    }

    fn drop_oldest(&mut self) -> Option<(TicketHash, TokenHash)> {
        while let Some(oldest) = self.order.pop_front() {
            if let Some(token) = self.remove(oldest) {
                return Some((oldest, token));
            }
        }
        None
    }

    /// Forgets the places of entries that are not there any more. One that was dropped and came again has two.
    fn tidy(&mut self) {
        let mut seen = HashSet::with_capacity(self.entries.len());
        let entries = &self.entries;
        self.order
            .retain(|ticket| entries.contains_key(ticket) && seen.insert(*ticket));
    }
}

/// The last things of a kind, up to so many.
#[derive(Debug)]
pub(super) struct Recent<T> {
    capacity: usize,
    order: VecDeque<T>,
    all: HashSet<T>,
}

impl<T: Copy + Eq + Hash> Recent<T> {
    pub fn new(capacity: usize) -> Recent<T> {
        Recent {
            capacity,
            order: VecDeque::new(),
            all: HashSet::new(),
        }
    }

    pub fn add(&mut self, one: T) {
        if self.all.insert(one) {
            self.order.push_back(one);
        }
        if self.order.len() > self.capacity
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
    }

    pub fn has(&self, one: T) -> bool {
        self.all.contains(&one)
    }

    pub fn clear(&mut self) {
        self.order.clear();
        self.all.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const THIRD: Option<Duration> = Some(Duration::from_secs(20));

    fn seat(now: Instant) -> Seat {
        Seat {
            token: TokenHash(1),
            pass: Some(HeaderValue::from_static("pass")),
            epoch: Some(7),
            believed_until: now + 5 * S,
            held_until: now + 60 * S,
            renew_from: now + 20 * S,
        }
    }

    fn is_held(looked: &Looked) -> bool {
        matches!(looked, Looked::Held(_))
    }

    const TICKET: TicketHash = TicketHash(1);

    #[test]
    fn a_seat_is_believed_for_a_while_then_asked_about_and_forgotten_with_its_pass() {
        let (mut cache, gaps, now) = (Cache::new(10), Gaps::default(), Instant::now());
        assert!(matches!(cache.look(TICKET, now, THIRD), Looked::Unknown));
        cache.put(TICKET, seat(now), &gaps, gaps.count());
        assert!(is_held(&cache.look(TICKET, now + 4 * S, THIRD)));
        assert!(matches!(
            cache.look(TICKET, now + 5 * S, THIRD),
            Looked::Outdated(_)
        ));
        assert!(matches!(
            cache.look(TICKET, now + 59 * S, THIRD),
            Looked::Outdated(_)
        ));
        assert!(matches!(
            cache.look(TICKET, now + 60 * S, THIRD),
            Looked::Unknown
        ));
        assert!(matches!(
            cache.look(TicketHash(2), now, THIRD),
            Looked::Unknown
        ));
        assert_eq!(cache.remove(TICKET), Some(TokenHash(1)));
        assert!(matches!(cache.look(TICKET, now, THIRD), Looked::Unknown));
    }

    #[test]
    fn after_missed_events_nothing_is_believed_that_was_asked_before() {
        let (mut cache, gaps, now) = (Cache::new(10), Gaps::default(), Instant::now());
        let before = gaps.count();
        gaps.add();
        // Missed while the question was under way.
        cache.put(TICKET, seat(now), &gaps, before);
        assert!(matches!(
            cache.look(TICKET, now, THIRD),
            Looked::Outdated(_)
        ));
        cache.put(TICKET, seat(now), &gaps, gaps.count());
        assert!(is_held(&cache.look(TICKET, now, THIRD)));
        gaps.add();
        assert!(matches!(
            cache.look(TICKET, now, THIRD),
            Looked::Outdated(_)
        ));
    }

    #[test]
    fn a_visitor_who_is_active_renews_once_in_each_third() {
        let (mut cache, gaps, now) = (Cache::new(10), Gaps::default(), Instant::now());
        let renews = |cache: &mut Cache, at: Instant| match cache.look(TICKET, at, THIRD) {
            Looked::Held(held) => held.renews,
            other => panic!("{other:?}"),
        };
        let put = |cache: &mut Cache, at: Instant| {
            let mut seat = seat(now);
            seat.believed_until = at + 60 * S;
            seat.held_until = at + 60 * S;
            cache.put(TICKET, seat, &gaps, 0);
        };
        put(&mut cache, now);
        assert!(!renews(&mut cache, now + 19 * S));
        assert!(renews(&mut cache, now + 21 * S));
        assert!(!renews(&mut cache, now + 22 * S), "it is under way");
        // It could not be made longer: an answer says the same end as before.
        put(&mut cache, now + 23 * S);
        assert!(!renews(&mut cache, now + 24 * S));
        assert!(renews(&mut cache, now + 42 * S));
        assert!(cache.completes(TICKET) && !cache.completes(TICKET));
        assert!(!renews(&mut cache, now + 80 * S), "its visit ends");
        assert!(
            !cache.completes(TicketHash(9)),
            "it is not known to hold a seat"
        );
    }

    #[test]
    fn a_visitor_who_comes_back_seldom_renews_too() {
        let (mut cache, gaps, now) = (Cache::new(10), Gaps::default(), Instant::now());
        cache.put(TICKET, seat(now), &gaps, 0);
        let renews = |cache: &mut Cache, at: Instant| match cache.look(TICKET, at, THIRD) {
            Looked::Outdated(held) => held.renews,
            other => panic!("{other:?}"),
        };
        assert!(!renews(&mut cache, now + 10 * S));
        assert!(renews(&mut cache, now + 30 * S));
        assert!(!renews(&mut cache, now + 40 * S), "it is under way");
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_go_first() {
        let (mut cache, gaps, now) = (Cache::new(3), Gaps::default(), Instant::now());
        for n in 0..3 {
            assert_eq!(cache.put(TicketHash(n), seat(now), &gaps, 0), None);
        }
        // Again: it keeps its place.
        assert_eq!(cache.put(TicketHash(0), seat(now), &gaps, 0), None);
        assert_eq!(
            cache.put(TicketHash(3), seat(now), &gaps, 0),
            Some((TicketHash(0), TokenHash(1)))
        );
        cache.remove(TicketHash(1));
        assert_eq!(cache.put(TicketHash(4), seat(now), &gaps, 0), None);
        assert_eq!(
            cache.put(TicketHash(5), seat(now), &gaps, 0),
            Some((TicketHash(2), TokenHash(1)))
        );
        for round in 0..1_000 {
            cache.put(TicketHash(round % 4), seat(now), &gaps, 0);
            cache.remove(TicketHash(round % 4));
        }
        assert!(cache.order.len() <= 33 && cache.entries.len() <= 3);
    }

    #[test]
    fn the_most_recent_are_remembered() {
        let mut recent = Recent::new(2);
        [1, 2, 2, 3].into_iter().for_each(|one| recent.add(one));
        assert_eq!([1, 2, 3].map(|one| recent.has(one)), [false, true, true]);
        recent.clear();
        assert!(!recent.has(3));
    }
}
