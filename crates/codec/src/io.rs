//! Bytes, and the format that they are in.

/// Values may contain values of their own type. Deeper ones than this are refused: they would exhaust the stack.
const DEPTH_MAX: u32 = 16;

/// The fault in bytes that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

const CUT_OFF: Malformed = Malformed("fewer bytes than it says");
const NO_NUMBER: Malformed = Malformed("a number that is none");

/// Bytes that are written in one format.
#[derive(Clone, Debug)]
pub struct Writer {
    bytes: Vec<u8>,
    format: u32,
}

impl Writer {
    #[must_use]
    pub fn new(format: u32) -> Self {
        let bytes = Vec::new();
        Self { bytes, format }
    }

    /// Goes on after bytes that are there already.
    #[must_use]
    pub fn after(bytes: Vec<u8>, format: u32) -> Self {
        Self { bytes, format }
    }

    #[inline]
    #[must_use]
    pub fn format(&self) -> u32 {
        self.format
    }

    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Takes back what was written after the first bytes.
    pub fn truncate(&mut self, length: usize) {
        self.bytes.truncate(length);
    }

    /// As they are, without their number.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    #[inline]
    pub fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    #[inline]
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    #[inline]
    pub fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.put(text.as_bytes());
    }
}

/// Bytes that are read.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    format: u32,
    depth: u32,
}

impl<'a> Reader<'a> {
    #[must_use]
    pub fn new(bytes: &'a [u8], format: u32) -> Self {
        Self {
            rest: bytes,
            format,
            depth: 0,
        }
    }

    #[inline]
    #[must_use]
    pub fn format(&self) -> u32 {
        self.format
    }

    /// Reads the rest in this format: for bytes that begin with its number.
    pub fn set_format(&mut self, format: u32) {
        self.format = format;
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes that are left.
    #[must_use]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The number of bytes that are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), Malformed> {
        match self.rest {
            [] => Ok(()),
            _ => Err(Malformed("bytes after its end")),
        }
    }

    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (byte, rest) = self.rest.split_first().ok_or(CUT_OFF)?;
        self.rest = rest;
        Ok(*byte)
    }

    #[inline]
    pub fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            number |= part << shift;
            if byte < 0x80 {
                // A last byte of 0 adds nothing, and only one bit is left for the tenth.
                let is_shortest = byte > 0 || shift == 0;
                let fits = shift < 63 || part <= 1;
                return (is_shortest && fits).then_some(number).ok_or(NO_NUMBER);
            }
        }
        Err(NO_NUMBER)
    }

    /// The number of bytes or items that follow. An item has a byte at least, so that no small input asks for much memory.
    #[inline]
    pub fn count(&mut self) -> Result<usize, Malformed> {
        let count = usize::try_from(self.number()?).map_err(|_| CUT_OFF)?;
        (count <= self.rest.len()).then_some(count).ok_or(CUT_OFF)
    }

    #[inline]
    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        let count = self.count()?;
        let text = std::str::from_utf8(self.take(count)?);
        text.map_err(|_| Malformed("a text that is no UTF-8"))
    }

    /// Reads what stands in a box or a list, and so may contain its own type.
    #[inline]
    pub(crate) fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<T, Malformed> {
        if self.depth >= DEPTH_MAX {
            return Err(Malformed("values nested too deeply"));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }
}
