//! All findings, the worst first.

use nowserving_words::duration;
use serde::Serialize;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::words::{held_back, many};
use crate::{cluster, facts, line, same_cluster};

/// The answer.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// The line, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<String>,
    /// The worst first, else in the order in which they should be looked at.
    pub findings: Vec<Finding>,
    /// What was looked at and found in order, a line each.
    pub in_order: Vec<String>,
}

/// `asked`: the options that said which cluster, for the commands.
pub fn diagnosis(line: Option<String>, facts: &Facts, asked: &[String]) -> Diagnosis {
    let mut findings = facts.errors.clone();
    findings.extend(facts.missing_rights());
    findings.extend(cluster::findings(&facts.seen));
    findings.extend(facts.line.iter().flat_map(line::findings));
    findings.extend(facts::idle(&facts.lines));
    let count = |code| findings.iter().filter(|it| it.code == code).count();
    let (leaderless, unanswered) = (count("no_leader"), count("no_answer"));
    // Of the shards' leaders the cluster tells as well.
    if leaderless > 1
        && let Some(at) = findings.iter().rposition(|it| it.code == "no_leader")
    {
        findings.remove(at);
    }
    // That is why the line does not answer.
    if leaderless > 0 && unanswered > 0 {
        findings.retain(|it| it.code != "no_answer");
    }
    // Stable: of equal severity, in the order in which they were looked for.
    findings.sort_by_key(|it| it.severity);
    same_cluster::name_in(&mut findings, asked);
    Diagnosis {
        line,
        findings,
        in_order: in_order(facts),
    }
}

/// What was looked at and is as it should be.
fn in_order(facts: &Facts) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some((version, took)) = &facts.server {
        let took = duration(took.as_millis() as u64);
        lines.push(format!("NATS {version}: the cluster answered in {took}"));
    }
    if let Some(first) = facts.seen.first() {
        let status = &first.status;
        let led = status.shards.iter().filter(|it| it.leader.is_some());
        lines.push(format!(
            "cluster {}: {} of {} have a leader, {} of {} are alive, {}",
            status.cluster,
            led.count(),
            many(status.shards.len() as u64, "shard"),
            status.nodes.iter().filter(|node| node.alive).count(),
            many(status.nodes.len() as u64, "node"),
            many(status.lines, "line"),
        ));
        lines.push(format!(
            "{} answered, for clocks and releases",
            many(facts.seen.len() as u64, "node")
        ));
    }
    if let Some(line) = &facts.line {
        let it = &line.line;
        let leader = it.leader.map_or("no leader".to_owned(), |id| {
            format!("node {id} leads and holds its lease")
        });
        lines.push(format!(
            "line {}: {}, shard {} ({leader}), {} of {} held, {} waiting",
            it.line,
            it.board.phase,
            it.shard,
            it.board.admitted + it.board.in_checkout,
            many(it.board.seats.into(), "seat"),
            it.counts.waiting,
        ));
        lines.push(held_back(&it.held_back_by));
    }
    lines
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::cluster::Seen;

    #[test]
    fn commands_ask_the_same_cluster_and_a_dead_majority_is_said_once() {
        let node = |id: u64| json!({"id": id, "alive": id == 1, "leads": 0, "caught_up_in": 1});
        let status = json!({
            "cluster": "shop", "lines": 1, "answered_by": 1, "nodes": [node(1), node(2), node(3)],
            "shards": [{"shard": 0, "leader": null, "term": 2, "applied": 5, "committed": 5}],
        });
        let facts = Facts {
            errors: vec![Finding::problem("no_answer", "no leader").run("nowserving top")],
            seen: vec![Seen {
                status: serde_json::from_value(status).unwrap(),
                ahead_ms: 0,
            }],
            ..Facts::default()
        };
        let asked = ["--context".to_owned(), "prod".to_owned()];
        let found = diagnosis(None, &facts, &asked).findings;
        let codes: Vec<&str> = found.iter().map(|it| it.code).collect();
        assert_eq!(codes, ["no_leader", "node_absent", "node_absent"]);
        let command = "nowserving cluster status --wait --context prod";
        assert_eq!(found[0].commands(), [command]);
    }
}
