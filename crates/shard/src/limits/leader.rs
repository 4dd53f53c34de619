//! The counters in a leader's memory, and when they go into the log.
//!
//! Every [`CHECKPOINT_INTERVAL_US`] the counters that changed since the last checkpoint are proposed, in portions of
//! bounded size, one at a time. What a leader counted after its last checkpoint is forgotten if it dies; a planned
//! hand-over writes it first.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use nowserving_limit::{
    Change, Clock, Counted, Counter, HashSeed, Held, Limit, LimitParts, Live, PortionMax, Saved,
    Table, Verdict, Windows, check, combine, key,
};

use super::{COUNTERS_MAX, GiveBack, LimitAsk, LimitCommand, LimitReply, TimedAsk, limits_now};
use nowserving_line::LineName;

use crate::clock::Micros;

/// From the beginning of a checkpoint to that of the next one.
pub const CHECKPOINT_INTERVAL_US: Micros = 200_000;
/// From one portion of a checkpoint to the next.
const PORTION_INTERVAL_US: Micros = 10_000;
const PORTION: PortionMax = PortionMax {
    counters: 1_024,
    bytes: 65_536,
};
/// Portions that a hand-over writes at most: with more it would take too long.
const LAST_PORTIONS_MAX: usize = 16;
/// Idle counters also go when nobody asks: so many slots a second are looked at.
const SWEEP_INTERVAL_US: Micros = 1_000_000;
const SWEPT_SLOTS: u32 = 4_096;
/// So many counters of its predecessors a leader looks at in one turn.
const INHERITED_AT_ONCE: usize = 10_000;

/// The counters that were there when a leader began: how far it has looked at them.
#[derive(Debug, PartialEq, Eq)]
enum Inherited {
    /// Up to this key.
    After(Option<Box<[u8]>>),
    Seen,
}

/// See the top of this file.
#[derive(Debug)]
pub struct LeaderLimits {
    table: Table,
    windows: Windows,
    /// Hits that other limits of their checks may still refuse. The next leader does not know them: what it has of them stays.
    held: Held,
    /// Checkpoints that were proposed and are not yet applied.
    in_flight: usize,
    /// The counters in these.
    counters_in_flight: usize,
    /// The counters of resets that are on their way through the log, and how often each. A checkpoint that comes after
    /// these leaves them out: it would bring back what they forget.
    resetting: BTreeMap<Box<[u8]>, u32>,
    /// How many changed counters the present checkpoint has still to write.
    left: u32,
    /// When the present checkpoint began.
    began_at: Micros,
    /// The oldest change that the present checkpoint has still to write or that is on its way, and the oldest one since.
    oldest: [Option<Micros>; 2],
    next_portion_at: Micros,
    next_sweep_at: Micros,
    /// On the service clock, when all counters are idle that go by it, as far as this leader has seen them.
    in_use_until_ms: u64,
    /// Up to which key it has looked at the counters of its predecessors.
    inherited: Inherited,
    /// Requests that were answered, and those of them that were refused.
    checks: u64,
    refused: u64,
    /// Those of them with a limit whose counter found no room.
    untracked: u64,
    /// Counters of checkpoints that found no room there.
    not_kept: u64,
}

impl LeaderLimits {
    /// `seed`: random and kept from clients, so that they cannot make keys of equal hashes.
    #[must_use]
    pub fn new(seed: [u64; 2]) -> Self {
        LeaderLimits {
            table: Table::new(COUNTERS_MAX, HashSeed(seed)),
            windows: Windows::new(),
            held: Held::default(),
            in_flight: 0,
            counters_in_flight: 0,
            resetting: BTreeMap::new(),
            left: 0,
            began_at: 0,
            oldest: [None, None],
            next_portion_at: 0,
            next_sweep_at: 0,
            in_use_until_ms: 0,
            inherited: Inherited::After(None),
            checks: 0,
            refused: 0,
            untracked: 0,
            not_kept: 0,
        }
    }

