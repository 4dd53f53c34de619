/// Who decides when waiting tokens are admitted.
use nowserving_codec::Codec;

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Admission {
    /// The line: as soon as seats are free.
    Auto = 0,
    /// An operator: each token is called ([`crate::Op::CallNext`]) or taken ([`crate::Op::Take`]).
    Called = 1,
}

impl Admission {
    pub const ALL: [Admission; 2] = [Admission::Auto, Admission::Called];

    /// 0 or 1, for storage: stable across releases.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.code() == code)
    }

    /// The name in the protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Admission::Auto => "auto",
            Admission::Called => "called",
        }
    }

    /// Inverse of [`Admission::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }
}
