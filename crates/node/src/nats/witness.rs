//! Finds out that a peer's service connection is closed: [`nowserving_front::cluster::witness`] over NATS.

use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::StreamExt as _;
use nowserving_front::cluster::Out;
pub use nowserving_front::cluster::witness::Connections;
use nowserving_front::cluster::witness::Reply;
use nowserving_protocol::subject::Subjects;
use tokio::sync::watch;

use super::connect::ConnectionNumber;
use crate::clock::{monotonic_us, until};
use crate::shards::to_engine::ToEngine;

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
    let ended = this.number.ended(number);
    tokio::pin!(ended);
    loop {
        tokio::select! {
            biased;
            () = &mut ended => return true,
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
}

/// A connection to one server that asks for peers.
#[derive(Debug)]
pub struct Witness {
    /// This node.
    pub me: u64,
    pub client: Client,
    pub number: ConnectionNumber,
    pub subjects: Subjects,
    pub cluster: String,
    pub connections: watch::Receiver<Connections>,
    pub control: ToEngine,
}

/// Asks for all peers until the loop ends, and tells it of closed connections.
///
/// # Errors
/// The subscription cannot be made.
pub async fn watch(witness: Witness) -> anyhow::Result<()> {
    let inbox = witness.client.new_inbox();
    let mut replies = witness.client.subscribe(format!("{inbox}.*")).await?;
    let mut machine = nowserving_front::cluster::witness::Witness::new(witness.me);
    let mut out = Vec::new();
    loop {
        tokio::select! {
            () = until(machine.next_due()) => {
                let (now, by) = (monotonic_us(), witness.number.now());
                machine.on_time(now, by, &witness.connections.borrow(), &mut out);
            }
            reply = replies.next() => {
                let Some(reply) = reply else {
                    return Ok(());
                };
                if let Some(number) = question_of(&reply) {
                    let by = witness.number.now();
                    machine.on_reply(number, witness.read(&reply), by, &mut out);
                }
            }
        }
        for it in out.drain(..) {
            match it {
                Out::Engine(input) => {
                    if witness.control.send(input).is_err() {
                        return Ok(());
                    }
                }
                other => witness.ask(other, &inbox).await,
            }
        }
    }
}

/// The last word of the inbox.
fn question_of(reply: &Message) -> Option<u64> {
    reply.subject.rsplit('.').next()?.parse().ok()
}

impl Witness {
    async fn ask(&self, out: Out, inbox: &str) {
        let Out::AskForConnection {
            peer,
            connection,
            number,
        } = out
        else {
            return;
        };
        let (start, theirs) = (connection.start, connection.number);
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
