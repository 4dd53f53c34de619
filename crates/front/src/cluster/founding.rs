//! A node with an empty disk asks whether its cluster exists before it founds it with the other nodes of its
//! configuration. Without that, wiped nodes whose numbers were replaced could found a second, empty cluster under
//! the name of the first, as no frame of the remaining members reaches them.

use std::collections::BTreeSet;

use bytes::Bytes;
use nowserving_engine::Input;
use nowserving_engine::envelope::{self, Existing, Founder, FrameKeys};
use nowserving_protocol::subject::Subjects;
use nowserving_shard::clock::Micros;
use nowserving_shard::members::Members;

use super::Out;
use super::neighbours::{Metadata, Question};

const ASK_INTERVAL_US: Micros = 100_000;
/// A node that has begun asks this often …
const ASK_AGAIN_INTERVAL_US: Micros = 1_000_000;
/// … and for this long: after that users rely on its cluster, and the word of another one must not stop it.
const ASK_AGAIN_FOR_US: Micros = 600_000_000;
/// All nodes ask or agree, so none of them knows of a cluster. Others get this long to contradict.
const WAIT_FOR_OTHERS_US: Micros = 200_000;
/// Some nodes do not ask: they may know of the cluster, and be on their way.
const WAIT_FOR_ALL_US: Micros = 5_000_000;

/// The answer to a node with an empty disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It takes part in the cluster that its configuration describes, new or not.
    Begin,
    /// The cluster exists, and the node has lost its disk.
    Refused { members: Members, reason: String },
}

/// A node cannot begin: another cluster serves on the prefix, or there are two of its name.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct CannotBegin(String);

/// A node with an empty disk, and what it has heard. The keys that it is handed are those of a node that does not know
/// which one is in force.
#[derive(Debug)]
pub struct Founding {
    me: Founder,
    /// `false`: it joined its cluster, and looks only for another one on its prefix.
    asks: bool,
    /// The nodes that ask too, or say that this one may begin.
    agree: BTreeSet<u64>,
    /// The identities of the clusters of those that say so.
    identities: BTreeSet<String>,
    prefix: String,
    question: Question,
    /// The nodes that serve on its prefix; `None` until they were asked.
    serving: Option<Vec<Metadata>>,
    /// What it waits for counts from here.
    since: Micros,
    asks_at: Micros,
}

impl Founding {
    /// `joined`: the identity of the cluster that the node joined before it got anything of it, if it did.
    #[must_use]
    pub fn new(
        me: Founder,
        joined: Option<Option<String>>,
        subjects: &Subjects,
        now: Micros,
    ) -> Founding {
        Founding {
            asks: joined.is_none(),
            agree: [me.id].into(),
            identities: joined.flatten().into_iter().collect(),
            prefix: subjects.prefix().to_owned(),
            question: Question::default(),
            serving: None,
            since: now,
            asks_at: now,
            me,
        }
    }

    /// Where others ask, and where the answers to this node come. Subscribed to before the first question: a node that
    /// hears this one must be heard by it.
    #[must_use]
    pub fn subjects(&self, subjects: &Subjects) -> [String; 2] {
        [subjects.found(), subjects.found_answer(self.me.disk_id)]
    }

    /// Another node asks.
    pub fn on_founder(
        &mut self,
        payload: &Bytes,
        (keys, subjects): (&FrameKeys, &Subjects),
        out: &mut Vec<Out>,
    ) {
        let other = keys.open(payload.clone());
        if self.asks && other.is_ok_and(|(other, _)| self.note(&other)) {
            ask(&self.me, keys, subjects, out);
        }
    }

    /// A member of the cluster answers. One refusal outweighs any number of permissions.
    pub fn on_answer(&mut self, payload: &Bytes, keys: &FrameKeys) -> Option<Outcome> {
        let (members, answer) = answer_to(&self.me, payload, keys).filter(|_| self.asks)?;
        if !answer.refused.is_empty() {
            let reason = answer.refused;
            return Some(Outcome::Refused { members, reason });
        }
        self.agree.insert(answer.from);
        self.identities.extend(members.identity());
        None
    }

    /// The question to discovery has reached the server.
    pub fn discovery_asked(&mut self, now: Micros) {
        self.question.asked(now);
    }

    pub fn on_discovered(&mut self, payload: &[u8]) {
        self.question.on_answer(payload);
    }

