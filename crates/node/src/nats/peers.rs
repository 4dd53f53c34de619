//! The frames between the nodes. Each goes by a direct link ([`crate::link`]) while one is open to its receiver, and
//! otherwise over NATS, by a connection of its own with a task for each peer.

use std::collections::BTreeMap;
use std::path::PathBuf;

use async_nats::client::PublishError;
use async_nats::{Client, Subject};
use bytes::Bytes;
use futures::StreamExt as _;
use nowserving_engine::envelope::PeerDisk;
use nowserving_engine::{Input, PeerBatch, PeerFrame, Standing};
use nowserving_front::Message;
use nowserving_front::cluster::Out;
use nowserving_front::cluster::link::framing::FRAME_BYTES_MAX;
use nowserving_front::cluster::peers::{Incoming, Outgoing, connections_of};
pub use nowserving_front::cluster::peers::{Origin, PeerList};
use nowserving_protocol::subject::Subjects;
use tokio::sync::{mpsc, watch};

use super::payload_limit::PayloadLimit;
use super::witness::Connections;
use crate::clock::monotonic_us;
use crate::data_dir;
use crate::keys::Keys;
use crate::link::Links;
use crate::link::accept::LinkFrame;
use crate::link::open::{Address, Addresses};
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

/// Sends frames.
#[derive(Debug)]
pub struct Senders {
    link: NatsLink,
    direct: Links,
    keys: Keys,
    origin: Origin,
    /// What this node knows of its peers.
    disks: watch::Receiver<Vec<PeerDisk>>,
    /// Frames that were refused.
    control: ToEngine,
    /// A removed node stays: the numbers of frames to it must grow.
    peers: BTreeMap<u64, Peer>,
}

/// Where frames to one peer go.
#[derive(Debug)]
struct Peer {
    outgoing: Outgoing,
    /// To its task.
    over_nats: mpsc::Sender<Sealed>,
}

/// A sealed frame.
#[derive(Debug)]
struct Sealed {
    /// In one message, or in several.
    parts: Vec<Bytes>,
    /// Of which shards it has messages.
    shards: Vec<u32>,
}

impl Senders {
    #[must_use]
    pub fn new(
        link: NatsLink,
        direct: Links,
        keys: Keys,
        origin: Origin,
        disks: watch::Receiver<Vec<PeerDisk>>,
        control: ToEngine,
    ) -> Self {
        Senders {
            link,
            direct,
            keys,
            origin,
            disks,
            control,
            peers: BTreeMap::new(),
        }
    }

    /// Sends a frame, or drops it if too many wait: Raft repeats.
    pub fn send(&mut self, to: u64, batch: PeerBatch) {
        let appends = batch.messages.iter().filter(|m| m.append).count() as u64;
        let shards = batch.messages.iter().map(|message| message.shard).collect();
        metrics::counter!("nowserving_peer_frames_sent_total").increment(1);
        metrics::counter!("nowserving_peer_append_messages_sent_total").increment(appends);
        let is_direct = self.direct.has(to);
        let bytes_max = match is_direct {
            true => FRAME_BYTES_MAX,
            false => self.link.limit.bytes(),
        };
        let in_use = self.keys.in_use();
        let peer = self.peers.entry(to).or_insert_with(|| {
            let outgoing = Outgoing::new(self.origin.clone(), &self.link.subjects, to);
            let (link, subject) = (self.link.clone(), outgoing.subject.clone());
            Peer {
                outgoing,
                over_nats: link.start_sending(to, subject, self.control.clone()),
            }
        });
        let parts = {
            let disks = self.disks.borrow();
            let keys = in_use.of_frames();
            let parts = peer.outgoing.send(batch, &disks, keys, bytes_max);
            parts.collect::<Vec<_>>()
        };
        let bytes = parts.iter().map(Bytes::len).sum::<usize>() as u64;
        metrics::counter!("nowserving_peer_bytes_sent_total").increment(bytes);
        let sent = match is_direct {
            true => {
                metrics::counter!("nowserving_peer_frames_direct_total").increment(1);
                parts.into_iter().all(|it| self.direct.send(to, it))
            }
            false => peer.over_nats.try_send(Sealed { parts, shards }).is_ok(),
        };
        if !sent {
            metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
        }
    }
}

impl NatsLink {
    /// Starts the task that publishes frames to a peer.
    fn start_sending(self, to: u64, subject: String, control: ToEngine) -> mpsc::Sender<Sealed> {
        let (frames, mut waiting) = mpsc::channel::<Sealed>(OUT_MAX);
        tokio::spawn(async move {
            while let Some(Sealed { parts, shards }) = waiting.recv().await {
                for part in parts {
                    if let Err(error) = self.client.publish(subject.clone(), part).await {
                        // The frame is lost.
                        self.limit.refused("frame", &error);
                        // Closed only while the node ends.
                        let _ = control.send(Input::FrameRefused { to, shards });
                        break;
                    }
                }
            }
        });
        frames
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
    /// Where peers take direct links.
    pub addresses: watch::Sender<Addresses>,
    /// What came by those that peers have opened.
    pub by_links: mpsc::Receiver<LinkFrame>,
}

/// Reads frames for ever.
///
/// # Errors
/// The link cannot be opened.
pub async fn receive_frames(mut receiver: Receiver, mut incoming: Incoming) -> anyhow::Result<()> {
    let mut warnings = Throttle::default();
    let (subjects, client) = (receiver.link.subjects.clone(), &receiver.link.client);
    let mut messages = client.subscribe(incoming.subject(&subjects)).await?;
    let mut out = Vec::new();
    loop {
        let (subject, sealed): (Subject, Bytes) = tokio::select! {
            Some(frame) = receiver.by_links.recv() => {
                (incoming.subject_from(&subjects, frame.from).into(), frame.sealed)
            }
            message = messages.next() => match message {
                Some(message) => (message.subject, message.payload),
                None => return Ok(()),
            },
        };
        {
            let came = Message {
                subject: &subject,
                reply: None,
                headers: &(),
                payload: &sealed,
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
}

impl Receiver {
    /// Returns false if the loop has ended.
    fn hand_in(&self, input: Input) -> bool {
        if let Input::Frame(frame) = &input {
            if let Some(connections) = connections_of(frame) {
                // The newest service connections of the sender's loops.
                self.connections.send_if_modified(|all| {
                    let is_known = all.get(&frame.from) == Some(&connections);
                    all.insert(frame.from, connections);
                    !is_known
                });
            }
            self.note_address(frame);
        }
        self.engine.send(input).is_ok()
    }

    /// Where the sender takes direct links.
    fn note_address(&self, frame: &PeerFrame) {
        let (Some(start), Ok(body)) = (frame.header.start, &frame.body) else {
            return;
        };
        self.addresses.send_if_modified(|all| {
            let known = all.get(&frame.from);
            if known.is_some_and(|it| it.start == start && it.addr == body.link_addr) {
                return false;
            }
            let addr = body.link_addr.clone();
            match addr.is_empty() {
                true => all.remove(&frame.from).is_some(),
                false => {
                    all.insert(frame.from, Address { start, addr });
                    true
                }
            }
        });
    }
}
