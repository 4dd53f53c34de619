//! The NATS headers of the contract. A request has its deadline; a write also says when it was sent and
//! to which call it belongs, so that it takes effect once and in time. An error reply has the error.

use std::fmt;

use nowserving_line::NUMBER_MAX;

use crate::error::ApiError;

/// The deadline of a request: milliseconds from its arrival.
pub const TIMEOUT_HEADER: &str = "Nowserving-Timeout-Ms";
/// The deadline of a request without [`TIMEOUT_HEADER`], in milliseconds.
pub const TIMEOUT_DEFAULT_MS: u64 = 2_000;
/// On an error reply: the error, for NATS's own tools.
pub const ERROR_HEADER: &str = "Nats-Service-Error";
/// On an error reply: [`crate::error::Code::http`].
pub const ERROR_CODE_HEADER: &str = "Nats-Service-Error-Code";
/// When a request was sent: the sender's wall clock, in milliseconds since 1970. Each repetition
/// has its own.
pub const SENT_MS_HEADER: &str = "Nowserving-Sent-Ms";
/// The call that a request belongs to: [`RequestId`]. Every repetition has the same.
pub const REQUEST_ID_HEADER: &str = "Nowserving-Request-Id";
/// Longest [`RequestId`], in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// Names one call of one client: 1 to 64 visible ASCII characters, unique within the cluster for as
/// long as the cluster remembers it. A second request with the same id is a copy of the first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Box<str>);

impl RequestId {
    /// The id with this text; `bad_request` unless it has 1 to 64 visible ASCII characters.
    pub fn new(text: &str) -> Result<RequestId, ApiError> {
        let fits = (1..=REQUEST_ID_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            return Err(ApiError::bad_request(format!(
                "{REQUEST_ID_HEADER}: must be 1 to {REQUEST_ID_BYTES_MAX} visible ASCII characters"
            )));
        }
        Ok(RequestId(text.into()))
    }

    /// The id of 128 bits, which the caller drew at random.
    pub fn from_bits(bits: u128) -> RequestId {
        RequestId(format!("{bits:032x}").into())
    }

    /// The id as the header carries it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RequestId({})", self.0)
    }
}

/// Reads the value of [`SENT_MS_HEADER`]; `bad_request` unless it is a whole number up to 2⁵³.
pub fn parse_sent_ms(text: &str) -> Result<u64, ApiError> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse()
        .ok()
        .filter(|ms| is_digits && *ms <= NUMBER_MAX)
        .ok_or_else(|| {
            ApiError::bad_request(format!(
                "{SENT_MS_HEADER}: must be milliseconds since 1970, 0 to {NUMBER_MAX}"
            ))
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::Code;

    #[test]
    fn a_request_id_is_up_to_64_visible_ascii_characters() {
        for good in ["a", "~!order:4711/2", &"x".repeat(64)] {
            assert_eq!(RequestId::new(good).unwrap().as_str(), good);
        }
        for bad in ["", " a", "a b", "a\n", "é", "\u{7f}", &"x".repeat(65)] {
            let error = RequestId::new(bad).unwrap_err();
            assert_eq!(error.code, Code::BadRequest, "{bad:?}");
            for part in [REQUEST_ID_HEADER, "1 to 64 visible ASCII"] {
                assert!(error.message.contains(part), "{bad:?}: {}", error.message);
            }
        }
    }

    #[test]
    fn an_id_of_random_bits_is_a_valid_one() {
        for bits in [0, 1, u128::MAX] {
            let id = RequestId::from_bits(bits);
            assert_eq!(RequestId::new(id.as_str()).unwrap(), id);
        }
        assert_ne!(RequestId::from_bits(1), RequestId::from_bits(2));
    }

    #[test]
    fn the_time_of_sending_is_a_whole_number() {
        assert_eq!(parse_sent_ms("0"), Ok(0));
        assert_eq!(parse_sent_ms("1766222333444"), Ok(1_766_222_333_444));
        assert_eq!(parse_sent_ms(&NUMBER_MAX.to_string()), Ok(NUMBER_MAX));
        let beyond = (NUMBER_MAX + 1).to_string();
        for bad in ["", "-1", "+1", "1.5", "1e3", " 1", "soon", &beyond] {
            let error = parse_sent_ms(bad).unwrap_err();
            assert_eq!(error.code, Code::BadRequest, "{bad:?}");
            for part in [SENT_MS_HEADER, &NUMBER_MAX.to_string()] {
                assert!(error.message.contains(part), "{bad:?}: {}", error.message);
            }
        }
    }
}
