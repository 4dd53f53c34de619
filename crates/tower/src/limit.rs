//! A rate limit in front of a service, as a layer.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Response;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use metrics::counter;
use nowserving_client::Limiter;
use nowserving_client::limits::{Check, CheckReply};
use tower_layer::Layer;
use tower_service::Service;
use tracing::{debug, warn};

use crate::blocked::Blocked;
use crate::fields::rate_limit_fields;
use crate::local::{LocalBucket, LocalLimit};
use crate::patience::{Patience, Unanswered};
use crate::response::{HttpResponses, Respond};

const PATIENCE: Duration = Duration::from_millis(500);
const LONGEST_DELAY: Duration = Duration::from_secs(10);

/// Decides whether a request may pass, and counts it: the SDK's [`Limiter`], or one for tests.
pub trait Decide: Clone + Send + Sync + 'static {
    /// The domain of the rules, for metrics.
    fn domain(&self) -> &str;

    /// One decision. Over the limit is an answer, not an error.
    fn decide(&self, check: Check) -> impl Future<Output = Result<CheckReply, Unanswered>> + Send;
}

impl Decide for Limiter {
    fn domain(&self) -> &str {
        Limiter::domain(self).as_str()
    }

    async fn decide(&self, check: Check) -> Result<CheckReply, Unanswered> {
        Ok(self.check_with(&check).await?)
    }
}

/// What happens to requests about which the cluster does not decide, because it is away or refuses the question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WhenUndecided {
    /// They pass, without a limit.
    #[default]
    Allow,
    /// They are answered with 503.
    Deny,
    /// So many pass in this process, whatever their descriptors are.
    Local(LocalLimit),
}

/// Puts rate limits in front of a service.
///
/// A function says what of a request is limited: its descriptors. With `None` or no descriptors the request passes.
/// Responses to limited requests have the header fields of [`rate_limit_fields`], except those that the inner service
/// has set itself. Requests that a leaking bucket delays wait in the layer.
#[derive(Clone)]
pub struct RateLimitLayer<L, A, R = HttpResponses> {
    limiter: L,
    descriptors: A,
    responses: R,
    longest_delay: Duration,
    patience: Patience,
    when_undecided: WhenUndecided,
    local: Option<Arc<LocalBucket>>,
}

impl<L, A> RateLimitLayer<L, A> {
    /// `descriptors` says what of a request is limited. With HTTP responses and [`WhenUndecided::Allow`].
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
            patience: Patience::new(PATIENCE),
            when_undecided: WhenUndecided::Allow,
            local: None,
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
            patience: self.patience,
            when_undecided: self.when_undecided,
            local: self.local,
        }
    }

    /// How long the cluster may take to decide; default 500 ms. After three questions without an answer, one after the
    /// other, requests do not wait for it, until it answers one of those that are asked every 250 ms.
    #[must_use]
    pub fn patience(self, within: Duration) -> RateLimitLayer<L, A, R> {
        let patience = Patience::new(within);
        RateLimitLayer { patience, ..self }
    }

    /// The longest time that a request waits because a leaking bucket says so; default 10 s. One that would have to wait
    /// for longer is answered with 429. It has been counted all the same: choose the bucket's `burst` so that no delay is
    /// longer.
    #[must_use]
    pub fn longest_delay(self, longest_delay: Duration) -> RateLimitLayer<L, A, R> {
        RateLimitLayer {
            longest_delay,
            ..self
        }
    }

    /// What happens to requests about which the cluster does not decide.
    #[must_use]
    pub fn when_undecided(self, when_undecided: WhenUndecided) -> RateLimitLayer<L, A, R> {
        let local = match when_undecided {
            WhenUndecided::Local(limit) => Some(Arc::new(LocalBucket::new(limit))),
            WhenUndecided::Allow | WhenUndecided::Deny => None,
        };
        RateLimitLayer {
            when_undecided,
            local,
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
            let allowed = match check {
                Some(check) => layer.decide(check).await,
                None => Ok(None),
            };
            let reply = match allowed {
                Ok(reply) => reply,
                Err(blocked) => return Ok(layer.blocked(&blocked)),
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
    /// Returns when the request may go on. `None`: the cluster did not decide.
    async fn decide(&self, check: Check) -> Result<Option<CheckReply>, Blocked> {
        let hits = check.hits();
        let reply = match self.patience.ask(self.limiter.decide(check)).await {
            Ok(reply) => self.delayed(reply).await.map(Some),
            Err(unanswered) => self.undecided(hits, &unanswered).map(|()| None),
        };
        if reply.is_ok() {
            counter!("nowserving_rate_limit_allowed", "domain" => self.domain()).increment(1);
        }
        reply
    }

    /// Waits as long as a leaking bucket says.
    async fn delayed(&self, reply: CheckReply) -> Result<CheckReply, Blocked> {
        if !reply.allowed {
            return Err(Blocked::OverLimit(reply));
        }
        let delay = Duration::from_millis(reply.delay_ms.unwrap_or(0));
        if delay > self.longest_delay {
            return Err(Blocked::DelayedTooLong(reply));
        }
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        Ok(reply)
    }

    fn undecided(&self, hits: u32, unanswered: &Unanswered) -> Result<(), Blocked> {
        let domain = self.limiter.domain();
        match unanswered {
            Unanswered::Failed(why) => warn!(domain, why, "no decision about a rate limit"),
            why => debug!(domain, %why, "no decision about a rate limit"),
        }
        counter!("nowserving_rate_limit_unavailable", "domain" => self.domain()).increment(1);
        match (self.when_undecided, &self.local) {
            (WhenUndecided::Allow, _) => Ok(()),
            (WhenUndecided::Local(_), Some(local)) => local
                .take(hits)
                .map_err(|retry_after| Blocked::OverLocalLimit { retry_after }),
            (WhenUndecided::Deny | WhenUndecided::Local(_), _) => Err(Blocked::Undecided),
        }
    }

    fn blocked<B>(&self, blocked: &Blocked) -> Response<B>
    where
        R: Respond<Response<B>>,
    {
        let labels = [
            ("domain", self.domain()),
            ("reason", blocked.reason().to_owned()),
        ];
        counter!("nowserving_rate_limit_blocked", &labels).increment(1);
        let mut response = self.responses.respond(blocked);
        if let Blocked::OverLimit(reply) | Blocked::DelayedTooLong(reply) = blocked {
            add_fields(response.headers_mut(), reply);
        }
        response
    }

    fn domain(&self) -> String {
        self.limiter.domain().to_owned()
    }
}

/// Those that are set stay: a layer further in, or the handler, knows better.
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
