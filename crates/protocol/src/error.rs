//! The error codes of the contract and the error that travels in a reply.

use std::fmt;

use nowserving_line as line;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// When a client refused with `line_full` should try again, in milliseconds.
///
/// A constant, because nothing is known of when others will leave the line.
pub const LINE_FULL_RETRY_AFTER_MS: u64 = 3_000;

/// An error may quote the request; its message is truncated to this many bytes.
const MESSAGE_MAX_BYTES: usize = 400;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $http:literal;)*) => {
        /// Why a request was refused; the contract's error codes.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $name,)*
            /// A code that this build does not know. Only ever read, from a newer
            /// server; never sent. The error's message then begins with the code.
            Unknown,
        }

        impl Code {
            /// Every code that may be sent.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// The code as a reply carries it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Code::$name => $text,)*
                    Code::Unknown => "unknown",
                }
            }

            /// The code with this text; `None` if this build knows none.
            pub fn parse(text: &str) -> Option<Code> {
                match text {
                    $($text => Some(Code::$name),)*
                    _ => None,
                }
            }

            /// The number for the `Nats-Service-Error-Code` header, taken from HTTP.
            pub fn http(self) -> u16 {
                match self {
                    $(Code::$name => $http,)*
                    Code::Unknown => 500,
                }
            }
        }
    };
}

codes! {
    /// The request itself is wrong: its form, a field, the operation.
    BadRequest = "bad_request", 400;
    /// The ticket is altered, or of another line or incarnation.
    TicketInvalid = "ticket_invalid", 401;
    /// The caller may not do this.
    Forbidden = "forbidden", 403;
    /// The line issues no numbers in its phase.
    LineClosed = "line_closed", 403;
    /// No line has this name.
    LineNotFound = "line_not_found", 404;
    /// No live token has this key, or the number was never given.
    TokenNotFound = "token_not_found", 404;
    /// The bucket has no such key.
    KeyNotFound = "key_not_found", 404;
    /// No member of the cluster, or no candidate, is named so.
    NodeNotFound = "node_not_found", 404;
    /// There are no rules of this domain.
    DomainNotFound = "domain_not_found", 404;
    /// A line with this name exists.
    LineExists = "line_exists", 409;
    /// The line still has live tokens.
    LineNotEmpty = "line_not_empty", 409;
    /// The operation needs a seat; the token still waits.
    NotAdmitted = "not_admitted", 409;
    /// The operation needs a claimed seat; this one is not claimed yet.
    NotClaimed = "not_claimed", 409;
    /// The operation needs a waiting token.
    NotWaiting = "not_waiting", 409;
    /// The epoch is not that of the current claim.
    EpochStale = "epoch_stale", 409;
    /// The settings have changed since `if_version`, the line has another `incarnation`, or the key another revision.
    VersionConflict = "version_conflict", 409;
    /// An earlier change of the members is not finished.
    MembersChanging = "members_changing", 409;
    /// The cluster cannot have such members.
    MembersRefused = "members_refused", 409;
    /// The token is gone; `reason` says why.
    TokenGone = "token_gone", 410;
    /// The line has no room now.
    LineFull = "line_full", 429;
    /// Everything the quota allows is completed or held.
    SoldOut = "sold_out", 429;
    /// The bucket, or the shard, has no room for more key-values.
    KvFull = "kv_full", 429;
    /// The node has too many requests; nothing happened.
    Overloaded = "overloaded", 503;
    /// This node does not lead the shard; `leader` is the node that does, if known.
    NotLeader = "not_leader", 503;
    /// No quorum; nothing happened.
    Unavailable = "unavailable", 503;
    /// The operation may or may not have been applied: repeat it (with the same key) to find out.
    OutcomeUnknown = "outcome_unknown", 504;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// An error as a reply carries it. An error means that nothing happened, except for
/// [`Code::OutcomeUnknown`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[error("{code}: {message}")]
pub struct ApiError {
    /// The stable identifier of the error, for programs.
    pub code: Code,
    /// For people; may change between releases.
    pub message: String,
    /// When to try again, in milliseconds from the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// With `token_gone`: why the token is gone, or `forgotten`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// With `not_leader`: the id of the node that leads the shard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
}

impl ApiError {
    /// An error of this code. The message is truncated to 400 bytes, because it may quote a request.
    pub fn new(code: Code, message: impl Into<String>) -> ApiError {
        let mut message = message.into();
        if message.len() > MESSAGE_MAX_BYTES {
            message.truncate(message.floor_char_boundary(MESSAGE_MAX_BYTES));
            message.push('…');
        }
        ApiError {
            code,
            message,
            retry_after_ms: None,
            reason: None,
            leader: None,
        }
    }

    /// A `bad_request`; the message names the field and its limit.
    pub fn bad_request(message: impl Into<String>) -> ApiError {
        ApiError::new(Code::BadRequest, message)
    }

    /// A `not_leader`, with the leader's node id if it is known.
    pub fn not_leader(leader: Option<u64>) -> ApiError {
        let message = match leader {
            Some(id) => format!("node {id} leads this shard"),
            None => "this node does not lead the shard, and knows no leader".to_owned(),
        };
        ApiError {
            leader,
            ..ApiError::new(Code::NotLeader, message)
        }
    }

    /// The same error with a time to try again after.
    pub fn retry_after_ms(self, retry_after_ms: u64) -> ApiError {
        ApiError {
            retry_after_ms: Some(retry_after_ms),
            ..self
        }
    }
}

/// The contract's code for a refusal of the state machine.
impl From<line::Refused> for ApiError {
    fn from(refused: line::Refused) -> ApiError {
        use line::Refused;
        let message = refused.to_string();
        let error = |code| ApiError::new(code, message);
        match refused {
            Refused::LineNotFound => error(Code::LineNotFound),
            Refused::LineExists => error(Code::LineExists),
            Refused::LineNotEmpty => error(Code::LineNotEmpty),
            Refused::LineClosed | Refused::LineDraining => error(Code::LineClosed),
            Refused::LineFull
            | Refused::LaneFull { .. }
            | Refused::NoRoomKept { .. }
            | Refused::CallbacksFull => {
                error(Code::LineFull).retry_after_ms(LINE_FULL_RETRY_AFTER_MS)
            }
            // Without a time: a unit returns only if a seat is not completed.
            Refused::SoldOut => error(Code::SoldOut),
            Refused::TokenNotFound => error(Code::TokenNotFound),
            Refused::TicketInvalid => error(Code::TicketInvalid),
            Refused::NotAdmitted | Refused::CannotAdmit(_) => error(Code::NotAdmitted),
            Refused::NotClaimed => error(Code::NotClaimed),
            Refused::NotWaiting => error(Code::NotWaiting),
            Refused::EpochStale => error(Code::EpochStale),
            Refused::VersionConflict | Refused::AnotherIncarnation => error(Code::VersionConflict),
            Refused::TokenGone(reason) => ApiError {
                reason: Some(reason_word(reason).to_owned()),
                ..error(Code::TokenGone)
            },
            Refused::Forbidden(_) => error(Code::Forbidden),
            Refused::BadField(_) => error(Code::BadRequest),
        }
    }
}

impl From<line::BadField> for ApiError {
    fn from(bad: line::BadField) -> ApiError {
        ApiError::bad_request(bad.to_string())
    }
}

/// The contract's word for why a token is gone; `None` is `forgotten`.
pub(crate) fn reason_word(reason: Option<line::Reason>) -> &'static str {
    reason.map_or("forgotten", line::Reason::as_str)
}

