//! A walk over a MessagePack payload that builds nothing: is it one whole map, of
//! bounded depth, with nothing behind it?
//!
//! A decoder that meets a claim of 2^32 elements, or ten thousand nested arrays,
//! has by then reserved memory or recursed. This walk needs a small fixed stack
//! and time in proportion to the bytes that are really there.

/// How deep maps and arrays may nest. Requests need 2; fields that a newer client
/// sends and we skip may need a few more.
pub(crate) const MAX_DEPTH: usize = 32;

/// What is wrong with a payload.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WalkError {
    #[error("neither a MessagePack map nor JSON that begins with a brace")]
    NotAMap,
    #[error("it ends in the middle, or claims more than is there")]
    Truncated,
    #[error("it nests deeper than {MAX_DEPTH} levels")]
    Depth,
    #[error("{0} bytes follow after its end")]
    Trailing(usize),
    #[error("the names of fields must be strings")]
    KeyNotAString,
    #[error("a string in it is not UTF-8")]
    NotUtf8,
    #[error("byte 0xc1 means nothing in MessagePack")]
    Reserved,
}

/// One MessagePack value's head.
enum Head<'a> {
    /// A value without parts.
    Scalar,
    Str(&'a [u8]),
    /// So many values follow; a map of n has 2n.
    Nested {
        values: u64,
        map: bool,
    },
}

/// Checks that `payload` is exactly one map whose own keys are strings.
pub(crate) fn check_map(payload: &[u8]) -> Result<(), WalkError> {
    let mut rest = payload;
    let Some(Head::Nested { values, map: true }) = read_head(&mut rest).ok() else {
        return Err(WalkError::NotAMap);
    };
    // How many values each open map or array still waits for.
    let mut open = [0_u64; MAX_DEPTH];
    let mut depth = 1;
    open[0] = values;
    while depth > 0 {
        let left = &mut open[depth - 1];
        if *left == 0 {
            depth -= 1;
            continue;
        }
        let is_key = depth == 1 && left.is_multiple_of(2);
        *left -= 1;
        match read_head(&mut rest)? {
            Head::Str(text) => {
                std::str::from_utf8(text).map_err(|_| WalkError::NotUtf8)?;
            }
            _ if is_key => return Err(WalkError::KeyNotAString),
            Head::Scalar => {}
            Head::Nested { values, .. } => {
                *open.get_mut(depth).ok_or(WalkError::Depth)? = values;
                depth += 1;
            }
        }
    }
    if rest.is_empty() {
        Ok(())
    } else {
        Err(WalkError::Trailing(rest.len()))
    }
}

/// Reads one value without its parts.
fn read_head<'a>(rest: &mut &'a [u8]) -> Result<Head<'a>, WalkError> {
    let marker = take(rest, 1)?[0];
    let head = match marker {
        // Small and negative small numbers, nil, booleans.
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => Head::Scalar,
        0x80..=0x8f => Head::Nested {
            values: u64::from(marker & 0x0f) * 2,
            map: true,
        },
        0x90..=0x9f => Head::Nested {
            values: u64::from(marker & 0x0f),
            map: false,
        },
        0xa0..=0xbf => Head::Str(take(rest, u64::from(marker & 0x1f))?),
        0xc1 => return Err(WalkError::Reserved),
        // Binary with a length of 1, 2, 4 bytes.
        0xc4..=0xc6 => {
            let length = length(rest, marker - 0xc4)?;
            skip(rest, length)?
        }
        // Extensions with a length of 1, 2, 4 bytes, and a type.
        0xc7..=0xc9 => {
            let length = length(rest, marker - 0xc7)?;
            skip(rest, length + 1)?
        }
        0xca => skip(rest, 4)?,
        0xcb => skip(rest, 8)?,
        // Unsigned and signed numbers of 1, 2, 4, 8 bytes.
        0xcc..=0xcf => skip(rest, 1 << (marker - 0xcc))?,
        0xd0..=0xd3 => skip(rest, 1 << (marker - 0xd0))?,
        // Extensions of 1, 2, 4, 8, 16 bytes, and a type.
        0xd4..=0xd8 => skip(rest, (1 << (marker - 0xd4)) + 1)?,
        0xd9..=0xdb => {
            let length = length(rest, marker - 0xd9)?;
            Head::Str(take(rest, length)?)
        }
        0xdc | 0xdd => Head::Nested {
            values: length(rest, marker - 0xdc + 1)?,
            map: false,
        },
        0xde | 0xdf => Head::Nested {
            values: length(rest, marker - 0xde + 1)? * 2,
            map: true,
        },
    };
    Ok(head)
}

/// A big-endian length of 1, 2 or 4 bytes (`width` 0, 1, 2).
fn length(rest: &mut &[u8], width: u8) -> Result<u64, WalkError> {
    let bytes = take(rest, 1 << width)?;
    Ok(bytes
        .iter()
        .fold(0, |length, byte| length << 8 | u64::from(*byte)))
}

