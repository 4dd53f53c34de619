//! The options of one cluster under a name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nowserving_client::ClientOptions;
use nowserving_security::Security;
use serde::{Deserialize, Serialize};

use super::NATS_DEFAULT;
use crate::output::WrongUsage;

/// The options of one cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// `--nats`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nats: Option<String>,
    /// `--prefix`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// `--inbox-prefix`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inbox_prefix: Option<String>,
    /// `--by`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The login and TLS.
    #[serde(skip_serializing_if = "is_default")]
    pub security: Security,
}

impl Context {
    /// What every command would refuse is refused when it is added.
    pub fn check(&self) -> anyhow::Result<()> {
        if *self == Context::default() {
            let what = "an empty context: give --nats, or another option that says which cluster";
            return Err(WrongUsage(what.to_owned()).into());
        }
        let mut options = ClientOptions::default();
        if let Some(prefix) = &self.prefix {
            options.prefix.clone_from(prefix);
        }
        options.inbox_prefix.clone_from(&self.inbox_prefix);
        options.check(self.nats.as_deref().unwrap_or(NATS_DEFAULT))?;
        Ok(())
    }

    /// The variables of the environment that say something else than this context, and count before it.
    pub fn overridden_by(
        &self,
        environment: &impl Fn(&str) -> Option<OsString>,
    ) -> Vec<&'static str> {
        let text = |text: &Option<String>| text.as_ref().map(OsString::from);
        let file = |file: &Option<PathBuf>| file.clone().map(PathBuf::into_os_string);
        let security = &self.security;
        let has_login = security.credentials_file.is_some() || security.nkey_file.is_some();
        // Of the first two none is the default.
        let all = [
            ("NOWSERVING_NATS", text(&self.nats), true),
            ("NOWSERVING_PREFIX", text(&self.prefix), true),
            ("NOWSERVING_INBOX_PREFIX", text(&self.inbox_prefix), false),
            ("NOWSERVING_BY", text(&self.by), false),
            (
                "NOWSERVING_CREDS",
                file(&security.credentials_file),
                has_login,
            ),
            ("NOWSERVING_NKEY", file(&security.nkey_file), has_login),
            ("NOWSERVING_TLS_CA", file(&security.tls_ca_file), false),
            ("NOWSERVING_TLS_CERT", file(&security.tls_cert_file), false),
            ("NOWSERVING_TLS_KEY", file(&security.tls_key_file), false),
        ];
        let differs = |variable: &str, of_context: &Option<OsString>, counts_if_none: bool| {
            let Some(value) = environment(variable).filter(|value| !value.is_empty()) else {
                return false;
            };
            match of_context {
                // Contexts name files from the root.
                Some(it) => {
                    *it != value
                        && std::path::absolute(&value).ok().as_deref() != Some(Path::new(it))
                }
                None => counts_if_none,
            }
        };
        let all = all
            .iter()
            .filter(|(variable, of_context, if_none)| differs(variable, of_context, *if_none));
        all.map(|(variable, ..)| *variable).collect()
    }
}

fn is_default(security: &Security) -> bool {
    *security == Security::default()
}

/// URLs, joined by commas, without their passwords and tokens.
pub fn masked(urls: &str) -> String {
    let urls = urls.split(',').map(|url| {
        let (scheme, rest) = match url.find("://") {
            Some(at) => url.split_at(at + 3),
            None => ("", url),
        };
        let authority = rest.split('/').next().unwrap_or(rest);
        let Some(at) = authority.rfind('@') else {
            return url.to_owned();
        };
        let (login, host) = (&rest[..at], &rest[at..]);
        match login.split_once(':') {
            Some((user, _)) => format!("{scheme}{user}:***{host}"),
            // A name alone is a token.
            None => format!("{scheme}***{host}"),
        }
    });
    urls.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_no_command_can_use_is_refused() {
        let with = |nats: Option<&str>, prefix: Option<&str>, inbox_prefix: Option<&str>| Context {
            nats: nats.map(str::to_owned),
            prefix: prefix.map(str::to_owned),
            inbox_prefix: inbox_prefix.map(str::to_owned),
            ..Context::default()
        };
        for bad in [
            Context::default(),
            with(Some("http://x y"), None, None),
            with(Some("http://h"), None, None),
            with(Some(""), None, None),
            with(None, Some("a b.>"), None),
            with(None, None, Some("_INBOX.*")),
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
        for good in [
            with(Some("nats://ann:secret@h:4222,tls://h2"), None, None),
            with(None, Some("shop.a"), Some("_INBOX.ops")),
        ] {
            assert!(good.check().is_ok(), "{good:?}");
        }
    }

    #[test]
    fn passwords_are_masked() {
        for (url, expected) in [
            ("nats://h:4222", "nats://h:4222"),
            ("nats://ann:secret@h:4222", "nats://ann:***@h:4222"),
            ("tls://token@h,nats://h2", "tls://***@h,nats://h2"),
            ("ann:p@ss@h", "ann:***@h"),
            ("wss://h/path@x", "wss://h/path@x"),
        ] {
            assert_eq!(masked(url), expected);
        }
    }
}
