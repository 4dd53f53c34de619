//! Names of lines and lanes.

use std::fmt;
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

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        ///
        /// 1 to 64 of `A-Z a-z 0-9 _ -`, so that it needs no escaping as a token of a NATS subject.
        /// Cloning is cheap: every event and status carries one.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = BadName;
            fn try_from(name: &str) -> Result<Self, BadName> {
                check(name)?;
                Ok(Self(name.into()))
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
                to.text(&self.0);
            }

            fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
                Self::try_from(from.text()?).map_err(|_| Malformed("a name that is none"))
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
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
        Self(crate::LANE_DEFAULT.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_lane_has_a_good_name() {
        assert_eq!(LaneName::try_from("normal"), Ok(LaneName::default()));
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
