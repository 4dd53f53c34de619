//! Whether a request may pass to the shop, and how proxies ask that.

mod admissions;
mod bypass;
mod cache;
#[cfg(feature = "envoy")]
pub(crate) mod envoy;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State as Of};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::any;
use metrics::counter;
use nowserving_client::{LineName, State, StatusReply};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

pub(crate) use self::admissions::Admissions;
use self::admissions::{Checked, Unanswered};
use self::cache::{Held, Looked};
use crate::Shared;
use crate::address::{Asked, BadRequest, FORWARDED, ORIGINAL};
use crate::config::{Config, LineRule, OnUnavailable};
use crate::http::{self, About, Answer, Noted};
use crate::lines::LineView;
use crate::visit::Visit;

/// The header with the pass, for the shop behind.
pub(crate) const PASS: &str = "nowserving-pass";
/// With a 401 for nginx: the line.
const LINE: &str = "nowserving-line";
/// With a 401 for nginx: path and query of the waiting page, to be asked as they are. Nginx cannot encode the address that
/// the visitor wanted.
const WAIT: &str = "nowserving-wait";
/// Proxies have little room for headers of answers. The way back to a longer address is its path, or the root.
const WAY_BACK_BYTES_MAX: usize = 2_000;
/// More addresses are not told of.
const STRANGERS_MAX: usize = 100;

/// A question is answered within this, whatever [`Config::patience_ms`] says. A proxy that waits in vain takes the gateway for
/// dead: HAProxy after 9 s, nginx and Envoy after 10 s. Some open the shop then.
const ANSWERS_WITHIN: Duration = Duration::from_secs(8);
/// How long the answer about somebody who held a seat some seconds ago is waited for.
const HELD_PATIENCE: Duration = Duration::from_millis(300);

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Decision<'a> {
    /// It goes on to the shop, with this pass. Without one, the shop must not see one that the client has sent.
    Through { pass: Option<HeaderValue> },
    /// It gets the answer of [`unadmitted`]. `visit`: what is known of the visitor's ticket.
    Unadmitted {
        rule: &'a LineRule,
        visit: Option<Visit>,
    },
    /// It is refused: no rule names its host.
    UnknownHost,
}

/// When the answer to a question that comes now must be there.
pub(crate) fn answers_until() -> Instant {
    Instant::now() + ANSWERS_WITHIN
}

/// Decides about a request, by this time. Asks the line only if it is not known that the visitor holds a seat.
pub(crate) async fn decide<'a>(gateway: &'a Shared, asked: &Asked, until: Instant) -> Decision<'a> {
    let config = &gateway.config;
    if config.bypass.iter().any(|rule| bypass::fits(rule, asked)) {
        count("bypass");
        return Decision::Through { pass: None };
    }
    let Some(rule) = config.rule_for(&asked.host, &asked.path) else {
        if config.refuses_host(&asked.host) {
            count("unknown_host");
            return Decision::UnknownHost;
        }
        count("no_line");
        return Decision::Through { pass: None };
    };
    let Some(view) = gateway.lines.get(&rule.line) else {
        // Each line of the configuration is followed.
        return Decision::Unadmitted { rule, visit: None };
    };
    let Some(ticket) = gateway.cookies.ticket(&asked.headers, &rule.line) else {
        if view.is_away() && config.on_unavailable == OnUnavailable::Allow {
            count("allowed_unavailable");
            return Decision::Through { pass: None };
        }
        count("no_ticket");
        return Decision::Unadmitted { rule, visit: None };
    };
    let gate = Gate {
        gateway,
        asked,
        rule,
        view,
        ticket,
        until,
    };
    match gateway.admissions.look(view, ticket) {
        Looked::Held(held) => {
            count("known");
            gate.through(held)
        }
        Looked::Outdated(held) => gate.ask(Some(held)).await,
        Looked::Unknown => gate.ask(None).await,
    }
}

/// A request with a ticket.
struct Gate<'a, 'b> {
    gateway: &'a Shared,
    asked: &'b Asked,
    rule: &'a LineRule,
    view: &'a LineView,
    ticket: &'b str,
    until: Instant,
}

