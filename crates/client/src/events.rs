//! The events of a line and of one token as streams, for callers that want more than boards.

use std::sync::atomic::Ordering;

use futures::stream::{self, BoxStream, StreamExt};
use nowserving_protocol::codec::{self, Payload};
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::kv::KvEvent;
use tracing::debug;

use crate::client::Client;
use crate::denials::Listener;
use crate::error::{Error, Kind, Result};

/// Events in the order of their versions, each once; see [`Line::events`](crate::Line::events) and
/// [`Line::token_events`](crate::Line::token_events).
///
/// The stream ends after an error: a missing right, or a NATS connection that was closed. Events that are published
/// while the connection is lost are missing; `prev_version` of the next one shows that. Dropping the stream
/// unsubscribes.
pub type EventStream<E> = BoxStream<'static, Result<E>>;

/// An event that is newer than others by its line's incarnation and version.
pub(crate) trait Versioned {
    fn version(&self) -> (u64, u64);
}

impl Versioned for BoardEvent {
    fn version(&self) -> (u64, u64) {
        (self.board.incarnation, self.board.version)
    }
}

impl Versioned for LineEvent {
    fn version(&self) -> (u64, u64) {
        (self.incarnation, self.version)
    }
}

impl Versioned for TokenEvent {
    fn version(&self) -> (u64, u64) {
        (self.incarnation, self.version)
    }
}

/// Those of one shard compare, so a bucket's are never filtered by it.
impl Versioned for KvEvent {
    fn version(&self) -> (u64, u64) {
        (0, self.revision)
    }
}

/// When this returns, the subscription has been sent. What a later request over the same connection changes has its
/// event on the stream.
pub(crate) async fn subscribe<E>(client: &Client, subject: String) -> Result<EventStream<E>>
where
    E: Payload + Versioned + Send + 'static,
{
    begin(client, subject, Some(Newest::default())).await
}

/// The same, with all events as they come: those of an earlier leader that come after those of the next one, and those
/// that it publishes again.
pub(crate) async fn subscribe_to_all<E>(client: &Client, subject: String) -> Result<EventStream<E>>
where
    E: Payload + Versioned + Send + 'static,
{
    begin(client, subject, None).await
}

async fn begin<E>(
    client: &Client,
    subject: String,
    newest: Option<Newest>,
) -> Result<EventStream<E>>
where
    E: Payload + Versioned + Send + 'static,
{
    let connection = client.connection();
    let denied = connection.denials.listen();
    let nats = &connection.nats;
    let subscribe = async {
        let messages = nats.subscribe(subject.clone()).await;
        let messages = messages.map_err(|_| closed())?;
        nats.flush().await.map_err(|_| closed())?;
        Ok(messages)
    };
    let subscribed = tokio::time::timeout(client.deadline(), subscribe).await;
    let unreachable = || Error::new(Kind::Unavailable, "no connection to NATS to subscribe over");
    let events = Events {
        messages: subscribed.map_err(|_| unreachable())??,
        denied,
        subject,
        newest,
        over: false,
    };
    Ok(stream::unfold(events, Events::step).boxed())
}

fn closed() -> Error {
    Error::new(Kind::Connection, "the NATS connection is closed")
}

/// Knows when a connection was lost and made again. In a line where nothing happens no `prev_version` shows it.
pub(crate) struct Reconnected {
    nats: async_nats::Client,
    connects: u64,
}

impl Reconnected {
    /// From now on. Make it before the subscriptions.
    pub(crate) fn new(nats: &async_nats::Client) -> Reconnected {
        Reconnected {
            nats: nats.clone(),
            connects: connects(nats),
        }
    }

    /// Whether it was since the last call.
    pub(crate) fn take(&mut self) -> bool {
        let before = std::mem::replace(&mut self.connects, connects(&self.nats));
        self.connects > before
    }
}

/// How often the connection was made so far.
fn connects(nats: &async_nats::Client) -> u64 {
    nats.statistics().connects.load(Ordering::Relaxed)
}

/// The newest event so far. A new leader may publish again what its predecessor has published.
#[derive(Debug, Default)]
struct Newest(Option<(u64, u64)>);

impl Newest {
    fn is_passed_by(&mut self, event: &impl Versioned) -> bool {
        let version = event.version();
        let is_newer = self.0.is_none_or(|newest| version > newest);
        if is_newer {
            self.0 = Some(version);
        }
        is_newer
    }
}

struct Events {
    messages: async_nats::Subscriber,
    denied: Listener,
    subject: String,
    /// If only newer ones are wanted.
    newest: Option<Newest>,
    over: bool,
}

impl Events {
    async fn step<E: Payload + Versioned>(mut self) -> Option<(Result<E>, Events)> {
        if self.over {
            return None;
        }
        let event = self.next().await;
        self.over = event.is_err();
        Some((event, self))
    }

    async fn next<E: Payload + Versioned>(&mut self) -> Result<E> {
        let subjects = [self.subject.as_str()];
        loop {
            let message = tokio::select! {
                message = self.messages.next() => message.ok_or_else(closed)?,
                error = self.denied.subscription(&subjects) => return Err(error),
            };
            match codec::decode::<E>(&message.payload) {
                Ok(event) => {
                    let newest = self.newest.as_mut();
                    if newest.is_none_or(|newest| newest.is_passed_by(&event)) {
                        return Ok(event);
                    }
                }
                Err(error) => debug!(%error, subject = %message.subject, "unreadable event"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct At(u64, u64);

    impl Versioned for At {
        fn version(&self) -> (u64, u64) {
            (self.0, self.1)
        }
    }

    #[test]
    fn an_event_comes_once_and_a_new_incarnation_begins_anew() {
        let mut newest = Newest::default();
        let passed = [At(1, 5), At(1, 5), At(1, 4), At(1, 9), At(2, 3), At(1, 10)]
            .map(|event| newest.is_passed_by(&event));
        assert_eq!(passed, [true, false, false, true, true, false]);
    }
}
