#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{Request, StatusCode};
use nowserving_client::limits::{DescriptorReply, Entry};

use super::*;
use crate::response::GrpcResponses;

/// Three requests, and no more.
#[derive(Clone, Default)]
struct Three {
    asked: Arc<AtomicU64>,
    delay_ms: Option<u64>,
    fails: Option<Undecided>,
    /// What the SDK decides without the cluster.
    away: Option<CheckReply>,
}

impl Decide for Three {
    fn domain(&self) -> &str {
        "test"
    }

    async fn decide(&self, check: Check) -> Result<CheckReply, Undecided> {
        let before = self.asked.fetch_add(1, Ordering::SeqCst);
        if let Some(fails) = &self.fails {
            return Err(fails.clone());
        }
        if let Some(away) = &self.away {
            return Ok(away.clone());
        }
        let too_long_ms = self
            .delay_ms
            .unwrap_or(0)
            .checked_sub(check.max_delay_ms.unwrap());
        let too_long_ms = too_long_ms.filter(|ms| *ms > 0);
        let allowed = before < 3 && too_long_ms.is_none();
        let remaining = Some(3_u32.saturating_sub(before as u32 + 1));
        let descriptor = DescriptorReply {
            allowed,
            limit: Some(3),
            unit: Some("minute".to_owned()),
            name: Some(check.descriptors[0][0].value.clone()),
            remaining,
            reset_ms: Some(59_001),
            ..DescriptorReply::default()
        };
        Ok(CheckReply {
            allowed,
            limit: Some(3),
            remaining,
            reset_ms: Some(59_001),
            retry_after_ms: (!allowed).then_some(too_long_ms.unwrap_or(1_200)),
            delay_ms: self.delay_ms,
            descriptors: vec![descriptor],
            ..CheckReply::default()
        })
    }
}

#[derive(Clone)]
struct Page;

impl Service<Request<String>> for Page {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        let mut response = Response::new(request.body().clone());
        if let Some(own) = request.headers().get("own") {
            let name = HeaderName::from_static("x-ratelimit-limit");
            response.headers_mut().insert(name, own.clone());
        }
        std::future::ready(Ok(response))
    }
}

fn by_user(request: &Request<String>) -> Option<Check> {
    let user = request.headers().get("user")?.to_str().ok()?;
    Some(Check::new(vec![vec![Entry::new("user", user)]]))
}

fn request(user: &'static str) -> Request<String> {
    let request = Request::builder().header("user", user);
    request.body("page".to_owned()).unwrap()
}

fn header<'a>(response: &'a Response<String>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

#[tokio::test]
async fn each_response_says_what_is_left_and_the_refused_one_when_to_come_again() {
    let mut service = RateLimitLayer::new(Three::default(), by_user).layer(Page);
    for left in ["2", "1", "0"] {
        let response = service.call(request("a\"b")).await.unwrap();
        assert_eq!(response.body(), "page");
        assert_eq!(header(&response, "x-ratelimit-limit"), Some("3"));
        assert_eq!(header(&response, "x-ratelimit-remaining"), Some(left));
        let fields = ["ratelimit-policy", "ratelimit"].map(|name| header(&response, name));
        let left = format!(r#""a\"b";r={left};t=60"#);
        assert_eq!(fields, [Some(r#""a\"b";q=3;w=60"#), Some(left.as_str())]);
        assert_eq!(header(&response, "retry-after"), None);
    }
    let response = service.call(request("a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.body(), "too many requests\n");
    for name in ["retry-after", "x-ratelimit-retry-after"] {
        assert_eq!(header(&response, name), Some("2"), "{name}");
    }
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("0"));
}

#[tokio::test]
async fn without_descriptors_nothing_is_asked() {
    let limiter = Three::default();
    let mut service = RateLimitLayer::new(limiter.clone(), by_user).layer(Page);
    let response = service.call(Request::new("page".to_owned())).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert!(response.headers().is_empty(), "{response:?}");
    let none = |_: &Request<String>| Some(Check::new(Vec::new()));
    let mut service = RateLimitLayer::new(limiter.clone(), none).layer(Page);
    let response = service.call(request("a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(limiter.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_the_handler_says_of_a_limit_stays() {
    let mut service = RateLimitLayer::new(Three::default(), by_user).layer(Page);
    let request = Request::builder().header("user", "a").header("own", "77");
    let request = request.body(String::new()).unwrap();
    let response = service.call(request).await.unwrap();
    assert_eq!(header(&response, "x-ratelimit-limit"), Some("77"));
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("2"));
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_waits_and_not_for_too_long() {
    let limiter = Three {
        delay_ms: Some(700),
        ..Three::default()
    };
    let layer = RateLimitLayer::new(limiter, by_user);
    let begin = tokio::time::Instant::now();
    layer.layer(Page).call(request("a")).await.unwrap();
    assert_eq!(begin.elapsed(), Duration::from_millis(700));
    let layer = layer.longest_delay(Duration::from_millis(699));
    let refused = layer.layer(Page).call(request("a")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    for name in ["retry-after", "x-ratelimit-retry-after"] {
        assert_eq!(header(&refused, name), Some("1"), "{name}");
    }
    assert_eq!(header(&refused, "x-ratelimit-limit"), Some("3"));
    // Also in responses that do not set them.
    let plain = layer.respond_with(|_: &Blocked| Response::new(String::new()));
    let refused = plain.layer(Page).call(request("a")).await.unwrap();
    for name in ["retry-after", "x-ratelimit-retry-after"] {
        assert_eq!(header(&refused, name), Some("1"), "{name}");
    }
    assert_eq!(begin.elapsed(), Duration::from_millis(700));
}

/// As the limiter decides by `on_unavailable`.
#[tokio::test]
async fn while_the_cluster_is_away() {
    let without = |allowed, limit| CheckReply {
        allowed,
        limit,
        retry_after_ms: (!allowed).then_some(4_500),
        without_cluster: true,
        ..CheckReply::default()
    };
    for (away, status, retry_after, limit) in [
        (without(true, None), 200, None, None),
        (without(false, None), 503, Some("5"), None),
        (without(true, Some(7)), 200, None, Some("7")),
        (without(false, Some(7)), 429, Some("5"), Some("7")),
    ] {
        let limiter = Three {
            away: Some(away.clone()),
            ..Three::default()
        };
        let mut service = RateLimitLayer::new(limiter, by_user).layer(Page);
        let response = service.call(request("a")).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{away:?}");
        assert_eq!(header(&response, "retry-after"), retry_after, "{away:?}");
        assert_eq!(header(&response, "x-ratelimit-limit"), limit, "{away:?}");
    }
}

#[tokio::test]
async fn a_question_that_fails() {
    for (is_transient, status) in [(true, 503), (false, 500)] {
        let limiter = Three {
            fails: Some(Undecided {
                is_transient,
                why: "as the test wants".to_owned(),
                retry_after: None,
            }),
            ..Three::default()
        };
        let mut service = RateLimitLayer::new(limiter, by_user).layer(Page);
        let response = service.call(request("a")).await.unwrap();
        assert_eq!(response.status().as_u16(), status);
        assert!(!response.body().contains("test"), "{}", response.body());
    }
}

#[tokio::test]
async fn grpc() {
    let layer = RateLimitLayer::new(Three::default(), by_user).respond_with(GrpcResponses);
    let mut service = layer.layer(Page);
    for _ in 0..3 {
        service.call(request("a")).await.unwrap();
    }
    let response = service.call(request("a")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(header(&response, "grpc-status"), Some("8"));
    assert_eq!(header(&response, "retry-after"), Some("2"));
}
