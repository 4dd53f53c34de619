//! Requests that the engine forwards: one request each, to the subject on which only the shard's leader listens.
//! Whether another try is made is the engine's decision.

use bytes::Bytes;
use nowserving_engine::{ForwardResult, ForwardTry, LeaderTime, RelayedAnswer};
use nowserving_protocol::codec::decode;
use nowserving_protocol::error::{ApiError, Code, ErrorReply};
use nowserving_protocol::header::{ERROR_CODE_HEADER, TIMEOUT_HEADER, TRACEPARENT_HEADER};
use nowserving_protocol::note;
use nowserving_protocol::subject::Subjects;
use nowserving_shard::requests::{Origin, RequestId};

/// Below the prefix: the subjects on which nodes forward requests. Only the leader listens there, while on a
/// shard's own subject a node that is cut off from its peers listens too, and would answer a request that
/// the leader has taken.
const FORWARD_WORD: &str = "forward";

/// The time of a forward on the leader's clock: `<start, hexadecimal>-<microseconds>`.
pub const SENT_AT_HEADER: &str = "Nowserving-Leader-Time";

/// The call that a forwarded write belongs to: `c` (named by its client) or `f` (named by the forwarding
/// node), and the key in hexadecimal.
pub const REQUEST_KEY_HEADER: &str = "Nowserving-Request-Key";

/// `1` on a write that the leader may have too, as it came on its shard's own subject.
pub const SHARED_HEADER: &str = "Nowserving-Shared";

/// Of a write that its client named, the leader's term as the forwarding node knows it.
pub const TERM_HEADER: &str = "Nowserving-Leader-Term";

/// What nodes add to a request that they forward.
pub const HEADERS: [&str; 4] = [
    SENT_AT_HEADER,
    REQUEST_KEY_HEADER,
    SHARED_HEADER,
    TERM_HEADER,
];

/// The subjects on which nodes forward.
///
/// # Errors
/// The prefix is too long.
pub fn subjects(of: &Subjects) -> Result<Subjects, ApiError> {
    Subjects::new(format!("{}.{FORWARD_WORD}", of.prefix()))
}

/// What is sent with a try.
#[must_use]
pub fn headers(it: &ForwardTry) -> Vec<(&'static str, String)> {
    // The leader takes its deadline from this one, and so speaks before the engine gives up.
    let mut headers = vec![(TIMEOUT_HEADER, it.timeout_ms.to_string())];
    if let Some(RequestId { key, origin }) = it.request_id {
        let origin = if origin == Origin::Client { 'c' } else { 'f' };
        headers.push((REQUEST_KEY_HEADER, format!("{origin}{key:032x}")));
    }
    if let Some(LeaderTime { start, us }) = it.sent_at {
        headers.push((SENT_AT_HEADER, format!("{start:x}-{us}")));
    }
    headers.extend(it.note.iter().flat_map(|it| note::headers(it)));
    if it.shared {
        headers.push((SHARED_HEADER, "1".to_owned()));
    }
    if let Some(term) = it.term {
        headers.push((TERM_HEADER, term.to_string()));
    }
    if let Some(trace) = &it.trace {
        headers.push((TRACEPARENT_HEADER, trace.for_the_next()));
    }
    headers
}

