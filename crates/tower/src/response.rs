//! The responses of the layers, for any protocol.

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::blocked::Blocked;

/// Makes the response to a request that does not get one of its handler. Closures implement it.
pub trait Respond<R>: Clone + Send + Sync + 'static {
    /// Called once for each such request.
    fn respond(&self, blocked: &Blocked) -> R;

    /// Whether a handler's response says that it failed. Then a short time is no sign of a quick service: see
    /// [`GuardOptions::auto_seats`](nowserving_client::GuardOptions::auto_seats). Never, by default.
    fn is_failure(&self, response: &R) -> bool {
        let _ = response;
        false
    }
}

impl<R, F> Respond<R> for F
where
    F: Fn(&Blocked) -> R + Clone + Send + Sync + 'static,
{
    fn respond(&self, blocked: &Blocked) -> R {
        self(blocked)
    }
}

/// For axum and hyper: a status, `Retry-After` where it is known, and a line of text.
#[derive(Debug, Clone, Copy, Default)]
pub struct HttpResponses;

impl<B: From<String>> Respond<Response<B>> for HttpResponses {
    fn respond(&self, blocked: &Blocked) -> Response<B> {
        let mut response = Response::new(B::from(format!("{blocked}\n")));
        *response.status_mut() = blocked.status();
        let headers = response.headers_mut();
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        headers.insert(CONTENT_TYPE, text);
        if let Some(seconds) = blocked.retry_after_s() {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }

    /// 500 to 599.
    fn is_failure(&self, response: &Response<B>) -> bool {
        response.status().is_server_error()
    }
}

/// For tonic: a gRPC status in a response of headers alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct GrpcResponses;

impl<B: Default> Respond<Response<B>> for GrpcResponses {
    fn respond(&self, blocked: &Blocked) -> Response<B> {
        let mut response = Response::new(B::default());
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let status = HeaderValue::from(u16::from(blocked.grpc_status()));
        headers.insert(HeaderName::from_static("grpc-status"), status);
        // All of its texts are plain ASCII, which needs no percent encoding.
        if let Ok(message) = HeaderValue::from_str(&blocked.to_string()) {
            headers.insert(HeaderName::from_static("grpc-message"), message);
        }
        response
    }

    /// The codes of a service in trouble: unknown, deadline exceeded, resource exhausted, internal, unavailable, data loss.
    /// tonic sends them in the headers; a status in the trailers, after a stream, comes too late.
    fn is_failure(&self, response: &Response<B>) -> bool {
        let status = response.headers().get("grpc-status");
        let status = status.and_then(|it| it.to_str().ok()?.parse::<u8>().ok());
        response.status().is_server_error() || matches!(status, Some(2 | 4 | 8 | 13 | 14 | 15))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use bytes::Bytes;
    use http_body_util::Full;
    use nowserving_client::limits::CheckReply;
    use nowserving_client::{Lost, Refused};

    use super::*;
    use crate::limit::Undecided;

    fn all() -> Vec<(Blocked, u16, u8, Option<&'static str>)> {
        let full = |ms| Refused::Full {
            retry_after: Some(Duration::from_millis(ms)),
        };
        let refused = [
            (full(3_001), 429, 8, Some("4")),
            (full(10), 429, 8, Some("1")),
            (Refused::Full { retry_after: None }, 429, 8, Some("1")),
            (
                Refused::WaitedTooLong {
                    waited: Duration::from_secs(5),
                },
                504,
                4,
                None,
            ),
            (Refused::Closed, 503, 14, None),
            (
                Refused::Removed {
                    reason: "kicked".to_owned(),
                },
                503,
                14,
                None,
            ),
            (Refused::Unavailable, 503, 14, None),
            (Refused::Busy, 503, 14, None),
            (
                Refused::Overloaded {
                    retry_after: Some(Duration::from_secs(2)),
                },
                503,
                14,
                Some("2"),
            ),
            (Refused::Overloaded { retry_after: None }, 503, 14, None),
        ];
        let refused = refused.map(|(why, status, grpc, retry_after)| {
            (Blocked::Refused(why), status, grpc, retry_after)
        });
        let mut all = Vec::from(refused);
        all.push((Blocked::Lost(Lost), 503, 10, None));
        all.extend(limited());
        all
    }

    fn limited() -> Vec<(Blocked, u16, u8, Option<&'static str>)> {
        let over = |retry_after_ms| {
            Blocked::OverLimit(CheckReply {
                retry_after_ms,
                ..CheckReply::default()
            })
        };
        let undecided = |is_transient, retry_after| {
            Blocked::Undecided(Undecided {
                is_transient,
                why: "for the log".to_owned(),
                retry_after,
            })
        };
        let half = Some(Duration::from_millis(500));
        vec![
            (over(Some(2_000)), 429, 8, Some("2")),
            (over(None), 429, 8, None),
            (over(Some(0)), 429, 8, Some("1")),
            (undecided(true, None), 503, 14, None),
            (undecided(true, half), 503, 14, Some("1")),
            (undecided(false, None), 500, 13, None),
        ]
    }

    #[test]
    fn server_errors_are_failures() {
        for (status, is_failure) in [(200, false), (404, false), (500, true), (503, true)] {
            let mut response = Response::new(Full::<Bytes>::default());
            *response.status_mut() = StatusCode::from_u16(status).unwrap();
            assert_eq!(HttpResponses.is_failure(&response), is_failure, "{status}");
            assert_eq!(GrpcResponses.is_failure(&response), is_failure, "{status}");
            let closure = |_: &Blocked| Response::new(Full::<Bytes>::default());
            assert!(!closure.is_failure(&response));
        }
    }

    #[test]
    fn codes_of_a_service_in_trouble_are_failures() {
        for (status, is_failure) in [
            ("0", false),
            ("2", true),
            ("4", true),
            ("5", false),
            ("8", true),
            ("13", true),
            ("14", true),
            ("15", true),
            ("16", false),
            ("none", false),
        ] {
            let mut response = Response::new(Full::<Bytes>::default());
            let value = HeaderValue::from_static(status);
            response.headers_mut().insert("grpc-status", value);
            assert_eq!(GrpcResponses.is_failure(&response), is_failure, "{status}");
            assert!(!HttpResponses.is_failure(&response));
        }
    }

    #[test]
    fn http() {
        for (blocked, status, _, retry_after) in all() {
            let response: Response<Full<Bytes>> = HttpResponses.respond(&blocked);
            assert_eq!(response.status().as_u16(), status, "{blocked}");
            let header = response.headers().get(RETRY_AFTER);
            let header = header.and_then(|value| value.to_str().ok());
            assert_eq!(header, retry_after, "{blocked}");
        }
    }

    #[test]
    fn grpc() {
        for (blocked, _, status, _) in all() {
            let response: Response<Full<Bytes>> = GrpcResponses.respond(&blocked);
            assert_eq!(response.status(), StatusCode::OK);
            let headers = response.headers();
            assert_eq!(headers["content-type"], "application/grpc");
            assert_eq!(headers["grpc-status"], *status.to_string(), "{blocked}");
            assert_eq!(headers["grpc-message"], *blocked.to_string());
            assert!(!blocked.to_string().contains('%'), "{blocked}");
        }
    }
}
