//! Finds out that a peer's service connection is closed, as happens at once when its process ends.
//!
//! By each of its service connections a node listens on a subject of that connection alone, and answers
//! there with the id of the server that it is connected to ([`answer`]). Its peers know the number of the
//! connection from its frames, and ask there all the time, each by a connection of its own to every server
//! ([`watch`]). A server that has nobody to give a request to says so at once (503). That is proof if the same
//! server had an answer by that connection a moment ago, since a server ends subscriptions only with their
//! connection. Another server may only have lost its route.
//!
//! What the proof is good for: [`Connection`]. Two settings of a NATS server would make it worthless:
//! `no_fast_producer_stall`, with which a server says 503 also for a subscriber that reads slowly; and a
//! mapping of these subjects. A moment ago, and not ever: so the first of them would have to come up with a
//! full buffer of 48 MB in that moment.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subscriber};
use crossbeam_channel::Sender;
use futures::StreamExt as _;
use nowserving_engine::Input;
use nowserving_protocol::subject::Subjects;
use nowserving_replica::Connection;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::connect::ConnectionNumber;

/// Between two questions to a peer.
const INTERVAL: Duration = Duration::from_millis(50);
/// "A moment ago", and how long answers are waited for.
const ANSWER_MAX_AGE: Duration = Duration::from_millis(400);

/// The newest service connection of each peer, from its frames.
pub type Connections = BTreeMap<u64, Connection>;

/// This node, as its peers ask for it.
#[derive(Debug, Clone)]
pub struct Listening {
    pub client: Client,
    pub number: ConnectionNumber,
    pub subjects: Subjects,
    pub cluster: String,
    pub me: u64,
    pub start: u64,
}

/// Ends the connection's number before the subscription ends, whatever the reason: while leases go with that
/// number, the subscription must be there.
struct EndsNumber(ConnectionNumber);

impl Drop for EndsNumber {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Listens by each service connection of this node, until the client is closed.
///
/// # Errors
/// The subscription cannot be made.
pub async fn answer(this: Listening) -> anyhow::Result<()> {
    loop {
        let number = this.number.now();
        let subject = this
            .subjects
            .connection(&this.cluster, this.me, this.start, number);
        let mut questions = this.client.subscribe(subject).await?;
        let _ends_first = EndsNumber(this.number.clone());
        if !answer_while(&this, number, &mut questions).await {
            return Ok(());
        }
    }
}

/// Returns false if the client is closed.
async fn answer_while(this: &Listening, number: u64, questions: &mut Subscriber) -> bool {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while this.number.now() == number {
        tokio::select! {
            _ = ticks.tick() => {}
            question = questions.next() => {
                let Some(question) = question else {
                    return false;
                };
                let server = this.client.server_info().server_id;
                // Only now: the question came, and the id is, of this connection.
                if this.number.now() == number && let Some(reply) = question.reply {
                    // An error means that the client is closed.
                    let _ = this.client.publish(reply, server.into()).await;
                }
            }
        }
    }
    true
}

/// A connection to one server that asks for peers.
#[derive(Debug)]
pub struct Witness {
    pub client: Client,
    pub number: ConnectionNumber,
    pub subjects: Subjects,
    pub cluster: String,
    pub connections: watch::Receiver<Connections>,
    pub control: Sender<Input>,
}

/// A question to a peer.
#[derive(Debug, Clone, Copy)]
struct Question {
    peer: u64,
    connection: Connection,
    asked_at: Instant,
    /// The witness's own connection.
    by: u64,
}

/// A reply to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// The peer's, which is connected to the same server.
    Answer,
    /// The server's: it has nobody to give the question to.
    NobodyThere,
    /// The peer's, from another server.
    OtherServer,
}

/// The questions under way, and those that were answered.
#[derive(Debug, Default)]
struct Questions {
    open: BTreeMap<u64, Question>,
    /// The newest that was answered, by peer.
    answered: BTreeMap<u64, Question>,
    last: u64,
}

impl Questions {
    /// Returns the question's number.
    fn ask(&mut self, question: Question) -> u64 {
        self.last += 1;
        self.open.insert(self.last, question);
        self.last
    }

    /// Stops waiting for answers that are too late.
    fn expire(&mut self, now: Instant) {
        self.open
            .retain(|_, it| now.duration_since(it.asked_at) < ANSWER_MAX_AGE);
    }

