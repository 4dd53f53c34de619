//! Frames of peers, and frames to peers.

use nowserving_replica::Connection;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use super::Engine;
use crate::envelope::{SnapshotChunk, SnapshotRequest, StateHash, Verdict};
use crate::frames::{OutMessage, PeerBatch, PeerFrame};
use crate::io::{ExitReason, Now, Output};
use crate::loops::{LoopFrame, Role};
use crate::peers::contact::{PeerHeader, Refusal};

impl Engine {
    pub(super) fn frame(&mut self, now: Now, frame: PeerFrame) -> Result<(), ExitReason> {
        let PeerFrame { from, header, body } = self.believed(frame);
        let refused = body.as_ref().err();
        self.note_members(from, &header);
        if !self.membership.peers.contains(&from) {
            self.answer_stranger(from, &header, now.us);
            return Ok(());
        }
        if refused.is_some_and(|it| it.no_member) {
            // It is one by now: by the members in its own frame, or by those that came after it was checked. Told that
            // it is none, it would stay away until it hears otherwise.
            return Ok(());
        }
        // Also of a refused one: it is told the members, and so who its peers are.
        let peer = self.ctx.clocks.peers.entry(from).or_default();
        peer.members_version = header.members_version;
        if refused.is_none() {
            peer.in_touch = header.in_touch;
        }
        self.note_header(from, &header, refused, now.us);
        self.stop_if_removed(now.us);
        let Ok(mut body) = body else {
            return Ok(());
        };
        let peer = self.ctx.clocks.peers.entry(from).or_default();
        let disk_was_full = peer.disk_full;
        peer.note(&mut body, now.us);
        let disk_changed = peer.disk_full != disk_was_full;
        if peer.start != header.start {
            peer.start = header.start;
            self.started_again(from, now.us);
        }
        if disk_changed {
            self.check_room();
        }
        if !self.contact.is_in_touch() {
            return Ok(());
        }
        for closed in std::mem::take(&mut body.closed) {
            let (start, number) = (closed.start, closed.number);
            self.connection_closed(closed.node, Connection { start, number }, now.us);
        }
        let own = self.hand_on(from, body);
        self.frame_of_loop(now, own)
    }

    /// A peer has started (again), perhaps with another state.
    pub(super) fn started_again(&mut self, peer: u64, now: Micros) {
        self.closed.forget(peer);
        for shard in self.shards.values_mut() {
            shard.agreement.forget(peer);
            shard.offer_snapshot_again(peer, now);
        }
    }

    /// What a frame that is taken has for the shards of this loop.
    pub(super) fn frame_of_loop(&mut self, now: Now, frame: LoopFrame) -> Result<(), ExitReason> {
        let LoopFrame {
            from,
            messages,
            state_hashes,
            snapshot_request,
            snapshot_chunk,
        } = frame;
        for hash in state_hashes {
            self.note_hash(from, hash)?;
        }
        if let Some(peer) = self.ctx.clocks.peers.get(&from) {
            for shard in self.shards.values_mut() {
                if let Some(connection) = peer.connection(shard.id) {
                    shard.replica.peer_connection(from, connection);
                }
            }
        }
        self.snapshot_parts(from, snapshot_request, snapshot_chunk);
        for (shard, message) in messages {
            let Some(shard) = self.shards.get_mut(&shard) else {
                metrics::counter!("nowserving_raft_refused_total").increment(1);
                continue;
            };
            let stepped = shard.step(message, &mut self.ctx);
            shard.note_leader(now.us);
            if let Err(refused) = stepped {
                self.links.refused(shard.id, from, refused, now.us);
            }
        }
        Ok(())
    }

