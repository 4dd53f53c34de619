//! `ShouldRateLimit`: asks the cluster, and decides what a request gets that the cluster does not decide.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};
use metrics::{counter, histogram};
use nowserving_client::limits::{Check, CheckReply, Descriptor, DescriptorReply};
use nowserving_client::{Client, LimitFallback, Limiter, LimiterOptions, LineName};
use nowserving_tower::Undecided;
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

/// The limiters of more domains are not kept: they are made anew for each request, and know less about the cluster.
const LIMITERS_MAX: usize = 4_096;

/// How often what is left of a limit is asked for: others take of it, too.
const USE_UP_ATTEMPTS: u32 = 3;

/// The cluster: the SDK's client, or one for tests.
pub trait Cluster: Clone + Send + Sync + 'static {
    /// One decision about all descriptors of a question.
    fn check(
        &self,
        domain: &LineName,
        check: Check,
    ) -> impl Future<Output = Result<CheckReply, Undecided>> + Send;
}

/// A limiter of the SDK for each domain: it knows whether the cluster is away.
#[derive(Clone)]
pub struct Limiters {
    client: Client,
    patience: Duration,
    known: Arc<Mutex<HashMap<LineName, Limiter>>>,
}

impl Limiters {
    pub fn new(client: Client, patience: Duration) -> Limiters {
        Limiters {
            client,
            patience,
            known: Arc::default(),
        }
    }

    fn of(&self, domain: &LineName) -> Result<Limiter, Undecided> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = known.get(domain) {
            return Ok(limiter.clone());
        }
        let mut options = LimiterOptions::default();
        options.patience = self.patience;
        // The service looks at `without_cluster` and decides itself. With `Fail` each request would wait for a cluster that
        // is away.
        options.on_unavailable = LimitFallback::Deny;
        let limiter = self.client.limiter_with(domain.as_str(), options)?;
        if known.len() < LIMITERS_MAX {
            known.insert(domain.clone(), limiter.clone());
        }
        Ok(limiter)
    }
}

impl Cluster for Limiters {
    async fn check(&self, domain: &LineName, check: Check) -> Result<CheckReply, Undecided> {
        Ok(self.of(domain)?.check_with(&check).await?)
    }
}

/// Domains of requests that pass because the cluster has no rules for them: each name is told once. It may be a mistake in
/// Envoy's configuration, and whoever may ask can make up more.
#[derive(Debug, Default)]
struct WithoutRules(Mutex<BTreeSet<String>>);

/// So many names are told, and are labels of the metrics.
const NAMES_MAX: usize = 100;
const NAME_BYTES_MAX: usize = 128;

/// What is said of a domain that is not limited.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// The first time.
    Now,
    Before,
    /// There are too many others.
    Never,
}

impl WithoutRules {
    fn tell(&self, domain: &str) -> Told {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(domain) {
            return Told::Before;
        }
        let has_room = names.len() < NAMES_MAX && domain.len() <= NAME_BYTES_MAX;
        if !has_room {
            return Told::Never;
        }
        names.insert(domain.to_owned());
        Told::Now
    }

    /// Counts a request that passes, and warns of its domain once. `why`: and what to do.
    fn passes(&self, domain: &str, why: &str) {
        let told = self.tell(domain);
        if told == Told::Now {
            warn!(
                domain,
                "requests of this domain pass without a limit: {why}"
            );
        }
        count(
            if told == Told::Never { "" } else { domain },
            "without_rules",
        );
    }
}

/// How the service answers.
#[derive(Debug)]
pub struct Answering {
    /// The cluster's names of domains that have another name in Envoy's configuration.
    pub domains: BTreeMap<String, LineName>,
    pub on_unavailable: OnUnavailable,
    /// Responses carry header fields for the downstream client.
    pub with_headers: bool,
}

/// The service.
#[derive(Debug, Clone)]
pub struct Service<C> {
    cluster: C,
    answering: Arc<Answering>,
    without_rules: Arc<WithoutRules>,
}

