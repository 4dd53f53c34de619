//! Nodes that ask to be added, on both sides: the node that asks, and the members that hear it.

use std::time::Duration;

use anyhow::Context as _;
use crossbeam_channel::Sender;
use futures::StreamExt as _;
use nowserving_engine::Input;
use nowserving_engine::envelope::{self, Candidate, Welcome};
use tokio::sync::mpsc;

use super::peers::NatsLink;
use crate::keys::Keys;

/// A node asks this often.
const INTERVAL: Duration = Duration::from_secs(1);

/// Asks until the cluster has added this node, with each key, as it does not know which one is in force.
///
/// # Errors
/// The connection is closed.
pub async fn ask(link: &NatsLink, keys: &Keys, candidate: &Candidate) -> anyhow::Result<Welcome> {
    let subject = link.subjects.welcome(candidate.disk_id);
    let mut answers = link.client.subscribe(subject).await?;
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                for key in keys.in_use().asking().each() {
                    let sealed = envelope::seal(key, candidate);
                    link.client.publish(link.subjects.join(), sealed.into()).await?;
                }
            }
            answer = answers.next() => {
                let answer = answer.context("the connection to NATS is closed")?;
                match keys.in_use().asking().open::<Welcome>(answer.payload) {
                    Ok((welcome, _)) if welcome.disk_id == candidate.disk_id => return Ok(welcome),
                    Ok(_) => {}
                    Err(error) => tracing::warn!(%error, "an answer of the cluster is not taken"),
                }
            }
        }
    }
}

/// Hands the candidates that ask to the engine: those that have the key in force, as without it one could take no part.
///
/// # Errors
/// The connection is closed.
pub async fn hear(link: NatsLink, keys: Keys, inputs: Sender<Input>) -> anyhow::Result<()> {
    let mut asking = link.client.subscribe(link.subjects.join()).await?;
    while let Some(message) = asking.next().await {
        let keys = keys.in_use();
        match envelope::open::<Candidate>(keys.joining.current(), message.payload) {
            // Full: it asks again.
            Ok(candidate) => drop(inputs.try_send(Input::Candidate(candidate))),
            Err(error) => tracing::debug!(%error, "a node that asks to be added is not heard"),
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
        let subject = link.subjects.welcome(welcome.disk_id);
        let sealed = envelope::seal(keys.in_use().joining.current(), &welcome);
        link.client.publish(subject, sealed.into()).await?;
    }
    Ok(())
}
