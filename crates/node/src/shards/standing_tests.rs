//! A whole loop over a log in memory, turn by turn, with its peers played by hand.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use nowserving_log::{LogStore, MemoryLog};
use nowserving_protocol::frame::Verdict;
use raft::eraftpb::{Message, MessageType};

use super::persist::Persister;
use super::test_rig::{config, message};
use super::{Inputs, Outputs, Shards, restore, snapshots};
use crate::clock::monotonic_us;
use nowserving_engine::contact::{Contact, PeerHeader, Standing};
use nowserving_engine::{FrameBody, PeerFrame};

const START: u64 = 77;
const PATIENCE: Duration = Duration::from_secs(60);

struct Node {
    shards: Shards,
    frames: Sender<PeerFrame>,
    _dir: tempfile::TempDir,
}

/// Node 1 of three.
fn node() -> Node {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&[1, 2, 3], dir.path().to_owned());
    let log: Arc<dyn LogStore> = Arc::new(MemoryLog::new());
    let now = monotonic_us();
    let shards = restore::shards(&config, dir.path(), &log, now).unwrap();
    let (_, requests) = bounded(1);
    let (frames, frames_in) = bounded(16);
    let (_, control) = bounded(1);
    let inputs = Inputs {
        requests,
        frames: frames_in,
        control,
    };
    let outputs = Outputs {
        answers: tokio::sync::mpsc::unbounded_channel().0,
        events: tokio::sync::mpsc::channel(1).0,
        peers: BTreeMap::new(),
        listen: tokio::sync::watch::channel(Vec::new()).0,
        standing: tokio::sync::watch::channel(Standing::Waiting(String::new())).0,
        health: Arc::default(),
    };
    let persister = Persister::start(log.clone()).unwrap();
    let writer = snapshots::Writer::start(dir.path().to_owned(), &config, log).unwrap();
    let contact = Contact::new(START, [2, 3]);
    let shards = Shards::new(config, contact, shards, inputs, outputs, persister, writer);
    Node {
        shards,
        frames,
        _dir: dir,
    }
}

impl Node {
    /// Peer `from` says this of node 1 (empty: it accepts it), and these Raft messages.
    fn hears(&mut self, from: u64, refused: &str, messages: Vec<Message>) {
        let verdict = Verdict {
            start: START,
            refused: refused.to_owned(),
        };
        let frame = PeerFrame {
            from,
            header: PeerHeader {
                start: Some(from),
                in_touch: true,
                verdicts: vec![verdict],
            },
            body: Ok(FrameBody {
                client_reachable: true,
                metrics_addr: String::new(),
                version: String::new(),
                messages: messages.into_iter().map(|it| (0, it)).collect(),
                state_hashes: Vec::new(),
            }),
        };
        self.frames.send(frame).unwrap();
        self.shards.turn().unwrap();
    }

    fn reigns(&self) -> bool {
        self.shards.shards[0].leader_state.is_some()
    }

    /// Peer 2 votes for node 1 and acknowledges, until it leads.
    fn lead(&mut self) {
        let began = Instant::now();
        self.shards.shards[0].replica.campaign(monotonic_us());
        while !self.reigns() {
            assert!(began.elapsed() < PATIENCE, "not elected");
            let replica = &self.shards.shards[0].replica;
            let (term, last) = (replica.term(), replica.last_index());
            let mut have = message(MessageType::MsgAppendResponse, 2, term);
            have.index = last;
            let vote = message(MessageType::MsgRequestVoteResponse, 2, term);
            let pre_vote = message(MessageType::MsgRequestPreVoteResponse, 2, term + 1);
            self.hears(2, "", vec![pre_vote, vote, have]);
        }
    }
}

/// As when a copy of its data directory was started elsewhere.
#[test]
fn a_leader_that_is_refused_leads_no_more() {
    let mut node = node();
    node.hears(2, "", Vec::new());
    node.lead();
    node.hears(3, "another start", Vec::new());
    assert!(node.reigns(), "one peer alone may be misled");
    node.hears(2, "another start", Vec::new());
    let shard = &node.shards.shards[0];
    assert!(!node.reigns() && !shard.leads());
    let (term, last) = (shard.replica.term(), shard.replica.last_index());

    // Accepted again, it has to be elected again.
    node.hears(2, "", Vec::new());
    node.hears(3, "", Vec::new());
    assert!(!node.reigns());
    assert_eq!(node.shards.shards[0].replica.last_index(), last);
    node.lead();
    assert!(node.shards.shards[0].replica.term() > term);
}
