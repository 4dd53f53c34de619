//! What is wrong with a value of a payload, in words.

use std::fmt;

use serde::de::{Expected, Unexpected};

/// Of a known name to the one that was given, by Jaro and Winkler: `ttl` is meant by `ttl_ms`, but `color` by no setting.
const SIMILARITY_MIN: f64 = 0.8;
/// A longer name is near to none.
const NAME_BYTES_MAX: usize = 64;
/// More known names may not fit into a message.
const LISTED_MAX: usize = 16;

/// What was there, and what is expected in its place.
pub(crate) struct Mismatch<'a>(pub Unexpected<'a>, pub &'a dyn Expected);

impl fmt::Display for Mismatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, got ", expected(self.1))?;
        match self.0 {
            Unexpected::Unit => f.write_str("null"),
            Unexpected::Bool(it) => write!(f, "{it}"),
            Unexpected::Unsigned(it) => write!(f, "{it}"),
            Unexpected::Signed(it) => write!(f, "{it}"),
            // With an exponent where it is long: 10^300 has 300 digits.
            Unexpected::Float(it) => write!(f, "{it:?}"),
            Unexpected::Str(it) => write!(f, "{it:?}"),
            Unexpected::Bytes(_) => f.write_str("binary"),
            Unexpected::Seq => f.write_str("a list"),
            Unexpected::Map => f.write_str("a map"),
            other => write!(f, "{other}"),
        }
    }
}

/// What a reader expects. Those of Rust's own types say it in words of Rust.
pub(crate) fn expected(reader: &dyn Expected) -> String {
    let said = reader.to_string();
    let whole = |max: u64| format!("a whole number from 0 to {max}");
    match said.as_str() {
        "u8" => whole(u8::MAX.into()),
        "u16" => whole(u16::MAX.into()),
        "u32" => whole(u32::MAX.into()),
        "u64" => whole(u64::MAX),
        "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        _ if said.starts_with("struct ") => "a map".to_owned(),
        _ => match said.strip_prefix("an array of length ") {
            Some(length) => format!("a list of {length} items"),
            None => said,
        },
    }
}

/// What a reader of an enum expects: one of these words.
pub(crate) struct Words(pub &'static [&'static str]);

impl Expected for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Listed(self.0, "or"))
    }
}

/// A name of this kind that is not known, and those that are.
pub(crate) struct Unknown<'a>(pub &'a str, pub &'a str, pub &'a [&'a str]);

impl fmt::Display for Unknown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unknown(kind, name, known) = self;
        write!(f, "unknown {kind} `{name}`")?;
        match (nearest(name, known), *known) {
            (Some(near), _) => write!(f, ": did you mean `{near}`?"),
            (None, []) => f.write_str(", there are none here"),
            (None, [only]) => write!(f, ", `{only}` is the only one here"),
            (None, known) if known.len() > LISTED_MAX => {
                write!(f, ", none of the {} known ones is similar", known.len())
            }
            (None, known) => write!(f, ", known here are {}", Listed(known, "and")),
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

/// Names in quotes, as in a sentence, with this word before the last one.
pub(crate) struct Listed<'a>(pub &'a [&'a str], pub &'static str);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Listed(names, word) = self;
        let last = names.len().saturating_sub(1);
        for (nth, name) in names.iter().enumerate() {
            match nth {
                0 => {}
                _ if nth == last => write!(f, " {word} ")?,
                _ => f.write_str(", ")?,
            }
            write!(f, "`{name}`")?;
        }
        Ok(())
    }
}
