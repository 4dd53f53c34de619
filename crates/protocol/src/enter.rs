//! The request of `enter`.

use nowserving_line::LaneName;
use serde::{Deserialize, Serialize};

use crate::key::Key;
use crate::wire;

/// `enter`: takes a number, or gets the key's live token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "EnterFields", into = "EnterFields")]
pub struct Enter {
    /// The user; `None`, sent as `"anonymous": true`: no particular one. Without a key, a repeated
    /// request may take a second number.
    pub key: Option<Key>,
    /// The lane; by default the line's default lane.
    pub lane: Option<LaneName>,
}

/// The fields of an [`Enter`].
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::key_or_anonymous))]
struct EnterFields {
    /// The user. A repeated request with the same key gets the same token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Key>,
    /// Enters without a key: a repeated request may take a second number.
    #[serde(
        default,
        skip_serializing_if = "std::ops::Not::not",
        deserialize_with = "wire::flag"
    )]
    anonymous: bool,
    /// By default the line's default lane.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NameOption"
    )]
    lane: Option<LaneName>,
}

impl TryFrom<EnterFields> for Enter {
    type Error = &'static str;

    fn try_from(fields: EnterFields) -> Result<Enter, &'static str> {
        match (&fields.key, fields.anonymous) {
            (None, false) => Err("key: required, or `\"anonymous\": true` to enter without one"),
            (Some(_), true) => Err("anonymous: not true together with a `key`"),
            (Some(_), false) | (None, true) => Ok(Enter {
                key: fields.key,
                lane: fields.lane,
            }),
        }
    }
}

impl From<Enter> for EnterFields {
    fn from(enter: Enter) -> EnterFields {
        EnterFields {
            anonymous: enter.key.is_none(),
            key: enter.key,
            lane: enter.lane,
        }
    }
}
