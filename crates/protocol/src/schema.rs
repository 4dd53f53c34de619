//! JSON Schemas of what is read and written by hand. They say what the readers say, by the same constants; types that serde
//! derives have derived ones.
//!
//! MessagePack has binary where JSON has text: a key, a value, a part of a backup. The schemas are of JSON, and name the
//! difference in `x-msgpack`.

use std::borrow::Cow;

use nowserving_kv::VALUE_BYTES_MAX;
use nowserving_line::{
    CALL_ID_BYTES_MAX, KEY_BYTES_MAX, LABEL_BYTES_MAX, LABELS_MAX, NAME_BYTES_MAX, RATE_MICRO_MAX,
    RATE_MICRO_MIN,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::backup::{Blob, Hex};
use crate::error::Code;
use crate::key::{Key, ShownOption};
use crate::kv::{KvValue, Text};
use crate::members::DiskId;
use crate::settings::PerSecond;
use crate::wire;

/// Of a field that is binary in MessagePack.
const BINARY: &str = "binary";
/// The same where a string is taken, too.
const TEXT_OR_BINARY: &str = "string or binary";

/// Of names of lines, lanes, buckets and domains.
fn name() -> String {
    format!("^[A-Za-z0-9_-]{{1,{NAME_BYTES_MAX}}}$")
}

/// Implements [`JsonSchema`] for types whose schemas stand where they are used.
macro_rules! inline {
    ($($(const<$($parameter:ident: $number:ty),*>)? $type:ty as $name:literal: $generator:pat => $schema:expr;)*) => {$(
        impl $(<$(const $parameter: $number),*>)? JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

inline! {
    wire::Name as "Name": _ => json_schema!({"type": "string", "pattern": name()});
    wire::NameOption as "NameOption": _ => json_schema!({"type": ["string", "null"], "pattern": name()});
    wire::Names as "Names": _ => json_schema!({"type": "array", "items": {"type": "string", "pattern": name()}});
    wire::StateWord as "State": _ => json_schema!({
        "type": "string",
        "enum": wire::STATES.map(|state| state.as_str()),
    });
    const<MIN: u64, MAX: u64> wire::Within<MIN, MAX> as "Within": _ => json_schema!({
        "type": "integer",
        "minimum": MIN,
        "maximum": MAX,
    });
    const<MIN: u64, MAX: u64> wire::WithinOption<MIN, MAX> as "WithinOption": _ => json_schema!({
        "type": ["integer", "null"],
        "minimum": MIN,
        "maximum": MAX,
    });
    wire::Flag as "Flag": _ => json_schema!({"type": "boolean"});
    // Lengths are of bytes, and a schema counts characters: it takes a little more than the reader.
    wire::LabelMap as "Labels": _ => json_schema!({
        "type": "object",
        "propertyNames": {"minLength": 1, "maxLength": LABEL_BYTES_MAX},
        "additionalProperties": {"type": "string", "maxLength": LABEL_BYTES_MAX},
        "maxProperties": LABELS_MAX,
    });
    ShownOption as "ShownOption": generator => generator.subschema_for::<Option<Key>>();
    const<MIN: usize, MAX: usize> Text<MIN, MAX> as "Text": _ => json_schema!({
        "type": "string",
        "minLength": MIN,
        "maxLength": MAX,
    });
    KvValue as "KvValue": _ => json_schema!({
        "type": "string",
        "maxLength": VALUE_BYTES_MAX,
        "x-msgpack": TEXT_OR_BINARY,
    });
    Blob as "Blob": _ => json_schema!({"type": "string", "contentEncoding": "base64", "x-msgpack": BINARY});
    const<N: usize> Hex<N> as "Hex": _ => json_schema!({
        "type": "string",
        "pattern": format!("^[0-9a-f]{{{}}}$", 2 * N),
    });
    DiskId as "DiskId": _ => json_schema!({"type": "string", "pattern": "^[0-9A-Fa-f]{16}$"});
    PerSecond as "PerSecond": _ => json_schema!({
        "type": "number",
        "minimum": PerSecond::from_micro(RATE_MICRO_MIN),
        "maximum": PerSecond::from_micro(RATE_MICRO_MAX),
    });
}

impl JsonSchema for Key {
    fn schema_name() -> Cow<'static, str> {
        "Key".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let text = json_schema!({"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX});
        let (mut schema, in_json) = match generator.contract().is_serialize() {
            true => {
                let byte = json!({"type": "integer", "minimum": 0, "maximum": u8::MAX});
                let bytes = json!({"type": "array", "items": byte, "minItems": 1, "maxItems": KEY_BYTES_MAX});
                let in_json = "; in JSON a list of its bytes if they are not UTF-8";
                (json_schema!({"anyOf": [text, bytes]}), in_json)
            }
            false => (text, ""),
        };
        let description = format!("A user or order id, 1 to {KEY_BYTES_MAX} bytes{in_json}.");
        schema.insert("description".to_owned(), description.into());
        schema.insert("x-msgpack".to_owned(), TEXT_OR_BINARY.into());
        schema
    }
}

impl JsonSchema for Code {
    fn schema_name() -> Cow<'static, str> {
        "Code".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        json_schema!({
            "description": "Why a request was refused. Later releases may have more.",
            "type": "string",
            "enum": codes,
        })
    }
}

/// Of an id that a caller chooses: visible ASCII characters.
pub(crate) fn id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "pattern": format!("^[!-~]{{1,{CALL_ID_BYTES_MAX}}}$")})
}

/// [`id`] for a field that may be missing.
pub(crate) fn id_option(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "null"], "pattern": format!("^[!-~]{{1,{CALL_ID_BYTES_MAX}}}$")})
}

/// Of a time as RFC 3339 has it.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// A field that is there: null counts as missing.
fn given(field: &str) -> Value {
    json!({"required": [field], "properties": {field: {"not": {"type": "null"}}}})
}

/// A flag that is set.
fn set(field: &str) -> Value {
    json!({"required": [field], "properties": {field: {"const": true}}})
}

fn one_of(schema: &mut Schema, these: impl IntoIterator<Item = Value>) {
    schema.insert("oneOf".to_owned(), these.into_iter().collect());
}

/// A token is named by one of both.
pub(crate) fn ticket_or_key(schema: &mut Schema) {
    one_of(schema, ["ticket", "key"].map(given));
}

/// An entrant has a key, or says that it has none.
pub(crate) fn key_or_anonymous(schema: &mut Schema) {
    one_of(schema, [given("key"), set("anonymous")]);
}

/// A value is text, or else base64.
pub(crate) fn value_or_base64(schema: &mut Schema) {
    one_of(schema, ["value", "value_base64"].map(given));
}

/// A token is taken by its key or by its number.
pub(crate) fn key_or_number(schema: &mut Schema) {
    let both = json!({"allOf": [given("lane"), given("token")]});
    one_of(schema, [given("key"), both]);
}

/// Which tokens are kicked.
pub(crate) fn one_selector(schema: &mut Schema) {
    let fields = ["tokens", "keys", "idle_over_ms", "lane"].map(given);
    one_of(schema, fields.into_iter().chain([set("all")]));
}

/// At what time a quota is renewed, or how often.
pub(crate) fn time_or_interval(schema: &mut Schema) {
    let both = json!({"allOf": [given("at"), given("zone")]});
    one_of(schema, [both, given("every_ms")]);
}
