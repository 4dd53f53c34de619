//! Asks discovery for other clusters that serve on this NATS: [`nowserving_front::cluster::neighbours`].

use async_nats::{Client, Message, Subscriber};
use futures::StreamExt as _;
use nowserving_engine::Standing;
use nowserving_front::cluster::Out;
use nowserving_front::cluster::neighbours::{Neighbours, SUBJECT};
use tokio::sync::watch;

use super::peers::{Origin, PeerList};
use crate::clock::{monotonic_us, until};
use crate::shards::to_engine::ToEngine;

/// Asks all nodes that serve. The answers count from here.
///
/// # Errors
/// The connection is closed.
pub async fn ask(client: &Client) -> anyhow::Result<Subscriber> {
    let inbox = client.new_inbox();
    let answers = client.subscribe(inbox.clone()).await?;
    client.publish_with_reply(SUBJECT, inbox, "".into()).await?;
    // While it is not connected, nobody could answer.
    client.flush().await?;
    Ok(answers)
}

/// The next message, once there is a subscription; `None`: it has ended.
pub async fn next_of(subscriber: &mut Option<Subscriber>) -> Option<Message> {
    match subscriber {
        Some(subscriber) => subscriber.next().await,
        None => std::future::pending().await,
    }
}

/// Reports what it finds, until the loop ends. `joined`: as in the node's identity.
///
/// # Errors
/// The connection is closed.
pub async fn run(
    client: Client,
    origin: Origin,
    joined: bool,
    list: watch::Receiver<PeerList>,
    mut standing: watch::Receiver<Standing>,
    engine: ToEngine,
) -> anyhow::Result<()> {
    let mut neighbours = Neighbours::new(origin, joined, monotonic_us());
    let (mut answers, mut out) = (None, Vec::new());
    loop {
        tokio::select! {
            biased;
            changed = standing.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                neighbours.on_standing(monotonic_us(), &standing.borrow_and_update());
            }
            () = until(neighbours.next_due()) => {
                if neighbours.asks(monotonic_us()) {
                    answers = Some(ask(&client).await?);
                    neighbours.asked(monotonic_us());
                } else {
                    answers = None;
                    let identity = list.borrow().members.identity();
                    let around = (identity.as_deref(), &*standing.borrow());
                    neighbours.on_time(monotonic_us(), around, &mut out);
                }
            }
            Some(answer) = next_of(&mut answers) => neighbours.on_answer(&answer.payload),
        }
        for it in out.drain(..) {
            if let Out::Engine(input) = it
                && engine.send(input).is_err()
            {
                return Ok(());
            }
        }
    }
}
