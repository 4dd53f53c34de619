//! The client: one NATS connection, shared by all its clones.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use bytes::Bytes;
use nowserving_line::{LineName, OperatorNote};
use nowserving_protocol::codec::{self, Format, Payload};
use nowserving_protocol::note;
use nowserving_protocol::operation;
use nowserving_protocol::servers::{BadServers, Servers};
use nowserving_protocol::subject::{DEFAULT_PREFIX, Subjects};
use nowserving_security::{Security, SecurityError};
use rand::RngExt;
use serde::Serialize;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::admin::Admin;
use crate::call::{self, Request};
use crate::denials::{Denials, login_refused};
use crate::discovery::Shards;
use crate::error::{Error, Kind, Result};
use crate::feed::Feeds;
use crate::limiter::{Limiter, LimiterOptions};
use crate::line::Line;
use crate::retry::Effect;
use crate::transport::{Connection, bad_reply};

/// The options of a [`Client`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ClientOptions {
    /// First word(s) of every subject; default `nowserving`.
    pub prefix: String,
    /// Replies come to subjects that begin with this word or words. A role that may hear its own replies alone needs its
    /// own, as `_INBOX.backends`; without effect on [`Client::from_nats`]. Default: `_INBOX`.
    pub inbox_prefix: Option<String>,
    /// How long connecting may take, and then each call, all its attempts together; default 10 s.
    pub deadline: Duration,
    /// Return a client at once, and connect in the background, again and again. For services that start also while NATS
    /// is away: calls fail with [`Kind::Unavailable`] meanwhile, also while the login is refused. Default `false`.
    pub connect_in_background: bool,
    /// The name of the connection, as NATS shows it; default `nowserving-client`.
    pub name: String,
    /// The rights that the connection is found to lack. Share it with a connection of your own for
    /// [`Client::from_nats`].
    pub denials: Denials,
    /// Credentials, nkeys and TLS, beyond what the URL says. The files are read while connecting; without effect on
    /// [`Client::from_nats`]. Default: none.
    pub security: Security,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            prefix: DEFAULT_PREFIX.to_owned(),
            inbox_prefix: None,
            deadline: Duration::from_secs(10),
            connect_in_background: false,
            name: "nowserving-client".to_owned(),
            denials: Denials::default(),
            security: Security::default(),
        }
    }
}

impl ClientOptions {
    /// Checks without connecting what [`Client::connect_with`] would refuse as malformed. The files of
    /// [`security`](ClientOptions::security) are not read.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] for a malformed URL or prefix of subjects or inboxes.
    pub fn check(&self, url: &str) -> Result<()> {
        self.checked(url).map(drop)
    }

    fn checked(&self, url: &str) -> Result<Servers> {
        let bad = |what: String| Error::new(Kind::BadArgument, what);
        let servers: Servers = url
            .parse()
            .map_err(|error: BadServers| bad(error.to_string()))?;
        for server in servers.urls() {
            // A part that does not parse as a server may belong to a password that contains a comma.
            let parsed = server.parse::<ServerAddr>();
            parsed.map_err(|error| bad(format!("not a list of NATS servers: {error}")))?;
        }
        if let Some(inbox) = &self.inbox_prefix {
            check_inbox_prefix(inbox)?;
        }
        let subjects = Subjects::new(self.prefix.clone());
        subjects.map_err(|error| bad(error.message))?;
        Ok(servers)
    }
}

