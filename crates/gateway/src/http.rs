//! Requests of browsers and of whoever watches the gateway, and the form of every answer.

pub(crate) mod accept;
mod forms;
pub(crate) mod headers;
mod keys;
mod line;
pub(crate) mod query;
mod wait;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering;

use ::http::request::Parts;
use ::http::{HeaderValue, Method, StatusCode, header};
use axum::Router;
use axum::extract::{ConnectInfo, FromRequestParts, Path, State};
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use serde_json::{Value, json};

pub(crate) use self::keys::PublicKeys;
pub(crate) use self::wait::{back_from, unadmitted, unavailable};

use crate::address::{self, Asked, BadRequest};
use crate::lines::LineView;
use crate::page::ROOT;
use crate::{Gateway, Shared, gate};

/// `/readyz` for clients on the internet.
const NOT_READY: &str =
    "not ready: the reason is in the gateway's log, its dashboard, and /readyz of --metrics-addr";

/// What every handler returns.
pub(crate) type Answer = axum::response::Response;

/// What the access log says of an answer beside its status: in its extensions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Noted {
    pub line: Option<String>,
    /// The state of the page.
    pub page: Option<&'static str>,
    /// By which a visitor can ask about an error.
    pub reference: Option<String>,
    /// The request that a proxy asks about.
    pub about: Option<About>,
}

/// A request that the gateway is asked about.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub method: Method,
    pub host: String,
    pub path: String,
}

impl About {
    pub fn of(asked: &Asked) -> About {
        About {
            method: asked.method.clone(),
            host: asked.host.clone(),
            path: asked.path.clone(),
        }
    }

    /// Of a request that cannot be understood. `None` if not even its method can.
    pub fn said(method: &str, host: &str, uri: &str) -> Option<About> {
        Some(About {
            method: Method::from_bytes(method.as_bytes()).ok()?,
            host: host.to_owned(),
            path: uri.split(['?', '#']).next().unwrap_or("").to_owned(),
        })
    }
}

/// All paths of the main listener. `shop`: what answers the others.
pub(crate) fn routes(gateway: Shared, shop: Option<Router>) -> Router {
    let routes = Router::new()
        .route("/_nowserving/wait", any(wait::wait))
        .route("/_nowserving/enter", post(forms::enter))
        .route("/_nowserving/leave", post(forms::leave))
        .route("/_nowserving/page/{*file}", get(file))
        .route("/_nowserving/v1/lines/{line}/status", get(line::status))
        .route("/_nowserving/v1/lines/{line}/events", get(line::events))
        .route("/_nowserving/v1/lines/{line}/board", get(line::board))
        .route("/_nowserving/jwks.json", get(keys::jwks))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .method_not_allowed_fallback(not_allowed);
    let routes = match shop {
        Some(shop) => routes.fallback_service(shop),
        None => routes.fallback(not_the_shop),
    };
    routes
        .with_state(gateway.clone())
        .merge(gate::routes(gateway))
}

/// The address of the other side of the connection, which the server loop notes.
pub(crate) fn peer(parts: &Parts) -> IpAddr {
    let info = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    info.map_or(Ipv4Addr::UNSPECIFIED.into(), |info| info.0.ip())
}

/// As a handler's argument: what is asked of the gateway itself.
impl FromRequestParts<Shared> for Asked {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, gateway: &Shared) -> Result<Asked, Answer> {
        let peer = peer(parts);
        let asked = Asked::direct(parts, peer, &gateway.config).map_err(|why| bad(&why))?;
        warn_of_http(gateway, &asked, peer);
        Ok(asked)
    }
}

/// Somebody asks without https, whose cookies are for https: they do not come back, and no number is taken.
fn warn_of_http(gateway: &Gateway, asked: &Asked, peer: IpAddr) {
    let config = &gateway.config;
    let is_told = asked.https
        || config.insecure_cookies
        || peer.to_canonical().is_loopback()
        || config.trusts(peer);
    if !is_told && !gateway.warned_of_http.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            %peer,
            "asks without https, so its browser does not keep the cookies, and visitors get no number: give the gateway \
             `tls`, or name the proxy that has the certificate in trusted_proxies"
        );
    }
}

