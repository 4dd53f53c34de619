//! Helpers shared by the tests of payloads.

// Each test compiles this for itself, and not each needs all of it.
#![allow(dead_code)]

use nowserving_protocol::codec::{Format, Payload, decode, encode};
use nowserving_protocol::error::Code;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The value in both formats.
pub fn payloads(value: &Value) -> [Vec<u8>; 2] {
    [
        serde_json::to_vec(value).unwrap(),
        rmp_serde::to_vec_named(value).unwrap(),
    ]
}

/// Both formats of the value are a `bad_request` whose message has these words.
pub fn refused<T: Payload + std::fmt::Debug>(value: Value, words: &[&str]) {
    for payload in payloads(&value) {
        let error = decode::<T>(&payload).unwrap_err();
        assert_eq!(error.code, Code::BadRequest);
        for word in words {
            assert!(error.message.contains(word), "{value}: {}", error.message);
        }
    }
}

/// It comes back from both formats.
pub fn both_ways<T: Serialize + Payload + PartialEq + std::fmt::Debug>(value: &T) {
    for format in [Format::Json, Format::MsgPack] {
        assert_eq!(decode::<T>(&encode(value, format)).unwrap(), *value);
    }
}

/// A part of a payload comes back from both formats.
pub fn part_both_ways<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let json = serde_json::from_slice::<T>(&encode(value, Format::Json));
    assert_eq!(json.unwrap(), *value);
    let msgpack = rmp_serde::from_slice::<T>(&encode(value, Format::MsgPack));
    assert_eq!(msgpack.unwrap(), *value);
}