/// A connection to a cluster. Cheap to clone; clones share the connection.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
    deadline: Duration,
    /// Headers: who asks, and why.
    note: Arc<[(&'static str, String)]>,
}

struct Inner {
    connection: Arc<Connection>,
    /// Without the login. `None`: the caller made the connection.
    nats_url: Option<String>,
    subjects: Subjects,
    shards: Shards,
    feeds: Arc<Feeds>,
}

impl Client {
    /// Connects to the NATS server(s) at `url` (comma-separated) with the default options.
    ///
    /// # Errors
    /// [`Kind::Connection`] if no server can be reached, [`Kind::Forbidden`] if it refuses the login,
    /// [`Kind::BadArgument`] for a malformed URL.
    pub async fn connect(url: &str) -> Result<Client> {
        Client::connect_with(url, ClientOptions::default()).await
    }

    /// Connects to the NATS server(s) at `url` (comma-separated). The URL may contain user and
    /// password, or a token; [`ClientOptions::security`] has the other logins, and TLS. For anything else make the
    /// connection yourself and use [`Client::from_nats`].
    ///
    /// # Errors
    /// [`Kind::Connection`] if no server can be reached within [`ClientOptions::deadline`],
    /// [`Kind::Forbidden`] if it refuses the login, [`Kind::BadArgument`] for a malformed URL or
    /// prefix of subjects or inboxes, or a file of [`ClientOptions::security`] that cannot be used.
    pub async fn connect_with(url: &str, options: ClientOptions) -> Result<Client> {
        let servers = options.checked(url)?;
        let unusable = |error: SecurityError| Error::new(Kind::BadArgument, error.to_string());
        let mut connect = connect_options(&servers, &options).map_err(unusable)?;
        if let Some(inbox) = &options.inbox_prefix {
            connect = connect.custom_inbox_prefix(inbox);
        }
        let connecting = connect.connect(servers.urls());
        let failed =
            |why: String| Error::new(Kind::Connection, format!("NATS at {servers}: {why}"));
        let within = options.deadline;
        let nats = tokio::time::timeout(within, connecting)
            .await
            .map_err(|_| failed(format!("no connection within {within:?}")))?
            .map_err(|error| match error.kind() {
                ConnectErrorKind::AuthorizationViolation => {
                    login_refused(&format!("NATS at {servers}"))
                }
                _ => failed(nowserving_security::explained(&error.to_string())),
            })?;
        Client::new(nats, Some(servers.to_string()), options)
    }

    /// Uses an existing NATS connection. Set a jittered reconnect delay and a ping interval of some
    /// seconds on it, because the defaults have neither. Report its events to
    /// [`ClientOptions::denials`]; otherwise calls without the necessary rights end with
    /// [`Kind::Unavailable`], and watchers wait.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] for a malformed prefix.
    pub fn from_nats(nats: async_nats::Client, options: ClientOptions) -> Result<Client> {
        Client::new(nats, None, options)
    }

    fn new(
        nats: async_nats::Client,
        nats_url: Option<String>,
        options: ClientOptions,
    ) -> Result<Client> {
        let subjects = Subjects::new(options.prefix)
            .map_err(|error| Error::new(Kind::BadArgument, error.message))?;
        options.denials.expect_replies_like(&nats.new_inbox());
        let connection = Arc::new(Connection {
            nats,
            denials: options.denials,
        });
        let feeds = Arc::new(Feeds::new(connection.clone(), subjects.clone()));
        let inner = Inner {
            connection,
            nats_url,
            subjects,
            shards: Shards::default(),
            feeds,
        };
        Ok(Client {
            inner: Arc::new(inner),
            deadline: options.deadline,
            note: Arc::default(),
        })
    }

    /// The same client with another deadline for its calls.
    #[must_use]
    pub fn with_deadline(&self, deadline: Duration) -> Client {
        Client {
            deadline,
            ..self.clone()
        }
    }

    /// How long a call may take, all its attempts together.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// A line, for its users. Sends no request.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] if `name` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn line(&self, name: &str) -> Result<Line> {
        Ok(Line::new(self.clone(), line_name("line", name)?))
    }

    /// [`Client::line`] of a name that was checked before.
    #[must_use]
    pub fn line_by_name(&self, name: LineName) -> Line {
        Line::new(self.clone(), name)
    }

    /// The rate limits of a domain, with the default options. Sends no request.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] if `domain` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn limiter(&self, domain: &str) -> Result<Limiter> {
        self.limiter_with(domain, LimiterOptions::default())
    }

    /// The rate limits of a domain. Sends no request.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] if `domain` is not `[A-Za-z0-9_-]{1,64}`.
    pub fn limiter_with(&self, domain: &str, options: LimiterOptions) -> Result<Limiter> {
        let domain = line_name("domain", domain)?;
        Ok(Limiter::new(self.clone(), domain, options))
    }

    /// The operators' side.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(self.clone())
    }

    /// Whether NATS is reached now. For clients that [connect in the background](ClientOptions::connect_in_background).
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.nats().connection_state() == async_nats::connection::State::Connected
    }

    /// The NATS connection underneath.
    #[must_use]
    pub fn nats(&self) -> &async_nats::Client {
        &self.inner.connection.nats
    }

    /// The NATS server(s) that it was made for, comma-separated and without the login; `None` for [`Client::from_nats`].
    #[must_use]
    pub fn nats_url(&self) -> Option<&str> {
        self.inner.nats_url.as_deref()
    }

    /// The first word(s) of its subjects ([`ClientOptions::prefix`]).
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.inner.subjects.prefix()
    }

    pub(crate) fn subjects(&self) -> &Subjects {
        &self.inner.subjects
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.inner.connection
    }

    pub(crate) fn feeds(&self) -> &Arc<Feeds> {
        &self.inner.feeds
    }

    /// A request about something to the leader of its shard, which follows from the number of shards.
    pub(crate) async fn leader_call<Q: operation::Request>(
        &self,
        name: &LineName,
        shard: impl FnOnce(u32) -> u32,
        request: &Q,
    ) -> Result<Q::Reply> {
        let subjects = &self.inner.subjects;
        let op = Q::OPERATION;
        let on_shard = |shards| subjects.leader(op, shard(shards), name);
        let plain = subjects.plain(op, name);
        self.shard_call(on_shard, plain, Effect::of(request), request)
            .await
    }

    /// A request about something to any node.
    pub(crate) async fn plain_call<Q: operation::Request>(
        &self,
        name: &LineName,
        request: &Q,
    ) -> Result<Q::Reply> {
        let subject = self.inner.subjects.plain(Q::OPERATION, name);
        self.admin_call(subject, Effect::of(request), request).await
    }

    /// To the leader of a shard, of which `on_shard` has the subject in a cluster of so many shards.
    async fn shard_call<Q: Serialize, R: Payload>(
        &self,
        on_shard: impl FnOnce(u32) -> String,
        plain_subject: String,
        effect: Effect,
        body: &Q,
    ) -> Result<R> {
        let deadline = Instant::now() + self.deadline;
        let Inner {
            connection,
            subjects,
            shards,
            ..
        } = &*self.inner;
        // Without the count the request goes to any node: a call with little time does not wait for it.
        let count = shards.get(connection, subjects);
        let count = tokio::time::timeout(self.deadline / 4, count).await;
        let count = count.ok().flatten();
        let request = Request {
            shard_subject: count.map(on_shard),
            plain_subject,
            payload: encode(body),
            note: self.note.clone(),
            effect,
        };
        self.ask(&request, deadline).await
    }

    /// The same client, which sends this note with each request.
    pub(crate) fn with_note(&self, note: OperatorNote) -> Result<Client> {
        let headers: Vec<_> = note::headers(&note).collect();
        for (name, value) in &headers {
            note::read(name, value)
                .map_err(|error| Error::new(Kind::BadArgument, error.message))?;
        }
        Ok(Client {
            note: headers.into(),
            ..self.clone()
        })
    }

    /// An operator's operation, on its subject: the leader is not asked by itself.
    pub(crate) async fn admin_call<Q: Serialize, R: Payload>(
        &self,
        plain_subject: String,
        effect: Effect,
        body: &Q,
    ) -> Result<R> {
        let request = Request {
            shard_subject: None,
            plain_subject,
            payload: encode(body),
            note: self.note.clone(),
            effect,
        };
        self.ask(&request, Instant::now() + self.deadline).await
    }

    async fn ask<R: Payload>(&self, request: &Request, deadline: Instant) -> Result<R> {
        let answer = call::call(&*self.inner.connection, request, deadline).await?;
        if answer.shard_unserved {
            self.inner.shards.suspect();
        }
        codec::decode(&answer.payload).map_err(|error| bad_reply(&error))
    }
}

