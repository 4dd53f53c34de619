//! A node with an empty disk asks whether its cluster exists before it founds it with the other nodes of its
//! configuration. Without that, wiped nodes whose numbers were replaced could found a second, empty cluster under
//! the name of the first, as no frame of the remaining members reaches them.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;
use async_nats::connection::State;
use async_nats::{Client, Subscriber};
use crossbeam_channel::Sender;
use futures::StreamExt as _;
use nowserving_engine::envelope::{self, Existing, Founder, FrameKey, PeerDisk};
use nowserving_engine::{Input, Standing};
use nowserving_front::cluster::{File, members_file};
use nowserving_shard::members::Members;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::data_dir::{self, DataDir};
use crate::keys::Keys;
use crate::nats::neighbours::{self, Metadata};
use crate::nats::peers::{NatsLink, PeerList};

const ASK_INTERVAL: Duration = Duration::from_millis(100);
/// A node that has begun asks this often …
const ASK_AGAIN_INTERVAL: Duration = Duration::from_secs(1);
/// … and for this long: after that users rely on its cluster, and the word of another one must not stop it.
const ASK_AGAIN_FOR: Duration = Duration::from_secs(600);
/// All nodes ask or agree, so none of them knows of a cluster. Others get this long to contradict.
const WAIT_FOR_OTHERS: Duration = Duration::from_millis(200);
/// Some nodes do not ask: they may know of the cluster, and be on their way.
const WAIT_FOR_ALL: Duration = Duration::from_secs(5);

/// The answer to a node with an empty disk.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It takes part in the cluster that its configuration describes, new or not.
    Begin,
    /// The cluster exists, and the node has lost its disk.
    Refused { members: Members, reason: String },
}

/// What a node with an empty disk has heard.
struct Founders<'a> {
    me: &'a Founder,
    /// The nodes that ask too, or say that this one may begin.
    agree: BTreeSet<u64>,
    /// The identities of the clusters of those that say so.
    identities: BTreeSet<String>,
    /// The nodes that serve on its prefix; `None` until they were asked.
    serving: Option<Vec<Metadata>>,
}

impl Founders<'_> {
    fn new(me: &Founder) -> Founders<'_> {
        Founders {
            me,
            agree: [me.id].into(),
            identities: BTreeSet::new(),
            serving: None,
        }
    }

    /// A node of another cluster that serves on this one's prefix. One of the same name counts as such until a member
    /// of that cluster has answered.
    fn other(&self) -> Option<&Metadata> {
        let mut serving = self.serving.iter().flatten();
        serving.find(|it| !it.is_of(&self.me.cluster, &self.identities))
    }

    /// Once there is no more to hear.
    fn outcome(&self) -> anyhow::Result<Outcome> {
        if let Some(other) = self.other() {
            return Err(other.keeps_out(&self.me.cluster));
        }
        let several: Vec<&str> = self.identities.iter().map(String::as_str).collect();
        anyhow::ensure!(
            several.len() < 2,
            "this node has an empty disk, and there are several clusters of the name {:?} with this key (identities {}): stop all \
             but one, or give them other names",
            self.me.cluster,
            several.join(" and ")
        );
        Ok(Outcome::Begin)
    }

    /// Whether this is another one.
    fn note(&mut self, other: &Founder) -> bool {
        let same = other.cluster == self.me.cluster && other.nodes == self.me.nodes;
        same && self.me.nodes.contains(&other.id) && self.agree.insert(other.id)
    }

    fn wait(&self) -> Duration {
        let no_more_to_hear = match self.other() {
            Some(other) => other.cluster() != self.me.cluster,
            None => self.me.nodes.iter().all(|id| self.agree.contains(id)),
        };
        match no_more_to_hear {
            true => WAIT_FOR_OTHERS,
            false => WAIT_FOR_ALL,
        }
    }
}

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
    let serving = neighbours::on_prefix(service, link.subjects.prefix());
    if data.identity.joined {
        // With the members of its cluster.
        let mut founders = Founders::new(me);
        let identity = data_dir::members_in(&data.path)?.identity();
        founders.identities.extend(identity);
        founders.serving = Some(serving.await?);
        return founders
            .other()
            .map_or(Ok(()), |it| Err(it.keeps_out(&me.cluster)));
    }
    match ask(link, keys, me, serving).await? {
        Outcome::Begin => Ok(()),
        Outcome::Refused { members, reason } => {
            tracing::warn!(%reason, "the cluster exists, and this disk is empty");
            let reason = format!("the cluster refuses this node: {reason}");
            let members = members_file::write(&members.to_bytes());
            data_dir::write(&data.path, File::Members, &members)?;
            data.identity.lose_number(reason, data_dir::random_u64()?);
            Ok(data.write_identity()?)
        }
    }
}

