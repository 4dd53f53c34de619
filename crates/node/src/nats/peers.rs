//! The link between the nodes. Raft needs a way to send and to receive, and may lose, double and
//! reorder; everything else about it is behind [`PeerLink`].

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::Client;
use bytes::Bytes;
use crossbeam_channel::{Sender, TrySendError};
use futures::StreamExt as _;
use nowserving_protocol::frame::{self, Frame, FrameKey, NodeFacts, ShardMessage};
use nowserving_protocol::subject::Subjects;
use protobuf::Message as _;
use tokio::sync::mpsc;

use crate::known_peers::KnownPeers;
use crate::shards::{PeerBatch, PeerFrame};
use crate::throttle::Throttle;

/// Frames to one peer that wait to be sent at most; more are dropped, Raft repeats them.
const OUT_MAX: usize = 1_024;

/// How nodes reach each other. Over NATS by default; another transport can stand behind it.
pub trait PeerLink: Send + Sync + 'static {
    /// Sends sealed bytes to a peer; may lose them.
    fn send(&self, to: u64, sealed: Vec<u8>) -> impl Future<Output = anyhow::Result<()>> + Send;
    /// The sealed bytes that come in for this node, until the link is closed for good.
    fn receive(
        &self,
    ) -> impl Future<Output = anyhow::Result<futures::stream::BoxStream<'static, Bytes>>> + Send;
}

/// Frames over NATS, on a connection of their own: client traffic must not delay heartbeats, nor
/// a slow reader of ours make the server drop frames.
#[derive(Debug, Clone)]
pub struct NatsLink {
    client: Client,
    subjects: Subjects,
    cluster: String,
    me: u64,
}

impl NatsLink {
    /// For node `me` of `cluster`.
    #[must_use]
    pub fn new(client: Client, subjects: Subjects, cluster: String, me: u64) -> Self {
        NatsLink {
            client,
            subjects,
            cluster,
            me,
        }
    }
}

impl PeerLink for NatsLink {
    async fn send(&self, to: u64, sealed: Vec<u8>) -> anyhow::Result<()> {
        let subject = self.subjects.raft(&self.cluster, to, self.me);
        Ok(self.client.publish(subject, sealed.into()).await?)
    }

    async fn receive(&self) -> anyhow::Result<futures::stream::BoxStream<'static, Bytes>> {
        let subject = self.subjects.raft_to(&self.cluster, self.me);
        let messages = self.client.subscribe(subject).await?;
        Ok(messages.map(|message| message.payload).boxed())
    }
}

/// What every frame of this node says of it.
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
    /// Where it serves metrics, or empty.
    pub metrics_addr: String,
}

/// Starts one sending task per peer.
pub fn start_senders<L: PeerLink>(
    link: &Arc<L>,
    key: &Arc<FrameKey>,
    origin: &Origin,
    peers: &[u64],
) -> BTreeMap<u64, mpsc::Sender<PeerBatch>> {
    peers
        .iter()
        .map(|&to| {
            let (batches, inbox) = mpsc::channel(OUT_MAX);
            tokio::spawn(send_frames(
                link.clone(),
                key.clone(),
                origin.clone(),
                to,
                inbox,
            ));
            (to, batches)
        })
        .collect()
}

