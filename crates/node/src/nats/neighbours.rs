//! Reports other clusters that serve on this NATS. Nothing is decided by it, as any client with rights there
//! can answer, but it shows an operator which setting is wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::Client;
use futures::StreamExt as _;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::peers::Origin;
use nowserving_engine::Standing;

const SUBJECT: &str = "$SRV.INFO.nowserving";
/// A node that has not come in touch for so long asks, and again as often.
const INTERVAL: Duration = Duration::from_secs(10);
/// Soon after the start: an error in the configuration is the most likely cause then.
const FIRST: Duration = Duration::from_secs(2);
/// Answers are awaited for this long.
const PATIENCE: Duration = Duration::from_millis(500);
/// Clusters that are named at most.
const NAMED_MAX: usize = 8;

#[derive(Debug, Deserialize)]
struct Info {
    metadata: Metadata,
}

/// A node's metadata in discovery.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Metadata {
    cluster: String,
    prefix: String,
    shards: String,
}

impl Metadata {
    fn is_like(&self, origin: &Origin) -> bool {
        self.cluster == origin.cluster
            && self.prefix == origin.prefix
            && self.shards == origin.shards.to_string()
    }
}

/// Names in the log the other clusters that answer discovery, and its own if that serves without this node: while this node is not in touch, and
/// once when it has come in touch if one of them has its prefix. `joined`: as in the node's identity. Ends with the loop.
///
/// # Errors
/// The connection is closed.
pub async fn run(
    client: Client,
    origin: Origin,
    joined: bool,
    mut standing: watch::Receiver<Standing>,
) -> anyhow::Result<()> {
    let mut pause = FIRST;
    loop {
        let was_in_touch = standing.borrow_and_update().is_in_touch();
        let changed = standing.wait_for(|it| it.is_in_touch() != was_in_touch);
        match timeout(pause, changed).await {
            Ok(Ok(_)) => continue,
            Ok(Err(_)) => return Ok(()),
            Err(_) => {}
        }
        let found = ask(&client).await?;
        let members = found.iter().filter(|it| it.is_like(&origin)).count();
        if members > 0 && !joined && hears_of_none(&standing.borrow()) {
            tracing::warn!(
                nodes = ?origin.nodes,
                "{members} nodes of this cluster serve without this one: their list of nodes (--nodes) may be \
                 another one"
            );
        }
        let others = others(found, &origin, was_in_touch);
        if !others.is_empty() {
            warn(&others, &origin);
        }
        pause = INTERVAL;
        if was_in_touch {
            let left = standing.wait_for(|it| !it.is_in_touch());
            if left.await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Whether the list of nodes may be why this node takes no part. Peers that refuse it say why, and a node that joined
/// has the list from its cluster.
fn hears_of_none(standing: &Standing) -> bool {
    matches!(standing, Standing::Waiting(_))
}

async fn ask(client: &Client) -> anyhow::Result<Vec<Metadata>> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await?;
    client.publish_with_reply(SUBJECT, inbox, "".into()).await?;
    let until = Instant::now() + PATIENCE;
    let mut found = Vec::new();
    while let Ok(Some(answer)) = timeout_at(until, answers.next()).await {
        // An answer of another form comes from another service.
        found.extend(serde_json::from_slice(&answer.payload).map(|Info { metadata }| metadata));
    }
    Ok(found)
}

/// The number of nodes that answer for each other cluster. A node that is in touch ignores those on another
/// prefix.
fn others(found: Vec<Metadata>, origin: &Origin, in_touch: bool) -> BTreeMap<Metadata, usize> {
    let mut others = BTreeMap::new();
    for it in found {
        if !it.is_like(origin) && (it.prefix == origin.prefix || !in_touch) {
            *others.entry(it).or_default() += 1;
        }
    }
    others
}

fn warn(others: &BTreeMap<Metadata, usize>, origin: &Origin) {
    let named = others.iter().take(NAMED_MAX).map(|(it, nodes)| {
        format!(
            "cluster {:?} with prefix {:?}, {} shards and {nodes} nodes",
            it.cluster, it.prefix, it.shards
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
    use nowserving_protocol::keys::ClusterKey;

    use super::*;
    use crate::keys::Keys;

    fn origin() -> Origin {
        Origin {
            cluster: "prod".into(),
            me: 1,
            disk_id: 1,
            boots: 1,
            starts: vec![1],
            metrics_addr: String::new(),
            shards: 16,
            prefix: "nowserving".into(),
            nodes: vec![1, 2, 3],
            election_ms: 750,
            keys: Keys::new(ClusterKey::new([1; 32]).into(), None).unwrap(),
        }
    }

    fn metadata(cluster: &str, prefix: &str, shards: &str) -> Metadata {
        Metadata {
            cluster: cluster.to_owned(),
            prefix: prefix.to_owned(),
            shards: shards.to_owned(),
        }
    }

    #[test]
    fn fuzz_an_answer() {
        let seed = r#"{"name": "nowserving", "id": "x", "version": "0.1.0", "type": "t", "description": "", "metadata":
            {"cluster": "prod", "prefix": "nowserving", "shards": "16", "node": "1"}, "endpoints": []}"#;
        nowserving_fuzz::target!(vec![seed.as_bytes().to_vec()], |bytes| {
            let Ok(Info { metadata }) = serde_json::from_slice(bytes) else {
                return;
            };
            let others = others(vec![metadata], &origin(), false);
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
            test.clone(),
            eight.clone(),
            elsewhere.clone(),
            test.clone(),
        ];
        let expected = [(eight, 1), (test, 2)];
        let expected = BTreeMap::from(expected);
        assert_eq!(others(found.clone(), &origin, true), expected);
        let mut all = expected;
        all.insert(elsewhere, 1);
        assert_eq!(others(found, &origin, false), all);
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
}
