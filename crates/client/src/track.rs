//! A token's exact place as a stream, computed from boards and polls.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use nowserving_line::State;
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::user::{StatusReply, StatusRequest, TokenBy};
use rand::RngExt;
use tokio::time::Instant;

use crate::error::Result;
use crate::feed::{FeedEvent, Watcher};
use crate::line::Line;
use crate::place::{Place, Seen};

/// After a change of leader or a lost connection all watchers of a line must poll. They spread their
/// polls over this long; boards queue for them meanwhile.
const RESYNC_SPREAD: Duration = Duration::from_millis(250);
/// After a transient error the next poll comes after this long, up to twice of it.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Polls are at least this far apart, whatever `poll_after_ms` says.
const POLL_MIN: Duration = Duration::from_millis(20);

/// A token's status whenever it changes; see [`Line::track`].
///
/// The first item is the current status. While the token waits, later items come from polls or from
/// boards; an item from a board has the board's `position`, `ahead`, `admitted_through`, `version`
/// and `at_ms`, a `turn` only if the line has one lane, and the other fields of the last poll. `version`
/// grows while the token waits, and `position` never grows within a lane; there is none until a draw is
/// done. Positions past a `position_cap` come as the cap with `position_capped`. The stream follows a
/// token that is moved into another lane: its `lane`, `token` and `ticket` change.
///
/// The stream yields transient errors and continues. It ends after any other error, and once the
/// token is gone. Dropping it stops the polls, so that the token is recycled in the end.
pub type Tracker = BoxStream<'static, Result<StatusReply>>;

/// The stream behind [`Line::track`].
pub(crate) fn track(line: Line, ticket: String) -> Tracker {
    let track = Track {
        line,
        ticket,
        watcher: None,
        view: View::default(),
        over: false,
    };
    stream::unfold(track, Track::step).boxed()
}

struct Track {
    line: Line,
    ticket: String,
    /// Subscribed on the first poll, not before.
    watcher: Option<Watcher>,
    view: View,
    over: bool,
}

impl Track {
    async fn step(mut self) -> Option<(Result<StatusReply>, Track)> {
        if self.over {
            return None;
        }
        let result = self.next().await;
        self.over = match &result {
            Ok(status) => status.state == State::Gone,
            Err(error) => !error.is_transient(),
        };
        Some((result, self))
    }

    async fn next(&mut self) -> Result<StatusReply> {
        loop {
            let watcher = match &mut self.watcher {
                Some(watcher) => watcher,
                none => none.insert(self.line.boards().await?),
            };
            let refused = watcher.refused();
            let event = tokio::select! {
                () = tokio::time::sleep_until(self.view.next_poll_at) => None,
                event = watcher.next() => Some(event?),
            };
            let changed = match event {
                Some(event) => self.view.event(&event, Instant::now()),
                // A poll can last until its deadline, and would be of no use.
                None => tokio::select! {
                    polled = self.poll() => polled?,
                    error = refused => return Err(error),
                },
            };
            if let Some(status) = changed {
                return Ok(status);
            }
        }
    }

    /// Boards that arrive meanwhile wait in the feed.
    async fn poll(&mut self) -> Result<Option<StatusReply>> {
        let request = StatusRequest {
            token: TokenBy::Ticket(self.ticket.clone()),
            consistency: None,
            holes: self.view.wants_holes(),
            pass: false,
        };
        match self.line.status_with(request).await {
            Ok(status) => {
                if let Some(ticket) = &status.ticket {
                    // The old ticket works only as long as the line remembers the move.
                    self.ticket.clone_from(ticket);
                }
                Ok(self.view.status(status, Instant::now()))
            }
            Err(error) => {
                self.view.next_poll_at = Instant::now() + RETRY_DELAY + up_to(RETRY_DELAY);
                Err(error)
            }
        }
    }
}

/// The state of the token as it is known, and the time of the next poll. No I/O.
struct View {
    /// The status given out last; `None` before the first reply.
    last: Option<StatusReply>,
    place: Place,
    /// The last board was one before the draw.
    undrawn: bool,
    next_poll_at: Instant,
}

impl Default for View {
    fn default() -> View {
        View {
            last: None,
            place: Place::new(0),
            undrawn: false,
            next_poll_at: Instant::now(),
        }
    }
}

impl View {
    fn wants_holes(&self) -> bool {
        self.place.version().is_none()
    }

    /// Takes a reply; returns it if it differs from the status given out last.
    fn status(&mut self, mut status: StatusReply, now: Instant) -> Option<StatusReply> {
        self.next_poll_at = now + Duration::from_millis(status.poll_after_ms).max(POLL_MIN);
        let last = self.last.as_ref();
        let waits = |status: &StatusReply| status.state == State::Waiting;
        // A board has overtaken it, or a leader that does not know yet that it was replaced has sent it. But that a token
        // does not wait is so whatever the version: it never waits again.
        let stale = last
            .is_some_and(|last| last.version > status.version && (waits(&status) || !waits(last)));
        let moved =
            last.is_some_and(|last| (last.token, &last.lane) != (status.token, &status.lane));
        let changed = last.is_none_or(|last| moved || has_changed(last, &status));
        if stale && moved {
            return None;
        }
        if last.is_none() || moved {
            self.place = Place::new(status.token);
        }
        match status.holes.take() {
            Some(holes) => self
                .place
                .sync(status.version, status.admitted_through, &holes),
            // The poll did not ask for holes; the next one does, and gives the place in the new lane.
            None if moved && status.state == State::Waiting => self.poll_soon(now),
            None => {}
        }
        if stale {
            return None;
        }
        self.last = Some(status.clone());
        changed.then_some(status)
    }

