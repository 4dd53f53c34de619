//! Readers and writers for the types of the line crate, which has no serde; the
//! readers name the limit that a value breaks.
//!
//! They use `deserialize_any` instead of asking for a type. Asked for a number or a
//! flag, the MessagePack decoder refuses anything else with the name of a marker
//! byte, which tells the sender nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use nowserving_line::{BadName, LABEL_BYTES_MAX, LABELS_MAX, NUMBER_MAX, State};
use serde::Serialize;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess};
use serde::de::{Unexpected, Visitor};

/// Reads the value of a field into its place, which must be empty.
pub(crate) fn fill<'de, A: MapAccess<'de>, S: DeserializeSeed<'de>>(
    map: &mut A,
    field: &'static str,
    seed: S,
    place: &mut Option<S::Value>,
) -> Result<(), A::Error> {
    if place.is_some() {
        return Err(A::Error::duplicate_field(field));
    }
    *place = Some(map.next_value_seed(seed)?);
    Ok(())
}

/// `with` for a [`nowserving_line::LineName`] or [`nowserving_line::LaneName`]. Like the others here it is a type, so that
/// the schema of a field comes from the attribute by which it is read.
#[derive(Clone, Copy, Debug)]
pub struct Name;

impl Name {
    /// Writes the text.
    ///
    /// # Errors
    /// The serializer's.
    pub fn serialize<T: AsRef<str>, S: serde::Serializer>(
        name: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(name.as_ref())
    }

    /// Reads a name.
    ///
    /// # Errors
    /// It is not text, or no name; the message says what is wrong.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: for<'a> TryFrom<&'a str, Error = BadName>,
        D: Deserializer<'de>,
    {
        deserializer.deserialize_str(NameVisitor::default())
    }
}

/// A name as a type with its own `Deserialize`.
struct Named<T>(T);

impl<'de, T: for<'a> TryFrom<&'a str, Error = BadName>> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Name::deserialize(deserializer).map(Named)
    }
}

pub(crate) struct NameVisitor<T>(PhantomData<T>);

impl<T> Default for NameVisitor<T> {
    fn default() -> Self {
        NameVisitor(PhantomData)
    }
}

impl<T: for<'a> TryFrom<&'a str, Error = BadName>> Visitor<'_> for NameVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name: 1 to 64 of [A-Za-z0-9_-]")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::try_from(text).map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
    }
}

/// `with` for an optional name; needs `#[serde(default)]` beside it.
pub(crate) struct NameOption;

impl NameOption {
    pub(crate) fn serialize<T: AsRef<str>, S: serde::Serializer>(
        name: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match name {
            Some(name) => serializer.serialize_str(name.as_ref()),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
    where
        T: for<'a> TryFrom<&'a str, Error = BadName>,
        D: Deserializer<'de>,
    {
        Ok(Option::<Named<T>>::deserialize(deserializer)?.map(|name| name.0))
    }
}

/// `with` for a list of names.
pub(crate) struct Names;

impl Names {
    pub(crate) fn serialize<T: AsRef<str>, S: serde::Serializer>(
        names: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(names.iter().map(AsRef::as_ref))
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: for<'a> TryFrom<&'a str, Error = BadName>,
        D: Deserializer<'de>,
    {
        let names = Vec::<Named<T>>::deserialize(deserializer)?;
        Ok(names.into_iter().map(|name| name.0).collect())
    }
}

/// `with` for a [`nowserving_line::State`].
pub(crate) struct StateWord;

pub(crate) const STATES: [State; 4] = [
    State::Waiting,
    State::Admitted,
    State::InCheckout,
    State::Gone,
];

impl StateWord {
    pub(crate) fn serialize<S: serde::Serializer>(
        state: &State,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(state.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<State, D::Error> {
        let text = String::deserialize(deserializer)?;
        STATES
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| {
                D::Error::unknown_variant(&text, &["waiting", "admitted", "in_checkout", "gone"])
            })
    }
}

/// Reads a whole number from `min` to `max`; the refusal names both.
#[derive(Copy, Clone)]
pub(crate) struct WholeVisitor<T> {
    pub(crate) min: T,
    pub(crate) max: T,
}

impl<T: Copy + PartialOrd + fmt::Display + TryFrom<u64>> Visitor<'_> for WholeVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {} to {}", self.min, self.max)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        match T::try_from(value) {
            Ok(fits) if (self.min..=self.max).contains(&fits) => Ok(fits),
            _ => Err(E::invalid_value(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        match u64::try_from(value) {
            Ok(value) => self.visit_u64(value),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(value), &self)),
        }
    }
}

/// A whole number from `MIN` to `MAX`; fractions and texts are refused.
struct Whole<T, const MIN: u64, const MAX: u64>(T);

impl<'de, T: TryFrom<u64>, const MIN: u64, const MAX: u64> Deserialize<'de> for Whole<T, MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(WholeVisitor { min: MIN, max: MAX })?;
        let number = T::try_from(number);
        number.map(Whole).map_err(|_| D::Error::custom("too large"))
    }
}

