//! The NATS headers of the contract. A request has its deadline; a write also says when it was sent and
//! to which call it belongs, so that it takes effect once and in time. An error reply has the error.

use std::fmt;

use nowserving_line::NUMBER_MAX;

use crate::error::ApiError;
use crate::wrong::nearest;

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
/// Who asks for a change, on operators' requests: see [`crate::note`].
pub const BY_HEADER: &str = "Nowserving-By";
/// Why.
pub const REASON_HEADER: &str = "Nowserving-Reason";
/// Begins the names of the contract's headers of requests, which NATS tells apart by their case, too.
const OWN_PREFIX: &str = "nowserving-";
const REQUEST_HEADERS: [&str; 5] = [
    TIMEOUT_HEADER,
    SENT_MS_HEADER,
    REQUEST_ID_HEADER,
    BY_HEADER,
    REASON_HEADER,
];
/// Longest [`RequestId`], in bytes.
pub const REQUEST_ID_BYTES_MAX: usize = 64;

/// Checks the name of a request's header, as those of its fields are: one that is misspelt would change what happens.
/// Other names than `Nowserving-…` belong to others. `bad_request` names the header and the one that may be meant.
pub fn check_name(name: &str) -> Result<(), ApiError> {
    let begin = name.as_bytes().get(..OWN_PREFIX.len());
    let is_ours = begin.is_some_and(|it| it.eq_ignore_ascii_case(OWN_PREFIX.as_bytes()));
    if !is_ours || REQUEST_HEADERS.contains(&name) {
        return Ok(());
    }
    let hint = match nearest(name, &REQUEST_HEADERS) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("there are {}", REQUEST_HEADERS.join(", ")),
    };
    Err(ApiError::bad_request(format!(
        "{name}: no header of a request; {hint}"
    )))
}

/// The trace that a request is a part of: `traceparent` of <https://www.w3.org/TR/trace-context/>.
pub const TRACEPARENT_HEADER: &str = "traceparent";

/// The trace of a request, with the span that the node records for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    /// The trace; not 0.
    pub trace_id: u128,
    /// The sender's span; not 0.
    pub parent_span: u64,
    /// The node's own span, which the caller drew at random; not 0.
    pub span: u64,
}

impl TraceContext {
    /// Reads a value of [`TRACEPARENT_HEADER`]. `None` if its sender does not record the trace, or if it is malformed:
    /// by the standard the request is then served as one without it.
    pub fn read(text: &str, span: u64) -> Option<TraceContext> {
        let mut fields = text.split('-');
        let [version, trace_id, parent_span, flags] = [(); 4].map(|()| fields.next());
        let version = hex(version?, 2)?;
        // Later versions may have more fields behind these four.
        if version == 0xff || (version == 0 && fields.next().is_some()) {
            return None;
        }
        let sampled = hex(flags?, 2)? & 1 == 1;
        let it = TraceContext {
            trace_id: hex(trace_id?, 32)?,
            parent_span: u64::try_from(hex(parent_span?, 16)?).ok()?,
            span,
        };
        (sampled && it.trace_id != 0 && it.parent_span != 0 && span != 0).then_some(it)
    }

    /// The value of [`TRACEPARENT_HEADER`] for a request that this one causes.
    pub fn for_the_next(&self) -> String {
        format!("00-{:032x}-{:016x}-01", self.trace_id, self.span)
    }
}

/// Exactly so many lower-case hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let fits = text.len() == digits && text.bytes().all(is_hex);
    fits.then(|| u128::from_str_radix(text, 16).ok())?
}

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
    fn misspelt_names_of_headers_are_refused() {
        for good in [TIMEOUT_HEADER, "traceparent", "X-Trace", "Nats-Msg-Id", ""] {
            assert_eq!(check_name(good), Ok(()));
        }
        for (wrong, meant) in [
            ("nowserving-sent-ms", SENT_MS_HEADER),
            ("Nowserving-Sent-MS", SENT_MS_HEADER),
            ("Nowserving-Timeout", TIMEOUT_HEADER),
            ("Nowserving-RequestId", REQUEST_ID_HEADER),
            ("Nowserving-Reasons", REASON_HEADER),
        ] {
            let refused = check_name(wrong).unwrap_err().message;
            let expected = format!("{wrong}: no header of a request; did you mean {meant}?");
            assert_eq!(refused, expected);
        }
    }

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

    #[test]
    fn a_traceparent_is_read_and_passed_on() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let it = TraceContext::read(text, 9).unwrap();
        assert_eq!(it.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!(it.parent_span, 0x00f0_67aa_0ba9_02b7);
        let next = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000009-01";
        assert_eq!(it.for_the_next(), next);
        assert_eq!(
            TraceContext::read(&format!("{text}-x").replacen("00", "01", 1), 9),
            Some(it)
        );
    }

    #[test]
    fn a_malformed_or_unrecorded_trace_is_none() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-+bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceContext::read(text, 9), None, "{text}");
        }
    }
}
