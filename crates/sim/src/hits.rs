//! What nodes are asked to count on rate limits, and to give back: the checkers compare the answers with it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use nowserving_engine::{Inbox, LimitRequest, Outcome, Output, Request};

use crate::calls::{Hits, What};
use crate::nats::NodeId;

/// A counter, by its key.
pub type CounterKey = Box<[u8]>;

#[derive(Debug, Default)]
pub struct HitsAsked {
    /// Hits that came for counters in a leader's memory: once for each message that a node took from a client, and once
    /// more for each copy that the server made of a request between nodes. What a node asks again has come once.
    came: BTreeMap<CounterKey, u64>,
    /// The same by rule, as stats name it, without copies between nodes.
    by_rule: BTreeMap<String, u64>,
    /// Where the answers to requests between nodes go of which the server made a copy.
    copied: BTreeSet<Rc<str>>,
    /// The counters of checks that may be given back, by their name.
    held: BTreeMap<u128, Rc<[CounterKey]>>,
    /// Give-backs that nodes have taken in, by the node and where the answer goes.
    give_backs: BTreeMap<(NodeId, Inbox), GiveBackAsked>,
}

/// A leader is asked to give hits back.
#[derive(Debug)]
pub struct GiveBackAsked {
    /// Where they were counted.
    pub shard: u32,
    /// On these counters.
    pub keys: Rc<[CounterKey]>,
}

impl HitsAsked {
    /// A node takes this from a client, to ask others.
    pub fn taken(&mut self, what: &What) {
        match what {
            What::Limit(all) => all
                .iter()
                .for_each(|it| self.come(std::slice::from_ref(it))),
            What::LimitChanging(all) => all.iter().for_each(|any| self.come(any)),
            _ => {}
        }
    }

    /// Hits for one of these counters.
    fn come(&mut self, any: &[Hits]) {
        for hits in any {
            *self.came.entry(hits.ask.key.clone()).or_default() += hits.ask.hits;
        }
        if let Some(hits) = any.first() {
            *self.by_rule.entry(hits.rule.clone()).or_default() += hits.ask.hits;
        }
    }

    /// The server makes a copy of a request between nodes.
    pub fn copied(&mut self, reply: Rc<str>) {
        self.copied.insert(reply);
    }

    /// A node's loop takes a request about limits in.
    pub fn heard(&mut self, node: NodeId, request: &Request, ask: &LimitRequest) {
        let of = (node, request.reply.inbox.clone());
        // After a start a node numbers its requests from the beginning.
        self.give_backs.remove(&of);
        match ask {
            LimitRequest::Check {
                asks,
                dry_run: false,
                hold,
            } => {
                let reply = request.reply.inbox.subject().unwrap_or_default();
                if self.copied.remove(reply) {
                    for ask in asks {
                        *self.came.entry(ask.key.clone()).or_default() += ask.hits;
                    }
                }
                if let Some(name) = hold {
                    let keys = asks.iter().map(|ask| ask.key.clone());
                    self.held.insert(*name, keys.collect());
                }
            }
            LimitRequest::GiveBack { name, exact: false } => {
                let asked = GiveBackAsked {
                    shard: request.shard,
                    keys: self.held.get(name).cloned().unwrap_or_default(),
                };
                self.give_backs.insert(of, asked);
            }
            _ => {}
        }
    }

    /// What a node has given back, if this output says so.
    pub fn gave_back(&mut self, node: NodeId, output: &Output) -> Option<GiveBackAsked> {
        let Output::Reply {
            to,
            result: Ok(Outcome::LimitPart(left)),
        } = output
        else {
            return None;
        };
        let asked = self.give_backs.remove(&(node, to.inbox.clone()));
        // No limit is told of if nothing was given back.
        asked.filter(|_| !left.verdicts.is_empty())
    }

    /// Hits that came for all counters of a rule.
    #[must_use]
    pub fn came_for_rule(&self, rule: &str) -> u64 {
        self.by_rule.get(rule).copied().unwrap_or_default()
    }

    /// Hits that came for a counter.
    #[must_use]
    pub fn came(&self, key: &[u8]) -> u64 {
        self.came.get(key).copied().unwrap_or_default()
    }
}