impl<C> Service<C> {
    pub fn new(cluster: C, answering: Answering) -> Service<C> {
        Service {
            cluster,
            answering: Arc::new(answering),
            without_rules: Arc::default(),
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
            let asked = &request.domain;
            let why = format!(
                "no domain of the cluster can have this name; with --domain {asked}=NAME it is called NAME there"
            );
            self.without_rules.passes(asked, &why);
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
        let refunds = request.descriptors.iter().filter(|it| it.is_negative_hits);
        let refunds = refunds.count() as u64;
        if refunds > 0 {
            counter!("nowserving_envoy_refunds_ignored_total").increment(refunds);
        }
        match self.ask(&domain, parts).await {
            Ok(reply) => {
                match (reply.unmatched, reply.allowed) {
                    (true, _) => {
                        let why = "the cluster has no rules for it (nowserving limit show)";
                        self.without_rules.passes(domain.as_str(), why);
                    }
                    (false, true) => count(domain.as_str(), "ok"),
                    (false, false) => count(domain.as_str(), "over_limit"),
                }
                Ok(response::decided(&reply, self.answering.with_headers))
            }
            Err(undecided) => self.undecided(domain.as_str(), request, &undecided),
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
    async fn ask(&self, domain: &LineName, parts: Vec<Part>) -> Result<CheckReply, Undecided> {
        let asked = parts.into_iter().map(|Part { check, places }| async move {
            let mut reply = self.decide(domain, check.clone()).await?;
            if reply.descriptors.len() != places.len() {
                return Err(undecided(false, "an answer about other descriptors"));
            }
            if !reply.allowed && !check.dry_run && check.hits() > 1 {
                self.use_up(domain, &check, &mut reply).await;
            }
            Ok((reply, places))
        });
        Ok(together(try_join_all(asked).await?))
    }

    async fn decide(&self, domain: &LineName, check: Check) -> Result<CheckReply, Undecided> {
        let reply = self.cluster.check(domain, check).await?;
        match reply.without_cluster {
            true => Err(undecided(true, "the cluster does not answer")),
            false => Ok(reply),
        }
    }

    /// Counts what still fits of several hits that were refused, as Lyft's server counts them. They may be what a request
    /// has cost, reported after its response: then nobody looks at the answer, and the limit would never be reached.
    /// The reply then says what is left after that.
    async fn use_up(&self, domain: &LineName, refused: &Check, reply: &mut CheckReply) {
        // What its own limit allows is not counted, as another one refused it.
        let descriptors = refused.descriptors.iter().zip(&mut reply.descriptors);
        let over = descriptors.filter(|(_, said)| !said.allowed);
        let used_up = over
            .map(|(descriptor, said)| self.use_up_one(domain, descriptor, refused.hits(), said));
        join_all(used_up).await;
        let refuse = reply.descriptors.iter();
        let refuse = refuse.filter(|said| !said.allowed && !said.shadow);
        let least = refuse.filter_map(|said| said.remaining).min();
        reply.remaining = least.or(reply.remaining);
    }

    async fn use_up_one(
        &self,
        domain: &LineName,
        descriptor: &Descriptor,
        hits: u32,
        said: &mut DescriptorReply,
    ) {
        for _ in 0..USE_UP_ATTEMPTS {
            let left = said.remaining.unwrap_or(0).min(hits);
            if left == 0 {
                return;
            }
            let rest = Check {
                hits: Some(left),
                ..Check::new(vec![descriptor.clone()])
            };
            let rest = match self.decide(domain, rest).await {
                Ok(rest) => rest.descriptors.into_iter().next().unwrap_or_default(),
                Err(undecided) => {
                    debug!(domain = domain.as_str(), why = undecided.why, "not counted");
                    return;
                }
            };
            (said.remaining, said.reset_ms) = (rest.remaining, rest.reset_ms);
            if rest.allowed {
                return;
            }
            // Others came first.
        }
    }

    fn undecided(
        &self,
        domain: &str,
        request: &RateLimitRequest,
        undecided: &Undecided,
    ) -> Result<RateLimitResponse, Status> {
        let why = &undecided.why;
        match undecided.is_transient {
            true => debug!(domain, why, "no decision"),
            false => warn!(domain, why, "no decision"),
        }
        let outcome = match undecided.is_transient {
            true => "unavailable",
            false => "failed",
        };
        count("", outcome);
        let descriptors = request.descriptors.len();
        match self.answering.on_unavailable {
            OnUnavailable::Allow => Ok(response::undecided(true, descriptors)),
            OnUnavailable::Deny => Ok(response::undecided(false, descriptors)),
            OnUnavailable::Error => Err(Status::unavailable(why.clone())),
        }
    }
}

fn undecided(is_transient: bool, why: &str) -> Undecided {
    Undecided {
        is_transient,
        why: why.to_owned(),
        retry_after: None,
    }
}

/// One answer. The limit that it shows is that of the part that refuses for longest, or else has least left.
fn together(parts: Vec<(CheckReply, Vec<usize>)>) -> CheckReply {
    let places = parts.iter().map(|(_, places)| places.len()).sum();
    let mut descriptors = vec![DescriptorReply::default(); places];
    let mut shown: Option<CheckReply> = None;
    for (mut reply, places) in parts {
        for (place, descriptor) in places
            .into_iter()
            .zip(std::mem::take(&mut reply.descriptors))
        {
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
    let labels = [
        ("domain", domain.to_owned()),
        ("outcome", outcome.to_owned()),
    ];
    counter!("nowserving_envoy_requests_total", &labels).increment(1);
}

#[cfg(test)]
mod tests;