fn skip<'a>(rest: &mut &'a [u8], bytes: u64) -> Result<Head<'a>, WalkError> {
    take(rest, bytes).map(|_| Head::Scalar)
}

fn take<'a>(rest: &mut &'a [u8], bytes: u64) -> Result<&'a [u8], WalkError> {
    let bytes = usize::try_from(bytes).map_err(|_| WalkError::Truncated)?;
    let (taken, left) = rest.split_at_checked(bytes).ok_or(WalkError::Truncated)?;
    *rest = left;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_value_is_walked_to_its_end() {
        let values: &[&[u8]] = &[
            &[0x00],
            &[0x7f],
            &[0xe0],
            &[0xff],
            &[0xc0],
            &[0xc2],
            &[0xc3],
            &[0xa1, b'x'],
            &[0xd9, 1, b'x'],
            &[0xda, 0, 1, b'x'],
            &[0xdb, 0, 0, 0, 1, b'x'],
            &[0xc4, 1, 9],
            &[0xc5, 0, 1, 9],
            &[0xc6, 0, 0, 0, 1, 9],
            &[0xc7, 2, 5, 9, 9],
            &[0xc8, 0, 2, 5, 9, 9],
            &[0xc9, 0, 0, 0, 2, 5, 9, 9],
            &[0xca, 0, 0, 0, 0],
            &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0xcc, 1],
            &[0xcd, 1, 1],
            &[0xce, 1, 1, 1, 1],
            &[0xcf, 1, 1, 1, 1, 1, 1, 1, 1],
            &[0xd0, 1],
            &[0xd1, 1, 1],
            &[0xd2, 1, 1, 1, 1],
            &[0xd3, 1, 1, 1, 1, 1, 1, 1, 1],
            &[0xd4, 5, 1],
            &[0xd5, 5, 1, 1],
            &[0xd6, 5, 1, 1, 1, 1],
            &[0xd7, 5, 1, 1, 1, 1, 1, 1, 1, 1],
            &[0xd8, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            &[0x90],
            &[0x92, 1, 2],
            &[0xdc, 0, 1, 1],
            &[0xdd, 0, 0, 0, 1, 1],
            &[0x80],
            &[0x81, 1, 1],
            &[0xde, 0, 1, 1, 1],
            &[0xdf, 0, 0, 0, 1, 1, 1],
        ];
        for value in values {
            let whole = [&[0x81, 0xa1, b'k'], *value].concat();
            assert_eq!(check_map(&whole), Ok(()), "{value:x?}");
            for length in 1..whole.len() {
                assert_eq!(
                    check_map(&whole[..length]),
                    Err(WalkError::Truncated),
                    "{value:x?} cut at {length}"
                );
            }
            let longer = [whole, vec![0, 0]].concat();
            assert_eq!(
                check_map(&longer),
                Err(WalkError::Trailing(2)),
                "{value:x?}"
            );
        }
    }

    #[test]
    fn claims_beyond_what_is_there_are_refused() {
        for claim in [
            &[0xdf, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1, b'k', 1],
            &[0x81, 0xa1, b'k', 0xdd, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 0xa1, b'k', 0xdf, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 0xa1, b'k', 0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 0xa1, b'k', 0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0x81, 0xa1, b'k', 0xc9, 0xff, 0xff, 0xff, 0xff],
        ] {
            assert_eq!(check_map(claim), Err(WalkError::Truncated), "{claim:x?}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |depth: usize| [&[0x81, 0xa1, b'k'], &vec![0x91; depth][..], &[0xc0]].concat();
        assert_eq!(check_map(&nested(MAX_DEPTH - 1)), Ok(()));
        assert_eq!(check_map(&nested(MAX_DEPTH)), Err(WalkError::Depth));
        assert_eq!(check_map(&nested(1_000_000)), Err(WalkError::Depth));
    }

    #[test]
    fn only_a_map_with_string_keys_will_do() {
        for other in [
            &[0xc0][..],
            &[0x90],
            &[0x01],
            &[0xa1, b'k'],
            b" {}",
            b"[1]",
            &[0xc1],
            &[0xff],
        ] {
            assert_eq!(check_map(other), Err(WalkError::NotAMap), "{other:x?}");
        }
        assert_eq!(
            check_map(&[0x81, 0x00, 0x01]),
            Err(WalkError::KeyNotAString)
        );
        assert_eq!(
            check_map(&[0x81, 0xc4, 1, b'k', 0x01]),
            Err(WalkError::KeyNotAString)
        );
        assert_eq!(
            check_map(&[0x81, 0x90, 0x01]),
            Err(WalkError::KeyNotAString)
        );
        assert_eq!(
            check_map(&[0x81, 0xa1, 0xff, 0x01]),
            Err(WalkError::NotUtf8)
        );
        assert_eq!(
            check_map(&[0x81, 0xa1, b'k', 0xc1]),
            Err(WalkError::Reserved)
        );
        assert_eq!(check_map(&[0x80]), Ok(()));
    }
}
