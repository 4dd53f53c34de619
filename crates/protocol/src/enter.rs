//! The request of `enter`. Read by hand, because other requests of users ignore unknown fields, but
//! here a `kee` for `key` would take a number without a key.

use std::fmt;
use std::marker::PhantomData;

use nowserving_line::LaneName;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::key::Key;
use crate::wire::name::Name;
use crate::wire::{Flag, fill};

/// `enter`: takes a number, or gets the key's live token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Enter {
    /// The user; `None`, sent as `"anonymous": true`: no particular one. Without a key, a repeated
    /// request may take a second number.
    pub key: Option<Key>,
    /// The lane; by default the line's default lane.
    pub lane: Option<LaneName>,
}

impl Serialize for Enter {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(1 + usize::from(self.lane.is_some())))?;
        match &self.key {
            Some(key) => map.serialize_entry("key", key)?,
            None => map.serialize_entry("anonymous", &true)?,
        }
        if let Some(lane) = &self.lane {
            map.serialize_entry("lane", lane.as_str())?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Enter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Enter, D::Error> {
        deserializer.deserialize_map(EnterVisitor)
    }
}

struct EnterVisitor;

impl<'de> Visitor<'de> for EnterVisitor {
    type Value = Enter;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of `key` or `anonymous`, and `lane`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Enter, A::Error> {
        let (mut key, mut anonymous, mut lane) = (None, None, None);
        let mut unknown = None;
        while let Some(field) = map.next_key::<String>()? {
            match field.as_str() {
                "key" => fill(&mut map, "key", PhantomData, &mut key)?,
                "anonymous" => fill(&mut map, "anonymous", PhantomData, &mut anonymous)?,
                "lane" => fill(&mut map, "lane", PhantomData, &mut lane)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    unknown.get_or_insert(field);
                }
            }
        }
        let key: Option<Key> = key.flatten();
        let anonymous = anonymous.is_some_and(|Flag(anonymous)| anonymous);
        if key.is_none() && !anonymous {
            return Err(A::Error::custom(KeyMissing(unknown.as_deref())));
        }
        if key.is_some() && anonymous {
            return Err(A::Error::custom(
                "anonymous: not true together with a `key`",
            ));
        }
        let lane: Option<Name<LaneName>> = lane.flatten();
        Ok(Enter {
            key,
            lane: lane.map(|name| name.0),
        })
    }
}

/// The refusal of a request without a key, with its first unknown field, which may be the key
/// misspelt.
struct KeyMissing<'a>(Option<&'a str>);

impl fmt::Display for KeyMissing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("key: required, or `\"anonymous\": true` to enter without one")?;
        match self.0 {
            Some(field) => write!(f, " (there is no field `{field}`)"),
            None => Ok(()),
        }
    }
}
