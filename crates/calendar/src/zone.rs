//! Time zones by their names in the IANA database.

use std::fmt;

use jiff::tz::TimeZone;

/// The longest name of a time zone, in bytes. The longest in the database has 32.
pub const ZONE_BYTES_MAX: usize = 64;

/// Whether there is a time zone of this name in the database that this build brings along.
pub fn is_zone(name: &str) -> bool {
    TimeZone::get(name).is_ok()
}

/// A time zone of the database. Cloning is cheap.
#[derive(Clone)]
pub struct Zone {
    name: std::sync::Arc<str>,
    pub(crate) zone: TimeZone,
}

impl Zone {
    /// Coordinated universal time, the default everywhere.
    pub fn utc() -> Self {
        Self {
            name: "UTC".into(),
            zone: TimeZone::UTC,
        }
    }

    /// `None` if this build knows no zone of this name, or the name is longer than [`ZONE_BYTES_MAX`].
    pub fn get(name: &str) -> Option<Self> {
        if name.len() > ZONE_BYTES_MAX {
            return None;
        }
        let zone = TimeZone::get(name).ok()?;
        // The database does not mind the case; equal zones are to have equal names.
        let name = zone.iana_name().unwrap_or(name).into();
        Some(Self { name, zone })
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl fmt::Debug for Zone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Zone({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_those_of_the_database() {
        assert!(is_zone("Asia/Taipei") && !is_zone("Nowhere/Else"));
        let zone = Zone::get("asia/taipei");
        assert_eq!(zone, Zone::get("Asia/Taipei"));
        assert_eq!(
            zone.as_ref().map(Zone::name),
            Some("Asia/Taipei"),
            "its name is the database's"
        );
        assert_eq!(Zone::get("Nowhere/Else"), None);
        assert_eq!(Zone::get(&"A".repeat(ZONE_BYTES_MAX + 1)), None);
        assert_eq!(Zone::get("UTC"), Some(Zone::utc()));
    }
}
