//! L4 for those who wait: however often leaders change, nobody stays in line for more than one and a half
//! timeouts after its last poll, nor for longer than `max_wait_ms`, by the service clock.

use std::collections::BTreeMap;

use nowserving_line::{Event, Line, Op, Reply, TokenChange, TokenRef};

use super::Place;
use super::idle::tokens;
use super::shadow::Shadow;
use crate::env::Env;
use crate::replay::{Applied, State};
use crate::timeline::Time;

/// Waiting tokens are looked at when the service clock has moved on by so much.
const EVERY_MS: u64 = 250;
/// What a leader takes beyond the due time: a pass over the index, an entry that must be proposed again, and a
/// clock of its own that is ahead of the log's.
const LATE_MAX_MS: u64 = 1_500;

/// What is known of one shard's service clock, and of the tokens on it.
#[derive(Debug, Default)]
pub struct Ghosts {
    /// When an entry came into a log, and the service clock after it; both never fall.
    clock: Vec<(Time, u64)>,
    looked_at_ms: u64,
    /// When a token entered last, or was moved to its number.
    began_at: BTreeMap<TokenRef, Time>,
    /// When a token was issued, under whatever number.
    issued_at: BTreeMap<TokenRef, Time>,
    /// The number that a moved token had before: its client may go on asking by that.
    moved_from: BTreeMap<TokenRef, TokenRef>,
}

impl Ghosts {
    /// An operation was applied.
    pub fn applied(&mut self, place: Place, applied: &Applied<'_>) {
        if let (Op::Enter { .. }, Ok(Reply::Token(of))) = (applied.op, applied.result) {
            self.began_at.insert(*of, place.appended_at);
            self.issued_at.entry(*of).or_insert(place.appended_at);
        }
        // Of rows that are done, too, the leader takes the tokens for seen.
        if let (Op::Import { line, rows, .. }, Ok(_)) = (applied.op, applied.result)
            && let Some(line) = applied.state.lines().get(line)
        {
            for of in rows.iter().filter_map(|row| line.find(&row.key)) {
                self.began_at.insert(of, place.appended_at);
                self.issued_at.entry(of).or_insert(place.appended_at);
            }
        }
        for event in applied.events {
            if let Event::Token {
                what: TokenChange::Moved { to, .. },
                incarnation,
                lane_id,
                token,
                ..
            } = event
            {
                let from = TokenRef {
                    incarnation: *incarnation,
                    lane: *lane_id,
                    token: *token,
                };
                self.began_at.insert(*to, place.appended_at);
                if let Some(issued_at) = self.issued_at.remove(&from) {
                    self.issued_at.insert(*to, issued_at);
                }
                self.moved_from.insert(*to, from);
            }
        }
    }

    /// A line was put back: everybody waits anew.
    pub fn put_back(&mut self, place: Place, line: &Line) {
        for of in tokens(line) {
            self.began_at.insert(of, place.appended_at);
            self.issued_at.insert(of, place.appended_at);
        }
    }

    /// All of an entry was applied.
    pub fn entry(&mut self, env: &mut Env, place: Place, state: &State, shadow: &Shadow) {
        let now_ms = state.now_ms();
        let (last_at, last_ms) = self.clock.last().copied().unwrap_or_default();
        let at = place.appended_at.max(last_at);
        self.clock.push((at, now_ms.max(last_ms)));
        if now_ms < self.looked_at_ms + EVERY_MS {
            return;
        }
        self.looked_at_ms = now_ms;
        for line in state.lines().iter() {
            let incarnation = line.incarnation();
            let timeout_ms = line.settings().waiting_idle_timeout_ms;
            let max_wait_ms = line.settings().max_wait_ms.unwrap_or(u64::MAX / 4);
            let waiting = shadow.lines.get(&incarnation).into_iter();
            for (lane, token) in waiting.flat_map(|it| it.waiting()) {
                let of = TokenRef {
                    incarnation,
                    lane,
                    token,
                };
                let heard_ms = self.heard_ms(env, place.shard, line, of);
                if now_ms > heard_ms + timeout_ms * 3 / 2 + LATE_MAX_MS {
                    let what = format!(
                        "{of:?} of {} waits at {now_ms} ms on the service clock; it was heard of before {heard_ms} ms, its timeout is {timeout_ms} ms",
                        line.name()
                    );
                    return env.violated("L4", what);
                }
                let issued_ms = self.after_ms(self.issued_at.get(&of).copied().unwrap_or(0));
                if now_ms > issued_ms.saturating_add(max_wait_ms) + LATE_MAX_MS {
                    let what = format!(
                        "{of:?} of {} waits at {now_ms} ms on the service clock since {issued_ms} ms, and may for {max_wait_ms} ms",
                        line.name()
                    );
                    return env.violated("L4", what);
                }
            }
        }
    }

    /// A reading of the service clock after a token was last heard of by any node.
    fn heard_ms(&self, env: &Env, shard: u32, line: &Line, of: TokenRef) -> u64 {
        let former = std::iter::successors(Some(of), |of| self.moved_from.get(of).copied());
        let heard_at = former.filter_map(|of| env.heard.get(&(shard, of)).copied());
        let live = line.live(of.lane, of.token);
        let key = live.and_then(|live| live.key);
        let by_key = key.and_then(|key| env.heard_by_key.get(&(line.name().clone(), key.into())));
        let heard_at = heard_at.chain(by_key.copied()).max().unwrap_or(0);
        let began_at = self.began_at.get(&of).copied().unwrap_or(0);
        self.after_ms(heard_at.max(began_at))
    }

    /// A reading of the service clock after this time.
    pub fn after_ms(&self, at: Time) -> u64 {
        let after = self
            .clock
            .partition_point(|(appended_at, _)| *appended_at <= at);
        self.clock.get(after).map_or(u64::MAX / 2, |(_, ms)| *ms)
    }

    /// The last reading of the service clock.
    pub fn last_ms(&self) -> u64 {
        self.clock.last().map_or(0, |(_, ms)| *ms)
    }
}
