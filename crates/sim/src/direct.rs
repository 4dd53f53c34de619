//! Direct links between nodes. What is sent by one comes whole and in order, until the link breaks; then the opener sends
//! over NATS, once it notices.

use std::rc::Rc;

use bytes::Bytes;
use nowserving_front::cluster::link::hello::{Acceptor, Opener};
use nowserving_front::cluster::link::progress::{Patience, Sent, Taken};

use crate::disk::CLUSTER;
use crate::env::Env;
use crate::faults::Fault;
use crate::nats::NodeId;
use crate::node::Node;
use crate::peers::Sent as SentFrame;
use crate::timeline::Time;
use crate::world::{Event, Process, World};

/// An open link, as its opener sees it.
#[derive(Debug)]
pub struct Direct {
    /// Grows from link to link: what belongs to an earlier one is known by it.
    number: u64,
    /// Of the acceptor's process.
    start: u64,
    sent: Sent,
    taken: Taken,
    /// When the last frame arrives.
    last: Time,
    /// The acceptor's word is under way or planned.
    says: bool,
    /// The opener's look at it is planned.
    looks: bool,
}

/// From one node to another, and which link of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub from: NodeId,
    pub to: NodeId,
    number: u64,
}

impl Env {
    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.direct_cut.get(&(from, to)).is_some_and(|cut| *cut > 0)
    }

    fn direct_of(&mut self, way: Way) -> Option<&mut Direct> {
        let link = self.direct.get_mut(&(way.from, way.to));
        link.filter(|it| it.number == way.number)
    }

    fn close(&mut self, way: Way, why: &str) {
        if self.direct_of(way).is_some() {
            self.direct.remove(&(way.from, way.to));
            let Way { from, to, .. } = way;
            self.note(format_args!("n{from} > n{to}: the direct link ends: {why}"));
        }
    }

    /// The links of a process that ends. Its peers notice unless its machine is gone without a word.
    pub fn end_links(&mut self, id: NodeId, power_lost: bool) {
        self.direct.retain(|(from, _), _| *from != id);
        if !power_lost {
            self.direct.retain(|(_, to), _| *to != id);
        }
    }
}

impl Node {
    /// A frame of a peer that takes links was taken: a link to it is opened, if there is none.
    pub fn wants_link(&mut self, env: &mut Env, to: NodeId) {
        let is_open = env.direct.contains_key(&(self.id, to));
        let Some(running) = &mut self.running else {
            return;
        };
        if is_open || !running.opening.insert(to) {
            return;
        }
        let delay = env.random.around(100_000);
        self.process_event(env, 0, delay, Process::OpenLink { to });
    }

    /// Sends a frame by the link to a peer.
    pub fn send_direct(&self, env: &mut Env, to: NodeId, sent: &Rc<SentFrame>) {
        let (from, now) = (self.id, env.timeline.now());
        let bytes = sent.bytes();
        let delay = env.random.around(env.calm.link_us / 2).max(20) + env.links_slow_us;
        let stalls = match env.strikes(Fault::DirectStall) {
            true => env.random.around(200_000),
            false => 0,
        };
        let cut = env.is_cut(from, to);
        let Some(link) = env.direct.get_mut(&(from, to)) else {
            return;
        };
        let way = Way {
            from,
            to,
            number: link.number,
        };
        env.counts.add(Fault::SentDirectly);
        link.sent.add(now, bytes);
        link.last = link.last.max(now + delay + stalls);
        let (at, start) = (link.last, link.start);
        if !std::mem::replace(&mut link.looks, true) {
            self.look_at_link(env, way);
        }
        if env.strikes(Fault::DirectLost) {
            return env.close(way, "the connection is lost");
        }
        if !cut {
            let frame = Event::DirectFrame {
                way,
                start,
                sent: sent.clone(),
            };
            env.timeline.at(at, frame);
        }
    }

