//! The operations of users on a line, called by their backend.

use nowserving_line::{LaneName, LineName};
use nowserving_protocol::event::{LineEvent, TokenEvent};
use nowserving_protocol::operation::Request;
use nowserving_protocol::subject::shard_of;
use nowserving_protocol::user::{
    Callback, CallbackReply, Claim, Complete, Consistency, Enter, Find, Info, InfoReply, Jump, Key,
    Leave, Renew, Seen, SeenReply, StatusReply, StatusRequest, TokenBy,
};

use crate::client::Client;
use crate::error::{Error, Kind, Result};
use crate::events::{self, EventStream};
use crate::every::{self, AnyEvent};
use crate::feed::Watcher;
use crate::track::{Tracker, track};
use crate::watch::{BoardStream, boards};

/// One line of a cluster. Cheap to clone.
///
/// All calls may fail with [`Kind::Unavailable`], and writes also with [`Kind::OutcomeUnknown`]; every
/// call may then be repeated. Each call documents its own refusals.
#[derive(Clone)]
pub struct Line {
    client: Client,
    name: LineName,
}

impl Line {
    pub(crate) fn new(client: Client, name: LineName) -> Line {
        Line { client, name }
    }

    /// The line's name.
    #[must_use]
    pub fn name(&self) -> &LineName {
        &self.name
    }

    /// The client that this line belongs to.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Takes a number under `key` (1 to 128 bytes that identify the user in your own terms), in the
    /// line's default lane. If the key has a live token already, the reply is that token's status. The
    /// reply carries the `ticket`.
    ///
    /// # Errors
    /// `line_not_found`, `line_closed`, `line_full`, `sold_out`.
    pub async fn enter(&self, key: impl Into<Vec<u8>>) -> Result<StatusReply> {
        self.enter_with(Some(self::key(key)?), None).await
    }

    /// [`Line::enter`] with a lane, or, with `None` for a key, anonymously: each call takes another
    /// number. The attempts of one call do not, because they share a generated key.
    ///
    /// # Errors
    /// As [`Line::enter`]; `bad_request` for a lane that the line does not have.
    pub async fn enter_with(
        &self,
        key: Option<Key>,
        lane: Option<LaneName>,
    ) -> Result<StatusReply> {
        let key = Some(key.map_or_else(generated_key, Ok)?);
        self.call(&Enter { key, lane }).await
    }

    /// The live token of a key, with its ticket, without entering.
    ///
    /// # Errors
    /// `token_not_found`, `line_not_found`.
    pub async fn find(&self, key: impl Into<Vec<u8>>) -> Result<StatusReply> {
        let key = self::key(key)?;
        self.call(&Find { key }).await
    }

    /// The status of a token. Also marks the token as seen: ask every `poll_after_ms`, or the token is
    /// recycled as `idle`.
    ///
    /// If an operator moved the token into another lane, this and all other calls act on the token as
    /// it is now and return its new `ticket`; the old one stays valid.
    ///
    /// # Errors
    /// `ticket_invalid`, `line_not_found`.
    pub async fn status(&self, ticket: &str) -> Result<StatusReply> {
        let token = TokenBy::Ticket(ticket.to_owned());
        self.status_with(StatusRequest::new(token)).await
    }

    /// [`Line::status`] by key, for a backend that keeps no tickets. The reply has none; [`Line::find`] returns it.
    ///
    /// # Errors
    /// `token_not_found` if the key has no live token, `line_not_found`.
    pub async fn status_by_key(&self, key: impl Into<Vec<u8>>) -> Result<StatusReply> {
        let token = TokenBy::Key(self::key(key)?);
        self.status_with(StatusRequest::new(token)).await
    }

    /// [`Line::status`] or [`Line::status_by_key`] with another consistency, with the holes before the token, or with a
    /// pass.
    ///
    /// # Errors
    /// As theirs.
    pub async fn status_with(&self, request: StatusRequest) -> Result<StatusReply> {
        self.call(&request).await
    }