    /// Takes the reply to a question, which came by this connection of the witness. Returns a peer and its connection
    /// if it is proof that this is closed: the peer answered by it a moment ago.
    fn reply(&mut self, number: u64, reply: Reply, by: u64) -> Option<(u64, Connection)> {
        let question = self.open.remove(&number).filter(|it| it.by == by)?;
        let Question {
            peer, connection, ..
        } = question;
        match reply {
            Reply::OtherServer => None,
            Reply::Answer => {
                self.answered.insert(peer, question);
                None
            }
            Reply::NobodyThere => {
                let answered = self.answered.get(&peer)?;
                let a_moment_ago =
                    question.asked_at.duration_since(answered.asked_at) < ANSWER_MAX_AGE;
                let same = answered.connection == connection && answered.by == by;
                (same && a_moment_ago).then_some((peer, connection))
            }
        }
    }
}

/// Asks for all peers until the loop ends, and tells it of closed connections.
///
/// # Errors
/// The subscription cannot be made.
pub async fn watch(witness: Witness) -> anyhow::Result<()> {
    let inbox = witness.client.new_inbox();
    let mut replies = witness.client.subscribe(format!("{inbox}.*")).await?;
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut questions = Questions::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                questions.expire(Instant::now());
                let peers = witness.connections.borrow().clone();
                for (peer, connection) in peers {
                    witness.ask(peer, connection, &inbox, &mut questions).await;
                }
            }
            reply = replies.next() => {
                let Some(reply) = reply else {
                    return Ok(());
                };
                let Some(number) = question_of(&reply) else {
                    continue;
                };
                let closed = questions.reply(number, witness.read(&reply), witness.number.now());
                if let Some((peer, connection)) = closed
                    && witness.control.send(Input::ConnectionClosed { peer, connection }).is_err()
                {
                    return Ok(());
                }
            }
        }
    }
}

/// The last word of the inbox.
fn question_of(reply: &Message) -> Option<u64> {
    reply.subject.rsplit('.').next()?.parse().ok()
}

impl Witness {
    async fn ask(&self, peer: u64, connection: Connection, inbox: &str, open: &mut Questions) {
        let number = open.ask(Question {
            peer,
            connection,
            asked_at: Instant::now(),
            by: self.number.now(),
        });
        let Connection {
            start,
            number: theirs,
        } = connection;
        let subject = self.subjects.connection(&self.cluster, peer, start, theirs);
        let reply = format!("{inbox}.{number}");
        // An error means that the client is closed.
        let _ = self
            .client
            .publish_with_reply(subject, reply, "".into())
            .await;
    }

    fn read(&self, reply: &Message) -> Reply {
        match reply.status {
            Some(StatusCode::NO_RESPONDERS) => Reply::NobodyThere,
            None if reply.payload == self.client.server_info().server_id.as_bytes() => {
                Reply::Answer
            }
            _ => Reply::OtherServer,
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
        questions: &mut Questions,
        (connection, by): (Connection, u64),
        asked_at: Instant,
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
    fn answered(at: Instant) -> Questions {
        let mut questions = Questions::default();
        assert_eq!(asked(&mut questions, (OPEN, OWN), at, Reply::Answer), None);
        questions
    }

    #[test]
    fn nobody_there_is_proof_a_moment_after_an_answer_by_the_same_connections() {
        let now = Instant::now();
        let (soon, late) = (now + INTERVAL, now + ANSWER_MAX_AGE);
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
        let now = Instant::now();
        let mut questions = Questions::default();
        for reply in [Reply::NobodyThere, Reply::OtherServer, Reply::NobodyThere] {
            assert_eq!(asked(&mut questions, (OPEN, OWN), now, reply), None);
        }
    }

    #[test]
    fn replies_by_another_connection_of_the_witness_do_not_count() {
        let now = Instant::now();
        let question = Question {
            peer: 2,
            connection: OPEN,
            asked_at: now,
            by: OWN,
        };
        let mut questions = answered(now);
        let number = questions.ask(question);
        assert_eq!(questions.reply(number, Reply::NobodyThere, OWN + 1), None);
        let mut questions = Questions::default();
        let number = questions.ask(question);
        assert_eq!(questions.reply(number, Reply::Answer, OWN + 1), None);
        let closed = asked(&mut questions, (OPEN, OWN), now, Reply::NobodyThere);
        assert_eq!(closed, None);
    }

    #[test]
    fn a_reply_counts_once_and_not_when_it_is_late() {
        let now = Instant::now();
        let mut questions = answered(now);
        let number = questions.ask(Question {
            peer: 2,
            connection: OPEN,
            asked_at: now,
            by: OWN,
        });
        questions.expire(now + ANSWER_MAX_AGE);
        assert_eq!(questions.reply(number, Reply::NobodyThere, OWN), None);
        assert_eq!(questions.reply(number, Reply::NobodyThere, OWN), None);
    }
}
