//! The phases of a line.

/// Whether a line gives numbers and seats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Numbers are given, no seats.
    PreOpen,
    /// Both are given.
    Open,
    /// As [`Phase::PreOpen`]: the seats that are held can be used up.
    Paused,
    /// Seats are given, no numbers.
    Draining,
    /// Neither, and everybody live goes with reason `closed`; it can be opened again. A line that
    /// is being deleted shows this, too.
    Closed,
}

impl Phase {
    /// Every phase, in the order of [`Phase::code`].
    pub const ALL: [Phase; 5] = [
        Phase::PreOpen,
        Phase::Open,
        Phase::Paused,
        Phase::Draining,
        Phase::Closed,
    ];

    /// A small number for it, 0 to 4, that does not change between builds: what is stored.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The phase with this [`Phase::code`].
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The contract's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::PreOpen => "pre_open",
            Phase::Open => "open",
            Phase::Paused => "paused",
            Phase::Draining => "draining",
            Phase::Closed => "closed",
        }
    }

    /// The phase with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|phase| phase.as_str() == word)
    }

    /// Whether `enter` can get a number.
    pub fn gives_numbers(self) -> bool {
        matches!(self, Phase::PreOpen | Phase::Open | Phase::Paused)
    }

    /// Whether those who wait can be admitted.
    pub fn admits(self) -> bool {
        matches!(self, Phase::Open | Phase::Draining)
    }
}
