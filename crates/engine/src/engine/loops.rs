//! What this engine and those of the node's other loops tell each other. The first one decides, and all that goes to the
//! peers or comes from them passes it.

use std::sync::Arc;

use nowserving_protocol::error::ApiError;
use nowserving_shard::clock::Micros;

use super::Engine;
use crate::envelope::{SnapshotChunk, SnapshotRequest};
use crate::frames::{FrameBody, PeerBatch};
use crate::io::{ExitReason, Now, Output};
use crate::leading::balance::UNREACHABLE_MAX;
use crate::loops::groups::Groups;
use crate::loops::{
    Asked, Decision, FromLoop, GroupReport, LoopFrame, LoopReport, Role, ToLoop, lists, members_of,
    shard_status,
};
use crate::refusals::unavailable;
use crate::request::{Outcome, Question, ReplyTo};
use crate::shard::Shard;

/// The parts of an answer are waited for so long.
const ANSWERS_MAX_US: Micros = 2_000_000;

impl Engine {
    pub(super) fn groups(&self) -> Groups<'_> {
        Groups::of(&self.shards, &self.role)
    }

    /// Whether this node takes part: as the first loop has decided, and lately.
    pub(crate) fn takes_part(&self, now: Micros) -> bool {
        match &self.role {
            Role::First(_) => self.contact.is_in_touch(),
            Role::Other(other) => {
                let election_us = self.config.election_ms * 1_000;
                let decision = other.decision.as_ref();
                decision.is_some_and(|it| it.takes_part(now, election_us))
            }
        }
    }

    /// What is wrong with the other loops of the node, if something is.
    pub(super) fn problem_of_loops(&self, now: Micros) -> Option<String> {
        let wrong = self.role.others().filter_map(|(index, other)| {
            let report = other.report.as_ref();
            let silent_for = std::time::Duration::from_micros(now.saturating_sub(other.heard_at));
            if report.is_none() || silent_for > UNREACHABLE_MAX {
                Some(format!("loop {index} stands still"))
            } else if report.is_some_and(|it| !it.client_reachable) {
                Some(format!(
                    "requests do not reach loop {index}: is NATS there?"
                ))
            } else {
                None
            }
        });
        let wrong: Vec<String> = wrong.collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }

    /// Gives the other loops what a frame has for their shards.
    pub(super) fn hand_on(&mut self, from: u64, body: FrameBody) -> LoopFrame {
        let place = self.config.place;
        let mut own = LoopFrame {
            from,
            messages: body.messages,
            state_hashes: body.state_hashes,
            snapshot_request: body.snapshot_request,
            snapshot_chunk: body.snapshot_chunk,
        };
        if let Role::First(first) = &mut self.role {
            for (index, other) in &mut first.others {
                let theirs = own.split_off(|shard| place.loop_of(shard) == *index);
                if !theirs.is_empty() {
                    other.frames.push(theirs);
                }
            }
        }
        own
    }

    /// The first loop tells the others, in each tick, and when it has something for them.
    pub(super) fn tell_loops(&mut self, now: Micros) {
        let Role::First(first) = &mut self.role else {
            return;
        };
        let news = std::mem::take(&mut first.news);
        let mut decision: Option<Arc<Decision>> = None;
        for (index, other) in &mut first.others {
            let told = ToLoop {
                decision: Arc::default(),
                frames: std::mem::take(&mut other.frames),
                refused: std::mem::take(&mut other.refused),
                questions: std::mem::take(&mut other.questions),
            };
            let has_some =
                !(told.frames.is_empty() && told.refused.is_empty() && told.questions.is_empty());
            if !news && !has_some {
                continue;
            }
            let decision = decision.get_or_insert_with(|| {
                Arc::new(Decision {
                    made_at: now,
                    in_touch: self.contact.is_in_touch(),
                    stopping: self.stopping.has_begun(),
                    disk_full: self.ctx.disk_full,
                    has_room: self.ctx.has_room,
                    members: self.membership.wanted.clone(),
                    peers: self.membership.peers.clone(),
                    nodes: self.ctx.clocks.peers.clone(),
                    closed: self.closed.clone(),
                })
            });
            self.ctx.out.outputs.push(Output::ToLoop {
                index: *index,
                told: Box::new(ToLoop {
                    decision: decision.clone(),
                    ..told
                }),
            });
        }
    }

    /// Takes what the first loop says.
    pub(super) fn told(&mut self, now: Now, told: ToLoop) -> Result<(), ExitReason> {
        self.follow(told.decision, now.us);
        for (to, shards) in told.refused {
            self.frame_refused(to, &shards, now.us);
        }
        for (id, question) in told.questions {
            let answer = self.answer(now.us, &question);
            if let Role::Other(other) = &mut self.role {
                other.outgoing.answers.push((id, answer));
            }
        }
        if self.takes_part(now.us) {
            for frame in told.frames {
                self.frame_of_loop(now, frame)?;
            }
        }
        Ok(())
    }

    /// Acts on the newest decision from now on.
    fn follow(&mut self, decision: Arc<Decision>, now: Micros) {
        let known = &mut self.ctx.clocks.peers;
        let started = decision.nodes.iter().filter(|(id, peer)| {
            let known = known.get(id);
            peer.start.is_some() && known.and_then(|it| it.start) != peer.start
        });
        let started: Vec<u64> = started.map(|(id, _)| *id).collect();
        known.clone_from(&decision.nodes);
        for id in started {
            self.started_again(id, now);
        }
        let membership = &mut self.membership;
        if membership.wanted != decision.members || membership.peers != decision.peers {
            membership.wanted = decision.members.clone();
            membership.peers.clone_from(&decision.peers);
            self.balance.set_members(&decision.members);
        }
        if decision.disk_full != self.ctx.disk_full {
            self.disk_full(decision.disk_full);
        }
        self.ctx.has_room = decision.has_room;
        if decision.stopping {
            self.stopping.begin(now);
        }
        let closed: Vec<_> = decision.closed.iter().collect();
        if let Role::Other(other) = &mut self.role {
            other.decision = Some(decision);
        }
        for (peer, connection) in closed {
            self.connection_closed(peer, connection, now);
        }
        self.update_subscriptions(now);
    }

    /// The other loops tell the first one, in each tick, and when they have something for it. `ticked`: a tick has passed.
    pub(super) fn tell_first(&mut self, ticked: bool, now: Micros) {
        let report_due = match &mut self.role {
            Role::Other(other) => std::mem::take(&mut other.report_due),
            Role::First(_) => return,
        };
        let report = report_due.then(|| Box::new(self.report(now)));
        let messages = std::mem::take(&mut self.ctx.out.messages);
        let state_hashes = self.ctx.out.state_hashes.clone();
        let Role::Other(other) = &mut self.role else {
            return;
        };
        let told = FromLoop {
            index: self.config.place.index,
            connection: self.connection,
            messages,
            state_hashes,
            report,
            ..std::mem::take(&mut other.outgoing)
        };
        if ticked || report_due || !told.is_empty() {
            self.ctx.out.outputs.push(Output::FromLoop(Box::new(told)));
        }
    }

    fn report(&self, now: Micros) -> LoopReport {
        let clocks = &self.ctx.clocks;
        let group = |shard: &Shard| {
            let members = shard.replica.members();
            let lags = |id: &u64| self.lagging.lags(shard, *id, clocks, now);
            let such = |wanted: bool| {
                let nodes = self.membership.peers.iter().chain([&self.config.id]);
                nodes
                    .filter(|id| lags(id) == Some(wanted))
                    .copied()
                    .collect()
            };
            GroupReport {
                leader: shard.known_leader(),
                status: shard_status(shard),
                caught_up: such(false),
                lag: such(true),
                members,
            }
        };
        LoopReport {
            groups: self.shards.values().map(|it| (it.id, group(it))).collect(),
            members: members_of(&self.shards),
            client_reachable: self.client_reachable(now) || self.stopping.has_begun(),
            refuses_snapshots: self.refuses_snapshots_itself(now),
            lagging: self.lagging.to_frame(),
            is_drained: self.has_handed_over(now),
            forwards: !self.ctx.forwards.is_empty(),
            max_payload: self.ctx.payload.max,
            gauges: self.own_gauges(now),
        }
    }

    /// Takes what another loop says.
    pub(super) fn told_by_loop(&mut self, told: FromLoop, now: Micros) {
        let FromLoop {
            index,
            connection,
            messages,
            state_hashes,
            snapshot_requests,
            snapshot_chunks,
            answers,
            report,
        } = told;
        let Role::First(first) = &mut self.role else {
            return;
        };
        let Some(other) = first.others.get_mut(&index) else {
            return;
        };
        other.heard_at = now;
        if std::mem::replace(&mut other.connection, connection) != connection {
            // The peers hear at once of a connection that is lost, so that its end does not start elections.
            self.links.tell_all();
            self.timers.hurry();
        }
        if let Some(report) = report {
            other.report = Some(*report);
            let lagging = first.others.values().filter_map(|it| it.report.as_ref());
            self.lagging
                .of_others(lagging.flat_map(|it| it.lagging.iter().cloned()).collect());
            self.members_changed();
            if self.announced.is_outdated(&self.contact) {
                self.announce_standing(now);
            }
        }
        for (id, answer) in answers {
            self.part_of_answer(id, answer);
        }
        if !self.contact.is_in_touch() {
            return;
        }
        for (peer, messages) in messages {
            let of_peer = self.ctx.out.messages.entry(peer).or_default();
            of_peer.extend(messages);
        }
        self.ctx.out.hashes_of_loops.extend(state_hashes);
        for request in snapshot_requests {
            self.send_request(request, now);
        }
        for (to, chunk) in snapshot_chunks {
            self.send_chunk(to, chunk, now);
        }
    }

    /// Asks a peer for a part of its snapshot, or refuses it.
    pub(super) fn send_request(&mut self, (to, request): (u64, SnapshotRequest), now: Micros) {
        if let Role::Other(other) = &mut self.role {
            return other.outgoing.snapshot_requests.push((to, request));
        }
        let batch = PeerBatch {
            snapshot_request: Some(request),
            ..self.batch(to, now)
        };
        self.ctx.out.outputs.push(Output::Frame { to, batch });
    }

    /// Sends a peer a part of this node's snapshot.
    pub(super) fn send_chunk(&mut self, to: u64, chunk: SnapshotChunk, now: Micros) {
        if let Role::Other(other) = &mut self.role {
            return other.outgoing.snapshot_chunks.push((to, chunk));
        }
        let batch = PeerBatch {
            snapshot_chunk: Some(Box::new(chunk)),
            ..self.batch(to, now)
        };
        self.ctx.out.outputs.push(Output::Frame { to, batch });
    }

    /// Asks the other loops for their parts of an answer, of which this one's is there, or gives it if that is all.
    pub(super) fn ask_loops(
        &mut self,
        question: Question,
        reply: ReplyTo,
        part: Outcome,
        now: Micros,
    ) {
        let of_all = matches!(&question, Question::ListLines(_) | Question::KvList { .. });
        match &mut self.role {
            Role::First(first) if of_all && !first.others.is_empty() => {
                first.asked += 1;
                for other in first.others.values_mut() {
                    other.questions.push((first.asked, question.clone()));
                }
                let asked = Asked {
                    question,
                    reply,
                    since: now,
                    parts: vec![part],
                };
                first.questions.insert(first.asked, asked);
            }
            Role::First(_) | Role::Other(_) => self.ctx.out.answer(reply, Ok(part)),
        }
    }

    fn part_of_answer(&mut self, id: u64, part: Result<Outcome, ApiError>) {
        let Role::First(first) = &mut self.role else {
            return;
        };
        let all = first.others.len() + 1;
        let Some(asked) = first.questions.get_mut(&id) else {
            return;
        };
        let failed = part.map(|part| asked.parts.push(part)).err();
        if failed.is_none() && asked.parts.len() < all {
            return;
        }
        let Some(asked) = first.questions.remove(&id) else {
            return;
        };
        let merged = match failed {
            Some(error) => Err(error),
            None => lists::merged(&asked.question, asked.parts).ok_or_else(unavailable),
        };
        self.ctx.out.answer(asked.reply, merged);
    }

    /// Refuses what was asked longer ago than loops need to answer: one stands still.
    pub(super) fn expire_questions(&mut self, now: Micros) {
        self.refuse_questions(|asked| now.saturating_sub(asked.since) > ANSWERS_MAX_US);
    }

    pub(super) fn refuse_questions(&mut self, such: impl Fn(&Asked) -> bool) {
        let Role::First(first) = &mut self.role else {
            return;
        };
        let refused = first.questions.extract_if(.., |_, asked| such(asked));
        for (_, asked) in refused {
            self.ctx.out.refuse(asked.reply, unavailable());
        }
    }
}
