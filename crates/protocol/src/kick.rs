//! `kick`: an operator ends tokens. docs/protocol/operators.md.

use nowserving_line::{LaneName, State};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::key::{self, Key};
use crate::wire;

/// The most `tokens` or `keys` of one request.
pub const KICK_LIST_MAX: usize = 1_000;
/// The largest `idle_over_ms`: 30 days.
pub const KICK_IDLE_MS_MAX: u64 = 2_592_000_000;
/// How many of the tokens an answer shows.
pub const KICK_SAMPLE: usize = 10;

/// `kick`: ends waiting tokens and seats at an operator's word. Exactly one of `tokens`, `keys`, `idle_over_ms`, `lane` and `all`
/// says which tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::one_selector))]
pub struct Kick {
    /// These tokens, by their present or former numbers: 1 to [`KICK_LIST_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = KICK_LIST_MAX)))]
    pub tokens: Option<Vec<TokenName>>,
    /// The live tokens of these keys: 1 to [`KICK_LIST_MAX`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = KICK_LIST_MAX)))]
    pub keys: Option<Vec<Key>>,
    /// Waiting tokens whose clients were not seen for longer than this, 1 to [`KICK_IDLE_MS_MAX`].
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::WithinOption::<1, KICK_IDLE_MS_MAX>"
    )]
    pub idle_over_ms: Option<u64>,
    /// All tokens of this lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    pub lane: Option<LaneName>,
    /// All tokens of the line.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub all: bool,
    /// Of these, only tokens in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<LiveState>,
    /// Only tokens that had entered when the line had this version, such as the `through_version` of a dry run.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub through_version: Option<u64>,
    /// At most so many; others stay.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub most: Option<u64>,
    /// Only if the line has this incarnation.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub incarnation: Option<u64>,
    /// Only counts.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    pub dry_run: bool,
}

/// A token as operators name it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TokenName {
    /// The lane in which it has this number, or had it before it was moved.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number in `lane`.
    #[serde(with = "wire::Number")]
    pub token: u64,
}

/// The states of tokens that are not gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LiveState {
    /// Holds a number and no seat.
    Waiting,
    /// Holds a seat that it has not claimed.
    Admitted,
    /// Holds a seat that it has claimed.
    InCheckout,
}

impl<'de> Deserialize<'de> for LiveState {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Only its name: the derived reader would take `{"waiting": null}` and an index, too.
        match String::deserialize(deserializer)?.as_str() {
            "waiting" => Ok(LiveState::Waiting),
            "admitted" => Ok(LiveState::Admitted),
            "in_checkout" => Ok(LiveState::InCheckout),
            other => {
                let known = &["waiting", "admitted", "in_checkout"];
                Err(D::Error::unknown_variant(other, known))
            }
        }
    }
}

impl From<LiveState> for State {
    fn from(state: LiveState) -> State {
        match state {
            LiveState::Waiting => State::Waiting,
            LiveState::Admitted => State::Admitted,
            LiveState::InCheckout => State::InCheckout,
        }
    }
}

