//! The access log: what was asked, by whom, and what came of it. No queries, cookies, tickets and passes: they let in.

use std::net::IpAddr;
use std::time::Instant;

use ::http::{Method, Request, Response};

use crate::config::Config;
use crate::http::Noted;
use crate::{address, metrics};

/// A longer path is cut.
const PATH_BYTES_MAX: usize = 200;

/// A request that is being answered.
pub(crate) struct Logged {
    method: Method,
    path: String,
    endpoint: &'static str,
    client: IpAddr,
    since: Instant,
}

impl Logged {
    pub fn of<B>(request: &Request<B>, peer: IpAddr, config: &Config) -> Logged {
        let path = request.uri().path();
        Logged {
            method: request.method().clone(),
            endpoint: endpoint(path),
            path: cut(path).to_owned(),
            client: address::client(request.headers(), peer, config),
            since: Instant::now(),
        }
    }

    /// A question of Envoy, which does not come by such a request.
    #[cfg(feature = "envoy")]
    pub fn of_envoy(client: IpAddr) -> Logged {
        Logged {
            method: Method::POST,
            path: "/gate/envoy".to_owned(),
            endpoint: "gate",
            client,
            since: Instant::now(),
        }
    }

    /// Whether a proxy asks, or looks whether the gateway lives: not a visitor.
    pub fn is_of_a_proxy(&self) -> bool {
        matches!(self.endpoint, "gate" | "probe")
    }

    /// Probes, and requests that a gate let through, are counted alone: they are too many.
    pub fn answered<B>(self, response: &Response<B>) {
        let took = self.since.elapsed();
        let status = response.status();
        metrics::answered(self.endpoint, status, took);
        let is_gate = self.endpoint == "gate";
        if self.endpoint == "probe" || (is_gate && status.is_success()) {
            return;
        }
        let unknown = Noted::default();
        let noted = response.extensions().get::<Noted>().unwrap_or(&unknown);
        // What the visitor asked for, where a proxy asks about it.
        let about = noted.about.as_ref();
        tracing::info!(
            target: "nowserving_gateway::access",
            method = %about.map_or(&self.method, |about| &about.method),
            host = about.map(|about| cut(&about.host)),
            path = about.map_or(self.path.as_str(), |about| cut(&about.path)),
            gate = about.map(|_| self.path.as_str()),
            status = status.as_u16(),
            us = took.as_micros() as u64,
            client = %self.client,
            line = noted.line,
            page = noted.page,
            reference = noted.reference,
        );
    }
}

fn cut(path: &str) -> &str {
    &path[..path.floor_char_boundary(PATH_BYTES_MAX)]
}

/// A few words for metrics.
fn endpoint(path: &str) -> &'static str {
    if path.starts_with("/gate/") {
        return "gate";
    }
    let Some(rest) = path.strip_prefix("/_nowserving/") else {
        return match path {
            "/healthz" | "/readyz" => "probe",
            _ => "other",
        };
    };
    match rest {
        "wait" => "wait",
        "enter" => "enter",
        "leave" => "leave",
        "jwks.json" => "jwks",
        _ if rest.starts_with("page/") => "page",
        _ if rest.ends_with("/status") => "status",
        _ if rest.ends_with("/events") => "events",
        _ if rest.ends_with("/board") => "board",
        _ => "other",
    }
}
