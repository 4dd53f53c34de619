//! The link between the nodes, which may lose, double and reorder: Raft repeats.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use nowserving_engine::envelope::{
    self, Frame, FrameError, FrameKeys, LoadedKey, NodeFacts, PeerDisk, ShardMessage,
};
use nowserving_engine::frame_parts::{self, Assembly};
use nowserving_engine::{FrameBody, Input, NotTaken, PeerBatch, PeerFrame, PeerHeader, Refusal};
use nowserving_protocol::keys::KeyPrint;
use nowserving_protocol::subject::Subjects;
use nowserving_replica::{Connection, Message as RaftMessage};
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use super::known_peers::KnownPeers;
use super::{File, Out};
use crate::Message;

/// Refused frames of one sender are reported to the engine this often at most, so that a flood of them does
/// not keep it busy.
const REFUSAL_INTERVAL_US: Micros = 100_000;

/// The keys that a node uses now.
#[derive(Debug, Clone, Copy)]
pub struct PeerKeys<'a> {
    pub frames: &'a FrameKeys,
    /// The id of the key in force.
    pub in_force: u8,
    /// The names of the keys, whether they are still accepted or not.
    pub prints: &'a [KeyPrint],
}

/// The facts about this node that every frame carries.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The cluster's name.
    pub cluster: String,
    /// This node.
    pub me: u64,
    /// This node's disk.
    pub disk_id: u64,
    /// Starts of this node so far.
    pub boots: u64,
    /// The random numbers of the last of them, the newest first.
    pub starts: Vec<u64>,
    /// Empty: it serves none.
    pub metrics_addr: String,
    /// Where it takes direct links; empty: nowhere.
    pub link_addr: String,
    pub shards: u32,
    pub prefix: String,
    /// The nodes that its cluster began with, in ascending order.
    pub nodes: Vec<u64>,
    /// The election timeout.
    pub election_ms: u64,
    /// This build, to be shown.
    pub version: String,
}

/// The nodes with which this one exchanges frames, and the disks that they may have.
#[derive(Debug, Clone, Default)]
pub struct PeerList {
    pub ids: BTreeSet<u64>,
    pub members: Members,
}

impl PeerList {
    fn check_disk(&self, frame: &Frame) -> Result<(), NotTaken> {
        let member = self.members.nodes.get(&frame.from);
        let disk_id = member.map_or(0, |member| member.disk_id);
        match disk_id == 0 || disk_id == frame.disk_id {
            true => Ok(()),
            false => Err(NotTaken::Refused(format!(
                "node {} came with another disk than it was added with and must not vote",
                frame.from
            ))),
        }
    }
}

impl Origin {
    fn facts(&self, batch: &PeerBatch, keys: PeerKeys<'_>) -> NodeFacts {
        NodeFacts {
            client_reachable: batch.client_reachable,
            metrics_addr: self.metrics_addr.clone(),
            link_addr: self.link_addr.clone(),
            version: self.version.clone(),
            shards: self.shards,
            prefix: self.prefix.clone(),
            nodes: self.nodes.clone(),
            election_ms: self.election_ms,
            in_touch: batch.in_touch,
            members_version: batch.members_version,
            clock_us: batch.clock_us,
            disk_full: batch.disk_full,
            refuses_snapshots: batch.refuses_snapshots,
            connection: batch.connections.first().copied().unwrap_or_default(),
            more_connections: batch.connections.get(1..).unwrap_or_default().to_vec(),
            entry_format: batch.entry_format,
            key_id: Some(u32::from(keys.in_force)),
            keys: batch.keys.iter().map(loaded_key).collect(),
            in_no_group: batch.in_no_group,
            max_payload: batch.max_payload,
        }
    }

    /// Checks the facts that must be the same on all nodes: otherwise they would serve different lines under one name.
    fn agrees(&self, from: u64, theirs: &NodeFacts, prints: &[KeyPrint]) -> Result<(), String> {
        let me = self.me;
        let differ = if theirs.shards != self.shards {
            format!("{} shards, node {me} has {}", theirs.shards, self.shards)
        } else if theirs.prefix != self.prefix {
            let (theirs, ours) = (&theirs.prefix, &self.prefix);
            format!("the prefix {theirs:?}, node {me} has {ours:?}")
        } else if theirs.nodes != self.nodes {
            let (theirs, ours) = (&theirs.nodes, &self.nodes);
            format!("the list of first nodes {theirs:?}, node {me} has {ours:?}")
        } else if theirs.election_ms != self.election_ms {
            // A lease is measured by the leader's, loyalty to it by the voter's own.
            let (theirs, ours) = (theirs.election_ms, self.election_ms);
            format!("the election timeout {theirs} ms, node {me} has {ours} ms")
        } else if let Some((theirs, ours)) = unknown_key(theirs, prints) {
            // The id is in every ticket, and not in the seal.
            format!("a key file with the key id {theirs}, that of node {me} has {ours}")
        } else {
            return Ok(());
        };
        Err(format!("node {from} has {differ}"))
    }
}

