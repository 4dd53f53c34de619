//! What is wrong with the cluster, as its nodes see it.

use std::collections::{BTreeMap, BTreeSet};

use nowserving_client::{ClusterStatus, Mapping, NodeStatus};
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_words::duration;

use crate::finding::Finding;
use crate::next_key::NextKey;
use crate::words::{MAX_PAYLOAD_USUAL, absence, many, nodes_text, other_cluster};

/// A node refuses a write whose sender's clock is behind by more than the request's timeout and 6 s
/// (docs/protocol/subjects.md); --timeout is 10 s by default.
const SKEW_REFUSED_MS: u64 = 16_000;
/// Clocks that differ by more than this are not synchronised.
const SKEW_WARNED_MS: u64 = 1_000;

/// A node's answer.
#[derive(Clone, Debug)]
pub struct Seen {
    pub status: ClusterStatus,
    /// By how much the node's wall clock was ahead of this machine's, less half the way there and back.
    pub ahead_ms: i64,
}

/// Everything that is wrong with the cluster. `seen`: the answers of different nodes, the first one counts where all
/// must agree.
pub fn findings(seen: &[Seen]) -> Vec<Finding> {
    let Some(first) = seen.first() else {
        return Vec::new();
    };
    let status = &first.status;
    let mut found = Vec::new();
    found.extend(leaderless(seen));
    found.extend(seen.iter().find_map(prefix_shared));
    found.extend(status.nodes.iter().filter_map(|node| absent(node, status)));
    found.extend(full_disks(status));
    found.extend(differing(status));
    found.extend(seen.iter().find_map(mapping));
    found.extend(small_messages(status));
    found.extend(seen.iter().filter_map(skew));
    found.extend(behind(status));
    found.extend(versions(status));
    found.extend(keys(status));
    found.extend(changing(status));
    found.extend(drained(status));
    found
}

/// Shards that no answering node knows a leader of.
fn leaderless(seen: &[Seen]) -> Option<Finding> {
    let without = |it: &Seen| -> BTreeSet<u32> {
        let shards = it.status.shards.iter();
        shards
            .filter(|shard| shard.leader.is_none())
            .map(|shard| shard.shard)
            .collect()
    };
    let all = seen.iter().map(without);
    let shards = all.reduce(|one, other| &one & &other)?;
    let first = shards.first()?;
    let status = &seen.first()?.status;
    let found = Finding::problem(
        "no_leader",
        format!(
            "{} no leader: their lines take no requests (the first: shard {first})",
            has(shards.len(), "shard")
        ),
    )
    .detail(format!(
        "{} of {} are alive",
        alive(status),
        many(status.nodes.len() as u64, "node")
    ));
    Some(match has_quorum(status) {
        true => found.run("nowserving cluster status --wait --within 30s"),
        false => found
            .advise("start the nodes that are silent: a majority must run")
            .run_if("nowserving cluster status --wait", "it ends once all is well")
            .advise(
                "if the disks of a majority are lost, no command adds a node: see \"A majority is gone for good\" in docs/operations.md",
            ),
    })
}

fn has(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what} has"),
        _ => format!("{count} {what}s have"),
    }
}

fn alive(status: &ClusterStatus) -> usize {
    status.nodes.iter().filter(|node| node.alive).count()
}

/// Members change, and so a node is replaced, only while a majority is there.
fn has_quorum(status: &ClusterStatus) -> bool {
    alive(status) * 2 > status.nodes.len()
}

fn absent(node: &NodeStatus, status: &ClusterStatus) -> Option<Finding> {
    let id = node.id;
    let text = absence(node, None)?;
    let found = Finding::warning("node_absent", text);
    if let Some(reason) = &node.refused {
        return Some(refused(found, id, reason, status));
    }
    let heard = node.last_heard_ms.map(duration);
    let heard = heard.map(|ago| format!("last heard of {ago} ago"));
    let found = Finding {
        details: heard.into_iter().collect(),
        ..found
    };
    let found = found.advise(format!("start node {id} again"));
    Some(match has_quorum(status) {
        false => found,
        true => found
            .advise(
                "if its machine is gone, start a node with `nowserving node --join` and an empty data directory in its place: see \"Replace a node\" in docs/operations.md",
            )
            .run_if(
                format!("nowserving cluster replace-node {id}"),
                "once that node asks to be added",
            ),
    })
}

