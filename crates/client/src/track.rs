//! A token's exact place as a stream, from boards and polls together.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream, Stream, StreamExt};
use nowserving_line::State;
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::user::{StatusReply, StatusRequest};
use rand::RngExt;
use tokio::time::Instant;

use crate::error::Result;
use crate::feed::{Beat, Watcher};
use crate::line::Line;
use crate::place::{Place, Seen};

/// A change of leader or a lost connection sends all watchers of a line to `status` together:
/// they spread over this long, in which boards still queue for them.
const RESYNC_SPREAD: Duration = Duration::from_millis(250);
/// After an error that may pass, asked again after this long and up to twice of it.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// However soon the cluster says to ask again, not sooner than this.
const POLL_MIN: Duration = Duration::from_millis(20);

/// A token's status whenever it changes; see [`Line::track`].
///
/// The first item is the status now. While the token waits, later ones come from boards (with
/// `position`, `ahead`, `admitted_through`, `version` and `at_ms` of the board, the rest of the
/// last poll) or from polls; `version` grows and, within a lane, `position` never does. With a
/// `position_cap` positions past it come as the cap, `position_capped`. A token that is moved into
/// another lane is followed there: its `lane`, `token` and `ticket` change. Errors that may pass
/// are given out and the stream goes on; it ends after any other error, and once the token is gone.
/// Dropping it stops the polls, so that in the end the token is recycled.
pub struct Tracker(BoxStream<'static, Result<StatusReply>>);

impl Stream for Tracker {
    type Item = Result<StatusReply>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl Tracker {
    pub(crate) fn new(line: Line, ticket: String) -> Tracker {
        let track = Track {
            line,
            ticket,
            watcher: None,
            view: View::default(),
            over: false,
        };
        Tracker(stream::unfold(track, Track::step).boxed())
    }
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
            let news = tokio::select! {
                () = tokio::time::sleep_until(self.view.ask_at) => self.ask().await?,
                beat = watcher.next() => self.view.beat(&beat?, Instant::now()),
            };
            if let Some(status) = news {
                return Ok(status);
            }
        }
    }

    /// Boards that come in the meantime wait in the feed.
    async fn ask(&mut self) -> Result<Option<StatusReply>> {
        let request = StatusRequest {
            ticket: self.ticket.clone(),
            consistency: None,
            holes: self.view.wants_holes(),
        };
        match self.line.status_with(request).await {
            Ok(status) => {
                if let Some(ticket) = &status.ticket {
                    // The old one would do, as long as the line remembers the move.
                    self.ticket.clone_from(ticket);
                }
                Ok(self.view.status(status, Instant::now()))
            }
            Err(error) => {
                self.view.ask_at = Instant::now() + ASK_AGAIN + up_to(ASK_AGAIN);
                Err(error)
            }
        }
    }
}

/// What is known of the token, and when to ask next. No I/O.
struct View {
    /// As told last; `None` before the first answer.
    told: Option<StatusReply>,
    place: Place,
    ask_at: Instant,
}

impl Default for View {
    fn default() -> View {
        View {
            told: None,
            place: Place::new(0),
            ask_at: Instant::now(),
        }
    }
}

impl View {
    fn wants_holes(&self) -> bool {
        self.place.version().is_none()
    }

    /// Takes in an answer; gives it back if it is news.
    fn status(&mut self, mut status: StatusReply, now: Instant) -> Option<StatusReply> {
        self.ask_at = now + Duration::from_millis(status.poll_after_ms).max(POLL_MIN);
        // A leader that has been deposed unnoticed may answer with what was true a moment ago.
        let told = self.told.as_ref();
        let stale = told.is_some_and(|told| told.version > status.version);
        let moved =
            told.is_some_and(|told| (told.token, &told.lane) != (status.token, &status.lane));
        let news = told.is_none_or(|told| moved || is_news(told, &status));
        if stale && moved {
            return None;
        }
        if told.is_none() || moved {
            self.place = Place::new(status.token);
        }
        match status.holes.take() {
            Some(holes) => self
                .place
                .sync(status.version, status.admitted_through, &holes),
            // It was asked for without: its place there begins with the next answer.
            None if moved && status.state == State::Waiting => self.ask_soon(now),
            None => {}
        }
        if stale {
            return None;
        }
        self.told = Some(status.clone());
        news.then_some(status)
    }

    /// Takes in what the feed says; gives the status that follows if it is news.
    fn beat(&mut self, beat: &Beat, now: Instant) -> Option<StatusReply> {
        match beat {
            Beat::Board(board) => self.board(board, now),
            Beat::Resync => {
                self.place.forget();
                self.ask_soon(now);
                None
            }
        }
    }

    fn board(&mut self, event: &BoardEvent, now: Instant) -> Option<StatusReply> {
        let told = self
            .told
            .as_mut()
            .filter(|told| told.state == State::Waiting)?;
        if event.board.incarnation != told.incarnation {
            self.place.forget();
            self.ask_soon(now);
            return None;
        }
        let lanes = &mut event.board.lanes.iter();
        let lane = lanes.find(|lane| lane.lane == told.lane);
        let Some((lane, holes)) = lane.and_then(|lane| Some((lane, lane.holes.as_ref()?))) else {
            // Too many to list; or the lane was removed, and who was in it is elsewhere.
            self.place.forget();
            self.ask_soon(now);
            return None;
        };
        let was_known = self.place.version().is_some();
        let (version, prev_version) = (event.board.version, event.prev_version);
        match self
            .place
            .board(version, prev_version, lane.admitted_through, holes)
        {
            Seen::Position(position) if version > told.version => {
                // While it was past the cap, that is what was told: and it only comes nearer.
                let cap = told.position.filter(|_| told.position_capped);
                let position_capped = cap.is_some_and(|cap| position > cap);
                let position = cap.map_or(position, |cap| position.min(cap));
                let news =
                    (told.position, told.position_capped) != (Some(position), position_capped);
                told.position = Some(position);
                told.position_capped = position_capped;
                told.ahead = Some(position - 1);
                told.admitted_through = lane.admitted_through;
                told.version = version;
                told.at_ms = event.board.at_ms;
                news.then(|| told.clone())
            }
            // A poll was newer than this board; the holes are taken in all the same.
            Seen::Position(_) | Seen::Stale => None,
            Seen::Passed => {
                self.ask_at = now;
                None
            }
            Seen::Gap => {
                // Only the first one is a reason to hurry: where `status` cannot list the holes
                // either, every board is a gap, and polls must do.
                if was_known {
                    self.ask_soon(now);
                }
                None
            }
        }
    }

    fn ask_soon(&mut self, now: Instant) {
        self.ask_at = self.ask_at.min(now + up_to(RESYNC_SPREAD));
    }
}

/// The same deadline is told differently by so much: the clocks of the line and of the wall are two,
/// and the wall's of another node is another.
const SAME_DEADLINE_MS: u64 = 1_000;

/// Whether the holder has to be told of it.
fn is_news(told: &StatusReply, status: &StatusReply) -> bool {
    let shown = |status: &StatusReply| {
        (
            (status.state, status.position, status.position_capped),
            (status.call_ahead, status.epoch),
        )
    };
    let moved_by = |(old, new): (u64, u64)| old.abs_diff(new);
    let deadlines = told.expires_at_ms.zip(status.expires_at_ms);
    shown(told) != shown(status) || deadlines.map_or(0, moved_by) > SAME_DEADLINE_MS
}

fn up_to(most: Duration) -> Duration {
    most.mul_f64(rand::rng().random::<f64>())
}

#[cfg(test)]
mod tests;