/// The id of the key in force there, if this node has not loaded that key, and the ids of those that it has.
fn unknown_key(theirs: &NodeFacts, ours: &[KeyPrint]) -> Option<(u32, String)> {
    // Older builds do not say it.
    let id = theirs.key_id?;
    let named = theirs.keys.iter().find(|key| key.id == id);
    let is_it = |key: &KeyPrint| {
        u32::from(key.id) == id && named.is_none_or(|it| it.fingerprint == key.fingerprint)
    };
    if ours.iter().any(is_it) {
        return None;
    }
    let ours = ours.iter().map(|key| key.id.to_string());
    Some((id, ours.collect::<Vec<_>>().join(" and ")))
}

fn loaded_key(key: &KeyPrint) -> LoadedKey {
    LoadedKey {
        id: u32::from(key.id),
        fingerprint: key.fingerprint,
    }
}

/// `None`: no key can have this id.
fn key_print(key: &LoadedKey) -> Option<KeyPrint> {
    Some(KeyPrint {
        id: u8::try_from(key.id).ok()?,
        fingerprint: key.fingerprint,
    })
}

/// Frames to one peer.
#[derive(Debug)]
pub struct Outgoing {
    /// Where they are published.
    pub subject: String,
    origin: Origin,
    to: u64,
    seq: u64,
}

impl Outgoing {
    #[must_use]
    pub fn new(origin: Origin, subjects: &Subjects, to: u64) -> Outgoing {
        Outgoing {
            subject: subjects.raft(&origin.cluster, to, origin.me),
            origin,
            to,
            seq: 0,
        }
    }

    /// The next frame, as the payloads of one message, or of several if the transport takes no more than `bytes_max` in
    /// one. `disks`: those that this node knows.
    pub fn send<'k>(
        &mut self,
        batch: PeerBatch,
        disks: &[PeerDisk],
        keys: PeerKeys<'k>,
        bytes_max: usize,
    ) -> impl Iterator<Item = Bytes> + use<'k> {
        let frame = self.frame(batch, disks, keys);
        let parts = frame_parts::cut(frame, bytes_max).into_iter();
        let key = keys.frames.current();
        parts.map(|part| envelope::seal(key, &part).into())
    }

    fn frame(&mut self, batch: PeerBatch, disks: &[PeerDisk], keys: PeerKeys<'_>) -> Frame {
        self.seq += 1;
        let origin = &self.origin;
        let facts = origin.facts(&batch, keys);
        let messages = batch.messages.into_iter().map(|message| ShardMessage {
            shard: message.shard,
            raft: message.raft.into(),
        });
        Frame {
            cluster: origin.cluster.clone(),
            cluster_id: batch.cluster_id,
            from: origin.me,
            to: self.to,
            disk_id: origin.disk_id,
            boots: origin.boots,
            starts: origin.starts.clone(),
            seq: self.seq,
            messages: messages.collect(),
            state_hashes: batch.state_hashes,
            closed: batch.closed,
            lagging: batch.lagging,
            disks: match batch.reports_disks {
                true => disks.to_vec(),
                false => Vec::new(),
            },
            facts: Some(facts),
            verdicts: batch.verdicts,
            members: batch
                .members
                .map_or_else(Vec::new, |it| it.to_bytes())
                .into(),
            snapshot_request: batch.snapshot_request,
            snapshot_chunk: batch.snapshot_chunk.map(|it| *it),
            part: None,
        }
    }
}

/// Frames from all peers: authenticated, checked, decoded.
#[derive(Debug)]
pub struct Incoming {
    origin: Origin,
    known: KnownPeers,
    assembly: Assembly,
    /// Refused frames, by sender.
    reported_at: BTreeMap<u64, Micros>,
}

impl Incoming {
    #[must_use]
    pub fn new(origin: Origin, known: KnownPeers) -> Incoming {
        Incoming {
            origin,
            known,
            assembly: Assembly::default(),
            reported_at: BTreeMap::new(),
        }
    }