impl<'a> Gate<'a, '_> {
    /// `outdated`: what was known. It is believed while the line does not answer.
    async fn ask(&self, outdated: Option<Held>) -> Decision<'a> {
        match self.answer(outdated.is_some()).await {
            Ok(checked) => match &checked.held {
                Some(held) => {
                    count("asked");
                    let renews = outdated.is_some_and(|outdated| outdated.renews);
                    self.through(Held {
                        renews,
                        ..held.clone()
                    })
                }
                // The page that is shown after a purchase can be read again.
                None if self.has_completed(&checked.status) => {
                    count("completed");
                    Decision::Through { pass: None }
                }
                None => {
                    count(match checked.status.state {
                        State::Waiting => "waiting",
                        State::Gone => "gone",
                        _ => "not_claimed",
                    });
                    let info = self.view.info();
                    self.unadmitted(Visit::of_status(
                        &checked.status,
                        info.as_deref(),
                        self.rule,
                    ))
                }
            },
            Err(unanswered) if unanswered.is_unavailable() => match outdated {
                Some(held) => {
                    count("known_unavailable");
                    self.through(held)
                }
                // One answer that is late does not open the shop, nor do many made-up tickets.
                None if self.gateway.config.on_unavailable == OnUnavailable::Allow
                    && self.view.is_away() =>
                {
                    count("allowed_unavailable");
                    Decision::Through { pass: None }
                }
                None => {
                    count("unavailable");
                    self.unadmitted(Visit::unavailable(true, None))
                }
            },
            Err(Unanswered::Line(error)) => {
                count("refused");
                self.unadmitted(Visit::of_error(&error, true))
            }
            // It is unavailable.
            Err(Unanswered::Busy) => self.unadmitted(Visit::unavailable(true, None)),
        }
    }

    /// Whether this only reads the path that completes a visit, by the ticket of a visit that was completed.
    fn has_completed(&self, status: &StatusReply) -> bool {
        let completes = self.rule.complete_path.as_ref();
        status.reason.as_deref() == Some("completed")
            && matches!(self.asked.method, Method::GET | Method::HEAD)
            && completes.is_some_and(|path| path.fits(&self.asked.path))
    }

    /// Nobody waits for a line that is known to be away. Somebody who is known to have held a seat waits for a moment only: the
    /// answer is for the next request.
    async fn answer(&self, was_held: bool) -> Result<Arc<Checked>, Unanswered> {
        if self.view.is_away() {
            return Err(Unanswered::Busy);
        }
        let claims = self.asked.is_navigation();
        let admissions = &self.gateway.admissions;
        let question = admissions.ask(self.view, self.ticket, claims);
        let until = match was_held {
            true => self.until.min(Instant::now() + HELD_PATIENCE),
            false => self.until,
        };
        let answer = timeout_at(until, question).await;
        answer.unwrap_or(Err(Unanswered::Busy))
    }

    fn unadmitted(&self, visit: Visit) -> Decision<'a> {
        Decision::Unadmitted {
            rule: self.rule,
            visit: Some(visit),
        }
    }

    fn through(&self, held: Held) -> Decision<'a> {
        let admissions = &self.gateway.admissions;
        let completes = self.rule.complete_path.as_ref();
        let is_read_ahead = self.asked.is_prefetch() || self.asked.method == Method::OPTIONS;
        if completes.is_some_and(|path| path.fits(&self.asked.path)) && !is_read_ahead {
            admissions.complete(self.view, self.ticket, held.epoch);
        } else if let Some(epoch) = held.epoch.filter(|_| held.renews) {
            admissions.renew(self.view, self.ticket, epoch);
        }
        Decision::Through { pass: held.pass }
    }
}

/// The whole answer to a request that is [`Decision::Unadmitted`], by this time.
pub(crate) async fn unadmitted(
    gateway: &Shared,
    asked: &Asked,
    rule: &LineRule,
    visit: Option<Visit>,
    until: Instant,
) -> Answer {
    let answer = timeout_at(until, http::unadmitted(gateway, asked, rule, visit)).await;
    answer.unwrap_or_else(|_| http::unavailable(gateway, asked, rule))
}

fn count(outcome: &'static str) {
    counter!("nowserving_gateway_checks_total", "outcome" => outcome).increment(1);
}

