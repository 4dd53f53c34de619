//! Which tokens expire, and when: the leader's time-ordered index over the live tokens of its
//! shard. The cost of a pass depends on the tokens that it finds, not on those that wait.
//!
//! The leader alone knows, in memory, when a token was last seen; the replicated state holds a
//! checkpoint of it. No poll is answered while that checkpoint is more than six sixteenths of the
//! timeout behind: such a poll waits until a newer one is committed ([`Recycler::touch`]). Clients
//! that ask as often as `poll_after_ms` says never wait. A new leader gives every token that it has
//! not seen itself seven sixteenths of a timeout on top of the checkpoint, so it recycles no token
//! whose poll the old leader answered in time. One more sixteenth may be lost because the clock is
//! stamped only so often: in all, one and a half timeouts. The grace depends on the checkpoint and not
//! on the election, so no chain of elections can keep dead tokens in line.

use std::collections::{BTreeMap, VecDeque};

use nowserving_line::{
    Event, Line, LineName, Lines, Live, Op, RECYCLE_MAX, Reason, RecycleItem, Settings, State,
    TOUCH_MAX, Token, TokenChange, TokenRef, WORK_MAX,
};

use crate::token_map::{Due, TokenMap};

/// The most tokens that one pass looks at, of those still to be indexed and of the index each: as many as one
/// log entry can end.
const PASS_TOKENS_MAX: usize = WORK_MAX as usize;
/// Extra time for seat holders after a change of leader: enough to repeat a claim or a renewal
/// that the old leader did not answer.
const SEAT_GRACE_MAX_MS: u64 = 5_000;
/// A token proposed for recycling is looked at again after this, should the entry be lost.
const RETRY_MS: u64 = 1_000;

/// The leader's knowledge about one live token beyond the replicated state.
#[derive(Debug, Clone)]
struct Watched {
    due_ms: u64,
    seen: Seen,
    /// Its deadline from an earlier leader's time; it has grace until it gets another deadline.
    inherited_deadline_ms: MaybeMs,
}

// One for each live token of the shard.
const _: () = assert!(size_of::<Watched>() == 24);

/// A time that may be none, in half of the memory of an `Option`: no clock comes to the largest number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MaybeMs(u64);

impl From<Option<u64>> for MaybeMs {
    fn from(ms: Option<u64>) -> Self {
        MaybeMs(ms.unwrap_or(u64::MAX))
    }
}

impl MaybeMs {
    fn get(self) -> Option<u64> {
        Some(self.0).filter(|ms| *ms < u64::MAX)
    }
}

/// When this leader last saw a token, which may be never, and in the lowest bit whether it is listed in `to_checkpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen(u64);

impl Seen {
    fn new(last_ms: Option<u64>, is_listed: bool) -> Self {
        let last_ms = last_ms.map_or(u64::MAX << 1, |ms| ms << 1);
        Seen(last_ms | u64::from(is_listed))
    }

    fn last_ms(self) -> Option<u64> {
        Some(self.0 >> 1).filter(|ms| *ms < u64::MAX >> 1)
    }

