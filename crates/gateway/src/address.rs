//! From where a request comes, and what it asks for.
//!
//! Headers such as `X-Forwarded-For` are believed of trusted proxies alone ([`Config::trusted_proxies`]), and each of them
//! must be there once: a proxy that only adds to what the client sent would let the client choose.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ::http::header::{HOST, HeaderName, ORIGIN};
use ::http::request::Parts;
use ::http::{HeaderMap, Method};

use crate::config::Config;

/// Longer paths with queries are refused.
const URI_BYTES_MAX: usize = 8 * 1024;
/// A longer name is no host.
const HOST_BYTES_MAX: usize = 255;
/// Hops of `X-Forwarded-For` that are looked at.
const HOPS_MAX: usize = 20;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub(crate) const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// By which a proxy says what it asks about: the method, the host, and the path with its query.
pub(crate) const FORWARDED: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-method"),
    FORWARDED_HOST,
    HeaderName::from_static("x-forwarded-uri"),
];
/// The same of nginx.
pub(crate) const ORIGINAL: [HeaderName; 3] = [
    HeaderName::from_static("x-original-method"),
    HOST,
    HeaderName::from_static("x-original-uri"),
];

/// A request that cannot be understood, or that its sender may not make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BadRequest {
    /// For people. Without anything that the client sent.
    pub what: &'static str,
    /// The sender is no trusted proxy (403, else 400).
    pub is_forbidden: bool,
}

impl BadRequest {
    /// See [`Config::other_hosts`].
    pub const UNKNOWN_HOST: BadRequest = BadRequest {
        what: "nothing is known by this name of a host",
        is_forbidden: true,
    };

    fn of(what: &'static str) -> BadRequest {
        BadRequest {
            what,
            is_forbidden: false,
        }
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

/// What a visitor asks for.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub method: Method,
    /// In lower case, without a port; empty if there was none.
    pub host: String,
    /// [Normal](normal_path).
    pub path: String,
    /// As it was sent; begins with one `/`.
    pub path_and_query: String,
    pub https: bool,
    /// The visitor's address, not that of a proxy.
    pub client: IpAddr,
    pub headers: HeaderMap,
}

impl Asked {
    /// The request itself is what the visitor asks for: pages and streams of the gateway.
    pub fn direct(parts: &Parts, peer: IpAddr, config: &Config) -> Result<Asked, BadRequest> {
        let uri = parts.uri.path_and_query();
        let uri = uri.map_or("/", |uri| uri.as_str());
        let is_trusted = config.trusts(peer);
        let host = match is_trusted.then(|| one(&parts.headers, &FORWARDED_HOST)) {
            Some(forwarded) => forwarded?,
            None => None,
        };
        // HTTP/2 has it in the URI.
        let host = match (host, parts.uri.authority()) {
            (Some(host), _) => host,
            (None, Some(authority)) => authority.as_str(),
            (None, None) => one(&parts.headers, &HOST)?.unwrap_or(""),
        };
        let source = Source::of(&parts.headers, peer, config)?;
        source.asks(parts.method.clone(), host, uri, &parts.headers)
    }

    /// What a proxy asks about by `X-Forwarded-Method`, `-Host` and `-Uri`.
    pub fn forwarded(parts: &Parts, peer: IpAddr, config: &Config) -> Result<Asked, BadRequest> {
        Asked::by_headers(parts, peer, config, &FORWARDED)
    }

    /// What nginx asks about by `X-Original-Method`, `X-Original-URI` and `Host`.
    pub fn original(parts: &Parts, peer: IpAddr, config: &Config) -> Result<Asked, BadRequest> {
        Asked::by_headers(parts, peer, config, &ORIGINAL)
    }

    fn by_headers(
        parts: &Parts,
        peer: IpAddr,
        config: &Config,
        of: &[HeaderName; 3],
    ) -> Result<Asked, BadRequest> {
        if !config.trusts(peer) {
            return Err(BadRequest {
                what: "only trusted proxies may ask: see trusted_proxies",
                is_forbidden: true,
            });
        }
        let [method, host, uri] = of.each_ref().map(|name| one(&parts.headers, name));
        let missing = BadRequest::of("the proxy does not say what was asked for");
        let (Some(method), Some(uri)) = (method?, uri?) else {
            return Err(missing);
        };
        let method =
            Method::from_bytes(method.as_bytes()).map_err(|_| BadRequest::of("no such method"))?;
        let source = Source::of(&parts.headers, peer, config)?;
        source.asks(method, host?.unwrap_or(""), uri, &parts.headers)
    }

