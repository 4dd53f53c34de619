//! The phases of a line.

/// Whether a line issues numbers and admits tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Issues numbers, admits nobody.
    PreOpen = 1,
    /// Does both.
    Open = 0,
    /// As [`Phase::PreOpen`]; the holders of seats can go on.
    Paused = 2,
    /// Admits waiting tokens, issues no numbers.
    Draining = 3,
    /// Does neither and ends every live token with reason `closed`; it can be opened again. A line
    /// that is being deleted shows this, too.
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

    /// 0 to 4, for storage: it never changes between releases.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.code() == code)
    }

    /// As the protocol spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::PreOpen => "pre_open",
            Phase::Open => "open",
            Phase::Paused => "paused",
            Phase::Draining => "draining",
            Phase::Closed => "closed",
        }
    }

    /// From [`Phase::as_str`].
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