fn encode<Q: Serialize>(body: &Q) -> Bytes {
    codec::encode(body, Format::MsgPack).into()
}

/// `what` is of that name: a line, a bucket or a domain.
pub(crate) fn line_name(what: &str, name: &str) -> Result<LineName> {
    LineName::try_from(name).map_err(|_| {
        let start: String = name.chars().take(80).collect();
        Error::new(
            Kind::BadArgument,
            format!("a {what}'s name is 1 to 64 of [A-Za-z0-9_-], not {start:?}"),
        )
    })
}

fn connect_options(
    servers: &Servers,
    options: &ClientOptions,
) -> std::result::Result<ConnectOptions, SecurityError> {
    let ClientOptions { name, denials, .. } = options.clone();
    let connect = servers
        .log_in(
            options.security.options()?,
            ConnectOptions::user_and_password,
            ConnectOptions::token,
        )
        .name(name)
        .connection_timeout(Duration::from_secs(5))
        // A half-open connection is detected after two of these; the library's default is a minute.
        .ping_interval(Duration::from_secs(5))
        .reconnect_delay_callback(reconnect_delay)
        // Boards are read eagerly. The boards that a stalled process misses show as a gap and cost one
        // status; the default capacity of 65,536 boards would keep old boards in memory.
        .subscription_capacity(2_048)
        .event_callback(move |event| {
            denials.note(&event);
            async move {
                match event {
                    Event::SlowConsumer(_) => warn!(%event, "NATS messages were dropped"),
                    _ => debug!(%event, "NATS"),
                }
            }
        });
    Ok(match options.connect_in_background {
        true => connect.retry_on_initial_connect(),
        false => connect,
    })
}

