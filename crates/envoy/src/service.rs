//! `ShouldRateLimit`: asks the cluster, and decides what a request gets that the cluster does not decide.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures::future::try_join_all;
use metrics::{counter, histogram};
use nowserving_client::limits::{Check, CheckReply, DescriptorReply};
use nowserving_client::{Client, LineName};
use nowserving_tower::{Patience, Unanswered};
use tonic::{Request, Response, Status};
use tracing::{debug, warn};

use crate::pb::{RateLimitRequest, RateLimitResponse, RateLimitService};
use crate::request::{Part, parts};
use crate::response;

/// What happens to requests that the cluster does not decide, because it is away or refuses the question.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnUnavailable {
    /// They are OK.
    Allow,
    /// They are over the limit.
    Deny,
    /// Envoy gets the gRPC status `UNAVAILABLE`, counts an error, and does what its own `failure_mode_deny` says.
    #[default]
    Error,
}

/// The cluster: the SDK's client, or one for tests.
pub trait Cluster: Clone + Send + Sync + 'static {
    /// One decision about all descriptors of a question.
    fn check(
        &self,
        domain: &LineName,
        check: Check,
    ) -> impl Future<Output = Result<CheckReply, Unanswered>> + Send;
}

impl Cluster for Client {
    async fn check(&self, domain: &LineName, check: Check) -> Result<CheckReply, Unanswered> {
        let limiter = self.limiter(domain.as_str())?;
        Ok(limiter.check_with(&check).await?)
    }
}

/// How the service answers.
#[derive(Debug)]
pub struct Answering {
    /// The cluster's names of domains that have another name in Envoy's configuration.
    pub domains: BTreeMap<String, LineName>,
    pub on_unavailable: OnUnavailable,
    pub patience: Patience,
    /// Responses carry header fields for the downstream client.
    pub with_headers: bool,
}

/// The service.
#[derive(Debug, Clone)]
pub struct Service<C> {
    cluster: C,
    answering: Arc<Answering>,
}

impl<C> Service<C> {
    pub fn new(cluster: C, answering: Answering) -> Service<C> {
        Service {
            cluster,
            answering: Arc::new(answering),
        }
    }
}

#[tonic::async_trait]
impl<C: Cluster> RateLimitService for Service<C> {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let begin = Instant::now();
        let service = self.clone();
        // In a task of its own: Envoy may give up earlier than this service, which then still finds out that the cluster
        // is away.
        let answered = tokio::spawn(async move { service.answer(&request.into_inner()).await });
        let answered = answered.await.map_err(|error| {
            warn!(%error, "a request was not answered");
            Status::internal("the request was not answered")
        })?;
        histogram!("nowserving_envoy_seconds").record(begin.elapsed().as_secs_f64());
        answered.map(Response::new)
    }
}

impl<C: Cluster> Service<C> {
    async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let Some(domain) = self.domain(&request.domain) else {
            // No domain of the cluster has such a name, so it has no rules.
            count("", "ok");
            return Ok(response::undecided(true, request.descriptors.len()));
        };
        let parts = parts(domain.as_str(), request).map_err(|error| {
            count("", "bad_request");
            Status::invalid_argument(error)
        })?;
        let overrides = request.descriptors.iter().filter(|it| it.limit.is_some());
        let overrides = overrides.count() as u64;
        if overrides > 0 {
            counter!("nowserving_envoy_overrides_ignored_total").increment(overrides);
        }
        match self.ask(&domain, parts).await {
            Ok(reply) => {
                // An unknown domain is no label: anybody could make up more.
                let label = if reply.unmatched { "" } else { domain.as_str() };
                count(label, if reply.allowed { "ok" } else { "over_limit" });
                Ok(response::decided(&reply, self.answering.with_headers))
            }
            Err(unanswered) => self.undecided(domain.as_str(), request, &unanswered),
        }
    }

    fn domain(&self, asked: &str) -> Option<LineName> {
        match self.answering.domains.get(asked) {
            Some(domain) => Some(domain.clone()),
            // Empty is a mistake, which `parts` names.
            None if asked.is_empty() => LineName::try_from("-").ok(),
            None => LineName::try_from(asked).ok(),
        }
    }

    /// All parts at the same time: each is decided on its own, and the request passes if all allow it.
    async fn ask(&self, domain: &LineName, parts: Vec<Part>) -> Result<CheckReply, Unanswered> {
        let asked = parts.into_iter().map(|Part { check, places }| async move {
            let question = self.cluster.check(domain, check);
            let reply = self.answering.patience.ask(question).await?;
            if reply.descriptors.len() != places.len() {
                let what = "the cluster's answer has another number of descriptors";
                return Err(Unanswered::Failed(what.to_owned()));
            }
            Ok((reply, places))
        });
        Ok(together(try_join_all(asked).await?))
    }

    fn undecided(
        &self,
        domain: &str,
        request: &RateLimitRequest,
        unanswered: &Unanswered,
    ) -> Result<RateLimitResponse, Status> {
        match unanswered {
            Unanswered::Failed(why) => warn!(domain, why, "no decision"),
            why => debug!(domain, %why, "no decision"),
        }
        count("", "unavailable");
        let descriptors = request.descriptors.len();
        match self.answering.on_unavailable {
            OnUnavailable::Allow => Ok(response::undecided(true, descriptors)),
            OnUnavailable::Deny => Ok(response::undecided(false, descriptors)),
            OnUnavailable::Error => Err(Status::unavailable(unanswered.to_string())),
        }
    }
}

/// One answer. The limit that it shows is that of the part that refuses for longest, or else has least left.
fn together(parts: Vec<(CheckReply, Vec<usize>)>) -> CheckReply {
    let places = parts.iter().map(|(_, places)| places.len()).sum();
    let mut descriptors = vec![DescriptorReply::default(); places];
    let mut shown: Option<CheckReply> = None;
    for (mut reply, places) in parts {
        for (place, descriptor) in places.into_iter().zip(std::mem::take(&mut reply.descriptors)) {
            if let Some(slot) = descriptors.get_mut(place) {
                *slot = descriptor;
            }
        }
        shown = Some(match shown {
            None => reply,
            Some(shown) if says_more(&reply, &shown) => reply,
            Some(shown) => shown,
        });
    }
    CheckReply {
        descriptors,
        ..shown.unwrap_or_default()
    }
}

fn says_more(reply: &CheckReply, than: &CheckReply) -> bool {
    match (reply.allowed, than.allowed) {
        (false, true) => true,
        (true, false) => false,
        // Without a time: never.
        (false, false) => {
            let lasts = |reply: &CheckReply| reply.retry_after_ms.unwrap_or(u64::MAX);
            lasts(reply) > lasts(than)
        }
        (true, true) => {
            let left = |reply: &CheckReply| reply.remaining.unwrap_or(u32::MAX);
            left(reply) < left(than)
        }
    }
}

fn count(domain: &str, outcome: &'static str) {
    let labels = [("domain", domain.to_owned()), ("outcome", outcome.to_owned())];
    counter!("nowserving_envoy_requests_total", &labels).increment(1);
}

#[cfg(test)]
mod tests;
