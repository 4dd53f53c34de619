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

use crate::args::Global;
use crate::doctor::facts::Facts;
use crate::doctor::finding::{Finding, Severity};
use crate::output::{Output, REFUSED, UNREACHABLE};

/// Finds out why a line does not move, or what is wrong with the cluster.
///
/// Looks at the leader, the NATS server and this login's rights there, nodes, disks, clocks and releases; with a line
/// also at its phase, seats and their holders, rate, quota, schedule and room. Each finding comes with the command that mends it,
/// the worst first.
#[derive(Debug, Args)]
#[command(after_help = "\
The exit code is 0 if nothing is broken (a line that an operator has paused is not), 1 for a problem, and 3 if the
cluster cannot be reached.

Examples:
  nowserving doctor
  nowserving doctor shop-1
  nowserving doctor shop-1 --json | jq -r '.findings[].code'")]
pub struct DoctorArgs {
    /// The line that does not move; without one, the cluster, and all lines for seats that are idle.
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
    let unreachable = facts.seen.is_empty();
    let diagnosis = diagnosis(args.line, &facts);
    output.answer(&diagnosis, |it| text::diagnosis(it, output))?;
    let broken = diagnosis
        .findings
        .iter()
        .any(|it| it.severity == Severity::Problem);
    Ok(ExitCode::from(match (unreachable, broken) {
        (true, _) => UNREACHABLE,
        (false, true) => REFUSED,
        (false, false) => 0,
    }))
}

fn diagnosis(line: Option<String>, facts: &Facts) -> Diagnosis {
    let mut findings = facts.errors.clone();
    findings.extend(cluster::findings(&facts.seen));
    findings.extend(facts.line.iter().flat_map(line::findings));
    findings.extend(facts::idle(&facts.lines));
    // Of the shards' leaders the cluster tells as well.
    let codes: Vec<&str> = findings.iter().map(|it| it.code).collect();
    let doubled = codes.iter().filter(|code| **code == "no_leader").count() > 1;
    if doubled && let Some(at) = codes.iter().rposition(|code| *code == "no_leader") {
        findings.remove(at);
    }
    // Stable: of equal severity, in the order in which they were looked for.
    findings.sort_by_key(|it| it.severity);
    Diagnosis {
        line,
        findings,
        in_order: text::in_order(facts),
    }
}
