//! Missing rights, as a NATS server reports them to the connection that lacks them.

use std::fmt;

/// The use of a subject that the NATS server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Publishing to the subject.
    Publish,
    /// Subscribing to the subject.
    Subscribe,
}

/// A right that the user of a NATS connection lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRight {
    /// The use that was refused.
    pub action: Action,
    /// The subject. For a message that the server maps to another subject, the other one.
    pub subject: String,
}

impl MissingRight {
    /// Reads the server's error; `None` if it is about something else.
    pub fn parse(error: &str) -> Option<MissingRight> {
        let rest = error.strip_prefix("Permissions Violation for ")?;
        let (action, rest) = if let Some(rest) = rest.strip_prefix("Publish ") {
            (Action::Publish, rest)
        } else {
            (Action::Subscribe, rest.strip_prefix("Subscription ")?)
        };
        let subject = rest.split('"').nth(1)?;
        Some(MissingRight {
            action,
            subject: subject.to_owned(),
        })
    }

    /// Whether a message sent to `subject` was dropped for this reason. A server checks rights after
    /// its mappings, so a plain request can be refused under the subject of its shard.
    pub fn forbids_sending_to(&self, subject: &str) -> bool {
        self.action == Action::Publish
            && (self.subject == subject || self.is_shard_subject_of(subject))
    }

    fn is_shard_subject_of(&self, subject: &str) -> bool {
        let mapped = || {
            let (prefix, request) = subject.split_once(".line.")?;
            let shard = self.subject.strip_prefix(prefix)?.strip_prefix(".shard.")?;
            let (_, mapped) = shard.split_once('.')?;
            Some(mapped == request)
        };
        mapped().unwrap_or(false)
    }
}

impl fmt::Display for MissingRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Publish => "publish",
            Action::Subscribe => "subscribe",
        };
        let subject = &self.subject;
        write!(f, "this NATS user may not {action} to {subject}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn parse(error: &str) -> (Action, String) {
        let missing = MissingRight::parse(error).unwrap();
        (missing.action, missing.subject)
    }

    #[test]
    fn the_words_of_nats_server_are_understood() {
        assert_eq!(
            parse(r#"Permissions Violation for Publish to "nowserving.line.a.enter""#),
            (Action::Publish, "nowserving.line.a.enter".to_owned())
        );
        assert_eq!(
            parse(r#"Permissions Violation for Publish with Reply of "$SYS.x""#),
            (Action::Publish, "$SYS.x".to_owned())
        );
        assert_eq!(
            parse(r#"Permissions Violation for Subscription to "_INBOX.a.b.*""#),
            (Action::Subscribe, "_INBOX.a.b.*".to_owned())
        );
        assert_eq!(
            parse(r#"Permissions Violation for Subscription to "a.>" using queue "q""#),
            (Action::Subscribe, "a.>".to_owned())
        );
        for other in [
            "Authorization Violation",
            "Stale Connection",
            "Permissions Violation for Publish to",
            "",
        ] {
            assert_eq!(MissingRight::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_request_is_known_under_the_subject_that_it_is_mapped_to() {
        let missing = |subject: &str| MissingRight {
            action: Action::Publish,
            subject: subject.to_owned(),
        };
        let plain = "nowserving.line.shop-1.enter";
        let mapped = missing("nowserving.shard.7.shop-1.enter");
        assert!(missing(plain).forbids_sending_to(plain));
        assert!(mapped.forbids_sending_to(plain));
        assert!(mapped.forbids_sending_to("nowserving.shard.7.shop-1.enter"));
        assert!(!mapped.forbids_sending_to("nowserving.line.shop-1.status"));
        assert!(!mapped.forbids_sending_to("nowserving.line.shop-11.enter"));
        assert!(!mapped.forbids_sending_to("other.line.shop-1.enter"));
        let subscribe = MissingRight {
            action: Action::Subscribe,
            ..missing(plain)
        };
        assert!(!subscribe.forbids_sending_to(plain));
        assert_eq!(
            mapped.to_string(),
            "this NATS user may not publish to nowserving.shard.7.shop-1.enter"
        );
    }
}