    /// Asks, and decides once there is no more to hear. What has come is handed in before. `connected`: otherwise nobody
    /// could answer.
    ///
    /// # Errors
    /// [`CannotBegin`].
    pub fn on_time(
        &mut self,
        now: Micros,
        connected: bool,
        (keys, subjects): (&FrameKeys, &Subjects),
        out: &mut Vec<Out>,
    ) -> Result<Option<Outcome>, CannotBegin> {
        if let Some(mut found) = self.question.over(now) {
            found.retain(|it| it.prefix() == self.prefix);
            self.serving = Some(found);
        }
        if self.serving.is_some() && now >= self.since + self.wait_us() {
            return self.outcome().map(Some);
        }
        if self.asks && now >= self.asks_at {
            if !connected {
                self.since = now;
            }
            self.asks_at = now + ASK_INTERVAL_US;
            ask(&self.me, keys, subjects, out);
        }
        Ok(None)
    }

    #[must_use]
    pub fn next_due(&self) -> Micros {
        let asks_at = if self.asks { self.asks_at } else { Micros::MAX };
        let decides_at = match self.serving {
            Some(_) => self.since + self.wait_us(),
            None => self.question.next_due(),
        };
        asks_at.min(decides_at)
    }

    /// A node of another cluster that serves on this one's prefix. One of the same name counts as such until a member
    /// of that cluster has answered.
    fn other(&self) -> Option<&Metadata> {
        let mut serving = self.serving.iter().flatten();
        serving.find(|it| !it.is_of(&self.me.cluster, &self.identities))
    }

    /// Once there is no more to hear.
    fn outcome(&self) -> Result<Outcome, CannotBegin> {
        if let Some(other) = self.other() {
            return Err(CannotBegin(other.keeps_out(&self.me.cluster)));
        }
        let several: Vec<&str> = self.identities.iter().map(String::as_str).collect();
        if several.len() > 1 {
            return Err(CannotBegin(format!(
                "this node has an empty disk, and there are several clusters of the name {:?} with this key (identities {}): stop all \
                 but one, or give them other names",
                self.me.cluster,
                several.join(" and ")
            )));
        }
        Ok(Outcome::Begin)
    }

    /// Whether this is another one.
    fn note(&mut self, other: &Founder) -> bool {
        let same = other.cluster == self.me.cluster && other.nodes == self.me.nodes;
        same && self.me.nodes.contains(&other.id) && self.agree.insert(other.id)
    }

    fn wait_us(&self) -> Micros {
        if !self.asks {
            return 0;
        }
        let no_more_to_hear = match self.other() {
            Some(other) => other.cluster() != self.me.cluster,
            None => self.me.nodes.iter().all(|id| self.agree.contains(id)),
        };
        match no_more_to_hear {
            true => WAIT_FOR_OTHERS_US,
            false => WAIT_FOR_ALL_US,
        }
    }
}

/// A node that began with an empty disk goes on asking for a while, as all who knew of the cluster may have been away.
#[derive(Debug)]
pub struct Doubt {
    me: Founder,
    asks_at: Micros,
    ends_at: Micros,
}

impl Doubt {
    #[must_use]
    pub fn new(me: Founder, now: Micros) -> Doubt {
        Doubt {
            me,
            asks_at: now,
            ends_at: now + ASK_AGAIN_FOR_US,
        }
    }

    /// Where the answers come.
    #[must_use]
    pub fn subject(&self, subjects: &Subjects) -> String {
        subjects.found_answer(self.me.disk_id)
    }

    /// Asks when it is due. `cluster_id`: the identity of the cluster that it is in; 0: it knows none yet.
    pub fn on_time(
        &mut self,
        now: Micros,
        cluster_id: u64,
        (keys, subjects): (&FrameKeys, &Subjects),
        out: &mut Vec<Out>,
    ) {
        if now < self.asks_at {
            return;
        }
        if self.is_over(now) {
            self.asks_at = Micros::MAX;
            return;
        }
        self.asks_at = now + ASK_AGAIN_INTERVAL_US;
        self.me.cluster_id = cluster_id;
        if cluster_id != 0 {
            ask(&self.me, keys, subjects, out);
        }
    }

    /// Members of another cluster of the same name go to the engine.
    pub fn on_answer(&self, payload: &Bytes, keys: &FrameKeys, out: &mut Vec<Out>) {
        if let Some((members, _)) = answer_to(&self.me, payload, keys) {
            out.push(Out::Engine(Input::OtherCluster(Box::new(members))));
        }
    }

    #[must_use]
    pub fn is_over(&self, now: Micros) -> bool {
        now >= self.ends_at
    }

    #[must_use]
    pub fn next_due(&self) -> Micros {
        self.asks_at
    }
}

