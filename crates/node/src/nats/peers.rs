//! The link between the nodes, which may lose, double and reorder: Raft repeats.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::client::PublishError;
use bytes::Bytes;
use crossbeam_channel::{Sender, TrySendError};
use futures::{Stream, StreamExt as _};
use nowserving_engine::envelope::{
    self, Frame, FrameError, LoadedKey, NodeFacts, PeerDisk, ShardMessage,
};
use nowserving_engine::frame_parts::{self, Assembly};
use nowserving_protocol::keys::KeyPrint;
use nowserving_protocol::subject::Subjects;
use nowserving_replica::{Connection, Message};
use nowserving_shard::members::Members;
use tokio::sync::{mpsc, watch};

use super::payload_limit::PayloadLimit;
use super::witness::Connections;
use crate::keys::Keys;
use crate::known_peers::KnownPeers;
use crate::throttle::Throttle;
use nowserving_engine::{FrameBody, Input, NotTaken, PeerBatch, PeerFrame, PeerHeader, Refusal};

/// Frames to one peer that wait to be sent at most; more are dropped, Raft repeats them.
const OUT_MAX: usize = 1_024;
/// Refused frames of one sender are reported to the engine this often at most, so that a flood of them does
/// not keep it busy.
const REFUSAL_INTERVAL: Duration = Duration::from_millis(100);

/// A frame as it comes in, not yet opened.
#[derive(Debug)]
struct Incoming {
    /// The cluster that its sender put it under.
    cluster: String,
    /// The number that its sender put it under; `None` if that is none.
    from: Option<u64>,
    sealed: Bytes,
}

/// Frames over NATS, on a connection of their own: client traffic must not delay heartbeats, nor
/// a slow reader of ours make the server drop frames.
#[derive(Debug, Clone)]
pub struct NatsLink {
    /// That connection.
    pub client: Client,
    pub limit: PayloadLimit,
    pub subjects: Subjects,
}

impl NatsLink {
    /// Sends a frame, in parts if it is too large for one message. With an error it is lost.
    async fn send(&self, origin: &Origin, frame: Frame) -> Result<(), PublishError> {
        let subject = self.subjects.raft(&origin.cluster, frame.to, origin.me);
        for part in frame_parts::cut(frame, self.limit.bytes()) {
            let sealed = envelope::seal(origin.keys.in_use().frames.current(), &part);
            metrics::counter!("nowserving_peer_bytes_sent_total").increment(sealed.len() as u64);
            self.client.publish(subject.clone(), sealed.into()).await?;
        }
        Ok(())
    }

    /// The frames to this node's number, from nodes of other clusters too, until the connection is closed
    /// for good.
    async fn receive(&self, me: u64) -> anyhow::Result<impl Stream<Item = Incoming> + use<>> {
        // Two clusters on one prefix would answer each other's users. So this node listens to all of
        // them: that is how its operator learns of it.
        let subject = self.subjects.raft_to("*", me);
        let messages = self.client.subscribe(subject).await?;
        Ok(messages.map(|message| {
            // `….<cluster>.<to>.<from>`, as the subscription has it.
            let mut words = message.subject.rsplit('.');
            let from = words.next().and_then(|from| from.parse().ok());
            Incoming {
                cluster: words.nth(1).unwrap_or_default().to_owned(),
                from,
                sealed: message.payload,
            }
        }))
    }
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
    pub shards: u32,
    pub prefix: String,
    /// The nodes that its cluster began with, in ascending order.
    pub nodes: Vec<u64>,
    /// The election timeout.
    pub election_ms: u64,
    /// The cluster's keys.
    pub keys: Keys,
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
    fn facts(&self, batch: &PeerBatch) -> NodeFacts {
        NodeFacts {
            client_reachable: batch.client_reachable,
            metrics_addr: self.metrics_addr.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            shards: self.shards,
            prefix: self.prefix.clone(),
            nodes: self.nodes.clone(),
            election_ms: self.election_ms,
            in_touch: batch.in_touch,
            members_version: batch.members_version,
            clock_us: batch.clock_us,
            disk_full: batch.disk_full,
            refuses_snapshots: batch.refuses_snapshots,
            connection: batch.connection,
            entry_format: batch.entry_format,
            key_id: Some(u32::from(self.keys.in_use().ring.current().id())),
            keys: batch.keys.iter().map(loaded_key).collect(),
            in_no_group: batch.in_no_group,
            max_payload: batch.max_payload,
        }
    }

