//! The key of a user, which the backend chooses.

use std::fmt;

use nowserving_line::KEY_BYTES_MAX;
use serde::de::{Error, Visitor};
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