/// `with` for a number within limits.
pub(crate) struct Within<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Within<MIN, MAX> {
    pub(crate) fn serialize<T: Serialize, S: serde::Serializer>(
        number: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        number.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        Whole::<T, MIN, MAX>::deserialize(deserializer).map(|whole| whole.0)
    }
}

/// `with` for an optional number within limits; needs `#[serde(default)]` beside it.
pub(crate) struct WithinOption<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> WithinOption<MIN, MAX> {
    pub(crate) fn serialize<T: Serialize, S: serde::Serializer>(
        number: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        number.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let whole = Option::<Whole<T, MIN, MAX>>::deserialize(deserializer)?;
        Ok(whole.map(|whole| whole.0))
    }
}

/// `with` for a number that JSON represents exactly.
pub(crate) type Number = Within<0, NUMBER_MAX>;

/// `with` for an optional [`Number`]; needs `#[serde(default)]` beside it.
pub(crate) type NumberOption = WithinOption<0, NUMBER_MAX>;

/// `deserialize_with` that distinguishes a field that is `null` (`Some(None)`) from a
/// missing one (`None`, by `#[serde(default)]` beside it).
pub(crate) fn null_or<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<u64>>, D::Error> {
    Option::<u64>::deserialize(deserializer).map(Some)
}

/// `deserialize_with` for a flag; needs `#[serde(default)]` beside it.
pub(crate) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Flag::deserialize(deserializer).map(|Flag(flag)| flag)
}

/// A flag as a type with its own `Deserialize`.
pub(crate) struct Flag(pub(crate) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flag, D::Error> {
        deserializer.deserialize_any(BoolVisitor).map(Flag)
    }
}

pub(crate) struct BoolVisitor;

impl Visitor<'_> for BoolVisitor {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<bool, E> {
        Ok(value)
    }
}

/// `with` for labels: no name twice, at most as many as a line can have.
pub(crate) struct LabelMap;

impl LabelMap {
    pub(crate) fn serialize<S: serde::Serializer>(
        labels: &BTreeMap<String, String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        labels.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, String>, D::Error> {
        deserializer.deserialize_map(LabelsVisitor)
    }
}

pub(crate) struct LabelsVisitor;

impl<'de> Visitor<'de> for LabelsVisitor {
    type Value = BTreeMap<String, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a map of at most {LABELS_MAX} labels, texts of at most {LABEL_BYTES_MAX} bytes"
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut labels = BTreeMap::new();
        while let Some(label) = map.next_key::<String>()? {
            let value = map.next_value::<String>()?;
            if label.is_empty() || label.len() > LABEL_BYTES_MAX || value.len() > LABEL_BYTES_MAX {
                return Err(A::Error::custom(format_args!(
                    "a label's name has 1 to {LABEL_BYTES_MAX} bytes, its value at most {LABEL_BYTES_MAX}"
                )));
            }
            if labels.insert(label, value).is_some() {
                return Err(A::Error::custom("a label is given twice"));
            }
            if labels.len() > LABELS_MAX {
                return Err(A::Error::custom(format_args!(
                    "at most {LABELS_MAX} labels"
                )));
            }
        }
        Ok(labels)
    }
}
