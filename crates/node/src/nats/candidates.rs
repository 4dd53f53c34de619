//! Nodes that ask to be added, and the members that hear them: [`nowserving_front::cluster::joining`] over NATS.

use anyhow::Context as _;
use futures::StreamExt as _;
use nowserving_engine::Standing;
use nowserving_engine::envelope::{Candidate, Welcome};
use nowserving_front::cluster::Out;
use nowserving_front::cluster::joining::{self, Asking, Renumbering};
use tokio::sync::{mpsc, watch};

use super::neighbours;
use super::peers::{NatsLink, PeerList};
use crate::clock::{monotonic_us, until};
use crate::data_dir::{self, DataDir};
use crate::keys::Keys;
use crate::shards::to_engine::ToEngine;

/// Asks until the cluster has added this node.
///
/// # Errors
/// The connection is closed.
pub async fn ask(link: &NatsLink, keys: &Keys, candidate: Candidate) -> anyhow::Result<Welcome> {
    let mut asking = Asking::new(candidate, monotonic_us());
    let subject = asking.subject(&link.subjects);
    let mut answers = link.client.subscribe(subject).await?;
    let mut out = Vec::new();
    loop {
        tokio::select! {
            () = until(asking.next_due()) => {
                let keys = keys.in_use().asking();
                asking.on_time(monotonic_us(), (&keys, &link.subjects), &mut out);
                link.publish_all(&mut out).await?;
            }
            answer = answers.next() => {
                let answer = answer.context("the connection to NATS is closed")?;
                let keys = keys.in_use().asking();
                if let Some(welcome) = asking.on_answer(&answer.payload, &keys) {
                    return Ok(welcome);
                }
            }
        }
    }
}

/// Asks for a new number while this node needs one, until it gets it.
///
/// # Errors
/// The connection is closed, or the identity cannot be written down.
pub async fn renumber(
    data: &DataDir,
    mut standing: watch::Receiver<Standing>,
    list: watch::Receiver<PeerList>,
    link: &NatsLink,
    keys: &Keys,
) -> anyhow::Result<Welcome> {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let drawn = data_dir::random_u64()?;
    let mut node = Renumbering::new(data.identity.clone(), drawn, version);
    let (mut answers, mut out) = (None, Vec::new());
    loop {
        tokio::select! {
            // If it is refused no longer, no answer counts.
            biased;
            changed = standing.changed() => {
                if changed.is_err() {
                    // The loop ends, and with it the node.
                    return std::future::pending().await;
                }
                let (standing, list) = (standing.borrow_and_update(), list.borrow());
                node.on_standing(monotonic_us(), &standing, &list.members, &mut out);
            }
            () = until(node.next_due()) => {
                let keys = keys.in_use().asking();
                let around = (&keys, &link.subjects);
                node.on_time(monotonic_us(), &list.borrow().members, around, &mut out);
            }
            Some(answer) = neighbours::next_of(&mut answers) => {
                let keys = keys.in_use().asking();
                if let Some(welcome) = node.on_answer(&answer.payload, &keys) {
                    return Ok(welcome);
                }
            }
        }
        for it in out.drain(..) {
            match it {
                Out::Write(file, bytes) => data_dir::write(&data.path, file, &bytes)?,
                Out::Subscribe(subject) => answers = Some(link.client.subscribe(subject).await?),
                other => link.publish(other).await?,
            }
        }
    }
}

/// Hands the candidates that ask to the engine.
///
/// # Errors
/// The connection is closed.
pub async fn hear(link: NatsLink, keys: Keys, engine: ToEngine) -> anyhow::Result<()> {
    let mut asking = link.client.subscribe(link.subjects.join()).await?;
    while let Some(message) = asking.next().await {
        if let Some(input) = joining::candidate(&message.payload, &keys.in_use().joining) {
            // Fails only while the node ends.
            let _ = engine.send(input);
        }
    }
    Ok(())
}

/// Tells candidates that they were added, until the loop ends.
///
/// # Errors
/// The connection is closed.
pub async fn welcome(
    link: NatsLink,
    keys: Keys,
    mut welcomes: mpsc::Receiver<Welcome>,
) -> anyhow::Result<()> {
    while let Some(welcome) = welcomes.recv().await {
        let in_use = keys.in_use();
        let welcome = joining::welcome(&welcome, (&in_use.joining, &link.subjects));
        link.publish(welcome).await?;
    }
    Ok(())
}
