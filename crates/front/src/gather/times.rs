//! By when a request must be answered, for which this node asks others.

use std::time::Duration;

use nowserving_engine::refusals::{late, late_by_header};
use nowserving_engine::{Now, left_by_sender_ms};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::{SENT_MS_HEADER, parse_sent_ms};
use nowserving_shard::clock::Micros;

use crate::Message;
use crate::parse::{deadline, header};

/// The requests that a node makes have times of their own, so the nodes that take those cannot tell that the one behind them
/// came late. One that lay unread is refused as it is [routed](crate::routes::route); the sender's clock is compared here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub until: Micros,
    /// Or how long ago the message was sent, in ms: too long.
    writes_until: Result<Micros, u64>,
}

impl Times {
    /// Of a message that is read now.
    ///
    /// # Errors
    /// `bad_request`: a header cannot be read.
    pub fn of(message: &Message<'_>, now: Now) -> Result<Self, ApiError> {
        let sent_ms = header(message, SENT_MS_HEADER, parse_sent_ms)?;
        let until = deadline(message, now.us)?;
        let timeout = Duration::from_micros(until - now.us);
        let writes_until = match left_by_sender_ms(sent_ms, timeout, now) {
            Some(left_ms) => Ok(until.min(now.us.saturating_add(left_ms.saturating_mul(1_000)))),
            None => Err(now.wall_ms.saturating_sub(sent_ms.unwrap_or_default())),
        };
        Ok(Times {
            until,
            writes_until,
        })
    }

    /// Until when writes may be sent.
    ///
    /// # Errors
    /// `unavailable`: by its sender's clock it comes too late.
    pub fn for_writes(&self) -> Result<Micros, ApiError> {
        self.writes_until
            .map_err(|ago_ms| late_by_header(late(), ago_ms))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_protocol::error::Code;
    use nowserving_protocol::header::TIMEOUT_HEADER;

    use super::*;
    use crate::parse::TIMEOUT_MAX_MS;
    use crate::testing::Owned;

    const NOW: Now = Now {
        us: 7_000_000,
        wall_ms: 1_766_222_333_444,
    };

    fn with(headers: &[(&str, &str)]) -> Result<Times, ApiError> {
        let mut message = Owned::new("nowserving.limit.shop.check", Vec::new());
        for (name, value) in headers {
            message = message.with(name, value);
        }
        Times::of(&message.view(), NOW)
    }

    fn sent(ms_ago: u64) -> Times {
        let sent_ms = (NOW.wall_ms - ms_ago).to_string();
        with(&[(SENT_MS_HEADER, sent_ms.as_str())]).unwrap()
    }

    /// Both headers, a line each.
    #[test]
    fn fuzz_times() {
        let seeds = ["5000\n1766222333444", "1\n0", "60000\n9007199254740992"];
        let seeds = seeds.map(|text| text.as_bytes().to_vec());
        nowserving_testkit::target!(seeds.into(), |bytes| {
            let text = String::from_utf8_lossy(bytes);
            let names = [TIMEOUT_HEADER, SENT_MS_HEADER];
            let headers: Vec<_> = names.into_iter().zip(text.lines()).collect();
            if let Ok(times) = with(&headers) {
                assert!(times.until <= NOW.us + TIMEOUT_MAX_MS * 1_000);
            }
        });
    }

    #[test]
    fn what_was_sent_long_ago_writes_nothing() {
        let fresh = sent(0);
        assert_eq!(fresh.for_writes(), Ok(fresh.until));
        let error = sent(60_000).for_writes().unwrap_err();
        let known = (error.code, error.retry_after_ms);
        assert_eq!(known, (Code::Unavailable, None));
        assert!(error.message.starts_with(SENT_MS_HEADER), "{error}");
        // Timeout, a second and the tolerance for clocks make 7.9 s.
        let held_back = sent(7_000);
        assert!(held_back.for_writes().unwrap() < held_back.until);
    }

    #[test]
    fn headers_must_be_readable() {
        for (name, value) in [(SENT_MS_HEADER, "yesterday"), (TIMEOUT_HEADER, "0")] {
            let error = with(&[(name, value)]).unwrap_err();
            assert_eq!(error.code, Code::BadRequest);
            assert!(error.message.starts_with(name), "{error}");
        }
    }
}
