//! Small text files of the data directory, with a checksum in their last line.
//!
//! A flipped bit in a number leaves valid TOML: a node with another disk id or start count than its
//! peers know is refused by them for good, and one that misremembers its peers refuses theirs.
//!
//! Their `format` is read before anything else in them, as the fields of another one are not known. A file without
//! it has format 1: `peers.toml` and `members.toml` are written without it, for builds that do not know it.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::File;

/// The format of these files that this build writes and reads.
pub const FORMAT: u32 = 1;

const LABEL: &str = "# nowserving data, checksum ";
/// That of builds before the first release. Their logs and snapshots are not read either.
const EARLIER_LABEL: &str = "# checksum ";

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Its content has changed since it was written.
    #[error("{} is damaged: {what}", file.name())]
    Damaged { file: File, what: String },
    #[error(
        "{} is that of a build before the first release: start with an empty data directory",
        file.name()
    )]
    Earlier { file: File },
    /// Of a build that writes it in another way.
    #[error(
        "{} has format {found}, and this build reads {FORMAT}: start the build that wrote it",
        file.name()
    )]
    OtherFormat { file: File, found: u32 },
    /// It is whole, and is not such a file.
    #[error("{}: {what}", file.name())]
    NotSuch { file: File, what: String },
}

/// What a file of any format has.
#[derive(Deserialize)]
struct Head {
    format: Option<u32>,
}

/// Reads the content of `file`.
///
/// # Errors
/// [`Unusable`].
pub fn read<T: DeserializeOwned>(file: File, bytes: &[u8]) -> Result<T, Unusable> {
    let text = content(bytes).map_err(|what| match is_earlier(bytes) {
        true => Unusable::Earlier { file },
        false => Unusable::Damaged { file, what },
    })?;
    let not_such = |error: toml::de::Error| Unusable::NotSuch {
        file,
        what: error.to_string(),
    };
    let head: Head = toml::from_str(text).map_err(not_such)?;
    match head.format {
        Some(found) if found != FORMAT => Err(Unusable::OtherFormat { file, found }),
        _ => toml::from_str(text).map_err(not_such),
    }
}

fn is_earlier(bytes: &[u8]) -> bool {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(EARLIER_LABEL.as_bytes()))
}

/// The content without the checksum's line; or why it is damaged.
fn content(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("byte {} is not text", error.valid_up_to()))?;
    let content = text.rfind(LABEL).and_then(|at| text.get(..at));
    let content = content.ok_or("its checksum is missing")?;
    match text == sealed(content) {
        true => Ok(content),
        false => Err("its checksum does not hold".to_owned()),
    }
}

/// The bytes of a file with this content.
///
/// # Panics
/// The content is none for TOML, which only the type decides.
#[allow(clippy::expect_used)]
pub fn write(content: &impl Serialize) -> Vec<u8> {
    let text = toml::to_string(content).expect("the types of these files are tables");
    sealed(&text).into_bytes()
}

pub(crate) fn sealed(content: &str) -> String {
    format!("{content}{LABEL}{}\n", blake3::hash(content.as_bytes()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_format_is_read_first() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Content {
            #[serde(default)]
            format: u32,
            boots: u64,
        }
        let boots = u64::MAX;
        for (format, content) in [(1, "format = 1\n"), (0, "")] {
            let content = sealed(&format!("{content}boots = {boots}\n"));
            let read: Content = read(File::Peers, content.as_bytes()).unwrap();
            assert_eq!(read, Content { format, boots });
        }
        let other = sealed("format = 2\nnew = true\n");
        let error = read::<Content>(File::Peers, other.as_bytes()).unwrap_err();
        assert!(matches!(error, Unusable::OtherFormat { .. }), "{error}");
        let clear =
            "peers.toml has format 2, and this build reads 1: start the build that wrote it";
        assert_eq!(error.to_string(), clear);
    }

    #[test]
    fn a_file_of_a_build_before_the_first_release_says_what_to_do() {
        let content = "boots = 1\n";
        let file = format!(
            "{content}{EARLIER_LABEL}{}\n",
            blake3::hash(content.as_bytes())
        );
        let error = read::<toml::Table>(File::Peers, file.as_bytes()).unwrap_err();
        assert!(matches!(error, Unusable::Earlier { .. }), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_damage() {
        let whole = sealed("boots = 12\nstarts = [1, 2]\n").into_bytes();
        assert_eq!(content(&whole), Ok("boots = 12\nstarts = [1, 2]\n"));
        for at in 0..whole.len() {
            assert!(content(&whole[..at]).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                assert!(content(&flipped).is_err(), "bit {bit} of byte {at}");
            }
        }
    }
}
