//! Names of lines and lanes.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use nowserving_codec::{Codec, Malformed, Reader, Writer};

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// The string is not a valid name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name is 1 to 64 of A-Z a-z 0-9 _ -")]
pub struct BadName;

fn check(name: &str) -> Result<(), BadName> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    let clean = name
        .bytes()
        .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if fits && clean { Ok(()) } else { Err(BadName) }
}

/// The longest name that is kept in place.
const SHORT_MAX: usize = 22;

/// The text of a name. Most are short, and kept in place: a request that names a line allocates nothing for it, and a copy
/// touches no counter that others share.
#[derive(Clone)]
enum Text {
    Short { length: u8, bytes: [u8; SHORT_MAX] },
    Long(Arc<str>),
}

impl Text {
    fn new(name: &str) -> Text {
        let (length, mut bytes) = (name.len(), [0; SHORT_MAX]);
        match bytes.get_mut(..length) {
            Some(short) => {
                short.copy_from_slice(name.as_bytes());
                let length = length as u8;
                Text::Short { length, bytes }
            }
            None => Text::Long(name.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Text::Short { length, bytes } => &bytes[..usize::from(*length)],
            Text::Long(text) => text.as_bytes(),
        }
    }

    fn as_str(&self) -> &str {
        // It was text: this never fails.
        std::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// 1 to 64 of `A-Z a-z 0-9 _ -`, so that it needs no escaping as a token of a NATS subject.
        /// Cloning is cheap: every event and status carries one.
        #[derive(Clone)]
        pub struct $name(Text);

        impl $name {
            pub fn as_str(&self) -> &str {
                self.0.as_str()
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.as_bytes() == other.0.as_bytes()
            }
        }

        impl Eq for $name {}

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                self.0.as_bytes().cmp(other.0.as_bytes())
            }
        }

        impl Hash for $name {
            fn hash<H: Hasher>(&self, to: &mut H) {
                self.0.as_bytes().hash(to);
            }
        }

        impl TryFrom<&str> for $name {
            type Error = BadName;
            fn try_from(name: &str) -> Result<Self, BadName> {
                check(name)?;
                Ok(Self(Text::new(name)))
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadName;
            fn from_str(name: &str) -> Result<Self, BadName> {
                Self::try_from(name)
            }
        }

        impl Codec for $name {
            fn encode(&self, to: &mut Writer) {
                to.text(self.as_str());
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Self::try_from(from.text()?).map_err(|_| Malformed("a name that is none"))
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self.as_str(), f)
            }
        }
    };
}

name_type! {
    /// The name of a line.
    LineName
}
name_type! {
    /// The name of a lane, unique in its line.
    LaneName
}

/// The name of the only lane of a line that sets no lanes.
impl Default for LaneName {
    fn default() -> Self {
        Self(Text::new(crate::LANE_DEFAULT))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_default_lane_has_a_good_name() {
        assert_eq!(LaneName::try_from("normal"), Ok(LaneName::default()));
    }

    #[test]
    fn names_of_all_lengths_are_kept_and_compared_as_text() {
        let texts: Vec<String> = (1..=NAME_BYTES_MAX)
            .flat_map(|length| ["a", "B"].map(|text| text.repeat(length)))
            .collect();
        for one in &texts {
            let name = LineName::try_from(one.as_str()).unwrap();
            assert_eq!((name.as_str(), name.clone()), (one.as_str(), name.clone()));
            for other in &texts {
                let compared = name.cmp(&LineName::try_from(other.as_str()).unwrap());
                assert_eq!(compared, one.cmp(other), "{one} {other}");
            }
        }
    }

    #[test]
    fn takes_the_alphabet_and_nothing_else() {
        for good in ["a", "shop-1", "A_z-09", &"x".repeat(64)] {
            assert!(LineName::try_from(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "a.b",
            "*",
            ">",
            "a b",
            "é",
            "隊",
            "a\n",
            &"x".repeat(65),
        ] {
            assert_eq!(LineName::try_from(bad), Err(BadName), "{bad}");
            assert_eq!(LaneName::try_from(bad), Err(BadName), "{bad}");
        }
    }
}
