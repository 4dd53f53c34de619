//! The streams of one line: one task computes all places, at most once a second, says to the line which visitors are
//! there, and asks about those whose turn has come.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use metrics::counter;
use nowserving_client::{Error, LaneName, SEEN_MAX, SeenReply, Standing, State, StatusReply};
use rand::RngExt as _;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::debug;

use super::event;
use super::facts::Facts;
use super::outlet::Outlet;
use super::visitor::{Next, Visitor};
use crate::config::LineRule;
use crate::lines::{Change, LineView, TokenChange, is_unavailable};
use crate::notices::LineNotice;
use crate::visit::Visit;

/// A place is told at most this often.
const PLACE_EVERY: Duration = Duration::from_secs(1);
/// A change makes several events, and the board is the last of them.
const SETTLES_IN: Duration = Duration::from_millis(20);
/// After a look at all places that had nothing to tell.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_secs(1);
/// A stream on which nothing else was sent says that it is there after 15 s; ticks are a second apart.
const BEAT_AFTER: Duration = Duration::from_secs(14);
/// Questions about tokens under way at once.
const ASKING_MAX: usize = 64;
/// Messages with many tickets under way at once.
const SEEING_MAX: usize = 8;
/// How often some visitors are asked about, for the forecasts of all.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);
/// After an answer that did not come.
const RETRY: Duration = Duration::from_secs(1);
/// How often a visitor is asked about whose place events do not tell.
const UNKNOWN: std::ops::RangeInclusive<u64> = 3_000..=30_000;
/// So many visitors are told in one go, before other tasks have their turn.
const BATCH: usize = 256;
/// Until the line says how often it wants to hear of its visitors.
const SEEN_EVERY: Duration = Duration::from_secs(10);
const SEEN_EVERY_MIN: Duration = Duration::from_millis(500);
/// An operator may make the time that a place is kept for shorter at any moment.
const SEEN_EVERY_MAX: Duration = Duration::from_secs(20);
/// After a seat was lost for sure.
const AFTER_DEADLINE: Duration = Duration::from_millis(500);

/// A stream that begins.
pub(super) struct Join {
    pub ticket: String,
    /// Where its token stands: not gone. `None` if the line did not answer.
    pub status: Option<StatusReply>,
    pub outlet: Arc<Outlet>,
}

type Id = u64;
/// The answer to `seen` about some of them.
type SeenOf = (Vec<Id>, Result<SeenReply, Error>);

/// The visitors with streams of one line.
pub(super) struct LineStreams {
    view: LineView,
    rule: LineRule,
    facts: Facts,
    /// `None`: there are no announcements.
    notice: Option<LineNotice>,
    visitors: BTreeMap<Id, Visitor>,
    by_token: BTreeMap<(LaneName, u64), Id>,
    next_id: Id,
    /// To be asked about, each once.
    queue: VecDeque<Id>,
    asking: FuturesUnordered<BoxFuture<'static, (Id, Result<StatusReply, Error>)>>,
    seeing: FuturesUnordered<BoxFuture<'static, SeenOf>>,
    /// When each is to be marked as seen, but those that are being marked.
    seen_due: BTreeSet<(Instant, Id)>,
    seen_every: Duration,
    /// The line has changed since its places were looked at: first at this time.
    dirty_since: Option<Instant>,
    /// Not looked at again before.
    quiet_until: Instant,
    sampled_at: Instant,
    was_away: bool,
}

impl LineStreams {
    pub fn new(view: LineView, rule: LineRule, notice: Option<LineNotice>) -> LineStreams {
        let now = Instant::now();
        LineStreams {
            view,
            rule,
            facts: Facts::default(),
            notice,
            visitors: BTreeMap::new(),
            by_token: BTreeMap::new(),
            next_id: 0,
            queue: VecDeque::new(),
            asking: FuturesUnordered::new(),
            seeing: FuturesUnordered::new(),
            seen_due: BTreeSet::new(),
            seen_every: SEEN_EVERY,
            dirty_since: None,
            quiet_until: now,
            sampled_at: now,
            was_away: false,
        }
    }

    /// Until `stop` is true; then all its streams end.
    pub async fn run(mut self, mut joins: mpsc::Receiver<Join>, mut stop: watch::Receiver<bool>) {
        let mut changes = self.view.changes();
        let mut token_changes = self.view.token_changes();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.facts.notice = self.notice.as_ref().and_then(LineNotice::now);
        loop {
            self.ask_some();
            let tell_at = self
                .dirty_since
                .map(|since| self.quiet_until.max(since + SETTLES_IN));
            let wait = sleep_until(tell_at.unwrap_or_else(Instant::now));
            tokio::select! {
                _ = stop.changed() => break,
                joined = joins.recv() => match joined {
                    Some(joined) => self.join(joined),
                    None => break,
                },
                change = token_changes.recv() => self.changed(change),
                Ok(()) = changes.changed(), if tell_at.is_none() => self.mark_dirty(),
                () = wait, if tell_at.is_some() => self.tell().await,
                () = announced(&mut self.notice) => self.announce().await,
                Some((id, answer)) = self.asking.next() => self.answered(id, answer),
                Some((ids, reply)) = self.seeing.next() => self.seen(ids, reply),
                now = ticks.tick() => self.tick(now),
            }
        }
        for outlet in self.visitors.values().flat_map(|visitor| &visitor.outlets) {
            outlet.end(Some(event::retry()));
        }
    }

