//! Other clusters that serve on this NATS. They are reported, and keep a node with an empty disk from beginning on their
//! prefix. Nothing else is decided by them, as any client with rights there can answer.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_engine::{Input, Standing};
use nowserving_protocol::admin::OtherCluster;
use nowserving_shard::clock::Micros;
use serde::Deserialize;

use super::Out;
use super::peers::Origin;

/// Where discovery is asked for all nodes.
pub const SUBJECT: &str = "$SRV.INFO.nowserving";
/// A node asks as often.
const INTERVAL_US: Micros = 10_000_000;
/// Soon after the start: an error in the configuration is the most likely cause then.
const FIRST_US: Micros = 2_000_000;
/// Answers are awaited for this long.
const PATIENCE_US: Micros = 500_000;
/// Answers that are read at most, and the bytes of each text in them: anybody may send them.
const ANSWERS_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 256;
/// Clusters that are named at most.
const NAMED_MAX: usize = 8;

#[derive(Debug, Deserialize)]
struct Info {
    metadata: Metadata,
}

/// A node's metadata in discovery.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Metadata {
    cluster: String,
    prefix: String,
    shards: String,
    /// `None`: it has no identity yet.
    #[serde(default)]
    cluster_id: Option<String>,
}

impl Metadata {
    /// The answer of a node; that of another form comes from another service.
    pub(crate) fn read(payload: &[u8]) -> Option<Metadata> {
        let Info { metadata } = serde_json::from_slice(payload).ok()?;
        let Metadata {
            cluster,
            prefix,
            shards,
            cluster_id,
        } = &metadata;
        let is_short = [cluster, prefix, shards]
            .into_iter()
            .chain(cluster_id)
            .all(|text| text.len() <= TEXT_BYTES_MAX);
        is_short.then_some(metadata)
    }

    /// `identity`: of this node's cluster, if it is known.
    fn is_like(&self, origin: &Origin, identity: Option<&str>) -> bool {
        let same_identity = match (&self.cluster_id, identity) {
            (Some(theirs), Some(ours)) => theirs == ours,
            _ => true,
        };
        same_identity
            && self.cluster == origin.cluster
            && self.prefix == origin.prefix
            && self.shards == origin.shards.to_string()
    }

    /// The cluster's name.
    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Whether it is of a cluster of this name, which may have one of these identities.
    pub(crate) fn is_of(&self, cluster: &str, identities: &BTreeSet<String>) -> bool {
        let identity = self.cluster_id.as_ref();
        self.cluster == cluster && identity.is_none_or(|it| identities.contains(it))
    }

    /// Why a node of `cluster` with an empty disk does not begin beside this one.
    pub(crate) fn keeps_out(&self, cluster: &str) -> String {
        let Metadata { prefix, .. } = self;
        let identity = self.cluster_id.as_deref().unwrap_or("not known yet");
        let advice = match self.cluster == cluster {
            true => {
                "It does not know this node. If the node is to belong to it, give it the cluster's key file (--key-file); \
                 otherwise"
            }
            false => "If the name is misspelt, correct it (--cluster); otherwise",
        };
        format!(
            "this node of cluster {cluster:?} has an empty disk, and cluster {:?} (identity {identity}) serves on the same \
             NATS with the same prefix {prefix:?}: each would answer the other's users. {advice} set another prefix \
             (--prefix), or use another NATS account",
            self.cluster
        )
    }
}

/// A question to discovery, and the answers to it.
#[derive(Debug, Default)]
pub struct Question {
    /// `None`: nothing is asked.
    until: Option<Micros>,
    found: Vec<Metadata>,
}

impl Question {
    /// The question has reached the server.
    pub fn asked(&mut self, now: Micros) {
        self.until = Some(now + PATIENCE_US);
        self.found.clear();
    }

    pub fn on_answer(&mut self, payload: &[u8]) {
        if self.until.is_some() && self.found.len() < ANSWERS_MAX {
            self.found.extend(Metadata::read(payload));
        }
    }

    /// The nodes that have answered, once it is over.
    pub fn over(&mut self, now: Micros) -> Option<Vec<Metadata>> {
        self.until
            .take_if(|until| now >= *until || self.found.len() >= ANSWERS_MAX)
            .map(|_| std::mem::take(&mut self.found))
    }

    /// When there is something to do without an answer.
    #[must_use]
    pub fn next_due(&self) -> Micros {
        self.until.unwrap_or(Micros::MAX)
    }
}