/// `async-nats` would panic at some of those that are refused.
fn check_inbox_prefix(prefix: &str) -> Result<()> {
    let is_word = |word: &str| {
        let allowed = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'*' | b'>');
        !word.is_empty() && word.bytes().all(allowed)
    };
    match prefix.split('.').all(is_word) {
        true => Ok(()),
        false => Err(Error::new(
            Kind::BadArgument,
            "inbox_prefix: must be words joined by dots, without spaces, * and >",
        )),
    }
}

/// Doubles from 50 ms to 3.2 s, half of it at random, so that clients that lost their server at the
/// same moment do not reconnect at the same moment.
fn reconnect_delay(attempts: usize) -> Duration {
    let full_ms = 50_u64 << attempts.saturating_sub(1).min(6);
    Duration::from_millis(rand::rng().random_range(full_ms / 2..=full_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnects_are_spread_and_bounded() {
        for attempts in [0, 1, 2, 7, 8, 1_000, usize::MAX] {
            let delay = reconnect_delay(attempts);
            assert!(delay >= Duration::from_millis(25), "{attempts}: {delay:?}");
            assert!(
                delay <= Duration::from_millis(3_200),
                "{attempts}: {delay:?}"
            );
        }
        let some: std::collections::BTreeSet<_> = (0..100).map(|_| reconnect_delay(9)).collect();
        assert!(some.len() > 50);
    }

    #[test]
    fn bad_line_names_are_refused_before_anything_is_sent() {
        for name in ["", "a b", "a.b", "*", ">", "票", &"x".repeat(65)] {
            assert_eq!(
                line_name("line", name).map_err(|error| error.kind()),
                Err(Kind::BadArgument)
            );
        }
        assert!(line_name("line", "shop-1").is_ok());
    }
}