/// The length of headers on the wire.
#[must_use]
pub fn wire_bytes(headers: &[(&'static str, String)]) -> usize {
    let lines = headers.iter();
    let lines = lines.map(|(name, value)| name.len() + value.len() + ": \r\n".len());
    "NATS/1.0\r\n\r\n".len() + lines.sum::<usize>()
}

/// The result of a try that was answered with this.
#[must_use]
pub fn answered(headers: Vec<(String, String)>, payload: Bytes) -> ForwardResult {
    let is_error = headers.iter().any(|(name, _)| name == ERROR_CODE_HEADER);
    let error = is_error.then(|| {
        let reply: Result<ErrorReply, _> = decode(&payload);
        reply.map_or(Code::Unknown, |reply| reply.error.code)
    });
    ForwardResult::Answered {
        error,
        answer: RelayedAnswer { headers, payload },
    }
}

/// Reads [`REQUEST_KEY_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn request_id(text: &str) -> Result<RequestId, ApiError> {
    let read = || {
        let (origin, key) = text.split_at_checked(1)?;
        let origin = match origin {
            "c" => Origin::Client,
            "f" => Origin::Forwarder,
            _ => return None,
        };
        let key = number(key, 16, 32)?;
        Some(RequestId { key, origin })
    };
    read().ok_or_else(|| {
        ApiError::bad_request(format!(
            "{REQUEST_KEY_HEADER}: must be c or f and 1 to 32 hexadecimal digits"
        ))
    })
}

/// Reads [`SENT_AT_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn sent_at(text: &str) -> Result<LeaderTime, ApiError> {
    let read = || {
        let (start, us) = text.split_once('-')?;
        Some(LeaderTime {
            start: number(start, 16, 16)?.try_into().ok()?,
            us: number(us, 10, 20)?.try_into().ok()?,
        })
    };
    read().ok_or_else(|| {
        ApiError::bad_request(format!(
            "{SENT_AT_HEADER}: must be 1 to 16 hexadecimal digits, a hyphen and microseconds up to {}",
            u64::MAX
        ))
    })
}

/// Reads [`SHARED_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn shared(text: &str) -> Result<bool, ApiError> {
    let is_one = (text == "1").then_some(true);
    is_one.ok_or_else(|| ApiError::bad_request(format!("{SHARED_HEADER}: must be 1 or absent")))
}

/// Reads [`TERM_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn term(text: &str) -> Result<u64, ApiError> {
    let read = number(text, 10, 20).and_then(|it| it.try_into().ok());
    read.ok_or_else(|| ApiError::bad_request(format!("{TERM_HEADER}: must be 0 to {}", u64::MAX)))
}

/// Digits only: `from_str_radix` takes a sign, too.
fn number(text: &str, radix: u32, digits_max: usize) -> Option<u128> {
    let fits = text.len() <= digits_max && text.chars().all(|it| it.is_digit(radix));
    fits.then(|| u128::from_str_radix(text, radix).ok())?
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::ForwardId;
    use nowserving_line::LineName;
    use nowserving_protocol::operation::Operation;

    use super::*;

    fn a_try(id: u64) -> ForwardTry {
        ForwardTry {
            id: ForwardId(id),
            shard: 3,
            line: LineName::try_from("shop").unwrap(),
            op: Operation::Enter,
            note: None,
            payload: "{}".into(),
            timeout_ms: 20_000,
            request_id: None,
            sent_at: None,
            shared: false,
            term: None,
            trace: None,
        }
    }

    #[test]
    fn the_greatest_ids_and_times_are_read_as_they_were_written() {
        for key in [0, 1, u128::MAX] {
            for origin in [Origin::Client, Origin::Forwarder] {
                let id = RequestId { key, origin };
                let (start, us) = (key as u64, key as u64);
                let time = LeaderTime { start, us };
                let headers = headers(&ForwardTry {
                    request_id: Some(id),
                    sent_at: Some(time),
                    shared: true,
                    term: Some(start),
                    ..a_try(1)
                });
                let text = |name| {
                    let mut lines = headers.iter().filter(|it| it.0 == name);
                    lines.next().unwrap().1.as_str()
                };
                assert_eq!(shared(text(SHARED_HEADER)), Ok(true));
                assert_eq!(request_id(text(REQUEST_KEY_HEADER)), Ok(id));
                assert_eq!(sent_at(text(SENT_AT_HEADER)), Ok(time));
                assert_eq!(term(text(TERM_HEADER)), Ok(start));
            }
        }
    }

    #[test]
    fn the_error_of_an_answer_is_read() {
        let refused = br#"{"error":{"code":"not_leader","message":"m"}}"#;
        for (header, payload, expected) in [
            ("A", &br#"{"token":1}"#[..], None),
            (ERROR_CODE_HEADER, &refused[..], Some(Code::NotLeader)),
            // Only what has the header is an error, whatever is in it.
            ("A", &refused[..], None),
            (ERROR_CODE_HEADER, &b"nonsense"[..], Some(Code::Unknown)),
        ] {
            let headers = vec![(header.to_owned(), "1".to_owned())];
            let result = answered(headers, Bytes::from_static(payload));
            assert!(
                matches!(result, ForwardResult::Answered { error, .. } if error == expected),
                "{result:?}"
            );
        }
    }
}
