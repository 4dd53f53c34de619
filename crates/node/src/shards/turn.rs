//! One turn of the loop, in order: drain, tick, propose, ready, send.

use std::time::Duration;

use crossbeam_channel::{Select, TryRecvError};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::frame::StateHash;

use super::group::{Shard, Turn};
use super::outbox::Outbox;
use super::persist::{Job, WRITES_IN_FLIGHT_MAX, Written};
use super::snapshots::Done;
use super::{Control, REQUESTS_MAX, Shards, listing};
use crate::clock::{monotonic_us, wall_ms};
use crate::request::{Inbound, ReplyTo};
use nowserving_engine::refusals::unavailable;
use nowserving_engine::{OutMessage, Outcome, PeerBatch, PeerFrame, Question, Subscription};
use nowserving_shard::clock::Micros;

/// Inputs of one kind taken in one turn at most, so that no kind starves another.
const DRAIN_MAX: usize = 4_096;
/// Raft messages in one frame at most this many bytes; a frame must stay below the transport's
/// payload limit (1 MiB by default). Hashes of the state, one a shard at most, come on top.
const FRAME_BYTES_MAX: usize = 640 * 1_024;
/// Ticks given at once at most: after a stall, the groups must not be flooded with timeouts.
const TICKS_AT_ONCE_MAX: u64 = 2;

