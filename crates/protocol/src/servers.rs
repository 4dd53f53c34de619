//! The NATS servers and the login for them, read from one string.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// NATS servers, and the login for all of them. Printed without the login.
#[derive(Clone, PartialEq, Eq)]
pub struct Servers {
    urls: Vec<String>,
    login: Option<Login>,
}

/// Never printed.
#[derive(Clone, PartialEq, Eq)]
enum Login {
    /// `user:password@` before the host.
    User { user: String, password: String },
    /// `token@` before the host.
    Token(String),
}

/// A list of servers that cannot be read. The text of the error has no login in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadServers {
    /// A server of the list is empty.
    #[error("nats: server {0} of the list is empty")]
    Empty(usize),
    /// The part before the `@` is not UTF-8 once percent signs are decoded.
    #[error("nats: the login of server {0} of the list is not UTF-8")]
    NotText(usize),
    /// Servers have different logins.
    #[error("nats: server {0} of the list has another login than those before it")]
    AnotherLogin(usize),
}

impl Servers {
    /// The servers' URLs, without a login.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// Each server by itself, with the login.
    pub fn each(&self) -> impl Iterator<Item = Servers> + '_ {
        self.urls.iter().map(|url| Servers {
            urls: vec![url.clone()],
            login: self.login.clone(),
        })
    }

    /// Adds the login to the options of a connection, by one of the two functions: `user` takes
    /// the user and the password, `token` the token. Generic, so that this crate needs no NATS
    /// library: `log_in(options, ConnectOptions::user_and_password, ConnectOptions::token)`.
    pub fn log_in<O>(
        &self,
        options: O,
        user: impl FnOnce(O, String, String) -> O,
        token: impl FnOnce(O, String) -> O,
    ) -> O {
        match self.login.clone() {
            Some(Login::User {
                user: name,
                password,
            }) => user(options, name, password),
            Some(Login::Token(text)) => token(options, text),
            None => options,
        }
    }
}

impl FromStr for Servers {
    type Err = BadServers;

    /// Reads a comma-separated list of URLs: `[nats://|tls://][user:password@|token@]host[:port]`.
    /// Characters that are not allowed before an `@` are written as a percent sign and two hex
    /// digits. The login of one server is used for those that have none.
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

    /// The credentials that a connection would use.
    fn login(servers: &Servers) -> Vec<String> {
        servers.log_in(
            Vec::new(),
            |_, user, password| vec![user, password],
            |_, token| vec![token],
        )
    }

    #[test]
    fn logins_are_taken_out_of_urls() {
        let none: Servers = "nats://a:1, b".parse().unwrap();
        assert_eq!(none.urls(), ["nats://a:1", "b"]);
        assert!(login(&none).is_empty());
        for (text, urls, expected) in [
            ("nats://u:p@a:1", "nats://a:1", &["u", "p"][..]),
            ("u:p@a,nats://b", "a,nats://b", &["u", "p"]),
            (
                "tls://u:p%40%3a@a,tls://u:p%40%3A@b",
                "tls://a,tls://b",
                &["u", "p@:"],
            ),
            ("nats://u:p@@a", "nats://a", &["u", "p@"]),
            ("nats://s3cret@[::1]:4222", "nats://[::1]:4222", &["s3cret"]),
        ] {
            let servers: Servers = text.parse().unwrap();
            assert_eq!(servers.to_string(), urls, "{text}");
            assert_eq!(format!("{servers:?}"), urls, "{text}");
            assert_eq!(login(&servers), expected, "{text}");
        }
    }

    #[test]
    fn parse_errors_name_the_part_without_secrets() {
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
