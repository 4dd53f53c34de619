//! Finds out that a peer's service connection is closed, as happens at once when its process ends.
//!
//! By each of its service connections a node listens on a subject of that connection alone, and answers
//! there with the id of the server that it is connected to. Its peers know the number of the
//! connection from its frames, and ask there all the time, each by a connection of its own to every server
//! ([`Witness`]). A server that has nobody to give a request to says so at once (503). That is proof if the same
//! server had an answer by that connection a moment ago, since a server ends subscriptions only with their
//! connection. Another server may only have lost its route.
//!
//! What the proof is good for: [`Connection`]. Two settings of a NATS server would make it worthless:
//! `no_fast_producer_stall`, with which a server says 503 also for a subscriber that reads slowly; and a
//! mapping of these subjects. A moment ago, and not ever: so the first of them would have to come up with a
//! full buffer of 48 MB in that moment.

use std::collections::BTreeMap;

use nowserving_engine::Input;
use nowserving_replica::Connection;
use nowserving_shard::clock::Micros;

use super::Out;

/// Between two rounds of questions.
pub const INTERVAL_US: Micros = 50_000;
/// A witness asks for a peer in each second round only: the peer's witnesses take turns, and tell each other what they
/// find out.
const TURNS: u64 = 2;
/// "A moment ago", and how long answers are waited for.
const ANSWER_MAX_AGE_US: Micros = 400_000;

/// The newest service connections of each peer, one of each of its loops, from its frames.
pub type Connections = BTreeMap<u64, Vec<Connection>>;

/// A question to a peer.
#[derive(Debug, Clone, Copy)]
struct Question {
    peer: u64,
    connection: Connection,
    asked_at: Micros,
    /// The witness's own connection.
    by: u64,
}

/// A reply to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The peer's, which is connected to the same server.
    Answer,
    /// The server's: it has nobody to give the question to.
    NobodyThere,
    /// The peer's, from another server.
    OtherServer,
}

/// One server's word on the connections of all peers: the questions under way, and those that were answered.
#[derive(Debug)]
pub struct Witness {
    me: u64,
    open: BTreeMap<u64, Question>,
    /// The newest that was answered, by peer and the start under which the loop's connections count.
    answered: BTreeMap<(u64, u64), Question>,
    last: u64,
    /// When the last round was.
    asked_at: Micros,
}

impl Witness {
    /// Of this node.
    #[must_use]
    pub fn new(me: u64) -> Witness {
        Witness {
            me,
            open: BTreeMap::new(),
            answered: BTreeMap::new(),
            last: 0,
            asked_at: 0,
        }
    }

    /// Asks for the peers for which that is due. `by`: the number of the witness's own connection.
    pub fn on_time(&mut self, now: Micros, by: u64, connections: &Connections, out: &mut Vec<Out>) {
        if now < self.next_due() {
            return;
        }
        let last = std::mem::replace(&mut self.asked_at, now);
        // Answers to earlier ones are too late.
        self.open
            .retain(|_, it| now.saturating_sub(it.asked_at) < ANSWER_MAX_AGE_US);
        // Nor can these be proof any more. Each start of a peer leaves one.
        self.answered
            .retain(|_, it| now.saturating_sub(it.asked_at) < 2 * ANSWER_MAX_AGE_US);
        for (peer, connections_of_peer) in connections {
            let before_me = |id: &&u64| **id < self.me && *id != peer;
            let turn_us = connections.keys().filter(before_me).count() as u64 * INTERVAL_US;
            let turns = |at: Micros| (at + turn_us) / (TURNS * INTERVAL_US);
            if turns(now) == turns(last) {
                continue;
            }
            for connection in connections_of_peer {
                let number = self.ask(Question {
                    peer: *peer,
                    connection: *connection,
                    asked_at: now,
                    by,
                });
                out.push(Out::AskForConnection {
                    peer: *peer,
                    connection: *connection,
                    number,
                });
            }
        }
    }

    /// On multiples of the interval, as all that a node does now and then.
    #[must_use]
    pub fn next_due(&self) -> Micros {
        (self.asked_at / INTERVAL_US + 1) * INTERVAL_US
    }

    /// Returns the question's number.
    fn ask(&mut self, question: Question) -> u64 {
        self.last += 1;
        self.open.insert(self.last, question);
        self.last
    }

    /// Takes the reply to a question, which came by this connection of the witness. The engine is told of a closed
    /// connection if it is proof: the peer answered by it a moment ago.
    pub fn on_reply(&mut self, number: u64, reply: Reply, by: u64, out: &mut Vec<Out>) {
        let proof = self.reply(number, reply, by);
        let proof = proof.map(|(peer, connection)| Input::ConnectionClosed { peer, connection });
        out.extend(proof.map(Out::Engine));
    }