/// `application/problem+json` (RFC 9457). `title` and `detail` are for people.
pub(crate) fn problem(status: StatusCode, title: &str, detail: &str) -> Answer {
    let body = json!({"title": title, "status": status.as_u16(), "detail": detail});
    of_problem(status, &body)
}

pub(crate) fn of_problem(status: StatusCode, body: &Value) -> Answer {
    let mut answer = json(status, body);
    let kind = HeaderValue::from_static("application/problem+json");
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer
}

/// A request that cannot be understood.
pub(crate) fn bad(why: &BadRequest) -> Answer {
    match why.is_forbidden {
        true => problem(StatusCode::FORBIDDEN, "Forbidden", why.what),
        false => problem(StatusCode::BAD_REQUEST, "Bad request", why.what),
    }
}

/// The last connections are for questions of proxies.
pub(crate) fn no_room() -> Answer {
    let detail = "too many connections are open; ask again";
    let mut answer = problem(StatusCode::SERVICE_UNAVAILABLE, "No room", detail);
    let headers = answer.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// JSON that nobody stores.
pub(crate) fn json(status: StatusCode, body: &Value) -> Answer {
    let kind = (header::CONTENT_TYPE, "application/json");
    let mut answer = (status, [kind], body.to_string()).into_response();
    headers::set_not_stored(answer.headers_mut());
    answer
}

async fn file(State(gateway): State<Shared>, Path(path): Path<String>) -> Answer {
    let Some(asset) = gateway.pages.asset(&path) else {
        return not_found().await;
    };
    let age = match asset.is_for_good {
        true => "public, max-age=31536000, immutable",
        false => "no-store",
    };
    let headers = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CACHE_CONTROL, age),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, asset.bytes).into_response()
}

/// Waits for nobody. The next one knows what has become of the lines since. Anybody may ask that, so it costs few questions,
/// and the internet is told nothing of the set-up.
async fn ready(State(gateway): State<Shared>, parts: Parts) -> Answer {
    gateway.lines.values().for_each(LineView::look_again);
    let Err(why) = gateway.is_ready() else {
        return "ok\n".into_response();
    };
    let why = match address::is_private(&parts.headers, peer(&parts), &gateway.config) {
        true => why.as_str(),
        false => NOT_READY,
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

/// A path that belongs to a line, asked of the gateway itself: somebody has opened its address in place of the shop's. Not
/// sent to the page: from there it would come back to a path that does not exist here.
async fn not_the_shop(State(gateway): State<Shared>, parts: Parts) -> Answer {
    let asked = Asked::direct(&parts, peer(&parts), &gateway.config);
    let of_shop = asked.ok().filter(|asked| !asked.path.starts_with(ROOT));
    let rule = of_shop
        .as_ref()
        .and_then(|asked| gateway.config.rule_for(&asked.host, &asked.path));
    let (Some(asked), Some(rule)) = (&of_shop, rule) else {
        return not_found().await;
    };
    let line = &rule.line;
    let detail = format!(
        "this is the gateway, which the shop's proxy asks about requests: open the shop at the address of the proxy \
         (docs/front.md). The waiting page of the line {line} is at {ROOT}wait?line={line}"
    );
    if !asked.wants_html() {
        return problem(StatusCode::NOT_FOUND, "Not found", &detail);
    }
    let mut answer = (StatusCode::NOT_FOUND, detail + "\n").into_response();
    headers::set_not_stored(answer.headers_mut());
    answer
}

async fn not_found() -> Answer {
    problem(
        StatusCode::NOT_FOUND,
        "Not found",
        "the gateway has nothing at this path",
    )
}

async fn not_allowed() -> Answer {
    problem(
        StatusCode::METHOD_NOT_ALLOWED,
        "Method not allowed",
        "this path has other methods",
    )
}
