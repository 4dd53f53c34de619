//! A node with an empty disk asks whether its cluster exists, and the others answer:
//! [`nowserving_front::cluster::founding`] over NATS.

use anyhow::Context as _;
use async_nats::Client;
use async_nats::connection::State;
use futures::StreamExt as _;
use nowserving_engine::Standing;
use nowserving_engine::envelope::{Founder, PeerDisk};
use nowserving_front::cluster::founding::{Doubt, Founding, Member, Outcome};
use nowserving_front::cluster::{File, Out, members_file};
use tokio::sync::watch;

use super::neighbours;
use super::peers::{NatsLink, PeerList};
use crate::clock::{monotonic_us, until};
use crate::data_dir::{self, DataDir};
use crate::keys::Keys;
use crate::shards::to_engine::ToEngine;

const CLOSED: &str = "the connection to NATS is closed";

/// Waits until a node with an empty disk may take part, or knows that its cluster refuses it. `service` is the
/// connection on which users are served.
///
/// # Errors
/// Another cluster serves on the prefix, the connection is closed, or the refusal cannot be written down.
pub async fn begin(
    data: &mut DataDir,
    link: &NatsLink,
    keys: &Keys,
    me: &Founder,
    service: &Client,
) -> anyhow::Result<()> {
    let joined = match data.identity.joined {
        true => Some(data_dir::members_in(&data.path)?.identity()),
        false => None,
    };
    let mut founding = Founding::new(me.clone(), joined, &link.subjects, monotonic_us());
    let [others, answers] = founding.subjects(&link.subjects);
    let mut others = link.client.subscribe(others).await?;
    let mut answers = link.client.subscribe(answers).await?;
    link.client.flush().await?;
    let asking = neighbours::ask(service);
    tokio::pin!(asking);
    let (mut discovered, mut out) = (None, Vec::new());
    loop {
        tokio::select! {
            // Answers that are there come first.
            biased;
            answer = answers.next() => {
                let answer = answer.context(CLOSED)?;
                let asking = keys.in_use().asking();
                if let Some(outcome) = founding.on_answer(&answer.payload, &asking) {
                    return settle(data, outcome);
                }
            }
            () = until(founding.next_due()) => {
                let connected = link.client.connection_state() == State::Connected;
                let asking = keys.in_use().asking();
                let around = (&asking, &link.subjects);
                let decided = founding.on_time(monotonic_us(), connected, around, &mut out)?;
                if let Some(outcome) = decided {
                    return settle(data, outcome);
                }
            }
            asked = &mut asking, if discovered.is_none() => {
                discovered = Some(asked?);
                founding.discovery_asked(monotonic_us());
            }
            Some(answer) = neighbours::next_of(&mut discovered) => {
                founding.on_discovered(&answer.payload);
            }
            other = others.next() => {
                let other = other.context(CLOSED)?;
                let asking = keys.in_use().asking();
                founding.on_founder(&other.payload, (&asking, &link.subjects), &mut out);
            }
        }
        link.publish_all(&mut out).await?;
    }
}

fn settle(data: &mut DataDir, outcome: Outcome) -> anyhow::Result<()> {
    let Outcome::Refused { members, reason } = outcome else {
        return Ok(());
    };
    tracing::warn!(%reason, "the cluster exists, and this disk is empty");
    let members = members_file::write(&members.to_bytes());
    data_dir::write(&data.path, File::Members, &members)?;
    let reason = format!("the cluster refuses this node: {reason}");
    data.identity.lose_number(reason, data_dir::random_u64()?);
    Ok(data.write_identity()?)
}

/// A node that began with an empty disk goes on asking for a while.
///
/// # Errors
/// The connection is closed.
pub async fn go_on_asking(
    link: NatsLink,
    keys: Keys,
    me: Founder,
    list: watch::Receiver<PeerList>,
    engine: ToEngine,
) -> anyhow::Result<()> {
    let mut doubt = Doubt::new(me, monotonic_us());
    let subject = doubt.subject(&link.subjects);
    let mut answers = link.client.subscribe(subject).await?;
    let mut out = Vec::new();
    while !doubt.is_over(monotonic_us()) {
        tokio::select! {
            () = until(doubt.next_due()) => {
                let cluster_id = list.borrow().members.cluster_id;
                let asking = keys.in_use().asking();
                let around = (&asking, &link.subjects);
                doubt.on_time(monotonic_us(), cluster_id, around, &mut out);
                link.publish_all(&mut out).await?;
            }
            answer = answers.next() => {
                let answer = answer.context(CLOSED)?;
                let asking = keys.in_use().asking();
                doubt.on_answer(&answer.payload, &asking, &mut out);
                for it in out.drain(..) {
                    if let Out::Engine(input) = it && engine.send(input).is_err() {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// The node that answers.
pub struct Answering {
    pub id: u64,
    pub cluster: String,
    pub disk_id: u64,
    /// The disks of its peers.
    pub disks: watch::Receiver<Vec<PeerDisk>>,
    pub list: watch::Receiver<PeerList>,
    pub standing: watch::Receiver<Standing>,
}

/// Answers nodes that ask whether this node's cluster exists.
///
/// # Errors
/// The connection is closed.
pub async fn answer(link: NatsLink, keys: Keys, node: Answering) -> anyhow::Result<()> {
    let mut asking = link.client.subscribe(link.subjects.found()).await?;
    let mut out = Vec::new();
    while let Some(message) = asking.next().await {
        {
            let (list, disks) = (node.list.borrow(), node.disks.borrow());
            let member = Member {
                id: node.id,
                cluster: &node.cluster,
                disk_id: node.disk_id,
                members: &list.members,
                in_touch: node.standing.borrow().is_in_touch(),
            };
            let knows = |id| disks.iter().any(|it| it.node == id);
            let in_use = keys.in_use();
            let around = (&in_use.joining, &link.subjects);
            member.on_founder(&message.payload, knows, around, &mut out);
        }
        link.publish_all(&mut out).await?;
    }
    Ok(())
}
