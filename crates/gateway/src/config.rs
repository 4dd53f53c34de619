//! The configuration: a TOML file.
//!
//! ```toml
//! listen = "127.0.0.1:8090"
//! secret_file = "gateway.secret"
//! trusted_proxies = ["127.0.0.0/8"]
//!
//! [[line]]
//! line = "spring-sale"
//! paths = ["/checkout/*"]
//! ```

mod admin;
mod file;
mod path_rule;
mod secret;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ::http::{HeaderName, Method};
use ipnet::IpNet;
use nowserving_client::LineName;
use serde::Deserialize;

pub use self::admin::Admin;
pub use self::path_rule::PathRule;
pub use self::secret::Secret;

/// How a gateway behaves. [`Config::load`] reads one, [`Config::new`] makes one; both check it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Where browsers, or the proxy before the gateway, reach it.
    pub listen: SocketAddr,
    /// Where the dashboard is; nowhere by default.
    pub admin_listen: Option<SocketAddr>,
    /// What the dashboard may do.
    pub admin: Admin,
    /// Where Envoy asks by gRPC (`ext_authz`); nowhere by default.
    pub envoy_listen: Option<SocketAddr>,
    /// Signs the pre-cookies: the same on all gateways of a shop.
    pub secret: Secret,
    /// Which requests belong to which line. The first rule that fits counts. A request that fits none passes, if its host is
    /// known ([`Config::other_hosts`]).
    pub lines: Vec<LineRule>,
    /// Which requests pass without a line.
    pub bypass: Vec<BypassRule>,
    /// Whose `X-Forwarded-…` headers are believed. Only these may ask the gates.
    pub trusted_proxies: Vec<IpNet>,
    /// What happens to a request for a host that no rule names, if any rule names hosts.
    pub other_hosts: OtherHosts,
    /// What happens to a visitor without a known admission while the cluster cannot be reached.
    pub on_unavailable: OnUnavailable,
    /// How long the cluster may take to answer one question, 50 to 60,000. A proxy that asks has its answer within 8 s.
    pub patience_ms: u64,
    /// The HTTP status of the waiting page, 200 to 599; 503 by default.
    pub page_status: u16,
    /// A folder with templates, catalogues and assets of the shop.
    pub page_dir: Option<PathBuf>,
    /// What stands at the top of the page.
    pub shop: Shop,
    /// Cookies without `Secure` and without the prefix `__Host-`, for a demo over plain HTTP. Refused if `listen` is not a
    /// loopback address: browsers differ on whether such cookies work there, and elsewhere they would be readable.
    pub insecure_cookies: bool,
    /// For how long an admission is believed without asking, if the event of its end was lost; 0 to 60,000.
    pub admission_stale_ms: u64,
    /// How many streams are open at once, 1 to 1,000,000. One more is refused.
    pub streams_max: usize,
    /// How many connections are open at once, at least 100 more than streams. If its client reads nothing, one takes at most
    /// 80 KiB over HTTP/1, with TLS 180 KiB, and over HTTP/2 2.5 MiB: headers that come, the page, and what is not sent yet.
    /// Trusted proxies may send 64 KiB of headers in place of 16 KiB, and theirs take up to 100 KiB more for each request
    /// under way. If there are any, the last ones (half of those beside streams, at most 1,000) are for their questions; of
    /// visitors, requests get 503 then.
    pub connections_max: usize,
    /// How many of them one address has, 10 to 1,000,000; an IPv6 address counts by its first 64 bits, and four times as
    /// many are those of its first 48. Trusted proxies have as many as they want.
    pub address_connections_max: usize,
    /// TLS of `listen`; without it a proxy before the gateway has it.
    pub tls: Option<TlsFiles>,
    /// Rate limits by the address of the client.
    pub address_limits: Option<AddressLimitsConfig>,
    /// The bucket of key-values with the operators' announcements: keys are names of lines. Without one there are none.
    pub notices_bucket: Option<String>,
}

/// Which requests belong to a line.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LineRule {
    /// The line.
    pub line: LineName,
    /// Hosts in lower case, without ports: `shop.example`, or `*.shop.example` for all below it. Empty: all hosts.
    pub hosts: Vec<String>,
    /// One of these fits. Empty: all paths.
    pub paths: Vec<PathRule>,
    /// An admitted request to this path completes the visit, for shops that do not do so themselves. It belongs to the line
    /// even if `paths` do not name it. One address, without `/*`: whoever has completed may read it again.
    pub complete_path: Option<PathRule>,
    /// How many seconds after the admission a visible tab enters by itself, 0 to 600; 0: never.
    pub auto_enter_s: u32,
    /// When the line opens, for the page of those who come before: milliseconds since 1970.
    pub opens_at_ms: Option<u64>,
}

impl LineRule {
    /// All paths of all hosts belong to this line.
    #[must_use]
    pub fn new(line: LineName) -> LineRule {
        LineRule {
            line,
            hosts: Vec::new(),
            paths: Vec::new(),
            complete_path: None,
            auto_enter_s: 8,
            opens_at_ms: None,
        }
    }

    /// Whether a request belongs to it: its host in lower case without a port, its path as
    /// [`Asked`](crate::address::Asked) has it.
    #[must_use]
    pub fn fits(&self, host: &str, path: &str) -> bool {
        let fits_host = self.hosts.is_empty() || self.names(host);
        let mut paths = self.paths.iter().chain(&self.complete_path);
        fits_host && (self.paths.is_empty() || paths.any(|rule| rule.fits_in_any_case(path)))
    }

