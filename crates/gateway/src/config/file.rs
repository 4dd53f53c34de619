//! The file, and the limits of its values.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ::http::{HeaderName, Method};
use ipnet::IpNet;
use serde::Deserialize;

use super::{
    AddressLimitsConfig, Admin, BypassRule, Config, ConfigError, LineRule, OnUnavailable,
    OtherHosts, PathRule, Secret, Shop, TlsFiles,
};

pub const PATIENCE_MS: u64 = 2_000;
pub const PAGE_STATUS: u16 = 503;
pub const ADMISSION_STALE_MS: u64 = 5_000;
pub const STREAMS_MAX: usize = 9_000;
pub const CONNECTIONS_BESIDE_STREAMS: usize = 2_000;
/// Many people can share an address.
pub const ADDRESS_CONNECTIONS_MAX: usize = 1_000;

const CONNECTIONS_BESIDE_STREAMS_MIN: usize = 100;
const LINES_MAX: usize = 1_000;
const RULES_MAX: usize = 1_000;
const TEXT_BYTES_MAX: usize = 200;
const AUTO_ENTER_S_MAX: u32 = 600;
const LIMITED: [&str; 3] = ["enter", "page", "status"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: SocketAddr,
    admin_listen: Option<SocketAddr>,
    #[serde(default)]
    admin: Admin,
    envoy_listen: Option<SocketAddr>,
    secret_file: Option<PathBuf>,
    #[serde(default)]
    line: Vec<LineSection>,
    #[serde(default)]
    bypass: Vec<BypassSection>,
    #[serde(default)]
    trusted_proxies: Vec<String>,
    #[serde(default)]
    other_hosts: OtherHosts,
    #[serde(default)]
    on_unavailable: OnUnavailable,
    patience_ms: Option<u64>,
    page_status: Option<u16>,
    page_dir: Option<PathBuf>,
    #[serde(default)]
    shop: Shop,
    #[serde(default)]
    insecure_cookies: bool,
    admission_stale_ms: Option<u64>,
    streams_max: Option<usize>,
    connections_max: Option<usize>,
    address_connections_max: Option<usize>,
    tls: Option<TlsFiles>,
    address_limits: Option<LimitsSection>,
    notices_bucket: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineSection {
    line: String,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    paths: Vec<String>,
    complete_path: Option<String>,
    auto_enter_s: Option<u32>,
    opens_at: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BypassSection {
    #[serde(default)]
    paths: Vec<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    from: Vec<String>,
    header: Option<HeaderSection>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderSection {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsSection {
    domain: String,
    requests: Option<Vec<String>>,
}

pub fn parse(text: &str, folder: &Path) -> Result<Config, ConfigError> {
    // Its message names the line and the field.
    let file: File = toml::from_str(text)
        .map_err(|error| ConfigError::new("the configuration", error.to_string().trim_end()))?;
    // That a secret is required is not what is wrong with insecure cookies at another address.
    let secret = secret(&file, folder).map_err(|error| {
        let cookies = check_insecure_cookies(file.insecure_cookies, file.listen);
        cookies.err().unwrap_or(error)
    })?;
    let mut lines = Vec::new();
    for (nth, section) in file.line.into_iter().enumerate() {
        lines.push(section.read(&format!("line[{nth}]"))?);
    }
    let mut config = Config::new(file.listen, secret, lines);
    for (nth, section) in file.bypass.into_iter().enumerate() {
        config.bypass.push(section.read(&format!("bypass[{nth}]"))?);
    }
    config.admin_listen = file.admin_listen;
    config.admin = file.admin.within(folder);
    config.envoy_listen = file.envoy_listen;
    config.trusted_proxies = nets("trusted_proxies", &file.trusted_proxies)?;
    config.other_hosts = file.other_hosts;
    config.on_unavailable = file.on_unavailable;
    config.patience_ms = file.patience_ms.unwrap_or(PATIENCE_MS);
    config.page_status = file.page_status.unwrap_or(PAGE_STATUS);
    config.page_dir = file.page_dir.map(|dir| folder.join(dir));
    config.shop = file.shop;
    config.insecure_cookies = file.insecure_cookies;
    config.admission_stale_ms = file.admission_stale_ms.unwrap_or(ADMISSION_STALE_MS);
    config.streams_max = file.streams_max.unwrap_or(STREAMS_MAX);
    let connections_max = config
        .streams_max
        .saturating_add(CONNECTIONS_BESIDE_STREAMS);
    config.connections_max = file.connections_max.unwrap_or(connections_max);
    config.address_connections_max = file
        .address_connections_max
        .unwrap_or(ADDRESS_CONNECTIONS_MAX);
    config.tls = file.tls.map(|tls| TlsFiles {
        cert_file: folder.join(tls.cert_file),
        key_file: folder.join(tls.key_file),
    });
    config.address_limits = file.address_limits.map(|limits| AddressLimitsConfig {
        domain: limits.domain,
        requests: limits.requests.unwrap_or_else(|| vec!["enter".to_owned()]),
    });
    config.notices_bucket = file.notices_bucket;
    Ok(config)
}

/// A gateway on a loopback address may do without a file: it stands alone.
fn secret(file: &File, folder: &Path) -> Result<Secret, ConfigError> {
    let bad = |what: String| ConfigError::new("secret_file", what);
    match &file.secret_file {
        Some(path) => {
            let path = folder.join(path);
            Secret::load(&path).map_err(|what| bad(format!("{}: {what}", path.display())))
        }
        None if file.listen.ip().is_loopback() && file.insecure_cookies => {
            Secret::random().map_err(bad)
        }
        None => Err(bad(
            "required: the same file for all gateways of a shop. Only one that is tried on a loopback address, with \
             insecure_cookies = true, needs none"
                .to_owned(),
        )),
    }
}

impl LineSection {
    fn read(self, at: &str) -> Result<LineRule, ConfigError> {
        let bad = |field: &str, what: String| ConfigError::new(format!("{at}.{field}"), what);
        let line = self.line.parse().map_err(|_| {
            let what = format!(
                "a line's name is 1 to 64 of [A-Za-z0-9_-], not {:?}",
                self.line
            );
            bad("line", what)
        })?;
        let mut rule = LineRule::new(line);
        rule.hosts = self.hosts;
        rule.paths = all(&format!("{at}.paths"), &self.paths)?;
        if let Some(path) = &self.complete_path {
            rule.complete_path = Some(path.parse().map_err(|what| bad("complete_path", what))?);
        }
        if let Some(auto_enter_s) = self.auto_enter_s {
            rule.auto_enter_s = auto_enter_s;
        }
        if let Some(text) = &self.opens_at {
            let opens_at = jiff::Timestamp::from_str(text).map_err(|_| {
                let example = "needs a time as \"2026-12-01T09:00:00+08:00\"";
                bad("opens_at", example.to_owned())
            })?;
            let opens_at_ms = u64::try_from(opens_at.as_millisecond());
            rule.opens_at_ms =
                Some(opens_at_ms.map_err(|_| bad("opens_at", "is before 1970".to_owned()))?);
        }
        Ok(rule)
    }
}

impl BypassSection {
    fn read(self, at: &str) -> Result<BypassRule, ConfigError> {
        let bad = |field: &str, what: String| ConfigError::new(format!("{at}.{field}"), what);
        let methods = self.methods.iter().map(|text| {
            let method = Method::from_str(text);
            method.map_err(|_| bad("methods", format!("{text:?} is no method")))
        });
        let header = match self.header {
            Some(HeaderSection { name, value }) => {
                let name = HeaderName::from_str(&name)
                    .map_err(|_| bad("header.name", format!("{name:?} is no name of a header")))?;
                Some((name, value))
            }
            None => None,
        };
        Ok(BypassRule {
            paths: all(&format!("{at}.paths"), &self.paths)?,
            methods: methods.collect::<Result<_, _>>()?,
            from: nets(&format!("{at}.from"), &self.from)?,
            header,
        })
    }
}

fn all<T: FromStr<Err = String>>(field: &str, texts: &[String]) -> Result<Vec<T>, ConfigError> {
    let parsed = texts.iter().map(|text| text.parse::<T>());
    let parsed = parsed.map(|it| it.map_err(|what| ConfigError::new(field, what)));
    parsed.collect()
}

/// Networks as `10.0.0.0/8`, or single addresses.
fn nets(field: &str, texts: &[String]) -> Result<Vec<IpNet>, ConfigError> {
    let parsed = texts.iter().map(|text| {
        let net: Option<IpNet> = text.parse().ok();
        let single = || text.parse::<IpAddr>().ok().map(IpNet::from);
        net.or_else(single).ok_or_else(|| {
            let what = format!("{text:?} is no network as \"10.0.0.0/8\", and no address");
            ConfigError::new(field, what)
        })
    });
    parsed.collect()
}

/// What types do not say.
pub fn check(config: &Config) -> Result<(), ConfigError> {
    let refuse = |field: &str, what: String| Err(ConfigError::new(field, what));
    let between = |field: &str, value: u64, min: u64, max: u64| match (min..=max).contains(&value) {
        true => Ok(()),
        false => refuse(field, format!("{min} to {max}, not {value}")),
    };
    between("patience_ms", config.patience_ms, 50, 60_000)?;
    between("page_status", config.page_status.into(), 200, 599)?;
    between("admission_stale_ms", config.admission_stale_ms, 0, 60_000)?;
    between("streams_max", config.streams_max as u64, 1, 1_000_000)?;
    let address_connections_max = config.address_connections_max as u64;
    between(
        "address_connections_max",
        address_connections_max,
        10,
        1_000_000,
    )?;
    between("line", config.lines.len() as u64, 1, LINES_MAX as u64)?;
    between("bypass", config.bypass.len() as u64, 0, RULES_MAX as u64)?;
    between(
        "trusted_proxies",
        config.trusted_proxies.len() as u64,
        0,
        RULES_MAX as u64,
    )?;
    // Proxies take the last two for their own: no gateway answers.
    if matches!(config.page_status, 204 | 205 | 304 | 401 | 502 | 504)
        || (300..400).contains(&config.page_status)
    {
        return refuse(
            "page_status",
            "a status that has a body, leads nowhere else, and is no proxy's own (502, 504)"
                .to_owned(),
        );
    }
    let connections_min = config.streams_max + CONNECTIONS_BESIDE_STREAMS_MIN;
    if config.connections_max < connections_min {
        return refuse(
            "connections_max",
            format!("at least {connections_min}: streams_max and {CONNECTIONS_BESIDE_STREAMS_MIN}"),
        );
    }
    config.admin.check(config.admin_listen)?;
    check_insecure_cookies(config.insecure_cookies, config.listen)?;
    if config.insecure_cookies && config.tls.is_some() {
        return refuse("insecure_cookies", "not with `tls`".to_owned());
    }
    for (nth, rule) in config.lines.iter().enumerate() {
        check_line(&format!("line[{nth}]"), rule)?;
    }
    for (nth, rule) in config.bypass.iter().enumerate() {
        let is_empty = rule.paths.is_empty()
            && rule.methods.is_empty()
            && rule.from.is_empty()
            && rule.header.is_none();
        if is_empty {
            return refuse(
                &format!("bypass[{nth}]"),
                "without a part it would fit all requests".to_owned(),
            );
        }
    }
    check_shop(&config.shop)?;
    match &config.address_limits {
        Some(limits) => check_limits(limits),
        None => Ok(()),
    }
}

fn check_insecure_cookies(insecure_cookies: bool, listen: SocketAddr) -> Result<(), ConfigError> {
    if !insecure_cookies || listen.ip().is_loopback() {
        return Ok(());
    }
    Err(ConfigError::new(
        "insecure_cookies",
        format!(
            "only with a loopback address in `listen`, as 127.0.0.1:{}, not {listen}: elsewhere tickets could be read on \
             their way. Leave it out, and give the proxy or the gateway (`tls`) a certificate",
            listen.port()
        ),
    ))
}

fn check_line(at: &str, rule: &LineRule) -> Result<(), ConfigError> {
    let refuse = |field: &str, what: String| Err(ConfigError::new(format!("{at}.{field}"), what));
    if rule.auto_enter_s > AUTO_ENTER_S_MAX {
        return refuse("auto_enter_s", format!("0 to {AUTO_ENTER_S_MAX}"));
    }
    if rule.hosts.len() > RULES_MAX || rule.paths.len() > RULES_MAX {
        return refuse("hosts", format!("at most {RULES_MAX} hosts and paths"));
    }
    if rule.complete_path.as_ref().is_some_and(PathRule::has_below) {
        let what = "one address, without /*: whoever has completed a visit may read it again";
        return refuse("complete_path", what.to_owned());
    }
    for host in &rule.hosts {
        let name = host.strip_prefix("*.").unwrap_or(host);
        let is_allowed = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._[]".contains(&byte)
        };
        let is_ipv6 = name.starts_with('[') && name.ends_with(']');
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| is_allowed(byte) || (is_ipv6 && byte == b':'))
        {
            let what =
                format!("{host:?}: a name in lower case, without a port, or \"*.\" and a name");
            return refuse("hosts", what);
        }
    }
    Ok(())
}

fn check_shop(shop: &Shop) -> Result<(), ConfigError> {
    let is_long = |text: &Option<String>| text.as_ref().is_some_and(|it| it.len() > TEXT_BYTES_MAX);
    if is_long(&shop.name) || is_long(&shop.url) {
        return Err(ConfigError::new(
            "shop",
            format!("texts of at most {TEXT_BYTES_MAX} bytes"),
        ));
    }
    let leads =
        |url: &str| (url.starts_with('/') && !url.starts_with("//")) || url.starts_with("https://");
    match &shop.url {
        Some(url) if !leads(url) => Err(ConfigError::new(
            "shop.url",
            "a path, or an address with https://",
        )),
        _ => Ok(()),
    }
}

fn check_limits(limits: &AddressLimitsConfig) -> Result<(), ConfigError> {
    let requests = &limits.requests;
    let unknown = requests.iter().find(|it| !LIMITED.contains(&it.as_str()));
    let known = LIMITED.join(", ");
    let what = match unknown {
        Some(unknown) => format!("{known} are limited, not {unknown:?}"),
        None if requests.is_empty() => format!("at least one of {known}"),
        None => return Ok(()),
    };
    Err(ConfigError::new("address_limits.requests", what))
}
