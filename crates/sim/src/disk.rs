//! A node's disk: its log, and a snapshot file for each shard. Both survive crashes as far as they were
//! synced. A bit of them may flip, which is found at the next start, or when it is read.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use nowserving_engine::envelope::{SnapshotChunk, SnapshotRequest};
use nowserving_engine::snapshot_header::{header_of, meta_of};
use nowserving_engine::{NotInstalled, Replayed, RestoredShard, SnapshotFile};
use nowserving_log::{LogError, LogStore as _, MemoryLog};
use nowserving_replica::{
    BOOTSTRAP_INDEX, ConfState, EntryReader as _, LogState, Restored, SnapshotMeta, Write,
};
use nowserving_shard::snapshot::{self, Header};

use crate::bounds;
use crate::files::Files;
use crate::replay::{self, State};

/// The name of the simulated cluster.
pub const CLUSTER: &str = "sim";
/// The nodes that it begins with.
pub const FIRST_NODES: [u64; 3] = [1, 2, 3];

/// The size of parts of snapshots: a few parts each.
const CHUNK_BYTES: usize = 8 << 10;

/// What a node keeps over its starts.
#[derive(Debug, Default)]
pub struct Disk {
    pub files: Files,
    /// The parts of its log, one of each loop.
    logs: Vec<Arc<MemoryLog>>,
    /// The newest snapshot of each shard.
    snapshots: BTreeMap<u32, Bytes>,
    /// What is there of a peer's snapshot of each shard.
    incoming: BTreeMap<u32, (SnapshotFile, Vec<u8>)>,
    /// A bit that has flipped: in the snapshot of a shard, at this byte.
    flipped: Option<(u32, usize)>,
}

impl Disk {
    /// One with these files, on which the log may take so many bytes, of a node with so many loops.
    #[must_use]
    pub fn new(files: Files, log_bytes_max: u64, loops: u32) -> Disk {
        let part = |_| Arc::new(MemoryLog::with_size(log_bytes_max / u64::from(loops)));
        Disk {
            files,
            logs: (0..loops).map(part).collect(),
            ..Disk::default()
        }
    }

    /// How many loops its node has.
    #[must_use]
    pub fn loops(&self) -> u32 {
        self.logs.len() as u32
    }

    /// The operator starts the node with another number of loops: the log is moved to as many parts.
    pub fn set_loops(&mut self, loops: u32, log_bytes_max: u64) {
        self.logs = MemoryLog::moved(&self.logs, loops, log_bytes_max / u64::from(loops));
    }

    /// The part of the log that has a shard.
    ///
    /// # Panics
    /// The disk has no log.
    #[must_use]
    pub fn log(&self, shard: u32) -> &Arc<MemoryLog> {
        let part = self.logs.get((shard % self.loops()) as usize);
        part.unwrap_or_else(|| unreachable!())
    }

    /// The part of the log of a loop.
    ///
    /// # Panics
    /// There is no such loop.
    #[must_use]
    pub fn log_of(&self, at: usize) -> &Arc<MemoryLog> {
        let part = self.logs.get(at);
        part.unwrap_or_else(|| unreachable!())
    }

    /// A copy of what would survive a crash.
    #[must_use]
    pub fn copy(&self) -> Disk {
        Disk {
            files: self.files.clone(),
            logs: self
                .logs
                .iter()
                .map(|it| Arc::new(it.durable_copy()))
                .collect(),
            snapshots: self.snapshots.clone(),
            incoming: self.incoming.clone(),
            flipped: None,
        }
    }