    /// Marks up to [`SEEN_MAX`](crate::SEEN_MAX) tokens as seen by one message, as [`Line::status`] of each does: for a
    /// gateway that tells many users their places from events. Call it again after [`SeenReply::poll_after_ms`].
    ///
    /// # Errors
    /// `bad_request` without tickets, or with more; `line_not_found`. The reply lists tickets of tokens that are gone, and
    /// invalid ones.
    pub async fn seen(&self, tickets: Vec<String>) -> Result<SeenReply> {
        self.call(&Seen { tickets }).await
    }

    /// Goes into checkout. The reply carries the `epoch`, a fencing number that only grows, and
    /// `expires_at_ms`. A repeated call gets the same epoch and the current expiry.
    ///
    /// # Errors
    /// `not_admitted` while it waits, `token_gone`, `ticket_invalid`.
    pub async fn claim(&self, ticket: &str) -> Result<StatusReply> {
        self.claims(ticket, false).await
    }

    /// [`Line::claim`], and the reply has a [`StatusReply::pass`]: a signed text by which others know, without asking,
    /// that this token holds a seat ([`PassChecker`](crate::PassChecker)). For a later pass while the seat is held use
    /// [`Line::status_with`] with [`StatusRequest::pass`]. In a line with `release_on_claim` there is none, as the claim
    /// ends the token: request it before.
    ///
    /// # Errors
    /// As [`Line::claim`].
    pub async fn claim_with_pass(&self, ticket: &str) -> Result<StatusReply> {
        self.claims(ticket, true).await
    }

    async fn claims(&self, ticket: &str, pass: bool) -> Result<StatusReply> {
        let ticket = ticket.to_owned();
        self.call(&Claim { ticket, pass }).await
    }

    /// Keeps a claimed seat for another `checkout_timeout_ms`, until `checkout_max_ms` after the
    /// claim.
    ///
    /// # Errors
    /// `epoch_stale`, `not_admitted`, `not_claimed`, `token_gone`, `ticket_invalid`.
    pub async fn renew(&self, ticket: &str, epoch: u64) -> Result<StatusReply> {
        let ticket = ticket.to_owned();
        self.call(&Renew { ticket, epoch }).await
    }

    /// Ends the checkout and gives the seat back. With an `epoch`, only if it is the current one. `units`: how many of the
    /// line's quota were used, at most as many as the seat reserves ([`StatusReply::units`]); by default that many.
    ///
    /// # Errors
    /// `bad_request` for more `units`; `epoch_stale`, `not_admitted`, `not_claimed`, `token_gone` (for another reason than
    /// `completed`), `ticket_invalid`.
    pub async fn complete(
        &self,
        ticket: &str,
        epoch: Option<u64>,
        units: Option<u32>,
    ) -> Result<StatusReply> {
        let ticket = ticket.to_owned();
        let ask = Complete {
            ticket,
            epoch,
            units,
        };
        self.call(&ask).await
    }

    /// Leaves the line, waiting or not.
    ///
    /// # Errors
    /// `token_gone` (for another reason than `left`), `ticket_invalid`.
    pub async fn leave(&self, ticket: &str) -> Result<StatusReply> {
        let ticket = ticket.to_owned();
        self.call(&Leave { ticket }).await
    }

    /// Moves a waiting token into a lane that allows it, on behalf of its holder. The reply has its new `ticket`; the
    /// old one stays valid. A repeated call gets the same reply.
    ///
    /// # Errors
    /// `forbidden` if the lane's `jump` is not set, or the token has jumped `jumps_max` times; `not_waiting`,
    /// `token_gone`, `ticket_invalid`, `token_not_found`; `line_full` if the lane is full.
    pub async fn jump(&self, token: TokenBy, to: LaneName) -> Result<StatusReply> {
        self.call(&Jump { token, to }).await
    }

    /// Asks to be told when the line has room for this key, after [`Line::enter`] was refused because the line, or the
    /// lane, is full. A line event `room` names it then, once. Nothing is kept for it: enter at once. A repeated call
    /// keeps the place.
    ///
    /// # Errors
    /// `forbidden` if the line's `callback_limit` is 0; `line_full` if so many wait to be told already; `sold_out`,
    /// `line_closed`, `line_not_found`.
    pub async fn callback(
        &self,
        key: impl Into<Vec<u8>>,
        lane: Option<LaneName>,
    ) -> Result<CallbackReply> {
        let key = self::key(key)?;
        self.call(&Callback { key, lane }).await
    }

