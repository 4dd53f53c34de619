/// Whether a line issues numbers and admits tokens.
use nowserving_codec::Codec;

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Issues numbers, admits nobody.
    PreOpen = 1,
    /// Issues numbers and admits tokens.
    Open = 0,
    /// As [`Phase::PreOpen`]; holders of seats keep them.
    Paused = 2,
    /// Admits waiting tokens, issues no numbers.
    Draining = 3,
    /// Ends every live token with reason `closed`; it can be opened again. A line
    /// that is being deleted shows this phase, too.
    Closed = 4,
}

impl Phase {
    /// In the order of a line's life, as messages list them.
    pub const ALL: [Phase; 5] = [
        Phase::PreOpen,
        Phase::Open,
        Phase::Paused,
        Phase::Draining,
        Phase::Closed,
    ];

    /// 0 to 4, for storage: stable across releases.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.code() == code)
    }

    /// The name in the protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::PreOpen => "pre_open",
            Phase::Open => "open",
            Phase::Paused => "paused",
            Phase::Draining => "draining",
            Phase::Closed => "closed",
        }
    }

    /// Inverse of [`Phase::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }

    /// Whether `enter` can get a number.
    pub fn gives_numbers(self) -> bool {
        matches!(self, Phase::PreOpen | Phase::Open | Phase::Paused)
    }

    /// Whether waiting tokens can be admitted.
    pub fn admits(self) -> bool {
        matches!(self, Phase::Open | Phase::Draining)
    }
}