    /// Where frames to this node come, of other clusters too. Two clusters on one prefix would answer each other's
    /// users: by their frames the operator learns of it.
    #[must_use]
    pub fn subject(&self, subjects: &Subjects) -> String {
        subjects.raft_to("*", self.origin.me)
    }

    /// As the subject of a frame by a direct link, which has none.
    #[must_use]
    pub fn subject_from(&self, subjects: &Subjects, from: u64) -> String {
        subjects.raft(&self.origin.cluster, self.origin.me, from)
    }

    /// The disks that this node knows.
    #[must_use]
    pub fn known(&self) -> &KnownPeers {
        &self.known
    }

    /// The file of peers could not be written.
    pub fn not_written(&mut self) {
        self.known.not_written();
    }

    /// Takes a message on [`Incoming::subject`]. `in_touch`: this node takes part.
    pub fn on_message(
        &mut self,
        now: Micros,
        message: &Message<'_>,
        keys: PeerKeys<'_>,
        (peers, in_touch): (&PeerList, bool),
        out: &mut Vec<Out>,
    ) {
        let opened = match open(message, &self.origin, keys).map(|it| self.assembly.take(it)) {
            Ok(None) => return,
            Ok(Some(frame)) => Ok(frame),
            Err(refused) => Err(refused),
        };
        metrics::counter!("nowserving_peer_frames_received_total").increment(1);
        let checked = opened.and_then(|frame| {
            let (origin, known) = (&self.origin, &mut self.known);
            check(frame, (origin, keys.prints), (peers, in_touch), known, out)
        });
        let frame = match checked {
            Ok(frame) => frame,
            Err(refused) => {
                metrics::counter!("nowserving_frames_refused_total").increment(1);
                out.push(Out::NotTaken(refused.to_string()));
                match refused {
                    // A sealed frame of a node that is no peer may have newer members.
                    NotOurs::Refused(frame)
                        if frame.header.start.is_some() || peers.ids.contains(&frame.from) =>
                    {
                        *frame
                    }
                    _ => return,
                }
            }
        };
        if frame.body.is_err() {
            let last = self.reported_at.get(&frame.from);
            if last.is_some_and(|at| now.saturating_sub(*at) < REFUSAL_INTERVAL_US) {
                return;
            }
            self.reported_at.insert(frame.from, now);
        }
        out.push(Out::Engine(Input::Frame(Box::new(frame))));
    }
}

/// The newest service connections of the sender's loops, if the frame is taken.
#[must_use]
pub fn connections_of(frame: &PeerFrame) -> Option<Vec<Connection>> {
    let (start, body) = (frame.header.start?, frame.body.as_ref().ok()?);
    let numbers = (0..).zip(&body.connections);
    let connections = numbers.map(|(index, number)| Connection {
        start: nowserving_engine::connections_of(start, index),
        number: *number,
    });
    Some(connections.collect())
}

/// A frame that is not taken.
#[derive(Debug, thiserror::Error)]
enum NotOurs {
    /// Its sender is refused; in the frame is why.
    #[error("{}", reason(.0))]
    Refused(Box<PeerFrame>),
    /// It is dropped, and says nothing about its sender.
    #[error("{0}")]
    Dropped(String),
}

fn reason(refused: &PeerFrame) -> &str {
    refused.body.as_ref().err().map_or("", |it| &it.reason)
}

impl NotOurs {
    fn refused(from: u64, header: PeerHeader, refusal: Refusal) -> NotOurs {
        NotOurs::Refused(Box::new(PeerFrame {
            from,
            header,
            body: Err(refusal),
        }))
    }
}

/// Opens a frame that is sealed with a key of ours. For others only the subject names the sender: not to be
/// trusted, but a hint to operators.
fn open(message: &Message<'_>, origin: &Origin, keys: PeerKeys<'_>) -> Result<Frame, NotOurs> {
    // `….<cluster>.<to>.<from>`, as the subscription has it.
    let mut words = message.subject.rsplit('.');
    let from: Option<u64> = words.next().and_then(|from| from.parse().ok());
    let cluster = words.nth(1).unwrap_or_default();
    let number = from.map_or("?".to_owned(), |from| from.to_string());
    let reason = if cluster == origin.cluster {
        match keys.frames.open(message.payload.clone()) {
            Ok((frame, _)) => return Ok(frame),
            Err(FrameError::Seal) => format!(
                "frames under the number of node {number} fail authentication: its key file and that of node {} differ",
                origin.me
            ),
            Err(error @ FrameError::Format(_)) => format!("node {number} sends {error}"),
            Err(error) => return Err(NotOurs::Dropped(error.to_string())),
        }
    } else {
        format!(
            "node {number} on the same NATS and prefix is of cluster {cluster:?}, node {} of {:?}",
            origin.me, origin.cluster
        )
    };
    Err(match from {
        Some(from) => NotOurs::refused(from, PeerHeader::default(), Refusal::passing(reason)),
        None => NotOurs::Dropped(reason),
    })
}