    fn join(&mut self, joined: Join) {
        let Join {
            ticket,
            status,
            outlet,
        } = joined;
        let now = Instant::now();
        self.update_facts();
        if let Some(status) = &status {
            self.facts.learn(status, now);
        }
        let token = status
            .as_ref()
            .map(|status| (status.lane.clone(), status.token));
        let known = token
            .as_ref()
            .and_then(|token| self.by_token.get(token))
            .copied();
        let id = match (known, status) {
            (Some(id), Some(status)) => {
                self.take(id, status);
                id
            }
            (_, status) => {
                let id = self.next_id;
                self.next_id += 1;
                // Its question has marked it.
                let due = now + spread(self.seen_every);
                self.visitors.insert(id, Visitor::new(ticket, status, due));
                self.seen_due.insert((due, id));
                if let Some(token) = token {
                    self.by_token.insert(token, id);
                }
                id
            }
        };
        let Some(visitor) = self.visitors.get_mut(&id) else {
            return;
        };
        if self.notice.is_some() {
            // Also that there is none any more: the reader may know one from its last stream.
            outlet.notice(event::notice(
                self.facts.notice.as_deref(),
                &outlet.language,
            ));
        }
        visitor.join(outlet, &self.facts, &self.rule);
        if visitor.status.is_none() {
            visitor.away();
            visitor.ask_at = Some(now + spread(RETRY));
        }
        note_deadline(visitor, now);
        self.mark_dirty();
    }

    fn answered(&mut self, id: Id, answer: Result<StatusReply, Error>) {
        let Some(visitor) = self.visitors.get_mut(&id) else {
            return;
        };
        visitor.is_asking = false;
        visitor.ask_at = None;
        match answer {
            Ok(status) => {
                self.facts.learn(&status, Instant::now());
                self.take(id, status);
                self.mark_dirty();
            }
            Err(error) if is_unavailable(&error) => {
                visitor.ask_at = Some(Instant::now() + RETRY + spread(RETRY));
            }
            Err(error) => {
                debug!(%error, "a stream ends");
                visitor.ended(&Visit::of_error(&error, true));
                self.remove(id);
            }
        }
    }

    /// Takes what the line says of a visitor.
    fn take(&mut self, id: Id, status: StatusReply) {
        let Some(visitor) = self.visitors.get_mut(&id) else {
            return;
        };
        let before = visitor.token().map(|(lane, token)| (lane.clone(), token));
        if visitor.answered(status, &self.facts, &self.rule) == Next::Ends {
            self.remove(id);
            return;
        }
        note_deadline(visitor, Instant::now());
        self.rename(id, before);
    }

    /// Its token was called `before`.
    fn rename(&mut self, id: Id, before: Option<(LaneName, u64)>) {
        let Some(visitor) = self.visitors.get_mut(&id) else {
            return;
        };
        let token = visitor.token().map(|(lane, token)| (lane.clone(), token));
        if token == before {
            return;
        }
        if let Some(before) = before
            && self.by_token.get(&before) == Some(&id)
        {
            self.by_token.remove(&before);
        }
        let Some(token) = token else {
            return;
        };
        let other = *self.by_token.entry(token).or_insert(id);
        if other == id {
            return;
        }
        // Both are one visitor, who came before the line answered.
        let outlets = std::mem::take(&mut visitor.outlets);
        self.remove(id);
        if let Some(other) = self.visitors.get_mut(&other) {
            for outlet in outlets {
                other.join(outlet, &self.facts, &self.rule);
            }
        }
    }

