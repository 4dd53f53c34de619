//! Types are read from a payload's values by serde, and errors say in which field.

use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, Expected, IntoDeserializer};
use serde::de::{MapAccess, SeqAccess, Unexpected, Visitor};
use serde::forward_to_deserialize_any;

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::tape::{Tape, Value};
use crate::wrong::{self, Mismatch, Unknown, Words};

/// Why a payload is not of a type.
#[derive(Debug)]
pub(crate) struct ReadError(Box<Wrong>);

#[derive(Debug)]
struct Wrong {
    /// The fields and items around it, the innermost first; empty: it is the payload itself.
    within: Vec<Step>,
    what: String,
}

#[derive(Debug)]
enum Step {
    Field(String),
    Item(usize),
}

impl ReadError {
    fn within(mut self, step: Step) -> Self {
        self.0.within.push(step);
        self
    }

    fn within_field(self, name: &str) -> Self {
        self.within(Step::Field(name.to_owned()))
    }
}

impl de::Error for ReadError {
    fn custom<T: fmt::Display>(what: T) -> Self {
        ReadError(Box::new(Wrong {
            within: Vec::new(),
            what: what.to_string(),
        }))
    }

    fn invalid_type(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(Mismatch(got, expected))
    }

    fn invalid_value(got: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(Mismatch(got, expected))
    }

    fn invalid_length(length: usize, expected: &dyn Expected) -> Self {
        let expected = wrong::expected(expected);
        Self::custom(format_args!(
            "expected {expected}, got a length of {length}"
        ))
    }

    fn unknown_variant(word: &str, known: &'static [&'static str]) -> Self {
        Self::custom(Unknown("word", word, known))
    }

    fn missing_field(name: &'static str) -> Self {
        Self::custom("required").within_field(name)
    }
}

impl std::error::Error for ReadError {}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)
    }
}

impl From<ReadError> for ApiError {
    /// Without fields around it, the text says itself what is wrong.
    fn from(error: ReadError) -> ApiError {
        let mut path = String::new();
        for step in error.0.within.iter().rev() {
            match step {
                Step::Field(name) => fields::push_name(&mut path, name),
                Step::Item(nth) => fields::push_index(&mut path, *nth),
            }
        }
        ApiError::bad_request(match path.is_empty() {
            true => error.0.what,
            false => format!("{path}: {}", error.0.what),
        })
    }
}

/// The value at a place.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'t, 'p> {
    tape: &'t Tape<'p>,
    at: usize,
}

impl<'t, 'p> Reader<'t, 'p> {
    /// Of the whole payload.
    pub fn new(tape: &'t Tape<'p>) -> Self {
        Reader { tape, at: 0 }
    }

    fn value(self) -> &'t Value<'p> {
        self.tape.value(self.at)
    }

    fn list<V: Visitor<'p>>(self, end: usize, visitor: V) -> Result<V::Value, ReadError> {
        let mut items = Items {
            next: self.next(),
            end,
            nth: 0,
        };
        let read = visitor.visit_seq(&mut items)?;
        match items.next.at == end {
            true => Ok(read),
            false => Err(de::Error::custom(format_args!(
                "more than {} items",
                items.nth
            ))),
        }
    }

    fn map<V: Visitor<'p>>(
        self,
        end: usize,
        fields: Option<Fields>,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_map(Entries {
            name: self.next(),
            value: self.next(),
            end,
            fields,
        })
    }

    fn next(self) -> Self {
        Reader {
            at: self.at + 1,
            ..self
        }
    }

    fn after(self) -> Self {
        Reader {
            at: self.tape.after(self.at),
            ..self
        }
    }

    fn unexpected(self) -> Unexpected<'t> {
        match self.value() {
            Value::Null => Unexpected::Unit,
            Value::Bool(it) => Unexpected::Bool(*it),
            Value::Unsigned(it) => Unexpected::Unsigned(*it),
            Value::Signed(it) => Unexpected::Signed(*it),
            Value::Float(it) => Unexpected::Float(*it),
            Value::Text(it) => Unexpected::Str(it),
            Value::Unescaped(it) => Unexpected::Str(it),
            Value::Bytes(it) => Unexpected::Bytes(it),
            Value::Other => Unexpected::Other("a list, map or extension"),
            Value::List(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
        }
    }
}

