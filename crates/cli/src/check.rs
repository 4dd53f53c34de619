//! `nowserving node --check`: the report on a data directory, as text.

use std::path::Path;
use std::process::ExitCode;

use nowserving_node::check::{self, Report};

use crate::output::Output;

/// Verifies a data directory and prints what is wrong; exit code 1 if anything is.
pub fn run(data_dir: &Path, output: &Output) -> anyhow::Result<ExitCode> {
    let report = check::run(data_dir);
    output.answer(&report, text)?;
    Ok(ExitCode::from(u8::from(!report.ok)))
}

fn text(report: &Report) -> String {
    let mut lines = Vec::new();
    if let Some(owner) = &report.node {
        lines.push(format!(
            "{}: node {} of cluster {:?}, {} shards, started {} times",
            report.data_dir.display(),
            owner.id,
            owner.cluster,
            owner.shards,
            owner.starts
        ));
    }
    for problem in &report.problems {
        lines.push(format!("wrong: {}", problem.what));
        lines.extend(problem.advice.map(|advice| format!("  {advice}")));
    }
    lines.push(match report.problems.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    });
    lines.join("\n")
}