    fn look_at_link(&self, env: &mut Env, way: Way) {
        let now = env.timeline.now();
        let broken_at = env.direct_of(way).and_then(|link| link.sent.broken_at());
        match broken_at {
            Some(at) if at <= now => {
                env.counts.add(Fault::DirectSilent);
                env.close(way, "it is silent");
            }
            Some(at) => self.process_event(env, 0, at - now, Process::LookAtLink(way)),
            None => {
                if let Some(link) = env.direct_of(way) {
                    link.looks = false;
                }
            }
        }
    }

    /// The opener looks whether the link makes progress.
    pub fn looks_at_link(&self, env: &mut Env, way: Way) {
        self.look_at_link(env, way);
    }

    /// A frame comes by a link.
    pub fn direct_frame(&mut self, env: &mut Env, way: Way, start: u64, sent: &SentFrame) {
        // It was for an earlier process; or the opener has closed the link, and this may come all the same.
        let is_open = env.direct_of(way).is_some();
        let same = self.running.as_ref().is_some_and(|it| it.start == start);
        if !same || (!is_open && env.random.below(2) == 0) {
            return;
        }
        for part in 0..sent.parts() {
            self.part(env, sent, part);
        }
        if let Some(link) = env.direct_of(way) {
            link.taken.add(sent.bytes());
            if !std::mem::replace(&mut link.says, true) {
                self.say_taken(env, way);
            }
        }
    }

    /// The acceptor says what it has taken, or does so when that is due.
    pub fn say_taken(&self, env: &mut Env, way: Way) {
        let now = env.timeline.now();
        let Some(link) = env.direct_of(way) else {
            return;
        };
        let word = link.taken.word(now);
        let due = link.taken.next_due();
        link.says = due.is_some();
        if let Some(due) = due {
            self.process_event(env, 0, due.saturating_sub(now), Process::SayTaken(way));
        }
        if let Some(word) = word
            && !env.is_cut(way.to, way.from)
        {
            let delay = env.random.around(env.calm.link_us).max(20);
            let taken = u64::from_le_bytes(word);
            env.timeline.after(delay, Event::LinkWord { way, taken });
        }
    }
}

impl World {
    /// A node opens a link, with a real handshake.
    pub fn open_link(&mut self, from: NodeId, to: NodeId) {
        let Some(opener) = self.nodes.get_mut(&from) else {
            return;
        };
        if let Some(running) = &mut opener.running {
            running.opening.remove(&to);
        }
        let env = &mut self.env;
        let reached = !env.is_cut(from, to) && !env.is_cut(to, from);
        let acceptor = self.nodes.get(&to).filter(|it| it.is_awake() && reached);
        let Some(running) = acceptor.and_then(|it| it.running.as_ref()) else {
            return;
        };
        if running.origin.link_addr.is_empty() {
            return;
        }
        let nonce = || [7; 16];
        let acceptor = Acceptor {
            cluster: CLUSTER.to_owned(),
            me: to,
            nonce: nonce(),
        };
        let opener = Opener {
            cluster: CLUSTER.to_owned(),
            me: from,
            to,
            nonce: nonce(),
        };
        let keys = &env.link.clone().keys.links;
        let accepted = opener
            .hello(&acceptor.greeting(), keys)
            .and_then(|hello: Bytes| acceptor.accept(hello, keys, &running.peers))
            .and_then(|(_, answer)| opener.check(answer, keys));
        if let Err(error) = accepted {
            return env.note(format_args!("n{from} > n{to}: no direct link: {error}"));
        }
        env.direct_number += 1;
        let patience = Patience::of(self.setup.election_ms);
        let link = Direct {
            number: env.direct_number,
            start: running.start,
            sent: Sent::new(patience),
            taken: Taken::new(patience),
            last: env.timeline.now(),
            says: false,
            looks: false,
        };
        env.direct.insert((from, to), link);
        env.note(format_args!("n{from} > n{to}: a direct link is open"));
    }

    /// The opener learns what was taken.
    pub fn link_word(&mut self, way: Way, taken: u64) {
        let now = self.env.timeline.now();
        let Some(link) = self.env.direct_of(way) else {
            return;
        };
        if let Err(error) = link.sent.on_word(now, taken) {
            self.env
                .violated("L3", format!("of a direct link: {error}"));
        }
    }
}