/// By hand, because a client must be able to read the error of a newer server, whose
/// code this build may not know.
impl<'de> Deserialize<'de> for ApiError {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ApiError, D::Error> {
        #[derive(Deserialize)]
        struct Wire {
            code: String,
            #[serde(default)]
            message: String,
            retry_after_ms: Option<u64>,
            reason: Option<String>,
            leader: Option<u64>,
        }
        let wire = Wire::deserialize(deserializer)?;
        let (code, message) = match Code::parse(&wire.code) {
            Some(code) => (code, wire.message),
            // The code is in the message by now: another client passes it on.
            None if wire.code == Code::Unknown.as_str() => (Code::Unknown, wire.message),
            None => (Code::Unknown, format!("{}: {}", wire.code, wire.message)),
        };
        Ok(ApiError {
            retry_after_ms: wire.retry_after_ms,
            reason: wire.reason,
            leader: wire.leader,
            ..ApiError::new(code, message)
        })
    }
}

/// The payload of an error reply: `{"error": {...}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ErrorReply {
    /// The error with its code and message.
    pub error: ApiError,
}

impl From<ApiError> for ErrorReply {
    fn from(error: ApiError) -> ErrorReply {
        ErrorReply { error }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn codes_are_the_contract_s() {
        let contract = [
            ("bad_request", 400),
            ("ticket_invalid", 401),
            ("forbidden", 403),
            ("line_closed", 403),
            ("line_not_found", 404),
            ("token_not_found", 404),
            ("key_not_found", 404),
            ("node_not_found", 404),
            ("domain_not_found", 404),
            ("line_exists", 409),
            ("line_not_empty", 409),
            ("not_admitted", 409),
            ("not_claimed", 409),
            ("not_waiting", 409),
            ("epoch_stale", 409),
            ("version_conflict", 409),
            ("members_changing", 409),
            ("members_refused", 409),
            ("token_gone", 410),
            ("line_full", 429),
            ("sold_out", 429),
            ("kv_full", 429),
            ("overloaded", 503),
            ("not_leader", 503),
            ("unavailable", 503),
            ("outcome_unknown", 504),
        ];
        let ours: Vec<_> = Code::ALL
            .iter()
            .map(|code| (code.as_str(), code.http()))
            .collect();
        assert_eq!(ours, contract);
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
        }
        assert_eq!(Code::parse("unknown"), None);
        assert_eq!(Code::parse("BAD_REQUEST"), None);
    }