    fn changed(&mut self, change: Result<Change, RecvError>) {
        let now = Instant::now();
        match change {
            Ok(Change::Token { lane, token, what }) => {
                let before = (lane, token);
                let Some(id) = self.by_token.get(&before).copied() else {
                    return;
                };
                match what {
                    TokenChange::Moved { lane, token } => {
                        if let Some(visitor) = self.visitors.get_mut(&id) {
                            visitor.moved(lane, token);
                            // For its new ticket. In a draw all are moved.
                            visitor.ask_at = Some(now + spread(Duration::from_secs(20)));
                        }
                        self.rename(id, Some(before));
                        self.mark_dirty();
                    }
                    TokenChange::Admitted
                    | TokenChange::Claimed
                    | TokenChange::Gone
                    | TokenChange::CallAhead => self.ask(id),
                }
            }
            Ok(Change::Anew) => {
                for visitor in self.visitors.values_mut() {
                    visitor.forget_place();
                    visitor.ask_at = Some(now + spread(Duration::from_secs(5)));
                }
            }
            Ok(Change::Missed) | Err(RecvError::Lagged(_)) => {
                // The places of those who wait come with the next board.
                for visitor in self
                    .visitors
                    .values_mut()
                    .filter(|visitor| !visitor.is_waiting())
                {
                    visitor.ask_at = Some(now + spread(2 * RETRY));
                }
            }
            // The view holds a sender.
            Err(RecvError::Closed) => {}
        }
    }

