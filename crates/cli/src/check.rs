//! `nowserving node --check`: the report on a data directory, as text.

use std::path::Path;
use std::process::ExitCode;

use nowserving_node::check::{self, Problem, Report};

use nowserving_terminal::output::Output;

/// Verifies a data directory and prints what is wrong; exit code 1 if anything is.
pub fn run(data_dir: &Path, output: &Output) -> anyhow::Result<ExitCode> {
    let report = match data_dir.exists() {
        true => check::run(data_dir),
        false => missing(data_dir),
    };
    output.answer(&report, text)?;
    Ok(ExitCode::from(u8::from(!report.ok)))
}

fn missing(data_dir: &Path) -> Report {
    Report {
        data_dir: data_dir.to_owned(),
        ok: false,
        node: None,
        shards: Vec::new(),
        problems: vec![Problem {
            what: format!("{} does not exist", data_dir.display()),
            advice: None,
        }],
    }
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
        lines.extend(problem.advice.map(|it| format!("  {}", advice(it, report))));
    }
    lines.push(match report.problems.len() {
        0 => "nothing is wrong".to_owned(),
        1 => "1 problem".to_owned(),
        count => format!("{count} problems"),
    });
    lines.join("\n")
}

/// The advice, with the number of the node if the report has it.
fn advice(advice: &str, report: &Report) -> String {
    match &report.node {
        Some(owner) => advice.replace("<node>", &owner.id.to_string()),
        None => advice.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use nowserving_node::check::Owner;

    use super::*;

    #[test]
    fn a_missing_directory_is_one_sentence() {
        let report = missing(Path::new("/no/such"));
        assert_eq!(text(&report), "wrong: /no/such does not exist\n1 problem");
    }

    #[test]
    fn advice_names_the_node() {
        let mut report = missing(Path::new("d"));
        assert_eq!(
            advice("replace-node <node>", &report),
            "replace-node <node>"
        );
        report.node = Some(Owner {
            cluster: "c".to_owned(),
            id: 7,
            shards: 16,
            starts: 1,
        });
        assert_eq!(advice("replace-node <node>", &report), "replace-node 7");
    }
}