    /// Checks the facts that must be the same on all nodes: otherwise they would serve different lines under one name.
    fn agrees(&self, from: u64, theirs: &NodeFacts) -> Result<(), String> {
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
        } else if let Some((theirs, ours)) = self.unknown_key(theirs) {
            // The id is in every ticket, and not in the seal.
            format!("a key file with the key id {theirs}, that of node {me} has {ours}")
        } else {
            return Ok(());
        };
        Err(format!("node {from} has {differ}"))
    }

    /// The id of the key in force there, if this node has not loaded that key, and the ids of those that it has.
    fn unknown_key(&self, theirs: &NodeFacts) -> Option<(u32, String)> {
        // Older builds do not say it.
        let id = theirs.key_id?;
        let in_use = self.keys.in_use();
        let named = theirs.keys.iter().find(|key| key.id == id);
        let is_it = |key: &KeyPrint| {
            u32::from(key.id) == id && named.is_none_or(|it| it.fingerprint == key.fingerprint)
        };
        if in_use.prints.iter().any(is_it) {
            return None;
        }
        let ours = in_use.prints.iter().map(|key| key.id.to_string());
        Some((id, ours.collect::<Vec<_>>().join(" and ")))
    }
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

/// Sends frames, with one task for each peer.
#[derive(Debug)]
pub struct Senders {
    link: NatsLink,
    origin: Origin,
    /// What this node knows of its peers.
    disks: watch::Receiver<Vec<PeerDisk>>,
    /// Frames that were refused.
    control: Sender<Input>,
    runtime: tokio::runtime::Handle,
    /// A removed node keeps its task: the numbers of frames to it must grow.
    peers: BTreeMap<u64, mpsc::Sender<PeerBatch>>,
}

impl Senders {
    /// Must be called in the runtime in which the tasks run.
    #[must_use]
    pub fn new(
        link: NatsLink,
        origin: Origin,
        disks: watch::Receiver<Vec<PeerDisk>>,
        control: Sender<Input>,
    ) -> Self {
        Senders {
            link,
            origin,
            disks,
            control,
            runtime: tokio::runtime::Handle::current(),
            peers: BTreeMap::new(),
        }
    }

    /// Sends a frame, or drops it if too many wait: Raft repeats.
    pub fn send(&mut self, to: u64, batch: PeerBatch) {
        let sender = self.peers.entry(to).or_insert_with(|| {
            let (batches, inbox) = mpsc::channel(OUT_MAX);
            let (link, origin) = (self.link.clone(), self.origin.clone());
            let (disks, control) = (self.disks.clone(), self.control.clone());
            self.runtime
                .spawn(send_frames(link, origin, disks, control, to, inbox));
            batches
        });
        if sender.try_send(batch).is_err() {
            metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
        }
    }
}

async fn send_frames(
    link: NatsLink,
    origin: Origin,
    disks: watch::Receiver<Vec<PeerDisk>>,
    control: Sender<Input>,
    to: u64,
    mut inbox: mpsc::Receiver<PeerBatch>,
) {
    let mut seq = 0;
    while let Some(batch) = inbox.recv().await {
        seq += 1;
        let appends = batch.messages.iter().filter(|m| m.append).count() as u64;
        let facts = origin.facts(&batch);
        let disks = match batch.reports_disks {
            true => disks.borrow().clone(),
            false => Vec::new(),
        };
        let shards = batch.messages.iter().map(|message| message.shard).collect();
        let messages = batch.messages.into_iter().map(|message| ShardMessage {
            shard: message.shard,
            raft: message.raft.into(),
        });
        let frame = Frame {
            cluster: origin.cluster.clone(),
            cluster_id: batch.cluster_id,
            from: origin.me,
            to,
            disk_id: origin.disk_id,
            boots: origin.boots,
            starts: origin.starts.clone(),
            seq,
            messages: messages.collect(),
            state_hashes: batch.state_hashes,
            closed: batch.closed,
            lagging: batch.lagging,
            disks,
            facts: Some(facts),
            verdicts: batch.verdicts,
            members: batch.members.map_or_else(Vec::new, |it| it.encode()).into(),
            snapshot_request: batch.snapshot_request,
            snapshot_chunk: batch.snapshot_chunk.map(|it| *it),
            part: None,
        };
        metrics::counter!("nowserving_peer_frames_sent_total").increment(1);
        metrics::counter!("nowserving_peer_append_messages_sent_total").increment(appends);
        if let Err(error) = link.send(&origin, frame).await {
            link.limit.refused("frame", &error);
            // Closed only while the node ends.
            let _ = control.send(Input::FrameRefused { to, shards });
        }
    }
}

