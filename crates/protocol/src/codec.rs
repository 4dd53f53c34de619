//! Payloads: MessagePack maps with string keys, told by their first byte, or else JSON objects.
//!
//! The decoders are serde's. Three checks are added to rmp-serde, because derived
//! readers also take an array for a map and numbers for the names of fields, and
//! because it leaves what follows the value unread: the payload is a map, the names
//! in it are strings, and nothing follows it. A claimed length costs nothing: both
//! decoders build only from bytes that are there. Nesting is limited in MessagePack;
//! serde_json limits it where it builds and does not recurse where it skips.

use std::fmt;
use std::marker::PhantomData;

use rmp_serde::decode::Error as MsgPackError;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error};
use serde::de::{IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::ApiError;
use crate::fields::Request;

/// The smallest `max_payload` of a NATS server that a cluster works with, in bytes.
pub const MAX_PAYLOAD_MIN: usize = 65_536;

/// The largest request that is read, in bytes: it bounds the cost of one message. No
/// request needs a tenth of it.
pub const MAX_REQUEST_BYTES: usize = 65_536;

/// Most payloads that are written are shorter, and so are allocated once.
const USUAL_BYTES: usize = 512;

/// How deep maps and arrays of a MessagePack payload may nest. Requests need 3 levels; a client's
/// own fields may need a few more.
const DEPTH_MAX: usize = 32;
/// rmp-serde refuses the level at which its counter reaches zero.
const MSGPACK_DEPTH: usize = DEPTH_MAX + 1;

/// In UTF-8, as editors of some systems write it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The format of a payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON: anything else, also an empty payload.
    Json,
    /// MessagePack: the first byte is that of a map, which no text begins with.
    MsgPack,
}

impl Format {
    /// The format of a payload; its answer has the same.
    pub fn of(payload: &[u8]) -> Format {
        match payload.first() {
            Some(0x80..=0x8f | 0xde | 0xdf) => Format::MsgPack,
            _ => Format::Json,
        }
    }
}

/// What a payload holds: a request, a reply or an event. Their readers are compiled in this crate, once for all who read
/// them: they are many times the code of what is done with them.
pub trait Payload: Sized {
    /// Reads it, as [`decode`] says.
    ///
    /// # Errors
    /// `bad_request`.
    fn read(payload: &[u8]) -> Result<Self, ApiError>;
}

/// Reads a payload. One that is empty or blank is an empty map; a byte order mark and blanks before JSON are passed over.
///
/// Of a request, fields that are not known are refused, except those that begin with `x_`, and so are more than
/// [`MAX_REQUEST_BYTES`], or what its operation takes. In replies and events, unknown fields are ignored.
///
/// # Errors
/// `bad_request`, which names the field that is missing or wrong.
pub fn decode<T: Payload>(payload: &[u8]) -> Result<T, ApiError> {
    T::read(payload)
}

/// A request of at most so many bytes.
pub(crate) fn read_request<T: DeserializeOwned>(
    payload: &[u8],
    bytes_max: usize,
) -> Result<T, ApiError> {
    if payload.len() > bytes_max {
        return Err(ApiError::bad_request(format!(
            "payload: {} bytes, and at most {bytes_max} are read",
            payload.len()
        )));
    }
    read(payload).map(|Request(request)| request)
}

/// A reply or event.
pub(crate) fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    match Format::of(payload) {
        Format::Json => read_json(payload),
        Format::MsgPack => read_msgpack(payload),
    }
}

/// Writes a payload.
///
/// # Panics
///
/// If the type cannot be serialized, as with maps whose keys are not strings.
/// All types of this crate can.
pub fn encode<T: Serialize>(value: &T, format: Format) -> Vec<u8> {
    let mut payload = Vec::with_capacity(USUAL_BYTES);
    match format {
        Format::Json => {
            serde_json::to_writer(&mut payload, value).expect("a type of this crate is always JSON")
        }
        Format::MsgPack => rmp_serde::encode::write_named(&mut payload, value)
            .expect("a type of this crate is always MessagePack"),
    }
    payload
}

