//! Tickets: the text that proves that its bearer holds a token.
//!
//! The bytes are, before base64url without padding:
//!
//! ```text
//! format (1) · key id · length of the line's name · name
//!   · incarnation (varint) · lane's id · token (varint) · 16 bytes of MAC
//! ```
//!
//! The MAC is keyed BLAKE3 over everything before it, cut to 128 bits. A ticket
//! has one text only: whatever else decodes to the same values is refused.

use std::fmt;

use data_encoding::BASE64URL_NOPAD;
use nowserving_line::{LineName, TokenRef};

use crate::error::{ApiError, Code};

const FORMAT: u8 = 1;
const MAC_BYTES: usize = 16;
/// The longest name and two longest varints.
const MAX_BYTES: usize = 3 + 64 + 10 + 1 + 10 + MAC_BYTES;
/// The longest text of a ticket, in bytes.
pub const MAX_TEXT_BYTES: usize = MAX_BYTES.div_ceil(3) * 4;

/// The content of a verified ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// The line's name.
    pub line: LineName,
    /// The token in it.
    pub at: TokenRef,
}

/// The keys that sign tickets (the current one) and check them (that one and,
/// during a rotation, the one before or the next one).
#[derive(Clone)]
pub struct TicketKeys {
    current: (u8, [u8; 32]),
    previous: Option<(u8, [u8; 32])>,
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketKeys(current id {}, …)", self.current.0)
    }
}

impl TicketKeys {
    /// Keys with one key. Made by [`crate::keys::ClusterKey::ticket_keys`].
    pub(crate) fn new(id: u8, key: [u8; 32]) -> TicketKeys {
        TicketKeys {
            current: (id, key),
            previous: None,
        }
    }

    /// Keys that sign with `self`'s key and also accept `previous`'s. If both
    /// have the same id, `self`'s is used.
    pub fn accepting(self, previous: &TicketKeys) -> TicketKeys {
        TicketKeys {
            current: self.current,
            previous: Some(previous.current),
        }
    }

    /// The ticket's text, signed with the current key.
    pub fn sign(&self, ticket: &Ticket) -> String {
        BASE64URL_NOPAD.encode(sealed(self.current, ticket).bytes())
    }

    /// Reads a ticket and checks its MAC. Anything but the exact text that
    /// [`TicketKeys::sign`] gave is `ticket_invalid`, without saying where it differs.
    pub fn verify(&self, text: &str) -> Result<Ticket, ApiError> {
        self.check(text).ok_or_else(|| {
            ApiError::new(
                Code::TicketInvalid,
                "ticket: not issued by this cluster, altered, or of a key that is not in force any more",
            )
        })
    }

    /// As [`TicketKeys::verify`], for an operation on `line`: a ticket of another
    /// line is `ticket_invalid`.
    pub fn verify_for(&self, text: &str, line: &LineName) -> Result<TokenRef, ApiError> {
        let ticket = self.verify(text)?;
        if ticket.line != *line {
            return Err(ApiError::new(
                Code::TicketInvalid,
                "ticket: it belongs to another line",
            ));
        }
        Ok(ticket.at)
    }

    fn check(&self, text: &str) -> Option<Ticket> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let length = BASE64URL_NOPAD.decode_len(text.len()).ok()?;
        let mut bytes = [0; MAX_BYTES];
        let bytes = bytes.get_mut(..length)?;
        BASE64URL_NOPAD.decode_mut(text.as_bytes(), bytes).ok()?;
        let (body, mac) = bytes.split_last_chunk::<MAC_BYTES>()?;
        let (&format, rest) = body.split_first()?;
        let (&key_id, _) = rest.split_first()?;
        if format != FORMAT {
            return None;
        }
        let key = if key_id == self.current.0 {
            self.current
        } else {
            self.previous.filter(|(id, _)| *id == key_id)?
        };
        if !same_mac(&mac_of(&key.1, body), mac) {
            return None;
        }
        let ticket = read_body(body)?;
        // One text per ticket, whatever a future reader of bodies tolerates.
        (Body::of(key.0, &ticket).bytes() == body).then_some(ticket)
    }
}

