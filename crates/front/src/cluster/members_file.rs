//! The newest members that the node knew: at its next start it finds its peers with them, also if those
//! that it began with are gone.

use nowserving_shard::members::Members;
use serde::{Deserialize, Serialize};

use super::File;
use super::checked_file::{self, Unusable};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    /// [`Members::encode`], in hexadecimal.
    members: String,
}

/// Reads the members; those of version 0 if none were written.
///
/// # Errors
/// The file is damaged.
pub fn read(bytes: Option<&[u8]>) -> Result<Members, Unusable> {
    let Some(bytes) = bytes else {
        return Ok(Members::default());
    };
    let content: Content = checked_file::read(File::Members, bytes)?;
    let members = from_hex(&content.members).and_then(|bytes| Members::from_bytes(&bytes));
    members.ok_or_else(|| Unusable::NotSuch {
        file: File::Members,
        what: "no members".to_owned(),
    })
}

/// The file with these encoded members.
#[must_use]
pub fn write(members: &[u8]) -> Vec<u8> {
    let members = members.iter().map(|byte| format!("{byte:02x}")).collect();
    checked_file::write(&Content { members })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let starts = (0..text.len()).step_by(2);
    starts
        .map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_file_of_format_1() {
        let mut members = Members::begin(&[1, 2, 5], 9);
        let fifth = members.nodes.entry(5).or_default();
        (fifth.disk_id, fifth.drained) = (7, true);
        members.preferred.insert(3, 5);
        let kept = nowserving_golden::bytes(
            env!("CARGO_MANIFEST_DIR"),
            "files-1/members.toml",
            &write(&members.to_bytes()),
        );
        assert_eq!(read(Some(&kept)).unwrap(), members);
    }

    #[test]
    fn members_come_back_and_damage_is_refused() {
        assert_eq!(read(None).unwrap(), Members::default());
        let mut members = Members::begin(&[1, 2, 5], 9);
        members.nodes.entry(5).or_default().disk_id = u64::MAX;
        assert_eq!(read(Some(&write(&members.to_bytes()))).unwrap(), members);
        let odd = checked_file::sealed("members = \"0\"");
        assert!(read(Some(odd.as_bytes())).is_err());
    }
}
