//! How a node finds out that a peer's service connection is closed.

use std::collections::BTreeMap;

use nowserving_replica::Connection;

use crate::env::Env;
use crate::faults::Fault;
use crate::nats::NodeId;
use crate::node::Node;
use crate::timeline::Time;
use crate::world::Process;

/// Between two questions to a peer.
const INTERVAL_US: Time = 50_000;

/// What a node knows of its peers' service connections.
#[derive(Debug, Default)]
pub struct Witnessed(BTreeMap<NodeId, (Connection, bool)>);

impl Witnessed {
    /// A frame named this connection of a peer.
    pub fn named(&mut self, peer: NodeId, connection: Connection) {
        let known = self.0.entry(peer).or_insert((connection, false));
        if known.0 != connection {
            *known = (connection, false);
        }
    }
}

impl Node {
    /// Asks for each peer's connection, and plans the next time.
    pub fn witness(&mut self, env: &mut Env) {
        let mut closed = Vec::new();
        if let Some(running) = &mut self.running {
            for (peer, (connection, answered)) in &mut running.witnessed.0 {
                let open = env.is_open(*peer, connection.number);
                #[cfg(feature = "bite")]
                let open = open && !believes_another_server(env);
                if !open && *answered {
                    closed.push((*peer, *connection));
                }
                *answered = open;
            }
        }
        for (peer, connection) in closed {
            let mut delay = env.nats_delay() + env.nats_delay();
            if env.strikes(Fault::ProofLate) {
                delay += env.random.around(1_000_000);
            }
            env.note(format_args!(
                "n{}: connection {} of n{peer} is closed, known in {delay} us",
                self.id, connection.number
            ));
            self.process_event(env, delay, Process::Proof(peer, connection));
        }
        self.process_event(env, INTERVAL_US, Process::Witness);
    }
}

/// Takes the word of a server that has only lost its route to the connection's.
#[cfg(feature = "bite")]
fn believes_another_server(env: &mut Env) -> bool {
    nowserving_bite::is(nowserving_bite::Break::S15Proof) && env.random.below(40) == 0
}
