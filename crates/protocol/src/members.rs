//! Requests and replies about the members of the cluster: docs/protocol/nodes.md.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::ApiError;
use crate::keys::KeyPrint;
use crate::operation::Operation;

/// For how long an old key is accepted unless the request says it: a day.
pub const OLD_KEY_FOR_MS_DEFAULT: u64 = 86_400_000;
/// The longest `old_for_ms`: a year.
pub const OLD_KEY_FOR_MS_MAX: u64 = 366 * 86_400_000;

/// Names a candidate and its disk: 16 hexadecimal digits, as JSON's numbers are too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskId(pub u64);

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for DiskId {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<DiskId, ApiError> {
        let digits = text.len() == 16 && text.bytes().all(|it| it.is_ascii_hexdigit());
        let id = u64::from_str_radix(text, 16)
            .ok()
            .filter(|id| digits && *id != 0);
        id.map(DiskId).ok_or_else(|| {
            ApiError::bad_request(
                "disk: must be 16 hexadecimal digits, as `cluster status` shows them",
            )
        })
    }
}

impl Serialize for DiskId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DiskId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DiskId, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse()
            .map_err(|error: ApiError| serde::de::Error::custom(error.message))
    }
}

/// The request of every change of the members.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChangeMembers {
    /// The node to remove, replace or drain; with `transfer`, the node that shall lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// The candidate to add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<DiskId>,
    /// With `drain`: false ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<bool>,
    /// With `transfer`: which shards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<Vec<u32>>,
    /// With `rotate_key`: the key that shall be in force, by its id. All members must have loaded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<u8>,
    /// With `rotate_key`: until when the key before it is accepted, on the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_until_ms: Option<u64>,
    /// With `rotate_key`, instead of `old_until_ms`: for how long, at most [`OLD_KEY_FOR_MS_MAX`]. By default
    /// [`OLD_KEY_FOR_MS_DEFAULT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = OLD_KEY_FOR_MS_MAX)))]
    pub old_for_ms: Option<u64>,
    /// Only if the members have this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_version: Option<u64>,
}

/// The answer to every change of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MembersReply {
    /// The version of the members that have the change.
    pub members_version: u64,
    /// The node that the change was about; of an added one its number.
    #[serde(default)]
    pub node: Option<u64>,
}

/// The state of a change of the members, in the view of the node that answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MembersStatus {
    /// The version of the wanted members; 0 until shard 0 had its first leader.
    pub version: u64,
    /// How many shards do not have the wanted members yet.
    pub shards_changing: u32,
    /// Nodes that ask to be added, and may not vote until then.
    #[serde(default)]
    pub candidates: Vec<CandidateStatus>,
}

/// Snapshots on their way to nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SnapshotsSent {
    /// How many bytes were sent.
    pub sent_bytes: u64,
    /// Their size.
    pub total_bytes: u64,
}

/// A node that asks to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CandidateStatus {
    /// Names it in `add_node` and `replace_node`.
    pub disk: DiskId,
    /// Its number so far, if a member has that: it can be replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// Why it may not vote under that number.
    pub reason: String,
    /// Its build.
    pub version: String,
}

/// A key of the cluster, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyReply {
    /// The key's id.
    pub id: u8,
    /// A hash of the secret, 16 hexadecimal digits: key files with the same line have the same one.
    pub fingerprint: String,
}

impl From<KeyPrint> for KeyReply {
    fn from(key: KeyPrint) -> KeyReply {
        KeyReply {
            id: key.id,
            fingerprint: format!("{:016x}", key.fingerprint),
        }
    }
}

/// The key in force and its rotation, in the view of the node that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KeyStatus {
    /// The id of the key in force: new tickets are signed with it.
    pub in_force: u8,
    /// The id of a key that this node has loaded, and that can be put in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u8>,
    /// The id of the key that was in force before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<u8>,
    /// Until when that one is accepted, on the wall clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_until_ms: Option<u64>,
    /// That time is over: the line of the old key can be removed from the key files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub old_is_over: bool,
}

/// The answer to `members_changes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MembersChangesReply {
    /// The newest 64, the oldest first.
    pub changes: Vec<MembersChangeReply>,
    /// How many shards do not have the wanted members yet.
    #[serde(default)]
    pub shards_changing: u32,
    /// The snapshots that leaders are sending, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsSent>,
}