    fn reply(&mut self, number: u64, reply: Reply, by: u64) -> Option<(u64, Connection)> {
        let question = self.open.remove(&number).filter(|it| it.by == by)?;
        let Question {
            peer, connection, ..
        } = question;
        let reply = match nowserving_bite::is(nowserving_bite::Break::S15Proof) {
            true if reply == Reply::OtherServer => Reply::Answer,
            _ => reply,
        };
        match reply {
            Reply::OtherServer => None,
            Reply::Answer => {
                self.answered.insert((peer, connection.start), question);
                None
            }
            Reply::NobodyThere => {
                let answered = self.answered.get(&(peer, connection.start))?;
                let a_moment_ago =
                    question.asked_at.saturating_sub(answered.asked_at) < ANSWER_MAX_AGE_US;
                let same = answered.connection == connection && answered.by == by;
                (same && a_moment_ago).then_some((peer, connection))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: Connection = Connection {
        start: 7,
        number: 4,
    };
    /// The witness's own connection.
    const OWN: u64 = 1;

    /// Asks peer 2 by `by` for `connection`, at this time, and returns what follows from the reply.
    fn asked(
        questions: &mut Witness,
        (connection, by): (Connection, u64),
        asked_at: Micros,
        reply: Reply,
    ) -> Option<(u64, Connection)> {
        let number = questions.ask(Question {
            peer: 2,
            connection,
            asked_at,
            by,
        });
        questions.reply(number, reply, by)
    }

    /// Peer 2 has answered at this time.
    fn answered(at: Micros) -> Witness {
        let mut questions = Witness::new(1);
        assert_eq!(asked(&mut questions, (OPEN, OWN), at, Reply::Answer), None);
        questions
    }

    #[test]
    fn nobody_there_is_proof_a_moment_after_an_answer_by_the_same_connections() {
        let now = 1_000_000;
        let (soon, late) = (now + INTERVAL_US, now + ANSWER_MAX_AGE_US);
        let next = Connection { number: 5, ..OPEN };
        let other_start = Connection { start: 8, ..OPEN };
        for (connection, by, at, proof) in [
            (OPEN, OWN, soon, true),
            (OPEN, OWN, late, false),
            (OPEN, OWN + 1, soon, false),
            (next, OWN, soon, false),
            (other_start, OWN, soon, false),
        ] {
            let mut questions = answered(now);
            let closed = asked(&mut questions, (connection, by), at, Reply::NobodyThere);
            assert_eq!(
                closed,
                proof.then_some((2, connection)),
                "{connection:?} {by}"
            );
        }
    }

    #[test]
    fn without_an_answer_of_the_same_server_nothing_is_proof() {
        let now = 1_000_000;
        let mut questions = Witness::new(1);
        for reply in [Reply::NobodyThere, Reply::OtherServer, Reply::NobodyThere] {
            assert_eq!(asked(&mut questions, (OPEN, OWN), now, reply), None);
        }
    }

    #[test]
    fn replies_by_another_connection_of_the_witness_do_not_count() {
        let now = 1_000_000;
        let question = Question {
            peer: 2,
            connection: OPEN,
            asked_at: now,
            by: OWN,
        };
        let mut questions = answered(now);
        let number = questions.ask(question);
        assert_eq!(questions.reply(number, Reply::NobodyThere, OWN + 1), None);
        let mut questions = Witness::new(1);
        let number = questions.ask(question);
        assert_eq!(questions.reply(number, Reply::Answer, OWN + 1), None);
        let closed = asked(&mut questions, (OPEN, OWN), now, Reply::NobodyThere);
        assert_eq!(closed, None);
    }

    #[test]
    fn a_reply_counts_once_and_not_when_it_is_late() {
        let now = 1_000_000;
        let mut questions = answered(now);
        let number = questions.ask(Question {
            peer: 2,
            connection: OPEN,
            asked_at: now,
            by: OWN,
        });
        questions.on_time(
            now + ANSWER_MAX_AGE_US,
            OWN,
            &Connections::new(),
            &mut Vec::new(),
        );
        assert_eq!(questions.reply(number, Reply::NobodyThere, OWN), None);
        assert_eq!(questions.reply(number, Reply::NobodyThere, OWN), None);
    }

    #[test]
    fn the_witnesses_of_a_peer_take_turns() {
        let all = |me: u64| -> Connections {
            let others = [1, 2, 3].into_iter().filter(|id| *id != me);
            others.map(|id| (id, vec![OPEN])).collect()
        };
        let mut asked: BTreeMap<u64, Vec<(Micros, u64)>> = BTreeMap::new();
        for me in [1, 2, 3] {
            let mut witness = Witness::new(me);
            let mut now = 1_000_000;
            witness.on_time(now, OWN, &all(me), &mut Vec::new());
            while now < 1_200_000 {
                now = witness.next_due();
                let mut out = Vec::new();
                witness.on_time(now, OWN, &all(me), &mut out);
                for it in out {
                    if let Out::AskForConnection { peer, .. } = it {
                        asked.entry(peer).or_default().push((now, me));
                    }
                }
            }
        }
        for (peer, mut by) in asked {
            by.sort_unstable();
            let [first, second] = match peer {
                1 => [2, 3],
                2 => [1, 3],
                _ => [1, 2],
            };
            let expected = [
                (1_050_000, second),
                (1_100_000, first),
                (1_150_000, second),
                (1_200_000, first),
            ];
            assert_eq!(by, expected, "{peer}");
        }
    }

    #[test]
    fn a_late_round_leaves_no_peer_out() {
        let connections = Connections::from([(2, vec![OPEN]), (3, vec![OPEN])]);
        let mut witness = Witness::new(1);
        let mut out = Vec::new();
        for now in [1_000_000, 1_110_000, 1_220_000] {
            out.clear();
            witness.on_time(now, OWN, &connections, &mut out);
        }
        assert_eq!(out.len(), 2);
    }
}