    /// Tells all who wait their places.
    async fn tell(&mut self) {
        self.dirty_since = None;
        self.quiet_until = Instant::now() + LOOK_EVERY;
        self.update_facts();
        let is_away = self.view.is_away();
        let is_back = std::mem::replace(&mut self.was_away, is_away) && !is_away;
        if is_away {
            self.visitors.values_mut().for_each(Visitor::away);
            return;
        }
        if is_back {
            let others = self
                .visitors
                .iter()
                .filter(|(_, visitor)| !visitor.is_waiting());
            let others: Vec<Id> = others.map(|(id, _)| *id).collect();
            others.into_iter().for_each(|id| self.ask(id));
        }
        let waiting = || {
            self.visitors
                .iter()
                .filter(|(_, visitor)| visitor.is_waiting())
        };
        let ids: Vec<Id> = waiting().map(|(id, _)| *id).collect();
        let standings = self
            .view
            .places(waiting().filter_map(|(_, visitor)| visitor.token()));
        for (nth, (id, standing)) in ids.into_iter().zip(standings).enumerate() {
            if self.place(id, standing) {
                self.quiet_until = self.quiet_until.max(Instant::now() + PLACE_EVERY);
            }
            if nth % BATCH == BATCH - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Tells all streams another announcement.
    async fn announce(&mut self) {
        let notice = self.notice.as_ref().and_then(LineNotice::now);
        if self.facts.notice == notice {
            return;
        }
        self.facts.notice = notice;
        let mut events = BTreeMap::new();
        let outlets = self.visitors.values().flat_map(|visitor| &visitor.outlets);
        for (nth, outlet) in outlets.enumerate() {
            let event = events.entry(&*outlet.language);
            let event = event.or_insert_with_key(|language| {
                event::notice(self.facts.notice.as_deref(), language)
            });
            outlet.notice(event.clone());
            if nth % BATCH == BATCH - 1 {
                tokio::task::yield_now().await;
            }
        }
    }

    fn mark_dirty(&mut self) {
        self.dirty_since.get_or_insert_with(Instant::now);
    }

    /// Whether the visitor's streams were told.
    fn place(&mut self, id: Id, standing: Standing) -> bool {
        let Some(visitor) = self.visitors.get_mut(&id) else {
            return false;
        };
        let now = Instant::now();
        let is_told = visitor.placed(standing, &self.facts, &self.rule, now);
        let token = visitor.token();
        match standing {
            // The events of its admission were lost, and `info` knows better.
            Standing::Position(_) if token.is_some_and(|it| self.facts.is_through(it)) => {
                self.ask(id);
            }
            Standing::Position(_) => {}
            Standing::Passed => self.ask(id),
            Standing::Unknown if self.facts.is_undrawn() || visitor.ask_at.is_some() => {}
            Standing::Unknown => {
                let poll_after_ms = visitor
                    .status
                    .as_ref()
                    .map_or(0, |status| status.poll_after_ms);
                let after_ms = poll_after_ms.clamp(*UNKNOWN.start(), *UNKNOWN.end());
                visitor.ask_at = Some(now + spread(Duration::from_millis(after_ms)));
            }
        }
        is_told
    }

    fn update_facts(&mut self) {
        self.facts.update(self.view.info(), self.view.board());
    }

    fn tick(&mut self, now: Instant) {
        let quiet_since = now.checked_sub(BEAT_AFTER);
        let (mut left, mut due) = (Vec::new(), Vec::new());
        for (id, visitor) in &mut self.visitors {
            if !visitor.has_readers() {
                left.push(*id);
                continue;
            }
            for outlet in &visitor.outlets {
                if let Some(since) = quiet_since {
                    outlet.beat(event::beat(), since);
                }
            }
            if visitor.ask_at.is_some_and(|at| at <= now) {
                due.push(*id);
            }
        }
        left.into_iter().for_each(|id| self.remove(id));
        due.into_iter().for_each(|id| self.ask(id));
        if now.saturating_duration_since(self.sampled_at) >= SAMPLE_EVERY {
            self.sampled_at = now;
            self.mark_dirty();
            self.sample();
        }
        self.mark_seen(now);
    }

    /// Asks about some who wait, the fewer the further back: forecasts differ most at the front.
    fn sample(&mut self) {
        let mut picked = Vec::new();
        let (mut lane, mut nth, mut next) = (None, 0_u64, 1_u64);
        for ((of, _), id) in &self.by_token {
            if lane != Some(of) {
                (lane, nth, next) = (Some(of), 0, 1);
            }
            if !self.visitors.get(id).is_some_and(Visitor::is_waiting) {
                continue;
            }
            nth += 1;
            if nth == next {
                next += next / 2 + 1;
                picked.push(*id);
            }
        }
        picked.into_iter().for_each(|id| self.ask(id));
    }

    /// Says which visitors are there, many in one message.
    fn mark_seen(&mut self, now: Instant) {
        // Those who are due soon fill the message up.
        let soon = now + self.seen_every / 2;
        while self.seeing.len() < SEEING_MAX
            && self.seen_due.first().is_some_and(|(due, _)| *due <= now)
        {
            let mut ids = Vec::new();
            let mut tickets = Vec::new();
            while tickets.len() < SEEN_MAX
                && let Some((due, id)) = self.seen_due.first().copied()
                && due <= soon
            {
                self.seen_due.remove(&(due, id));
                if let Some(visitor) = self.visitors.get(&id) {
                    ids.push(id);
                    tickets.push(visitor.ticket.clone());
                }
            }
            if tickets.is_empty() {
                continue;
            }
            counter!("nowserving_gateway_seen_total").increment(tickets.len() as u64);
            let line = self.view.line().clone();
            let seen = async move { (ids, line.seen(tickets).await) };
            self.seeing.push(Box::pin(seen));
        }
    }

    fn seen(&mut self, ids: Vec<Id>, reply: Result<SeenReply, Error>) {
        let now = Instant::now();
        let after = match &reply {
            Ok(reply) => {
                let asked_for = Duration::from_millis(reply.poll_after_ms);
                self.seen_every = asked_for.clamp(SEEN_EVERY_MIN, SEEN_EVERY_MAX);
                self.seen_every
            }
            Err(error) => {
                debug!(%error, "the visitors were not marked as seen");
                2 * RETRY
            }
        };
        for id in &ids {
            if let Some(visitor) = self.visitors.get_mut(id) {
                visitor.seen_at = now + spread(after);
                self.seen_due.insert((visitor.seen_at, *id));
            }
        }
        match reply {
            Ok(reply) => {
                for nth in reply.gone.into_iter().chain(reply.invalid) {
                    if let Some(id) = ids.get(nth as usize) {
                        self.ask(*id);
                    }
                }
            }
            Err(error) if is_unavailable(&error) => {}
            // There is no such line any more: their own answers say so.
            Err(_) => ids.into_iter().for_each(|id| self.ask(id)),
        }
    }

    fn ask(&mut self, id: Id) {
        if let Some(visitor) = self.visitors.get_mut(&id)
            && !std::mem::replace(&mut visitor.is_asking, true)
        {
            self.queue.push_back(id);
        }
    }

    fn ask_some(&mut self) {
        while self.asking.len() < ASKING_MAX
            && let Some(id) = self.queue.pop_front()
        {
            let Some(visitor) = self.visitors.get(&id) else {
                continue;
            };
            let (view, ticket) = (self.view.clone(), visitor.ticket.clone());
            let question = async move { (id, view.status(&ticket, false).await) };
            self.asking.push(Box::pin(question));
        }
    }

    fn remove(&mut self, id: Id) {
        let Some(visitor) = self.visitors.remove(&id) else {
            return;
        };
        self.seen_due.remove(&(visitor.seen_at, id));
        if let Some((lane, token)) = visitor.token() {
            let token = (lane.clone(), token);
            if self.by_token.get(&token) == Some(&id) {
                self.by_token.remove(&token);
            }
        }
    }
}

/// Never, where there are none.
async fn announced(notice: &mut Option<LineNotice>) {
    match notice {
        Some(notice) => notice.changed().await,
        None => std::future::pending().await,
    }
}

/// A seat that is not used ends without an event, where the line publishes none.
fn note_deadline(visitor: &mut Visitor, now: Instant) {
    let status = visitor.status.as_ref();
    let status =
        status.filter(|status| matches!(status.state, State::Admitted | State::InCheckout));
    if let Some(left_ms) = status.and_then(|status| status.expires_in_ms) {
        visitor.ask_at = Some(now + Duration::from_millis(left_ms) + AFTER_DEADLINE);
    }
}

/// Somewhere in its second half.
fn spread(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random_range(0.5..1.0))
}

#[cfg(test)]
mod tests;
