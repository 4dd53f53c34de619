//! The fields of requests: one that is not known is refused by its name, with the nearest known one, and those that
//! begin with `x_` are a client's own and passed over. Both at any depth, in JSON and MessagePack.
//!
//! These readers stand between serde's and the decoders. Derived readers name their fields when they ask for a struct,
//! so no type of a request can forget the rule. `#[serde(deny_unknown_fields)]` would have to stand at each type, and
//! would hold for replies that show parts of requests, whose readers ignore unknown fields. A map whose names are free,
//! such as labels, is asked for as a map, and read as it is. `#[serde(flatten)]` asks for a map, too: no request may have it.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, EnumAccess, Error};
use serde::de::{IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor};

/// Begins the names of a client's own fields.
const OWN_PREFIX: &str = "x_";
/// Of a known name to the one that was given, by Jaro and Winkler: `ttl` is meant by `ttl_ms`, but `color` by no setting.
const SIMILARITY_MIN: f64 = 0.8;
/// A longer name is near to none.
const NAME_BYTES_MAX: usize = 64;
/// A type with more fields says itself what is expected in its place.
const NAMED_MAX: usize = 8;

/// A request.
pub(crate) struct Request<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Request<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(Checked(deserializer)).map(Request)
    }
}

/// A deserializer, seed, visitor, list or map, so that the rule holds for all that it reads.
struct Checked<T>(T);

macro_rules! deserialize {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {$(
        fn $method<V: Visitor<'de>>(self, $($argument: $type,)* visitor: V) -> Result<V::Value, D::Error> {
            self.0.$method($($argument,)* Checked(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Checked<D> {
    type Error = D::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = Struct { visitor, fields };
        self.0.deserialize_struct(name, fields, visitor)
    }

    deserialize! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_newtype_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(len: usize);
        deserialize_tuple_struct(name: &'static str, len: usize);
        deserialize_map();
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($type:ty);)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.0.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Checked<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }

    visit! {
        visit_bool(bool);
        visit_i64(i64);
        visit_u64(u64);
        visit_f64(f64);
        visit_str(&str);
        visit_bytes(&[u8]);
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.0.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.0.visit_some(Checked(deserializer))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        self.0.visit_newtype_struct(Checked(deserializer))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<V::Value, A::Error> {
        self.0.visit_seq(Checked(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.0.visit_map(Checked(map))
    }

    /// Those of requests are words without fields.
    fn visit_enum<A: EnumAccess<'de>>(self, word: A) -> Result<V::Value, A::Error> {
        self.0.visit_enum(word)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Checked<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.0.deserialize(Checked(deserializer))
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Checked<A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_element_seed(Checked(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Checked<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        self.0.next_key_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.0.next_value_seed(Checked(seed))
    }

    fn size_hint(&self) -> Option<usize> {
        self.0.size_hint()
    }
}

/// Reads what has these fields, and from a map alone: derived readers also take a list for it.
struct Struct<V> {
    visitor: V,
    fields: &'static [&'static str],
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Struct<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.fields.len() {
            1..=NAMED_MAX => write!(f, "a map of {}", Listed(self.fields)),
            _ => self.visitor.expecting(f),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        let fields = self.fields;
        self.visitor.visit_map(KnownFields { map, fields })
    }
}

struct KnownFields<A> {
    map: A,
    fields: &'static [&'static str],
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownFields<A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        while let Some(field) = self.map.next_key_seed(FieldName(self.fields))? {
            match field {
                Some(known) => return seed.deserialize(known.into_deserializer()).map(Some),
                None => self.map.next_value::<IgnoredAny>()?,
            };
        }
        Ok(None)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.map.next_value_seed(Checked(seed))
    }
}

/// Reads the name of one of these fields; `None`: of a client's own.
struct FieldName(&'static [&'static str]);

impl<'de> DeserializeSeed<'de> for FieldName {
    type Value = Option<&'static str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for FieldName {
    type Value = Option<&'static str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field, a string")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let known = self.0.iter().find(|known| **known == name);
        match known {
            Some(known) => Ok(Some(known)),
            None if name.starts_with(OWN_PREFIX) => Ok(None),
            None => Err(E::custom(Unknown(name, self.0))),
        }
    }
}

/// A field's name, and those that are known.
struct Unknown<'a>(&'a str, &'a [&'a str]);

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unknown(name, known) = self;
        write!(f, "unknown field `{name}`")?;
        match (nearest(name, known), *known) {
            (Some(near), _) => write!(f, ": did you mean `{near}`?"),
            (None, []) => f.write_str(", there are none here"),
            (None, [only]) => write!(f, ", `{only}` is the only one here"),
            (None, known) => write!(f, ", known here are {}", Listed(known)),
        }
    }
}

/// The known name that may be meant.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    // Each name is compared with all: a long one would keep others waiting, and none is as long.
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let name = plain(name);
    let similar = known.iter().map(|known| {
        // Short names are near by one slip alone: `kye`.
        let slip = strsim::osa_distance(&name, &plain(known)) == 1;
        let similarity = strsim::jaro_winkler(&name, &plain(known));
        (if slip { 1.0 } else { similarity }, *known)
    });
    let near = similar.filter(|(similarity, _)| *similarity >= SIMILARITY_MIN);
    near.max_by(|(a, _), (b, _)| a.total_cmp(b))
        .map(|(_, known)| known)
}

/// Names in quotes, as in a sentence.
struct Listed<'a>(&'a [&'a str]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.0.len().saturating_sub(1);
        for (nth, name) in self.0.iter().enumerate() {
            let before = match nth {
                0 => "",
                _ if nth == last => " and ",
                _ => ", ",
            };
            write!(f, "{before}`{name}`")?;
        }
        Ok(())
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
                    message.contains("parts[0]: invalid type")
                        && message.contains("a map of `ttl_ms`"),
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
