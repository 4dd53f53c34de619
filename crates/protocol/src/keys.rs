//! The cluster's keys: the secrets that all nodes share. The keys for tickets, for passes and for frames between nodes
//! are derived from them, each under a context of its own.
//!
//! They are kept as text, so that they survive being pasted into a secret store:
//!
//! ```text
//! nowserving-cluster-key-v1
//! 1 <64 hex digits>
//! 2 <64 hex digits>
//! ```
//!
//! The number is the key's id, which stands in every ticket. There is one key, and a second one while the key is
//! rotated: ids only grow, so the key with the higher id is the newer one. Which of them is in force is decided by
//! the cluster ([`Rotation`]); before the first rotation it is the older one.

use std::fmt;

use data_encoding::HEXLOWER_PERMISSIVE;
use nowserving_codec::Codec;

use crate::ticket::TicketKeys;

/// The longest text that is read as keys, in bytes. Two keys have a tenth of it; a reader that stops
/// here does not read a whole log or disk that was named by mistake.
pub const KEY_TEXT_BYTES_MAX: usize = 4_096;

const MAGIC: &str = "nowserving-cluster-key-v1";
const TICKET_CONTEXT: &str = "nowserving cluster key v1: tickets";
const FINGERPRINT_CONTEXT: &str = "nowserving cluster key v1: fingerprint";

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

/// Names a key without its secret.
#[derive(Codec, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPrint {
    /// The key's id.
    pub id: u8,
    /// A hash of the secret: keys with one id may be different keys.
    pub fingerprint: u64,
}

impl fmt::Display for KeyPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {} ({:016x})", self.id, self.fingerprint)
    }
}

/// The newest rotation of the key, as the cluster has decided it.
#[derive(Codec, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// The key in force: it signs tickets and seals frames.
    pub current: KeyPrint,
    /// The key that was in force before.
    pub old: KeyPrint,
    /// Until then, on the wall clock in milliseconds since 1970, the old key is accepted.
    pub old_until_ms: u64,
}

/// Why a text is not a key file's, or a key cannot be added to it. Never quotes the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadKey(&'static str);

impl ClusterKey {
    /// The first key of a cluster. `secret` must be random.
    pub fn new(secret: [u8; 32]) -> ClusterKey {
        ClusterKey { id: 1, secret }
    }

    /// The key's id, which stands in every ticket.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// Its name.
    pub fn print(&self) -> KeyPrint {
        let [a, b, c, d, e, f, g, h, ..] = self.derive(FINGERPRINT_CONTEXT);
        KeyPrint {
            id: self.id,
            fingerprint: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        }
    }

    /// The key that signs and checks tickets.
    pub fn ticket_keys(&self) -> TicketKeys {
        TicketKeys::new(self.id, self.derive(TICKET_CONTEXT))
    }

    /// The key for another purpose, which `context` names: no two purposes may have the same.
    pub fn derive(&self, context: &'static str) -> [u8; 32] {
        blake3::derive_key(context, &self.secret)
    }
}

/// The keys in a key file: one, and a second one during a rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedKeys {
    older: ClusterKey,
    newer: Option<ClusterKey>,
}

impl From<ClusterKey> for LoadedKeys {
    fn from(key: ClusterKey) -> LoadedKeys {
        LoadedKeys {
            older: key,
            newer: None,
        }
    }
}

impl LoadedKeys {
    /// Reads keys as [`LoadedKeys::to_text`] writes them. Blank lines and spaces around lines are
    /// allowed, because secret stores add and drop newlines; nothing else is.
    pub fn from_text(bytes: &[u8]) -> Result<LoadedKeys, BadKey> {
        parse(bytes).map_err(BadKey)
    }

    /// The content of a key file: the secrets themselves.
    pub fn to_text(&self) -> String {
        let mut text = format!("{MAGIC}\n");
        for key in self.iter() {
            let digits = HEXLOWER_PERMISSIVE.encode(&key.secret);
            text += &format!("{} {digits}\n", key.id);
        }
        text
    }

    /// These keys and a new one, which has the next id. `secret` must be random.
    ///
    /// # Errors
    /// There are two keys already, or no higher id.
    pub fn with_next(&self, secret: [u8; 32]) -> Result<LoadedKeys, BadKey> {
        if self.newer.is_some() {
            return Err(BadKey(
                "the key file has two keys already: remove the line of the old one first, once nothing needs it",
            ));
        }
        let id = self.older.id.checked_add(1);
        let id = id.ok_or(BadKey(
            "the key has the highest id, 255: there is no next one",
        ))?;
        Ok(LoadedKeys {
            older: self.older.clone(),
            newer: Some(ClusterKey { id, secret }),
        })
    }

