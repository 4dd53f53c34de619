//! `nowserving doctor`: why does this line not move?
//!
//! [`facts`] asks; [`cluster`] and [`line`] are pure: facts in, findings out.

mod cluster;
mod facts;
mod finding;
mod line;
#[cfg(test)]
mod line_tests;
mod text;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::doctor::facts::Facts;
use crate::doctor::finding::{Finding, Severity};
use nowserving_terminal::global::Global;
use nowserving_terminal::output::{Output, REFUSED, UNREACHABLE};

/// Finds out why a line does not move, or what is wrong with the cluster.
///
/// Looks at the leader, the NATS server and this login's rights there, nodes, disks, clocks and releases; with a line
/// also at its phase, seats and their holders, rate, quota, schedule and room. Each finding comes with the commands that mend it,
/// the worst first.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if nothing is broken (a line that an operator has paused is not), 1 for a problem, or if this login
may not ask for all of it, and 3 if the cluster cannot be reached.

Examples:
  nowserving doctor
  nowserving doctor shop-1
  nowserving doctor shop-1 --json | jq -r '.findings[].mend[]?.command // empty'")]
pub struct DoctorArgs {
    /// The line that does not move; without one, the cluster, and all lines in which tokens wait and nobody is admitted.
    pub line: Option<String>,
}

/// The answer.
#[derive(Debug, Serialize)]
struct Diagnosis {
    /// The line, if one was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<String>,
    /// The worst first, else in the order in which they should be looked at.
    findings: Vec<Finding>,
    /// What was looked at and found in order, a line each.
    in_order: Vec<String>,
}

/// Asks, judges, and prints.
pub async fn run(args: DoctorArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let facts = facts::gather(args.line.as_deref(), global).await?;
    let diagnosis = diagnosis(args.line, &facts, &global.asked);
    output.answer(&diagnosis, |it| text::diagnosis(it, output))?;
    let broken = diagnosis
        .findings
        .iter()
        .any(|it| it.severity == Severity::Problem);
    Ok(ExitCode::from(
        match (facts.forbidden.is_empty(), facts.is_empty(), broken) {
            (false, ..) => REFUSED,
            (true, true, _) => UNREACHABLE,
            (true, false, true) => REFUSED,
            (true, false, false) => 0,
        },
    ))
}

/// `asked`: the options that said which cluster, for the commands.
fn diagnosis(line: Option<String>, facts: &Facts, asked: &[String]) -> Diagnosis {
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
    let commands = findings.iter_mut().flat_map(|it| &mut it.mend);
    for command in commands.filter_map(|it| it.command.as_mut()) {
        for word in asked {
            command.push(' ');
            command.push_str(word);
        }
    }
    Diagnosis {
        line,
        findings,
        in_order: text::in_order(facts),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::doctor::cluster::Seen;

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
