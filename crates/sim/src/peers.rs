//! Frames between nodes, on links that lose, double, delay and reorder them.

use std::fmt;
use std::rc::Rc;

use nowserving_engine::envelope::{Frame, NodeFacts, ShardMessage};
use nowserving_engine::frame_parts;
use nowserving_engine::{
    FrameBody, Input, NotTaken, PeerBatch, PeerFrame, PeerHeader, Refusal, Standing,
};
use nowserving_replica::{Connection, Message};

use crate::env::Env;
use crate::faults::Fault;
use crate::nats::NodeId;
use crate::node::Node;
use crate::random::Random;
use crate::world::{Event, Process};

/// A frame on its way.
#[derive(Debug)]
pub struct Sent {
    /// Which node sent it, from which disk and in which start, and the disks that it tells of; nothing else is in it.
    stamp: Frame,
    batch: PeerBatch,
    /// As the server gets it: one message, or several.
    parts: Vec<Frame>,
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
        let from = self.id;
        env.frames_sent += 1;
        let Some(parts) = self.publishable(env, to, &batch) else {
            return;
        };
        let identity = &self.disk.identity;
        let facts = NodeFacts {
            in_touch: batch.in_touch,
            ..NodeFacts::default()
        };
        let stamp = Frame {
            to,
            facts: Some(facts),
            disks: match batch.reports_disks {
                true => identity.disks(),
                false => Vec::new(),
            },
            ..identity.stamp(from)
        };
        let count = parts.len();
        let sent = Rc::new(Sent {
            stamp,
            batch,
            parts,
        });
        for part in 0..count {
            self.send_part(env, to, &sent, part);
        }
    }

    /// What the node publishes of a frame, as its client library knows the server's limit. `None`: it is refused, by the
    /// library, or by a server that takes less by now and closes the connection.
    fn publishable(&mut self, env: &mut Env, to: NodeId, batch: &PeerBatch) -> Option<Vec<Frame>> {
        let known = self.running.as_ref()?.max_payload;
        let messages = batch.messages.iter().map(|message| ShardMessage {
            shard: message.shard,
            raft: message.raft.clone().into(),
        });
        let members = batch.members.as_ref().map(|it| it.encode());
        let frame = Frame {
            to,
            seq: env.frames_sent,
            messages: messages.collect(),
            state_hashes: batch.state_hashes.clone(),
            members: members.unwrap_or_default().into(),
            snapshot_chunk: batch.snapshot_chunk.as_deref().cloned(),
            ..self.disk.identity.stamp(self.id)
        };
        let parts = frame_parts::cut(frame, known);
        let largest = parts.iter().map(frame_parts::sealed_bytes).max()?;
        if largest > known {
            let shards = batch.messages.iter().map(|it| it.shard).collect();
            self.push(env, Input::FrameRefused { to, shards });
            return None;
        }
        if largest > env.max_payload {
            env.counts.add(Fault::FrameTooLarge);
            let delay = env.random.around(20_000);
            self.process_event(env, delay, Process::LearnMaxPayload);
            return None;
        }
        if parts.len() > 1 {
            env.counts.add(Fault::FrameInParts);
        }
        Some(parts)
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
        let (Some(running), Some(part)) = (&mut self.running, sent.parts.get(part)) else {
            return;
        };
        let Some(frame) = running.assembly.take(part.clone()) else {
            return;
        };
        let came = frame.messages.iter().map(|it| (it.shard, &it.raft[..]));
        let went = sent
            .batch
            .messages
            .iter()
            .map(|it| (it.shard, &it.raft[..]));
        if !came.eq(went) {
            env.violated("S2", format!("a frame of node {} is not whole", frame.from));
        }
        self.frame(env, sent);
    }

    fn frame(&mut self, env: &mut Env, sent: &Sent) {
        let Sent { stamp, batch, .. } = sent;
        let from = stamp.from;
        let mut header = PeerHeader {
            cluster_id: batch.cluster_id,
            start: stamp.starts.first().copied(),
            in_touch: batch.in_touch,
            in_no_group: batch.in_no_group,
            verdicts: batch.verdicts.clone(),
            members_version: batch.members_version,
            members: batch.members.clone(),
        };
        let checked = match self.is_peer(from) {
            true => self.check_disk(stamp),
            false => {
                let body = Err(Refusal::of_stranger(from));
                return self.push(
                    env,
                    Input::Frame(Box::new(PeerFrame { from, header, body })),
                );
            }
        };
        match checked {
            Ok(()) => {}
            Err(NotTaken::Dropped(_)) => return,
            Err(NotTaken::Refused(reason)) => {
                header.members = None;
                let body = Err(Refusal::of_disk(reason));
                return self.push(
                    env,
                    Input::Frame(Box::new(PeerFrame { from, header, body })),
                );
            }
        }
        let mut messages = Vec::with_capacity(batch.messages.len());
        for message in &batch.messages {
            match Message::decode(&message.raft) {
                Ok(raft) => messages.push((message.shard, raft)),
                Err(error) => {
                    env.violated(
                        "S2",
                        format!("a message of node {from} does not decode: {error}"),
                    );
                }
            }
        }
        if !messages.is_empty() {
            env.note(format_args!(
                "n{from} > n{}: {}",
                self.id,
                Described(&messages)
            ));
        }
        if let (Some(running), Some(start)) = (&mut self.running, header.start) {
            let number = batch.connection;
            running.witnessed.named(from, Connection { start, number });
        }
        let frame = PeerFrame {
            from,
            header,
            body: Ok(FrameBody {
                client_reachable: batch.client_reachable,
                disk_full: batch.disk_full,
                refuses_snapshots: batch.refuses_snapshots,
                clock_us: batch.clock_us,
                connection: batch.connection,
                closed: batch.closed.clone(),
                lagging: batch.lagging.clone(),
                metrics_addr: String::new(),
                version: "sim".to_owned(),
                entry_format: batch.entry_format,
                max_payload: batch.max_payload,
                keys: batch.keys.clone(),
                messages,
                state_hashes: batch.state_hashes.clone(),
                snapshot_request: batch.snapshot_request.clone(),
                snapshot_chunk: batch.snapshot_chunk.clone(),
            }),
        };
        self.push(env, Input::Frame(Box::new(frame)));
    }

    fn is_peer(&self, id: NodeId) -> bool {
        let running = self.running.as_ref();
        running.is_some_and(|it| it.peers.contains(&id))
    }

    /// Whether a peer has the disk that it was added with, and that this node knows.
    fn check_disk(&mut self, stamp: &Frame) -> Result<(), NotTaken> {
        let standing = self.running.as_ref().map(|it| it.engine.standing());
        let in_touch = standing.is_some_and(Standing::is_in_touch);
        let identity = &mut self.disk.identity;
        let member = identity.members.nodes.get(&stamp.from);
        let added_with = member.map_or(0, |member| member.disk_id);
        if added_with != 0 && added_with != stamp.disk_id {
            return Err(NotTaken::Refused(
                "another disk than it was added with".to_owned(),
            ));
        }
        identity.note(stamp, in_touch)
    }
}

/// The messages of a frame in few words.
struct Described<'a>(&'a [(u32, Message)]);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (shard, message)) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            write!(f, "{separator}s{shard} {message}")?;
        }
        Ok(())
    }
}
