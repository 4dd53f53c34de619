//! What nodes add to the requests that they forward.

use nowserving_engine::{ForwardTry, LeaderTime};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{TIMEOUT_HEADER, TRACEPARENT_HEADER};
use nowserving_shard::requests::{Origin, RequestId};

use crate::who::USER_HEADER;

/// The time of a forward on the leader's clock: `<start, hexadecimal>-<microseconds>`.
pub const SENT_AT_HEADER: &str = "Nowserving-Leader-Time";

/// The call that a forwarded write belongs to: `c` (named by its client) or `f` (named by the forwarding
/// node), and the key in hexadecimal.
pub const REQUEST_KEY_HEADER: &str = "Nowserving-Request-Key";

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

/// `1` on a write that the leader may have too, as it came on its shard's own subject.
pub const SHARED_HEADER: &str = "Nowserving-Shared";

/// Reads [`SHARED_HEADER`].
///
/// # Errors
/// `bad_request`, which says how it must be.
pub fn shared(text: &str) -> Result<bool, ApiError> {
    let is_one = (text == "1").then_some(true);
    is_one.ok_or_else(|| ApiError::bad_request(format!("{SHARED_HEADER}: must be 1 or absent")))
}

/// Digits only: `from_str_radix` takes a sign, too.
fn number(text: &str, radix: u32, digits_max: usize) -> Option<u128> {
    let fits = text.len() <= digits_max && text.chars().all(|it| it.is_digit(radix));
    fits.then(|| u128::from_str_radix(text, radix).ok())?
}

/// The headers of a try.
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
    if let Some(user) = &it.user {
        headers.push((USER_HEADER, user.to_string()));
    }
    if it.shared {
        headers.push((SHARED_HEADER, "1".to_owned()));
    }
    if let Some(trace) = &it.trace {
        headers.push((TRACEPARENT_HEADER, trace.for_the_next()));
    }
    headers
}

/// What nodes add to a request that they forward.
pub const HEADERS: [&str; 4] = [
    SENT_AT_HEADER,
    REQUEST_KEY_HEADER,
    SHARED_HEADER,
    USER_HEADER,
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_engine::ForwardId;
    use nowserving_line::LineName;

    use super::*;

    fn a_try(id: u64) -> ForwardTry {
        ForwardTry {
            id: ForwardId(id),
            shard: 3,
            line: LineName::try_from("shop").unwrap(),
            op: "enter",
            admin: false,
            user: None,
            payload: "{}".into(),
            timeout_ms: 20_000,
            request_id: Some(RequestId {
                key: 0xab,
                origin: Origin::Forwarder,
            }),
            sent_at: Some(LeaderTime { start: 31, us: 7 }),
            shared: false,
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
                    ..a_try(1)
                });
                let text = |name| &headers.iter().find(|(it, _)| *it == name).unwrap().1;
                assert_eq!(shared(text(SHARED_HEADER)), Ok(true));
                assert_eq!(request_id(text(REQUEST_KEY_HEADER)), Ok(id));
                assert_eq!(sent_at(text(SENT_AT_HEADER)), Ok(time));
            }
        }
    }
}