fn read_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    let text = payload
        .strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(payload)
        .trim_ascii_start();
    let payload = match text.first() {
        None => b"{}",
        Some(b'{') => text,
        Some(_) => {
            return Err(ApiError::bad_request(
                "payload: neither a JSON object nor a MessagePack map",
            ));
        }
    };
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    if let Ok(value) = T::deserialize(&mut deserializer)
        && deserializer.end().is_ok()
    {
        return Ok(value);
    }
    // It is read again to find out which field is wrong: to keep track of that costs an allocation a field.
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(named)?;
    deserializer
        .end()
        .map_err(|error| ApiError::bad_request(format!("payload: {error}")))?;
    Ok(value)
}

/// Takes no value at all: whatever begins, another error than that of the end of the payload comes of it.
struct NoValue;

impl<'de> Deserialize<'de> for NoValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(NoValue)
    }
}

impl Visitor<'_> for NoValue {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nothing")
    }
}

fn read_msgpack<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    let bad = |what: &dyn fmt::Display| ApiError::bad_request(format!("payload: {what}"));
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(payload);
    deserializer.set_max_depth(MSGPACK_DEPTH);
    // Nothing follows if there is no byte to be read.
    if let Ok(StringNames(value)) = StringNames::deserialize(&mut deserializer)
        && let Err(MsgPackError::InvalidMarkerRead(_)) = NoValue::deserialize(&mut deserializer)
    {
        return Ok(value);
    }
    // As in JSON. This reader also says what is left.
    let mut deserializer = rmp_serde::Deserializer::new(payload);
    deserializer.set_max_depth(MSGPACK_DEPTH);
    let read: Result<StringNames<T>, _> = serde_path_to_error::deserialize(&mut deserializer);
    let StringNames(value) = read.map_err(|error| match error.inner() {
        MsgPackError::InvalidMarkerRead(_) | MsgPackError::InvalidDataRead(_) => {
            bad(&"it ends in the middle, or claims more than is there")
        }
        MsgPackError::DepthLimitExceeded => {
            bad(&format_args!("it nests deeper than {DEPTH_MAX} levels"))
        }
        _ => named(error),
    })?;
    match deserializer.get_ref().len() {
        0 => Ok(value),
        left => Err(bad(&format_args!("{left} bytes follow after its end"))),
    }
}

/// The value that [`MapVisitor`] reads, as a type with its own `Deserialize`.
struct StringNames<T>(T);

impl<'de, T: DeserializeOwned> Deserialize<'de> for StringNames<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = MapVisitor(PhantomData);
        deserializer.deserialize_map(map).map(StringNames)
    }
}

/// Reads a `T` from a map in which every name of a field is a string.
struct MapVisitor<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for MapVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(NamedFields(map)))
    }
}

struct NamedFields<A>(A);

impl<'de, A: MapAccess<'de>> MapAccess<'de> for NamedFields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(FieldName(seed))
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

struct FieldName<S>(S);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for FieldName<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for FieldName<S> {
    type Value = S::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field, a string")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<S::Value, E> {
        self.0.deserialize(name.into_deserializer())
    }
}

/// Puts the field's name before the decoder's text.
fn named<E: std::error::Error>(error: serde_path_to_error::Error<E>) -> ApiError {
    let path = error.path().to_string();
    let inner = error.into_inner();
    // "." is the payload as a whole; the text names what is wrong, such as a missing field.
    if path == "." {
        return ApiError::bad_request(inner.to_string());
    }
    // "?" is a name that could not be read.
    let field = match path.as_str() {
        "?" => "payload",
        path => path.trim_end_matches(".?"),
    };
    ApiError::bad_request(format!("{field}: {inner}"))
}
