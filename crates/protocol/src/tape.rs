//! A payload as a list of its values, in the order in which they stand.
//!
//! Decoders fill it, and types are read from it: so each type has one reader, and not one for each format, with those of
//! requests and of replies apart. What a usual request holds needs no allocation.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny};
use serde::de::{MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::fields;

/// Values of most requests.
const INLINE: usize = 24;
/// Of a request: a value can be one byte, and takes 24 here. The largest request, an import, has half as many.
const REQUEST_VALUES_MAX: usize = 16_384;
/// The steps of a path that are named.
const STEPS_MAX: usize = 8;
/// The end of a list or map that is not filled yet.
const OPEN: usize = 0;

/// One value, or the name of a field before its value.
#[derive(Debug)]
pub(crate) enum Value<'p> {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'p str),
    /// A text that had escapes.
    Unescaped(Box<str>),
    Bytes(&'p [u8]),
    /// What no type reads: an extension of MessagePack, or a list or map in a client's own field.
    Other,
    /// The values up to this place.
    List(usize),
    /// The same, of names and values in turn.
    Map(usize),
}

/// A payload's values.
#[derive(Debug)]
pub(crate) struct Tape<'p> {
    values: SmallVec<[Value<'p>; INLINE]>,
    /// Unknown fields are refused, but for a client's own.
    pub is_request: bool,
}

impl<'p> Tape<'p> {
    pub fn new(is_request: bool) -> Self {
        Tape {
            values: SmallVec::new(),
            is_request,
        }
    }

    /// Adds a value, and all that is in it.
    ///
    /// # Errors
    /// Those of the decoder; [`Tape::broken_off`] says where.
    pub fn fill<D: Deserializer<'p>>(&mut self, from: D) -> Result<(), D::Error> {
        Fill {
            tape: self,
            is_own: false,
        }
        .deserialize(from)
    }

    pub fn value(&self, at: usize) -> &Value<'p> {
        // There is one wherever a list or map has said that it has one.
        self.values.get(at).unwrap_or(&Value::Null)
    }

    /// The name of a field.
    pub fn name(&self, at: usize) -> &str {
        match self.value(at) {
            Value::Text(name) => name,
            Value::Unescaped(name) => name,
            _ => "",
        }
    }

    /// The place behind a value.
    pub fn after(&self, at: usize) -> usize {
        match self.value(at) {
            Value::List(end) | Value::Map(end) => *end,
            _ => at + 1,
        }
    }

    /// In which value filling has ended early, as `lanes[1].name`; empty: between those of the payload itself.
    pub fn broken_off(&self) -> String {
        let mut path = String::new();
        let mut at = 0;
        for _ in 0..STEPS_MAX {
            match self.values.get(at) {
                Some(Value::Map(OPEN)) => {
                    let (field, _) = self.behind_whole(at + 1, 1);
                    if field == self.values.len() {
                        return path;
                    }
                    fields::push_name(&mut path, self.name(field));
                    at = field + 1;
                }
                Some(Value::List(OPEN)) => {
                    let (item, nth) = self.behind_whole(at + 1, 0);
                    // Another may not have begun.
                    if item == self.values.len() {
                        return path;
                    }
                    fields::push_index(&mut path, nth);
                    at = item;
                }
                _ => return path,
            }
        }
        path
    }

    /// The place behind the values that are whole, each after names, and how many there are.
    fn behind_whole(&self, mut at: usize, names: usize) -> (usize, usize) {
        let mut count = 0;
        while at + names < self.values.len() && self.after(at + names) != OPEN {
            at = self.after(at + names);
            count += 1;
        }
        (at, count)
    }

    fn push<E: Error>(&mut self, value: Value<'p>) -> Result<(), E> {
        if self.is_request && self.values.len() == REQUEST_VALUES_MAX {
            let what = format_args!("more than {REQUEST_VALUES_MAX} values and names of fields");
            return Err(E::custom(what));
        }
        self.values.push(value);
        Ok(())
    }
}

/// Adds one value.
struct Fill<'t, 'p> {
    tape: &'t mut Tape<'p>,
    /// In a client's own field of a request, whose lists and maps nobody reads: however deep they are, they cost nothing.
    /// (A text may be of a map whose names are free, such as labels.)
    is_own: bool,
}

