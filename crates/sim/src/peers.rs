//! Frames between nodes, on links that lose, double, delay and reorder them.

use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use nowserving_engine::{Input, PeerBatch, PeerFrame};
use nowserving_front::Message;
use nowserving_front::cluster::Out;
use nowserving_front::cluster::link::framing::FRAME_BYTES_MAX;
use nowserving_front::cluster::peers::{Outgoing, connections_of};
use nowserving_front::keys::InUse;
use nowserving_protocol::keys::{ClusterKey, KeyRing};
use nowserving_protocol::subject::Subjects;
use nowserving_replica::Message as RaftMessage;

use crate::env::{Env, FullDisk};
use crate::faults::Fault;
use crate::nats::NodeId;
use crate::node::Node;
use crate::random::Random;
use crate::world::{Event, Process};

/// The first word of every subject.
pub const PREFIX: &str = "nowserving";

/// What all nodes were told of the link between them.
#[derive(Debug)]
pub struct Link {
    pub subjects: Subjects,
    /// Of the cluster.
    pub keys: InUse,
}

impl Link {
    #[must_use]
    pub fn new() -> Link {
        let ring = KeyRing::new(&ClusterKey::new([7; 32]).into(), None);
        Link {
            subjects: Subjects::default(),
            keys: InUse::new(ring.unwrap_or_else(|_| unreachable!()), 0),
        }
    }
}

/// A frame on its way.
#[derive(Debug)]
pub struct Sent {
    subject: String,
    /// As the server gets it: one message, or several.
    parts: Vec<Bytes>,
    /// The messages of Raft in it.
    messages: Vec<(u32, Vec<u8>)>,
}

impl Sent {
    /// How many messages it is.
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Their bytes.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }
}

/// The minimum of nodes here. Their messages are as much smaller than those of real ones.
pub const MAX_PAYLOAD_MIN: usize = 1_024;

/// What a server takes in one message.
pub fn draw_max_payload(random: &mut Random) -> usize {
    let min = MAX_PAYLOAD_MIN as u64;
    random.between(min, 16 * min) as usize
}

impl Node {
    /// Sends a frame to a peer.
    pub fn send_frame(&mut self, env: &mut Env, to: NodeId, batch: PeerBatch) {
        env.frames_sent += 1;
        let Some(running) = &mut self.running else {
            return;
        };
        let (link, known) = (env.link.clone(), running.max_payload);
        let messages = batch.messages.iter();
        let messages = messages.map(|it| (it.shard, it.raft.clone())).collect();
        let disks = running.incoming.known().report();
        let outgoing = running.outgoing.entry(to);
        let outgoing =
            outgoing.or_insert_with(|| Outgoing::new(running.origin.clone(), &link.subjects, to));
        let is_direct = env.direct.contains_key(&(self.id, to));
        let bytes_max = match is_direct {
            true => FRAME_BYTES_MAX,
            false => known,
        };
        let sent = Rc::new(Sent {
            parts: outgoing
                .send(batch, &disks, link.keys.of_frames(), bytes_max)
                .collect(),
            subject: outgoing.subject.clone(),
            messages,
        });
        if is_direct {
            return self.send_direct(env, to, &sent);
        }
        if self.is_published(env, to, &sent, known) {
            for part in 0..sent.parts.len() {
                self.send_part(env, to, &sent, part);
            }
        }
    }

    /// Whether the node publishes a frame, as its client library knows the server's limit. Otherwise it is refused, by
    /// the library, or by a server that takes less by now and closes the connection.
    fn is_published(&mut self, env: &mut Env, to: NodeId, sent: &Sent, known: usize) -> bool {
        let largest = sent.parts.iter().map(Bytes::len).max().unwrap_or(0);
        if largest > known {
            let shards = sent.messages.iter().map(|it| it.0).collect();
            self.push(env, 0, Input::FrameRefused { to, shards });
            return false;
        }
        if largest > env.max_payload {
            env.counts.add(Fault::FrameTooLarge);
            let delay = env.random.around(20_000);
            self.process_event(env, 0, delay, Process::LearnMaxPayload);
            return false;
        }
        if sent.parts.len() > 1 {
            env.counts.add(Fault::FrameInParts);
        }
        true
    }

