//! Requests and replies of backups: shards are read as snapshots, lines are put back in parts.
//!
//! All of them go to a line's admin subject, and so to the leader of its shard. `backup` and `backup_chunk` are
//! about the shard: any name that belongs to the shard will do, of an existing line or not.

use std::fmt;
use std::marker::PhantomData;

use data_encoding::{BASE64, HEXLOWER};
use nowserving_line::LineName;
use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::wire;

/// The most bytes that a `backup_chunk` has: in JSON, too, they fit a NATS message.
pub const BACKUP_CHUNK_MAX: usize = 256 * 1_024;

/// `backup`: asks for a snapshot of the shard that holds this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Backup {
    /// With all log entries through this one; by default all that are applied now.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "wire::NumberOption"
    )]
    pub index: Option<u64>,
}

/// The answer to `backup`. Without an `id` the snapshot is being made: ask again with the `index`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackupReply {
    /// The shard.
    pub shard: u32,
    /// The log entry through which all are in the snapshot; it may have later ones.
    pub index: u64,
    /// The node keeps the snapshot under this id while chunks are asked for, and a minute longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// `backup_chunk`: a part of a snapshot. At `offset` = its length, the node drops the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackupChunk {
    /// [`BackupReply::id`].
    pub id: String,
    /// The first byte that is wanted.
    #[serde(with = "wire::Number")]
    pub offset: u64,
}

/// The answer to `backup_chunk`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BackupChunkReply {
    /// The first byte of `data`.
    pub offset: u64,
    /// At most [`BACKUP_CHUNK_MAX`] bytes. Missing: the node that leads the shard now does not keep this snapshot;
    /// begin the shard anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Blob>,
}

/// `restore_part`: a part of a line that is put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestorePart {
    /// Chosen at random each time that the line is sent.
    pub upload: Hex<16>,
    /// From 0 on. Part 0 replaces an earlier upload of the line.
    #[serde(with = "wire::Within::<0, 4_294_967_295>")]
    pub part: u32,
    /// The part.
    pub data: Blob,
}

/// The answer to `restore_part`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestorePartReply {
    /// The line's name.
    #[serde(with = "wire::Name")]
    pub line: LineName,
    /// How many parts are there: the number of the part to send next. 0: begin anew.
    pub parts: u32,
}

/// `restore`: puts the line in place, of which all parts were sent. The answer is that of `show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct RestoreLine {
    /// That of the parts.
    pub upload: Hex<16>,
    /// How many parts were sent.
    #[serde(with = "wire::Within::<1, 4_294_967_295>")]
    pub parts: u32,
    /// The digest of the parts.
    pub digest: Hex<32>,
    /// The service clock of the shard in the backup.
    #[serde(with = "wire::Number")]
    pub clock_ms: u64,
    /// Replaces a line of this name, if it has the incarnation of the backup.
    #[serde(default, deserialize_with = "wire::flag")]
    pub overwrite: bool,
}

/// Bytes: as such in MessagePack, base64 (with padding) in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.serialize_str(&BASE64.encode(&self.0)),
            false => serializer.serialize_bytes(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blob, D::Error> {
        deserializer.deserialize_any(BlobVisitor)
    }
}

struct BlobVisitor;

impl Visitor<'_> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes, in JSON as base64")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(Blob(bytes.to_vec()))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Blob, E> {
        Ok(Blob(bytes))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Blob, E> {
        let bytes = BASE64.decode(text.as_bytes());
        bytes
            .map(Blob)
            .map_err(|error| E::custom(format!("no base64: {error}")))
    }
}

/// So many bytes as lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&HEXLOWER.encode(&self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Hex<N>, D::Error> {
        deserializer.deserialize_str(HexVisitor(PhantomData))
    }
}

struct HexVisitor<const N: usize>(PhantomData<[u8; N]>);

impl<const N: usize> Visitor<'_> for HexVisitor<N> {
    type Value = Hex<N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} lower-case hex digits", 2 * N)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Hex<N>, E> {
        let bytes = HEXLOWER.decode(text.as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Hex)
            .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::codec::{Format, MAX_REQUEST_BYTES, decode, encode};

    #[test]
    fn parts_come_as_they_were_in_both_formats() {
        // The largest part that clients send.
        let data: Vec<u8> = (0..40 * 1_024_u32).map(|n| n as u8).collect();
        let part = RestorePart {
            upload: Hex([7; 16]),
            part: 3,
            data: Blob(data),
        };
        for format in [Format::Json, Format::MsgPack] {
            let bytes = encode(&part, format);
            assert!(bytes.len() <= MAX_REQUEST_BYTES);
            assert_eq!(decode::<RestorePart>(&bytes).unwrap(), part);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let refused = |text: &str| {
            let error = decode::<RestoreLine>(text.as_bytes()).unwrap_err();
            error.message
        };
        let upload = "00".repeat(16);
        let text = |digest: &str, parts: &str| {
            format!(r#"{{"upload":"{upload}","parts":{parts},"digest":"{digest}","clock_ms":5}}"#)
        };
        let digest = "ab".repeat(32);
        assert!(decode::<RestoreLine>(text(&digest, "1").as_bytes()).is_ok());
        for (text, field) in [
            (text(&digest[1..], "1"), "digest"),
            (text(&digest.to_uppercase(), "1"), "digest"),
            (text(&digest, "0"), "parts"),
            (text(&digest, "4294967296"), "parts"),
        ] {
            let message = refused(&text);
            assert!(message.starts_with(field), "{message}");
        }
        let bad = r#"{"upload":"00000000000000000000000000000000","part":0,"data":"?"}"#;
        let error = decode::<RestorePart>(bad.as_bytes()).unwrap_err();
        assert!(error.message.starts_with("data: no base64"), "{error}");
    }
}