/// A change of the members that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MembersChangeReply {
    /// The version of the members that it made.
    pub members_version: u64,
    /// When, on the wall clock of the leader at that time.
    pub at_ms: u64,
    /// The operation.
    pub op: String,
    /// As in the request.
    #[serde(flatten)]
    pub request: ChangeMembers,
    /// Who asked for it, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The fields of one operation's request, besides those of every change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChangeFields {
    pub(crate) required: &'static [&'static str],
    pub(crate) optional: &'static [&'static str],
}

impl ChangeMembers {
    pub(crate) fn fields_of(op: Operation) -> ChangeFields {
        let (required, optional): (&[&str], &[&str]) = match op {
            Operation::AddNode => (&["disk"], &[]),
            Operation::RemoveNode => (&["node"], &[]),
            Operation::ReplaceNode => (&["node", "disk"], &[]),
            Operation::Drain => (&["node"], &["drained"]),
            Operation::RotateKey => (&["key_id"], &["old_until_ms", "old_for_ms"]),
            _ => (&["shards"], &["node"]),
        };
        ChangeFields { required, optional }
    }

    /// Checks that exactly these fields are there, besides those of every change.
    pub fn check(&self, op: Operation) -> Result<(), ApiError> {
        let has = [
            ("node", self.node.is_some()),
            ("disk", self.disk.is_some()),
            ("drained", self.drained.is_some()),
            ("shards", self.shards.is_some()),
            ("key_id", self.key_id.is_some()),
            ("old_until_ms", self.old_until_ms.is_some()),
            ("old_for_ms", self.old_for_ms.is_some()),
        ];
        let ChangeFields { required, optional } = ChangeMembers::fields_of(op);
        let op = op.name();
        for (field, there) in has {
            if required.contains(&field) && !there {
                return Err(ApiError::bad_request(format!("{field}: is needed by {op}")));
            }
            if there && !required.contains(&field) && !optional.contains(&field) {
                return Err(ApiError::bad_request(format!("{field}: is not for {op}")));
            }
        }
        if self.old_until_ms.is_some() && self.old_for_ms.is_some() {
            let both = "old_for_ms: not together with old_until_ms";
            return Err(ApiError::bad_request(both));
        }
        if self.old_for_ms.is_some_and(|it| it > OLD_KEY_FOR_MS_MAX) {
            return Err(ApiError::bad_request(format!(
                "old_for_ms: at most {OLD_KEY_FOR_MS_MAX}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_disk_is_sixteen_digits() {
        assert_eq!("00000000000000ff".parse(), Ok(DiskId(255)));
        assert_eq!(DiskId(255).to_string(), "00000000000000ff");
        for bad in [
            "",
            "ff",
            "0000000000000000",
            "00000000000000f",
            "+0000000000000ff",
        ] {
            assert!(bad.parse::<DiskId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn each_operation_has_its_fields() {
        let full = ChangeMembers {
            node: Some(1),
            disk: Some(DiskId(1)),
            ..ChangeMembers::default()
        };
        full.check(Operation::ReplaceNode).unwrap();
        for (op, named) in [
            (Operation::AddNode, "node"),
            (Operation::RemoveNode, "disk"),
            (Operation::Transfer, "disk"),
        ] {
            let error = full.check(op).unwrap_err().message;
            assert!(error.starts_with(named), "{op}: {error}");
        }
        let rotation = ChangeMembers {
            key_id: Some(2),
            old_for_ms: Some(0),
            ..ChangeMembers::default()
        };
        rotation.check(Operation::RotateKey).unwrap();
        assert!(rotation.check(Operation::Drain).is_err());
        let both = ChangeMembers {
            old_until_ms: Some(5),
            ..rotation.clone()
        };
        let forever = ChangeMembers {
            old_for_ms: Some(OLD_KEY_FOR_MS_MAX + 1),
            ..rotation
        };
        for wrong in [both, forever] {
            let error = wrong.check(Operation::RotateKey).unwrap_err().message;
            assert!(error.starts_with("old_for_ms"), "{error}");
        }
    }
}