impl<'p> DeserializeSeed<'p> for Fill<'_, 'p> {
    type Value = ();

    fn deserialize<D: Deserializer<'p>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'p> Visitor<'p> for Fill<'_, 'p> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.tape.push(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.tape.push(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.tape.push(Value::Unsigned(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.tape.push(Value::Signed(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.tape.push(Value::Float(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'p str) -> Result<(), E> {
        self.tape.push(Value::Text(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.tape.push(Value::Unescaped(value.into()))
    }

    fn visit_borrowed_bytes<E: Error>(self, value: &'p [u8]) -> Result<(), E> {
        self.tape.push(Value::Bytes(value))
    }

    /// An extension.
    fn visit_newtype_struct<D: Deserializer<'p>>(self, from: D) -> Result<(), D::Error> {
        IgnoredAny::deserialize(from)?;
        self.tape.push(Value::Other)
    }

    fn visit_seq<A: SeqAccess<'p>>(self, mut list: A) -> Result<(), A::Error> {
        if self.is_own {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return self.tape.push(Value::Other);
        }
        let tape = self.tape;
        let at = tape.values.len();
        tape.push(Value::List(OPEN))?;
        let is_own = false;
        while list.next_element_seed(Fill { tape, is_own })?.is_some() {}
        tape.values[at] = Value::List(tape.values.len());
        Ok(())
    }

    fn visit_map<A: MapAccess<'p>>(self, mut map: A) -> Result<(), A::Error> {
        if self.is_own {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            return self.tape.push(Value::Other);
        }
        let tape = self.tape;
        let at = tape.values.len();
        tape.push(Value::Map(OPEN))?;
        while map.next_key_seed(Name(tape))?.is_some() {
            let name = tape.values.len() - 1;
            let is_own = tape.is_request && fields::is_own(tape.name(name));
            if is_own && at == 0 {
                // The names of a request itself are never free.
                tape.values.truncate(name);
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Fill { tape, is_own })?;
            }
        }
        tape.values[at] = Value::Map(tape.values.len());
        Ok(())
    }
}

/// Adds the name of a field.
struct Name<'t, 'p>(&'t mut Tape<'p>);

impl<'p> DeserializeSeed<'p> for Name<'_, 'p> {
    type Value = ();

    fn deserialize<D: Deserializer<'p>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl<'p> Visitor<'p> for Name<'_, 'p> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field, a string")
    }

    fn visit_borrowed_str<E: Error>(self, name: &'p str) -> Result<(), E> {
        self.0.push(Value::Text(name))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(), E> {
        self.0.push(Value::Unescaped(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where a text in JSON breaks off.
    fn broken_off(json: &str) -> String {
        let mut tape = Tape::new(true);
        let read = tape.fill(&mut serde_json::Deserializer::from_str(json));
        assert!(read.is_err(), "{json}");
        tape.broken_off()
    }

    #[test]
    fn what_breaks_off_is_named() {
        for (json, path) in [
            ("", ""),
            ("{", ""),
            (r#"{"a"#, ""),
            (r#"{"a":1,"#, ""),
            (r#"{"a":{},"b"#, ""),
            (r#"{"a""#, "a"),
            (r#"{"a":tru"#, "a"),
            (r#"{"a":"\ud800"}"#, "a"),
            (r#"{"a":[[1],{"b":2}],"c":nul"#, "c"),
            (r#"{"a":["#, "a"),
            (r#"{"a":[[1]}"#, "a"),
            (r#"{"a":[[1],{"b":2},{"c":{"d":[3,x"#, "a[2].c.d"),
            (r#"{"a":{"x_a":[1,{"b":"#, "a.x_a"),
            (r#"[[[[[[[[[["#, "[0][0][0][0][0][0][0][0]"),
        ] {
            assert_eq!(broken_off(json), path, "{json}");
        }
    }

    #[test]
    fn usual_requests_fit_without_an_allocation() {
        let mut tape = Tape::new(true);
        let check = r#"{"descriptors":[[{"key":"a","value":"b"},{"key":"c","value":"d"}]],"hits":2,"dry_run":true}"#;
        assert!(
            tape.fill(&mut serde_json::Deserializer::from_str(check))
                .is_ok()
        );
        assert!(!tape.values.spilled(), "{}", tape.values.len());
    }
}