    /// A request for a page, for the one that looks at it now: not of a script, and not in advance.
    pub fn is_navigation(&self) -> bool {
        let is_read = matches!(self.method, Method::GET | Method::HEAD);
        is_read && !self.is_prefetch() && self.wants_html()
    }

    /// The browser loads it in advance. Nobody has asked for it yet.
    pub fn is_prefetch(&self) -> bool {
        ["sec-purpose", "purpose", "x-moz", "x-purpose"]
            .iter()
            .any(|name| {
                let values = self.headers.get_all(*name).iter();
                let mut values = values.filter_map(|value| value.to_str().ok());
                values.any(|value| value.contains("prefetch") || value.contains("prerender"))
            })
    }

    /// Whether a page of another host asks, as far as `Origin` says so.
    pub fn is_of_another_origin(&self) -> bool {
        let is_own = |origin: &str| {
            let host = origin
                .strip_prefix("https://")
                .or(origin.strip_prefix("http://"));
            host.is_some_and(|host| normal_host(host).is_ok_and(|host| host == self.host))
        };
        let mut origins = self.headers.get_all(ORIGIN).iter();
        origins.any(|origin| !origin.to_str().is_ok_and(is_own))
    }

    /// Whether a page is the right answer: by what the browser says that it is for, else by `Accept`.
    pub fn wants_html(&self) -> bool {
        crate::http::accept::wants_html(&self.headers)
    }
}

/// From where a request comes.
struct Source {
    client: IpAddr,
    https: bool,
}

impl Source {
    fn of(headers: &HeaderMap, peer: IpAddr, config: &Config) -> Result<Source, BadRequest> {
        if !config.trusts(peer) {
            return Ok(Source {
                client: peer.to_canonical(),
                https: config.tls.is_some(),
            });
        }
        let proto = one(headers, &FORWARDED_PROTO)?;
        Ok(Source {
            client: first_untrusted(headers, peer, config)?,
            https: proto.map_or(config.tls.is_some(), |proto| proto == "https"),
        })
    }

    fn asks(
        self,
        method: Method,
        host: &str,
        uri: &str,
        headers: &HeaderMap,
    ) -> Result<Asked, BadRequest> {
        if uri.len() > URI_BYTES_MAX {
            return Err(BadRequest::of("the address is too long"));
        }
        if uri.contains('#') {
            return Err(BadRequest::of("an address that is asked for has no #"));
        }
        let path = uri.split('?').next().unwrap_or("");
        Ok(Asked {
            method,
            host: normal_host(host)?,
            path: normal_path(path).map_err(BadRequest::of)?,
            path_and_query: uri.to_owned(),
            https: self.https,
            client: self.client,
            headers: headers.clone(),
        })
    }
}

/// The visitor's address for the log: the peer's if the proxy says nothing that can be read.
pub(crate) fn client(headers: &HeaderMap, peer: IpAddr, config: &Config) -> IpAddr {
    let from = Source::of(headers, peer, config);
    from.map_or(peer.to_canonical(), |from| from.client)
}

/// Whether a request comes from this machine or from a private network. Not if it cannot be read for whom a proxy asks, nor if
/// the proxy is not trusted.
pub(crate) fn is_private(headers: &HeaderMap, peer: IpAddr, config: &Config) -> bool {
    if headers.contains_key(&FORWARDED_FOR) && !config.trusts(peer) {
        return false;
    }
    let from = Source::of(headers, peer, config);
    from.is_ok_and(|from| match from.client {
        IpAddr::V4(it) => it.is_loopback() || it.is_private() || it.is_link_local(),
        IpAddr::V6(it) => it.is_loopback() || it.is_unique_local() || it.is_unicast_link_local(),
    })
}

/// The visitor's address: the last of `X-Forwarded-For` that is no trusted proxy. Each proxy adds the address from which it
/// got the request at the end, so what stands before the first one that is not trusted is anybody's word.
fn first_untrusted(
    headers: &HeaderMap,
    peer: IpAddr,
    config: &Config,
) -> Result<IpAddr, BadRequest> {
    let bad = || BadRequest::of("X-Forwarded-For has no address");
    let mut client = peer.to_canonical();
    let mut hops = 0;
    for value in headers.get_all(FORWARDED_FOR).iter().rev() {
        let value = value.to_str().map_err(|_| bad())?;
        for hop in value.rsplit(',') {
            hops += 1;
            if hops > HOPS_MAX {
                return Err(BadRequest::of("X-Forwarded-For has too many addresses"));
            }
            client = address(hop.trim()).ok_or_else(bad)?;
            if !config.trusts(client) {
                return Ok(client);
            }
        }
    }
    Ok(client)
}

/// With or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse().ok();
    let address = address.or_else(|| text.parse().ok().map(|it: SocketAddr| it.ip()));
    address.map(|address| address.to_canonical())
}