/// Reports the other clusters that answer discovery, and its own if that serves without this node. While this node is
/// in touch, only those with its prefix count.
#[derive(Debug)]
pub struct Neighbours {
    origin: Origin,
    /// As in the node's identity.
    joined: bool,
    question: Question,
    pause_us: Micros,
    asks_at: Micros,
    was_in_touch: bool,
}

impl Neighbours {
    #[must_use]
    pub fn new(origin: Origin, joined: bool, now: Micros) -> Neighbours {
        Neighbours {
            origin,
            joined,
            question: Question::default(),
            pause_us: FIRST_US,
            asks_at: now + FIRST_US,
            was_in_touch: false,
        }
    }

    /// A change is followed by the whole pause: what the other nodes say then counts.
    pub fn on_standing(&mut self, now: Micros, standing: &Standing) {
        let in_touch = standing.is_in_touch();
        if std::mem::replace(&mut self.was_in_touch, in_touch) != in_touch
            && self.question.until.is_none()
        {
            self.asks_at = now + self.pause_us;
        }
    }

    /// Whether to ask now; [`Neighbours::asked`] follows.
    #[must_use]
    pub fn asks(&self, now: Micros) -> bool {
        self.question.until.is_none() && now >= self.asks_at
    }

    /// The question has reached the server.
    pub fn asked(&mut self, now: Micros) {
        self.question.asked(now);
        self.pause_us = INTERVAL_US;
    }

    pub fn on_answer(&mut self, payload: &[u8]) {
        self.question.on_answer(payload);
    }

    /// `identity`: of this node's cluster, if it is known.
    pub fn on_time(
        &mut self,
        now: Micros,
        (identity, standing): (Option<&str>, &Standing),
        out: &mut Vec<Out>,
    ) {
        let Some(found) = self.question.over(now) else {
            return;
        };
        self.asks_at = now + self.pause_us;
        let origin = &self.origin;
        let is_like = |it: &&Metadata| it.is_like(origin, identity);
        let members = found.iter().filter(is_like).count();
        if members > 0 && !self.joined && hears_of_none(standing) {
            tracing::warn!(
                nodes = ?origin.nodes,
                "{members} nodes of this cluster serve without this one: their list of nodes (--nodes) may be \
                 another one"
            );
        }
        let others = others(found, origin, identity, self.was_in_touch);
        if !others.is_empty() {
            warn(&others, origin);
        }
        let on_prefix = Input::OtherClusters(on_prefix_of(&others, origin));
        out.push(Out::Engine(on_prefix));
    }

    #[must_use]
    pub fn next_due(&self) -> Micros {
        match self.question.until {
            Some(until) => until,
            None => self.asks_at,
        }
    }
}

/// Whether the list of nodes may be why this node takes no part. Peers that refuse it say why, and a node that joined
/// has the list from its cluster.
fn hears_of_none(standing: &Standing) -> bool {
    matches!(standing, Standing::Waiting(_))
}

/// The number of nodes that answer for each other cluster. A node that is in touch ignores those on another
/// prefix.
fn others(
    found: Vec<Metadata>,
    origin: &Origin,
    identity: Option<&str>,
    in_touch: bool,
) -> BTreeMap<Metadata, u64> {
    let mut others = BTreeMap::new();
    for it in found {
        if !it.is_like(origin, identity) && (it.prefix == origin.prefix || !in_touch) {
            *others.entry(it).or_default() += 1;
        }
    }
    others
}

fn on_prefix_of(others: &BTreeMap<Metadata, u64>, origin: &Origin) -> Vec<OtherCluster> {
    let on_prefix = others.iter().filter(|(it, _)| it.prefix == origin.prefix);
    on_prefix
        .take(NAMED_MAX)
        .map(|(it, nodes)| OtherCluster {
            cluster: it.cluster.clone(),
            cluster_id: it.cluster_id.clone(),
            nodes: *nodes,
        })
        .collect()
}