impl<'p> Deserializer<'p> for Reader<'_, 'p> {
    type Error = ReadError;

    fn deserialize_any<V: Visitor<'p>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value() {
            Value::Null => visitor.visit_unit(),
            // Of a later release, in a field that is not known.
            Value::Other if !self.tape.is_request => visitor.visit_unit(),
            Value::Bool(it) => visitor.visit_bool(*it),
            Value::Unsigned(it) => visitor.visit_u64(*it),
            Value::Signed(it) => visitor.visit_i64(*it),
            Value::Float(it) => visitor.visit_f64(*it),
            Value::Text(it) => visitor.visit_borrowed_str(it),
            Value::Unescaped(it) => visitor.visit_str(it),
            Value::Bytes(it) => visitor.visit_borrowed_bytes(it),
            Value::Other => Err(de::Error::invalid_type(self.unexpected(), &visitor)),
            Value::List(end) => self.list(*end, visitor),
            Value::Map(end) => self.map(*end, None, visitor),
        }
    }

    fn deserialize_option<V: Visitor<'p>>(self, visitor: V) -> Result<V::Value, ReadError> {
        match self.value() {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'p>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        visitor.visit_newtype_struct(self)
    }

    /// From a map alone: derived readers also take a list for it.
    fn deserialize_struct<V: Visitor<'p>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        let fields = Fields(fields);
        match self.value() {
            Value::Map(end) => self.map(*end, self.tape.is_request.then_some(fields), visitor),
            _ => Err(fields.invalid_type(self.unexpected(), &visitor)),
        }
    }

    /// One of these words.
    fn deserialize_enum<V: Visitor<'p>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ReadError> {
        match self.value() {
            Value::Text(word) => visitor.visit_enum(BorrowedStrDeserializer::new(word)),
            Value::Unescaped(word) => visitor.visit_enum((**word).into_deserializer()),
            _ => Err(de::Error::invalid_type(self.unexpected(), &Words(words))),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'p>>(self, visitor: V) -> Result<V::Value, ReadError> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        <V: Visitor<'p>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier
    }
}

struct Items<'t, 'p> {
    next: Reader<'t, 'p>,
    end: usize,
    nth: usize,
}

impl<'p> SeqAccess<'p> for Items<'_, 'p> {
    type Error = ReadError;

    fn next_element_seed<S: DeserializeSeed<'p>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadError> {
        if self.next.at == self.end {
            return Ok(None);
        }
        let (item, nth) = (self.next, self.nth);
        (self.next, self.nth) = (item.after(), nth + 1);
        let read = seed.deserialize(item);
        read.map(Some)
            .map_err(|error| error.within(Step::Item(nth)))
    }
}

struct Entries<'t, 'p> {
    /// The next name.
    name: Reader<'t, 'p>,
    /// That of the name that was read last.
    value: Reader<'t, 'p>,
    end: usize,
    /// Of a request: the fields that are known.
    fields: Option<Fields>,
}

impl<'t, 'p> Entries<'t, 'p> {
    /// The next field that is not a client's own.
    fn next_name(&mut self) -> Result<Option<&'t str>, ReadError> {
        while self.name.at != self.end {
            let name = self.name.tape.name(self.name.at);
            self.value = self.name.next();
            self.name = self.value.after();
            match &self.fields {
                Some(fields) if !fields.knows(name) => {
                    if !fields::is_own(name) {
                        return Err(fields.unknown::<ReadError>(name).within_field(name));
                    }
                }
                _ => return Ok(Some(name)),
            }
        }
        Ok(None)
    }
}

