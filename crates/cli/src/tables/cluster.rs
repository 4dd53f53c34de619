//! The cluster, its nodes and their changes as text.

use std::collections::BTreeMap;

use comfy_table::{Cell, Color};
use indicatif::HumanBytes;
use nowserving_client::{
    ChangeMembers, ClusterStatus, Mapping, MembersChangeReply, MembersChangesReply, NodeStatus,
    SnapshotsSent,
};
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_rehearse::duration;

use super::{MAX_PAYLOAD_USUAL, Sheet, journal, lags, many, number, other_cluster, ranges};
use nowserving_insight::next_key::NextKey;
use nowserving_insight::words::node_word;
use nowserving_terminal::output::Output;

/// The problems, the nodes, then the shards by leader.
pub fn cluster(status: &ClusterStatus, output: &Output) -> String {
    let header = "node, state, votes in, caught up, last heard, leads, version, metrics";
    let mut nodes = Sheet::new(header, output);
    for node in &status.nodes {
        let (word, color) = node_state(node, status);
        nodes.row(vec![
            number(node.id),
            Cell::new(word).fg(color),
            number(u64::from(node.votes_in)),
            Cell::new(caught_up(node, status)),
            Cell::new(last_heard(node, status.answered_by)),
            number(node.leads),
            Cell::new(node.version.as_deref().unwrap_or("-")),
            Cell::new(node.metrics_addr.as_deref().unwrap_or("-")),
        ]);
    }
    let mut leaders: BTreeMap<Option<u64>, Vec<u32>> = BTreeMap::new();
    for shard in &status.shards {
        leaders.entry(shard.leader).or_default().push(shard.shard);
    }
    let mut shards = Sheet::new("leader, shards", output);
    for (leader, numbers) in &leaders {
        let leader = match leader {
            Some(id) => Cell::new(format!("node {id}")),
            None => Cell::new("none").fg(Color::Red),
        };
        shards.row(vec![leader, Cell::new(ranges(numbers))]);
    }
    let mut text = String::new();
    if let Some(numbers) = leaders.get(&None) {
        let ranges = ranges(numbers);
        text.push_str(&format!(
            "without a leader, so that their lines are not served: shards {ranges}\n"
        ));
    }
    text.push_str(&format!(
        "cluster {}, {}, as node {} sees it\n",
        status.cluster,
        many(status.lines, "line"),
        status.answered_by,
    ));
    for other in &status.other_clusters {
        text.push_str(&format!(
            "{} with the same prefix: each answers the other's users; see \"Two clusters on one prefix\" in docs/operations.md\n",
            other_cluster(other)
        ));
    }
    for node in &status.nodes {
        if let Some(reason) = &node.refused {
            text.push_str(&format!("node {} is refused: {reason}\n", node.id));
        }
    }
    for shard in status.shards.iter().filter(|s| !s.differs.is_empty()) {
        let nodes: Vec<String> = shard.differs.iter().map(u64::to_string).collect();
        text.push_str(&format!(
            "shard {}: the state of node {} differs from that of node {}; see the logs of both\n",
            shard.shard,
            nodes.join(", "),
            status.answered_by
        ));
    }
    text.push_str(&members(status));
    text.push_str(&key(status));
    text.push_str(&mapping(status));
    text.push_str(&small_messages(status));
    text + &nodes.text() + "\n" + &shards.text()
}

/// The state of a node in words, and the colour for it.
pub fn node_state(node: &NodeStatus, status: &ClusterStatus) -> (&'static str, Color) {
    let word = node_word(node, status);
    let color = match word {
        "alive" => Color::Green,
        "leaving" | "joining" | "drained" | "catching up" => Color::Yellow,
        _ => Color::Red,
    };
    (word, color)
}

/// `yes`, or `13 of 16 shards, 12.3 MiB of 40.0 MiB sent`
pub fn caught_up(node: &NodeStatus, status: &ClusterStatus) -> String {
    if !node.alive {
        return "-".to_owned();
    }
    if !lags(node, status) {
        return "yes".to_owned();
    }
    let shards = format!("{} of {} shards", node.caught_up_in, status.shards.len());
    let snapshots = node.snapshots.map(|it| format!(", {}", sent(it)));
    shards + &snapshots.unwrap_or_default()
}

/// `12.3 MiB of 40.0 MiB sent`
fn sent(snapshots: SnapshotsSent) -> String {
    let SnapshotsSent {
        sent_bytes,
        total_bytes,
    } = snapshots;
    format!(
        "{} of {} sent",
        HumanBytes(sent_bytes),
        HumanBytes(total_bytes)
    )
}

/// The key in force, and the next or the old one; nothing if the cluster has one key only.
fn key(status: &ClusterStatus) -> String {
    let Some(key) = &status.key else {
        return String::new();
    };
    let mut text = String::new();
    let in_force = key.in_force;
    if let Some(next) = NextKey::of(status) {
        let id = next.id;
        text += &format!("key {in_force} is in force, and ");
        text += &match (next.differs(), next.lacking.is_empty()) {
            (true, _) => format!(
                "the nodes have different keys with the number {id}: {}; give all of them the same file\n",
                next.variants().join(", ")
            ),
            (false, true) => {
                format!("all nodes have loaded key {id}: `cluster rotate-key` puts it in force\n")
            }
            (false, false) => {
                let lacking = next.lacking.iter().map(|id| format!("node {id}"));
                let lacking: Vec<String> = lacking.collect();
                format!("key {id} is not loaded by {}\n", lacking.join(", "))
            }
        };
    }
    if let (Some(old), Some(until_ms)) = (key.old, key.old_until_ms) {
        let until = journal::clock(until_ms);
        let has_old = |node: &NodeStatus| node.keys.iter().any(|it| it.id == old);
        if !key.old_is_over {
            text += &format!(
                "key {in_force} is in force; tickets of key {old} are good until {until}\n"
            );
        } else if status.nodes.iter().any(has_old) {
            text += &format!(
                "key {in_force} is in force; the line of key {old} can be removed from the key files: it ended {until}\n"
            );
        }
    }
    text
}

