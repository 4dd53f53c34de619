//! The key of a user, which the backend chooses.

use std::fmt;

use nowserving_line::KEY_BYTES_MAX;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ApiError;

/// A user or order id, 1 to 128 bytes. In a payload a string or, in MessagePack,
/// binary; both with the same bytes are the same key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// The key with these bytes; `bad_request` unless there are 1 to 128.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<Key, ApiError> {
        let bytes = bytes.into();
        if !fits(&bytes) {
            return Err(ApiError::bad_request(format!(
                "key: {Limit}, not {}",
                bytes.len()
            )));
        }
        Ok(Key(bytes))
    }

    /// The key's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, as an operation of the state machine takes them.
    pub fn into_bytes(self) -> Box<[u8]> {
        self.0
    }
}

/// Keys are often personal data: logs get the length only.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.0.len())
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_any(KeyVisitor)
    }
}

struct Limit;

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 to {KEY_BYTES_MAX} bytes")
    }
}

fn fits(bytes: &[u8]) -> bool {
    (1..=KEY_BYTES_MAX).contains(&bytes.len())
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string or binary of {Limit}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Key, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Key, E> {
        if !fits(bytes) {
            // The length, not the key: an error message may end up in a log.
            return Err(E::invalid_length(bytes.len(), &self));
        }
        Ok(Key(bytes.into()))
    }
}

/// `with` for an optional key that nodes show: a JSON reader takes a list of bytes, too, which is how JSON has a
/// key that is no text. Needs `#[serde(default)]` beside it.
pub(crate) struct ShownOption;

impl ShownOption {
    pub(crate) fn serialize<S: Serializer>(
        key: &Option<Key>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        key.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Key>, D::Error> {
        Ok(Option::<Shown>::deserialize(deserializer)?.map(|shown| shown.0))
    }
}

/// Reads the keys of an event, as [`ShownOption`] has them.
pub(crate) fn from_event<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Key>>, D::Error> {
    let keys: Option<Vec<Shown>> = Option::deserialize(deserializer)?;
    Ok(keys.map(|keys| keys.into_iter().map(|shown| shown.0).collect()))
}

struct Shown(Key);

impl<'de> Deserialize<'de> for Shown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Shown, D::Error> {
        deserializer.deserialize_any(ShownVisitor).map(Shown)
    }
}

struct ShownVisitor;

impl<'de> Visitor<'de> for ShownVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string, binary or list of {Limit}")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Key, E> {
        KeyVisitor.visit_str(text)
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Key, E> {
        KeyVisitor.visit_bytes(bytes)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Key, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = list.next_element::<u8>()? {
            if bytes.len() == KEY_BYTES_MAX {
                return Err(A::Error::invalid_length(bytes.len() + 1, &self));
            }
            bytes.push(byte);
        }
        KeyVisitor.visit_bytes(&bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::{Format, encode, read};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Shows {
        #[serde(default, with = "ShownOption")]
        key: Option<Key>,
    }

    #[test]
    fn shown_keys_come_back_as_text_or_bytes() {
        for bytes in [&b"ann"[..], &[0xff; KEY_BYTES_MAX], &[0x80]] {
            let key = Some(Key::new(bytes).unwrap());
            for format in [Format::Json, Format::MsgPack] {
                let payload = encode(&Shows { key: key.clone() }, format);
                assert_eq!(read::<Shows>(&payload).unwrap().key, key);
            }
        }
        assert_eq!(read::<Shows>(b"{}").unwrap().key, None);
        let long = format!(r#"{{"key": [{}]}}"#, vec!["7"; KEY_BYTES_MAX + 1].join(","));
        for bad in [
            long.as_str(),
            r#"{"key": []}"#,
            r#"{"key": [256]}"#,
            r#"{"key": 7}"#,
        ] {
            assert!(read::<Shows>(bad.as_bytes()).is_err(), "{bad}");
        }
        // A request has a text, or binary in MessagePack.
        assert!(serde_json::from_str::<Key>("[7]").is_err());
    }
}