impl<'p> MapAccess<'p> for Entries<'_, 'p> {
    type Error = ReadError;

    fn next_key_seed<S: DeserializeSeed<'p>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, ReadError> {
        let name = self.next_name()?;
        let read = name.map(|name| seed.deserialize(name.into_deserializer()));
        read.transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'p>>(&mut self, seed: S) -> Result<S::Value, ReadError> {
        let value = self.value;
        let read = seed.deserialize(value);
        read.map_err(|error| error.within_field(value.tape.name(value.at - 1)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};
    use serde_json::{Value, json};

    use crate::codec::{Format, encode, read};

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Outer {
        ranges: Vec<[u64; 2]>,
        inner: Option<Inner>,
        #[serde(flatten)]
        flat: Flat,
        small: Option<u8>,
        ratio: Option<f64>,
        names: BTreeMap<String, Wrapped>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Inner {
        word: Word,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Word {
        One,
        Two,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Flat {
        deep: Option<Vec<Vec<bool>>>,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapped(String);

    fn refused<T: DeserializeOwned + std::fmt::Debug>(json: &Value) -> String {
        let [a, b] = [Format::Json, Format::MsgPack]
            .map(|format| read::<T>(&encode(json, format)).unwrap_err().message);
        assert_eq!(a, b);
        a
    }

    #[test]
    fn types_come_back_from_both_formats() {
        let whole = Outer {
            ranges: vec![[1, 2], [3, u64::MAX]],
            inner: Some(Inner { word: Word::Two }),
            flat: Flat {
                deep: Some(vec![vec![], vec![true, false]]),
            },
            small: Some(255),
            ratio: Some(1.5),
            names: [("a \"b\"".to_owned(), Wrapped("c\n".to_owned()))].into(),
        };
        for value in [whole, Outer::default()] {
            for format in [Format::Json, Format::MsgPack] {
                assert_eq!(read::<Outer>(&encode(&value, format)).unwrap(), value);
            }
        }
        // A whole number is one with a fraction, too.
        let ratio = read::<Outer>(br#"{"ratio": 3}"#).unwrap().ratio;
        assert_eq!(ratio, Some(3.0));
    }

    #[test]
    fn errors_name_the_place_and_are_the_same_in_both_formats() {
        for (json, says) in [
            (
                json!({"ranges": [[1, 2], [3]]}),
                "ranges[1]: expected a list of 2 items, got a length of 1",
            ),
            (
                json!({"ranges": [[1, 2, 3]]}),
                "ranges[0]: more than 2 items",
            ),
            (
                json!({"ranges": [[1, -2]]}),
                "ranges[0][1]: expected a whole number from 0 to 18446744073709551615, got -2",
            ),
            (
                json!({"inner": {"word": "three"}}),
                "inner.word: unknown word `three`, known here are `one` and `two`",
            ),
            (
                json!({"inner": {"word": null}}),
                "inner.word: expected `one` or `two`, got null",
            ),
            (
                json!({"inner": [1]}),
                "inner: expected a map of `word`, got a list",
            ),
            (json!({"inner": {}}), "inner.word: required"),
            (
                json!({"small": 256}),
                "small: expected a whole number from 0 to 255, got 256",
            ),
            (
                json!({"small": 1.5}),
                "small: expected a whole number from 0 to 255, got 1.5",
            ),
            (
                json!({"small": "many"}),
                "small: expected a whole number from 0 to 255, got \"many\"",
            ),
            (json!({"ratio": true}), "ratio: expected a number, got true"),
            (json!({"ranges": {}}), "ranges: expected a list, got a map"),
            (json!({"names": []}), "names: expected a map, got a list"),
            (
                json!({"names": {"a": 1}}),
                "names.a: expected a string, got 1",
            ),
        ] {
            assert_eq!(refused::<Outer>(&json), says);
        }
        assert_eq!(refused::<Inner>(&json!({})), "word: required");
    }
}
