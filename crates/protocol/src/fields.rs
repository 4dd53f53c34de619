//! The fields of requests: one that is not known is refused by its name, with the nearest known one, and those that
//! begin with `x_` are a client's own and passed over. Both at any depth, in JSON and MessagePack.
//!
//! Derived readers name their fields when they ask for a struct, so no type of a request can forget the rule.
//! `#[serde(deny_unknown_fields)]` would have to stand at each type, and would hold for replies that show parts of requests,
//! whose readers ignore unknown fields. A map whose names are free, such as labels, is asked for as a map, and read as it is.
//! `#[serde(flatten)]` asks for a map, too: no request may have it.

use std::fmt::{self, Write as _};

use serde::de::{Error, Expected, Unexpected};

use crate::wrong::{Listed, Unknown};

/// Begins the names of a client's own fields.
const OWN_PREFIX: &str = "x_";
/// A type with more fields says itself what is expected in its place.
const NAMED_MAX: usize = 8;

/// Whether a client's own field has this name.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(OWN_PREFIX)
}

/// Goes on with a field in the path to a value.
pub(crate) fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Goes on with an item of a list.
pub(crate) fn push_index(path: &mut String, nth: usize) {
    let _ = write!(path, "[{nth}]");
}

/// The fields of a type.
#[derive(Clone, Copy)]
pub(crate) struct Fields(pub &'static [&'static str]);

impl Fields {
    pub fn knows(self, name: &str) -> bool {
        self.0.contains(&name)
    }

    /// The error for a field that is not known.
    pub fn unknown<E: Error>(self, name: &str) -> E {
        E::custom(Unknown("field", name, self.0))
    }

    /// The error for what is no map of these fields; `reader` says what it expects of a type with many.
    pub fn invalid_type<E: Error>(self, unexpected: Unexpected<'_>, reader: &dyn Expected) -> E {
        match self.0.len() {
            1..=NAMED_MAX => E::invalid_type(unexpected, &self),
            _ => E::invalid_type(unexpected, reader),
        }
    }
}

impl Expected for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a map of {}", Listed(self.0, "and"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use crate::codec::{MAX_REQUEST_BYTES, read, read_request};

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Outer {
        lane: Option<String>,
        #[serde(default)]
        parts: Vec<Inner>,
        #[serde(default)]
        labels: BTreeMap<String, String>,
    }

    #[derive(Debug, PartialEq, serde::Deserialize)]
    struct Inner {
        ttl_ms: Option<u64>,
    }

    fn both<T: serde::de::DeserializeOwned>(json: &serde_json::Value) -> [Result<T, String>; 2] {
        let payloads = [
            serde_json::to_vec(json).unwrap(),
            rmp_serde::to_vec_named(json).unwrap(),
        ];
        payloads
            .map(|payload| read_request(&payload, MAX_REQUEST_BYTES).map_err(|error| error.message))
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_known_one_at_any_depth() {
        for (json, says) in [
            (
                serde_json::json!({"lanes": "vip"}),
                "lanes: unknown field `lanes`: did you mean `lane`?",
            ),
            (
                serde_json::json!({"Lane": "vip"}),
                "unknown field `Lane`: did you mean `lane`?",
            ),
            (
                serde_json::json!({"parts": [{}, {"ttl": 5}]}),
                "parts[1].ttl: unknown field `ttl`: did you mean `ttl_ms`?",
            ),
            (
                serde_json::json!({"parts": [{"color": 5}]}),
                "unknown field `color`, `ttl_ms` is the only one here",
            ),
            (
                serde_json::json!({"key": "a"}),
                "unknown field `key`, known here are `lane`, `parts` and `labels`",
            ),
        ] {
            for read in both::<Outer>(&json) {
                let message = read.unwrap_err();
                assert!(message.contains(says), "{json}: {message}");
            }
        }
    }

    #[test]
    fn a_clients_own_fields_are_passed_over_and_free_maps_keep_theirs() {
        let json = serde_json::json!({
            "x_trace": [{"lanes": {"a": 1}}], "lane": "vip", "parts": [{"x_": null, "ttl_ms": 5}],
            "labels": {"x_color": "red"}, "x_lane": 7,
        });
        for read in both::<Outer>(&json) {
            let read = read.unwrap();
            assert_eq!(read.lane.as_deref(), Some("vip"));
            assert_eq!(read.parts, [Inner { ttl_ms: Some(5) }]);
            assert_eq!(read.labels["x_color"], "red");
        }
    }

    #[test]
    fn a_list_is_no_map_of_fields() {
        for wrong in [serde_json::json!([5]), serde_json::json!("a")] {
            for read in both::<Outer>(&serde_json::json!({ "parts": [wrong] })) {
                let message = read.unwrap_err();
                assert!(
                    message.starts_with("parts[0]: expected a map of `ttl_ms`, got "),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn replies_are_read_with_unknown_fields_and_larger_requests_if_it_is_said() {
        let reply = br#"{"lane": "vip", "parts": [{"ttl": 5}], "lanes": 3}"#;
        assert_eq!(read::<Outer>(reply).unwrap().parts.len(), 1);
        assert!(read_request::<Outer>(reply, 1_000).is_err());
        let large = format!(r#"{{"lane": "{}"}}"#, "x".repeat(70_000));
        assert!(read_request::<Outer>(large.as_bytes(), 80_000).is_ok());
        let error = read_request::<Outer>(large.as_bytes(), 70_000).unwrap_err();
        assert!(error.message.contains("at most 70000"), "{error}");
    }
}
