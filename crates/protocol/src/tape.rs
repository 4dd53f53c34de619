//! A payload as a list of its values, in the order in which they stand.
//!
//! Decoders fill it, and types are read from it: so each type has one reader, and not one for each format, with those of
//! requests and of replies apart. What a usual request holds needs no allocation.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny};
use serde::de::{MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use crate::codec::Format;
use crate::fields;

/// Values of most requests.
const INLINE: usize = 24;
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
    pub format: Format,
    /// Of a request: unknown fields are refused.
    pub is_request: bool,
}

impl<'p> Tape<'p> {
    pub fn new(format: Format, is_request: bool) -> Self {
        Tape {
            values: SmallVec::new(),
            format,
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
        loop {
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
                    fields::push_index(&mut path, nth);
                    at = item;
                }
                _ => return path,
            }
        }
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

    fn push<E>(&mut self, value: Value<'p>) -> Result<(), E> {
        self.values.push(value);
        Ok(())
    }
}

/// Adds one value.
struct Fill<'t, 'p> {
    tape: &'t mut Tape<'p>,
    /// In a field of a client's own, whose lists and maps nobody reads: however deep they are, they cost nothing.
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
            let is_own = fields::is_own(tape.name(tape.values.len() - 1));
            map.next_value_seed(Fill { tape, is_own })?;
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
