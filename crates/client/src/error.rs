//! Errors of calls.

use std::fmt;
use std::time::Duration;

use nowserving_protocol::error::{ApiError, Code};

/// The kind of a failure, for programs to decide by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The cluster refused the request and would refuse it again (with `line_full` and `sold_out`, until
    /// somebody leaves the line).
    Refused(Code),
    /// No node could serve the request by the deadline, and nothing happened: no node, no leader, no
    /// quorum, too many requests, or no NATS connection.
    Unavailable,
    /// The deadline passed, and the outcome of an attempt is not known. It has happened already, or
    /// happens within a second, or never. Repeat an `enter` with the same key, or an operation on a
    /// token, to find out; look at the line after an operator's change.
    OutcomeUnknown,
    /// The NATS server refused the login, or the user lacks the right that the message names. Nothing
    /// happened, unless [`Error::may_have_happened`]. One exception cannot be detected, because NATS
    /// names the refused subject and not the message: an operation that was sent before the right was
    /// revoked, or whose reply the user may not receive, ends with this kind too and may have
    /// happened.
    Forbidden,
    /// The NATS connection could not be made, or was closed for good.
    Connection,
    /// This SDK cannot decode the reply.
    BadReply,
    /// An argument was refused before anything was sent.
    BadArgument,
}

impl Kind {
    /// The nearest code of the contract, also for errors that no node has sent.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Kind::Refused(code) => code,
            Kind::Unavailable | Kind::Connection => Code::Unavailable,
            // A node has served the request.
            Kind::OutcomeUnknown | Kind::BadReply => Code::OutcomeUnknown,
            Kind::Forbidden => Code::Forbidden,
            Kind::BadArgument => Code::BadRequest,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.code().fmt(f)
    }
}

/// Why a call failed.
#[derive(Debug, Clone)]
pub struct Error {
    kind: Kind,
    message: String,
    /// Boxed, because every `Result` has the size of its error, and errors from the cluster are rare.
    api: Option<Box<ApiError>>,
    after_unknown: bool,
}

/// `Result` with this crate's [`Error`], if no other is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            api: None,
            after_unknown: kind == Kind::OutcomeUnknown,
        }
    }

    /// The same error, with the last error from the cluster.
    pub(crate) fn with_api(self, api: ApiError) -> Error {
        Error {
            api: Some(Box::new(api)),
            ..self
        }
    }

    /// The same error, for a call whose earlier attempt may have had its effect.
    pub(crate) fn after_unknown(self, unknown: bool) -> Error {
        Error {
            after_unknown: self.after_unknown || unknown,
            ..self
        }
    }

    /// The kind, for programs to decide by.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The text for people, without the kind.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The contract's error code, if the cluster refused the request with one.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self.kind {
            Kind::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// The last error from the cluster, also one after which the call was repeated until the deadline.
    #[must_use]
    pub fn api(&self) -> Option<&ApiError> {
        self.api.as_deref()
    }

    /// After how long the cluster suggests another attempt.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.api()?.retry_after_ms.map(Duration::from_millis)
    }

    /// Whether the operation may have had its effect in spite of the error. True for
    /// [`Kind::OutcomeUnknown`], and for a refusal after an attempt with an unknown outcome (a
    /// `version_conflict` may then be caused by this call's own change).
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        self.after_unknown
    }

    /// Whether the same call may succeed later without a change by anybody.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Unavailable | Kind::OutcomeUnknown)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        if self.after_unknown && self.kind != Kind::OutcomeUnknown {
            f.write_str(" (an earlier attempt of this call may have had its effect)")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