/// Asks whether the cluster exists, with each key, as it does not know which one is in force. One refusal outweighs any
/// number of permissions, and another cluster on the prefix these.
///
/// # Errors
/// Another cluster serves on the prefix, or the connection is closed.
async fn ask(
    link: &NatsLink,
    keys: &Keys,
    me: &Founder,
    serving: impl Future<Output = anyhow::Result<Vec<Metadata>>>,
) -> anyhow::Result<Outcome> {
    tokio::pin!(serving);
    let subjects = &link.subjects;
    let mut founders = Founders::new(me);
    let mut others = link.client.subscribe(subjects.found()).await?;
    let mut answers = Answers::to(link, keys, me).await?;
    // A node that hears this one must be heard by it.
    link.client.flush().await?;
    let mut since = Instant::now();
    let mut ticks = tokio::time::interval(ASK_INTERVAL);
    loop {
        let found_one = tokio::select! {
            // Answers that are there come first.
            biased;
            answer = answers.next() => {
                let (members, answer) = answer?;
                if !answer.refused.is_empty() {
                    return Ok(Outcome::Refused { members, reason: answer.refused });
                }
                founders.agree.insert(answer.from);
                founders.identities.extend(members.identity());
                false
            }
            serving = &mut serving, if founders.serving.is_none() => {
                founders.serving = Some(serving?);
                false
            }
            other = others.next() => {
                let other = other.context("the connection to NATS is closed")?;
                let keys = keys.in_use().asking();
                let other = keys.open(other.payload);
                other.is_ok_and(|(other, _)| founders.note(&other))
            }
            _ = ticks.tick() => {
                if link.client.connection_state() != State::Connected {
                    // Nobody could answer.
                    since = Instant::now();
                }
                true
            }
            () = tokio::time::sleep_until(since + founders.wait()), if founders.serving.is_some() => {
                return founders.outcome();
            }
        };
        if found_one {
            publish(link, keys, me).await?;
        }
    }
}

/// A node that began with an empty disk goes on asking for a while, as all who knew of the cluster may have been away.
/// Members of another cluster of the same name go to the engine.
///
/// # Errors
/// The connection is closed.
pub async fn go_on_asking(
    link: NatsLink,
    keys: Keys,
    mut me: Founder,
    list: watch::Receiver<PeerList>,
    engine: Sender<Input>,
) -> anyhow::Result<()> {
    let mut answers = Answers::to(&link, &keys, &me).await?;
    let mut ticks = tokio::time::interval(ASK_AGAIN_INTERVAL);
    let end = tokio::time::sleep(ASK_AGAIN_FOR);
    tokio::pin!(end);
    loop {
        tokio::select! {
            () = &mut end => return Ok(()),
            _ = ticks.tick() => {
                me.cluster_id = list.borrow().members.cluster_id;
                if me.cluster_id != 0 {
                    publish(&link, &keys, &me).await?;
                }
            }
            answer = answers.next() => {
                let (members, _) = answer?;
                if engine.send(Input::OtherCluster(Box::new(members))).is_err() {
                    return Ok(());
                }
            }
        }
    }
}