    /// The board, and the settings that users may see.
    ///
    /// # Errors
    /// `line_not_found`.
    pub async fn info(&self) -> Result<InfoReply> {
        self.info_with(Consistency::Leader).await
    }

    /// [`Line::info`] with another consistency.
    ///
    /// # Errors
    /// As [`Line::info`].
    pub async fn info_with(&self, consistency: Consistency) -> Result<InfoReply> {
        let consistency = (consistency != Consistency::Leader).then_some(consistency);
        self.call(&Info { consistency }).await
    }

    /// The current board, then each change of it (at most twenty a second). Resumes by itself after a
    /// lost connection. Watchers of one line in one process share a subscription.
    ///
    /// Requires a tokio runtime when first polled.
    #[must_use]
    pub fn watch(&self) -> BoardStream {
        boards(self.clone())
    }

    /// A token's exact place, as a status each time it changes: computed from boards at once, and
    /// confirmed by a `status` every `poll_after_ms`, which also keeps the token alive. Follows the
    /// token when an operator moves it into another lane. Ends once the token is gone.
    ///
    /// Requires a tokio runtime when first polled.
    #[must_use]
    pub fn track(&self, ticket: &str) -> Tracker {
        track(self.clone(), ticket.to_owned())
    }

    /// The line's own events: `phase`, `room`, `quota_renewed`, … Subscribed to when this returns: a
    /// [`Line::callback`] that is sent afterwards has its `room` on the stream.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] without a connection to NATS. A missing right is the first item of the stream.
    pub async fn events(&self) -> Result<EventStream<LineEvent>> {
        let subject = self.client.subjects().line_event(&self.name);
        events::subscribe(&self.client, subject).await
    }

    /// The events of one token: `admitted`, `position`, `gone`, … There are none while the line's `token_events` is
    /// false. After a `moved` the token has them under its new lane and number.
    ///
    /// # Errors
    /// As [`Line::events`].
    pub async fn token_events(
        &self,
        lane: &LaneName,
        token: u64,
    ) -> Result<EventStream<TokenEvent>> {
        let subject = self
            .client
            .subjects()
            .token_event(&self.name, lane.as_str(), token);
        events::subscribe(&self.client, subject).await
    }

    /// All events of the line: its boards, whole ones too, the events of all its tokens, and its own. For a push service that
    /// tells many users their places by [`PlacesFromEvents`](crate::PlacesFromEvents): one task reads them for all.
    ///
    /// They come as they are published: copies, and late ones of an earlier leader, too. Events of different kinds may
    /// change their order. An [`AnyEvent::Missed`] says that a connection was lost and is back.
    ///
    /// # Errors
    /// As [`Line::events`]. It requires the rights to subscribe to all three subjects.
    pub async fn all_events(&self) -> Result<EventStream<AnyEvent>> {
        every::all_events(&self.client, &self.name).await
    }

    /// The shared subscription behind [`Line::watch`] and [`Line::track`].
    pub(crate) async fn boards(&self) -> Result<Watcher> {
        let feeds = self.client.feeds();
        feeds.watch(&self.name, self.client.deadline()).await
    }

    async fn call<Q: Request>(&self, request: &Q) -> Result<Q::Reply> {
        let shard = |shards| shard_of(self.name.as_str(), shards);
        self.client.leader_call(&self.name, shard, request).await
    }
}

fn key(bytes: impl Into<Vec<u8>>) -> Result<Key> {
    Key::new(bytes.into()).map_err(|error| Error::new(Kind::BadArgument, error.message))
}

/// Of 128 random bits, so that two callers never have the same. A key makes the attempts of a call one
/// visit for as long as the token lives; the cluster's memory of request ids is bounded.
fn generated_key() -> Result<Key> {
    key(format!("sdk-{:032x}", rand::random::<u128>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_checked_before_anything_is_sent() {
        assert_eq!(
            key("").map_err(|error| error.kind()),
            Err(Kind::BadArgument)
        );
        assert_eq!(
            key(vec![0; 129]).map_err(|error| error.kind()),
            Err(Kind::BadArgument)
        );
        assert!(key(vec![0xff; 128]).is_ok());
    }

    #[test]
    fn generated_keys_differ() {
        assert_ne!(generated_key().ok(), generated_key().ok());
    }
}