    /// Takes an event of the feed; returns the status that follows from it if that has changed.
    fn event(&mut self, event: &FeedEvent, now: Instant) -> Option<StatusReply> {
        match event {
            FeedEvent::Board(board) => self.board(board, now),
            FeedEvent::Resync => {
                self.place.forget();
                self.poll_soon(now);
                None
            }
        }
    }

    fn board(&mut self, event: &BoardEvent, now: Instant) -> Option<StatusReply> {
        let last = self
            .last
            .as_mut()
            .filter(|last| last.state == State::Waiting)?;
        if event.board.incarnation != last.incarnation {
            self.place.forget();
            self.poll_soon(now);
            return None;
        }
        if event.board.undrawn && event.board.version <= last.version {
            return None;
        }
        let was_undrawn = std::mem::replace(&mut self.undrawn, event.board.undrawn);
        if event.board.undrawn {
            // Until the draw is done nobody has a place.
            self.place.forget();
            last.position.take()?;
            (last.ahead, last.turn, last.position_capped) = (None, None, false);
            last.version = event.board.version;
            last.at_ms = event.board.at_ms;
            return Some(last.clone());
        }
        if was_undrawn {
            // All have new ones now, and do not ask at once.
            self.place.forget();
            self.poll_soon(now);
            return None;
        }
        let lanes = &mut event.board.lanes.iter();
        let lane = lanes.find(|lane| lane.lane == last.lane);
        let Some((lane, holes)) = lane.and_then(|lane| Some((lane, lane.holes.as_ref()?))) else {
            // Too many holes to list; or the lane was removed, and its tokens are in other lanes.
            self.place.forget();
            self.poll_soon(now);
            return None;
        };
        let was_known = self.place.version().is_some();
        let (version, prev_version) = (event.board.version, event.prev_version);
        let through = lane.admitted_through;
        let seen = match event.whole && last.token < lane.next_token {
            true => self.place.whole_board(version, through, holes),
            false => self.place.board(version, prev_version, through, holes),
        };
        match seen {
            Seen::Position(position) if version > last.version => {
                // Past the cap the status has the cap as its position, and the token only comes nearer.
                let cap = last.position.filter(|_| last.position_capped);
                let position_capped = cap.is_some_and(|cap| position > cap);
                let position = cap.map_or(position, |cap| position.min(cap));
                let changed =
                    (last.position, last.position_capped) != (Some(position), position_capped);
                last.position = Some(position);
                last.position_capped = position_capped;
                last.ahead = Some(position - 1);
                last.turn = match event.board.lanes.len() {
                    1 => Some(position).filter(|_| !position_capped),
                    // Boards do not tell how many of other lanes go first.
                    _ => None,
                };
                last.admitted_through = lane.admitted_through;
                last.version = version;
                last.at_ms = event.board.at_ms;
                changed.then(|| last.clone())
            }
            // A poll was newer than this board; the board's holes still count.
            Seen::Position(_) | Seen::Stale => None,
            // It was drawn, as all were: they must not ask at once.
            Seen::Passed if last.position.is_none() => {
                self.poll_soon(now);
                None
            }
            Seen::Passed => {
                self.next_poll_at = now;
                None
            }
            Seen::Gap => {
                // Only the first gap is a reason to poll early: where `status` cannot list the holes
                // either, every board is a gap, and regular polls must suffice.
                if was_known {
                    self.poll_soon(now);
                }
                None
            }
        }
    }

    fn poll_soon(&mut self, now: Instant) {
        self.next_poll_at = self.next_poll_at.min(now + up_to(RESYNC_SPREAD));
    }
}

/// Replies show one deadline with differences up to this: the service clock and the wall clock are
/// rounded, and the nodes' wall clocks differ.
const SAME_DEADLINE_MS: u64 = 1_000;

/// Whether the holder must see the new status.
fn has_changed(last: &StatusReply, status: &StatusReply) -> bool {
    let shown = |status: &StatusReply| {
        (
            (status.state, status.position, status.position_capped),
            (status.turn, status.call_ahead, status.epoch),
        )
    };
    let moved_by = |(old, new): (u64, u64)| old.abs_diff(new);
    let deadlines = last.expires_at_ms.zip(status.expires_at_ms);
    shown(last) != shown(status) || deadlines.map_or(0, moved_by) > SAME_DEADLINE_MS
}

fn up_to(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random::<f64>())
}

#[cfg(test)]
mod tests;
