//! How a node finds out that a peer's service connection is closed: it asks for it by a connection of its own to each
//! server. The service connections are to the first of two servers.

use nowserving_front::cluster::Out;
use nowserving_front::cluster::witness::Reply;
use nowserving_replica::Connection;

use crate::env::Env;
use crate::faults::Fault;
use crate::nats::{LoopId, NodeId};
use crate::node::Node;
use crate::world::{Process, World};

/// The witness's own connections are never lost.
const BY: u64 = 1;

/// A question on its way.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// To which of the servers it goes.
    server: usize,
    peer: NodeId,
    connection: Connection,
    number: u64,
}

impl Node {
    /// Asks for each peer's connection, and plans the next time.
    pub fn witness(&mut self, env: &mut Env) {
        let now = self.clock.read(env.timeline.now()).us;
        let (mut asked, mut due) = (Vec::new(), u64::MAX);
        let Some(running) = &mut self.running else {
            return;
        };
        for (server, witness) in running.witnesses.iter_mut().enumerate() {
            let mut out = Vec::new();
            witness.on_time(now, BY, &running.connections, &mut out);
            due = due.min(witness.next_due());
            asked.extend(out.into_iter().filter_map(|it| match it {
                Out::AskForConnection {
                    peer,
                    connection,
                    number,
                } => Some(Asked {
                    server,
                    peer,
                    connection,
                    number,
                }),
                _ => None,
            }));
        }
        for it in asked {
            let delay = env.nats_delay();
            self.process_event(env, 0, delay, Process::Asked(it));
        }
        let again = self.clock.when(due).saturating_sub(env.timeline.now());
        self.process_event(env, 0, again, Process::Witness);
    }

    /// A reply comes.
    pub fn witnessed(&mut self, env: &mut Env, asked: Asked, reply: Reply) {
        let mut out = Vec::new();
        if let Some(running) = &mut self.running
            && let Some(witness) = running.witnesses.get_mut(asked.server)
        {
            witness.on_reply(asked.number, reply, BY, &mut out);
        }
        for it in out {
            if let Out::Engine(input) = it {
                env.note(format_args!(
                    "n{}: connection {} of n{} is closed",
                    self.id, asked.connection.number, asked.peer
                ));
                match env.strikes(Fault::ProofLate) {
                    true => {
                        let delay = env.random.around(1_000_000);
                        self.process_event(env, 0, delay, Process::Proof(Box::new(input)));
                    }
                    false => self.push(env, 0, input),
                }
            }
        }
    }
}

impl World {
    /// A server has the question of a node. It has nobody to give it to, or the peer answers in time.
    pub fn asked(&mut self, id: NodeId, asked: Asked) {
        let env = &mut self.env;
        let Asked {
            server,
            peer,
            connection,
            ..
        } = asked;
        // Of which loop.
        let node = self.nodes.get(&peer);
        let of = node.and_then(|it| it.connection_of(connection.start));
        let of = of.unwrap_or(LoopId::first_of(peer));
        let open = env.is_open(of, connection.number);
        let route_lost = server > 0 && env.strikes(Fault::RouteLost);
        let awake = |it: &Node| it.is_awake() && !it.stands_still(of.index);
        let answers = self.nodes.get(&peer).is_some_and(awake);
        let mut delay = env.nats_delay();
        let reply = match open && !route_lost {
            true if !answers || env.is_stalled(of) => return,
            true => {
                delay += env.nats_delay() + env.nats_delay();
                match server {
                    0 => Reply::Answer,
                    _ => Reply::OtherServer,
                }
            }
            false => Reply::NobodyThere,
        };
        if let Some(node) = self.nodes.get(&id) {
            node.process_event(env, 0, delay, Process::Witnessed(asked, reply));
        }
    }
}