/// Only a disk that is lost, or an older copy, takes a new number. All else is mended by its configuration, and the node
/// keeps its disk: replacing it would throw that away.
fn refused(found: Finding, id: u64, reason: &str, status: &ClusterStatus) -> Finding {
    let candidates = &status.members.candidates;
    let asks = candidates.iter().any(|it| it.node == Some(id));
    // The words of the nodes' refusals; a node that lost its disk also asks for another number.
    let of_disk = reason.contains("another disk") || reason.contains("older copy of its disk");
    let replace = format!("nowserving cluster replace-node {id}");
    if asks && has_quorum(status) {
        found.run(replace)
    } else if of_disk && has_quorum(status) {
        found.run_if(replace, "while that node runs: it asks for a new number")
    } else if asks || of_disk {
        found.advise("a majority must run before it can be replaced")
    } else if reason.contains("a frame of format") {
        found.advise(format!("start node {id} with the release of the others"))
    } else if reason.contains("is of another cluster") {
        found.advise(format!(
            "stop node {id}, or give its cluster another name or NATS account: it belongs to another cluster of this one's name"
        ))
    } else if reason.contains("was removed") || reason.contains("is no member") {
        found.advise(format!("node {id} is no member any more: stop it"))
    } else {
        found.advise(format!(
            "correct the configuration of node {id} and start it again: key file, shard count, prefix, election timeout and list of first nodes are the same on all nodes"
        ))
    }
}

fn full_disks(status: &ClusterStatus) -> Option<Finding> {
    let full = ids(status, |node| node.disk_full)?;
    let majority = full.len() * 2 > status.nodes.len();
    let text = format!("the disk of {} is full", nodes_text(&full));
    let advice =
        "make room in its --data-dir: at least 64 MiB must be free; all goes on by itself then";
    Some(
        match majority {
            true => Finding::problem("disk_full", format!("{text}: writes are refused")),
            false => Finding::warning("disk_full", format!("{text}: it takes no writes")),
        }
        .advise(advice),
    )
}

fn differing(status: &ClusterStatus) -> Option<Finding> {
    let pairs = status.shards.iter().filter(|it| !it.differs.is_empty());
    let shards: Vec<String> = pairs
        .map(|it| format!("shard {}: node {:?}", it.shard, it.differs))
        .collect();
    let first = shards.first()?.clone();
    let text = format!("the state of nodes differs ({first})");
    let found = Finding::problem("state_differs", text);
    let found = Finding {
        details: shards,
        ..found
    };
    Some(
        found.advise(
            "see \"States that differ\" in docs/operations.md: restart one of the two nodes",
        ),
    )
}

/// Another cluster takes a part of this one's requests.
fn prefix_shared(seen: &Seen) -> Option<Finding> {
    let others = &seen.status.other_clusters;
    let first = others.first()?;
    let text = format!(
        "{} with the prefix of cluster {}: each answers the other's users",
        other_cluster(first),
        seen.status.cluster
    );
    let found = Finding {
        details: others[1..].iter().map(other_cluster).collect(),
        ..Finding::problem("prefix_shared", text)
    };
    Some(found.advise(
        "stop the nodes of the one that does not belong here, and start them with another prefix (--prefix) or NATS account: \
         see \"Two clusters on one prefix\" in docs/operations.md",
    ))
}

fn mapping(seen: &Seen) -> Option<Finding> {
    let status = &seen.status;
    let line = status.mapping_line.clone()?;
    let text = format!("of the NATS server of node {}", status.answered_by);
    let found = match status.mapping? {
        Mapping::Ok => return None,
        Mapping::Missing => Finding::warning(
            "mapping_missing",
            format!(
                "the configuration {text} lacks the mapping line: plain requests reach any node"
            ),
        ),
        Mapping::Wrong => Finding::problem(
            "mapping_wrong",
            format!("the mapping {text} is wrong: plain requests are refused or lost"),
        ),
    };
    Some(found.advise(format!(
        "put this line into the server's configuration: {line}"
    )))
}

fn skew(seen: &Seen) -> Option<Finding> {
    let off_ms = seen.ahead_ms.unsigned_abs();
    let node = seen.status.answered_by;
    if seen.status.at_ms == 0 || off_ms <= SKEW_WARNED_MS {
        return None;
    }
    let way = match seen.ahead_ms > 0 {
        true => "ahead of",
        false => "behind",
    };
    let text = format!(
        "the clock of node {node} is {} {way} this machine's",
        duration(off_ms)
    );
    let found = match off_ms > SKEW_REFUSED_MS && seen.ahead_ms > 0 {
        // The sender's clock is behind.
        true => Finding::problem(
            "clock_skew",
            format!("{text}: writes from here are refused as late"),
        ),
        false => Finding::warning("clock_skew", text),
    };
    Some(found.advise(
        "synchronise the clocks of both machines (chronyc makestep, or timedatectl set-ntp true)",
    ))
}

