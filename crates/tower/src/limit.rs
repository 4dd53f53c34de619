//! A rate limit in front of a service, as a layer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use metrics::counter;
use nowserving_client::limits::{Check, CheckReply};
use nowserving_client::{Error, Kind, Limiter, Slices};
use tower_layer::Layer;
use tower_service::Service;
use tracing::{debug, error};

use crate::blocked::Blocked;
use crate::fields::rate_limit_fields;
use crate::log_pace::LogPace;
use crate::response::{HttpResponses, Respond};

const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Decides whether a request may pass, and counts it: the SDK's [`Limiter`] and [`Slices`], or one for tests.
pub trait Decide: Clone + Send + Sync + 'static {
    /// The domain of the rules, for metrics.
    fn domain(&self) -> &str;

    /// One decision. Over the limit is an answer, not an error.
    fn decide(&self, check: Check) -> impl Future<Output = Result<CheckReply, Undecided>> + Send;
}

/// Why a request was not decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// The cluster is away or busy. Else it refused the question: a fault of the request or of the set-up.
    pub is_transient: bool,
    /// For the log.
    pub why: String,
    /// After how long to come again, if that is known.
    pub retry_after: Option<Duration>,
}

impl From<Error> for Undecided {
    fn from(error: Error) -> Undecided {
        Undecided {
            is_transient: error.is_transient() || error.kind() == Kind::Connection,
            why: error.to_string(),
            retry_after: error.retry_after(),
        }
    }
}

impl Decide for Limiter {
    fn domain(&self) -> &str {
        Limiter::domain(self).as_str()
    }

    async fn decide(&self, check: Check) -> Result<CheckReply, Undecided> {
        Ok(self.check_with(&check).await?)
    }
}

impl Decide for Slices {
    fn domain(&self) -> &str {
        Slices::domain(self).as_str()
    }

    async fn decide(&self, check: Check) -> Result<CheckReply, Undecided> {
        Ok(self.check_with(&check).await?)
    }
}

/// Puts rate limits in front of a service.
///
/// A function says what of a request is limited: its descriptors. With `None` or no descriptors the request passes.
/// Responses to limited requests have the header fields of [`rate_limit_fields`], except those that the inner service
/// has set itself. Requests that a leaking bucket delays wait in the layer. What happens while the cluster is away is an
/// option of the limiter: [`LimiterOptions::on_unavailable`](nowserving_client::LimiterOptions::on_unavailable).
#[derive(Clone)]
pub struct RateLimitLayer<L, A, R = HttpResponses> {
    limiter: L,
    descriptors: A,
    responses: R,
    longest_delay: Duration,
    logs: LogPace,
}

impl<L, A> RateLimitLayer<L, A> {
    /// `descriptors` says what of a request is limited. With HTTP responses.
    #[must_use]
    pub fn new<Request>(limiter: L, descriptors: A) -> RateLimitLayer<L, A>
    where
        L: Decide,
        A: Fn(&Request) -> Option<Check>,
    {
        RateLimitLayer {
            limiter,
            descriptors,
            responses: HttpResponses,
            longest_delay: LONGEST_DELAY,
            logs: LogPace::default(),
        }
    }
}

impl<L, A, R> RateLimitLayer<L, A, R> {
    /// Answers with these responses: [`GrpcResponses`](crate::GrpcResponses) for tonic, or a closure. The layer adds the
    /// header fields.
    #[must_use]
    pub fn respond_with<N>(self, responses: N) -> RateLimitLayer<L, A, N> {
        RateLimitLayer {
            limiter: self.limiter,
            descriptors: self.descriptors,
            responses,
            longest_delay: self.longest_delay,
            logs: self.logs,
        }
    }

    /// The longest time that a request waits because a leaking bucket says so; default 10 s. One that would have to wait
    /// for longer is answered with 429, and is not counted. [`Check::max_delay_ms`] can shorten it for a request.
    #[must_use]
    pub fn longest_delay(self, longest_delay: Duration) -> RateLimitLayer<L, A, R> {
        RateLimitLayer {
            longest_delay,
            ..self
        }
    }
}

impl<S, L: Clone, A: Clone, R: Clone> Layer<S> for RateLimitLayer<L, A, R> {
    type Service = RateLimit<S, L, A, R>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit {
            inner,
            layer: self.clone(),
        }
    }
}

