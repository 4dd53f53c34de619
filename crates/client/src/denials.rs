//! What the NATS server does not allow this connection, told to the calls and feeds that wait.
//!
//! A server reports a missing right as an error of the connection, not as an answer to a request;
//! so each is matched by its subject to what is under way.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_nats::{ClientError, ConnectErrorKind, Event, ServerError};
use nowserving_protocol::rights::{Action, MissingRight};
use tokio::sync::broadcast;

use crate::error::{Error, Kind};

/// Rights reported at once that a waiting call can keep apart; calls that miss theirs wait for
/// their deadline.
const REPORTS_MAX: usize = 256;

/// The rights that one NATS connection turned out to lack. Clones share them.
///
/// [`Client::connect_with`](crate::Client::connect_with) sees to it by itself. A connection made by
/// hand has to report its events:
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use nowserving_client::{Client, ClientOptions};
///
/// let options = ClientOptions::default();
/// let denials = options.denials.clone();
/// let nats = async_nats::ConnectOptions::new()
///     .event_callback(move |event| {
///         denials.note(&event);
///         async {}
///     })
///     .connect("tls://nats-1:4222")
///     .await?;
/// let client = Client::from_nats(nats, options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Denials(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    reports: broadcast::Sender<MissingRight>,
    /// Why no call can succeed until the connection is made anew.
    lasting: Mutex<Option<Error>>,
    /// How the subjects of answers begin.
    inbox: OnceLock<String>,
}

impl Default for Denials {
    fn default() -> Denials {
        Denials(Arc::new(Shared {
            reports: broadcast::channel(REPORTS_MAX).0,
            lasting: Mutex::default(),
            inbox: OnceLock::new(),
        }))
    }
}

impl Denials {
    /// Takes in an event of the connection.
    pub fn note(&self, event: &Event) {
        match event {
            Event::Connected => self.set_lasting(None),
            Event::ClientError(ClientError::Other(text))
                if *text == ConnectErrorKind::AuthorizationViolation.to_string() =>
            {
                self.set_lasting(Some(login_refused("NATS")));
            }
            Event::ServerError(ServerError::Other(text)) => {
                if let Some(missing) = MissingRight::parse(text) {
                    self.report(missing);
                }
            }
            _ => {}
        }
    }

    fn report(&self, missing: MissingRight) {
        // All calls share one subscription for their answers; the server refuses it once.
        let inbox = self.0.inbox.get().map_or("_INBOX.", String::as_str);
        if missing.action == Action::Subscribe && missing.subject.starts_with(inbox) {
            self.set_lasting(Some(forbidden(&missing)));
        }
        // Fails while nobody waits.
        let _ = self.0.reports.send(missing);
    }

    fn set_lasting(&self, error: Option<Error>) {
        *self
            .0
            .lasting
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn lasting(&self) -> Option<Error> {
        let lasting = self.0.lasting.lock();
        lasting.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// `inbox`: any subject for answers that the connection has made.
    pub(crate) fn expect_answers_like(&self, inbox: &str) {
        if let Some((prefix, _)) = inbox.rsplit_once('.') {
            // The first connection's stays: one `Denials` is for one connection.
            let _ = self.0.inbox.set(format!("{prefix}."));
        }
    }

    /// Hears what is reported from now on.
    pub(crate) fn listen(&self) -> Listener {
        Listener {
            denials: self.clone(),
            reports: self.0.reports.subscribe(),
        }
    }
}

/// What is reported from one moment on.
pub(crate) struct Listener {
    denials: Denials,
    reports: broadcast::Receiver<MissingRight>,
}

impl Listener {
    /// Completes when a request to `subject` cannot be sent or answered. Cancel-safe.
    pub(crate) async fn request(&mut self, subject: &str) -> Error {
        loop {
            if let Some(error) = self.denials.lasting() {
                return error;
            }
            let missing = self.next().await;
            if missing.forbids_sending_to(subject) {
                return forbidden(&missing);
            }
        }
    }

    /// Completes when one of `subjects` cannot be subscribed to. Cancel-safe.
    pub(crate) async fn subscription(&mut self, subjects: &[&str]) -> Error {
        loop {
            let missing = self.next().await;
            let is_ours = subjects.contains(&missing.subject.as_str());
            if missing.action == Action::Subscribe && is_ours {
                return forbidden(&missing);
            }
        }
    }

    async fn next(&mut self) -> MissingRight {
        loop {
            match self.reports.recv().await {
                Ok(missing) => return missing,
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                // Does not happen: the sender is in `denials`.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

fn forbidden(missing: &MissingRight) -> Error {
    Error::new(Kind::Forbidden, missing.to_string())
}

/// `server`: as the caller may be told of it.
pub(crate) fn login_refused(server: &str) -> Error {
    Error::new(
        Kind::Forbidden,
        format!("{server} refused the login: unknown user, or wrong password or token"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use futures::FutureExt;

    use super::*;

    const SUBJECT: &str = "nowserving.line.a.info";

    fn violation(text: &str) -> Event {
        Event::ServerError(ServerError::Other(format!(
            "Permissions Violation for {text}"
        )))
    }

    fn heard(listener: &mut Listener) -> Option<String> {
        let error = listener.request(SUBJECT).now_or_never()?;
        assert_eq!(error.kind(), Kind::Forbidden);
        Some(error.message().to_owned())
    }

    #[test]
    fn only_the_call_that_it_is_about_hears_of_a_missing_right() {
        let denials = Denials::default();
        let mut listener = denials.listen();
        denials.note(&violation(r#"Publish to "nowserving.line.b.info""#));
        denials.note(&violation(r#"Subscription to "nowserving.line.a.info""#));
        assert_eq!(heard(&mut listener), None);
        denials.note(&violation(r#"Publish to "nowserving.line.a.info""#));
        let text = heard(&mut listener).unwrap();
        assert_eq!(text, format!("this NATS user may not publish to {SUBJECT}"));
        // A later call may succeed: rights can be given while the connection lasts.
        assert_eq!(heard(&mut denials.listen()), None);
    }

    #[test]
    fn without_answers_or_login_every_call_fails_until_the_connection_is_made_anew() {
        let denials = Denials::default();
        denials.expect_answers_like("_INBOX_shop.abc");
        for event in [
            violation(r#"Subscription to "_INBOX_shop.def.*""#),
            Event::ClientError(ClientError::Other("authorization violation".to_owned())),
        ] {
            let mut before = denials.listen();
            denials.note(&event);
            for listener in [&mut before, &mut denials.listen()] {
                assert!(heard(listener).is_some(), "{event}");
            }
            denials.note(&Event::Connected);
            assert_eq!(heard(&mut denials.listen()), None);
        }
        denials.note(&violation(r#"Subscription to "somebody.elses""#));
        assert_eq!(heard(&mut denials.listen()), None);
    }
}
