//! The dashboard's part of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ::http::HeaderName;
use serde::Deserialize;

use super::ConfigError;

const HOSTS_MAX: usize = 100;

/// What the dashboard on `admin_listen` may do, and as whom it asks the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Admin {
    /// Whether it may change lines. Each change has a name and a reason in the line's journal.
    pub allow_changes: bool,
    /// The names under which browsers reach it, in lower case, without ports. Needed if `admin_listen` is no loopback
    /// address, and for a proxy that keeps the name.
    pub hosts: Vec<String>,
    /// The header in which a trusted proxy says who is logged in: that is the name of all changes then.
    pub user_header: Option<String>,
    /// Credentials of an operator on NATS; at most one of the two. Without either it asks as the gateway does, whose role
    /// may not see much.
    pub creds_file: Option<PathBuf>,
    /// The seed of an operator's nkey.
    pub nkey_file: Option<PathBuf>,
    /// Where this login may hear replies, as `_INBOX.operators`.
    pub inbox_prefix: Option<String>,
}

impl Admin {
    /// Whether it has a login of its own.
    #[must_use]
    pub fn has_login(&self) -> bool {
        self.creds_file.is_some() || self.nkey_file.is_some()
    }

    /// Paths count from this folder.
    pub(super) fn within(self, folder: &Path) -> Admin {
        Admin {
            creds_file: self.creds_file.map(|path| folder.join(path)),
            nkey_file: self.nkey_file.map(|path| folder.join(path)),
            ..self
        }
    }

    pub(super) fn check(&self, listen: Option<SocketAddr>) -> Result<(), ConfigError> {
        let refuse = |field: &str, what: &str| Err(ConfigError::new(field, what));
        if listen.is_none() && *self != Admin::default() {
            return refuse("admin", "without `admin_listen` there is no dashboard");
        }
        let is_open = listen.is_some_and(|listen| !listen.ip().is_loopback());
        if is_open && self.hosts.is_empty() {
            let what = "needed, because `admin_listen` is no loopback address: the names under which browsers reach it";
            return refuse("admin.hosts", what);
        }
        let is_name = |host: &String| {
            let is_allowed = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._[]:".contains(&byte)
            };
            let is_ipv6 = host.starts_with('[') && host.ends_with(']');
            !host.is_empty() && host.bytes().all(is_allowed) && (is_ipv6 || !host.contains(':'))
        };
        if self.hosts.len() > HOSTS_MAX || !self.hosts.iter().all(is_name) {
            let what = "at most 100 names in lower case, without ports";
            return refuse("admin.hosts", what);
        }
        let header = self.user_header.as_ref();
        if header.is_some_and(|name| HeaderName::try_from(name).is_err()) {
            return refuse("admin.user_header", "no name of a header");
        }
        if self.creds_file.is_some() && self.nkey_file.is_some() {
            return refuse("admin", "creds_file or nkey_file, not both");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Config;
    use super::*;

    fn parse(listen: &str, admin: &str) -> Result<Config, ConfigError> {
        let text = format!(
            "listen = \"127.0.0.1:8090\"\ninsecure_cookies = true\n{listen}\n[[line]]\nline = \"sale\"\n[admin]\n{admin}"
        );
        Config::parse(&text, Path::new("/etc/gateway"))
    }

    #[test]
    fn a_dashboard_on_loopback_needs_nothing_more() {
        let listen = "admin_listen = \"127.0.0.1:8091\"";
        let config = parse(listen, "creds_file = \"ops.creds\"").unwrap();
        let creds = config.admin.creds_file.as_ref().unwrap();
        assert_eq!(creds, Path::new("/etc/gateway/ops.creds"));
        assert!(config.admin.has_login() && !config.admin.allow_changes);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let loopback = "admin_listen = \"127.0.0.1:8091\"";
        let open = "admin_listen = \"0.0.0.0:8091\"";
        for (listen, admin, field) in [
            ("", "allow_changes = true", "admin"),
            (open, "", "admin.hosts"),
            (open, "hosts = [\"ops.example:8091\"]", "admin.hosts"),
            (open, "hosts = [\"Ops.example\"]", "admin.hosts"),
            (loopback, "user_header = \"a b\"", "admin.user_header"),
            (loopback, "creds_file = \"a\"\nnkey_file = \"b\"", "admin"),
            (loopback, "password = \"a\"", "the configuration"),
        ] {
            let error = parse(listen, admin).unwrap_err();
            assert_eq!(error.field, field, "{error}");
        }
        assert!(parse(open, "hosts = [\"ops.example\", \"[2001:db8::1]\"]").is_ok());
    }
}