    /// Whether one of its `hosts` is this one.
    fn names(&self, host: &str) -> bool {
        self.hosts.iter().any(|rule| host_fits(rule, host))
    }
}

/// Which requests pass without a line. All parts that are given must fit; one of each list.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BypassRule {
    /// Paths.
    pub paths: Vec<PathRule>,
    /// Methods.
    pub methods: Vec<Method>,
    /// Addresses of clients.
    pub from: Vec<IpNet>,
    /// A header with exactly this value, known to partners alone.
    pub header: Option<(HeaderName, String)>,
}

/// What a request for a host gets that no rule names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OtherHosts {
    /// An error (403): a shop that answers to any name would be open under a made-up one.
    #[default]
    Refuse,
    /// The shop.
    Pass,
}

/// What a visitor gets while the cluster does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnUnavailable {
    /// The waiting page, which tries again.
    #[default]
    Hold,
    /// The shop, without a pass.
    Allow,
    /// An error without a page.
    Deny,
}

/// The shop at the top of the page.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shop {
    /// Its name.
    pub name: Option<String>,
    /// Where its name leads to: a path, or an `https://` address.
    pub url: Option<String>,
}

/// A certificate (PEM, with its chain) and its key. Read again on [`Server::reload_tls`](crate::Server::reload_tls).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate.
    pub cert_file: PathBuf,
    /// Its key: readable by its owner alone.
    pub key_file: PathBuf,
}

/// Which rate limits of the cluster hold for addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressLimitsConfig {
    /// The domain of the rules. Descriptors are `request` (`enter`, `page` or `status`), `remote_address`; an IPv6
    /// address counts by its first 64 bits.
    pub domain: String,
    /// Which requests are counted; by default those that enter.
    pub requests: Vec<String>,
}

/// A field of the configuration that is missing or wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {what}")]
pub struct ConfigError {
    /// As the file names it.
    pub field: String,
    /// With the limit.
    pub what: String,
}

impl ConfigError {
    pub(crate) fn new(field: impl Into<String>, what: impl Into<String>) -> ConfigError {
        ConfigError {
            field: field.into(),
            what: what.into(),
        }
    }
}

impl Config {
    /// One with default values.
    #[must_use]
    pub fn new(listen: SocketAddr, secret: Secret, lines: Vec<LineRule>) -> Config {
        Config {
            listen,
            admin_listen: None,
            admin: Admin::default(),
            envoy_listen: None,
            secret,
            lines,
            bypass: Vec::new(),
            trusted_proxies: Vec::new(),
            other_hosts: OtherHosts::default(),
            on_unavailable: OnUnavailable::default(),
            patience_ms: file::PATIENCE_MS,
            page_status: file::PAGE_STATUS,
            page_dir: None,
            shop: Shop::default(),
            insecure_cookies: false,
            admission_stale_ms: file::ADMISSION_STALE_MS,
            streams_max: file::STREAMS_MAX,
            connections_max: file::STREAMS_MAX + file::CONNECTIONS_BESIDE_STREAMS,
            address_connections_max: file::ADDRESS_CONNECTIONS_MAX,
            tls: None,
            address_limits: None,
            notices_bucket: None,
        }
    }

    /// Reads a file. Paths in it count from its folder.
    ///
    /// # Errors
    /// Names the field that is missing or wrong.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let whole = |what: String| ConfigError::new(path.display().to_string(), what);
        let text = std::fs::read_to_string(path).map_err(|error| whole(error.to_string()))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Config::parse(&text, folder)
    }

    /// As [`Config::load`]. `folder`: from where paths count.
    ///
    /// # Errors
    /// Names the field that is missing or wrong.
    pub fn parse(text: &str, folder: &Path) -> Result<Config, ConfigError> {
        let config = file::parse(text, folder)?;
        config.check()?;
        Ok(config)
    }

    /// Whether all values are within their limits. [`Config::load`] does this, [`Server::bind`](crate::Server::bind) too.
    ///
    /// # Errors
    /// Names the field and its limit.
    pub fn check(&self) -> Result<(), ConfigError> {
        file::check(self)
    }

    /// The first rule that fits a host (in lower case, without a port) and a path (as [`Asked`](crate::address::Asked)
    /// has it).
    #[must_use]
    pub fn rule_for(&self, host: &str, path: &str) -> Option<&LineRule> {
        self.lines.iter().find(|rule| rule.fits(host, path))
    }

    /// Whether a request that no rule fits is refused because of its host.
    pub(crate) fn refuses_host(&self, host: &str) -> bool {
        let is_open = self.other_hosts == OtherHosts::Pass;
        let any_named = self.lines.iter().any(|rule| !rule.hosts.is_empty());
        !is_open && any_named && !self.lines.iter().any(|rule| rule.names(host))
    }

    /// The first rule of a line: what its page shows, where the request does not say more.
    #[must_use]
    pub fn rule_of(&self, line: &LineName) -> Option<&LineRule> {
        self.lines.iter().find(|rule| rule.line == *line)
    }

    /// Whether this address is that of a proxy whose headers are believed.
    pub(crate) fn trusts(&self, peer: std::net::IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.trusted_proxies.iter().any(|net| net.contains(&peer))
    }
}

fn host_fits(rule: &str, host: &str) -> bool {
    match rule.strip_prefix('*') {
        // `.shop.example`: at least one label before it.
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => host == rule,
    }
}

#[cfg(test)]
mod tests;