/// With each key.
fn ask(me: &Founder, keys: &FrameKeys, subjects: &Subjects, out: &mut Vec<Out>) {
    out.extend(keys.each().map(|key| Out::Publish {
        subject: subjects.found(),
        payload: envelope::seal(key, me).into(),
    }));
}

fn answer_to(me: &Founder, payload: &Bytes, keys: &FrameKeys) -> Option<(Members, Existing)> {
    let existing = keys.open::<Existing>(payload.clone());
    let existing = existing.inspect_err(|error| {
        tracing::warn!(%error, "an answer of the cluster is not taken");
    });
    let (existing, _) = existing.ok()?;
    let to_me = existing.disk_id == me.disk_id && existing.cluster == me.cluster;
    let members = Members::from_bytes(&existing.members).filter(|_| to_me)?;
    Some((members, existing))
}

/// The node that answers.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    pub id: u64,
    pub cluster: &'a str,
    pub disk_id: u64,
    pub members: &'a Members,
    /// It takes part.
    pub in_touch: bool,
}

impl Member<'_> {
    /// Answers a node that asks whether the cluster exists, with the key that it has. `knows`: whether a peer was here.
    pub fn on_founder(
        &self,
        payload: &Bytes,
        knows: impl Fn(u64) -> bool,
        (joining, subjects): (&FrameKeys, &Subjects),
        out: &mut Vec<Out>,
    ) {
        let (founder, key) = match joining.open::<Founder>(payload.clone()) {
            Ok(opened) => opened,
            Err(error) => {
                return tracing::debug!(%error, "a node that would found a cluster is not heard");
            }
        };
        if founder.cluster != self.cluster {
            return;
        }
        out.extend(self.answer(&founder, knows).map(|existing| Out::Publish {
            subject: subjects.found_answer(founder.disk_id),
            payload: envelope::seal(key, &existing).into(),
        }));
    }

    /// `None`: this node cannot tell.
    fn answer(&self, founder: &Founder, knows: impl Fn(u64) -> bool) -> Option<Existing> {
        let members = self.members;
        if members.version == 0 || founder.disk_id == self.disk_id {
            return None;
        }
        let refused = match founder.cluster_id {
            0 => self.refused(founder.id, knows),
            id if id == members.cluster_id => return None,
            _ => "the cluster existed before it was founded by this node".to_owned(),
        };
        // A node that waits knows of earlier members, but not of all later ones.
        let may_say = self.in_touch || (founder.cluster_id == 0 && !refused.is_empty());
        may_say.then(|| Existing {
            cluster: self.cluster.to_owned(),
            refused,
            members: members.to_bytes().into(),
            disk_id: founder.disk_id,
            from: self.id,
        })
    }

    /// Why node `id` may not begin with an empty disk. Empty: it may.
    fn refused(&self, id: u64, knows: impl Fn(u64) -> bool) -> String {
        if nowserving_bite::is(nowserving_bite::Break::S5Founded)
            // That row is about frames, which a node that is refused here does not send.
            || nowserving_bite::is(nowserving_bite::Break::S5Wiped)
        {
            return String::new();
        }
        if !self.members.nodes.contains_key(&id) {
            format!("node {id} is no member of the cluster any more")
        } else if id == self.id || knows(id) {
            format!("node {id} was here before, with another disk")
        } else {
            String::new()
        }
    }
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

    fn founding(me: &Founder) -> Founding {
        Founding::new(me.clone(), None, &Subjects::default(), 0)
    }

    #[test]
    fn a_cluster_is_founded_at_once_only_if_all_its_nodes_ask() {
        let me = founder(1);
        let mut founders = founding(&me);
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
        assert_eq!(founders.wait_us(), WAIT_FOR_ALL_US);
        assert!(founders.note(&founder(3)));
        assert_eq!(founders.wait_us(), WAIT_FOR_OTHERS_US);
    }

    /// Otherwise it would belong to the one whose frame comes first.
    #[test]
    fn a_node_begins_beside_one_cluster_of_its_name_at_most() {
        let me = founder(1);
        let mut founders = founding(&me);
        assert_eq!(founders.outcome().unwrap(), Outcome::Begin);
        founders.identities.insert("a1".to_owned());
        assert_eq!(founders.outcome().unwrap(), Outcome::Begin);
        founders.identities.insert("b2".to_owned());
        let error = founders.outcome().unwrap_err().to_string();
        assert!(error.contains("identities a1 and b2"), "{error}");
    }

    /// Node 1, which knows node 2.
    fn member(members: &Members, in_touch: bool) -> Member<'_> {
        Member {
            id: 1,
            cluster: "c",
            disk_id: 10,
            members,
            in_touch,
        }
    }

    /// Node 1's answers to nodes 1, 2, 3: whether each may begin.
    fn answers(members: &Members, in_touch: bool, cluster_id: u64) -> [Option<bool>; 3] {
        [1, 2, 3].map(|id| {
            let founder = Founder {
                cluster_id,
                ..founder(id)
            };
            let answer = member(members, in_touch).answer(&founder, |id| id == 2)?;
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
        nowserving_testkit::target!(seeds.into(), |bytes| {
            let Ok(other) = Founder::decode(bytes) else {
                return;
            };
            let me = founder(1);
            let mut founders = founding(&me);
            assert!(!founders.note(&other) || [2, 3].contains(&other.id));
            let members = Members::begin(&[1, 2, 3], 9);
            if let Some(answer) = member(&members, true).answer(&other, |id| id == 2) {
                assert_eq!(answer.disk_id, other.disk_id);
            }
        });
    }

    #[test]
    fn a_member_that_was_never_here_may_begin_and_no_other_node() {
        let of_three = Members::begin(&[1, 2, 3], 9);
        let no = Some(false);
        for (members, in_touch, expected) in [
            (&of_three, true, [no, no, Some(true)]),
            (&of_three, false, [no, no, None]),
            (&Members::begin(&[1, 4, 5], 9), false, [no; 3]),
            (&Members::default(), true, [None; 3]),
        ] {
            assert_eq!(answers(members, in_touch, 0), expected);
        }
    }

    #[test]
    fn a_node_that_has_begun_is_told_of_another_cluster_by_nodes_that_take_part() {
        let members = Members::begin(&[1, 2, 3], 9);
        assert_eq!(answers(&members, true, 8), [Some(false); 3]);
        assert_eq!(answers(&members, true, 9), [None; 3]);
        assert_eq!(answers(&members, false, 8), [None; 3]);
    }

    /// Publishes go by a list; nobody serves on the prefix.
    #[test]
    fn nodes_found_a_cluster_together_and_a_member_keeps_a_wiped_node_out() {
        let subjects = Subjects::default();
        let keys =
            envelope::FrameKey::for_joining(&nowserving_protocol::keys::ClusterKey::new([1; 32]));
        let keys = FrameKeys::new(keys, None);
        let around = (&keys, &subjects);
        let mut nodes = [1, 2, 3].map(|id| founding(&founder(id)));
        let mut out = Vec::new();
        for node in &mut nodes {
            node.discovery_asked(0);
            assert_eq!(node.on_time(0, true, around, &mut out).unwrap(), None);
        }
        let asked: Vec<Bytes> = out.drain(..).map(payload_of).collect();
        for node in &mut nodes {
            asked
                .iter()
                .for_each(|it| node.on_founder(it, around, &mut out));
            // Answers of discovery are waited for.
            let begins = |it: &mut Founding, now| it.on_time(now, true, around, &mut Vec::new());
            assert_eq!(begins(node, WAIT_FOR_OTHERS_US).unwrap(), None);
            let due = 500_000;
            assert_eq!(begins(node, due).unwrap(), Some(Outcome::Begin));
        }
        let members = Members::begin(&[1, 4, 5], 9);
        let member = member(&members, true);
        let mut wiped = founding(&founder(2));
        out.clear();
        member.on_founder(&asked[1], |_| false, around, &mut out);
        let refused = wiped.on_answer(&payload_of(out.remove(0)), &keys);
        assert!(
            matches!(refused, Some(Outcome::Refused { .. })),
            "{refused:?}"
        );
    }

    /// The members may not have heard yet that it was added.
    #[test]
    fn a_node_that_joined_with_an_empty_disk_asks_nobody_but_discovery() {
        let subjects = Subjects::default();
        let key = nowserving_protocol::keys::ClusterKey::new([1; 32]);
        let keys = FrameKeys::new(envelope::FrameKey::for_joining(&key), None);
        let around = (&keys, &subjects);
        let mut node = Founding::new(founder(4), Some(None), &subjects, 0);
        node.discovery_asked(0);
        let mut out = Vec::new();
        assert_eq!(node.on_time(0, true, around, &mut out).unwrap(), None);
        ask(&founder(1), &keys, &subjects, &mut out);
        let other = payload_of(out.remove(0));
        node.on_founder(&other, around, &mut out);
        assert!(out.is_empty(), "{out:?}");
        let begins = node.on_time(node.next_due(), true, around, &mut out);
        assert_eq!(begins.unwrap(), Some(Outcome::Begin));
    }

    fn payload_of(out: Out) -> Bytes {
        match out {
            Out::Publish { payload, .. } => payload,
            other => panic!("{other:?}"),
        }
    }
}