    /// Whether no shard was ever started on it, and none has come by a snapshot.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.log(0)
            .load(0)
            .is_ok_and(|log| log == LogState::default())
    }

    /// What a start finds. At the first one the nodes that the cluster begins with are written down as the
    /// voters, unless the node joined later. An install of a snapshot that a crash interrupted is completed.
    ///
    /// # Errors
    /// Something is damaged, or does not fit together: the node must not run.
    pub fn open(&self, shards: u32, joined: bool) -> Result<Vec<RestoredShard>, String> {
        let text = |error: LogError| error.to_string();
        for shard in 0..shards {
            let log = self.log(shard).load(shard).map_err(text)?;
            if !joined && log == LogState::default() {
                let first = Write::bootstrap(shard, &FIRST_NODES);
                self.log(shard).write(&[first]).map_err(text)?;
            }
        }
        (0..shards).map(|shard| self.open_shard(shard)).collect()
    }

    fn open_shard(&self, shard: u32) -> Result<RestoredShard, String> {
        let text = |error: LogError| error.to_string();
        let (snapshot, state) = match self.read_snapshot(shard)? {
            None => (SnapshotMeta::default(), bounds::first_state()),
            Some((header, state)) => (meta_of(header), state),
        };
        let file = self.snapshots.get(&shard);
        let file = file.and_then(|bytes| SnapshotFile::of(bytes));
        let mut restored = Restored {
            log: self.log(shard).load(shard).map_err(text)?,
            snapshot,
            applied: 0,
        };
        let install = restored.complete_install(shard, &**self.log(shard));
        if let Some(write) = install.map_err(|error| error.to_string())? {
            self.log(shard).write(&[write]).map_err(text)?;
            restored.log = self.log(shard).load(shard).map_err(text)?;
        }
        Ok(RestoredShard {
            shard,
            restored,
            state,
            replayed: Replayed::default(),
            file,
        })
    }

    /// The file of the newest snapshot of a shard.
    #[must_use]
    pub fn snapshot_bytes(&self, shard: u32) -> Bytes {
        self.snapshots.get(&shard).cloned().unwrap_or_default()
    }

    /// The newest snapshot of a shard.
    ///
    /// # Errors
    /// It is damaged.
    pub fn read_snapshot(&self, shard: u32) -> Result<Option<(Header, State)>, String> {
        let Some(bytes) = self.snapshots.get(&shard) else {
            return Ok(None);
        };
        bounds::decode(bytes.clone(), shard)
            .map(Some)
            .map_err(|error| error.to_string())
    }

    /// The state of the newest snapshot of a shard, or that of its start, and the last entry in it.
    ///
    /// # Errors
    /// It is damaged.
    pub fn newest(&self, shard: u32) -> Result<(u64, State), String> {
        let found = self.read_snapshot(shard)?;
        Ok(found.map_or(
            (BOOTSTRAP_INDEX, bounds::first_state()),
            |(header, state)| (header.index, state),
        ))
    }

    /// Makes a snapshot through `index` from what is on disk: the last one and the log after it.
    ///
    /// # Errors
    /// What is on disk is not enough, or damaged.
    pub fn make_snapshot(
        &self,
        shard: u32,
        index: u64,
        members: ConfState,
    ) -> Result<Bytes, String> {
        let (from, mut state) = self.newest(shard)?;
        self.replay(shard, &mut state, from, index)?;
        let term = self
            .log(shard)
            .term(shard, index)
            .map_err(|error| error.to_string())?;
        let meta = SnapshotMeta {
            index,
            term,
            conf_state: members,
        };
        let header = header_of(CLUSTER, shard, meta);
        Ok(snapshot::encode(&header, &state).into())
    }

    /// Applies the entries of the log after `from`, through `to`.
    ///
    /// # Errors
    /// They are not there, or cannot be applied.
    pub fn replay(&self, shard: u32, state: &mut State, from: u64, to: u64) -> Result<(), String> {
        if from >= to {
            return Ok(());
        }
        let entries = self.log(shard).entries(shard, from + 1, to + 1, u64::MAX);
        for entry in entries.map_err(|error| error.to_string())? {
            replay::apply(state, &entry.into(), &mut |_| {})?;
        }
        Ok(())
    }

    /// A snapshot is in its place, if a new one was made. Returns which one is there.
    ///
    /// # Errors
    /// The one that is there is damaged.
    pub fn keep_snapshot(
        &mut self,
        shard: u32,
        bytes: Option<Bytes>,
    ) -> Result<Option<(SnapshotMeta, SnapshotFile)>, String> {
        self.snapshots.extend(bytes.map(|bytes| (shard, bytes)));
        let file = self.snapshots.get(&shard);
        let file = file.and_then(|bytes| SnapshotFile::of(bytes));
        let meta = self
            .read_snapshot(shard)?
            .map(|(header, _)| meta_of(header));
        Ok(meta.zip(file))
    }

    /// How much is there of a peer's snapshot.
    pub fn open_incoming(&mut self, shard: u32, file: SnapshotFile) -> u64 {
        let known = self.incoming.entry(shard).or_insert((file, Vec::new()));
        if known.0 != file {
            *known = (file, Vec::new());
        }
        known.1.len() as u64
    }

    /// Stores the next part of it.
    pub fn store_incoming(&mut self, file: SnapshotFile, chunk: &SnapshotChunk) -> Option<u64> {
        let (known, bytes) = self.incoming.get_mut(&chunk.shard)?;
        if *known != file || bytes.len() as u64 != chunk.offset {
            return None;
        }
        bytes.extend_from_slice(&chunk.data);
        Some(bytes.len() as u64)
    }

    /// Deletes what is there of it.
    pub fn drop_incoming(&mut self, shard: u32) {
        self.incoming.remove(&shard);
    }

    /// The part of this node's snapshot that a peer asks for.
    pub fn read_part(&self, request: &SnapshotRequest, bytes_max: usize) -> Option<SnapshotChunk> {
        let bytes = self.snapshots.get(&request.shard)?;
        let file = SnapshotFile::of(bytes)?;
        let from = usize::try_from(request.offset).ok()?;
        if file.digest[..] != request.digest[..] || from >= bytes.len() {
            return None;
        }
        let to = bytes.len().min(from + CHUNK_BYTES.min(bytes_max));
        Some(SnapshotChunk {
            shard: request.shard,
            digest: request.digest.clone(),
            offset: request.offset,
            data: bytes.slice(from..to),
        })
    }

    /// Verifies a peer's snapshot and makes it this node's own.
    ///
    /// # Errors
    /// It is not the one that was offered, or not newer.
    pub fn install(
        &mut self,
        shard: u32,
        meta: &SnapshotMeta,
        file: SnapshotFile,
    ) -> Result<State, NotInstalled> {
        let incoming = self.incoming.remove(&shard);
        let (_, bytes) = incoming.ok_or(NotInstalled::NotStored)?;
        let bytes = Bytes::from(bytes);
        if SnapshotFile::of(&bytes) != Some(file) {
            return Err(NotInstalled::Refused);
        }
        let decoded = bounds::decode(bytes.clone(), shard);
        let (header, state) = decoded.map_err(|_| NotInstalled::Refused)?;
        if meta_of(header) != *meta {
            return Err(NotInstalled::Refused);
        }
        self.snapshots.insert(shard, bytes);
        Ok(state)
    }

    /// The power goes: only so much is there of a peer's snapshot, and what was to follow is garbage.
    pub fn tear_incoming(&mut self, chance: u64) {
        for (_, bytes) in self.incoming.values_mut() {
            let kept = chance as usize % (bytes.len() + 1);
            for byte in bytes.iter_mut().skip(kept) {
                *byte = 0;
            }
        }
    }

    /// A bit of an entry in the log flips; false if there is none.
    pub fn flip_bit_of_log(&self, chance: u64) -> bool {
        let parts = self.logs.iter().cycle().skip(chance as usize % 3);
        let mut parts = parts.take(self.logs.len());
        parts.any(|it| it.flip_bit(chance))
    }

    /// Whether a bit of the log has flipped, in an entry that is still there.
    pub fn is_log_damaged(&self) -> bool {
        let mut parts = (0..).zip(&self.logs);
        parts.any(|(shard, it)| matches!(it.load(shard), Err(LogError::Lost { .. })))
    }

    /// A bit of a snapshot flips; false if there is none, or one has flipped before: an operator can put one back.
    pub fn flip_bit_of_snapshot(&mut self, chance: u64) -> bool {
        if self.flipped.is_some() {
            return false;
        }
        let shards: Vec<u32> = self.snapshots.keys().copied().collect();
        let shard = shards.get(chance as usize % shards.len().max(1)).copied();
        let Some((shard, bytes)) =
            shard.and_then(|shard| Some((shard, self.snapshots.get_mut(&shard)?)))
        else {
            return false;
        };
        let at = (chance >> 16) as usize % bytes.len().max(1);
        *bytes = flipped(bytes, at);
        self.flipped = Some((shard, at));
        true
    }

    /// An operator has put the snapshot back as it was.
    pub fn repair_snapshot(&mut self) {
        if let Some((shard, at)) = self.flipped.take()
            && let Some(bytes) = self.snapshots.get_mut(&shard)
        {
            *bytes = flipped(bytes, at);
        }
    }
}

fn flipped(bytes: &Bytes, at: usize) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 0x10;
    }
    bytes.into()
}