async fn send_frames<L: PeerLink>(
    link: Arc<L>,
    key: Arc<FrameKey>,
    origin: Origin,
    to: u64,
    mut inbox: mpsc::Receiver<PeerBatch>,
) {
    let mut seq = 0;
    while let Some(batch) = inbox.recv().await {
        seq += 1;
        let appends = batch.messages.iter().filter(|m| m.append).count() as u64;
        let messages = batch.messages.into_iter().map(|message| ShardMessage {
            shard: message.shard,
            raft: message.raft.into(),
        });
        let frame = Frame {
            cluster: origin.cluster.clone(),
            from: origin.me,
            to,
            disk_id: origin.disk_id,
            boots: origin.boots,
            starts: origin.starts.clone(),
            seq,
            messages: messages.collect(),
            facts: Some(NodeFacts {
                hears_users: batch.hears_users,
                metrics_addr: origin.metrics_addr.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
        };
        let sealed = frame::seal(&key, &frame);
        metrics::counter!("nowserving_peer_frames_sent_total").increment(1);
        metrics::counter!("nowserving_peer_append_messages_sent_total").increment(appends);
        metrics::counter!("nowserving_peer_bytes_sent_total").increment(sealed.len() as u64);
        if let Err(error) = link.send(to, sealed).await {
            tracing::debug!(to, %error, "frame not sent");
        }
    }
}

/// Reads frames for ever: authenticates, checks, decodes, hands in.
///
/// # Errors
/// The link cannot be opened.
pub async fn receive_frames<L: PeerLink>(
    link: Arc<L>,
    key: Arc<FrameKey>,
    origin: Origin,
    peers: Vec<u64>,
    mut known: KnownPeers,
    frames: Sender<PeerFrame>,
) -> anyhow::Result<()> {
    let mut refusals = Throttle::default();
    let mut sealed = link.receive().await?;
    while let Some(bytes) = sealed.next().await {
        metrics::counter!("nowserving_peer_frames_received_total").increment(1);
        let opened = frame::open(&key, bytes).map_err(anyhow::Error::from);
        let checked = opened.and_then(|frame| check(frame, &origin, &peers, &mut known));
        match checked.map(|frame| frames.try_send(frame)) {
            Ok(Ok(())) => {}
            Ok(Err(TrySendError::Full(_))) => {
                metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
            }
            Ok(Err(TrySendError::Disconnected(_))) => return Ok(()),
            Err(refused) => {
                metrics::counter!("nowserving_frames_refused_total").increment(1);
                if let Some(count) = refusals.count() {
                    tracing::warn!(%refused, count, "frames refused");
                }
            }
        }
    }
    Ok(())
}

/// A frame that is authentic can still be of another cluster with the same key, of a node that is
/// no member, a replay, or of a wiped disk under an old id.
fn check(
    frame: Frame,
    origin: &Origin,
    peers: &[u64],
    known: &mut KnownPeers,
) -> anyhow::Result<PeerFrame> {
    anyhow::ensure!(
        frame.cluster == origin.cluster,
        "of cluster {:?}",
        frame.cluster
    );
    anyhow::ensure!(frame.to == origin.me, "meant for node {}", frame.to);
    anyhow::ensure!(
        peers.contains(&frame.from),
        "of node {}, which is no member",
        frame.from
    );
    known.note(&frame)?;
    let facts = frame.facts.unwrap_or_default();
    let mut messages = Vec::with_capacity(frame.messages.len());
    for message in frame.messages {
        let raft = raft::eraftpb::Message::parse_from_bytes(&message.raft)?;
        anyhow::ensure!(
            raft.from == frame.from,
            "of node {} with a message of node {}",
            frame.from,
            raft.from
        );
        messages.push((message.shard, raft));
    }
    Ok(PeerFrame {
        from: frame.from,
        hears_users: facts.hears_users,
        metrics_addr: facts.metrics_addr,
        version: facts.version,
        messages,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn origin() -> Origin {
        Origin {
            cluster: "c".into(),
            me: 1,
            disk_id: 10,
            boots: 1,
            starts: vec![11],
            metrics_addr: String::new(),
        }
    }

    fn frame() -> Frame {
        Frame {
            cluster: "c".into(),
            from: 2,
            to: 1,
            disk_id: 20,
            boots: 5,
            starts: vec![25],
            seq: 1,
            ..Frame::default()
        }
    }

    #[test]
    fn frames_of_strangers_replays_and_wiped_disks_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut known = KnownPeers::open(dir.path()).unwrap();
        let mut refused = |frame: Frame| {
            check(frame, &origin(), &[2, 3], &mut known)
                .err()
                .map(|e| e.to_string())
                .unwrap_or_default()
        };
        assert_eq!(refused(frame()), "");
        assert!(refused(frame()).contains("double"));
        assert_eq!(refused(Frame { seq: 2, ..frame() }), "");
        assert!(
            refused(Frame {
                cluster: "d".into(),
                seq: 3,
                ..frame()
            })
            .contains("cluster")
        );
        assert!(
            refused(Frame {
                from: 9,
                seq: 3,
                ..frame()
            })
            .contains("no member")
        );
        assert!(
            refused(Frame {
                to: 3,
                seq: 3,
                ..frame()
            })
            .contains("meant for")
        );
        assert!(
            refused(Frame {
                disk_id: 21,
                seq: 3,
                ..frame()
            })
            .contains("another disk")
        );
        // A restart of the process begins a new sequence.
        assert_eq!(
            refused(Frame {
                boots: 6,
                starts: vec![26, 25],
                ..frame()
            }),
            ""
        );
        let message = raft::eraftpb::Message {
            from: 3,
            ..Default::default()
        };
        let forged = ShardMessage {
            shard: 0,
            raft: message.write_to_bytes().unwrap().into(),
        };
        let frame = Frame {
            boots: 6,
            starts: vec![26, 25],
            seq: 2,
            messages: vec![forged],
            ..frame()
        };
        assert!(refused(frame).contains("message of node 3"));
    }
}
