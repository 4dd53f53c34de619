//! The link between the nodes: a connection of its own, with a task for each peer that frames go to, and one that reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_nats::Client;
use async_nats::client::PublishError;
use futures::StreamExt as _;
use nowserving_engine::envelope::PeerDisk;
use nowserving_engine::{Input, PeerBatch, Standing};
use nowserving_front::Message;
use nowserving_front::cluster::Out;
use nowserving_front::cluster::peers::{Incoming, Outgoing, connection_of};
pub use nowserving_front::cluster::peers::{Origin, PeerList};
use nowserving_protocol::subject::Subjects;
use tokio::sync::{mpsc, watch};

use super::payload_limit::PayloadLimit;
use super::witness::Connections;
use crate::clock::monotonic_us;
use crate::data_dir;
use crate::keys::Keys;
use crate::shards::to_engine::ToEngine;
use crate::throttle::Throttle;

/// Frames to one peer that wait to be sent at most; more are dropped, Raft repeats them.
const OUT_MAX: usize = 1_024;

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
    /// Publishes what a machine asks for, and nothing else.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn publish(&self, out: Out) -> Result<(), PublishError> {
        match out {
            Out::Publish { subject, payload } => self.client.publish(subject, payload).await,
            _ => Ok(()),
        }
    }

    /// As [`NatsLink::publish`], of all.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn publish_all(&self, out: &mut Vec<Out>) -> Result<(), PublishError> {
        for it in out.drain(..) {
            self.publish(it).await?;
        }
        Ok(())
    }
}

/// Sends frames, with one task for each peer.
#[derive(Debug)]
pub struct Senders {
    link: NatsLink,
    keys: Keys,
    origin: Origin,
    /// What this node knows of its peers.
    disks: watch::Receiver<Vec<PeerDisk>>,
    /// Frames that were refused.
    control: ToEngine,
    /// A removed node keeps its task: the numbers of frames to it must grow.
    peers: BTreeMap<u64, mpsc::Sender<PeerBatch>>,
}

impl Senders {
    #[must_use]
    pub fn new(
        link: NatsLink,
        keys: Keys,
        origin: Origin,
        disks: watch::Receiver<Vec<PeerDisk>>,
        control: ToEngine,
    ) -> Self {
        Senders {
            link,
            keys,
            origin,
            disks,
            control,
            peers: BTreeMap::new(),
        }
    }

    /// Sends a frame, or drops it if too many wait: Raft repeats.
    pub fn send(&mut self, to: u64, batch: PeerBatch) {
        let sender = self.peers.entry(to).or_insert_with(|| {
            let (batches, inbox) = mpsc::channel(OUT_MAX);
            let outgoing = Outgoing::new(self.origin.clone(), &self.link.subjects, to);
            let (link, keys) = (self.link.clone(), self.keys.clone());
            let (disks, control) = (self.disks.clone(), self.control.clone());
            tokio::spawn(async move {
                let out = (to, outgoing);
                send_frames(link, keys, out, disks, control, inbox).await;
            });
            batches
        });
        if sender.try_send(batch).is_err() {
            metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
        }
    }
}

async fn send_frames(
    link: NatsLink,
    keys: Keys,
    (to, mut outgoing): (u64, Outgoing),
    disks: watch::Receiver<Vec<PeerDisk>>,
    control: ToEngine,
    mut inbox: mpsc::Receiver<PeerBatch>,
) {
    while let Some(batch) = inbox.recv().await {
        let appends = batch.messages.iter().filter(|m| m.append).count() as u64;
        let shards = batch.messages.iter().map(|message| message.shard).collect();
        metrics::counter!("nowserving_peer_frames_sent_total").increment(1);
        metrics::counter!("nowserving_peer_append_messages_sent_total").increment(appends);
        let in_use = keys.in_use();
        let parts = {
            let disks = disks.borrow();
            outgoing.send(batch, &disks, in_use.of_frames(), link.limit.bytes())
        };
        for part in parts {
            metrics::counter!("nowserving_peer_bytes_sent_total").increment(part.len() as u64);
            let subject = outgoing.subject.clone();
            if let Err(error) = link.client.publish(subject, part).await {
                // The frame is lost.
                link.limit.refused("frame", &error);
                // Closed only while the node ends.
                let _ = control.send(Input::FrameRefused { to, shards });
                break;
            }
        }
    }
}

/// Where frames come from, and where they go.
pub struct Receiver {
    pub link: NatsLink,
    pub keys: Keys,
    pub data_dir: PathBuf,
    pub peers: watch::Receiver<PeerList>,
    pub standing: watch::Receiver<Standing>,
    pub engine: ToEngine,
    /// The peers that this node knows.
    pub report: watch::Sender<Vec<PeerDisk>>,
    pub connections: watch::Sender<Connections>,
}

/// Reads frames for ever.
///
/// # Errors
/// The link cannot be opened.
pub async fn receive_frames(receiver: Receiver, mut incoming: Incoming) -> anyhow::Result<()> {
    let mut warnings = Throttle::default();
    let link = &receiver.link;
    let subject = incoming.subject(&link.subjects);
    let mut messages = link.client.subscribe(subject).await?;
    let mut out = Vec::new();
    while let Some(message) = messages.next().await {
        {
            let came = Message {
                subject: &message.subject,
                reply: None,
                headers: &(),
                payload: &message.payload,
            };
            let in_use = receiver.keys.in_use();
            let in_touch = receiver.standing.borrow().is_in_touch();
            let around = (&*receiver.peers.borrow(), in_touch);
            incoming.on_message(monotonic_us(), &came, in_use.of_frames(), around, &mut out);
        }
        for it in out.drain(..) {
            match it {
                Out::Write(file, bytes) => {
                    let dir = receiver.data_dir.clone();
                    let write = move || data_dir::write(&dir, file, &bytes);
                    // The engine goes on meanwhile.
                    let written = tokio::task::spawn_blocking(write).await;
                    if let Err(error) = written? {
                        tracing::warn!(file = file.name(), %error, "not written: a frame is dropped");
                        incoming.not_written();
                        break;
                    }
                    receiver.report.send_replace(incoming.known().report());
                }
                Out::Engine(input) => {
                    if !receiver.hand_in(input) {
                        return Ok(());
                    }
                }
                Out::Subscribe(_) | Out::Publish { .. } | Out::AskForConnection { .. } => {}
                Out::NotTaken(refused) => {
                    if let Some(count) = warnings.count() {
                        tracing::warn!(refused, count, "frames refused");
                    }
                }
            }
        }
    }
    Ok(())
}

impl Receiver {
    /// Returns false if the loop has ended.
    fn hand_in(&self, input: Input) -> bool {
        if let Input::Frame(frame) = &input
            && let Some(connection) = connection_of(frame)
        {
            // The sender's newest service connection.
            self.connections
                .send_if_modified(|all| all.insert(frame.from, connection) != Some(connection));
        }
        self.engine.send(input).is_ok()
    }
}
