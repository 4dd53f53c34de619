//! How many units of something a line can sell.

use nowserving_codec::{Codec, Malformed, Reader, Writer};

use super::BadField;

/// The largest `total` of a quota; the smallest is 1.
pub const QUOTA_TOTAL_MAX: u64 = 1_000_000_000;
/// The largest `standby_percent` of a quota; the smallest is 0.
pub const STANDBY_PERCENT_MAX: u32 = 1_000;
/// The largest `per_visit` of a quota; the smallest is 1.
pub const PER_VISIT_MAX: u32 = 1_000;

/// The longest name of a time zone, in bytes.
pub const ZONE_BYTES_MAX: usize = 40;
/// The shortest window of a quota, in milliseconds: a second.
pub const RENEW_MS_MIN: u64 = 1_000;
/// The longest one: 31 days.
pub const RENEW_MS_MAX: u64 = 31 * 24 * 60 * 60 * 1_000;

/// A limit on the units that completed visits used, counted over the incarnation of the line, or since it was last
/// renewed.
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Tokens are admitted only while the units that were used and those that held seats reserve are together fewer
    /// than this: 1 to [`QUOTA_TOTAL_MAX`].
    pub total: u64,
    /// Numbers issued beyond those that `total` is enough for, because some holders of seats will not complete: 0 to
    /// [`STANDBY_PERCENT_MAX`].
    pub standby_percent: u32,
    /// When what was completed counts no longer.
    pub renew: Option<Renew>,
    /// How many units a seat reserves, and so the most that its holder can use: 1 to [`PER_VISIT_MAX`]. The last seat
    /// reserves what is left.
    pub per_visit: u32,
}

/// When a quota is renewed. The leader knows time zones, the line does not: see [`crate::Op::RenewQuota`].
#[derive(Codec, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renew {
    /// At each multiple of so many milliseconds since 1970: [`RENEW_MS_MIN`] to [`RENEW_MS_MAX`].
    Every { ms: u64 },
    /// Each day at this minute of it, in this time zone.
    Daily { minute: u16, zone: ZoneName },
}

/// The name of a time zone, 1 to [`ZONE_BYTES_MAX`] bytes. Whether there is such a zone is not checked here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ZoneName {
    /// Zeros after the name.
    bytes: [u8; ZONE_BYTES_MAX],
}

impl ZoneName {
    /// `None` if the name has another length, or bytes other than printable ASCII.
    pub fn new(name: &str) -> Option<Self> {
        let fits = (1..=ZONE_BYTES_MAX).contains(&name.len());
        let plain = name.bytes().all(|byte| byte.is_ascii_graphic());
        (fits && plain).then(|| {
            let mut bytes = [0; ZONE_BYTES_MAX];
            bytes[..name.len()].copy_from_slice(name.as_bytes());
            Self { bytes }
        })
    }

    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let name = &self.bytes[..end.unwrap_or(ZONE_BYTES_MAX)];
        // ASCII, by `new`.
        std::str::from_utf8(name).unwrap_or_default()
    }
}

impl Codec for ZoneName {
    fn encode(&self, to: &mut Writer) {
        to.text(self.as_str());
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::new(from.text()?).ok_or(Malformed("a time zone without a name"))
    }
}

impl std::fmt::Debug for ZoneName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

impl Renew {
    fn validate(&self) -> Result<(), BadField> {
        let limit = match self {
            Renew::Every { ms } if !(RENEW_MS_MIN..=RENEW_MS_MAX).contains(ms) => {
                format!("renew.every_ms: {RENEW_MS_MIN} to {RENEW_MS_MAX} milliseconds")
            }
            Renew::Daily { minute, .. } if *minute >= 24 * 60 => {
                "renew.at: 00:00 to 23:59".to_owned()
            }
            _ => return Ok(()),
        };
        Err(BadField::new("quota", limit))
    }
}

impl Quota {
    /// No number is issued once so many units are used, reserved, or would be by those who wait: `total` and its standby
    /// share, rounded down.
    pub fn entries_max(&self) -> u64 {
        let percent = u64::from(self.standby_percent).saturating_add(100);
        self.total.saturating_mul(percent) / 100
    }

    pub(super) fn validate(&self) -> Result<(), BadField> {
        if !(1..=QUOTA_TOTAL_MAX).contains(&self.total) {
            return Err(BadField::new("quota", "total: 1 to 1000000000"));
        }
        if self.standby_percent > STANDBY_PERCENT_MAX {
            return Err(BadField::new("quota", "standby_percent: 0 to 1000"));
        }
        if !(1..=PER_VISIT_MAX).contains(&self.per_visit) {
            return Err(BadField::new("quota", "per_visit: 1 to 1000"));
        }
        self.renew.map_or(Ok(()), |renew| renew.validate())
    }
}
