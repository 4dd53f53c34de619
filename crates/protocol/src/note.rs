//! Who asks for a change of an operator, and why: two headers of the request. Characters other than visible ASCII are
//! percent-encoded in them, in UTF-8.

use std::fmt::Write as _;

use nowserving_line::{KICK_TEXT_BYTES_MAX, OperatorNote};

use crate::error::ApiError;
use crate::header::{BY_HEADER, REASON_HEADER};

/// The headers of a request with this note.
pub fn headers(note: &OperatorNote) -> impl Iterator<Item = (&'static str, String)> {
    let both = [(BY_HEADER, &note.by), (REASON_HEADER, &note.reason)];
    let there = both.into_iter();
    there.filter_map(|(name, text)| Some((name, encoded(text.as_deref()?))))
}

fn encoded(text: &str) -> String {
    let last = text.len().saturating_sub(1);
    let mut encoded = String::with_capacity(text.len());
    for (nth, byte) in text.bytes().enumerate() {
        // A blank at an end would be lost.
        let stays =
            byte.is_ascii_graphic() && byte != b'%' || byte == b' ' && nth > 0 && nth < last;
        match stays {
            true => encoded.push(byte.into()),
            // A text takes everything.
            false => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

/// Reads the value of one of the two headers.
///
/// # Errors
/// `bad_request` that names the header: 1 to 128 bytes without control characters, percent-encoded.
pub fn read(name: &str, value: &str) -> Result<Box<str>, ApiError> {
    let wrong = |what: String| ApiError::bad_request(format!("{name}: {what}"));
    let decoded = decoded(value).and_then(|bytes| String::from_utf8(bytes).ok());
    let text = decoded.ok_or_else(|| wrong("must be percent-encoded UTF-8".to_owned()))?;
    if !(1..=KICK_TEXT_BYTES_MAX).contains(&text.len()) {
        return Err(wrong(format!("must be 1 to {KICK_TEXT_BYTES_MAX} bytes")));
    }
    match text.chars().any(char::is_control) {
        true => Err(wrong("must have no control characters".to_owned())),
        false => Ok(text.into()),
    }
}

fn decoded(value: &str) -> Option<Vec<u8>> {
    let mut bytes = value.bytes();
    let mut decoded = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        });
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_note_comes_back_from_its_headers() {
        for (text, value) in [
            ("ann", "ann"),
            (
                "the sale of 12:00, 50 % off",
                "the sale of 12:00, 50 %25 off",
            ),
            ("Jörg", "J%C3%B6rg"),
            (" a b ", "%20a b%20"),
            ("票", "%E7%A5%A8"),
        ] {
            let note = OperatorNote {
                by: Some(text.into()),
                reason: None,
            };
            let headers: Vec<_> = headers(&note).collect();
            assert_eq!(headers, [(BY_HEADER, value.to_owned())]);
            assert_eq!(read(BY_HEADER, value).unwrap(), text.into());
        }
        // Who sends it as it is, is understood, too.
        assert_eq!(read(BY_HEADER, "Jörg").unwrap(), "Jörg".into());
    }

    #[test]
    fn what_is_no_note_is_refused() {
        let long = "x".repeat(KICK_TEXT_BYTES_MAX + 1);
        for (value, says) in [
            (&*long, "1 to 128 bytes"),
            ("", "1 to 128 bytes"),
            ("a%0Ab", "no control characters"),
            ("%", "percent-encoded"),
            ("%4", "percent-encoded"),
            ("%zz", "percent-encoded"),
            ("%FF", "percent-encoded"),
        ] {
            let error = read(REASON_HEADER, value).unwrap_err().message;
            assert!(
                error.starts_with(REASON_HEADER) && error.contains(says),
                "{error}"
            );
        }
    }
}
