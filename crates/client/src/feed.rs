//! The boards of one line, subscribed to once however many watch it in this process.
//!
//! One task per watched line reads its subscriptions eagerly, decodes each board once and sends it
//! to all watchers over a bounded channel. A watcher that falls behind gets
//! [`FeedEvent::Resync`] in place of the boards that it missed; it does not hold up the others.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_nats::Message;
use futures::StreamExt;
use nowserving_line::LineName;
use nowserving_protocol::codec;
use nowserving_protocol::event::{BoardEvent, LineEvent};
use nowserving_protocol::subject::Subjects;
use tokio::sync::{broadcast, watch};
use tracing::debug;

use crate::error::{Error, Kind, Result};
use crate::transport::Connection;

/// How many boards a watcher may be behind: six seconds, at twenty boards a second.
const BEHIND_MAX: usize = 128;
/// How often the task checks whether the connection was lost and made again.
const RECONNECT_CHECK: Duration = Duration::from_millis(250);

/// An event of the stream that a watcher follows.
#[derive(Debug, Clone)]
pub(crate) enum FeedEvent {
    Board(Arc<BoardEvent>),
    /// Boards may have been missed, or the line has changed in a way that no board shows.
    Resync,
}

/// The feeds of one client.
pub(crate) struct Feeds {
    connection: Arc<Connection>,
    subjects: Subjects,
    open: Mutex<HashMap<LineName, Weak<Feed>>>,
}

/// One line's subscription; ends with its last watcher.
pub(crate) struct Feed {
    line: LineName,
    feeds: Weak<Feeds>,
    task: tokio::task::JoinHandle<()>,
    state: watch::Receiver<FeedState>,
    /// Never read; new watchers subscribe through it. (A sender would do that too, but would keep the
    /// channel open after the task's end, and the watchers waiting.)
    template: broadcast::Receiver<FeedEvent>,
}

#[derive(Debug)]
enum FeedState {
    Subscribing,
    Subscribed,
    /// The server refused one of the subscriptions: the feed has ended.
    Denied(Error),
}

impl Feeds {
    pub(crate) fn new(connection: Arc<Connection>, subjects: Subjects) -> Feeds {
        Feeds {
            connection,
            subjects,
            open: Mutex::default(),
        }
    }

    /// A watcher of this line. When this returns, the server has the subscription: the reply to a
    /// request sent afterwards over the same connection is not older than any board missed.
    pub(crate) async fn watch(
        self: &Arc<Feeds>,
        line: &LineName,
        patience: Duration,
    ) -> Result<Watcher> {
        let feed = self.feed(line);
        let events = feed.template.resubscribe();
        let mut state = feed.state.clone();
        let subscribed = state.wait_for(|state| !matches!(state, FeedState::Subscribing));
        match tokio::time::timeout(patience, subscribed).await {
            Ok(Ok(_)) => Ok(Watcher {
                events,
                feed: feed.clone(),
            }),
            Ok(Err(_)) => Err(closed()),
            Err(_) => Err(Error::new(
                Kind::Unavailable,
                "no connection to NATS to watch over",
            )),
        }
    }

    fn feed(self: &Arc<Feeds>, line: &LineName) -> Arc<Feed> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(feed) = open.get(line).and_then(Weak::upgrade)
            && !feed.task.is_finished()
        {
            return feed;
        }
        let (events, template) = broadcast::channel(BEHIND_MAX);
        let (state_of, state) = watch::channel(FeedState::Subscribing);
        let reader = Reader {
            connection: self.connection.clone(),
            board_subject: self.subjects.board(line),
            line_subject: self.subjects.line_event(line),
            events,
        };
        let feed = Arc::new(Feed {
            line: line.clone(),
            feeds: Arc::downgrade(self),
            task: tokio::spawn(reader.run(state_of)),
            state,
            template,
        });
        open.insert(line.clone(), Arc::downgrade(&feed));
        feed
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(feeds) = self.feeds.upgrade() {
            let mut open = feeds.open.lock().unwrap_or_else(PoisonError::into_inner);
            // Another feed of the same line may have taken the place already.
            if open
                .get(&self.line)
                .is_some_and(|feed| feed.strong_count() == 0)
            {
                open.remove(&self.line);
            }
        }
    }
}

/// One watcher's receiver of a feed.
pub(crate) struct Watcher {
    events: broadcast::Receiver<FeedEvent>,
    feed: Arc<Feed>,
}