    /// The keys, the older one first.
    pub fn iter(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.older).chain(&self.newer)
    }

    /// Their names.
    pub fn prints(&self) -> Vec<KeyPrint> {
        self.iter().map(ClusterKey::print).collect()
    }
}

/// The cluster's rotation demands a key that is not loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "it lacks {0}, which is in force in this cluster: add its line, as the other nodes have it"
)]
pub struct LacksKey(pub KeyPrint);

/// The keys that a node uses: the one in force, and another one that it accepts. All other keys (of tickets, of
/// frames, of passes) are derived from these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRing {
    current: ClusterKey,
    other: Option<OtherKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct OtherKey {
    key: ClusterKey,
    /// On the wall clock; `None`: always, as it is the next key.
    until_ms: Option<u64>,
}

impl KeyRing {
    /// The loaded keys as the cluster's newest rotation has them, if there was one.
    ///
    /// # Errors
    /// The key in force is not loaded.
    pub fn new(loaded: &LoadedKeys, rotation: Option<Rotation>) -> Result<KeyRing, LacksKey> {
        let Some(rotation) = rotation else {
            let other = loaded.newer.clone().map(|key| OtherKey {
                key,
                until_ms: None,
            });
            return Ok(KeyRing {
                current: loaded.older.clone(),
                other,
            });
        };
        let is_current = |key: &&ClusterKey| key.print() == rotation.current;
        let current = loaded.iter().find(is_current);
        let current = current.ok_or(LacksKey(rotation.current))?;
        let other = loaded.iter().find(|key| key.id != current.id);
        let other = other.and_then(|key| {
            let until_ms = match key.print() {
                print if print.id > rotation.current.id => None,
                print if print == rotation.old => Some(rotation.old_until_ms),
                // Of an earlier rotation.
                _ => return None,
            };
            let key = key.clone();
            Some(OtherKey { key, until_ms })
        });
        Ok(KeyRing {
            current: current.clone(),
            other,
        })
    }

    /// The key in force: it signs and seals.
    pub fn current(&self) -> &ClusterKey {
        &self.current
    }

    /// The other key that is accepted at this time: the next one, or the one before.
    pub fn other(&self, now_wall_ms: u64) -> Option<&ClusterKey> {
        let other = self.other.as_ref();
        let other = other.filter(|it| it.until_ms.is_none_or(|until| now_wall_ms < until));
        other.map(|it| &it.key)
    }

    /// The keys that are accepted at this time, the one in force first.
    pub fn accepted(&self, now_wall_ms: u64) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.current).chain(self.other(now_wall_ms))
    }

    /// Until when the other key is accepted, if that ends.
    pub fn other_until_ms(&self) -> Option<u64> {
        self.other.as_ref()?.until_ms
    }

    /// All loaded keys that may be in force in some part of the cluster, whatever the time: a node that was away for
    /// long has to be understood by the others before it learns of a rotation.
    pub fn each(&self) -> impl Iterator<Item = &ClusterKey> {
        std::iter::once(&self.current).chain(self.other.as_ref().map(|it| &it.key))
    }

    /// The keys that sign and check tickets at this time.
    pub fn ticket_keys(&self, now_wall_ms: u64) -> TicketKeys {
        let keys = self.current.ticket_keys();
        match self.other(now_wall_ms) {
            Some(other) => keys.accepting(&other.ticket_keys()),
            None => keys,
        }
    }
}

fn parse(bytes: &[u8]) -> Result<LoadedKeys, &'static str> {
    if bytes.len() > KEY_TEXT_BYTES_MAX {
        return Err("too long for a cluster key file");
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "not a cluster key file: not text")?;
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    if lines.next() != Some(MAGIC) {
        return Err("not a cluster key file: its first line must be `nowserving-cluster-key-v1`");
    }
    let first = parse_line(lines.next().ok_or("the key file has no key line")?)?;
    let Some(second) = lines.next().map(parse_line).transpose()? else {
        return Ok(first.into());
    };
    if lines.next().is_some() {
        return Err("the key file has more than two key lines: remove those of old keys");
    }
    if first.id == second.id {
        return Err("the two keys of the key file have the same id");
    }
    if first.secret == second.secret {
        return Err("the two keys of the key file are the same key");
    }
    let (older, newer) = match first.id < second.id {
        true => (first, second),
        false => (second, first),
    };
    Ok(LoadedKeys {
        older,
        newer: Some(newer),
    })
}

