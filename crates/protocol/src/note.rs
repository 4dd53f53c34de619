//! Who asks for a change of an operator, and why: `by` and `reason` of operators' requests.

use nowserving_line::{KICK_TEXT_BYTES_MAX, OperatorNote};

use crate::error::ApiError;

/// The note of a request with these fields; `None` if it has neither.
///
/// # Errors
/// `bad_request` that names the field: each has at most 128 bytes and no control characters.
pub fn operator_note(
    by: Option<String>,
    reason: Option<String>,
) -> Result<Option<OperatorNote>, ApiError> {
    for (field, text) in [("by", &by), ("reason", &reason)] {
        let Some(text) = text else { continue };
        if text.len() > KICK_TEXT_BYTES_MAX {
            return Err(ApiError::bad_request(format!(
                "{field}: at most {KICK_TEXT_BYTES_MAX} bytes"
            )));
        }
        if text.chars().any(char::is_control) {
            return Err(ApiError::bad_request(format!(
                "{field}: no control characters"
            )));
        }
    }
    let note = OperatorNote {
        by: by.map(Into::into),
        reason: reason.map(Into::into),
    };
    Ok((!note.is_empty()).then_some(note))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_note_has_bounds_and_no_control_characters() {
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(operator_note(None, None).unwrap(), None);
        let note = operator_note(text("ann"), None).unwrap().unwrap();
        assert_eq!((note.by.as_deref(), note.reason), (Some("ann"), None));
        let long = "x".repeat(KICK_TEXT_BYTES_MAX + 1);
        for (by, reason, says) in [
            (text(&long), None, "by: at most 128 bytes"),
            (None, text(&long), "reason: at most 128 bytes"),
            (text("a\nb"), None, "by: no control characters"),
        ] {
            assert_eq!(operator_note(by, reason).unwrap_err().message, says);
        }
    }
}