async fn publish(link: &NatsLink, keys: &Keys, me: &Founder) -> anyhow::Result<()> {
    for key in keys.in_use().asking().each() {
        let sealed = envelope::seal(key, me);
        let subject = link.subjects.found();
        link.client.publish(subject, sealed.into()).await?;
    }
    Ok(())
}

/// The answers to one node.
struct Answers<'a> {
    incoming: Subscriber,
    keys: &'a Keys,
    me: Founder,
}

impl Answers<'_> {
    async fn to<'a>(link: &NatsLink, keys: &'a Keys, me: &Founder) -> anyhow::Result<Answers<'a>> {
        let subject = link.subjects.found_answer(me.disk_id);
        Ok(Answers {
            incoming: link.client.subscribe(subject).await?,
            keys,
            me: me.clone(),
        })
    }

    async fn next(&mut self) -> anyhow::Result<(Members, Existing)> {
        loop {
            let answer = self.incoming.next().await;
            let answer = answer.context("the connection to NATS is closed")?;
            let keys = self.keys.in_use().asking();
            let existing = keys.open::<Existing>(answer.payload);
            let existing = existing.inspect_err(|error| {
                tracing::warn!(%error, "an answer of the cluster is not taken");
            });
            let Ok((existing, _)) = existing else {
                continue;
            };
            let to_me = existing.disk_id == self.me.disk_id && existing.cluster == self.me.cluster;
            if let Some(members) = Members::from_bytes(&existing.members).filter(|_| to_me) {
                return Ok((members, existing));
            }
        }
    }
}

/// The node that answers.
pub struct Member {
    pub id: u64,
    pub cluster: String,
    pub disk_id: u64,
    /// The disks of its peers.
    pub disks: watch::Receiver<Vec<PeerDisk>>,
    pub list: watch::Receiver<PeerList>,
    pub standing: watch::Receiver<Standing>,
}

impl Member {
    /// `None`: this node cannot tell.
    fn answer(&self, founder: &Founder) -> Option<Existing> {
        let members = self.list.borrow().members.clone();
        if members.version == 0 || founder.disk_id == self.disk_id {
            return None;
        }
        let in_touch = self.standing.borrow().is_in_touch();
        let refused = match founder.cluster_id {
            0 => self.refused(founder.id, &members),
            id if id == members.cluster_id => return None,
            _ => "the cluster existed before it was founded by this node".to_owned(),
        };
        // A node that waits knows of earlier members, but not of all later ones.
        let may_say = in_touch || (founder.cluster_id == 0 && !refused.is_empty());
        may_say.then(|| Existing {
            cluster: self.cluster.clone(),
            refused,
            members: members.to_bytes().into(),
            disk_id: founder.disk_id,
            from: self.id,
        })
    }

    /// Why node `id` may not begin with an empty disk. Empty: it may.
    fn refused(&self, id: u64, members: &Members) -> String {
        let was_here = id == self.id || self.disks.borrow().iter().any(|it| it.node == id);
        if !members.nodes.contains_key(&id) {
            format!("node {id} is no member of the cluster any more")
        } else if was_here {
            format!("node {id} was here before, with another disk")
        } else {
            String::new()
        }
    }
}

/// Answers nodes that ask whether this node's cluster exists.
///
/// # Errors
/// The connection is closed.
pub async fn answer(link: NatsLink, keys: Keys, member: Member) -> anyhow::Result<()> {
    let mut asking = link.client.subscribe(link.subjects.found()).await?;
    while let Some(message) = asking.next().await {
        let keys = keys.in_use();
        match keys.joining.open::<Founder>(message.payload) {
            // With the key that it has.
            Ok((founder, key)) if founder.cluster == member.cluster => {
                // It asks again.
                if let Err(error) = answer_one(&link, key, &member, &founder).await {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "a node that would found a cluster is not answered");
                }
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(%error, "a node that would found a cluster is not heard"),
        }
    }
    Ok(())
}

