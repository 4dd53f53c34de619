//! The cluster's answers, as Envoy reads them.

use nowserving_client::limits::{CheckReply, DescriptorReply};
use nowserving_tower::{rate_limit_fields, shown_remaining};

use crate::pb::{Code, DescriptorStatus, HeaderValue, RateLimit, RateLimitResponse, Unit};

/// The response to a request that was decided.
pub fn decided(reply: &CheckReply, with_headers: bool) -> RateLimitResponse {
    let statuses = reply.descriptors.iter().map(status).collect();
    let headers = match with_headers {
        true => rate_limit_fields(reply),
        false => Vec::new(),
    };
    let headers = headers.into_iter().map(|(key, value)| HeaderValue {
        key: key.to_owned(),
        value,
    });
    RateLimitResponse {
        overall_code: code(reply.allowed).into(),
        statuses,
        response_headers_to_add: headers.collect(),
    }
}

/// The response to a request that was not: the same for all its descriptors.
pub fn undecided(allowed: bool, descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: code(allowed).into(),
        ..DescriptorStatus::default()
    };
    RateLimitResponse {
        overall_code: code(allowed).into(),
        statuses: vec![status; descriptors],
        response_headers_to_add: Vec::new(),
    }
}

fn status(descriptor: &DescriptorReply) -> DescriptorStatus {
    // As Lyft's: a limit in shadow mode is never over.
    let allowed = descriptor.allowed || descriptor.shadow;
    let current_limit = descriptor.limit.map(|requests_per_unit| RateLimit {
        requests_per_unit,
        unit: unit(descriptor.unit.as_deref()).into(),
        name: descriptor.name.clone().unwrap_or_default(),
    });
    // Of a refusal, when the same request passes: a bucket has room long before it is full.
    let reset_ms = match allowed {
        true => descriptor.reset_ms,
        false => descriptor.retry_after_ms.or(descriptor.reset_ms),
    };
    DescriptorStatus {
        code: code(allowed).into(),
        current_limit,
        limit_remaining: shown_remaining(descriptor.limit, descriptor.remaining).unwrap_or(0),
        duration_until_reset: reset_ms.map(duration),
    }
}

fn code(allowed: bool) -> Code {
    match allowed {
        true => Code::Ok,
        false => Code::OverLimit,
    }
}

fn unit(name: Option<&str>) -> Unit {
    match name {
        Some("second") => Unit::Second,
        Some("minute") => Unit::Minute,
        Some("hour") => Unit::Hour,
        Some("day") => Unit::Day,
        Some("week") => Unit::Week,
        Some("month") => Unit::Month,
        Some("year") => Unit::Year,
        _ => Unit::Unknown,
    }
}

fn duration(ms: u64) -> prost_types::Duration {
    let nanos = (ms % 1_000) as i32 * 1_000_000;
    prost_types::Duration {
        seconds: i64::try_from(ms / 1_000).unwrap_or(i64::MAX),
        nanos,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(allowed: bool, unit: &str) -> DescriptorReply {
        DescriptorReply {
            allowed,
            limit: Some(10),
            unit: Some(unit.to_owned()),
            name: Some("by_ip".to_owned()),
            remaining: Some(4),
            reset_ms: Some(1_250),
            ..DescriptorReply::default()
        }
    }

    #[test]
    fn statuses_say_what_is_left() {
        let shadow = DescriptorReply {
            shadow: true,
            ..limited(false, "week")
        };
        let free = DescriptorReply {
            allowed: true,
            unmatched: true,
            ..DescriptorReply::default()
        };
        let reply = CheckReply {
            allowed: false,
            descriptors: vec![limited(false, "month"), shadow, free],
            ..CheckReply::default()
        };
        let response = decided(&reply, false);
        assert_eq!(response.overall_code(), Code::OverLimit);
        let codes = response.statuses.iter().map(DescriptorStatus::code);
        let codes: Vec<_> = codes.collect();
        assert_eq!(codes, [Code::OverLimit, Code::Ok, Code::Ok]);
        let expected = DescriptorStatus {
            code: Code::OverLimit.into(),
            current_limit: Some(RateLimit {
                requests_per_unit: 10,
                unit: Unit::Month.into(),
                name: "by_ip".to_owned(),
            }),
            limit_remaining: 4,
            duration_until_reset: Some(prost_types::Duration {
                seconds: 1,
                nanos: 250_000_000,
            }),
        };
        assert_eq!(response.statuses.first(), Some(&expected));
        let free = response
            .statuses
            .last()
            .map(|it| it.current_limit.is_none());
        assert_eq!(free, Some(true));
        assert!(response.response_headers_to_add.is_empty());
    }

    /// Envoy puts both into one field: `X-RateLimit-Limit: 2, 2;w=1` beside `X-RateLimit-Remaining: 4` is none.
    #[test]
    fn no_more_remains_than_the_limit() {
        let bucket = DescriptorReply {
            limit: Some(2),
            burst: Some(5),
            ..limited(true, "second")
        };
        let reply = CheckReply {
            allowed: true,
            limit: bucket.limit,
            remaining: bucket.remaining,
            descriptors: vec![bucket],
            ..CheckReply::default()
        };
        let response = decided(&reply, true);
        let remaining = response.statuses.first().map(|it| it.limit_remaining);
        assert_eq!(remaining, Some(2));
        let mut headers = response.response_headers_to_add.iter();
        let remaining = headers.find(|it| it.key == "x-ratelimit-remaining");
        assert_eq!(remaining.map(|it| it.value.as_str()), Some("2"));
    }

    #[test]
    fn headers_are_those_of_the_layer() {
        let reply = CheckReply {
            allowed: false,
            limit: Some(10),
            remaining: Some(4),
            retry_after_ms: Some(1_001),
            descriptors: vec![limited(false, "second")],
            ..CheckReply::default()
        };
        let headers = decided(&reply, true).response_headers_to_add;
        let headers = headers
            .iter()
            .map(|it| (it.key.as_str(), it.value.as_str()));
        let expected = [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "4"),
            ("x-ratelimit-retry-after", "2"),
            ("retry-after", "2"),
            ("ratelimit-policy", "\"by_ip\";q=10;w=1"),
            ("ratelimit", "\"by_ip\";r=4;t=2"),
        ];
        assert_eq!(headers.collect::<Vec<_>>(), expected);
    }
}
