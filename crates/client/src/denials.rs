//! Rights that the NATS server denies to this connection, reported to the calls and feeds that wait.
//!
//! A server reports a missing right as an error of the connection, not as a reply to a request. So
//! each report is matched to waiting calls and feeds by its subject.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_nats::{ClientError, ConnectErrorKind, Event, ServerError};
use nowserving_protocol::rights::{Action, MissingRight};
use tokio::sync::broadcast;

use crate::error::{Error, Kind};

/// How many reports a waiting call can be behind. A call that misses its own report waits until its
/// deadline.
const REPORTS_MAX: usize = 256;

/// The rights that one NATS connection is found to lack. Clones share them.
///
/// [`Client::connect_with`](crate::Client::connect_with) reports the connection's events by itself. A
/// connection of your own must report them:
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
    /// Set while no call can succeed: until the connection is made again.
    lasting: Mutex<Option<Error>>,
    /// The prefix of the subjects of replies.
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
    /// Reports an event of the connection.
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
        // All calls share one subscription for replies; the server refuses it once.
        let inbox = self.0.inbox.get().map_or("_INBOX.", String::as_str);
        if missing.action == Action::Subscribe && missing.subject.starts_with(inbox) {
            self.set_lasting(Some(forbidden(&missing)));
        }
        // Fails only without receivers.
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

    /// `inbox`: any subject for replies that the connection has made.
    pub(crate) fn expect_replies_like(&self, inbox: &str) {
        if let Some((prefix, _)) = inbox.rsplit_once('.') {
            // The first connection's prefix stays: one `Denials` is for one connection.
            let _ = self.0.inbox.set(format!("{prefix}."));
        }
    }

    /// Receives the reports from now on.
    pub(crate) fn listen(&self) -> Listener {
        Listener {
            denials: self.clone(),
            reports: self.0.reports.subscribe(),
        }
    }
}

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
                // Does not happen, because `denials` holds a sender.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

fn forbidden(missing: &MissingRight) -> Error {
    let hint = match missing.action {
        Action::Subscribe if missing.subject.starts_with("_INBOX") => {
            " (inbox_prefix, --inbox-prefix: the inbox that the role may use)"
        }
        _ => "",
    };
    Error::new(Kind::Forbidden, format!("{missing}{hint}"))
}

/// `server`: its name without the login.
pub(crate) fn login_refused(server: &str) -> Error {
    Error::new(
        Kind::Forbidden,
        format!(
            "{server} refused the login: unknown user, or wrong password, token, nkey or credentials"
        ),
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

    fn denied(listener: &mut Listener) -> Option<String> {
        let error = listener.request(SUBJECT).now_or_never()?;
        assert_eq!(error.kind(), Kind::Forbidden);
        Some(error.message().to_owned())
    }

    #[test]
    fn a_missing_right_is_reported_only_to_the_calls_that_need_it() {
        let denials = Denials::default();
        let mut listener = denials.listen();
        denials.note(&violation(r#"Publish to "nowserving.line.b.info""#));
        denials.note(&violation(r#"Subscription to "nowserving.line.a.info""#));
        assert_eq!(denied(&mut listener), None);
        denials.note(&violation(r#"Publish to "nowserving.line.a.info""#));
        let text = denied(&mut listener).unwrap();
        assert_eq!(text, format!("this NATS user may not publish to {SUBJECT}"));
        // A later call may succeed: rights can be granted while the connection lasts.
        assert_eq!(denied(&mut denials.listen()), None);
    }

    #[test]
    fn without_replies_or_login_every_call_fails_until_the_connection_is_made_again() {
        let denials = Denials::default();
        denials.expect_replies_like("_INBOX_shop.abc");
        for event in [
            violation(r#"Subscription to "_INBOX_shop.def.*""#),
            Event::ClientError(ClientError::Other("authorization violation".to_owned())),
        ] {
            let mut before = denials.listen();
            denials.note(&event);
            for listener in [&mut before, &mut denials.listen()] {
                assert!(denied(listener).is_some(), "{event}");
            }
            denials.note(&Event::Connected);
            assert_eq!(denied(&mut denials.listen()), None);
        }
        denials.note(&violation(r#"Subscription to "somebody.elses""#));
        assert_eq!(denied(&mut denials.listen()), None);
    }
}