fn sealed((key_id, key): (u8, [u8; 32]), ticket: &Ticket) -> Body {
    let mut body = Body::of(key_id, ticket);
    let mac = mac_of(&key, body.bytes());
    body.put(&mac);
    body
}

/// The bytes of a ticket, first without its MAC. In place: a poll checks one.
struct Body {
    length: usize,
    bytes: [u8; MAX_BYTES],
}

impl Body {
    fn of(key_id: u8, ticket: &Ticket) -> Body {
        let name = ticket.line.as_str().as_bytes();
        let (length, bytes) = (0, [0; MAX_BYTES]);
        let mut body = Body { length, bytes };
        // A name has at most 64 bytes: LineName sees to that.
        body.put(&[FORMAT, key_id, name.len() as u8]);
        body.put(name);
        body.put_varint(ticket.at.incarnation);
        body.put(&[ticket.at.lane]);
        body.put_varint(ticket.at.token);
        body
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn put(&mut self, part: &[u8]) {
        let end = self.length + part.len();
        self.bytes[self.length..end].copy_from_slice(part);
        self.length = end;
    }

    fn put_varint(&mut self, value: u64) {
        let mut free = &mut self.bytes[self.length..];
        let before = free.len();
        prost::encoding::encode_varint(value, &mut free);
        self.length += before - free.len();
    }
}

fn read_body(body: &[u8]) -> Option<Ticket> {
    let (&length, rest) = body.get(2..)?.split_first()?;
    let (name, mut rest) = rest.split_at_checked(usize::from(length))?;
    let line = LineName::try_from(std::str::from_utf8(name).ok()?).ok()?;
    let incarnation = take_varint(&mut rest)?;
    let (&lane, mut rest) = rest.split_first()?;
    let token = take_varint(&mut rest)?;
    rest.is_empty().then_some(Ticket {
        line,
        at: TokenRef {
            incarnation,
            lane,
            token,
        },
    })
}

fn mac_of(key: &[u8; 32], body: &[u8]) -> [u8; MAC_BYTES] {
    let mut mac = [0; MAC_BYTES];
    mac.copy_from_slice(&blake3::keyed_hash(key, body).as_bytes()[..MAC_BYTES]);
    mac
}

/// Compares in constant time, by the comparison of blake3's own `Hash`.
fn same_mac(a: &[u8; MAC_BYTES], b: &[u8; MAC_BYTES]) -> bool {
    let widen = |mac: &[u8; MAC_BYTES]| {
        let mut wide = [0; 32];
        wide[..MAC_BYTES].copy_from_slice(mac);
        blake3::Hash::from_bytes(wide)
    };
    widen(a) == widen(b)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn keys(seed: u8) -> TicketKeys {
        TicketKeys::new(1, [seed; 32])
    }

    fn ticket() -> Ticket {
        Ticket {
            line: LineName::try_from("shop-1").unwrap(),
            at: TokenRef {
                incarnation: 4_096_001,
                lane: 0,
                token: 300,
            },
        }
    }

    fn assert_invalid(keys: &TicketKeys, text: &str) {
        let error = keys.verify(text).unwrap_err();
        assert_eq!(error.code, Code::TicketInvalid, "{text}");
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let keys = keys(1);
        let bytes = BASE64URL_NOPAD
            .decode(keys.sign(&ticket()).as_bytes())
            .unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_invalid(&keys, &BASE64URL_NOPAD.encode(&altered));
        }
    }

