//! Payloads: MessagePack maps with string keys, told by their first byte, or else JSON objects.
//!
//! The decoders are serde's. What they read goes to a [`Tape`], and the types are read from there. Two checks are added to
//! rmp-serde: the names in a map are strings, and nothing follows it. A claimed length costs nothing: both decoders build only
//! from bytes that are there. Both limit how deep values nest, but for a client's own in JSON, which are skipped without
//! recursion.

use rmp_serde::decode::Error as MsgPackError;
use serde::Serialize;
use serde::de::{Deserialize, DeserializeOwned, IgnoredAny};

use crate::error::ApiError;
use crate::read::Reader;
use crate::tape::Tape;

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
    read_as(payload, true)
}

/// A reply or event.
pub(crate) fn read<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    read_as(payload, false)
}

fn read_as<T: DeserializeOwned>(payload: &[u8], is_request: bool) -> Result<T, ApiError> {
    let mut tape = Tape::new(is_request);
    match Format::of(payload) {
        Format::Json => read_json(payload, &mut tape)?,
        Format::MsgPack => read_msgpack(payload, &mut tape)?,
    }
    Ok(T::deserialize(Reader::new(&tape))?)
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

fn read_json<'p>(payload: &'p [u8], tape: &mut Tape<'p>) -> Result<(), ApiError> {
    let text = payload
        .strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(payload)
        .trim_ascii_start();
    let text = match text.first() {
        None => b"{}",
        Some(b'{') => text,
        Some(_) => return Err(bad("neither a JSON object nor a MessagePack map")),
    };
    let mut decoder = serde_json::Deserializer::from_slice(text);
    let read = tape.fill(&mut decoder).and_then(|()| decoder.end());
    read.map_err(|error| broken_off(tape, &error))
}

fn read_msgpack<'p>(payload: &'p [u8], tape: &mut Tape<'p>) -> Result<(), ApiError> {
    let mut decoder = rmp_serde::Deserializer::from_read_ref(payload);
    decoder.set_max_depth(MSGPACK_DEPTH);
    tape.fill(&mut decoder).map_err(|error| match error {
        MsgPackError::InvalidMarkerRead(_) | MsgPackError::InvalidDataRead(_) => {
            bad("it ends in the middle, or claims more than is there")
        }
        MsgPackError::DepthLimitExceeded => {
            bad(&format!("it nests deeper than {DEPTH_MAX} levels"))
        }
        error => broken_off(tape, &error),
    })?;
    // Nothing follows if there is no byte to be read.
    match <()>::deserialize(&mut decoder) {
        Err(MsgPackError::InvalidMarkerRead(_)) => Ok(()),
        _ => Err(bad(&format!(
            "{} bytes follow after its end",
            left(payload)
        ))),
    }
}

/// How many bytes follow after the value. This reader knows it, and copies what the other one borrows.
fn left(payload: &[u8]) -> usize {
    let mut decoder = rmp_serde::Deserializer::new(payload);
    decoder.set_max_depth(MSGPACK_DEPTH);
    match IgnoredAny::deserialize(&mut decoder) {
        Ok(IgnoredAny) => decoder.get_ref().len(),
        Err(_) => 0,
    }
}

fn bad(what: &str) -> ApiError {
    ApiError::bad_request(format!("payload: {what}"))
}

/// The decoder's text, after the field in which it is.
fn broken_off(tape: &Tape<'_>, error: &dyn std::error::Error) -> ApiError {
    match tape.broken_off() {
        path if path.is_empty() => bad(&error.to_string()),
        path => ApiError::bad_request(format!("{path}: {error}")),
    }
}
