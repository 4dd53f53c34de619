//! The cluster's key: the one secret that all nodes share. The keys for tickets, for passes
//! and for frames between nodes are derived from it, each under a context of its own.
//!
//! It is kept as text, so that it survives being pasted into a secret store:
//!
//! ```text
//! nowserving-cluster-key-v1
//! 1 <64 hex digits>
//! ```
//!
//! The number is the key's id, which stands in every ticket. A rotation will add
//! a second key line; this release takes exactly one.

use std::fmt;

use data_encoding::HEXLOWER_PERMISSIVE;

use crate::pass::PassKey;
use crate::ticket::TicketKeys;

/// The longest text that is read as a key, in bytes. A key has a tenth of it; a reader that stops
/// here does not read a whole log or disk that was named by mistake.
pub const KEY_TEXT_BYTES_MAX: usize = 4_096;

const MAGIC: &str = "nowserving-cluster-key-v1";
const TICKET_CONTEXT: &str = "nowserving cluster key v1: tickets";
const PASS_CONTEXT: &str = "nowserving cluster key v1: passes";

/// The secret of a cluster. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey {
    id: u8,
    secret: [u8; 32],
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey(id {}, …)", self.id)
    }
}

/// Why a text is not a key. Never quotes the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadKey(&'static str);

impl ClusterKey {
    /// The first key of a cluster. `secret` must be random.
    pub fn new(secret: [u8; 32]) -> ClusterKey {
        ClusterKey { id: 1, secret }
    }

    /// Reads a key as [`ClusterKey::to_text`] writes it. Blank lines and spaces around lines are
    /// allowed, because secret stores add and drop newlines; nothing else is.
    pub fn from_text(bytes: &[u8]) -> Result<ClusterKey, BadKey> {
        parse(bytes).map_err(BadKey)
    }

    /// The content of a key file: the secret itself.
    pub fn to_text(&self) -> String {
        let digits = HEXLOWER_PERMISSIVE.encode(&self.secret);
        format!("{MAGIC}\n{} {digits}\n", self.id)
    }

    /// The key's id, which stands in every ticket.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// The keys that sign and check tickets.
    pub fn ticket_keys(&self) -> TicketKeys {
        TicketKeys::new(self.id, self.derive(TICKET_CONTEXT))
    }

    /// The key pair that signs passes: the derived key is the seed of Ed25519.
    pub fn pass_key(&self) -> PassKey {
        PassKey::new(self.id, &self.derive(PASS_CONTEXT))
    }

    /// The key for another purpose, which `context` names: no two purposes may have the same.
    pub fn derive(&self, context: &'static str) -> [u8; 32] {
        blake3::derive_key(context, &self.secret)
    }
}

fn parse(bytes: &[u8]) -> Result<ClusterKey, &'static str> {
    if bytes.len() > KEY_TEXT_BYTES_MAX {
        return Err("too long for a cluster key file");
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "not a cluster key file: not text")?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    if lines.next() != Some(MAGIC) {
        return Err("not a cluster key file: its first line must be `nowserving-cluster-key-v1`");
    }
    let line = lines.next().ok_or("the key file has no key line")?;
    if lines.next().is_some() {
        return Err("the key file has more than one key line; this release takes exactly one");
    }
    let (id, digits) = line
        .split_once(' ')
        .ok_or("the key line must be `<id> <64 hex digits>`")?;
    let id = id
        .parse::<u8>()
        .map_err(|_| "the key's id must be a number from 0 to 255")?;
    let secret = HEXLOWER_PERMISSIVE
        .decode(digits.as_bytes())
        .map_err(|_| "the key must be 64 hex digits")?;
    let secret = <[u8; 32]>::try_from(secret)
        .map_err(|_| "the key must be exactly 64 hex digits, 32 bytes")?;
    if secret == [0; 32] {
        return Err("the key is all zeros: a placeholder, not a secret");
    }
    Ok(ClusterKey { id, secret })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_key_comes_back_from_its_text() {
        let key = ClusterKey::new([0xab; 32]);
        let text = key.to_text();
        assert_eq!(text, format!("{MAGIC}\n1 {}\n", "ab".repeat(32)));
        assert_eq!(ClusterKey::from_text(text.as_bytes()), Ok(key.clone()));
        let pasted = format!("\n {} \r\n", text.trim().replace('\n', " \r\n\n "));
        assert_eq!(ClusterKey::from_text(pasted.as_bytes()), Ok(key));
    }

    #[test]
    fn malformed_keys_are_refused_and_not_quoted() {
        let digits = "ab".repeat(32);
        for text in [
            String::new(),
            digits.clone(),
            format!("nowserving-cluster-key-v2\n1 {digits}\n"),
            format!("{MAGIC}\n"),
            format!("{MAGIC}\n{digits}\n"),
            format!("{MAGIC}\n256 {digits}\n"),
            format!("{MAGIC}\n1 {}\n", &digits[2..]),
            format!("{MAGIC}\n1 {digits}ab\n"),
            format!("{MAGIC}\n1 {}g\n", &digits[1..]),
            format!("{MAGIC}\n1 {}\n", "00".repeat(32)),
            format!("{MAGIC}\n1 {digits}\n2 {digits}\n"),
            format!("{MAGIC}\n1 {digits}\n{}", " ".repeat(5_000)),
        ] {
            let error = ClusterKey::from_text(text.as_bytes()).unwrap_err();
            assert!(!error.to_string().contains("abab"), "{text:?}: {error}");
        }
        assert!(ClusterKey::from_text(b"\xff\xfe").is_err());
    }

    #[test]
    fn nothing_secret_is_printed() {
        let key = ClusterKey::new([0xab; 32]);
        let printed = format!("{key:?} {:?}", key.ticket_keys());
        let pass_key = format!("{:?}", key.pass_key());
        assert!(pass_key.starts_with("PassKey(1-") && pass_key.len() < 30);
        assert!(
            !printed.contains("ab") && !printed.contains("171"),
            "{printed}"
        );
    }
}
