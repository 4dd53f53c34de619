//! What a guard asks of a line, so that its rules are tested without a cluster.

use futures::StreamExt;
use nowserving_line::{LaneName, State};
use nowserving_protocol::event::TokenEvent;
use nowserving_protocol::user::{Key, StatusReply};

use crate::error::Result;
use crate::events::EventStream;
use crate::line::Line;

/// The operations of one line.
pub(crate) trait Calls: Clone + Send + Sync + 'static {
    fn enter(
        &self,
        key: Key,
        lane: Option<LaneName>,
    ) -> impl Future<Output = Result<StatusReply>> + Send;
    /// Waits until the token waits no longer.
    fn turn(&self, place: &Place) -> impl Future<Output = Result<Turn>> + Send;
    fn claim(&self, ticket: &str) -> impl Future<Output = Result<StatusReply>> + Send;
    fn renew(&self, ticket: &str, epoch: u64) -> impl Future<Output = Result<StatusReply>> + Send;
    fn complete(
        &self,
        ticket: &str,
        epoch: u64,
    ) -> impl Future<Output = Result<StatusReply>> + Send;
    fn leave(&self, ticket: &str) -> impl Future<Output = Result<StatusReply>> + Send;
    fn find(&self, key: Key) -> impl Future<Output = Result<StatusReply>> + Send;
    /// Whether the cluster answers.
    fn is_back(&self) -> impl Future<Output = bool> + Send;
}

/// A token in line.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) lane: LaneName,
    pub(crate) token: u64,
    pub(crate) ticket: String,
}

/// How a token's waiting ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Turn {
    Admitted,
    Gone(String),
}

impl Calls for Line {
    async fn enter(&self, key: Key, lane: Option<LaneName>) -> Result<StatusReply> {
        self.enter_with(Some(key), lane).await
    }

    /// Its own event comes first; boards and polls find what no event tells, and keep the token alive. An event that was
    /// published before the subscription is in the tracker's first poll.
    async fn turn(&self, place: &Place) -> Result<Turn> {
        let events = self.token_events(&place.lane, place.token).await;
        let mut events = events.unwrap_or_else(|_| futures::stream::pending().boxed());
        let mut places = self.track(&place.ticket);
        loop {
            tokio::select! {
                turn = own_turn(&mut events) => return Ok(turn),
                status = places.next() => match status {
                    Some(status) => {
                        let status = status?;
                        match status.state {
                            State::Waiting => {}
                            State::Gone => return Ok(Turn::Gone(reason(status.reason))),
                            State::Admitted | State::InCheckout => return Ok(Turn::Admitted),
                        }
                    }
                    None => return Ok(Turn::Gone(reason(None))),
                },
            }
        }
    }

    async fn claim(&self, ticket: &str) -> Result<StatusReply> {
        self.claim(ticket).await
    }

    async fn renew(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        self.renew(ticket, epoch).await
    }

    async fn complete(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        self.complete(ticket, Some(epoch)).await
    }

    async fn leave(&self, ticket: &str) -> Result<StatusReply> {
        self.leave(ticket).await
    }

    async fn find(&self, key: Key) -> Result<StatusReply> {
        self.find(key.as_bytes()).await
    }

    async fn is_back(&self) -> bool {
        let info = self.info().await;
        info.map_or_else(|error| !super::is_away(&error), |_| true)
    }
}

/// The event that ends the waiting. Never, once there can be no more events: polls find out. Cancel-safe.
async fn own_turn(events: &mut EventStream<TokenEvent>) -> Turn {
    while let Some(Ok(event)) = events.next().await {
        match event.event.as_str() {
            "admitted" => return Turn::Admitted,
            "gone" => return Turn::Gone(reason(event.reason)),
            // `moved`: the tracker follows.
            _ => {}
        }
    }
    std::future::pending().await
}

fn reason(reason: Option<String>) -> String {
    reason.unwrap_or_else(|| "forgotten".to_owned())
}
