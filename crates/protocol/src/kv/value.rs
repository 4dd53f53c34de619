//! A value on the wire: text in JSON, bytes in MessagePack.

use std::fmt;

use nowserving_kv::{Entry, VALUE_BYTES_MAX};
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::backup::Blob;
use crate::error::ApiError;

/// A value, at most 10,240 bytes. In JSON a string; in MessagePack binary, and a reader takes a string, too.
#[derive(Clone, PartialEq, Eq)]
pub struct KvValue(Box<[u8]>);

impl KvValue {
    /// `bad_request` if it is too long.
    pub fn new(bytes: impl Into<Box<[u8]>>) -> Result<KvValue, ApiError> {
        let bytes = bytes.into();
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "value: at most {VALUE_BYTES_MAX} bytes, not {}",
                bytes.len()
            )));
        }
        Ok(KvValue(bytes))
    }

    /// The value's bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The value's bytes.
    pub fn into_bytes(self) -> Box<[u8]> {
        self.0
    }
}

/// Values can be personal data: logs get the length only.
impl fmt::Debug for KvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvValue({} bytes)", self.0.len())
    }
}

impl Serialize for KvValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) if serializer.is_human_readable() => serializer.serialize_str(text),
            _ => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for KvValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KvValue, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl Visitor<'_> for ValueVisitor {
    type Value = KvValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string or binary of at most {VALUE_BYTES_MAX} bytes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<KvValue, E> {
        self.visit_bytes(text.as_bytes())
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<KvValue, E> {
        KvValue::new(bytes).map_err(|_| E::invalid_length(bytes.len(), &self))
    }
}

/// A value's fields `value` and `value_base64`, of which one is there.
pub(super) type ValueFields = (Option<KvValue>, Option<Base64>);

impl KvValue {
    pub(super) fn of(entry: &Entry) -> KvValue {
        KvValue(entry.value.clone())
    }

    /// The second field is for bytes that are no UTF-8, in JSON.
    pub(super) fn fields<S: Serializer>(&self, serializer: &S) -> ValueFields {
        let is_text = std::str::from_utf8(&self.0).is_ok();
        match is_text || !serializer.is_human_readable() {
            true => (Some(self.clone()), None),
            false => (None, Some(Base64(self.clone()))),
        }
    }

    pub(super) fn of_fields(fields: ValueFields) -> Result<KvValue, &'static str> {
        match fields {
            (Some(value), None) | (None, Some(Base64(value))) => Ok(value),
            (Some(_), Some(_)) => Err("value_base64: not together with value"),
            (None, None) => Err("value: required, or `value_base64`"),
        }
    }
}

/// A value that is base64 (with padding) in JSON.
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "Blob")
)]
pub(super) struct Base64(KvValue);

impl Serialize for Base64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Blob(self.0.0.to_vec()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Base64, D::Error> {
        let Blob(bytes) = Blob::deserialize(deserializer)?;
        let length = bytes.len();
        let value = KvValue::new(bytes);
        value
            .map(Base64)
            .map_err(|_| D::Error::invalid_length(length, &ValueVisitor))
    }
}

/// `FIELDS of STRUCT { the fields beside key and value }`: FIELDS are those on the wire, where the value is in `value` or,
/// in JSON and if it is no UTF-8, in `value_base64`. The struct itself is read by `try_from = "FIELDS"`.
macro_rules! with_value {
    ($fields:ident of $name:ident { $($(#[$attribute:meta])* $field:ident: $type:ty,)* }) => {
        #[derive(Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::schema::value_or_base64))]
        struct $fields {
            /// The key.
            key: KvKey,
            /// The value.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            value: Option<KvValue>,
            /// In JSON, and instead of `value`: a value that is not UTF-8.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            value_base64: Option<value::Base64>,
            $($(#[$attribute])* $field: $type,)*
        }

        impl TryFrom<$fields> for $name {
            type Error = &'static str;

            fn try_from(fields: $fields) -> Result<$name, &'static str> {
                Ok($name {
                    key: fields.key,
                    value: KvValue::of_fields((fields.value, fields.value_base64))?,
                    $($field: fields.$field,)*
                })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let (value, value_base64) = self.value.fields(&serializer);
                let fields = $fields {
                    key: self.key.clone(),
                    value,
                    value_base64,
                    $($field: self.$field,)*
                };
                fields.serialize(serializer)
            }
        }
    };
}

pub(super) use with_value;
