//! What a guard asks of a line, so that its rules are tested without a cluster.

use std::time::Duration;

use futures::StreamExt;
use nowserving_adapt::LineNow;
use nowserving_line::{LaneName, State};
use nowserving_protocol::admin::CapacityTold;
use nowserving_protocol::event::TokenEvent;
use nowserving_protocol::user::{Key, StatusReply};

use crate::error::Result;
use crate::events::EventStream;
use crate::line::Line;

/// A read that decides whether the cluster is away may take this long.
pub(super) const ASK_FOR: Duration = Duration::from_secs(1);

/// The operations of one line.
pub(crate) trait Calls: Clone + Send + Sync + 'static {
    fn enter(
        &self,
        key: Key,
        lane: Option<LaneName>,
    ) -> impl Future<Output = Result<StatusReply>> + Send;
    /// Waits until the token waits no longer. Keeps `place` up to date if the token is moved, also when it is dropped.
    /// Fails when a poll is not answered.
    fn turn(&self, place: &mut Place) -> impl Future<Output = Result<Turn>> + Send;
    fn claim(&self, ticket: &str) -> impl Future<Output = Result<StatusReply>> + Send;
    fn renew(&self, ticket: &str, epoch: u64) -> impl Future<Output = Result<StatusReply>> + Send;
    fn complete(
        &self,
        ticket: &str,
        epoch: u64,
    ) -> impl Future<Output = Result<StatusReply>> + Send;
    fn leave(&self, ticket: &str) -> impl Future<Output = Result<StatusReply>> + Send;
    fn find(&self, key: Key) -> impl Future<Output = Result<StatusReply>> + Send;
    /// The seats in force, and those held.
    fn seats(&self) -> impl Future<Output = Result<LineNow>> + Send;
    /// Tells the line's seats, for so long.
    fn tell(&self, seats: u32, lasts: Duration) -> impl Future<Output = Result<()>> + Send;
    /// Whether a read is answered within [`ASK_FOR`].
    fn answers(&self) -> impl Future<Output = bool> + Send;
}

/// A token in line.
#[derive(Clone)]
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
    async fn turn(&self, place: &mut Place) -> Result<Turn> {
        let mut events = own_events(self, place).await;
        let mut places = self.track(&place.ticket);
        loop {
            let status = tokio::select! {
                turn = own_turn(&mut events) => return Ok(turn),
                status = places.next() => status,
            };
            let Some(status) = status.transpose()? else {
                return Ok(Turn::Gone(reason(None)));
            };
            match status.state {
                State::Waiting => {}
                State::Gone => return Ok(Turn::Gone(reason(status.reason))),
                State::Admitted | State::InCheckout => {
                    place.follow(&status);
                    return Ok(Turn::Admitted);
                }
            }
            if place.follow(&status) {
                events = own_events(self, place).await;
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
        self.complete(ticket, Some(epoch), None).await
    }

    async fn leave(&self, ticket: &str) -> Result<StatusReply> {
        self.leave(ticket).await
    }

    async fn find(&self, key: Key) -> Result<StatusReply> {
        self.find(key.as_bytes()).await
    }

    async fn seats(&self) -> Result<LineNow> {
        let board = self.info().await?.board;
        Ok(LineNow {
            seats: board.seats,
            held: board.admitted + board.in_checkout,
        })
    }

    async fn tell(&self, seats: u32, lasts: Duration) -> Result<()> {
        let told = CapacityTold {
            seats: Some(seats),
            for_ms: Some(lasts.as_millis().try_into().unwrap_or(u64::MAX)),
        };
        let line = self.client().admin().line(self.name().as_str())?;
        line.capacity_told(&told).await.map(drop)
    }

    async fn answers(&self) -> bool {
        let deadline = self.client().deadline().min(ASK_FOR);
        let client = self.client().with_deadline(deadline);
        let info = Line::new(client, self.name().clone()).info().await;
        info.map_or_else(|error| !super::is_away(&error), |_| true)
    }
}

impl Place {
    /// Where the token is now. Returns whether it was moved.
    fn follow(&mut self, status: &StatusReply) -> bool {
        if let Some(ticket) = &status.ticket {
            // The old ticket works only as long as the line remembers the move.
            self.ticket.clone_from(ticket);
        }
        let is_moved = (&self.lane, self.token) != (&status.lane, status.token);
        self.lane.clone_from(&status.lane);
        self.token = status.token;
        is_moved
    }
}

/// Without a subscription the polls must do.
async fn own_events(line: &Line, place: &Place) -> EventStream<TokenEvent> {
    let events = line.token_events(&place.lane, place.token).await;
    events.unwrap_or_else(|_| futures::stream::pending().boxed())
}

/// The event that ends the waiting. Pending for ever once there are no more events: polls find out. Cancel-safe.
async fn own_turn(events: &mut EventStream<TokenEvent>) -> Turn {
    while let Some(Ok(event)) = events.next().await {
        match event.event.as_str() {
            "admitted" => return Turn::Admitted,
            "gone" => return Turn::Gone(reason(event.reason)),
            // `moved`: the next poll has the new lane and ticket.
            _ => {}
        }
    }
    std::future::pending().await
}

fn reason(reason: Option<String>) -> String {
    reason.unwrap_or_else(|| "forgotten".to_owned())
}
