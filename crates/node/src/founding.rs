//! A node with an empty disk asks whether its cluster exists before it founds it with the other nodes of its
//! configuration. Without that, wiped nodes whose numbers were replaced could found a second, empty cluster under
//! the name of the first, as no frame of the remaining members reaches them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use futures::StreamExt as _;
use nowserving_engine::envelope::{self, Existing, Founder, FrameKey};
use nowserving_shard::members::Members;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::known_peers::KnownPeers;
use crate::nats::peers::{NatsLink, PeerList};

const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// All nodes ask, so none of them knows of a cluster. Others get this long to contradict.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(200);
/// Some nodes do not ask: they may know of the cluster, and be on their way.
const WAIT_FOR_ALL: Duration = Duration::from_secs(5);

/// The answer to a node with an empty disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It takes part in the cluster that its configuration describes, new or not.
    Begin,
    /// The cluster exists, and the node has lost its disk.
    Refused { members: Vec<u8>, reason: String },
}

/// The founders that this node knows of.
struct Founders<'a> {
    me: &'a Founder,
    asking: BTreeSet<u64>,
}

impl Founders<'_> {
    /// Whether this is another one.
    fn note(&mut self, other: &Founder) -> bool {
        let same = other.cluster == self.me.cluster && other.nodes == self.me.nodes;
        same && self.me.nodes.contains(&other.id) && self.asking.insert(other.id)
    }

    fn wait(&self) -> Duration {
        match self.me.nodes.iter().all(|id| self.asking.contains(id)) {
            true => WAIT_FOR_OTHERS,
            false => WAIT_FOR_ALL,
        }
    }
}

/// Asks whether the cluster exists.
///
/// # Errors
/// The connection is closed.
pub async fn ask(link: &NatsLink, key: &FrameKey, me: &Founder) -> anyhow::Result<Outcome> {
    let subjects = &link.subjects;
    let mut founders = Founders {
        me,
        asking: [me.id].into(),
    };
    let mut others = link.client.subscribe(subjects.found()).await?;
    let answers = subjects.found_answer(me.disk_id);
    let mut answers = link.client.subscribe(answers).await?;
    // A node that hears this one must be heard by it.
    link.client.flush().await?;
    let since = Instant::now();
    let mut ticks = tokio::time::interval(ASK_INTERVAL);
    loop {
        let found_one = tokio::select! {
            () = tokio::time::sleep_until(since + founders.wait()) => return Ok(Outcome::Begin),
            _ = ticks.tick() => true,
            other = others.next() => {
                let other = other.context("the connection to NATS is closed")?;
                let other = envelope::open(key, other.payload);
                other.is_ok_and(|other| founders.note(&other))
            }
            answer = answers.next() => {
                let answer = answer.context("the connection to NATS is closed")?;
                match envelope::open::<Existing>(key, answer.payload) {
                    Ok(existing) if existing.cluster != me.cluster => false,
                    Ok(existing) if existing.refused.is_empty() => return Ok(Outcome::Begin),
                    Ok(existing) => return Ok(Outcome::Refused {
                        members: existing.members.into(),
                        reason: existing.refused,
                    }),
                    Err(error) => {
                        tracing::warn!(%error, "an answer of the cluster is not taken");
                        false
                    }
                }
            }
        };
        if found_one {
            let sealed = envelope::seal(key, me);
            link.client.publish(subjects.found(), sealed.into()).await?;
        }
    }
}

/// The node that answers.
pub struct Member {
    pub id: u64,
    pub cluster: String,
    pub data_dir: PathBuf,
    /// The nodes that the cluster began with.
    pub first: Vec<u64>,
    pub list: watch::Receiver<PeerList>,
}

impl Member {
    fn answer(&self, founder: &Founder) -> anyhow::Result<Existing> {
        let mut members = self.list.borrow().members.clone();
        if members.version == 0 {
            members = Members::begin(&self.first, 0);
        }
        let id = founder.id;
        let was_here = id == self.id || KnownPeers::open(&self.data_dir)?.knows(id);
        let refused = if !members.nodes.contains_key(&id) {
            format!("node {id} is no member of the cluster any more")
        } else if was_here {
            format!("node {id} was here before, with another disk")
        } else {
            String::new()
        };
        Ok(Existing {
            cluster: self.cluster.clone(),
            refused,
            members: members.encode().into(),
        })
    }
}

/// Answers nodes that ask whether this node's cluster exists.
///
/// # Errors
/// The connection is closed, or the known peers cannot be read.
pub async fn answer(link: NatsLink, key: FrameKey, member: Member) -> anyhow::Result<()> {
    let mut asking = link.client.subscribe(link.subjects.found()).await?;
    while let Some(message) = asking.next().await {
        match envelope::open::<Founder>(&key, message.payload) {
            Ok(founder) if founder.cluster == member.cluster => {
                let sealed = envelope::seal(&key, &member.answer(&founder)?);
                let subject = link.subjects.found_answer(founder.disk_id);
                link.client.publish(subject, sealed.into()).await?;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a node that would found a cluster is not heard"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn founder(id: u64) -> Founder {
        Founder {
            disk_id: 100 + id,
            id,
            cluster: "c".to_owned(),
            nodes: vec![1, 2, 3],
        }
    }

    #[test]
    fn a_cluster_is_founded_at_once_only_if_all_its_nodes_ask() {
        let me = founder(1);
        let mut founders = Founders {
            me: &me,
            asking: [1].into(),
        };
        assert!(founders.note(&founder(2)) && !founders.note(&founder(2)));
        let of_another = Founder {
            cluster: "d".to_owned(),
            ..founder(3)
        };
        let with_others = Founder {
            nodes: vec![3, 4],
            ..founder(3)
        };
        for other in [of_another, with_others, founder(4)] {
            assert!(!founders.note(&other));
        }
        assert_eq!(founders.wait(), WAIT_FOR_ALL);
        assert!(founders.note(&founder(3)));
        assert_eq!(founders.wait(), WAIT_FOR_OTHERS);
    }

    #[test]
    fn a_member_that_was_never_here_may_begin_and_no_other_node() {
        let dir = tempfile::tempdir().unwrap();
        let mut known = KnownPeers::open(dir.path()).unwrap();
        let frame = envelope::Frame {
            from: 2,
            disk_id: 20,
            boots: 1,
            starts: vec![7],
            ..envelope::Frame::default()
        };
        known.note(&frame).unwrap();
        let answers = |members: Members| {
            let list = PeerList {
                members,
                ..PeerList::default()
            };
            let (_sender, list) = watch::channel(list);
            let member = Member {
                id: 1,
                cluster: "c".to_owned(),
                data_dir: dir.path().to_owned(),
                first: vec![1, 2, 3],
                list,
            };
            [1, 2, 3].map(|id| member.answer(&founder(id)).unwrap().refused.is_empty())
        };
        assert_eq!(answers(Members::default()), [false, false, true]);
        assert_eq!(answers(Members::begin(&[1, 4, 5], 0)), [false; 3]);
    }
}