fn warn(others: &BTreeMap<Metadata, u64>, origin: &Origin) {
    let named = others.iter().take(NAMED_MAX).map(|(it, nodes)| {
        format!(
            "cluster {:?} (identity {}) with prefix {:?}, {} shards and {nodes} nodes",
            it.cluster,
            it.cluster_id.as_deref().unwrap_or("not known"),
            it.prefix,
            it.shards
        )
    });
    let named = named.collect::<Vec<_>>().join("; ");
    let (cluster, prefix, shards) = (&origin.cluster, &origin.prefix, origin.shards);
    tracing::warn!(
        cluster,
        prefix,
        shards,
        "on this NATS serve others than this node was configured for: {named}"
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nowserving_engine::Refusal;

    use super::*;

    fn origin() -> Origin {
        Origin {
            cluster: "prod".into(),
            me: 1,
            disk_id: 1,
            boots: 1,
            starts: vec![1],
            metrics_addr: String::new(),
            link_addr: String::new(),
            shards: 16,
            prefix: "nowserving".into(),
            nodes: vec![1, 2, 3],
            election_ms: 750,
            version: String::new(),
        }
    }

    fn metadata(cluster: &str, prefix: &str, shards: &str) -> Metadata {
        Metadata {
            cluster: cluster.to_owned(),
            prefix: prefix.to_owned(),
            shards: shards.to_owned(),
            cluster_id: None,
        }
    }

    fn of_identity(identity: &str) -> Metadata {
        Metadata {
            cluster_id: Some(identity.to_owned()),
            ..metadata("prod", "nowserving", "16")
        }
    }

    #[test]
    fn fuzz_an_answer() {
        let seed = r#"{"name": "nowserving", "id": "x", "version": "0.1.0", "type": "t", "description": "", "metadata":
            {"cluster": "prod", "prefix": "nowserving", "shards": "16", "node": "1", "cluster_id": "01"}, "endpoints": []}"#;
        nowserving_testkit::target!(vec![seed.as_bytes().to_vec()], |bytes| {
            let Some(metadata) = Metadata::read(bytes) else {
                return;
            };
            let others = others(vec![metadata], &origin(), Some("01"), false);
            assert!(others.len() <= 1);
            warn(&others, &origin());
        });
    }

    #[test]
    fn only_what_differs_is_named_and_another_prefix_only_while_nobody_is_found() {
        let origin = origin();
        let test = metadata("test", "nowserving", "16");
        let eight = metadata("prod", "nowserving", "8");
        let elsewhere = metadata("prod", "elsewhere", "16");
        let found = vec![
            metadata("prod", "nowserving", "16"),
            of_identity("01"),
            test.clone(),
            eight.clone(),
            elsewhere.clone(),
            test.clone(),
        ];
        let expected = [(eight, 1), (test, 2)];
        let expected = BTreeMap::from(expected);
        assert_eq!(others(found.clone(), &origin, Some("01"), true), expected);
        let mut all = expected;
        all.insert(elsewhere, 1);
        assert_eq!(others(found, &origin, Some("01"), false), all);
    }

    #[test]
    fn a_cluster_of_the_same_name_is_another_one_by_its_identity() {
        let twin = of_identity("02");
        let seen = |identity| {
            let others = others(vec![twin.clone()], &origin(), identity, true);
            on_prefix_of(&others, &origin()).len()
        };
        assert_eq!([seen(None), seen(Some("02")), seen(Some("01"))], [0, 0, 1]);
        let known = ["01".to_owned()].into();
        assert!(!twin.is_of("prod", &known) && of_identity("01").is_of("prod", &known));
        assert!(!of_identity("01").is_of("test", &known));
        let error = twin.keeps_out("prod");
        assert!(error.contains("identity 02") && error.contains("--key-file"));
    }

    #[test]
    fn a_node_that_its_peers_refuse_is_not_told_to_look_at_its_list() {
        let refused = Refusal::passing("the key id 0".to_owned());
        assert!(!hears_of_none(&Standing::Refused(refused)));
        assert!(!hears_of_none(&Standing::InTouch));
        assert!(hears_of_none(&Standing::Waiting(
            "nothing heard".to_owned()
        )));
    }

    #[test]
    fn a_node_asks_soon_after_its_start_then_now_and_then_and_waits_for_answers() {
        let mut neighbours = Neighbours::new(origin(), false, 0);
        assert_eq!(neighbours.next_due(), FIRST_US);
        neighbours.on_standing(1_000_000, &Standing::InTouch);
        assert!(!neighbours.asks(FIRST_US) && neighbours.asks(1_000_000 + FIRST_US));
        neighbours.asked(5_000_000);
        let other = r#"{"metadata": {"cluster": "test", "prefix": "nowserving", "shards": "16"}}"#;
        neighbours.on_answer(other.as_bytes());
        let mut out = Vec::new();
        let around = (None, &Standing::InTouch);
        neighbours.on_time(5_000_000, around, &mut out);
        assert!(out.is_empty() && !neighbours.asks(5_400_000));
        neighbours.on_time(neighbours.next_due(), around, &mut out);
        let [Out::Engine(Input::OtherClusters(others))] = &out[..] else {
            panic!("{out:?}");
        };
        assert_eq!(others.len(), 1);
        assert_eq!(neighbours.next_due(), 5_000_000 + PATIENCE_US + INTERVAL_US);
    }
}