    fn is_listed(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Due for Watched {
    fn due_ms(&self) -> u64 {
        self.due_ms
    }
}

/// The index of one leadership over one shard. All times are of the shard's service clock.
#[derive(Debug, Default)]
pub struct Recycler {
    watched: TokenMap<Watched>,
    /// Lines whose live tokens are still to be indexed, each with the next token.
    to_index: VecDeque<(LineName, (u8, Token))>,
    /// A new leader's first pass over the lines goes on after this name; `None` when it is complete.
    takeover: Option<Option<LineName>>,
    to_checkpoint: BTreeMap<LineName, Vec<TokenRef>>,
    checkpoint_due_ms: Option<u64>,
    shortest_timeout_ms: Option<u64>,
}

impl Recycler {
    /// A new leader's: will index the state that an earlier leader left.
    #[must_use]
    pub fn new() -> Self {
        Recycler {
            takeover: Some(None),
            ..Recycler::default()
        }
    }

    /// The shortest timeout of any token seen in this leadership: how often the clock must be stamped.
    #[must_use]
    pub fn shortest_timeout_ms(&self) -> Option<u64> {
        self.shortest_timeout_ms
    }

    /// How many tokens are in the index.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// A token entered, was admitted or claimed in this leadership: its clock starts here.
    pub fn started(&mut self, line: &Line, at: TokenRef, live: Live<'_>, now_ms: u64) {
        self.watch(line, at, live, Some(now_ms), None);
    }

    /// The token is gone.
    pub fn forget(&mut self, at: TokenRef) {
        self.watched.remove(at);
    }

    /// An operator moved a waiting token: it is another one now. Its clock runs on, and it stays seen
    /// when it was.
    pub fn moved(&mut self, line: &Line, from: TokenRef, to: TokenRef, live: Live<'_>) {
        let mut inherited_deadline_ms = None;
        if let Some(old) = self.watched.remove(from) {
            inherited_deadline_ms = old.inherited_deadline_ms.get();
            if old.seen.is_listed() {
                // Where `from` is listed, it will not be found.
                let listed = self.to_checkpoint.entry(line.name().clone()).or_default();
                listed.push(to);
            }
            self.watched.insert(line.name(), to, old);
        }
        self.watch(line, to, live, None, inherited_deadline_ms);
    }

    /// A time limit of a line's waiting tokens was changed: all its waiting tokens are scheduled anew, page by
    /// page.
    pub fn reschedule(&mut self, line: &LineName) {
        // Once is enough: it begins anew if it was under way.
        self.to_index.retain(|(name, _)| name != line);
        self.to_index.push_back((line.clone(), (0, 0)));
    }

    /// A client polled for a live token. Mostly writes nothing, but may list the token for the next
    /// checkpoint. False if the client must not be answered before an [`Op::Touch`] of it is applied: were
    /// this leader lost, the next one's grace would not cover the poll.
    #[must_use]
    pub fn touch(&mut self, line: &Line, at: TokenRef, live: Live<'_>, now_ms: u64) -> bool {
        if live.state() != State::Waiting {
            return true;
        }
        let watched = match self.watched.get_mut(at) {
            Some(watched) => watched,
            None => {
                self.watch(line, at, live, None, None);
                match self.watched.get_mut(at) {
                    Some(watched) => watched,
                    None => return true,
                }
            }
        };
        let is_listed = watched.seen.is_listed();
        watched.seen = Seen::new(Some(now_ms), is_listed);
        let timeout_ms = line.settings().waiting_idle_timeout_ms;
        let known_ms = live.clock_ms();
        let behind_ms = now_ms.saturating_sub(known_ms);
        if behind_ms > timeout_ms / 16 * 6 {
            return false;
        }
        if !is_listed && behind_ms > timeout_ms / 8 {
            watched.seen = Seen::new(Some(now_ms), true);
            self.to_checkpoint
                .entry(line.name().clone())
                .or_default()
                .push(at);
            // Others join meanwhile, so that one entry carries many, but the next poll should find it done.
            let latest_ms = known_ms.saturating_add(timeout_ms / 16 * 6);
            let due_ms = now_ms.saturating_add(timeout_ms / 8).min(latest_ms);
            self.checkpoint_due_ms = Some(self.checkpoint_due_ms.map_or(due_ms, |d| d.min(due_ms)));
        }
        true
    }

    /// When the client of a waiting token was last seen: by this leader, or at the latest by an earlier one that the
    /// state does not know of.
    #[must_use]
    pub fn last_seen_ms(&self, line: &Line, at: TokenRef, live: Live<'_>) -> u64 {
        let seen_ms = self.watched.get(at).and_then(|it| it.seen.last_ms());
        let grace_ms = line.settings().waiting_idle_timeout_ms / 16 * 7;
        seen_ms.unwrap_or_else(|| live.clock_ms().saturating_add(grace_ms))
    }

    /// When the client of a waiting token was last seen by this leader, or else as far as the state knows.
    #[must_use]
    pub fn known_seen_ms(&self, at: TokenRef, live: Live<'_>) -> u64 {
        let seen_ms = self.watched.get(at).and_then(|it| it.seen.last_ms());
        seen_ms.unwrap_or(0).max(live.clock_ms())
    }

    /// When [`Recycler::pass`] will have something to do if nothing happens meanwhile; it can be past.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        if self.takeover.is_some() || !self.to_index.is_empty() {
            return Some(0);
        }
        let expiry_ms = self.watched.first_due_ms();
        expiry_ms.into_iter().chain(self.checkpoint_due_ms).min()
    }