/// How far a change of the members is.
fn changing(shards: u32, snapshots: Option<SnapshotsSent>) -> String {
    let snapshots = snapshots.map(|it| format!("; snapshots: {}", sent(it)));
    format!(
        "members are changing: {} to go{}\n",
        many(shards.into(), "shard"),
        snapshots.unwrap_or_default()
    )
}

/// A change in progress, the nodes that ask to be added, and the command that adds them.
fn members(status: &ClusterStatus) -> String {
    let members = &status.members;
    let silent = status
        .nodes
        .iter()
        .filter(|node| !node.alive && !node.leaving);
    let silent: Vec<u64> = silent.map(|node| node.id).collect();
    let mut text = String::new();
    if members.shards_changing > 0 {
        let snapshots = status.nodes.iter().filter_map(|node| node.snapshots);
        let snapshots = snapshots.reduce(|a, b| SnapshotsSent {
            sent_bytes: a.sent_bytes + b.sent_bytes,
            total_bytes: a.total_bytes + b.total_bytes,
        });
        text.push_str(&changing(members.shards_changing, snapshots));
    }
    for it in &members.candidates {
        let was = it.node.map(|id| format!(", which was node {id},"));
        text.push_str(&format!(
            "a node with disk {}{} asks to be added: {}\n",
            it.disk,
            was.unwrap_or_default(),
            it.reason
        ));
        // A node that was removed may come back under the number of its configuration: nothing has that any more.
        let is_member = |id: &u64| status.nodes.iter().any(|node| node.id == *id);
        let own = it.node.filter(is_member);
        let replaced = own.map_or_else(|| silent.clone(), |id| vec![id]);
        for id in replaced {
            text.push_str(&format!(
                "  nowserving cluster replace-node {id} {}\n",
                it.disk
            ));
        }
        if own.is_none() {
            text.push_str(&format!("  nowserving cluster add-node {}\n", it.disk));
        }
    }
    text
}

/// The operation, with what its row says nowhere else: `drain --undo`, `transfer 0-3`, `rotate_key 2`.
fn changed(it: &MembersChangeReply) -> String {
    let ChangeMembers {
        key_id,
        drained,
        shards,
        ..
    } = &it.request;
    match (key_id, drained, shards) {
        (Some(key), ..) => format!("{} {key}", it.op),
        (_, Some(false), _) => format!("{} --undo", it.op),
        (.., Some(shards)) => format!("{} {}", it.op, ranges(shards)),
        _ => it.op.clone(),
    }
}

/// The newest changes of the members.
pub fn members_changes(reply: &MembersChangesReply, output: &Output) -> String {
    let mut sheet = Sheet::new("version, at, change, node, disk, by, reason", output);
    for it in &reply.changes {
        let text = |text: &Option<String>| Cell::new(text.as_deref().unwrap_or("-"));
        let request = &it.request;
        sheet.row(vec![
            number(it.members_version),
            Cell::new(journal::clock(it.at_ms)),
            Cell::new(changed(it)),
            Cell::new(
                request
                    .node
                    .map_or_else(|| "-".to_owned(), |id| id.to_string()),
            ),
            Cell::new(
                request
                    .disk
                    .map_or_else(|| "-".to_owned(), |disk| disk.to_string()),
            ),
            text(&it.by),
            text(&it.reason),
        ]);
    }
    let text = match reply.changes.is_empty() {
        true => "no changes".to_owned(),
        false => sheet.text(),
    };
    match reply.shards_changing {
        0 => text,
        shards => format!("{}{text}", changing(shards, reply.snapshots)),
    }
}

/// The problem with the mapping of plain requests, and the line that solves it.
fn mapping(status: &ClusterStatus) -> String {
    let what = match status.mapping {
        Some(Mapping::Missing) => {
            "has no mapping: while a node stands still, plain requests that NATS gives to it are lost"
        }
        Some(Mapping::Wrong) => "has a wrong mapping: plain requests are refused or lost",
        Some(Mapping::Ok) | None => return String::new(),
    };
    let line = status.mapping_line.as_deref().unwrap_or_default();
    format!(
        "the NATS server of node {} {what}; its configuration should have\n  {line}\n",
        status.answered_by
    )
}

/// What the nodes' NATS servers take in one message, where that is less than usual or differs: lists come in more pages,
/// and what an item makes too large is refused.
fn small_messages(status: &ClusterStatus) -> String {
    let known = |node: &NodeStatus| node.max_payload_bytes;
    let most = status.nodes.iter().filter_map(known).max();
    let usual = most.unwrap_or(0).max(MAX_PAYLOAD_USUAL);
    let small = status.nodes.iter().filter_map(|node| {
        let bytes = known(node).filter(|bytes| *bytes < usual)?;
        let what = match bytes < MAX_PAYLOAD_MIN as u64 {
            true => format!(", and {MAX_PAYLOAD_MIN} are needed: the node serves nobody"),
            false => String::new(),
        };
        Some(format!(
            "the NATS server of node {} takes {bytes} bytes in one message (max_payload){what}\n",
            node.id
        ))
    });
    small.collect()
}

pub fn last_heard(node: &NodeStatus, answered_by: u64) -> String {
    match node.last_heard_ms {
        Some(ms) => format!("{} ago", duration(ms)),
        None if node.id == answered_by => "this one".to_owned(),
        None => "never".to_owned(),
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
