//! Pages of lists: each fits the smallest `max_payload` of a NATS server, in both formats.

use std::io;

use serde::Serialize;

/// The most bytes of JSON in a page: the rest of [`MAX_PAYLOAD_MIN`](crate::codec::MAX_PAYLOAD_MIN) is for headers and for what
/// is beside the list. MessagePack is shorter.
pub const PAGE_BYTES_MAX: usize = 48 * 1_024;

/// How long the value is as JSON.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let mut bytes = Bytes(0);
    // It does not fail: all types of this crate are JSON, and counting takes everything.
    let _ = serde_json::to_writer(&mut bytes, value);
    bytes.0
}

struct Bytes(usize);

impl io::Write for Bytes {
    fn write(&mut self, written: &[u8]) -> io::Result<usize> {
        self.0 += written.len();
        Ok(written.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_json_are_those_that_are_written() {
        assert_eq!(json_bytes(&""), 2);
        assert_eq!(json_bytes(&"a\"\n\u{1b}ä"), 2 + 1 + 2 + 2 + 6 + 2);
        assert_eq!(json_bytes(&vec![1, 22]), "[1,22]".len());
    }
}
