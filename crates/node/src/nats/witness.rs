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

/// A question under way.
#[derive(Debug, Clone, Copy)]
struct Question {
    peer: u64,
    connection: Connection,
    asked_at: Instant,
    /// The witness's own connection.
    by: u64,
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
    let mut questions: BTreeMap<u64, Question> = BTreeMap::new();
    let mut answered: BTreeMap<u64, Question> = BTreeMap::new();
    let mut next = 0;
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                questions.retain(|_, it| it.asked_at.elapsed() < ANSWER_MAX_AGE);
                let peers = witness.connections.borrow().clone();
                for (peer, connection) in peers {
                    next += 1;
                    questions.insert(next, witness.ask(peer, connection, format!("{inbox}.{next}")).await);
                }
            }
            reply = replies.next() => {
                let Some(reply) = reply else {
                    return Ok(());
                };
                let Some(question) = question_of(&reply).and_then(|id| questions.remove(&id)) else {
                    continue;
                };
                if witness.is_answer(&reply, &question) {
                    answered.insert(question.peer, question);
                } else if witness.is_proof(&reply, &question, answered.get(&question.peer)) {
                    let Question { peer, connection, .. } = question;
                    if witness.control.send(Input::ConnectionClosed { peer, connection }).is_err() {
                        return Ok(());
                    }
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
    async fn ask(&self, peer: u64, connection: Connection, inbox: String) -> Question {
        let by = self.number.now();
        let Connection { start, number } = connection;
        let subject = self.subjects.connection(&self.cluster, peer, start, number);
        // An error means that the client is closed.
        let _ = self
            .client
            .publish_with_reply(subject, inbox, "".into())
            .await;
        Question {
            peer,
            connection,
            asked_at: Instant::now(),
            by,
        }
    }

    /// The peer answers, from the server to which this witness is connected.
    fn is_answer(&self, reply: &Message, question: &Question) -> bool {
        reply.status.is_none()
            && reply.payload == self.client.server_info().server_id.as_bytes()
            && self.number.now() == question.by
    }

    /// The server says that nobody is there, by the connection by which the peer answered a moment ago.
    fn is_proof(&self, reply: &Message, question: &Question, answered: Option<&Question>) -> bool {
        let answered = answered.is_some_and(|it| {
            it.connection == question.connection
                && it.by == question.by
                && question.asked_at.duration_since(it.asked_at) < ANSWER_MAX_AGE
        });
        reply.status == Some(StatusCode::NO_RESPONDERS)
            && answered
            && self.number.now() == question.by
    }
}