/// A frame that is authentic can still be of another cluster with the same key, of a node that is
/// no member or has other facts, a replay, or of a wiped disk under an old id.
fn check(
    frame: Frame,
    (origin, prints): (&Origin, &[KeyPrint]),
    (peers, in_touch): (&PeerList, bool),
    known: &mut KnownPeers,
    out: &mut Vec<Out>,
) -> Result<PeerFrame, NotOurs> {
    let from = frame.from;
    if frame.cluster != origin.cluster {
        let reason = format!("of cluster {:?}", frame.cluster);
        return Err(NotOurs::Dropped(reason));
    }
    if frame.to != origin.me {
        return Err(NotOurs::Dropped(format!("meant for node {}", frame.to)));
    }
    if from == origin.me {
        return Err(NotOurs::Dropped("under this node's own number".to_owned()));
    }
    let facts = frame.facts.clone().unwrap_or_default();
    let header = PeerHeader {
        cluster_id: frame.cluster_id,
        start: frame.starts.first().copied(),
        in_touch: facts.in_touch,
        in_no_group: facts.in_no_group,
        verdicts: frame.verdicts.clone(),
        members_version: facts.members_version,
        members: Members::from_bytes(&frame.members).filter(|it| it.version > 0),
    };
    // Only what this node knows of the members may be outdated: then they are taken from the frame. Those of
    // another cluster, or of a disk that is refused, must not be.
    let refused = |mut header: PeerHeader, refusal| {
        header.members = None;
        Err(NotOurs::refused(from, header, refusal))
    };
    // First: the disk of a node that is not of this cluster must not be taken for its member's.
    if peers.members.are_foreign_to(frame.cluster_id) {
        return refused(header, Refusal::of_other_cluster(from));
    }
    if let Err(reason) = origin.agrees(from, &facts, prints) {
        return refused(header, Refusal::passing(reason));
    }
    if !peers.ids.contains(&from) {
        return Err(NotOurs::refused(from, header, Refusal::of_stranger(from)));
    }
    let noted = peers.check_disk(&frame);
    match noted.and_then(|()| known.note(&frame, in_touch)) {
        Ok(file) => out.extend(file.map(|it| Out::Write(File::Peers, it))),
        Err(NotTaken::Refused(reason)) => return refused(header, Refusal::of_disk(reason)),
        Err(NotTaken::Dropped(reason)) => return Err(NotOurs::Dropped(reason)),
    }
    let (state_hashes, closed) = (frame.state_hashes.clone(), frame.closed.clone());
    let lagging = frame.lagging.clone();
    let (snapshot_request, snapshot_chunk) = (
        frame.snapshot_request.clone(),
        frame.snapshot_chunk.clone().map(Box::new),
    );
    let messages = raft_messages(frame).map_err(NotOurs::Dropped)?;
    let body = FrameBody {
        client_reachable: facts.client_reachable,
        disk_full: facts.disk_full,
        refuses_snapshots: facts.refuses_snapshots,
        clock_us: facts.clock_us,
        connections: std::iter::once(facts.connection)
            .chain(facts.more_connections)
            .collect(),
        closed,
        lagging,
        metrics_addr: facts.metrics_addr,
        link_addr: facts.link_addr,
        version: facts.version,
        entry_format: facts.entry_format,
        max_payload: facts.max_payload,
        keys: facts.keys.iter().filter_map(key_print).collect(),
        messages,
        state_hashes,
        snapshot_request,
        snapshot_chunk,
    };
    Ok(PeerFrame {
        from,
        header,
        body: Ok(body),
    })
}

fn raft_messages(frame: Frame) -> Result<Vec<(u32, RaftMessage)>, String> {
    let mut messages = Vec::with_capacity(frame.messages.len());
    for message in frame.messages {
        let raft = RaftMessage::decode(&message.raft);
        let raft = raft.map_err(|error| error.to_string())?;
        let (from, other) = (frame.from, raft.sender());
        if other != from {
            return Err(format!("of node {from} with a message of node {other}"));
        }
        messages.push((message.shard, raft));
    }
    Ok(messages)
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