fn behind(status: &ClusterStatus) -> Option<Finding> {
    let shards = status.shards.len();
    let lags = |node: &&NodeStatus| node.alive && (node.caught_up_in as usize) < shards;
    let nodes: Vec<&NodeStatus> = status.nodes.iter().filter(lags).collect();
    let first = nodes.first()?;
    let text = format!(
        "node {} has caught up in {} of {shards} shards",
        first.id, first.caught_up_in
    );
    let found = Finding::warning("node_lags", text);
    let refuses = nodes.iter().filter(|node| node.refuses_snapshots > 0);
    let details =
        refuses.map(|node| format!("node {} refuses snapshots: its log says why", node.id));
    let found = Finding {
        details: details.collect(),
        ..found
    };
    Some(found.run_if(
        "nowserving cluster status --wait",
        "before another node is stopped",
    ))
}

fn versions(status: &ClusterStatus) -> Option<Finding> {
    let mut nodes: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for node in &status.nodes {
        if let Some(version) = &node.version {
            nodes.entry(version).or_default().push(node.id);
        }
    }
    if nodes.len() < 2 {
        return None;
    }
    let details = nodes.iter();
    let details = details.map(|(version, ids)| format!("{version}: {}", nodes_text(ids)));
    let found = Finding::warning("versions_differ", "the nodes run different releases");
    let found = Finding {
        details: details.collect(),
        ..found
    };
    Some(
        found
            .advise("finish the upgrade, a node at a time")
            .run_if("nowserving cluster status --wait", "before each node"),
    )
}

/// NATS servers that take less in one message than usual, or less than a node needs.
fn small_messages(status: &ClusterStatus) -> Option<Finding> {
    let below = |bytes: u64| {
        let is_below = move |node: &NodeStatus| node.max_payload_bytes.is_some_and(|it| it < bytes);
        ids(status, is_below)
    };
    let advice = "set `max_payload: 1MB` in the configuration of the NATS servers, and reload them";
    let limits = status.nodes.iter().filter_map(|node| {
        let bytes = node.max_payload_bytes?;
        Some(format!("node {}: {bytes} bytes (max_payload)", node.id))
    });
    let finding = |found: Finding| Finding {
        details: limits.collect(),
        ..found.advise(advice)
    };
    if let Some(nodes) = below(MAX_PAYLOAD_MIN as u64) {
        let text = format!(
            "the NATS server takes too little in one message for {}, which serves nobody: {MAX_PAYLOAD_MIN} bytes are needed",
            nodes_text(&nodes)
        );
        return Some(finding(Finding::problem("max_payload_too_small", text)));
    }
    let nodes = below(MAX_PAYLOAD_USUAL)?;
    let text = format!(
        "the NATS server takes little in one message for {}: nodes cut what they send each other, and requests and answers that \
         are larger are refused",
        nodes_text(&nodes)
    );
    Some(finding(Finding::note("max_payload_small", text)))
}

fn changing(status: &ClusterStatus) -> Option<Finding> {
    let shards = status.members.shards_changing;
    (shards > 0).then(|| {
        let text = format!(
            "a change of the nodes is under way in {}",
            many(shards.into(), "shard")
        );
        Finding::note("members_change", text).run("nowserving cluster changes")
    })
}

fn drained(status: &ClusterStatus) -> Option<Finding> {
    let drained = ids(status, |node| node.drained)?;
    let first = drained.first()?;
    let text = format!(
        "drained, as an operator asked: {} leads no shard",
        nodes_text(&drained)
    );
    Some(
        Finding::note("node_drained", text).run(format!("nowserving cluster drain {first} --undo")),
    )
}

fn ids(status: &ClusterStatus, which: impl Fn(&NodeStatus) -> bool) -> Option<Vec<u64>> {
    let nodes = status.nodes.iter().filter(|node| which(node));
    let ids: Vec<u64> = nodes.map(|node| node.id).collect();
    (!ids.is_empty()).then_some(ids)
}

/// Each node would put its own in force.
fn keys(status: &ClusterStatus) -> Option<Finding> {
    let next = NextKey::of(status).filter(NextKey::differs)?;
    let id = next.id;
    let text = format!("the nodes have loaded different keys with the number {id}");
    let found = Finding::warning("keys_differ", text);
    let found = Finding {
        details: next.variants(),
        ..found
    };
    let advice = format!(
        "give all nodes the same file, of one `cluster new-key`: key {id} cannot be put in force, and `cluster jwks` \
         answers another key set by node"
    );
    let until = "until it says that all nodes have loaded the key";
    Some(
        found
            .advise(advice)
            .run_if("nowserving cluster status", until),
    )
}