/// What proxies ask by HTTP.
pub(crate) fn routes(gateway: Shared) -> Router {
    Router::new()
        .route("/gate/nginx", any(nginx))
        .route("/gate/forward", any(forward))
        .with_state(gateway)
}

/// `auth_request` of nginx: takes 2xx, 401 and 403, and makes a 500 of all others.
async fn nginx(Of(gateway): Of<Shared>, request: Request) -> Answer {
    let (parts, _) = request.into_parts();
    let until = answers_until();
    let asked = match asked(&gateway, &parts, Asked::original) {
        Ok(asked) => asked,
        Err(bad) => {
            let mut answer = http::problem(StatusCode::FORBIDDEN, "Forbidden", bad.what);
            note(&mut answer, about(&parts, &ORIGINAL, &bad), None);
            return answer;
        }
    };
    match decide(&gateway, &asked, until).await {
        Decision::Through { pass } => passed(StatusCode::NO_CONTENT, pass),
        Decision::Unadmitted { rule, .. } => {
            let mut answer = StatusCode::UNAUTHORIZED.into_response();
            note(&mut answer, Some(About::of(&asked)), Some(&rule.line));
            let headers = [
                (LINE, rule.line.as_str()),
                (WAIT, &waiting_page(rule, &asked)),
            ];
            for (name, value) in headers {
                // Both have letters, digits and signs alone.
                if let Ok(value) = HeaderValue::from_str(value) {
                    answer
                        .headers_mut()
                        .insert(HeaderName::from_static(name), value);
                }
            }
            answer
        }
        Decision::UnknownHost => {
            let mut answer = StatusCode::FORBIDDEN.into_response();
            note(&mut answer, Some(About::of(&asked)), None);
            answer
        }
    }
}

fn waiting_page(rule: &LineRule, asked: &Asked) -> String {
    let back = http::back_from(asked);
    let path = back.split('?').next().unwrap_or("/");
    let mut ways = [back, path]
        .into_iter()
        .map(|way| utf8_percent_encode(way, NON_ALPHANUMERIC).to_string());
    let way = ways.find(|way| way.len() <= WAY_BACK_BYTES_MAX);
    let way = way.as_deref().unwrap_or("%2F");
    format!("/_nowserving/wait?line={}&to={way}", rule.line)
}