    #[test]
    fn an_error_reply_looks_as_in_the_contract() {
        let reply = ErrorReply::from(ApiError::from(line::Refused::LineFull));
        let json = serde_json::to_value(&reply).unwrap();
        assert_eq!(json["error"]["code"], "line_full");
        assert_eq!(json["error"]["retry_after_ms"], 3000);
        assert!(json["error"].get("leader").is_none());
        assert_eq!(serde_json::from_value::<ErrorReply>(json).unwrap(), reply);
        let gone = ApiError::from(line::Refused::TokenGone(Some(line::Reason::NoShow)));
        assert_eq!(
            (gone.code, gone.reason.as_deref()),
            (Code::TokenGone, Some("no_show"))
        );
        assert_eq!(
            ApiError::from(line::Refused::TokenGone(None))
                .reason
                .as_deref(),
            Some("forgotten")
        );
        assert_eq!(ApiError::not_leader(Some(2)).leader, Some(2));
        let vip = line::LaneName::try_from("vip").unwrap();
        let full = ApiError::from(line::Refused::LaneFull {
            lane: vip,
            limit: 5,
        });
        assert_eq!(full.code, Code::LineFull);
        assert_eq!(full.message, "the lane vip is full: its queue_limit is 5");
        let sold_out = ApiError::from(line::Refused::SoldOut);
        assert_eq!(
            (sold_out.code, sold_out.retry_after_ms),
            (Code::SoldOut, None)
        );
        let not_waiting = ApiError::from(line::Refused::NotWaiting);
        assert_eq!(not_waiting.code, Code::NotWaiting);
    }

    #[test]
    fn each_refusal_of_a_line_has_its_code() {
        use line::{BadField, CannotAdmit, Forbidden, Refused};
        let lane = line::LaneName::try_from("vip").unwrap();
        for (refused, code) in [
            (Refused::LineNotFound, Code::LineNotFound),
            (Refused::LineExists, Code::LineExists),
            (Refused::LineNotEmpty, Code::LineNotEmpty),
            (Refused::LineClosed, Code::LineClosed),
            (Refused::LineDraining, Code::LineClosed),
            (Refused::NoRoomKept { lane }, Code::LineFull),
            (Refused::CallbacksFull, Code::LineFull),
            (Refused::TokenNotFound, Code::TokenNotFound),
            (Refused::TicketInvalid, Code::TicketInvalid),
            (Refused::NotAdmitted, Code::NotAdmitted),
            (CannotAdmit::Seats.into(), Code::NotAdmitted),
            (Refused::NotClaimed, Code::NotClaimed),
            (Refused::EpochStale, Code::EpochStale),
            (Refused::VersionConflict, Code::VersionConflict),
            (Refused::AnotherIncarnation, Code::VersionConflict),
            (Forbidden::Jump.into(), Code::Forbidden),
            (BadField::new("seats", "1 to 2").into(), Code::BadRequest),
        ] {
            assert_eq!(ApiError::from(refused).code, code);
        }
    }

    #[test]
    fn a_newer_server_s_code_can_be_read() {
        let error: ApiError =
            serde_json::from_str(r#"{"code": "on_fire", "message": "run", "x": 1}"#).unwrap();
        assert_eq!(error.code, Code::Unknown);
        assert_eq!(error.message, "on_fire: run");
        let passed_on: ApiError =
            serde_json::from_value(serde_json::to_value(&error).unwrap()).unwrap();
        assert_eq!(passed_on, error);
    }

    #[test]
    fn messages_do_not_grow_with_the_request() {
        let error = ApiError::bad_request("票".repeat(100_000));
        assert!(error.message.len() <= MESSAGE_MAX_BYTES + 3);
    }
}
