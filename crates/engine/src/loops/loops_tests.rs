//! Two loops of node 1, whose peers are played by hand.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use nowserving_log::{LogStore as _, MemoryLog};
use nowserving_protocol::admin::ListLines;
use nowserving_protocol::codec::Format;
use nowserving_protocol::operation::Operation;
use nowserving_replica::{Connection, EntryReader, Restored, Write};
use nowserving_shard::clock::Micros;
use raft::eraftpb::MessageType;

use super::{LoopPlace, connections_of};
use crate::engine::Engine;
use crate::frames::PeerBatch;
use crate::io::{Config, Input, Now, Output, RestoredShard, Subscription};
use crate::peers::contact::Standing;
use crate::request::{Inbox, Outcome, Question, ReplyBody, ReplyTo};
use crate::rig::{BOOT, ELECTION_MS, Rig, config, message};

const ELECTION_US: Micros = ELECTION_MS * 1_000;

/// Of three nodes with two shards: shard 0 is with the first loop, shard 1 with the other one.
struct Node {
    loops: [Engine; 2],
    now: Micros,
    frames: Vec<(u64, PeerBatch)>,
    rest: Vec<Output>,
    /// What the other loop says is lost.
    is_mute: bool,
    /// What the first loop says is lost.
    is_deaf: bool,
}

impl Node {
    fn new() -> Node {
        let log = Arc::new(MemoryLog::new());
        let reader: Arc<dyn EntryReader> = log.clone();
        let engine = |place: LoopPlace| {
            let shard = place.index;
            log.write(&[Write::bootstrap(shard, &[1, 2, 3])]).unwrap();
            let restored = Restored {
                log: log.load(shard).unwrap(),
                snapshot: log.load(shard).unwrap().start,
                applied: 0,
            };
            let shard = RestoredShard {
                shard,
                restored,
                ..RestoredShard::default()
            };
            let config = Config {
                shards: 2,
                place,
                ..config(&[1, 2, 3])
            };
            let now = Now { us: 1, wall_ms: 1 };
            Engine::new(config, BOOT, vec![shard], &reader, now).unwrap()
        };
        let place = |index| LoopPlace { index, count: 2 };
        Node {
            loops: [0, 1].map(|index| engine(place(index))),
            now: 1_000_000,
            frames: Vec::new(),
            rest: Vec::new(),
            is_mute: false,
            is_deaf: false,
        }
    }

    fn input(&mut self, at: usize, input: Input) {
        let now = Now {
            us: self.now,
            wall_ms: 1,
        };
        let mut outputs = Vec::new();
        self.loops[at].step(now, input, &mut outputs);
        for output in outputs {
            match output {
                Output::ToLoop { told, .. } if !self.is_deaf => self.input(1, Input::Told(told)),
                Output::FromLoop(told) if !self.is_mute => self.input(0, Input::ToldByLoop(told)),
                Output::ToLoop { .. } | Output::FromLoop(_) => {}
                Output::Frame { to, batch } => self.frames.push((to, batch)),
                Output::Persist(writes) => {
                    let numbers = writes.iter().map(|it| (it.shard, it.number)).collect();
                    self.input(at, Input::Persisted { numbers, writes: 1 });
                }
                other => self.rest.push(other),
            }
        }
    }

    /// A turn of each loop, some time later.
    fn turns(&mut self, later: Micros) {
        self.now += later;
        // What comes of a write, and of what another loop says, goes on in the next.
        for at in [0, 1, 0, 1, 0] {
            let inbox_empty = true;
            self.input(at, Input::EndTurn { inbox_empty });
        }
    }

    /// A frame of a peer with two loops, which accepts this node; with messages of shard 1.
    fn hears(&mut self, from: u64, messages: Vec<raft::eraftpb::Message>) {
        let rig = Rig::new(&[1]);
        let mut frame = rig.frame(from, "", Vec::new());
        let body = frame.body.as_mut().unwrap();
        body.connections = vec![7, 8];
        body.messages = messages.into_iter().map(|it| (1, it.into())).collect();
        self.input(0, Input::Frame(Box::new(frame)));
    }

