//! `docs/asyncapi.yaml` is what the code says: `cargo xtask asyncapi` writes it. A binary of its own, as it needs the feature
//! `schema`, with which nothing else is built.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use nowserving_protocol::asyncapi::document;
use nowserving_testkit::golden;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

const HEAD: &str = "# Made from the code: cargo xtask asyncapi\n";

/// Names that stand first in their objects, in this order; others follow by the alphabet.
const FIRST: [&str; 27] = [
    "asyncapi",
    "info",
    "defaultContentType",
    "servers",
    "channels",
    "operations",
    "components",
    "title",
    "version",
    "name",
    "action",
    "address",
    "summary",
    "description",
    "channel",
    "contentType",
    "parameters",
    "headers",
    "payload",
    "$ref",
    "type",
    "required",
    "oneOf",
    "properties",
    "patternProperties",
    "additionalProperties",
    "messages",
];

/// A value whose objects are in order.
struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(object) => {
                let mut entries: Vec<_> = object.iter().collect();
                let rank = |name: &str| FIRST.iter().position(|it| *it == name);
                entries.sort_by_key(|(name, _)| (rank(name).unwrap_or(FIRST.len()), *name));
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for (name, value) in entries {
                    map.serialize_entry(name, &Ordered(value))?;
                }
                map.end()
            }
            Value::Array(list) => serializer.collect_seq(list.iter().map(Ordered)),
            plain => plain.serialize(serializer),
        }
    }
}

#[test]
fn the_document_is_that_of_the_code() {
    let document = document();
    let made = HEAD.to_owned() + &serde_saphyr::to_string(&Ordered(&document)).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/asyncapi.yaml");
    if std::env::var_os(golden::WRITE).is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(kept == made, "run `cargo xtask asyncapi`");
    let read: Value = serde_saphyr::from_str(&kept).unwrap();
    assert_eq!(read, document);
}

/// Calls a function with each object within a value.
fn visit(value: &Value, see: &mut dyn FnMut(&Map<String, Value>)) {
    match value {
        Value::Object(object) => {
            see(object);
            object.values().for_each(|it| visit(it, see));
        }
        Value::Array(list) => list.iter().for_each(|it| visit(it, see)),
        _ => {}
    }
}

#[test]
fn all_that_is_referred_to_is_there() {
    let document = document();
    visit(&document, &mut |object| {
        if let Some(Value::String(pointer)) = object.get("$ref") {
            let pointer = pointer.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    });
}

/// Names of constants and links mean nothing to readers of the document.
#[test]
fn texts_are_not_those_of_rust() {
    visit(&document(), &mut |object| {
        for name in ["description", "summary"] {
            let Some(Value::String(text)) = object.get(name) else {
                continue;
            };
            let is_constant = |word: &str| {
                word.len() > 3 && word.bytes().all(|it| it.is_ascii_uppercase() || it == b'_')
            };
            let mut words = text.split('`');
            assert!(
                !text.is_empty()
                    && !text.contains("[`")
                    && !text.contains("Some(")
                    && !text.contains("::")
                    && !words.any(is_constant),
                "{text}"
            );
        }
    });
}

#[test]
fn requests_are_closed_and_replies_are_open() {
    let document = document();
    let schema = |name: &str| &document["components"]["schemas"][name];
    assert_eq!(schema("Enter")["additionalProperties"], false);
    assert_eq!(schema("Enter")["patternProperties"]["^x_"], true);
    assert!(schema("StatusReply").get("additionalProperties").is_none());
    // The same constants as the readers'.
    let limit = &schema("ListLines")["properties"]["limit"];
    assert_eq!(limit["maximum"], nowserving_protocol::admin::LIST_LINES_MAX);
    let seats = &schema("Create")["properties"]["seats"];
    assert_eq!(seats["minimum"], 1);
    assert_eq!(
        schema("Create")["required"],
        serde_json::json!(["seats", "queue_limit"])
    );
}