    /// The commands to propose now, from one bounded pass.
    pub fn pass(&mut self, lines: &Lines, now_ms: u64) -> Vec<Op> {
        self.index_lines(lines);
        let mut ops = self.find_idle(lines, now_ms);
        if self.checkpoint_due_ms.is_some_and(|due| due <= now_ms) {
            ops.extend(self.checkpoint(lines));
        }
        ops
    }

    /// An [`Op::Recycle`] of these tokens was applied. Those that it should have ended and did not, as the rest of the
    /// entry had used up its work, are due at once.
    pub fn recycled(&mut self, line: &Line, items: &[RecycleItem], now_ms: u64) {
        let left = items.iter().filter(|item| line.has_expired(item, now_ms));
        for item in left {
            let at = TokenRef {
                incarnation: line.incarnation(),
                lane: item.lane,
                token: item.token,
            };
            if let Some(mut watched) = self.watched.get(at).cloned() {
                watched.due_ms = now_ms;
                self.watched.insert(line.name(), at, watched);
            }
        }
    }

    fn watch(
        &mut self,
        line: &Line,
        at: TokenRef,
        live: Live<'_>,
        last_seen_ms: Option<u64>,
        inherited_deadline_ms: Option<u64>,
    ) {
        let old = self.watched.get(at);
        let mut watched = Watched {
            due_ms: 0,
            seen: Seen::new(
                last_seen_ms.or(old.and_then(|o| o.seen.last_ms())),
                old.is_some_and(|o| o.seen.is_listed()),
            ),
            inherited_deadline_ms: inherited_deadline_ms.into(),
        };
        watched.due_ms = deadline_ms(line, live, &watched);
        self.watched.insert(line.name(), at, watched);
        let settings = line.settings();
        let most_ms = settings
            .max_wait_ms
            .filter(|_| live.state() == State::Waiting);
        let timeouts_ms = [
            Some(timeout_ms(live, settings)),
            most_ms,
            self.shortest_timeout_ms,
        ];
        self.shortest_timeout_ms = timeouts_ms.into_iter().flatten().min();
    }

    fn index_lines(&mut self, lines: &Lines) {
        let mut budget = PASS_TOKENS_MAX;
        while budget > 0
            && let Some((name, cursor)) = self.next_to_index(lines)
        {
            let Some(line) = lines.get(&name) else {
                continue;
            };
            let page: Vec<_> = line.live_from(cursor).take(budget).collect();
            // Empty lines cost a look too.
            budget -= page.len().max(1).min(budget);
            if let Some((lane, token, _)) = page.last() {
                self.to_index.push_front((name, (*lane, token + 1)));
            }
            for (lane, token, live) in page {
                let at = TokenRef {
                    incarnation: line.incarnation(),
                    lane,
                    token,
                };
                let inherited = match self.watched.get(at) {
                    Some(known) => known.inherited_deadline_ms.get(),
                    None => live.deadline_ms(),
                };
                self.watch(line, at, live, None, inherited);
            }
        }
    }

    fn next_to_index(&mut self, lines: &Lines) -> Option<(LineName, (u8, Token))> {
        let begun = self.to_index.pop_front();
        begun.or_else(|| {
            let after = self.takeover.take()?;
            let name = lines.range_after(after.as_ref()).next()?.name();
            self.takeover = Some(Some(name.clone()));
            Some((name.clone(), (0, 0)))
        })
    }

    fn find_idle(&mut self, lines: &Lines, now_ms: u64) -> Vec<Op> {
        let mut found: BTreeMap<LineName, (u64, Vec<RecycleItem>)> = BTreeMap::new();
        let mut budget = PASS_TOKENS_MAX;
        while budget > 0
            && let Some((name, mut due)) = self.watched.due(now_ms)
        {
            due.truncate(budget);
            budget -= due.len().max(1);
            for at in due {
                let line = lines
                    .get(&name)
                    .filter(|l| l.incarnation() == at.incarnation);
                let Some((line, live)) = line.and_then(|l| Some((l, l.live(at.lane, at.token)?)))
                else {
                    self.watched.remove(at);
                    continue;
                };
                let Some(watched) = self.watched.get(at) else {
                    continue;
                };
                let deadline_ms = deadline_ms(line, live, watched);
                let mut watched = watched.clone();
                watched.due_ms = if deadline_ms > now_ms {
                    deadline_ms
                } else {
                    found
                        .entry(name.clone())
                        .or_insert((at.incarnation, Vec::new()))
                        .1
                        .push(item(at, live));
                    now_ms + RETRY_MS
                };
                self.watched.insert(&name, at, watched);
            }
        }
        let ops = found.into_iter().flat_map(|(line, (incarnation, items))| {
            items
                .chunks(RECYCLE_MAX)
                .map(|tokens| Op::Recycle {
                    line: line.clone(),
                    incarnation,
                    tokens: tokens.to_vec(),
                })
                .collect::<Vec<_>>()
        });
        ops.collect()
    }

