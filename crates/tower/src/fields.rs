//! The header fields of a response to a limited request.

use std::collections::BTreeSet;

use nowserving_client::limits::{CheckReply, DescriptorReply};

/// The header fields by which a client learns of its limits: names in lower case, and values of visible ASCII.
///
/// `x-ratelimit-limit` and `x-ratelimit-remaining` are of the limit that is nearest to its end. `ratelimit-policy` and
/// `ratelimit` have all limits of the request; they are those of the IETF's draft-ietf-httpapi-ratelimit-headers-11.
/// What remains is never told as more than the limit beside it, which is how many requests pass in its time again and again: a
/// bucket with a larger `burst` can hold more, and then lets more through than it tells. (A server may tell less than it allows, as
/// those drafts have it, and clients take a remainder over the limit for a mistake.)
/// A request over its limit also gets `x-ratelimit-retry-after` and `retry-after`, in seconds, unless it can never pass.
#[must_use]
pub fn rate_limit_fields(reply: &CheckReply) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    let mut add = |name, value: Option<String>| fields.extend(value.map(|value| (name, value)));
    add("x-ratelimit-limit", reply.limit.map(|it| it.to_string()));
    add(
        "x-ratelimit-remaining",
        shown_remaining(reply.limit, reply.remaining).map(|it| it.to_string()),
    );
    if !reply.allowed {
        // At least a second: with 0 a client would come again at once.
        let seconds = reply
            .retry_after_ms
            .map(|ms| seconds(ms).max(1).to_string());
        add("x-ratelimit-retry-after", seconds.clone());
        add("retry-after", seconds);
    }
    let (policies, states) = items(&reply.descriptors);
    add("ratelimit-policy", list(&policies));
    add("ratelimit", list(&states));
    fields
}

/// What remains, as it is shown beside a limit: at most that.
#[must_use]
pub fn shown_remaining(limit: Option<u32>, remaining: Option<u32>) -> Option<u32> {
    let most = limit.unwrap_or(u32::MAX);
    remaining.map(|remaining| remaining.min(most))
}

/// One item of each list for every limit that can refuse.
fn items(descriptors: &[DescriptorReply]) -> (Vec<String>, Vec<String>) {
    let mut taken = BTreeSet::new();
    let mut policies = Vec::new();
    let mut states = Vec::new();
    for descriptor in descriptors.iter().filter(|it| !it.shadow) {
        let Some(limit) = descriptor.limit else {
            continue;
        };
        let name = name(descriptor, limit, &mut taken);
        let window = descriptor.unit.as_deref().and_then(window_s);
        let window = window.map(|s| format!(";w={s}")).unwrap_or_default();
        policies.push(format!("{name};q={limit}{window}"));
        let Some(remaining) = shown_remaining(descriptor.limit, descriptor.remaining) else {
            continue;
        };
        let more = more_in_ms(descriptor).map(|ms| format!(";t={}", seconds(ms)));
        let more = more.unwrap_or_default();
        states.push(format!("{name};r={remaining}{more}"));
    }
    (policies, states)
}

/// Within which time no more than `r` pass. A client that keeps to it must not wait for a whole bucket or window if there is
/// room for its request earlier.
fn more_in_ms(descriptor: &DescriptorReply) -> Option<u64> {
    match descriptor.allowed {
        true => descriptor.reset_ms,
        false => descriptor.retry_after_ms.or(descriptor.reset_ms),
    }
}

/// The rule's name, or what it allows, as a string of a structured field. A name that was taken gets a number.
fn name(descriptor: &DescriptorReply, limit: u32, taken: &mut BTreeSet<String>) -> String {
    let unit = descriptor.unit.as_deref().unwrap_or("unit");
    let named = descriptor.name.as_deref().map(visible);
    let named = named.filter(|name| !name.is_empty());
    let name = named.unwrap_or_else(|| format!("{limit}-per-{unit}"));
    let numbered = (2..).map(|nth| format!("{name}-{nth}"));
    let mut free = std::iter::once(name.clone()).chain(numbered);
    let name = free.find(|name| taken.insert(name.clone())).unwrap_or(name);
    quoted(&name)
}

/// RFC 9651: strings have visible ASCII characters and spaces alone.
fn visible(name: &str) -> String {
    name.chars()
        .filter(|char| matches!(char, ' '..='~'))
        .collect()
}

