//! The cookies: the ticket of a line, the pre-cookie that has to come back before a number is taken, the language.
//!
//! Names begin with `__Host-`, so that neither another host below the shop's domain nor a page over plain HTTP can set them.
//! A line's name has no dot, so `nowserving-<line>.pre` is no ticket of another line.

use std::time::{SystemTime, UNIX_EPOCH};

use ::http::header::COOKIE;
use ::http::{HeaderMap, HeaderValue};
use data_encoding::BASE64URL_NOPAD;
use nowserving_client::LineName;

use crate::config::Secret;

/// A week: a ticket has no end of its own, and the line says when it is of no use any more.
const TICKET_S: u64 = 7 * 24 * 3600;
/// A pre-cookie is for a request that follows at once, or for a visitor who takes some minutes to press the button.
const PRE_S: u64 = 3600;
const LANGUAGE_S: u64 = 365 * 24 * 3600;
/// Longer than any ticket, see `nowserving_protocol::ticket`.
const TICKET_BYTES_MAX: usize = 512;
const NONCE_BYTES: usize = 16;
const MAC_BYTES: usize = 16;
/// Seconds since 1970, nonce, MAC.
const PRE_BYTES: usize = 8 + NONCE_BYTES + MAC_BYTES;

/// Reads and writes cookies.
pub(crate) struct Cookies {
    pre_key: [u8; 32],
    /// `__Host-`, and `Secure`.
    is_secure: bool,
}

/// What came back of a pre-cookie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pre {
    /// The key under which its browser takes a number: the same for each copy of the cookie. So a form that is sent twice,
    /// two tabs, and a request that is repeated after a gateway was killed take one number.
    Key(String),
    /// It is too old. The browser takes cookies; it needs another one.
    Old,
}

impl Cookies {
    pub fn new(secret: &Secret, is_insecure: bool) -> Cookies {
        Cookies {
            pre_key: secret.key("nowserving gateway 2026-11 pre-cookie"),
            is_secure: !is_insecure,
        }
    }

    /// The ticket of a line. Of several cookies of that name none is believed: somebody has smuggled one in.
    pub fn ticket<'a>(&self, headers: &'a HeaderMap, line: &LineName) -> Option<&'a str> {
        let ticket = only(headers, &self.name(line.as_str(), ""))?;
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let could_be =
            (1..=TICKET_BYTES_MAX).contains(&ticket.len()) && ticket.bytes().all(is_word);
        could_be.then_some(ticket)
    }

    pub fn set_ticket(&self, line: &LineName, ticket: &str) -> HeaderValue {
        self.set(&self.name(line.as_str(), ""), ticket, TICKET_S)
    }

    pub fn drop_ticket(&self, line: &LineName) -> HeaderValue {
        self.set(&self.name(line.as_str(), ""), "", 0)
    }

    /// The pre-cookie of a line, if it came back and this secret has signed it.
    pub fn pre(&self, headers: &HeaderMap, line: &LineName) -> Option<Pre> {
        self.pre_at(headers, line, now_s())
    }

    /// Another one. The caller sets it only where none came back: each is worth one number.
    pub fn set_pre(&self, line: &LineName) -> HeaderValue {
        let name = self.name(line.as_str(), ".pre");
        self.set(&name, &self.new_pre(line, rand::random(), now_s()), PRE_S)
    }

    /// The language that the visitor has chosen, as the cookie has it.
    pub fn language<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        only(headers, &self.name("", ".lang"))
    }

    /// `language`: one of the catalogues' names.
    pub fn set_language(&self, language: &str) -> HeaderValue {
        self.set(&self.name("", ".lang"), language, LANGUAGE_S)
    }

    fn name(&self, line: &str, what: &str) -> String {
        let prefix = if self.is_secure { "__Host-" } else { "" };
        let dash = if line.is_empty() { "" } else { "-" };
        format!("{prefix}nowserving{dash}{line}{what}")
    }

    /// `value`: letters, digits, `-` and `_` alone.
    fn set(&self, name: &str, value: &str, max_age_s: u64) -> HeaderValue {
        let secure = if self.is_secure { "; Secure" } else { "" };
        let text =
            format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}");
        // Nothing else comes here; if it did, no cookie would be set.
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""))
    }

    fn new_pre(&self, line: &LineName, nonce: [u8; NONCE_BYTES], now_s: u64) -> String {
        let mut bytes = Vec::with_capacity(PRE_BYTES);
        bytes.extend(now_s.to_be_bytes());
        bytes.extend(nonce);
        bytes.extend(self.mac(line, &bytes));
        BASE64URL_NOPAD.encode(&bytes)
    }

    fn pre_at(&self, headers: &HeaderMap, line: &LineName, now_s: u64) -> Option<Pre> {
        let text = only(headers, &self.name(line.as_str(), ".pre"))?;
        let bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let bytes: [u8; PRE_BYTES] = bytes.try_into().ok()?;
        let (body, mac) = bytes.split_last_chunk::<MAC_BYTES>()?;
        let expected = self.mac(line, body);
        let differs = mac
            .iter()
            .zip(expected)
            .fold(0, |all, (a, b)| all | (a ^ b));
        if differs != 0 {
            return None;
        }
        let (at_s, nonce) = body.split_first_chunk::<8>()?;
        // A clock of another gateway may be a little ahead.
        let age_s = now_s.saturating_sub(u64::from_be_bytes(*at_s));
        Some(match age_s {
            0..=PRE_S => Pre::Key(format!("web-{}", data_encoding::HEXLOWER.encode(nonce))),
            _ => Pre::Old,
        })
    }

    fn mac(&self, line: &LineName, body: &[u8]) -> [u8; MAC_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.pre_key);
        hasher.update(body).update(line.as_str().as_bytes());
        let mut mac = [0; MAC_BYTES];
        hasher.finalize_xof().fill(&mut mac);
        mac
    }
}

/// The key under which the holder of this ticket, whose token is gone, takes another number: the same for each press of the
/// button.
pub(crate) fn key_after(ticket: &str) -> String {
    let hash = blake3::hash(ticket.as_bytes());
    format!("web-{}", &hash.to_hex()[..2 * NONCE_BYTES])
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The value of the one cookie of this name; `None` without one, or if there are several with different values.
fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut found = None;
    for header in headers.get_all(COOKIE) {
        // The shop's own may have any bytes.
        for pair in header.as_bytes().split(|byte| *byte == b';') {
            let pair = pair.trim_ascii();
            let Some(value) = pair.strip_prefix(name.as_bytes()) else {
                continue;
            };
            let Some(value) = value.strip_prefix(b"=") else {
                continue;
            };
            let value = std::str::from_utf8(value).ok()?;
            if found.replace(value).is_some_and(|other| other != value) {
                return None;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests;