/// `forwardAuth` of Traefik and `forward_auth` of Caddy: the client gets whatever is not 2xx.
async fn forward(Of(gateway): Of<Shared>, request: Request) -> Answer {
    let (parts, _) = request.into_parts();
    let until = answers_until();
    let asked = match asked(&gateway, &parts, Asked::forwarded) {
        Ok(asked) => asked,
        Err(bad) => {
            let mut answer = http::bad(&bad);
            note(&mut answer, about(&parts, &FORWARDED, &bad), None);
            return answer;
        }
    };
    match decide(&gateway, &asked, until).await {
        Decision::Through { pass } => passed(StatusCode::OK, pass),
        Decision::Unadmitted { rule, visit } => {
            let mut answer = unadmitted(&gateway, &asked, rule, visit, until).await;
            // The proxy takes any 2xx for "let through", whatever status the shop's page has.
            if answer.status().is_success() {
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            note(&mut answer, Some(About::of(&asked)), Some(&rule.line));
            answer
        }
        Decision::UnknownHost => {
            let mut answer = http::bad(&BadRequest::UNKNOWN_HOST);
            note(&mut answer, Some(About::of(&asked)), None);
            answer
        }
    }
}

fn asked(
    gateway: &Shared,
    parts: &Parts,
    read: fn(&Parts, IpAddr, &Config) -> Result<Asked, BadRequest>,
) -> Result<Asked, BadRequest> {
    let Some(ConnectInfo(peer)) = parts.extensions.get::<ConnectInfo<SocketAddr>>() else {
        return Err(BadRequest {
            what: "it is not known who asks",
            is_forbidden: true,
        });
    };
    let asked = read(parts, peer.ip(), &gateway.config);
    if asked.as_ref().is_err_and(|bad| bad.is_forbidden) {
        gateway.strangers.note(peer.ip());
    }
    asked
}

/// For the access log: a question of a proxy is about a request of a visitor.
fn note(answer: &mut Answer, about: Option<About>, line: Option<&LineName>) {
    let noted = answer.extensions_mut().get_or_insert_default::<Noted>();
    noted.line = noted.line.take().or(line.map(LineName::to_string));
    noted.about = about;
}

/// What a proxy asked about in a way that cannot be understood, as far as it can be read: by these headers.
fn about(parts: &Parts, of: &[HeaderName; 3], bad: &BadRequest) -> Option<About> {
    let [method, host, uri] = of
        .each_ref()
        .map(|name| parts.headers.get(name).and_then(|it| it.to_str().ok()));
    // Nobody else's word is worth a line that looks like a visitor's.
    let is_of_a_proxy = !bad.is_forbidden;
    is_of_a_proxy.then(|| About::said(method?, host?, uri?))?
}

/// Who asked the gates without being a trusted proxy. Each is told of once.
#[derive(Default)]
pub(crate) struct Strangers(Mutex<BTreeSet<IpAddr>>);

impl Strangers {
    pub fn note(&self, peer: IpAddr) {
        let peer = peer.to_canonical();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < STRANGERS_MAX && known.insert(peer) {
            warn!(
                %peer,
                "asks whether a request may pass, and is refused: if it is the proxy before the shop, add \"{peer}\" to \
                 trusted_proxies"
            );
        }
    }
}

fn passed(status: StatusCode, pass: Option<HeaderValue>) -> Answer {
    let mut answer = status.into_response();
    if let Some(pass) = pass {
        answer
            .headers_mut()
            .insert(HeaderName::from_static(PASS), pass);
    }
    answer
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::Secret;

    /// A request of a client without a proxy; `None` if it is refused.
    pub(super) fn asked(
        method: &str,
        path: &str,
        client: &str,
        headers: &[(&'static str, &str)],
    ) -> Option<Asked> {
        let mut request = axum::http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).ok()?.into_parts();
        let config = Config::new(
            "127.0.0.1:0".parse().unwrap(),
            Secret::from([7; 32]),
            Vec::new(),
        );
        Asked::direct(&parts, client.parse().unwrap(), &config).ok()
    }

    #[test]
    fn the_log_has_what_a_proxy_asked_about_also_if_it_cannot_be_understood() {
        let (parts, ()) = axum::http::Request::builder()
            .header("host", "Shop.example")
            .header("x-original-method", "GET")
            .header("x-original-uri", "/a/%2e%2e%2f?ticket=1")
            .body(())
            .unwrap()
            .into_parts();
        let bad = |is_forbidden| BadRequest {
            what: "it is bad",
            is_forbidden,
        };
        let said = about(&parts, &ORIGINAL, &bad(false)).unwrap();
        assert_eq!(said.method, Method::GET);
        let (host, path) = (said.host.as_str(), said.path.as_str());
        assert_eq!((host, path), ("Shop.example", "/a/%2e%2e%2f"));
        assert!(about(&parts, &FORWARDED, &bad(false)).is_none());
        assert!(about(&parts, &ORIGINAL, &bad(true)).is_none());
    }

    #[test]
    fn the_way_back_is_encoded_and_short_enough_for_a_header() {
        let rule = LineRule::new("sale".parse().unwrap());
        let page = |method, to: &str| {
            let referer = [
                ("host", "shop.example"),
                ("referer", "https://shop.example/cart?x=1"),
            ];
            waiting_page(&rule, &asked(method, to, "192.0.2.1", &referer).unwrap())
        };
        let expected = "/_nowserving/wait?line=sale&to=%2Fbuy%3Fa%3D1%26b%3D%2525";
        assert_eq!(page("GET", "/buy?a=1&b=%25"), expected);
        let long = "x".repeat(3_000);
        let expected = "/_nowserving/wait?line=sale&to=%2Fbuy";
        assert_eq!(page("GET", &format!("/buy?{long}")), expected);
        let expected = "/_nowserving/wait?line=sale&to=%2F";
        assert_eq!(page("GET", &format!("/{long}")), expected);
        // After a form, to the page where it stood.
        let expected = "/_nowserving/wait?line=sale&to=%2Fcart%3Fx%3D1";
        assert_eq!(page("POST", "/buy"), expected);
    }
}
