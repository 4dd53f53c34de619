//! Where the NATS servers are, and who we are to them, as one string says both.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// NATS servers, and the login that they all take. Printed without the login.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers {
    urls: Vec<String>,
    login: Option<Login>,
}

/// What a NATS server wants to know of its clients. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub enum Login {
    /// `user:password@` before the host.
    User {
        /// Who.
        user: String,
        /// The password.
        password: String,
    },
    /// `token@` before the host.
    Token(String),
}

/// A list of servers that cannot be read. Its text has no login in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadServers {
    /// There is an empty one.
    #[error("nats: server {0} of the list is empty")]
    Empty(usize),
    /// What stands before the `@` is not UTF-8 once percent signs are decoded.
    #[error("nats: the login of server {0} of the list is not UTF-8")]
    NotText(usize),
    /// There can be only one.
    #[error("nats: server {0} of the list has another login than those before it")]
    AnotherLogin(usize),
}

impl Servers {
    /// The servers' URLs, without a login.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Who we are to them.
    pub fn login(&self) -> Option<&Login> {
        self.login.as_ref()
    }
}

impl FromStr for Servers {
    type Err = BadServers;

    /// Reads a comma-separated list of URLs: `[nats://|tls://][user:password@|token@]host[:port]`.
    /// What is not allowed before an `@` stands as a percent sign and two hex digits. One server's
    /// login is taken for those that have none.
    fn from_str(text: &str) -> Result<Servers, BadServers> {
        let (mut urls, mut login) = (Vec::new(), None);
        for (no, server) in (1..).zip(text.split(',').map(str::trim)) {
            let (scheme, rest) = match server.split_once("://") {
                Some((scheme, rest)) => (Some(scheme), rest),
                None => (None, server),
            };
            let (before, host) = match rest.rsplit_once('@') {
                Some((before, host)) => (Some(before), host),
                None => (None, rest),
            };
            if host.is_empty() {
                return Err(BadServers::Empty(no));
            }
            if let Some(before) = before {
                let one = Login::read(before).ok_or(BadServers::NotText(no))?;
                if *login.get_or_insert_with(|| one.clone()) != one {
                    return Err(BadServers::AnotherLogin(no));
                }
            }
            urls.push(match scheme {
                Some(scheme) => format!("{scheme}://{host}"),
                None => host.to_owned(),
            });
        }
        Ok(Servers { urls, login })
    }
}

impl Login {
    fn read(text: &str) -> Option<Login> {
        let decoded = |part: &str| Some(percent_decode_str(part).decode_utf8().ok()?.into_owned());
        Some(match text.split_once(':') {
            Some((user, password)) => Login::User {
                user: decoded(user)?,
                password: decoded(password)?,
            },
            None => Login::Token(decoded(text)?),
        })
    }
}

impl fmt::Display for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.urls.join(","))
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn user(user: &str, password: &str) -> Login {
        Login::User {
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    #[test]
    fn logins_are_taken_out_of_urls() {
        let none: Servers = "nats://a:1, b".parse().unwrap();
        assert_eq!(none.urls(), ["nats://a:1", "b"]);
        assert!(none.login().is_none());
        for (text, urls, login) in [
            ("nats://u:p@a:1", "nats://a:1", user("u", "p")),
            ("u:p@a,nats://b", "a,nats://b", user("u", "p")),
            (
                "tls://u:p%40%3a@a,tls://u:p%40%3A@b",
                "tls://a,tls://b",
                user("u", "p@:"),
            ),
            ("nats://u:p@@a", "nats://a", user("u", "p@")),
            (
                "nats://s3cret@[::1]:4222",
                "nats://[::1]:4222",
                Login::Token("s3cret".into()),
            ),
        ] {
            let servers: Servers = text.parse().unwrap();
            assert_eq!(servers.to_string(), urls, "{text}");
            assert_eq!(format!("{servers:?}"), urls, "{text}");
            assert!(servers.login() == Some(&login), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_without_secrets() {
        for (text, error) in [
            ("", BadServers::Empty(1)),
            ("nats://a,", BadServers::Empty(2)),
            ("nats://s3cret:s3cret@", BadServers::Empty(1)),
            ("nats://a,nats://%ff:s3cret@b", BadServers::NotText(2)),
            (
                "nats://a:s3cret@a,nats://b:s3cret@b",
                BadServers::AnotherLogin(2),
            ),
        ] {
            let refused = text.parse::<Servers>().unwrap_err();
            assert_eq!(refused, error, "{text}");
            assert!(!refused.to_string().contains("s3cret"));
        }
    }
}