    fn send_part(&mut self, env: &mut Env, to: NodeId, sent: &Rc<Sent>, part: usize) {
        let from = self.id;
        if env.links_cut.get(&(from, to)).is_some_and(|cut| *cut > 0)
            || env.strikes(Fault::FrameLost)
        {
            return;
        }
        let now = env.timeline.now();
        let mut at = now + env.random.around(env.calm.link_us).max(20) + env.links_slow_us;
        if env.strikes(Fault::FrameDelayed) {
            at += env.random.around(100_000);
        }
        let reordered = env.strikes(Fault::FrameReordered);
        if reordered {
            at += env.random.around(100_000);
        } else {
            let last = env.links_last.entry((from, to)).or_insert(0);
            at = at.max(*last);
            *last = at;
        }
        let copies = 1 + u64::from(env.strikes(Fault::FrameDoubled));
        for copy in 0..copies {
            let late = copy * env.random.around(20_000);
            let frame = Event::Frame {
                to,
                sent: sent.clone(),
                part,
            };
            env.timeline.at(at + late, frame);
        }
    }

    /// A frame comes, or a part of one.
    pub fn part(&mut self, env: &mut Env, sent: &Sent, part: usize) {
        let now = self.clock.read(env.timeline.now()).us;
        let (Some(running), Some(payload)) = (&mut self.running, sent.parts.get(part)) else {
            return;
        };
        let message = Message {
            subject: &sent.subject,
            reply: None,
            headers: &(),
            payload,
        };
        let link = env.link.clone();
        let in_touch = running.is_in_touch();
        let around = (&running.peers, in_touch);
        let mut out = Vec::new();
        let incoming = &mut running.incoming;
        incoming.on_message(now, &message, link.keys.of_frames(), around, &mut out);
        for it in out {
            match it {
                Out::Write(..) if env.full_disks.get(&self.id) == Some(&FullDisk::Nothing) => {
                    if let Some(running) = &mut self.running {
                        running.incoming.not_written();
                    }
                    return;
                }
                Out::Write(file, bytes) => self.disk.files.write(file, bytes),
                Out::Engine(input) => {
                    if let Input::Frame(frame) = &input {
                        self.note_frame(env, frame, sent);
                    }
                    self.push(env, 0, input);
                }
                Out::NotTaken(_)
                | Out::Subscribe(_)
                | Out::Publish { .. }
                | Out::AskForConnection { .. } => {}
            }
        }
    }

    /// A frame is taken, or its sender refused.
    fn note_frame(&mut self, env: &mut Env, frame: &PeerFrame, sent: &Sent) {
        let Ok(body) = &frame.body else {
            return;
        };
        let from = frame.from;
        let mut came = body.messages.iter();
        let whole = sent.messages.iter().all(|(shard, raft)| {
            let raft = RaftMessage::decode(raft).ok();
            came.next()
                .is_some_and(|it| it.0 == *shard && Some(&it.1) == raft.as_ref())
        });
        if !whole || came.next().is_some() {
            env.violated("S2", format!("a frame of node {from} is not whole"));
        }
        if !body.messages.is_empty() {
            env.note(format_args!(
                "n{from} > n{}: {}",
                self.id,
                Described(&body.messages)
            ));
        }
        if let (Some(running), Some(connections)) = (&mut self.running, connections_of(frame)) {
            running.connections.insert(from, connections);
        }
        if !body.link_addr.is_empty() {
            self.wants_link(env, from);
        }
    }
}

/// The messages of a frame in few words.
struct Described<'a>(&'a [(u32, RaftMessage)]);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (shard, message)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}s{shard} {message}")?;
        }
        Ok(())
    }
}
