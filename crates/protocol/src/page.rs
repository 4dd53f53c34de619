//! How much of a list goes into one answer.

use std::io::{self, Write};

use serde::Serialize;

/// A list in an answer takes at most this many bytes of JSON, whatever its request's `limit` is: with the answer's other
/// fields and its headers it fits the smallest `max_payload` that a node accepts, [`MAX_PAYLOAD_MIN`].
///
/// [`MAX_PAYLOAD_MIN`]: crate::codec::MAX_PAYLOAD_MIN
pub const PAGE_BYTES_MAX: usize = 48 * 1_024;

/// How many bytes a value takes in JSON.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let mut counted = Counted(0);
    // Answers are always JSON, and counting fails never.
    let _ = serde_json::to_writer(&mut counted, value);
    counted.0
}

/// What is left of a page.
#[derive(Debug)]
pub struct Room {
    bytes: usize,
    is_empty: bool,
}

impl Room {
    /// A page without items.
    pub fn new() -> Room {
        Room {
            bytes: PAGE_BYTES_MAX,
            is_empty: true,
        }
    }

    /// Whether the next item fits, which takes its place then. The first item always does, or nobody would get past it.
    pub fn takes(&mut self, item: &impl Serialize) -> bool {
        // And a comma.
        let left = self.bytes.checked_sub(json_bytes(item) + 1);
        let fits = left.is_some() || self.is_empty;
        if fits {
            self.bytes = left.unwrap_or(0);
            self.is_empty = false;
        }
        fits
    }
}

impl Default for Room {
    fn default() -> Room {
        Room::new()
    }
}

struct Counted(usize);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_taken_until_one_does_not_fit() {
        let mut room = Room::new();
        let item = "x".repeat(1_021); // 1,024 with its quotes and a comma
        assert_eq!((0..99).take_while(|_| room.takes(&item)).count(), 48);
        assert!(!room.takes(&""));
    }

    #[test]
    fn an_item_that_fits_no_page_comes_alone() {
        let mut room = Room::new();
        assert!(room.takes(&"x".repeat(2 * PAGE_BYTES_MAX)));
        assert!(!room.takes(&1));
    }
}
