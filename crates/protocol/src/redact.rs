//! `Debug` of types with tickets, keys or other data of users: without these, as it may end up in a log.

use std::fmt::{self, Debug, Formatter};

use crate::kv::Text;
use crate::limits::Entry;
use crate::user::{Claim, Complete, Leave, Renew, StatusReply, TokenBy};

/// In place of a ticket: whoever has one acts for its user.
const TICKET: &str = "…";

impl Debug for TokenBy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            TokenBy::Ticket(_) => write!(f, "Ticket({TICKET})"),
            TokenBy::Key(key) => f.debug_tuple("Key").field(key).finish(),
        }
    }
}

impl Debug for Claim {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim").field("ticket", &TICKET).finish()
    }
}

impl Debug for Renew {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renew")
            .field("ticket", &TICKET)
            .field("epoch", &self.epoch)
            .finish()
    }
}

impl Debug for Complete {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Complete")
            .field("ticket", &TICKET)
            .field("epoch", &self.epoch)
            .finish()
    }
}

impl Debug for Leave {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leave").field("ticket", &TICKET).finish()
    }
}

impl Debug for StatusReply {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusReply")
            .field("line", &self.line)
            .field("lane", &self.lane)
            .field("token", &self.token)
            .field("state", &self.state)
            .field("position", &self.position)
            .field("epoch", &self.epoch)
            .field("reason", &self.reason)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// The keys of key-values.
impl<const MIN: usize, const MAX: usize> Debug for Text<MIN, MAX> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Text({} bytes)", self.as_str().len())
    }
}

/// The value is an address, a user or an account.
impl Debug for Entry {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}={} bytes", self.key, self.value.len())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kv::KvKey;
    use crate::user::{Key, StatusRequest};

    #[test]
    fn tickets_and_keys_are_not_printed() {
        let secret = "order-4711";
        let ticket = || secret.to_owned();
        let key = Key::new(secret.as_bytes()).unwrap();
        let printed = [
            format!(
                "{:?}",
                Claim {
                    ticket: ticket(),
                    pass: false
                }
            ),
            format!("{:?}", Leave { ticket: ticket() }),
            format!(
                "{:?}",
                Renew {
                    ticket: ticket(),
                    epoch: 7
                }
            ),
            format!(
                "{:?}",
                Complete {
                    ticket: ticket(),
                    epoch: None,
                    units: None
                }
            ),
            format!("{:?}", StatusRequest::new(TokenBy::Ticket(ticket()))),
            format!("{:?}", StatusRequest::new(TokenBy::Key(key))),
            format!("{:?}", KvKey::new(secret).unwrap()),
            format!("{:?}", Entry::new("order", secret)),
        ];
        for text in printed {
            assert!(!text.contains(secret), "{text}");
            assert!(!text.contains("4711"), "{text}");
        }
    }
}
