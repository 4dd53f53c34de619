//! All events of a line as one stream: for a push service, which computes the places of many tokens from them
//! ([`PlacesFromEvents`](crate::PlacesFromEvents)).

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use nowserving_line::LineName;
use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};

use crate::client::Client;
use crate::error::Result;
use crate::events::{self, EventStream, Reconnected};

/// How often to look whether the connection was lost.
const LOOK: Duration = Duration::from_millis(250);

/// An event of a line; see [`Line::all_events`](crate::Line::all_events).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnyEvent {
    /// A board has changed, or is repeated.
    Board(BoardEvent),
    /// A token has changed.
    Token(TokenEvent),
    /// The line itself has changed.
    Line(LineEvent),
    /// The connection was lost and is back: what was published meanwhile is missing. In a line where nothing happens no
    /// `prev_version` shows it.
    Missed,
}

/// When this returns, the subscriptions have been sent.
pub(crate) async fn all_events(client: &Client, line: &LineName) -> Result<EventStream<AnyEvent>> {
    let subjects = client.subjects();
    let reconnected = Reconnected::new(client.nats());
    // Late ones of an earlier leader, too: readers tell by versions what is new to them.
    let boards = events::subscribe_to_all(client, subjects.board(line)).await?;
    let of_tokens = events::subscribe_to_all(client, subjects.token_events(line)).await?;
    let of_line = events::subscribe_to_all(client, subjects.line_event(line)).await?;
    let all = stream::select_all([
        boards.map(|event| event.map(AnyEvent::Board)).boxed(),
        of_tokens.map(|event| event.map(AnyEvent::Token)).boxed(),
        of_line.map(|event| event.map(AnyEvent::Line)).boxed(),
        missed(reconnected),
    ]);
    Ok(until_error(all.boxed()))
}

fn missed(reconnected: Reconnected) -> EventStream<AnyEvent> {
    let looks = tokio::time::interval(LOOK);
    stream::unfold(
        (looks, reconnected),
        async |(mut looks, mut reconnected)| {
            loop {
                looks.tick().await;
                if reconnected.take() {
                    return Some((Ok(AnyEvent::Missed), (looks, reconnected)));
                }
            }
        },
    )
    .boxed()
}

/// One of the streams has ended with the error: what the others still have is not all that happens.
fn until_error<T: Send + 'static>(all: BoxStream<'static, Result<T>>) -> EventStream<T> {
    stream::unfold(Some(all), async |all| {
        let mut all = all?;
        let event = all.next().await?;
        let rest = event.is_ok().then_some(all);
        Some((event, rest))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Kind};

    #[tokio::test]
    async fn it_ends_with_the_first_error() {
        let items = [
            Ok(1),
            Err(Error::new(Kind::Forbidden, "may not subscribe")),
            Ok(2),
        ];
        let taken: Vec<_> = until_error(stream::iter(items).boxed()).collect().await;
        assert_eq!(taken.len(), 2);
        assert!(matches!(taken.as_slice(), [Ok(1), Err(_)]));
    }
}
