//! What a call can end in, but for its answer.

use std::fmt;
use std::time::Duration;

use nowserving_protocol::error::{ApiError, Code};

/// What a program decides by when a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// The cluster answered no, and the same request will get the same answer (or, with
    /// `line_full` and `sold_out`, until somebody goes).
    Refused(Code),
    /// Nobody could serve the request by the deadline, and nothing happened: no node or no leader,
    /// no quorum, too much to do, no NATS connection.
    Unavailable,
    /// The deadline passed while an attempt was out whose outcome is not known. Repeat it to find
    /// out; every operation may be repeated (`enter` with the same key).
    OutcomeUnknown,
    /// The NATS server does not allow it: the login was refused, or the user lacks the right that
    /// the message names. Nothing happened, unless [`Error::may_have_happened`]. One exception cannot
    /// be told apart: NATS says which subject is refused, not which message. An operation that was
    /// out already when the right was taken away, or whose answer the user may not receive, ends
    /// like this too and may have happened.
    Forbidden,
    /// The NATS connection could not be made, or was closed for good.
    Connection,
    /// An answer came that this SDK cannot read.
    BadReply,
    /// An argument was refused before anything was sent.
    BadArgument,
}

impl Kind {
    /// The contract's code that comes nearest, also for errors that no node has sent.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Kind::Refused(code) => code,
            Kind::Unavailable | Kind::Connection => Code::Unavailable,
            // Something was done and answered.
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
    /// Boxed: errors travel in every `Result`, answers of the cluster are the rare case.
    api: Option<Box<ApiError>>,
    after_unknown: bool,
}

/// `Result` with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            api: None,
            after_unknown: kind == Kind::OutcomeUnknown,
        }
    }

    /// A final answer of the cluster.
    pub(crate) fn refused(api: ApiError, after_unknown: bool) -> Error {
        Error {
            kind: Kind::Refused(api.code),
            message: api.message.clone(),
            api: Some(Box::new(api)),
            after_unknown,
        }
    }

    /// Attempts ended without a final answer; `api` is the last one's, if it had any.
    pub(crate) fn unsettled(kind: Kind, message: String, api: Option<ApiError>) -> Error {
        Error {
            api: api.map(Box::new),
            ..Error::new(kind, message)
        }
    }

    /// The same error, of a call of which an earlier attempt may have had its effect.
    pub(crate) fn after_unknown(self, unknown: bool) -> Error {
        Error {
            after_unknown: self.after_unknown || unknown,
            ..self
        }
    }

    /// What a program decides by.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What a human reads, without the kind.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The contract's error code, if the cluster gave one as its final answer.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self.kind {
            Kind::Refused(code) => Some(code),
            _ => None,
        }
    }

    /// The last error that the cluster answered with, also one that was retried until the deadline.
    #[must_use]
    pub fn api(&self) -> Option<&ApiError> {
        self.api.as_deref()
    }

    /// When the cluster says it is worth asking again.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.api()?.retry_after_ms.map(Duration::from_millis)
    }

    /// Whether the operation may have had its effect all the same. True for
    /// [`Kind::OutcomeUnknown`], and for a refusal that came after an attempt whose outcome is not
    /// known (a `version_conflict` may then be with this call's own change).
    #[must_use]
    pub fn may_have_happened(&self) -> bool {
        self.after_unknown
    }

    /// Whether the same call may succeed later without anybody changing anything.
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