impl Shards {
    /// Runs until told to stop.
    ///
    /// # Errors
    /// A log entry that this build cannot read, or a peer thread that died.
    pub fn run(mut self) -> anyhow::Result<()> {
        let result = loop {
            self.sleep();
            match self.turn() {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.answer_the_rest();
        self.persister.join();
        self.snapshots.join();
        result
    }

    /// The loop ends: nobody is left to wait for their own deadline.
    fn answer_the_rest(&mut self) {
        let now = monotonic_us();
        self.wall_ms = wall_ms();
        let mut turn = Turn {
            now,
            wall_ms: self.wall_ms,
            reachability: &self.reachability,
            out: &mut self.out,
        };
        for shard in &mut self.shards {
            shard.give_up(&mut turn);
        }
        // From here on requests are passed on to others. What was on its way in is still to come:
        // left in the inbox it would never be answered.
        self.outputs
            .listen
            .send_modify(|listen| listen.fill(Subscription::No));
        let quiet = Duration::from_millis(20);
        let on_the_way = std::iter::from_fn(|| self.inputs.requests.recv_timeout(quiet).ok());
        for inbound in on_the_way.take(REQUESTS_MAX) {
            match inbound {
                Inbound::Line(request) => {
                    let error = ApiError::not_leader(None);
                    turn.out.refuse(request.reply, request.deadline, error);
                }
                Inbound::Cluster(_, reply) => turn.out.refuse(reply, now, unavailable()),
            }
        }
        // Closed only if the other side has ended before us.
        let _ = self
            .outputs
            .answers
            .send(std::mem::take(&mut self.out.answers));
    }

    /// Waits for any input or the next thing due.
    fn sleep(&self) {
        let due = self.next_tick.min(self.next_upkeep).min(self.next_step());
        let timeout = Duration::from_micros(due.saturating_sub(monotonic_us()));
        let mut select = Select::new();
        select.recv(&self.inputs.requests);
        select.recv(&self.inputs.frames);
        select.recv(&self.inputs.control);
        select.recv(&self.persister.done);
        select.recv(&self.snapshots.done);
        // Which one it is doesn't matter: a turn drains them all.
        let _ = select.ready_timeout(timeout);
    }

    /// When the first line has something to do of itself; a stopping node leaves that to the next
    /// leader.
    fn next_step(&self) -> Micros {
        let shards = self.shards.iter().filter(|_| self.stopping_since.is_none());
        let steps = shards.filter_map(|shard| shard.next_step_at(&self.reachability));
        steps.min().unwrap_or(Micros::MAX)
    }

    /// One turn; `false` when it was the last.
    pub(super) fn turn(&mut self) -> anyhow::Result<bool> {
        let now = monotonic_us();
        self.outputs.health.turned(now);
        self.wall_ms = wall_ms();
        // A full inbox has turned polls away: that time must not count against anybody.
        let crowded = self.inputs.requests.is_full();
        let drained = self.drain(now)?;
        if crowded {
            self.reachability.skip(now);
        } else {
            self.reachability.advance(now);
        }
        if !self.contact.is_in_touch() {
            self.step_down(now);
        }
        self.tick(now);
        if now >= self.next_upkeep {
            // Thrown out is only with an empty inbox, so that a poll which lies there unread is
            // heard first. Everything else must not wait for a lull.
            self.upkeep(now, drained);
        }
        let stopping = self.stopping_since.is_some();
        let may_write = self.writes_in_flight < WRITES_IN_FLIGHT_MAX;
        for shard in &mut self.shards {
            let mut turn = Turn {
                now,
                wall_ms: self.wall_ms,
                reachability: &self.reachability,
                out: &mut self.out,
            };
            if !stopping {
                shard.step_lines(&mut turn);
            }
            shard.propose(&mut turn);
            shard.ask_for_reads(&mut turn);
            if may_write && shard.dirty {
                shard.ready(&mut turn)?;
            }
            shard.check_leading(&mut turn);
            // A turn in which all shards replay their logs is long.
            self.outputs.health.turned(monotonic_us());
        }
        self.flush(now)?;
        Ok(!self.may_end(now))
    }

    /// Takes everything in; `true` if the requests' inbox is empty now.
    fn drain(&mut self, now: Micros) -> anyhow::Result<bool> {
        for _ in 0..DRAIN_MAX {
            match self.persister.done.try_recv() {
                Ok(Written { jobs, numbers }) => {
                    self.writes_in_flight = self.writes_in_flight.saturating_sub(jobs);
                    self.persisted(numbers, now);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("the persister thread died"),
            }
        }
        loop {
            match self.snapshots.done.try_recv() {
                Ok(Done::Snapshot { shard, index }) => self.snapshot_done(shard, index, now),
                Ok(Done::Pinned(shards)) => self.pinned(&shards),
                Ok(Done::Damaged(error)) => return Err(error),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => anyhow::bail!("the snapshot thread died"),
            }
        }
        for _ in 0..DRAIN_MAX {
            match self.inputs.frames.try_recv() {
                Ok(frame) => self.frame(frame, now)?,
                Err(_) => break,
            }
        }
        while let Ok(control) = self.inputs.control.try_recv() {
            match control {
                Control::Echo(sent_at) => self.reachability.echo(sent_at),
                Control::Mapping(mapping) => self.mapping = Some(mapping),
                Control::Stop => {
                    self.stopping_since.get_or_insert(now);
                }
            }
        }
        for _ in 0..DRAIN_MAX {
            match self.inputs.requests.try_recv() {
                Ok(inbound) => self.request(inbound, now),
                Err(_) => return Ok(true),
            }
        }
        Ok(self.inputs.requests.is_empty())
    }

    fn request(&mut self, inbound: Inbound, now: Micros) {
        let in_touch = self.contact.is_in_touch();
        match inbound {
            // It came in before this node was refused.
            Inbound::Line(request) if !in_touch => {
                let (reply, deadline) = (request.reply, request.deadline);
                self.out.refuse(reply, deadline, unavailable());
            }
            Inbound::Cluster(_, reply) if !in_touch => {
                self.out.refuse(reply, now, unavailable());
            }
            Inbound::Line(request) => {
                let mut turn = Turn {
                    now,
                    wall_ms: self.wall_ms,
                    reachability: &self.reachability,
                    out: &mut self.out,
                };
                if let Some(shard) = self.shards.get_mut(request.shard as usize) {
                    shard.take(*request, &mut turn);
                }
            }
            Inbound::Cluster(question, reply) => self.question(&question, reply, now),
        }
    }

    fn question(&mut self, question: &Question, reply: ReplyTo, now: Micros) {
        let outcome = match question {
            Question::ClusterStatus => Outcome::Cluster(Box::new(self.cluster_status(now))),
            Question::ListLines(ask) => Outcome::Lines(Box::new(listing::page(
                ask,
                self.shards.iter().map(|s| s.state.lines()),
            ))),
        };
        self.out.answer(reply, now, Ok(outcome));
    }

    fn frame(&mut self, frame: PeerFrame, now: Micros) -> anyhow::Result<()> {
        let PeerFrame { from, header, body } = frame;
        self.hear(from, &header, body.as_ref().err().map(String::as_str), now);
        let Ok(body) = body else {
            return Ok(());
        };
        let peer = self.peers.entry(from).or_default();
        peer.heard(now);
        peer.client_reachable = body.client_reachable;
        if peer.start != header.start {
            peer.start = header.start;
            for shard in &mut self.shards {
                shard.agreement.forget(from);
            }
        }
        if peer.metrics_addr != body.metrics_addr {
            peer.metrics_addr = body.metrics_addr;
        }
        if peer.version != body.version {
            peer.version = body.version;
        }
        if !self.contact.is_in_touch() {
            return Ok(());
        }
        for hash in body.state_hashes {
            self.note_hash(from, hash)?;
        }
        for (shard, message) in body.messages {
            let Some(shard) = self.shards.get_mut(shard as usize) else {
                metrics::counter!("nowserving_raft_refused_total").increment(1);
                continue;
            };
            shard.dirty = true;
            if let Err(refused) = shard.replica.step(message, now)
                && !refused.is_expected()
            {
                metrics::counter!("nowserving_raft_refused_total").increment(1);
                if let Some(count) = self.refusals.count() {
                    let shard = shard.id;
                    tracing::warn!(shard, from, %refused, count, "raft messages refused");
                }
            }
        }
        Ok(())
    }

    fn persisted(&mut self, numbers: Vec<(u32, u64)>, now: Micros) {
        for (id, number) in numbers {
            let Some(shard) = self.shards.get_mut(id as usize) else {
                continue;
            };
            let mut turn = Turn {
                now,
                wall_ms: self.wall_ms,
                reachability: &self.reachability,
                out: &mut self.out,
            };
            shard.persisted(number, &mut turn);
        }
    }

    fn tick(&mut self, now: Micros) {
        if now < self.next_tick {
            return;
        }
        let tick_us = self.tick.as_micros() as u64;
        let due = (now - self.next_tick) / tick_us + 1;
        self.next_tick += due * tick_us;
        if !self.contact.is_in_touch() {
            return;
        }
        for shard in &mut self.shards {
            for _ in 0..due.min(TICKS_AT_ONCE_MAX) {
                shard.replica.tick(now);
            }
            shard.dirty = true;
        }
    }

    /// Hands everything that this turn produced to its receivers.
    fn flush(&mut self, now: Micros) -> anyhow::Result<()> {
        let Outbox {
            answers,
            events,
            mut messages,
            writes,
            state_hashes,
        } = std::mem::take(&mut self.out);
        if !state_hashes.is_empty() {
            for peer in self.outputs.peers.keys() {
                messages.entry(*peer).or_default();
            }
        }
        if !writes.is_empty() {
            self.writes_in_flight += 1;
            if self.persister.jobs.send(Job::Write(writes)).is_err() {
                anyhow::bail!("the persister thread died");
            }
        }
        for (peer, messages) in messages {
            self.send_to(peer, messages, state_hashes.clone(), now);
        }
        if !answers.is_empty() {
            // Closed only while the node ends.
            let _ = self.outputs.answers.send(answers);
        }
        if !events.is_empty() {
            let count = events.len() as u64;
            if self.outputs.events.try_send(events).is_err() {
                metrics::counter!("nowserving_events_dropped_total").increment(count);
            }
        }
        // Only now: if this node has to stop, the others shall know why.
        for hash in state_hashes {
            self.note_hash(self.config.id, hash)?;
        }
        Ok(())
    }

    /// Sends a peer its messages, in as few frames as their size allows.
    pub(super) fn send_to(
        &mut self,
        peer: u64,
        messages: Vec<OutMessage>,
        state_hashes: Vec<StateHash>,
        now: Micros,
    ) {
        let Some(link) = self.outputs.peers.get(&peer) else {
            return;
        };
        let batch_of = |messages, state_hashes| PeerBatch {
            client_reachable: self.client_reachable(now),
            in_touch: self.contact.is_in_touch(),
            verdicts: self.contact.verdicts(peer, now),
            messages,
            state_hashes,
        };
        let mut batch = Vec::with_capacity(messages.len());
        let mut bytes = 0;
        for message in messages {
            if bytes + message.raft.len() > FRAME_BYTES_MAX && !batch.is_empty() {
                drop_when_full(link, batch_of(std::mem::take(&mut batch), Vec::new()));
                bytes = 0;
            }
            bytes += message.raft.len();
            batch.push(message);
        }
        drop_when_full(link, batch_of(batch, state_hashes));
        self.last_sent.insert(peer, now);
    }
}

fn drop_when_full(link: &tokio::sync::mpsc::Sender<PeerBatch>, batch: PeerBatch) {
    if link.try_send(batch).is_err() {
        metrics::counter!("nowserving_peer_frames_dropped_total").increment(1);
    }
}

impl Shard {
    /// Asks for a confirmation round if reads wait for one.
    pub(super) fn ask_for_reads(&mut self, turn: &mut Turn<'_>) {
        if self.reads.any_new() && self.leads() {
            // Not ready yet: asked again next turn, until the deadline.
            if let Ok(id) = self.replica.read_index(turn.now) {
                self.reads.asked(id);
                self.dirty = true;
            }
        }
    }

    /// At most one `ready` a turn.
    pub(super) fn ready(&mut self, turn: &mut Turn<'_>) -> anyhow::Result<()> {
        let ready = self.replica.ready()?;
        self.dirty = self.replica.has_ready();
        ready.map_or(Ok(()), |ready| self.follow(ready, turn))
    }

    /// A write of this shard is durable.
    pub(super) fn persisted(&mut self, number: u64, turn: &mut Turn<'_>) {
        self.dirty = true;
        let send = self.replica.on_persisted(number);
        turn.out.send(self.id, send);
    }

    fn follow(
        &mut self,
        ready: nowserving_replica::Ready,
        turn: &mut Turn<'_>,
    ) -> anyhow::Result<()> {
        if let Some(change) = ready.role {
            tracing::debug!(shard = self.id, ?change, "role");
            metrics::gauge!("nowserving_shard_leader", "shard" => self.id.to_string())
                .set(f64::from(u8::from(self.leads())));
        }
        turn.out.send(self.id, ready.send);
        turn.out.writes.extend(ready.write);
        for id in ready.reads_failed {
            self.reads.failed(id);
        }
        for grant in ready.reads {
            self.reads.granted(grant.id, grant.index);
        }
        self.apply(ready.committed, turn)?;
        self.answer_confirmed(turn);
        // Applying may have made room for more.
        self.dirty |= self.replica.has_ready();
        Ok(())
    }
}

impl Shards {
    /// Takes note of the hash of a shard's state on `node`.
    pub(super) fn note_hash(&mut self, node: u64, hash: StateHash) -> anyhow::Result<()> {
        let (me, nodes, index) = (self.config.id, self.config.nodes.len(), hash.index);
        let Some(shard) = self.shards.get_mut(hash.shard as usize) else {
            return Ok(());
        };
        for peer in shard.agreement.note(me, nodes, node, hash)? {
            metrics::counter!("nowserving_state_differs_total").increment(1);
            tracing::error!(
                shard = shard.id,
                index,
                peer,
                "the state of the peer differs from this node's: one of them is wrong; a node that \
                 differs from a majority stops"
            );
        }
        Ok(())
    }
}
