//! Log entries: the operations that a leader folded into one proposal.
//!
//! An entry that is committed must mean the same to every node. So whatever a
//! reader does not understand is an error, on which a node has to stop; nothing
//! is skipped. Protobuf itself skips fields that it does not know, so entries have a
//! format, which changes with what they can say: a build stops on any but its own.

use nowserving_line::{OPS_PER_ENTRY_MAX, Op};
use prost::Message;

use crate::command_pb::{op_from_pb, op_to_pb};
use crate::pb;

/// The most operations in one entry: more would make incarnations ambiguous.
pub const OPS_MAX: usize = OPS_PER_ENTRY_MAX as usize;

/// Of what this build writes and reads.
const FORMAT: u32 = 2;

/// One log entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The leader's reading of the shard's service clock.
    pub now_ms: u64,
    /// The leader's wall clock, in milliseconds since 1970, to be shown.
    pub wall_ms: u64,
    /// Every member has the log up to this index, so that all may cut it.
    pub compact_floor: u64,
    /// The operations, in order; at most [`OPS_MAX`].
    pub ops: Vec<Op>,
}

/// Why an entry cannot be applied by this build.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Not protobuf, or not a batch.
    #[error("a log entry does not decode: {0}")]
    Decode(String),
    /// Of another build.
    #[error("a log entry has format {0}, and this build reads {FORMAT}")]
    Format(u32),
    /// A batch, and something in it makes no sense.
    #[error("a log entry contains {0}")]
    Malformed(&'static str),
}

/// The entry's bytes. Equal batches are equal bytes.
///
/// # Panics
///
/// If there are more than [`OPS_MAX`] operations: rather here, before anything is
/// proposed, than on every node once it is committed.
pub fn encode(batch: &Batch) -> Vec<u8> {
    assert!(
        batch.ops.len() <= OPS_MAX,
        "more operations than an entry can have"
    );
    let ops: Vec<_> = batch.ops.iter().map(op_to_pb).collect();
    let batch = pb::Batch {
        format: FORMAT,
        now_ms: batch.now_ms,
        wall_ms: batch.wall_ms,
        compact_floor: batch.compact_floor,
        ops,
    };
    batch.encode_to_vec()
}

/// Reads an entry.
pub fn decode(bytes: &[u8]) -> Result<Batch, BatchError> {
    let batch = pb::Batch::decode(bytes).map_err(|error| BatchError::Decode(error.to_string()))?;
    match batch.format {
        FORMAT => {}
        0 => return Err(BatchError::Malformed("no format")),
        other => return Err(BatchError::Format(other)),
    }
    if batch.ops.len() > OPS_MAX {
        return Err(BatchError::Malformed(
            "more operations than an entry can have",
        ));
    }
    let ops = batch
        .ops
        .into_iter()
        .map(op_from_pb)
        .collect::<Result<_, _>>();
    Ok(Batch {
        now_ms: batch.now_ms,
        wall_ms: batch.wall_ms,
        compact_floor: batch.compact_floor,
        ops: ops.map_err(BatchError::Malformed)?,
    })
}

/// How many bytes an operation adds to a batch, so that a batch can be kept below
/// a limit while it is folded. A batch without operations has at most
/// [`EMPTY_BYTES_MAX`].
pub fn encoded_len(op: &Op) -> usize {
    let length = op_to_pb(op).encoded_len();
    1 + prost::length_delimiter_len(length) + length
}

/// The most bytes of a batch without operations.
pub const EMPTY_BYTES_MAX: usize = 35;