fn parse_line(line: &str) -> Result<ClusterKey, &'static str> {
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

    fn two() -> LoadedKeys {
        let first = LoadedKeys::from(ClusterKey::new([0xab; 32]));
        first.with_next([0xcd; 32]).unwrap()
    }

    #[test]
    fn keys_come_back_from_their_text() {
        let one = LoadedKeys::from(ClusterKey::new([0xab; 32]));
        let text = one.to_text();
        assert_eq!(text, format!("{MAGIC}\n1 {}\n", "ab".repeat(32)));
        assert_eq!(LoadedKeys::from_text(text.as_bytes()), Ok(one));
        let text = two().to_text();
        let expected = format!("{MAGIC}\n1 {}\n2 {}\n", "ab".repeat(32), "cd".repeat(32));
        assert_eq!(text, expected);
        assert_eq!(LoadedKeys::from_text(text.as_bytes()), Ok(two()));
        let pasted = format!("\n {} \r\n", text.trim().replace('\n', " \r\n\n "));
        assert_eq!(LoadedKeys::from_text(pasted.as_bytes()), Ok(two()));
        // The order of the lines says nothing.
        let swapped = format!("{MAGIC}\n2 {}\n1 {}\n", "cd".repeat(32), "ab".repeat(32));
        assert_eq!(LoadedKeys::from_text(swapped.as_bytes()), Ok(two()));
        assert!(two().with_next([1; 32]).is_err());
        let last = format!("{MAGIC}\n255 {}\n", "ab".repeat(32));
        let last = LoadedKeys::from_text(last.as_bytes()).unwrap();
        assert!(last.with_next([1; 32]).is_err());
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
            format!("{MAGIC}\n1 {digits}\n1 {}\n", "cd".repeat(32)),
            format!(
                "{MAGIC}\n1 {digits}\n2 {}\n3 {}\n",
                "cd".repeat(32),
                "ef".repeat(32)
            ),
            format!("{MAGIC}\n1 {digits}\n{}", " ".repeat(5_000)),
        ] {
            let error = LoadedKeys::from_text(text.as_bytes()).unwrap_err();
            assert!(!error.to_string().contains("abab"), "{text:?}: {error}");
        }
        assert!(LoadedKeys::from_text(b"\xff\xfe").is_err());
    }

    #[test]
    fn nothing_secret_is_printed() {
        let ring = KeyRing::new(&two(), None).unwrap();
        let printed = format!("{:?} {ring:?} {:?}", two(), ring.ticket_keys(0));
        for secret in ["ab", "171", "cd", "205"] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }

    #[test]
    fn a_ring_has_the_keys_as_the_rotation_says() {
        let ids = |ring: &KeyRing, now| ring.accepted(now).map(ClusterKey::id).collect::<Vec<_>>();
        let before = KeyRing::new(&two(), None).unwrap();
        assert_eq!((before.current().id(), ids(&before, 0)), (1, vec![1, 2]));
        assert_eq!(before.other_until_ms(), None);
        let prints = two().prints();
        let rotation = Rotation {
            current: prints[1],
            old: prints[0],
            old_until_ms: 1_000,
        };
        let after = KeyRing::new(&two(), Some(rotation)).unwrap();
        assert_eq!(ids(&after, 999), [2, 1]);
        assert_eq!(ids(&after, 1_000), [2]);
        assert_eq!(after.each().count(), 2);
        let first = LoadedKeys::from(ClusterKey::new([0xab; 32]));
        let lacks = KeyRing::new(&first, Some(rotation)).unwrap_err();
        assert_eq!(lacks, LacksKey(prints[1]));
        // Another secret under the id in force is another key.
        let other = first.with_next([0xce; 32]).unwrap();
        assert_eq!(KeyRing::new(&other, Some(rotation)), Err(lacks));
        // A key of an earlier rotation is void.
        let later = Rotation {
            old: KeyPrint {
                id: 1,
                fingerprint: 5,
            },
            ..rotation
        };
        let ring = KeyRing::new(&two(), Some(later)).unwrap();
        assert_eq!(ids(&ring, 0), [2]);
    }
}