    #[test]
    fn every_altered_dropped_or_added_character_is_refused() {
        let keys = keys(1);
        // All three lengths modulo 3, so that every kind of unused base64 bits occurs.
        for name in ["a", "ab", "abc"] {
            let text = keys.sign(&Ticket {
                line: LineName::try_from(name).unwrap(),
                ..ticket()
            });
            for at in 0..text.len() {
                for other in (0..=0x7f_u8)
                    .map(char::from)
                    .filter(|other| !text[at..].starts_with(*other))
                {
                    assert_invalid(&keys, &format!("{}{other}{}", &text[..at], &text[at + 1..]));
                }
                assert_invalid(&keys, &format!("{}{}", &text[..at], &text[at + 1..]));
            }
            for at in 0..=text.len() {
                for added in ["A", "=", " ", "\n", "é", "\0"] {
                    assert_invalid(&keys, &format!("{}{added}{}", &text[..at], &text[at..]));
                }
            }
            for length in 0..text.len() {
                assert_invalid(&keys, &text[..length]);
            }
        }
    }

    #[test]
    fn rubbish_is_refused() {
        for text in [
            "",
            "=",
            "A",
            "{}",
            &"A".repeat(MAX_TEXT_BYTES),
            &"A".repeat(1 << 20),
            "票",
        ] {
            assert_invalid(&keys(1), text);
        }
    }

    #[test]
    fn a_body_that_is_signed_but_not_canonical_is_refused() {
        let key = [1; 32];
        let signed = |body: &[u8]| {
            let mut bytes = body.to_vec();
            bytes.extend_from_slice(&mac_of(&key, body));
            BASE64URL_NOPAD.encode(&bytes)
        };
        let keys = TicketKeys::new(1, key);
        assert!(keys.verify(&signed(&[1, 1, 1, b'a', 5, 0, 7])).is_ok());
        for body in [
            &[1, 1, 1, b'a', 0x85, 0, 0, 7][..], // a varint longer than need be
            &[1, 1, 1, b'a', 5, 0, 7, 0],        // bytes after the end
            &[1, 1, 1, b'.', 5, 0, 7],           // not a name
            &[1, 1, 0, 5, 0, 7],                 // no name
            &[1, 1, 200, b'a', 5, 0, 7],         // a name that is not all there
            &[2, 1, 1, b'a', 5, 0, 7],           // an unknown format
            &[1, 1, 1, b'a', 5, 0],
            &[1, 1],
            &[1],
            &[],
        ] {
            assert_invalid(&keys, &signed(body));
        }
    }

    #[test]
    fn another_key_or_line_is_refused() {
        let text = keys(1).sign(&ticket());
        assert_invalid(&keys(2), &text);
        assert_eq!(keys(1).verify_for(&text, &ticket().line), Ok(ticket().at));
        let other = LineName::try_from("shop-2").unwrap();
        assert_eq!(
            keys(1).verify_for(&text, &other).unwrap_err().code,
            Code::TicketInvalid
        );
    }

    #[test]
    fn two_keys_hold_while_keys_rotate() {
        let (old, new) = (TicketKeys::new(1, [1; 32]), TicketKeys::new(2, [2; 32]));
        let both = new.clone().accepting(&old);
        assert_eq!(both.verify(&old.sign(&ticket())), Ok(ticket()));
        assert_eq!(both.verify(&new.sign(&ticket())), Ok(ticket()));
        assert_eq!(both.sign(&ticket()), new.sign(&ticket()));
        assert_invalid(&new, &old.sign(&ticket()));
        // An unknown id is not tried with other keys.
        assert_invalid(&both, &TicketKeys::new(3, [2; 32]).sign(&ticket()));
    }

    proptest! {
        #[test]
        fn round_trip(
            name in "[A-Za-z0-9_-]{1,64}", incarnation: u64, lane: u8, token: u64, seed: u8,
        ) {
            let ticket = Ticket {
                line: LineName::try_from(name.as_str()).unwrap(),
                at: TokenRef { incarnation, lane, token },
            };
            let text = keys(seed).sign(&ticket);
            prop_assert!(text.len() <= MAX_TEXT_BYTES);
            prop_assert_eq!(keys(seed).verify(&text), Ok(ticket));
        }

        #[test]
        fn any_text_is_answered(text in ".{0,200}") {
            prop_assert!(keys(1).verify(&text).is_err());
        }
    }
}