    /// Of at most [`PASS_TOKENS_MAX`] tokens; the rest stays due, and is the next pass's.
    fn checkpoint(&mut self, lines: &Lines) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut budget = PASS_TOKENS_MAX;
        while budget > 0
            && let Some((name, mut listed)) = self.to_checkpoint.pop_first()
        {
            if listed.len() > budget {
                let rest = listed.split_off(budget);
                self.to_checkpoint.insert(name.clone(), rest);
            }
            budget -= listed.len().max(1);
            let Some(line) = lines.get(&name) else {
                continue;
            };
            let mut tokens = Vec::with_capacity(listed.len());
            for at in listed {
                if let Some(watched) = self.watched.get_mut(at) {
                    let last_seen_ms = watched.seen.last_ms();
                    watched.seen = Seen::new(last_seen_ms, false);
                    if let (Some(last_seen_ms), true) =
                        (last_seen_ms, at.incarnation == line.incarnation())
                    {
                        tokens.push((at.lane, at.token, last_seen_ms));
                    }
                }
            }
            ops.extend(tokens.chunks(TOUCH_MAX).map(|tokens| Op::Touch {
                line: name.clone(),
                incarnation: line.incarnation(),
                tokens: tokens.to_vec(),
            }));
        }
        if self.to_checkpoint.is_empty() {
            self.checkpoint_due_ms = None;
        }
        ops
    }
}

fn item(at: TokenRef, live: Live<'_>) -> RecycleItem {
    RecycleItem {
        lane: at.lane,
        token: at.token,
        state: live.state(),
        clock_ms: live.clock_ms(),
    }
}

fn timeout_ms(live: Live<'_>, settings: &Settings) -> u64 {
    match live.state() {
        State::Waiting => settings.waiting_idle_timeout_ms,
        State::Admitted => settings.claim_timeout_ms,
        _ => settings.checkout_timeout_ms,
    }
}

/// When a token expires: as the state says, or later if this leader has seen it since, or cannot know
/// whether an earlier leader has.
fn deadline_ms(line: &Line, live: Live<'_>, watched: &Watched) -> u64 {
    let due_ms = line.due_at_ms(live);
    let timeout_ms = timeout_ms(live, line.settings());
    let grace_ms = if live.state() == State::Waiting {
        match watched.seen.last_ms() {
            Some(last_seen_ms) => last_seen_ms.saturating_sub(live.clock_ms()),
            None if nowserving_bite::is(nowserving_bite::Break::L4Waiting) => 2 * timeout_ms,
            None => timeout_ms / 16 * 7,
        }
    } else if watched.inherited_deadline_ms.get() == live.deadline_ms() {
        (timeout_ms / 2).min(SEAT_GRACE_MAX_MS)
    } else {
        0
    };
    // Whether a client was seen does not matter for how long it may wait.
    let wait_expires_ms = line.wait_expires_at_ms(live).unwrap_or(u64::MAX);
    due_ms.saturating_add(grace_ms).min(wait_expires_ms)
}

/// Counts the tokens that expired. Looks the metric up once for each reason, not for each token.
pub(crate) fn count(events: &[Event]) {
    for expired in [
        Reason::Idle,
        Reason::WaitExpired,
        Reason::NoShow,
        Reason::CheckoutExpired,
    ] {
        let is_such = |event: &&Event| match event {
            Event::Token { what, .. } => {
                matches!(what, TokenChange::Gone { reason, .. } if *reason == expired)
            }
            Event::Line { .. } => false,
        };
        let count = events.iter().filter(is_such).count();
        if count > 0 {
            metrics::counter!("nowserving_recycled_total", "reason" => expired.as_str())
                .increment(count as u64);
        }
    }
}

#[cfg(test)]
#[path = "recycle_tests.rs"]
mod tests;
