/// Whether a line holds people back: the switch by which a line is introduced, and taken back.
use nowserving_codec::Codec;

#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gate {
    /// Tokens wait for seats, the quota, the admission rate and calls.
    On = 0,
    /// As [`Gate::Off`], and the line counts whom it would have held back ([`crate::Shadow`]).
    Shadow = 1,
    /// Everybody is admitted at once, as far as the phase admits.
    Off = 2,
}

impl Gate {
    pub const ALL: [Gate; 3] = [Gate::On, Gate::Shadow, Gate::Off];

    /// 0 to 2, for storage: stable across releases.
    pub fn code(self) -> u8 {
        self as u8
    }

    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.code() == code)
    }

    /// The name in the protocol.
    pub fn as_str(self) -> &'static str {
        match self {
            Gate::On => "on",
            Gate::Shadow => "shadow",
            Gate::Off => "off",
        }
    }

    /// Inverse of [`Gate::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == word)
    }

    /// Whether tokens wait for anything but the phase.
    pub fn holds_back(self) -> bool {
        self == Gate::On
    }
}