impl Watcher {
    /// Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<FeedEvent> {
        match self.events.recv().await {
            Ok(event) => Ok(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Ok(FeedEvent::Resync),
            Err(broadcast::error::RecvError::Closed) => Err(match &*self.feed.state.borrow() {
                FeedState::Denied(error) => error.clone(),
                FeedState::Subscribing | FeedState::Subscribed => closed(),
            }),
        }
    }

    /// Completes when the server has refused one of the feed's subscriptions.
    pub(crate) fn refused(&self) -> impl Future<Output = Error> + Send + use<> {
        let mut state = self.feed.state.clone();
        async move {
            let refused = match state
                .wait_for(|it| matches!(it, FeedState::Denied(_)))
                .await
            {
                Ok(state) => match &*state {
                    FeedState::Denied(error) => Some(error.clone()),
                    FeedState::Subscribing | FeedState::Subscribed => None,
                },
                // The feed has ended for another reason.
                Err(_) => None,
            };
            match refused {
                Some(error) => error,
                None => std::future::pending().await,
            }
        }
    }
}

fn closed() -> Error {
    Error::new(Kind::Connection, "the NATS connection is closed")
}

/// The task behind a feed.
struct Reader {
    connection: Arc<Connection>,
    board_subject: String,
    line_subject: String,
    events: broadcast::Sender<FeedEvent>,
}

impl Reader {
    async fn run(self, state: watch::Sender<FeedState>) {
        let mut denied = self.connection.denials.listen();
        let subjects = [self.board_subject.as_str(), self.line_subject.as_str()];
        tokio::select! {
            () = self.read(&state) => {}
            error = denied.subscription(&subjects) => {
                // Before the task ends and the watchers see the channel closed.
                state.send_replace(FeedState::Denied(error));
            }
        }
    }

    async fn read(&self, state: &watch::Sender<FeedState>) {
        let nats = &self.connection.nats;
        // The library subscribes again by itself after a reconnect. Boards published meanwhile are
        // lost, so the watchers must resynchronise.
        let statistics = nats.statistics();
        let connects = || statistics.connects.load(Ordering::Relaxed);
        let mut seen_connects = connects();
        let boards = nats.subscribe(self.board_subject.clone()).await;
        let changes = nats.subscribe(self.line_subject.clone()).await;
        let (Ok(mut boards), Ok(mut changes)) = (boards, changes) else {
            return;
        };
        if nats.flush().await.is_err() || state.send(FeedState::Subscribed).is_err() {
            return;
        }
        let mut check = tokio::time::interval(RECONNECT_CHECK);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let event = tokio::select! {
                message = boards.next() => match message {
                    Some(message) => Some(board(&message)),
                    None => return,
                },
                message = changes.next() => match message {
                    Some(message) => change(&message),
                    None => return,
                },
                _ = check.tick() => {
                    let now = connects();
                    (std::mem::replace(&mut seen_connects, now) != now).then_some(FeedEvent::Resync)
                }
            };
            if let Some(event) = event {
                // Fails only without watchers; the feed ends then.
                let _ = self.events.send(event);
            }
        }
    }
}

fn board(message: &Message) -> FeedEvent {
    match codec::decode::<BoardEvent>(&message.payload) {
        Ok(board) => FeedEvent::Board(Arc::new(board)),
        Err(error) => {
            debug!(%error, subject = %message.subject, "unreadable board");
            FeedEvent::Resync
        }
    }
}

/// A deleted line publishes no more boards: only a request shows the deletion.
fn change(message: &Message) -> Option<FeedEvent> {
    match codec::decode::<LineEvent>(&message.payload) {
        Ok(event) if event.event == "deleted" => Some(FeedEvent::Resync),
        Ok(_) => None,
        Err(error) => {
            debug!(%error, subject = %message.subject, "unreadable line event");
            Some(FeedEvent::Resync)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_watcher_hears_at_once_that_it_is_refused() {
        let (state_of, state) = watch::channel(FeedState::Subscribing);
        let template = broadcast::channel(BEHIND_MAX).1;
        let feed = Feed {
            line: LineName::try_from("shop").unwrap(),
            feeds: Weak::new(),
            task: tokio::spawn(std::future::pending()),
            state,
            template: template.resubscribe(),
        };
        let watcher = Watcher {
            events: template,
            feed: Arc::new(feed),
        };
        let mut refused = watcher.refused().boxed();
        state_of.send_replace(FeedState::Subscribed);
        assert!((&mut refused).now_or_never().is_none());
        let error = Error::new(Kind::Forbidden, "no right");
        state_of.send_replace(FeedState::Denied(error));
        assert_eq!(refused.now_or_never().unwrap().kind(), Kind::Forbidden);
        drop(state_of);
    }
}
