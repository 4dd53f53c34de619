//! In which order those who wait are served once a line opens.

use nowserving_codec::Codec;

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Opening {
    /// In the order in which they entered.
    Order = 0,
    /// In one that is drawn by lot: those who entered in phase `pre_open` are numbered anew.
    Draw = 1,
}

impl Opening {
    pub const ALL: [Opening; 2] = [Opening::Order, Opening::Draw];

    /// The name in the protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Opening::Order => "order",
            Opening::Draw => "draw",
        }
    }

    /// Inverse of [`Opening::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }
}