fn quoted(name: &str) -> String {
    let mut quoted = String::from("\"");
    for char in name.chars() {
        if matches!(char, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(char);
    }
    quoted.push('"');
    quoted
}

/// Months and years have no one length.
fn window_s(unit: &str) -> Option<u32> {
    match unit {
        "second" => Some(1),
        "minute" => Some(60),
        "hour" => Some(3_600),
        "day" => Some(86_400),
        "week" => Some(604_800),
        _ => None,
    }
}

fn seconds(ms: u64) -> u64 {
    ms.div_ceil(1_000)
}

fn list(items: &[String]) -> Option<String> {
    (!items.is_empty()).then(|| items.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: Option<&str>, limit: u32, unit: &str) -> DescriptorReply {
        DescriptorReply {
            allowed: true,
            limit: Some(limit),
            unit: Some(unit.to_owned()),
            name: name.map(str::to_owned),
            remaining: Some(limit / 2),
            reset_ms: Some(59_001),
            ..DescriptorReply::default()
        }
    }

    fn reply(allowed: bool, descriptors: Vec<DescriptorReply>) -> CheckReply {
        CheckReply {
            allowed,
            limit: Some(10),
            remaining: Some(5),
            reset_ms: Some(59_001),
            retry_after_ms: (!allowed).then_some(1_200),
            descriptors,
            ..CheckReply::default()
        }
    }

    fn text(fields: &[(&str, String)]) -> String {
        let lines = fields
            .iter()
            .map(|(name, value)| format!("{name}: {value}"));
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_limit_that_can_refuse_is_listed() {
        let shadow = DescriptorReply {
            shadow: true,
            ..of(Some("shadow"), 1, "hour")
        };
        let unlimited = DescriptorReply {
            unlimited: true,
            ..DescriptorReply::default()
        };
        let descriptors = vec![
            of(Some("by \"ip\" \\ ä"), 10, "minute"),
            shadow,
            of(None, 7, "month"),
            unlimited,
            of(None, 7, "month"),
            of(Some("ä"), 8, "hour"),
            of(Some("ö"), 8, "hour"),
        ];
        let expected = r#"x-ratelimit-limit: 10
x-ratelimit-remaining: 5
ratelimit-policy: "by \"ip\" \\ ";q=10;w=60, "7-per-month";q=7, "7-per-month-2";q=7, "8-per-hour";q=8;w=3600, "8-per-hour-2";q=8;w=3600
ratelimit: "by \"ip\" \\ ";r=5;t=60, "7-per-month";r=3;t=60, "7-per-month-2";r=3;t=60, "8-per-hour";r=4;t=60, "8-per-hour-2";r=4;t=60"#;
        assert_eq!(
            text(&rate_limit_fields(&reply(true, descriptors))),
            expected
        );
    }

    /// 2 a second, and 4 of a burst of 5 are left.
    #[test]
    fn no_more_remains_than_the_limit_that_is_shown() {
        let bucket = DescriptorReply {
            burst: Some(5),
            remaining: Some(4),
            reset_ms: Some(500),
            ..of(Some("a"), 2, "second")
        };
        let reply = CheckReply {
            limit: Some(2),
            remaining: Some(4),
            ..reply(true, vec![bucket])
        };
        let expected = "x-ratelimit-limit: 2
x-ratelimit-remaining: 2
ratelimit-policy: \"a\";q=2;w=1
ratelimit: \"a\";r=2;t=1";
        assert_eq!(text(&rate_limit_fields(&reply)), expected);
    }

    #[test]
    fn a_refusal_says_when_to_come_again() {
        let over = DescriptorReply {
            allowed: false,
            retry_after_ms: Some(1_200),
            ..of(Some("a"), 10, "second")
        };
        let refused = reply(false, vec![over]);
        let expected = "x-ratelimit-limit: 10
x-ratelimit-remaining: 5
x-ratelimit-retry-after: 2
retry-after: 2
ratelimit-policy: \"a\";q=10;w=1
ratelimit: \"a\";r=5;t=2";
        assert_eq!(text(&rate_limit_fields(&refused)), expected);
        let never = CheckReply {
            retry_after_ms: None,
            ..refused
        };
        assert!(!text(&rate_limit_fields(&never)).contains("retry-after"));
    }

    #[test]
    fn without_a_limit_there_is_nothing_to_say() {
        let free = CheckReply {
            allowed: true,
            unmatched: true,
            descriptors: vec![DescriptorReply::default()],
            ..CheckReply::default()
        };
        assert!(rate_limit_fields(&free).is_empty());
    }
}