    #[must_use]
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// How many counters changed that no checkpoint in the log has yet.
    #[must_use]
    pub fn changed(&self) -> u64 {
        u64::from(self.table.dirty()) + self.counters_in_flight as u64
    }

    /// Since when there is a change that no checkpoint in the log has. A failover forgets the hits since then. It can be
    /// too early by one checkpoint, never too late.
    #[must_use]
    pub fn oldest_change(&self) -> Option<Micros> {
        self.oldest.into_iter().flatten().min()
    }

    /// Whether a counter may be in use at this time of the service clock that goes by it.
    pub(crate) fn are_in_use(&self, saved: &Saved, service_ms: u64) -> bool {
        let all_seen = saved.is_empty() || self.inherited == Inherited::Seen;
        !all_seen || service_ms < self.in_use_until_ms
    }

    /// Looks at the next counters that were there when it began to lead.
    pub(crate) fn look_at_inherited(&mut self, saved: &Saved) {
        let Inherited::After(from) = std::mem::replace(&mut self.inherited, Inherited::Seen) else {
            return;
        };
        let mut left = INHERITED_AT_ONCE;
        saved.each_after(from.as_deref(), |key, counter| {
            self.is_used(key::clock(key), counter.idle_at_us());
            left -= 1;
            if left == 0 {
                self.inherited = Inherited::After(Some(key.into()));
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
    }

    /// A counter is idle from then on, by its clock.
    fn is_used(&mut self, clock: Clock, idle_at_us: u64) {
        if clock == Clock::Service {
            let until_ms = idle_at_us.div_ceil(1_000);
            self.in_use_until_ms = self.in_use_until_ms.max(until_ms);
        }
    }

    /// Requests that this leader answered, and those of them that were refused.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.checks, self.refused)
    }

    /// Requests with a limit whose counter found no room.
    #[must_use]
    pub fn untracked(&self) -> u64 {
        self.untracked
    }

    /// How many counters found no room in a checkpoint, once for each checkpoint.
    #[must_use]
    pub fn not_kept(&self) -> u64 {
        self.not_kept
    }

    /// Decides a request at the moment `at` and counts its hits unless it is a `dry_run`. A verdict for each limit.
    pub fn check(
        &mut self,
        saved: &Saved,
        asks: &[LimitAsk],
        dry_run: bool,
        at: Micros,
        (service_ms, wall_ms): (u64, u64),
    ) -> Vec<Verdict> {
        let now = limits_now(service_ms, wall_ms);
        let windows = &mut self.windows;
        let asks: Vec<_> = asks
            .iter()
            .map(|ask| ask.at(windows.moment(&ask.limit, now)))
            .collect();
        let table = &mut self.table;
        let verdicts = check(&mut Live { table, saved }, &asks, dry_run, now);
        if nowserving_bite::is(nowserving_bite::Break::S20Twice) {
            let table = &mut self.table;
            drop(check(&mut Live { table, saved }, &asks, dry_run, now));
        }
        if !dry_run {
            self.count(&verdicts);
            for (ask, verdict) in asks.iter().zip(&verdicts) {
                let idle_at_us = ask.at.now_us.saturating_add(verdict.answer.reset_us);
                self.is_used(ask.limit.clock(), idle_at_us);
            }
            let [_, since] = &mut self.oldest;
            *since = since.or((self.table.dirty() > 0).then_some(at));
        }
        verdicts
    }

    /// Remembers what a check has counted just now, so that it can be given back.
    pub fn hold(&mut self, name: u128, asks: &[LimitAsk], verdicts: &[Verdict]) {
        if combine(verdicts).allowed {
            let counted = counted(asks.iter(), verdicts, |key| self.table.get(key));
            self.held.hold(name, counted);
        }
    }

    /// Gives back what the check of this name has counted, if this leader counted it and nobody has given it back. What each
    /// of its limits says then; none if nothing was given back.
    pub fn give_back(
        &mut self,
        saved: &Saved,
        name: u128,
        at: Micros,
        (service_ms, wall_ms): (u64, u64),
    ) -> Vec<Verdict> {
        let now = limits_now(service_ms, wall_ms);
        let Some(back) = self.held.take(name, now) else {
            return Vec::new();
        };
        for counted in back.iter().filter(|it| it.hits > 0) {
            self.table.give_back(counted, now);
            if nowserving_bite::is(nowserving_bite::Break::S20Back) {
                self.table.give_back(counted, now);
            }
        }
        let [_, since] = &mut self.oldest;
        *since = since.or((self.table.dirty() > 0).then_some(at));
        let asks = back.iter().map(|it| LimitAsk {
            hits: 0,
            ..LimitAsk::of_counted(it)
        });
        let asks: Vec<_> = asks.collect();
        self.check(saved, &asks, true, at, (service_ms, wall_ms))
    }

    /// The command that gives back what a request to exact limits has counted; `None` if this leader does not know it (any more).
    pub fn give_back_exact(
        &mut self,
        domain: LineName,
        request: u128,
        (service_ms, wall_ms): (u64, u64),
    ) -> Option<LimitCommand> {
        let now = limits_now(service_ms, wall_ms);
        let mut back = self.held.take(request, now)?;
        for counted in &mut back {
            // What counts there when this is applied are hits after the reset.
            if self.resetting.contains_key(&counted.key) {
                counted.hits = 0;
            }
        }
        let asks = back.iter().map(LimitAsk::of_counted).collect();
        Some(LimitCommand::GiveBack(GiveBack {
            domain,
            request,
            asks: self.timed(asks, (service_ms, wall_ms)),
            marks: back.iter().map(|counted| counted.mark).collect(),
        }))
    }

    /// Whether a give-back of this request is on its way through the log. Then a copy must not be told that it may pass: it
    /// is decided once that is applied.
    #[must_use]
    pub fn gives_back_exact(&self, request: u128) -> bool {
        self.held.gives_back(request)
    }

    /// A copy of this request was told that it may pass: its hits stay.
    pub fn keep(&mut self, request: u128) {
        self.held.keep(request);
    }

    /// What a request to exact limits would be answered. Nothing is counted.
    pub fn dry_run_exact(
        &mut self,
        saved: &Saved,
        asks: &[LimitAsk],
        (service_ms, wall_ms): (u64, u64),
    ) -> Vec<Verdict> {
        let now = limits_now(service_ms, wall_ms);
        let windows = &mut self.windows;
        let verdict = |ask: &LimitAsk| Verdict {
            answer: saved.dry_run(&ask.at(windows.moment(&ask.limit, now))),
            is_shadow: ask.is_shadow,
            is_quota: ask.is_quota,
            is_untracked: false,
        };
        asks.iter().map(verdict).collect()
    }

    /// The times for a request to exact limits: those of the leader count on all nodes.
    pub fn timed(
        &mut self,
        asks: Vec<LimitAsk>,
        (service_ms, wall_ms): (u64, u64),
    ) -> Vec<TimedAsk> {
        let now = limits_now(service_ms, wall_ms);
        let timed = asks.into_iter().map(|ask| TimedAsk {
            at: self.windows.moment(&ask.limit, now),
            ask: LimitAsk {
                limit: without_zone(&ask.limit),
                ..ask
            },
        });
        timed.collect()
    }

    fn count(&mut self, verdicts: &[Verdict]) {
        let allowed = combine(verdicts).allowed;
        self.checks += 1;
        self.refused += u64::from(!allowed);
        let is_untracked = verdicts.iter().any(|verdict| verdict.is_untracked);
        self.untracked += u64::from(is_untracked);
    }

    /// The next portion of a checkpoint if it is due.
    pub(crate) fn propose(
        &mut self,
        resets: u64,
        now: Micros,
        (service_ms, wall_ms): (u64, u64),
    ) -> Option<LimitCommand> {
        if now >= self.next_sweep_at && !self.table.is_empty() {
            self.next_sweep_at = now + SWEEP_INTERVAL_US;
            self.table
                .sweep(limits_now(service_ms, wall_ms), SWEPT_SLOTS);
        }
        if now < self.portion_due()? {
            return None;
        }
        if self.left == 0 {
            self.began_at = now;
            self.left = self.table.dirty();
            self.oldest = [self.oldest_change(), None];
        }
        let changes = self.portion();
        self.next_portion_at = match self.left {
            0 => self.began_at + CHECKPOINT_INTERVAL_US,
            _ => now + PORTION_INTERVAL_US,
        };
        if changes.is_empty() {
            self.is_written();
            return None;
        }
        Some(self.checkpoint(resets, changes))
    }

    /// `resets` were applied; by the time of this command those that are on their way will be, too.
    fn checkpoint(&mut self, resets: u64, changes: Vec<Change>) -> LimitCommand {
        self.in_flight += 1;
        self.counters_in_flight += changes.len();
        let before: u64 = self.resetting.values().map(|it| u64::from(*it)).sum();
        LimitCommand::Checkpoint {
            resets: resets + before,
            changes,
        }
    }

    fn portion(&mut self) -> Vec<Change> {
        let before = self.table.dirty();
        let changes = self.table.changes(PORTION);
        let written = before.saturating_sub(self.table.dirty());
        self.left = self.left.saturating_sub(written).min(self.table.dirty());
        let (left_out, changes): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .partition(|change| self.resetting.contains_key(&change.key));
        if !left_out.is_empty() {
            self.put_back(&left_out);
        }
        changes
    }

    /// Before leadership is given away: everything that is not in a checkpoint yet.
    pub(crate) fn propose_last(&mut self, resets: u64) -> Vec<LimitCommand> {
        let mut commands = Vec::new();
        for _ in 0..LAST_PORTIONS_MAX {
            let changes = self.portion();
            if !changes.is_empty() {
                commands.push(self.checkpoint(resets, changes));
            }
        }
        commands
    }

    /// When a portion is due, if something is to be written and nothing is on its way.
    fn portion_due(&self) -> Option<Micros> {
        if nowserving_bite::is(nowserving_bite::Break::S20Late) {
            return None;
        }
        (self.in_flight == 0 && self.table.dirty() > 0).then_some(self.next_portion_at)
    }

    /// When [`LeaderLimits::propose`] has something to do.
    pub(crate) fn next_due(&self) -> Option<Micros> {
        let sweep = (!self.table.is_empty()).then_some(self.next_sweep_at);
        self.portion_due().into_iter().chain(sweep).min()
    }

    /// A command of this term was applied, that of this request if it is one.
    pub(crate) fn after(
        &mut self,
        command: &LimitCommand,
        reply: &LimitReply,
        request: Option<u128>,
        saved: &Saved,
    ) {
        match (command, reply) {
            (
                LimitCommand::Checkpoint { changes, .. },
                LimitReply::Checkpoint { merged, not_kept },
            ) => {
                self.left_log(changes);
                self.not_kept += *not_kept as u64;
                match merged {
                    true => self.is_written(),
                    false => self.put_back(changes),
                }
            }
            (LimitCommand::Reset(reset), _) => {
                self.table.remove(&reset.key);
                self.held.forget(&reset.key);
                self.reset_ended(&reset.key);
            }
            (LimitCommand::Hits { asks, .. }, LimitReply::Hits(verdicts)) => {
                for (TimedAsk { ask, at }, verdict) in asks.iter().zip(verdicts) {
                    let idle_at_us = at.now_us.saturating_add(verdict.answer.reset_us);
                    self.is_used(ask.limit.clock(), idle_at_us);
                }
                self.count(verdicts);
                if let Some(request) = request.filter(|_| combine(verdicts).allowed) {
                    let asks = asks.iter().map(|timed| &timed.ask);
                    let counted = counted(asks, verdicts, |key| saved.get(key));
                    self.held.hold(request, counted);
                }
            }
            (LimitCommand::GiveBack(it), _) => self.held.give_back_ended(it.request),
            _ => {}
        }
    }

    /// Hits on exact limits were refused without the log.
    pub fn refused(&mut self, verdicts: &[Verdict]) {
        self.count(verdicts);
    }

    /// A request is queued for the log.
    pub fn queued(&mut self, command: &LimitCommand) {
        match command {
            LimitCommand::Reset(reset) => {
                *self.resetting.entry(reset.key.clone()).or_default() += 1;
            }
            LimitCommand::GiveBack(it) => {
                let counted = it.counted().collect();
                self.held.give_back_queued(it.request, counted);
            }
            _ => {}
        }
    }

    fn reset_ended(&mut self, key: &[u8]) {
        if let Some(resets) = self.resetting.get_mut(key) {
            *resets -= 1;
            if *resets == 0 {
                self.resetting.remove(key);
            }
        }
    }

    /// A member of the group does not know the command yet, or it waited for too long.
    pub(crate) fn not_proposed(&mut self, command: &LimitCommand) {
        match command {
            LimitCommand::Checkpoint { changes, .. } => {
                self.left_log(changes);
                self.put_back(changes);
            }
            command => self.not_executed(command),
        }
    }

    /// It was a copy of one that was applied.
    pub(crate) fn not_executed(&mut self, command: &LimitCommand) {
        match command {
            LimitCommand::Reset(reset) => self.reset_ended(&reset.key),
            LimitCommand::GiveBack(it) => self.held.give_back_ended(it.request),
            _ => {}
        }
    }

    /// They are written by the next checkpoint.
    fn put_back(&mut self, changes: &[Change]) {
        self.table.put_back(changes);
        self.oldest[1] = self.oldest_change();
    }

    /// Forgets how old changes were that are in the log.
    fn is_written(&mut self) {
        if self.in_flight == 0 {
            self.table.is_saved();
        }
        if self.in_flight == 0 && self.left == 0 {
            let [_, since] = self.oldest;
            self.oldest = [None, since.filter(|_| self.table.dirty() > 0)];
        }
    }

    fn left_log(&mut self, changes: &[Change]) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.counters_in_flight = self.counters_in_flight.saturating_sub(changes.len());
    }
}

/// What a request has counted just now. The hits of descriptors with the same counter are counted as those of the first.
fn counted<'a, 'c>(
    asks: impl Iterator<Item = &'a LimitAsk>,
    verdicts: &[Verdict],
    counter: impl Fn(&[u8]) -> Option<Cow<'c, Counter>>,
) -> Vec<Counted> {
    let mut all: Vec<Counted> = Vec::with_capacity(verdicts.len());
    for (ask, verdict) in asks.zip(verdicts) {
        let counter = counter(&ask.key);
        let has_counted = verdict.answer.allowed && !verdict.is_untracked && counter.is_some();
        let mut hits = if has_counted { ask.hits } else { 0 };
        if let Some(first) = all.iter_mut().find(|it| it.key == ask.key) {
            first.hits = first.hits.saturating_add(std::mem::take(&mut hits));
        }
        all.push(Counted {
            key: ask.key.clone(),
            limit: ask.limit.clone(),
            hits,
            mark: counter.map(|counter| counter.mark()).unwrap_or_default(),
        });
    }
    all
}

/// Of a window by the calendar the leader's reading counts: nodes need not know its zone.
fn without_zone(limit: &Limit) -> Limit {
    let parts = LimitParts {
        zone: None,
        ..limit.parts().clone()
    };
    Limit::new(parts).unwrap_or_else(|_| limit.clone())
}
