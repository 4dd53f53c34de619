//! NATS rights that this node lacks. A node without a right of the table in docs/security.md cannot receive or send
//! a part of its messages, and no other node would notice. So it ends, and names the subject.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use async_nats::{ClientError, ConnectErrorKind, Event, ServerError};
use nowserving_protocol::rights::{Action, MissingRight};
use nowserving_protocol::subject::Subjects;
use tokio::sync::mpsc;

use crate::data_dir::random_u64;
use crate::throttle::Throttle;

/// Looks at the events of one connection.
#[derive(Debug)]
pub struct Rights {
    kind: &'static str,
    subjects: Subjects,
    inbox: String,
    fatal: mpsc::Sender<anyhow::Error>,
    was_connected: AtomicBool,
    warnings: Mutex<Throttle>,
}

impl Rights {
    /// `kind`: which connection, for people. The lack of a right that a node needs is sent to `fatal`.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn new(
        kind: &'static str,
        subjects: Subjects,
        fatal: mpsc::Sender<anyhow::Error>,
    ) -> std::io::Result<Self> {
        Ok(Rights {
            kind,
            subjects,
            inbox: format!("_INBOX.{:016x}", random_u64()?),
            fatal,
            was_connected: AtomicBool::new(false),
            warnings: Mutex::default(),
        })
    }

    /// The prefix of the connection's own inboxes, which distinguishes them from those of requesters.
    #[must_use]
    pub fn inbox(&self) -> &str {
        &self.inbox
    }

    /// Reports an event about rights; returns whether it was one.
    pub fn note(&self, event: &Event) -> bool {
        match event {
            Event::Connected => {
                self.was_connected.store(true, Ordering::Relaxed);
                false
            }
            Event::ClientError(ClientError::Other(text))
                if *text == ConnectErrorKind::AuthorizationViolation.to_string() =>
            {
                self.login_refused();
                true
            }
            Event::ServerError(ServerError::Other(text)) => match MissingRight::parse(text) {
                Some(missing) => {
                    self.missing(&missing);
                    true
                }
                None => false,
            },
            _ => false,
        }
    }

    fn login_refused(&self) {
        let what = "the NATS server refused the login: unknown user, or wrong password, token, nkey or credentials";
        if self.was_connected.load(Ordering::Relaxed) {
            // Passwords are being changed, perhaps not yet on every server.
            self.warn(&format!("{what}; trying again"));
        } else {
            self.end(anyhow::anyhow!("{what} ({} connection)", self.kind));
        }
    }

    fn missing(&self, missing: &MissingRight) {
        if self.is_needed(missing) {
            let kind = self.kind;
            self.end(anyhow::anyhow!(
                "{missing} ({kind} connection), and a node cannot work without; see the rights of nodes in docs/security.md"
            ));
        } else {
            self.warn(&format!("{missing}: what is sent there is lost"));
        }
    }

    /// All subjects are the node's own but those that requesters name for their answers. Service
    /// discovery saves clients a hop, no more.
    fn is_needed(&self, missing: &MissingRight) -> bool {
        let subject = missing.subject.as_str();
        let is_below = |prefix: &str| {
            let rest = subject.strip_prefix(prefix);
            rest.is_some_and(|rest| rest.starts_with('.'))
        };
        match missing.action {
            Action::Subscribe => !subject.starts_with("$SRV."),
            Action::Publish => is_below(self.subjects.prefix()) || is_below(&self.inbox),
        }
    }

    fn end(&self, error: anyhow::Error) {
        // Full: the node is about to end already.
        let _ = self.fatal.try_send(error);
    }

    fn warn(&self, text: &str) {
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = warnings.count() {
            tracing::warn!(kind = self.kind, count, "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rights() -> (Rights, mpsc::Receiver<anyhow::Error>) {
        let (fatal, ends) = mpsc::channel(1);
        let rights = Rights::new("service", Subjects::default(), fatal);
        (rights.unwrap(), ends)
    }

    fn violation(text: &str) -> Event {
        let text = format!("Permissions Violation for {text}");
        Event::ServerError(ServerError::Other(text))
    }

    #[test]
    fn a_node_ends_for_want_of_what_it_needs_and_names_it() {
        for (text, subject) in [
            (
                r#"Subscription to "nowserving.line.>" using queue "nowserving""#,
                "nowserving.line.>",
            ),
            (r#"Subscription to "_INBOX.a.b""#, "_INBOX.a.b"),
            (
                r#"Publish to "nowserving.raft.c.1.2""#,
                "nowserving.raft.c.1.2",
            ),
        ] {
            let (rights, mut ends) = rights();
            assert!(rights.note(&violation(text)));
            let told = ends.try_recv().unwrap().to_string();
            assert!(told.contains(subject), "{told}");
        }
    }

    #[test]
    fn a_node_ends_for_want_of_its_own_inboxes() {
        let (rights, mut ends) = rights();
        let subject = format!("{}.a", rights.inbox());
        assert!(rights.note(&violation(&format!(r#"Publish to "{subject}""#))));
        let told = ends.try_recv().unwrap().to_string();
        assert!(told.contains(&subject), "{told}");
    }

    /// Else a requester could end nodes by the subject that it wants its answer on.
    #[test]
    fn what_others_name_and_what_can_be_done_without_ends_nothing() {
        let (rights, mut ends) = rights();
        for text in [
            r#"Publish to "somebody.elses.inbox""#,
            r#"Publish to "_INBOX.a.b""#,
            r#"Subscription to "$SRV.PING""#,
        ] {
            assert!(rights.note(&violation(text)));
        }
        assert!(!rights.note(&Event::LameDuckMode));
        assert!(ends.try_recv().is_err());
    }

    #[test]
    fn a_login_that_has_worked_is_tried_again() {
        let refused = Event::ClientError(ClientError::Other("authorization violation".to_owned()));
        let (rights, mut ends) = rights();
        rights.note(&Event::Connected);
        assert!(rights.note(&refused));
        assert!(ends.try_recv().is_err());
        let (rights, mut ends) = self::rights();
        assert!(rights.note(&refused));
        assert!(ends.try_recv().unwrap().to_string().contains("login"));
    }
}
