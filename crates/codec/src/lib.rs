//! The bytes of everything that is replicated or stored: `#[derive(Codec)]` on the types themselves.
//!
//! A value's bytes are those of its parts, one after the other, without names or numbers of fields:
//!
//! | type | bytes |
//! |---|---|
//! | `u8` | itself |
//! | `u16`, `u32`, `u64` | 7 bits a byte, the lowest first; all but the last byte have the highest bit set |
//! | `u128`, `[u8; N]` | as they are, `u128` with its highest byte first |
//! | `bool`, `Option`, `Result` | 0 or 1 (`true`, `Some`, `Err`), then the value |
//! | text, lists, sets, maps | the number of bytes or items, then these; sets and maps in the order of their keys |
//! | structs, tuples | the fields in their order |
//! | enums | the place of the variant, one byte, then its fields |
//!
//! Equal values are equal bytes, and other bytes of the same value are refused: numbers with more bytes than they need,
//! keys out of order, bytes after the end. What a build does not know is an error and never skipped.
//!
//! # Evolution
//!
//! Whoever stores bytes stores the number of their format beside them: [`Writer`] and [`Reader`] carry it. A new field or
//! variant stands after all others of its type and says since which format it is there:
//!
//! ```
//! use nowserving_codec::{Codec, decode, encode};
//!
//! #[derive(Codec, Debug, PartialEq)]
//! struct Visit {
//!     number: u64,
//!     #[codec(since = 2)]
//!     priority: u32,
//! }
//!
//! let plain = Visit { number: 7, priority: 0 };
//! assert_eq!(encode(&plain, 1), [7]);
//! assert_eq!(encode(&plain, 2), [7, 0]);
//! assert_eq!(decode(&[7], 1), Ok(plain));
//! // A leader must not write it for builds that only read format 1.
//! assert_eq!(Visit { number: 7, priority: 1 }.first_format(), 2);
//! ```
//!
//! `#[codec(check = f)]` on a type calls `f(&Self) -> Result<(), &'static str>` after reading: what contradicts itself
//! never gets further.

mod impls;
mod io;

pub use io::{Malformed, Reader, Writer};
pub use nowserving_codec_derive::Codec;

/// A type that has bytes.
pub trait Codec: Sized {
    fn encode(&self, to: &mut Writer);

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed>;

    /// The first format that has this value with all its parts.
    fn first_format(&self) -> u32 {
        1
    }

    /// The items of a list. Bytes have a faster way than one by one.
    #[doc(hidden)]
    fn encode_all(items: &[Self], to: &mut Writer) {
        for item in items {
            item.encode(to);
        }
    }

    #[doc(hidden)]
    fn decode_all(count: usize, from: &mut Reader<'_>) -> Result<Vec<Self>, Malformed> {
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(Self::decode(from)?);
        }
        Ok(items)
    }
}

/// The bytes of a value.
pub fn encode(value: &impl Codec, format: u32) -> Vec<u8> {
    let mut to = Writer::new(format);
    value.encode(&mut to);
    to.into_bytes()
}

/// The value that has exactly these bytes.
pub fn decode<T: Codec>(bytes: &[u8], format: u32) -> Result<T, Malformed> {
    let mut from = Reader::new(bytes, format);
    let value = T::decode(&mut from)?;
    from.end()?;
    Ok(value)
}