    fn take_part() -> Node {
        let mut node = Node::new();
        node.turns(0);
        node.hears(2, Vec::new());
        node.hears(3, Vec::new());
        node.turns(0);
        assert_eq!(*node.loops[0].standing(), Standing::InTouch);
        node
    }
}

#[test]
fn a_node_takes_no_part_before_all_of_its_loops_have_reported() {
    let mut node = Node::new();
    node.is_mute = true;
    node.turns(0);
    node.hears(2, Vec::new());
    node.hears(3, Vec::new());
    node.turns(ELECTION_US);
    assert!(!node.loops[0].standing().is_in_touch());
    assert!(!node.loops[1].takes_part(node.now));
    assert!(node.frames.iter().all(|(_, it)| !it.in_no_group));
    node.is_mute = false;
    node.turns(ELECTION_US);
    assert!(node.loops[0].standing().is_in_touch());
    assert!(node.loops[1].takes_part(node.now));
}

#[test]
fn a_loop_acts_on_no_old_decision() {
    let mut node = Node::take_part();
    assert!(node.loops[1].takes_part(node.now));
    let leaderless = |it: &Output| match it {
        Output::Subscribe {
            shard: 1,
            subscription,
        } => Some(*subscription),
        _ => None,
    };
    node.turns(ELECTION_US / 2);
    node.is_deaf = true;
    node.turns(ELECTION_US / 2);
    node.rest.clear();
    node.turns(ELECTION_US / 2);
    assert!(!node.loops[1].takes_part(node.now));
    let last = node.rest.iter().rev().find_map(leaderless);
    assert_eq!(last, Some(Subscription::No));
    node.is_deaf = false;
    node.turns(ELECTION_US / 2);
    assert!(node.loops[1].takes_part(node.now));
}

#[test]
fn messages_of_another_loop_come_and_go_by_the_first_one() {
    let mut node = Node::take_part();
    node.input(0, Input::ConnectionNumber(4));
    node.input(1, Input::ConnectionNumber(5));
    // A node does not vote so soon after its start.
    node.turns(ELECTION_US);
    node.frames.clear();
    let heartbeat = message(MessageType::MsgHeartbeat, 2, 5);
    node.hears(2, vec![heartbeat]);
    node.turns(0);
    let shard = node.loops[1].shards().next().unwrap();
    assert_eq!((shard.shard, shard.replica.leader()), (1, Some(2)));
    let sent = node.frames.iter().filter(|it| !it.1.messages.is_empty());
    let sent: Vec<_> = sent
        .map(|(to, it)| (*to, it.messages[0].shard, it.connections.clone()))
        .collect();
    assert!(sent.contains(&(2, 1, vec![4, 5])), "{sent:?}");
    // A connection of the peer's first loop is closed, then that of the other one.
    for (index, number, is_cut_off) in [(0, 7, false), (1, 8, true)] {
        let start = connections_of(2, index);
        let connection = Connection { start, number };
        node.input(
            0,
            Input::ConnectionClosed {
                peer: 2,
                connection,
            },
        );
        node.turns(0);
        let shard = node.loops[1].shards().next().unwrap();
        assert_eq!(shard.replica.leader().is_none(), is_cut_off, "{index}");
    }
}

#[test]
fn a_list_is_made_of_those_of_all_loops_or_refused() {
    let mut node = Node::take_part();
    let ask = |node: &mut Node| {
        let question = Question::ListLines(ListLines::default());
        let reply = ReplyTo {
            inbox: Inbox::None,
            format: Format::Json,
            op: Operation::ListLines,
            pass: false,
            taken: node.now,
            trace: None,
        };
        node.rest.clear();
        node.input(0, Input::Cluster { question, reply });
        node.turns(0);
    };
    ask(&mut node);
    let answered = |node: &Node| {
        node.rest.iter().find_map(|it| match it {
            Output::Reply { result, .. } => Some(result.clone()),
            _ => None,
        })
    };
    let list = answered(&node).unwrap().unwrap();
    assert!(matches!(list, Outcome::Reply(ReplyBody::Lines(_))));
    node.is_mute = true;
    ask(&mut node);
    assert!(answered(&node).is_none());
    node.turns(ELECTION_US);
    assert!(answered(&node).unwrap().is_err());
}