async fn answer_one(
    link: &NatsLink,
    key: &FrameKey,
    member: &Member,
    founder: &Founder,
) -> anyhow::Result<()> {
    if let Some(existing) = member.answer(founder) {
        let sealed = envelope::seal(key, &existing);
        let subject = link.subjects.found_answer(founder.disk_id);
        link.client.publish(subject, sealed.into()).await?;
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
            cluster_id: 0,
        }
    }

    #[test]
    fn a_cluster_is_founded_at_once_only_if_all_its_nodes_ask() {
        let me = founder(1);
        let mut founders = Founders::new(&me);
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

    /// Otherwise it would belong to the one whose frame comes first.
    #[test]
    fn a_node_begins_beside_one_cluster_of_its_name_at_most() {
        let me = founder(1);
        let mut founders = Founders::new(&me);
        assert_eq!(founders.outcome().unwrap(), Outcome::Begin);
        founders.identities.insert("a1".to_owned());
        assert_eq!(founders.outcome().unwrap(), Outcome::Begin);
        founders.identities.insert("b2".to_owned());
        let error = founders.outcome().unwrap_err().to_string();
        assert!(error.contains("identities a1 and b2"), "{error}");
    }

    /// Node 1. Node 2 was here.
    fn member(members: Members, standing: Standing) -> Member {
        let second = PeerDisk {
            node: 2,
            ..PeerDisk::default()
        };
        let list = PeerList {
            members,
            ..PeerList::default()
        };
        Member {
            id: 1,
            cluster: "c".to_owned(),
            disk_id: 10,
            disks: watch::channel(vec![second]).1,
            list: watch::channel(list).1,
            standing: watch::channel(standing).1,
        }
    }

    /// Node 1's answers to nodes 1, 2, 3: whether each may begin.
    fn answers(members: Members, standing: Standing, cluster_id: u64) -> [Option<bool>; 3] {
        let member = member(members, standing);
        [1, 2, 3].map(|id| {
            let founder = Founder {
                cluster_id,
                ..founder(id)
            };
            let answer = member.answer(&founder)?;
            assert_eq!(answer.disk_id, founder.disk_id);
            Some(answer.refused.is_empty())
        })
    }

    /// Sealed with the cluster's key, whatever is in it.
    #[test]
    fn fuzz_a_founder() {
        use prost::Message as _;

        let later = Founder {
            cluster_id: 8,
            ..founder(3)
        };
        let seeds = [founder(2), later].map(|founder| founder.encode_to_vec());
        nowserving_fuzz::target!(seeds.into(), |bytes| {
            let Ok(other) = Founder::decode(bytes) else {
                return;
            };
            let me = founder(1);
            let mut founders = Founders::new(&me);
            assert!(!founders.note(&other) || [2, 3].contains(&other.id));
            let members = Members::begin(&[1, 2, 3], 9);
            let member = member(members, Standing::InTouch);
            if let Some(answer) = member.answer(&other) {
                assert_eq!(answer.disk_id, other.disk_id);
            }
        });
    }

    #[test]
    fn a_member_that_was_never_here_may_begin_and_no_other_node() {
        let waiting = || Standing::Waiting(String::new());
        let of_three = || Members::begin(&[1, 2, 3], 9);
        let no = Some(false);
        for (members, standing, expected) in [
            (of_three(), Standing::InTouch, [no, no, Some(true)]),
            (of_three(), waiting(), [no, no, None]),
            (Members::begin(&[1, 4, 5], 9), waiting(), [no; 3]),
            (Members::default(), Standing::InTouch, [None; 3]),
        ] {
            assert_eq!(answers(members, standing, 0), expected);
        }
    }

    #[test]
    fn a_node_that_has_begun_is_told_of_another_cluster_by_nodes_that_take_part() {
        let members = || Members::begin(&[1, 2, 3], 9);
        let waiting = Standing::Waiting(String::new());
        assert_eq!(answers(members(), Standing::InTouch, 8), [Some(false); 3]);
        assert_eq!(answers(members(), Standing::InTouch, 9), [None; 3]);
        assert_eq!(answers(members(), waiting, 8), [None; 3]);
    }
}
