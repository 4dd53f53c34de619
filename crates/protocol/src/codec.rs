//! Payloads: MessagePack maps with string keys, or JSON if the first byte is `{`.
//!
//! What comes from outside is read in two steps. A MessagePack payload is first
//! walked over without building anything (`walk.rs`): it must be one
//! complete map, of bounded depth, with nothing behind it. After that a length
//! that it claims is a length that it has, so the decoder proper can be trusted
//! with it. (JSON needs no such walk: it has no lengths, and its reader is
//! iterative over what it skips.)

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ApiError;
use crate::walk::{self, MAX_DEPTH};

/// The largest request that is read, in bytes. No request needs a tenth of it;
/// it bounds what one message may cost.
pub const MAX_REQUEST_BYTES: usize = 65_536;

/// How a payload is written.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON: the first byte is `{`.
    Json,
    /// MessagePack: anything else, nothing at all included.
    MsgPack,
}

impl Format {
    /// The format of a payload; the answer to it is written in the same.
    pub fn of(payload: &[u8]) -> Format {
        match payload.first() {
            Some(b'{') => Format::Json,
            _ => Format::MsgPack,
        }
    }
}

/// Reads a request: as [`decode`], and refuses one of more than [`MAX_REQUEST_BYTES`].
pub fn decode_request<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    if payload.len() > MAX_REQUEST_BYTES {
        return Err(ApiError::bad_request(format!(
            "payload: {} bytes, and at most {MAX_REQUEST_BYTES} are read",
            payload.len()
        )));
    }
    decode(payload)
}

/// Reads a payload. An empty one is an empty map. Errors are `bad_request` and
/// name the field that is missing or wrong.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    match (payload, Format::of(payload)) {
        ([], _) => decode_json(b"{}"),
        (_, Format::Json) => decode_json(payload),
        (_, Format::MsgPack) => decode_msgpack(payload),
    }
}

/// Writes a payload.
///
/// # Panics
///
/// If a type refuses to be serialized or has maps whose keys are not strings.
/// None of this crate's types does.
pub fn encode<T: Serialize>(value: &T, format: Format) -> Vec<u8> {
    match format {
        Format::Json => serde_json::to_vec(value).expect("a type of this crate is always JSON"),
        Format::MsgPack => {
            rmp_serde::to_vec_named(value).expect("a type of this crate is always MessagePack")
        }
    }
}

fn decode_json<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(payload);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(named)?;
    deserializer
        .end()
        .map_err(|error| ApiError::bad_request(format!("payload: {error}")))?;
    Ok(value)
}

fn decode_msgpack<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiError> {
    walk::check_map(payload).map_err(|error| ApiError::bad_request(format!("payload: {error}")))?;
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(payload);
    // The walk has counted already; this one counts a little differently.
    deserializer.set_max_depth(MAX_DEPTH * 2);
    serde_path_to_error::deserialize(&mut deserializer).map_err(named)
}

/// Puts the field's name before what the decoder says.
fn named<E: std::error::Error>(error: serde_path_to_error::Error<E>) -> ApiError {
    let path = error.path().to_string();
    let inner = error.into_inner();
    // "." is the payload as a whole; what is wrong with it (a missing field) is named in the text.
    if path == "." {
        return ApiError::bad_request(inner.to_string());
    }
    ApiError::bad_request(format!("{path}: {inner}"))
}