/// The value of a header that must not be there twice.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, BadRequest> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(BadRequest::of("a header of the proxy is there twice"));
    }
    let value = value.to_str();
    value
        .map(Some)
        .map_err(|_| BadRequest::of("a header of the proxy is not text"))
}

/// In lower case, without a port and a dot at its end.
fn normal_host(text: &str) -> Result<String, BadRequest> {
    let bad = BadRequest::of("Host is no name of a host");
    if text.len() > HOST_BYTES_MAX {
        return Err(bad);
    }
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = match text.rsplit_once(':') {
        // Not the last part of an IPv6 address.
        Some((host, port)) if is_port(port) && (!host.contains(':') || host.ends_with(']')) => host,
        _ => text,
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let is_address = inner.is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok());
    match is_address || host.bytes().all(is_allowed) {
        true => Ok(host),
        false => Err(bad),
    }
}

/// A path as rules compare it: percent-decoded, without empty and dot segments and without parameters (`;…`), with one `/`
/// at its beginning, and one at its end if it had one.
///
/// # Errors
/// What a proxy and the shop behind could take for different paths: encoded slashes, backslashes and control
/// characters, broken percent-encoding, `..` above the root, and dots with parameters (`..;x`).
pub(crate) fn normal_path(path: &str) -> Result<String, &'static str> {
    if !path.starts_with('/') {
        return Err("a path begins with /");
    }
    let mut segments: Vec<String> = Vec::new();
    let mut is_dir = false;
    for segment in path.split('/').skip(1) {
        let decoded = decoded(segment)?;
        let (name, has_parameters) = match decoded.split_once(';') {
            Some((name, _)) => (name, true),
            None => (decoded.as_str(), false),
        };
        is_dir = matches!(name, "" | "." | "..");
        match name {
            "." | ".." if has_parameters => return Err("a path has no parameters behind dots"),
            "" | "." => {}
            ".." => drop(
                segments
                    .pop()
                    .ok_or("a path does not lead above the root")?,
            ),
            _ => segments.push(name.to_owned()),
        }
    }
    let mut normal = String::with_capacity(path.len());
    for segment in &segments {
        normal.push('/');
        normal.push_str(segment);
    }
    if is_dir || normal.is_empty() {
        normal.push('/');
    }
    Ok(normal)
}

fn decoded(segment: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digits = rest.next().zip(rest.next());
                let byte = digits.and_then(|(high, low)| Some(digit(high)? * 16 + digit(low)?));
                match byte.ok_or("a path has two hexadecimal digits behind %")? {
                    b'/' => return Err("a path has no encoded slashes"),
                    byte => byte,
                }
            }
            byte => byte,
        };
        if byte == b'\\' {
            return Err("a path has no backslashes");
        }
        if byte.is_ascii_control() {
            return Err("a path has no control characters");
        }
        bytes.push(byte);
    }
    // What is no UTF-8 fits no rule but those for all below a path.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned()))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Where "Enter now" leads: a path of the shop with its query. Anything else is the shop's root: an address of another
/// host would make the gateway a help for phishing.
pub(crate) fn way_back(to: &str) -> &str {
    let is_odd =
        |byte: u8| byte.is_ascii_control() || byte == b'\\' || byte == b' ' || !byte.is_ascii();
    let is_path = to.starts_with('/') && !to.starts_with("//") && to.len() <= URI_BYTES_MAX;
    match is_path && !to.bytes().any(is_odd) && !to.starts_with("/_nowserving/") {
        true => to,
        false => "/",
    }
}

#[cfg(test)]
mod tests;