/// Reads frames for ever: authenticates, checks, decodes, hands in.
///
/// # Errors
/// The link cannot be opened.
pub async fn receive_frames(
    link: NatsLink,
    origin: Origin,
    mut known: KnownPeers,
    peers: watch::Receiver<PeerList>,
    frames: Sender<Input>,
    connections: watch::Sender<Connections>,
) -> anyhow::Result<()> {
    let mut warnings = Throttle::default();
    let mut reported_at: BTreeMap<u64, Instant> = BTreeMap::new();
    let mut incoming = link.receive(origin.me).await?;
    let mut assembly = Assembly::default();
    while let Some(it) = incoming.next().await {
        let opened = match open(it, &origin).map(|part| assembly.take(part)) {
            Ok(None) => continue,
            Ok(Some(frame)) => Ok(frame),
            Err(refused) => Err(refused),
        };
        metrics::counter!("nowserving_peer_frames_received_total").increment(1);
        let frame =
            match opened.and_then(|frame| check(frame, &origin, &peers.borrow(), &mut known)) {
                Ok(frame) => frame,
                Err(refused) => {
                    metrics::counter!("nowserving_frames_refused_total").increment(1);
                    if let Some(count) = warnings.count() {
                        tracing::warn!(%refused, count, "frames refused");
                    }
                    match refused {
                        // A sealed frame of a node that is no peer may have newer members.
                        NotOurs::Refused(frame)
                            if frame.header.start.is_some()
                                || peers.borrow().ids.contains(&frame.from) =>
                        {
                            *frame
                        }
                        _ => continue,
                    }
                }
            };
        if frame.body.is_err() {
            let now = Instant::now();
            let last = reported_at.get(&frame.from);
            if last.is_some_and(|at| now.duration_since(*at) < REFUSAL_INTERVAL) {
                continue;
            }
            reported_at.insert(frame.from, now);
        }
        note_connection(&frame, &connections);
        match frames.try_send(Input::Frame(Box::new(frame))) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
            }
            Err(TrySendError::Disconnected(_)) => return Ok(()),
        }
    }
    Ok(())
}

/// Keeps the sender's newest service connection.
fn note_connection(frame: &PeerFrame, connections: &watch::Sender<Connections>) {
    if let (Some(start), Ok(body)) = (frame.header.start, &frame.body) {
        let number = body.connection;
        let connection = Connection { start, number };
        connections.send_if_modified(|all| all.insert(frame.from, connection) != Some(connection));
    }
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
fn open(incoming: Incoming, origin: &Origin) -> Result<Frame, NotOurs> {
    let Incoming {
        cluster,
        from,
        sealed,
    } = incoming;
    let number = from.map_or("?".to_owned(), |from| from.to_string());
    let reason = if cluster == origin.cluster {
        match origin.keys.in_use().frames.open(sealed) {
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
    origin: &Origin,
    peers: &PeerList,
    known: &mut KnownPeers,
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
        members: Members::decode(&frame.members).filter(|it| it.version > 0),
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
    if let Err(reason) = origin.agrees(from, &facts) {
        return refused(header, Refusal::passing(reason));
    }
    if !peers.ids.contains(&from) {
        return Err(NotOurs::refused(from, header, Refusal::of_stranger(from)));
    }
    match peers.check_disk(&frame).and_then(|()| known.note(&frame)) {
        Ok(()) => {}
        Err(NotTaken::Refused(reason)) => return refused(header, Refusal::of_disk(reason)),
        Err(NotTaken::Dropped(reason)) => return Err(NotOurs::Dropped(reason)),
    }
    let (state_hashes, closed) = (frame.state_hashes.clone(), frame.closed.clone());
    let lagging = frame.lagging.clone();
    let (snapshot_request, snapshot_chunk) = (
        frame.snapshot_request.clone(),
        frame.snapshot_chunk.clone().map(Box::new),
    );
    let messages = raft_messages(frame).map_err(|error| NotOurs::Dropped(error.to_string()))?;
    let body = FrameBody {
        client_reachable: facts.client_reachable,
        disk_full: facts.disk_full,
        refuses_snapshots: facts.refuses_snapshots,
        clock_us: facts.clock_us,
        connection: facts.connection,
        closed,
        lagging,
        metrics_addr: facts.metrics_addr,
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

fn raft_messages(frame: Frame) -> anyhow::Result<Vec<(u32, Message)>> {
    let mut messages = Vec::with_capacity(frame.messages.len());
    for message in frame.messages {
        let raft = Message::decode(&message.raft)?;
        anyhow::ensure!(
            raft.sender() == frame.from,
            "of node {} with a message of node {}",
            frame.from,
            raft.sender()
        );
        messages.push((message.shard, raft));
    }
    Ok(messages)
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
