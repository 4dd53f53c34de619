//! Whether a request comes from the dashboard's own page, or from a program that is no browser.

use std::net::SocketAddr;

use ::http::header::{CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use ::http::request::Parts;
use ::http::uri::Authority;
use ::http::{HeaderMap, Method, StatusCode};

use crate::config::Config;
use crate::http::peer;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// Longer names are not written into a journal.
const BY_BYTES_MAX: usize = 128;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub detail: &'static str,
}

/// What is checked before anything else. `listen`: where the dashboard is.
pub fn check(parts: &Parts, listen: SocketAddr, config: &Config) -> Result<(), Refusal> {
    let host = host(parts).filter(|host| is_ours(host, listen, config));
    let host = host.ok_or(Refusal {
        status: StatusCode::MISDIRECTED_REQUEST,
        code: "forbidden",
        detail: "the dashboard is not known by this name: see `hosts` of `[admin]`",
    })?;
    if !parts.uri.path().starts_with("/api/") {
        return Ok(());
    }
    let is_post = parts.method == Method::POST;
    let headers = &parts.headers;
    let is_own = match one(headers, &SITE) {
        Some("same-origin") => true,
        Some("none") => !is_post,
        Some(_) => false,
        None if headers.contains_key(&SITE) => false,
        // No browser of these years.
        None => !is_post || has_own_origin(parts, &host, config),
    };
    if !is_own {
        return Err(Refusal {
            status: StatusCode::FORBIDDEN,
            code: "forbidden",
            detail: "only the dashboard's own page may ask for this",
        });
    }
    let is_json = one(headers, &CONTENT_TYPE).is_some_and(|kind| {
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("application/json")
    });
    if is_post && !is_json {
        return Err(Refusal {
            status: StatusCode::UNSUPPORTED_MEDIA_TYPE,
            code: "bad_request",
            detail: "the body must be application/json",
        });
    }
    Ok(())
}

/// Who is logged in, as a trusted proxy says.
pub fn user(parts: &Parts, config: &Config) -> Option<String> {
    let name = config.admin.user_header.as_ref()?;
    let name = HeaderName::try_from(name).ok()?;
    if !config.trusts(peer(parts)) {
        return None;
    }
    let user = one(&parts.headers, &name)?.trim();
    let fits = (1..=BY_BYTES_MAX).contains(&user.len()) && !user.chars().any(char::is_control);
    fits.then(|| user.to_owned())
}

/// The only value of this header.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// As the client names it: host and port.
fn host(parts: &Parts) -> Option<Authority> {
    match parts.uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => one(&parts.headers, &HOST)?.parse().ok(),
    }
}

/// Another site can point its name to this address, and then its page reads answers as its own (DNS rebinding). Any port is
/// right: a tunnel has one of its own, and the browser has connected to it.
fn is_ours(host: &Authority, listen: SocketAddr, config: &Config) -> bool {
    let name = host.host().to_ascii_lowercase();
    let is_plain = !host.as_str().contains('@');
    let is_loopback = listen.ip().is_loopback() && LOOPBACK.contains(&name.as_str());
    is_plain && (is_loopback || config.admin.hosts.contains(&name))
}

fn has_own_origin(parts: &Parts, host: &Authority, config: &Config) -> bool {
    let forwarded = match config.trusts(peer(parts)) {
        true => one(&parts.headers, &FORWARDED_HOST),
        false => None,
    };
    let host = forwarded.unwrap_or(host.as_str());
    let origin = one(&parts.headers, &ORIGIN);
    let origin = origin.and_then(|origin| {
        let rest = origin.strip_prefix("https://");
        rest.or_else(|| origin.strip_prefix("http://"))
    });
    origin.is_some_and(|origin| origin.eq_ignore_ascii_case(host))
}