impl Kick {
    /// Checks what the types do not say; `bad_request` names the field.
    pub fn check(&self) -> Result<(), ApiError> {
        let bad = |what: String| Err(ApiError::bad_request(what));
        let selectors = [
            self.tokens.is_some(),
            self.keys.is_some(),
            self.idle_over_ms.is_some(),
            self.lane.is_some(),
            self.all,
        ];
        let given = selectors.iter().filter(|given| **given).count();
        if given != 1 {
            return bad(format!(
                "exactly one of tokens, keys, idle_over_ms, lane and all (true) says which tokens, not {given}"
            ));
        }
        let lists = [
            ("tokens", self.tokens.as_ref().map(Vec::len)),
            ("keys", self.keys.as_ref().map(Vec::len)),
        ];
        for (field, length) in lists {
            if length.is_some_and(|length| !(1..=KICK_LIST_MAX).contains(&length)) {
                return bad(format!("{field}: 1 to {KICK_LIST_MAX} of them"));
            }
        }
        match (self.idle_over_ms, self.state) {
            (Some(_), Some(LiveState::Admitted | LiveState::InCheckout)) => bad(
                "state: with idle_over_ms only waiting, as only clients that wait have to be seen"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }
}

/// The answer to `kick`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KickReply {
    /// How many tokens were ended; with `dry_run`, how many would be.
    pub kicked: u64,
    /// The first of them, at most [`KICK_SAMPLE`].
    pub sample: Vec<KickedToken>,
    /// Nothing was ended.
    pub dry_run: bool,
    /// Tokens that entered at a later version of the line were not meant.
    #[serde(default)]
    pub through_version: u64,
    /// Which creation of the line it was.
    #[serde(default)]
    pub incarnation: u64,
    /// The places, from 0, of the `tokens` or `keys` that named no live token when the kick began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_found: Vec<u32>,
    /// Those whose tokens were not in the `state` that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_state: Vec<u32>,
}

/// A token in the sample of a [`KickReply`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KickedToken {
    /// Its lane.
    #[serde(with = "wire::Name")]
    pub lane: LaneName,
    /// Its number there.
    pub token: u64,
    /// Its key, if it has one.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "key::ShownOption"
    )]
    pub key: Option<Key>,
    /// The state that it was in.
    #[serde(with = "wire::StateWord")]
    pub state: State,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::decode;

    fn read(json: &str) -> Result<Kick, ApiError> {
        let ask: Kick = decode(json.as_bytes())?;
        ask.check().map(|()| ask)
    }

    #[test]
    fn exactly_one_selector_is_needed() {
        for good in [
            r#"{"tokens": [{"lane": "vip", "token": 3}]}"#,
            r#"{"keys": ["a"], "state": "admitted"}"#,
            r#"{"idle_over_ms": 600000, "state": "waiting"}"#,
            r#"{"lane": "vip", "dry_run": true}"#,
            r#"{"all": true}"#,
        ] {
            let ask = read(good).unwrap();
            let there = serde_json::to_string(&ask).unwrap();
            assert_eq!(read(&there).unwrap(), ask, "{good}");
        }
    }

    #[test]
    fn refusals_name_the_field() {
        let many = vec![r#""k""#; KICK_LIST_MAX + 1].join(",");
        for (bad, says) in [
            ("{}".to_owned(), "exactly one of"),
            (r#"{"all": false}"#.to_owned(), "exactly one of"),
            (r#"{"all": true, "lane": "vip"}"#.to_owned(), "not 2"),
            (r#"{"tokens": []}"#.to_owned(), "tokens: 1 to 1000"),
            (format!(r#"{{"keys": [{many}]}}"#), "keys: 1 to 1000"),
            (
                r#"{"tokens": [{"lane": "v p", "token": 3}]}"#.to_owned(),
                "tokens[0].lane",
            ),
            (r#"{"keys": ["a", ""]}"#.to_owned(), "keys[1]"),
            (r#"{"idle_over_ms": 0}"#.to_owned(), "idle_over_ms"),
            (
                r#"{"idle_over_ms": 5, "state": "admitted"}"#.to_owned(),
                "state: ",
            ),
            (r#"{"all": true, "state": "gone"}"#.to_owned(), "state"),
            (r#"{"all": 1}"#.to_owned(), "all"),
            (r#"{"tokens": [["vip", 3]]}"#.to_owned(), "tokens[0]"),
            (
                r#"{"all": true, "state": {"waiting": null}}"#.to_owned(),
                "state",
            ),
            (r#"{"all": true, "by": "ann"}"#.to_owned(), "by"),
            (r#"{"all": true, "force": true}"#.to_owned(), "force"),
        ] {
            let message = read(&bad).unwrap_err().message;
            assert!(message.contains(says), "{bad}: {message}");
        }
    }
}
