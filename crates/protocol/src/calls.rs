//! `call_next` and `take`: an operator admits tokens. docs/protocol/lanes.md.

use nowserving_line::{
    self as line, CALL_ID_BYTES_MAX, CalledToken, LaneName, Op, TakeBy, Token, TokenRef,
};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::journal::lane_name;
use crate::key::Key;
use crate::wire;

/// The largest `n` of `call_next`.
pub const CALL_NEXT_MAX: u32 = line::CALL_MAX;
const CALL_MOST: u64 = CALL_NEXT_MAX as u64;

/// `call_next`: admits the next waiting tokens in service order, while seats are free.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CallNext {
    /// At most so many, 1 to [`CALL_NEXT_MAX`].
    #[serde(with = "wire::Within::<1, CALL_MOST>")]
    pub n: u32,
    /// Only tokens of this lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// Names the call: 1 to 64 visible ASCII characters. One with the id of an earlier call admits nobody, and has its
    /// answer.
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::id"))]
    pub call_id: String,
}

/// `take`: admits one waiting token, whoever waits before it. Either by `key`, or by `lane` and `token`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::key_or_number))]
pub struct Take {
    /// The live token of this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// The lane in which it has the number `token`, or had it before it was moved.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// Its number in `lane`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub token: Option<u64>,
    /// As in [`CallNext`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::schema::id_option"))]
    pub call_id: Option<String>,
}

/// The answer to `call_next` and `take`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalledReply {
    /// The tokens that the call admitted, in the order in which it did.
    pub admitted: Vec<CalledTokenReply>,
}

/// A token in a [`CalledReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CalledTokenReply {
    /// Its lane.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number there.
    pub token: u64,
    /// Its key, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
}

impl CallNext {
    /// The operation; `bad_request` names the field that is wrong.
    pub fn into_op(self, line: line::LineName) -> Result<Op, ApiError> {
        Ok(Op::CallNext {
            line,
            n: self.n,
            lane: self.lane,
            call_id: call_id(self.call_id)?,
        })
    }
}

impl Take {
    /// The operation; `bad_request` names the field that is wrong.
    pub fn into_op(self, line: line::LineName) -> Result<Op, ApiError> {
        let by = match (self.key, self.lane, self.token) {
            (Some(key), None, None) => TakeBy::Key(key.into_bytes()),
            (None, Some(lane), Some(token)) => TakeBy::Number { lane, token },
            (Some(_), _, _) => return Err(wrong("key: not together with `lane` or `token`")),
            (None, None, None) => return Err(wrong("key: required, or `lane` and `token`")),
            (None, Some(_), None) => return Err(wrong("token: required with `lane`")),
            (None, None, Some(_)) => return Err(wrong("lane: required with `token`")),
        };
        Ok(Op::Take {
            line,
            by,
            call_id: self.call_id.map(call_id).transpose()?,
        })
    }
}

fn wrong(message: &str) -> ApiError {
    ApiError::bad_request(message)
}

fn call_id(id: String) -> Result<Box<str>, ApiError> {
    let fits = (1..=CALL_ID_BYTES_MAX).contains(&id.len());
    match fits && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(id.into()),
        false => Err(wrong("call_id: 1 to 64 visible ASCII characters")),
    }
}

impl CalledReply {
    /// The kept answer of a call; `None` if it is forgotten.
    pub fn of_call(line: &line::Line, call_id: &str) -> Option<CalledReply> {
        let admitted = line.called(call_id)?.iter();
        let admitted = admitted.map(|CalledToken { lane, token, key }| {
            let key = key.as_deref();
            reply(line, (*lane, *token), key)
        });
        Some(CalledReply {
            admitted: admitted.collect(),
        })
    }

    /// The answer of a `take` without a `call_id`.
    pub fn of_token(line: &line::Line, at: TokenRef) -> CalledReply {
        let live = line.live(at.lane, at.token);
        let key = live.and_then(|live| live.key);
        CalledReply {
            admitted: vec![reply(line, (at.lane, at.token), key)],
        }
    }
}

fn reply(line: &line::Line, (lane, token): (u8, Token), key: Option<&[u8]>) -> CalledTokenReply {
    CalledTokenReply {
        lane: lane_name(line, lane),
        token,
        // Keys of tokens have 1 to 128 bytes.
        key: key.and_then(|key| Key::new(key).ok()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::decode;

    fn line() -> line::LineName {
        "shop".parse().unwrap()
    }

    fn call(json: &str) -> Result<Op, ApiError> {
        decode::<CallNext>(json.as_bytes())?.into_op(line())
    }

    fn take(json: &str) -> Result<Op, ApiError> {
        decode::<Take>(json.as_bytes())?.into_op(line())
    }

    #[test]
    fn requests_become_operations() {
        let next = call(r#"{"n": 1024, "lane": "vip", "call_id": "a-1"}"#).unwrap();
        assert!(
            matches!(next, Op::CallNext { n: 1024, lane: Some(_), call_id, .. } if *call_id == *"a-1")
        );
        let by_key = take(r#"{"key": "ann"}"#).unwrap();
        assert!(matches!(
            by_key,
            Op::Take {
                by: TakeBy::Key(_),
                call_id: None,
                ..
            }
        ));
        let by_number = take(r#"{"lane": "vip", "token": 3, "call_id": "b"}"#).unwrap();
        assert!(matches!(
            by_number,
            Op::Take {
                by: TakeBy::Number { token: 3, .. },
                call_id: Some(_),
                ..
            }
        ));
    }

    #[test]
    fn refusals_name_the_field() {
        let long = format!(r#"{{"n": 1, "call_id": "{}"}}"#, "x".repeat(65));
        for (bad, says) in [
            (r#"{"call_id": "a"}"#, "n"),
            (r#"{"n": 0, "call_id": "a"}"#, "n"),
            (r#"{"n": 1025, "call_id": "a"}"#, "n"),
            (r#"{"n": 1}"#, "call_id"),
            (r#"{"n": 1, "call_id": ""}"#, "call_id: 1 to 64"),
            (r#"{"n": 1, "call_id": "a b"}"#, "call_id: 1 to 64"),
            (&long, "call_id: 1 to 64"),
            (r#"{"n": 1, "call_id": "a", "lane": "v p"}"#, "lane"),
            (r#"{"n": 1, "call_id": "a", "to": 3}"#, "to"),
        ] {
            let message = call(bad).unwrap_err().message;
            assert!(message.contains(says), "{bad}: {message}");
        }
        for (bad, says) in [
            ("{}", "key: required, or `lane` and `token`"),
            (r#"{"lane": "vip"}"#, "token: required"),
            (r#"{"token": 3}"#, "lane: required"),
            (r#"{"key": "a", "token": 3}"#, "key: not together"),
            (r#"{"key": ""}"#, "key"),
            (r#"{"key": "a", "call_id": "é"}"#, "call_id: 1 to 64"),
            (r#"{"key": "a", "n": 3}"#, "n"),
        ] {
            let message = take(bad).unwrap_err().message;
            assert!(message.contains(says), "{bad}: {message}");
        }
    }
}