    /// Compares the hash of a node, perhaps this one, with those of the others.
    ///
    /// # Errors
    /// This node's state differs from that of a majority.
    pub(super) fn note_hash(&mut self, node: u64, hash: StateHash) -> Result<(), ExitReason> {
        let (me, index) = (self.config.id, hash.index);
        let Some(shard) = self.shards.get_mut(&hash.shard) else {
            return Ok(());
        };
        let voters = shard.replica.voters();
        if !voters.contains(&node) {
            return Ok(());
        }
        let differing = shard.agreement.note(me, voters.len(), node, hash);
        for peer in differing.map_err(ExitReason::StateDiffers)? {
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

    /// What a frame has about snapshots.
    fn snapshot_parts(
        &mut self,
        from: u64,
        request: Option<SnapshotRequest>,
        chunk: Option<Box<SnapshotChunk>>,
    ) {
        if let Some(request) = request
            && let Some(shard) = self.shards.get_mut(&request.shard)
        {
            let (snapshots, replica) = (&mut shard.snapshots, &mut shard.replica);
            shard.dirty |= snapshots.asked(from, request, replica, &mut self.ctx);
        }
        if let Some(chunk) = chunk
            && let Some(shard) = self.shards.get_mut(&chunk.shard)
        {
            let receiving = &mut shard.snapshots.receiving;
            receiving.part(*chunk, &mut self.ctx.out);
        }
    }

    /// Of a frame of another cluster of the same name nothing is believed: one that was founded by mistake has the same
    /// key and numbers.
    pub(super) fn believed(&self, frame: PeerFrame) -> PeerFrame {
        let PeerFrame { from, header, .. } = &frame;
        if !self.membership.wanted.are_foreign_to(header.cluster_id) {
            return frame;
        }
        PeerFrame {
            from: *from,
            header: PeerHeader::default(),
            body: Err(Refusal::of_other_cluster(*from)),
        }
    }

    /// A frame without content.
    pub(crate) fn batch(&self, to: u64, now: Micros) -> PeerBatch {
        PeerBatch {
            client_reachable: self.client_reachable(now),
            disk_full: self.ctx.disk_full,
            refuses_snapshots: self.refuses_snapshots(now),
            clock_us: now,
            connections: self.connections(),
            closed: self.closed.to_frame(),
            lagging: self.lagging.to_frame(),
            entry_format: self.ctx.entry_format,
            max_payload: self.max_payload_of_all() as u64,
            keys: self.keys.to_frame(),
            in_touch: self.contact.is_in_touch(),
            in_no_group: self.groups().are_empty(),
            verdicts: self.contact.verdicts(to, now),
            reports_disks: self.ctx.clocks.is_out_of_touch(to),
            messages: Vec::new(),
            state_hashes: Vec::new(),
            cluster_id: self.membership.wanted.cluster_id,
            members_version: self.membership.wanted.version,
            members: self.members_for(to),
            snapshot_request: None,
            snapshot_chunk: None,
        }
    }

    /// The numbers of the service connections of all loops.
    fn connections(&self) -> Vec<u64> {
        let others = self.role.others().map(|(_, it)| it.connection);
        std::iter::once(self.connection).chain(others).collect()
    }

    /// Outputs the writes and messages of this turn. `ticked`: a tick has passed.
    pub(super) fn flush(&mut self, ticked: bool, now: Micros) -> Result<(), ExitReason> {
        let writes = std::mem::take(&mut self.ctx.out.writes);
        if !writes.is_empty() {
            self.writes_in_flight += 1;
            self.ctx.out.outputs.push(Output::Persist(writes));
        }
        match self.config.place.is_first() {
            true => {
                self.tell_loops(now);
                self.send_all(now);
            }
            false => self.tell_first(ticked, now),
        }
        // After the frames: if this node has to stop, its peers have its hashes.
        for hash in std::mem::take(&mut self.ctx.out.state_hashes) {
            self.note_hash(self.config.id, hash)?;
        }
        Ok(())
    }

    /// Sends each peer the messages of this turn, of all loops.
    fn send_all(&mut self, now: Micros) {
        let mut messages = std::mem::take(&mut self.ctx.out.messages);
        let mut state_hashes = self.ctx.out.state_hashes.clone();
        state_hashes.append(&mut self.ctx.out.hashes_of_loops);
        if !state_hashes.is_empty() {
            for &peer in &self.membership.peers {
                messages.entry(peer).or_default();
            }
        }
        for (peer, messages) in messages {
            self.send_to(peer, messages, state_hashes.clone(), now);
        }
    }

    /// Sends a peer its messages, in as few frames as their size allows.
    pub(super) fn send_to(
        &mut self,
        to: u64,
        messages: Vec<OutMessage>,
        state_hashes: Vec<StateHash>,
        now: Micros,
    ) {
        if !self.membership.peers.contains(&to) {
            return;
        }
        let frame_of = |messages, state_hashes| Output::Frame {
            to,
            batch: PeerBatch {
                messages,
                state_hashes,
                ..self.batch(to, now)
            },
        };
        let bytes_max = self.ctx.payload.content_bytes_max();
        let mut frames = Vec::with_capacity(1);
        let mut batch = Vec::with_capacity(messages.len());
        let mut bytes = 0;
        for message in messages {
            if bytes + message.raft.len() > bytes_max && !batch.is_empty() {
                frames.push(frame_of(std::mem::take(&mut batch), Vec::new()));
                bytes = 0;
            }
            bytes += message.raft.len();
            batch.push(message);
        }
        frames.push(frame_of(batch, state_hashes));
        self.ctx.out.outputs.extend(frames);
        self.links.sent(to, now);
    }

    /// Peers that have had no frame for long get one.
    pub(super) fn signs_of_life(&mut self, now: Micros) {
        let in_touch = self.contact.is_in_touch();
        let quiet = self.links.quiet(&self.membership.peers, in_touch, now);
        for peer in quiet {
            self.send_to(peer, Vec::new(), Vec::new(), now);
        }
    }

    /// Answers a node that is no peer: one with newer members is asked for them, and a removed one is told that
    /// no group has it any more.
    pub(super) fn answer_stranger(&mut self, to: u64, header: &PeerHeader, now: Micros) {
        let Some(start) = header.start else { return };
        let newer = header.members_version > self.membership.wanted.version;
        let removed = self.contact.is_in_touch() && !self.groups().may_have(to);
        if !(newer || removed) || !self.membership.may_answer_stranger(now) {
            return;
        }
        if newer {
            // A frame that says how old the members here are.
            let batch = self.batch(to, now);
            self.ctx.out.outputs.push(Output::Frame { to, batch });
            return;
        }
        let verdict = Verdict {
            start,
            refused: format!("node {to} was removed from the cluster"),
            removed: true,
            disk: false,
        };
        let batch = PeerBatch {
            verdicts: vec![verdict],
            members: Some(self.membership.wanted.clone()),
            ..self.batch(to, now)
        };
        self.ctx.out.outputs.push(Output::Frame { to, batch });
    }

    /// The members for a frame to a peer, if it knows older ones.
    pub(super) fn members_for(&self, to: u64) -> Option<Members> {
        let peer = self.ctx.clocks.peers.get(&to);
        let known = peer.map_or(0, |peer| peer.members_version);
        (known < self.membership.wanted.version).then(|| self.membership.wanted.clone())
    }

    /// The transport has refused a frame. It is lost, and Raft must know: it would go on sending what follows entries that
    /// the peer lacks, and wait for the answer to a snapshot until that is offered again.
    pub(super) fn frame_refused(&mut self, to: u64, shards: &[u32], now: Micros) {
        for id in shards {
            if let Some(shard) = self.shards.get_mut(id) {
                shard.replica.report_unreachable(to);
                shard.offer_snapshot_again(to, now);
                shard.dirty = true;
            }
        }
        let place = self.config.place;
        if let Role::First(first) = &mut self.role {
            for (index, other) in &mut first.others {
                let theirs = shards.iter().filter(|it| place.loop_of(**it) == *index);
                let theirs: Vec<u32> = theirs.copied().collect();
                if !theirs.is_empty() {
                    other.refused.push((to, theirs));
                }
            }
        }
    }
}