/// A service behind rate limits; see [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimit<S, L, A, R = HttpResponses> {
    inner: S,
    layer: RateLimitLayer<L, A, R>,
}

impl<S, L, A, R, Request, B> Service<Request> for RateLimit<S, L, A, R>
where
    S: Service<Request, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    L: Decide,
    A: Fn(&Request) -> Option<Check> + Clone + Send + Sync + 'static,
    R: Respond<Response<B>>,
    Request: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    /// Always ready: a request is decided in its own future, and takes nothing of the inner service meanwhile.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let layer = self.layer.clone();
        let mut inner = self.inner.clone();
        let check = (layer.descriptors)(&request).filter(|it| !it.descriptors.is_empty());
        Box::pin(async move {
            let reply = match check {
                Some(check) => match layer.decide(check).await {
                    Ok(reply) => Some(reply),
                    Err(blocked) => return Ok(layer.blocked(&blocked)),
                },
                None => None,
            };
            poll_fn(|context| inner.poll_ready(context)).await?;
            let mut response = inner.call(request).await?;
            if let Some(reply) = &reply {
                add_fields(response.headers_mut(), reply);
            }
            Ok(response)
        })
    }
}

impl<L: Decide, A, R> RateLimitLayer<L, A, R> {
    /// Returns when the request may go on.
    async fn decide(&self, check: Check) -> Result<CheckReply, Blocked> {
        let check = check.with_max_delay(self.longest_delay);
        let decided = self.limiter.decide(check).await;
        if decided.as_ref().map_or(true, |reply| reply.without_cluster) {
            counter!("nowserving_rate_limit_unavailable", "domain" => self.domain()).increment(1);
        }
        let reply = decided.map_err(Blocked::Undecided)?;
        if !reply.allowed {
            return Err(refused(reply));
        }
        let delay = Duration::from_millis(reply.delay_ms.unwrap_or(0));
        // A slice can be another caller's, who accepts a longer one.
        if delay > self.longest_delay {
            return Err(Blocked::OverLimit(reply));
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        counter!("nowserving_rate_limit_allowed", "domain" => self.domain()).increment(1);
        Ok(reply)
    }

    fn blocked<B>(&self, blocked: &Blocked) -> Response<B>
    where
        R: Respond<Response<B>>,
    {
        let domain = self.limiter.domain();
        if let Blocked::Undecided(Undecided {
            is_transient, why, ..
        }) = blocked
        {
            // Clients can make the cluster refuse its question, and must not fill the log.
            match !is_transient && self.logs.may_log() {
                true => error!(domain, why, "no decision"),
                false => debug!(domain, why, "no decision"),
            }
        }
        let labels = [
            ("domain", self.domain()),
            ("reason", blocked.reason().to_owned()),
        ];
        counter!("nowserving_rate_limit_blocked", &labels).increment(1);
        let mut response = self.responses.respond(blocked);
        if let Blocked::OverLimit(reply) = blocked {
            add_fields(response.headers_mut(), reply);
        }
        if let Some(seconds) = blocked.retry_after_s() {
            for name in ["retry-after", "x-ratelimit-retry-after"] {
                let fields = response.headers_mut();
                let field = fields.entry(HeaderName::from_static(name));
                field.or_insert(HeaderValue::from(seconds));
            }
        }
        response
    }

    fn domain(&self) -> String {
        self.limiter.domain().to_owned()
    }
}

/// By a limit, of the cluster or of this process; or without one, because the cluster is away.
fn refused(reply: CheckReply) -> Blocked {
    match reply.without_cluster && reply.limit.is_none() {
        false => Blocked::OverLimit(reply),
        true => Blocked::Undecided(Undecided {
            is_transient: true,
            why: "the cluster is away".to_owned(),
            retry_after: reply.retry_after_ms.map(Duration::from_millis),
        }),
    }
}

/// Fields that the handler or an inner layer has set stay.
fn add_fields(headers: &mut HeaderMap, reply: &CheckReply) {
    for (name, value) in rate_limit_fields(reply) {
        if let Ok(value) = HeaderValue::try_from(value) {
            let name = HeaderName::from_static(name);
            headers.entry(name).or_insert(value);
        }
    }
}

#[cfg(test)]
mod tests;
