//! Words that screens, findings and pages have in common.

use nowserving_client::{ClusterStatus, HeldBackReply, Key, NodeStatus, OtherCluster};
use nowserving_words::duration;

/// What a NATS server takes in one message unless it is configured otherwise, in bytes.
pub const MAX_PAYLOAD_USUAL: u64 = 1_048_576;

/// A key on one line, whatever bytes it has.
pub fn key_text(key: &Key) -> String {
    let text = String::from_utf8_lossy(key.as_bytes());
    text.escape_debug().to_string()
}

/// The reason why nobody is admitted now.
pub fn held_back(held_back: &HeldBackReply) -> String {
    format!("held back by: {}", why_held_back(held_back))
}

/// The same, after other words.
pub fn why_held_back(held_back: &HeldBackReply) -> String {
    match held_back.by.as_ref() {
        "nothing" => "nothing, nobody waits".to_owned(),
        "phase" => {
            let phase = held_back.phase.as_deref().unwrap_or("unknown");
            format!("the phase, {phase}")
        }
        "draw" => "the draw, which is not done".to_owned(),
        "quota" => "the quota, no unit is left".to_owned(),
        "seats" => "the seats, all are held".to_owned(),
        "called" => "that nobody is called: line call-next".to_owned(),
        "admission_rate" => {
            let in_ms = held_back.next_in_ms.unwrap_or_default();
            format!("the admission rate, next in {}", duration(in_ms))
        }
        "admitting" => "nothing, those who wait are being admitted".to_owned(),
        other => other.to_owned(),
    }
}

/// `node 1`, or `nodes 1, 2`
pub fn nodes_text(ids: &[u64]) -> String {
    let names: Vec<String> = ids.iter().map(u64::to_string).collect();
    match names.len() {
        1 => format!("node {}", names.concat()),
        _ => format!("nodes {}", names.join(", ")),
    }
}

/// `1 line`, `2 lines`
pub fn many(count: u64, what: &str) -> String {
    let s = if count == 1 { "" } else { "s" };
    format!("{count} {what}{s}")
}

/// `0-3, 7`
pub fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let words = ranges.iter().map(|&(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// `cluster test (identity 00000000000000ff) serves with 2 nodes on this NATS`
pub fn other_cluster(other: &OtherCluster) -> String {
    let identity = other.cluster_id.as_deref().unwrap_or("not known");
    format!(
        "cluster {} (identity {identity}) serves with {} on this NATS",
        other.cluster,
        many(other.nodes, "node")
    )
}

/// The state of a node in one or a few words.
pub fn node_word(node: &NodeStatus, status: &ClusterStatus) -> &'static str {
    match (node.alive, &node.refused) {
        (true, _) if node.disk_full => "disk full",
        (true, _) if node.leaving => "leaving",
        (true, _) if node.joining_in > 0 => "joining",
        (true, _) if node.drained => "drained",
        (true, _) if node.refuses_snapshots > 0 => "refuses a snapshot",
        (true, _) if lags(node, status) => "catching up",
        (true, _) => "alive",
        (false, Some(_)) => "refused",
        (false, None) => "silent",
    }
}

/// Whether a node lacks entries of a shard that others have.
pub fn lags(node: &NodeStatus, status: &ClusterStatus) -> bool {
    (node.caught_up_in as usize) < status.shards.len()
}

/// Why a node does not take part, and what the operator can do: start it, or the command `instead`.
pub fn absence(node: &NodeStatus, instead: Option<&str>) -> Option<String> {
    let id = node.id;
    if let Some(reason) = &node.refused {
        return Some(format!("node {id} is refused: {reason}"));
    }
    let instead = instead.map(|it| format!(", or `nowserving cluster {it} {id}`"));
    let instead = instead.unwrap_or_default();
    (!node.alive).then(|| format!("node {id} is silent: start it{instead}"))
}

/// What is wrong with nodes and shards, in a few words each.
pub fn wrong(status: &ClusterStatus) -> Vec<String> {
    let leaderless = status.shards.iter().filter(|it| it.leader.is_none());
    let leaderless: Vec<u32> = leaderless.map(|it| it.shard).collect();
    let mut wrong = Vec::new();
    if !leaderless.is_empty() {
        wrong.push(format!("without a leader: shards {}", ranges(&leaderless)));
    }
    for node in &status.nodes {
        let word = node_word(node, status);
        if word != "alive" {
            wrong.push(format!("node {} {word}", node.id));
        }
    }
    wrong
}
