//! Checks passes where the shop's edge is: by the cluster's public keys alone, and, if it follows the line's events,
//! refusing those that were revoked.

mod revoked;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::StreamExt;
use nowserving_line::LineName;
use nowserving_pass::{BadPass, PassClaims, PassVerifier};
use nowserving_protocol::event::{LineEvent, TokenEvent};

use self::revoked::Revoked;
use crate::error::{Error, Kind, Result};
use crate::events::{self, EventStream, Reconnected};
use crate::line::Line;

/// How often to look whether the connection was lost.
const LOOK: Duration = Duration::from_millis(500);

/// Checks the passes of one line. Cheap to clone; the clones share what was revoked.
///
/// ```no_run
/// # async fn edge(file: &str, pass: &str) -> Result<(), Box<dyn std::error::Error>> {
/// use nowserving_client::{Client, PassChecker, PassVerifier};
///
/// let jwks = serde_json::from_str(file)?;
/// let keys = PassVerifier::new(&jwks)?.with_leeway_s(5);
/// let checker = PassChecker::new("shop-1".parse()?, keys);
/// println!("token {} may pass", checker.check(pass)?.token);
///
/// // So far without a connection. With one, passes of tokens that were kicked are refused, too.
/// let client = Client::connect("nats://127.0.0.1:4222").await?;
/// let following = checker.follow(&client.line("shop-1")?).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct PassChecker {
    line: LineName,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    keys: PassVerifier,
    revoked: Revoked,
}

impl PassChecker {
    /// For passes of this line, by these keys.
    #[must_use]
    pub fn new(line: LineName, keys: PassVerifier) -> PassChecker {
        let revoked = Revoked::default();
        PassChecker {
            line,
            state: Arc::new(Mutex::new(State { keys, revoked })),
        }
    }

    /// Checks by other keys from now on: while the cluster's key is rotated, before its nodes sign with the new one.
    pub fn set_keys(&self, keys: PassVerifier) {
        self.lock().keys = keys;
    }

    /// What a pass says, if it is good now.
    ///
    /// # Errors
    /// The first thing that is wrong; [`BadPass::Revoked`] as far as events said so.
    pub fn check(&self, pass: &str) -> std::result::Result<PassClaims, BadPass> {
        self.check_at(pass, now_s())
    }

    /// [`PassChecker::check`] at another time, in seconds since 1970.
    ///
    /// # Errors
    /// As there.
    pub fn check_at(&self, pass: &str, now_s: u64) -> std::result::Result<PassClaims, BadPass> {
        let state = self.lock();
        let claims = state.keys.verify(pass, Some(&self.line), now_s)?;
        match state.revoked.has(&claims) {
            true => Err(BadPass::Revoked),
            false => Ok(claims),
        }
    }

    /// Takes a token event. [`PassChecker::follow`] does it by itself; this is for a service that has the events
    /// anyway.
    pub fn token(&self, event: &TokenEvent) {
        self.token_at(event, now_s());
    }

    fn token_at(&self, event: &TokenEvent, now_s: u64) {
        if event.line == self.line {
            self.lock().revoked.token(event, now_s);
        }
    }

    /// Takes a line event, as [`PassChecker::token`] does.
    pub fn line(&self, event: &LineEvent) {
        if event.line == self.line {
            self.lock().revoked.line(event);
        }
    }

    /// Events are missing, up to now: refuses all passes that were signed until then, as any of their tokens may be gone.
    /// [`PassChecker::follow`] does it by itself after a connection was lost, and both it and [`PassChecker::token`] if
    /// the `prev_version` of an event shows that others are missing.
    pub fn missed_events(&self) {
        self.lock().revoked.missed(now_s());
    }

    /// Follows the line's events, in a task, until the answer is dropped: a pass is refused once its token is gone or
    /// was claimed anew. What happens after this returns is known. If events were missed (a lost connection, a slow
    /// consumer, a leader that died before it published one), passes that were signed before are refused: their holders
    /// get new ones by `status`. What happened before is not known; such passes are good until they expire. The line
    /// must have `token_events`. After an earlier creation of the line was put back from a backup, begin with a new checker.
    ///
    /// # Errors
    /// [`Kind::BadArgument`] for another line; [`Kind::Unavailable`] without a connection to NATS.
    pub async fn follow(&self, line: &Line) -> Result<Following> {
        if *line.name() != self.line {
            let what = format!("this checks passes of line {}", self.line.as_str());
            return Err(Error::new(Kind::BadArgument, what));
        }
        let client = line.client();
        let subjects = client.subjects();
        let reconnected = Reconnected::new(client.nats());
        // Late ones of an earlier leader, too: they revoke.
        let of_tokens = subjects.token_events(&self.line);
        let of_tokens = events::subscribe_to_all(client, of_tokens).await?;
        let of_line = subjects.line_event(&self.line);
        let of_line = events::subscribe_to_all(client, of_line).await?;
        Ok(Following {
            task: tokio::spawn(follow(self.clone(), (of_tokens, of_line), reconnected)),
            error: None,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Follows a line's events while it is kept.
#[derive(Debug)]
#[must_use = "dropping it ends the following"]
pub struct Following {
    task: tokio::task::JoinHandle<Error>,
    /// Once it has ended.
    error: Option<Error>,
}

impl Following {
    /// Waits until it ends by itself: a right is missing, or the connection to NATS was closed. From then on nothing
    /// more is known to be revoked.
    pub async fn ended(&mut self) -> Error {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let ended = (&mut self.task).await;
        let error =
            ended.unwrap_or_else(|_| Error::new(Kind::Connection, "the task that follows ended"));
        self.error.insert(error).clone()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Until one of the streams ends.
async fn follow(
    checker: PassChecker,
    (mut of_tokens, mut of_line): (EventStream<TokenEvent>, EventStream<LineEvent>),
    mut reconnected: Reconnected,
) -> Error {
    let mut looks = tokio::time::interval(LOOK);
    loop {
        let taken = tokio::select! {
            _ = looks.tick() => {
                if reconnected.take() {
                    checker.missed_events();
                }
                continue;
            }
            event = of_tokens.next() => event.map(|event| event.map(|event| checker.token(&event))),
            event = of_line.next() => event.map(|event| event.map(|event| checker.line(&event))),
        };
        match taken {
            Some(Ok(())) => {}
            Some(Err(error)) => return error,
            None => return Error::new(Kind::Connection, "the events ended"),
        }
    }
}

/// A clock before 1970 refuses all.
fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
