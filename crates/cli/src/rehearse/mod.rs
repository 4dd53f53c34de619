//! `nowserving rehearse`: a simulated crowd against the real line, in virtual time.

mod args;
mod progress;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use nowserving_rehearse::{BadConfig, Report, Summary};

use crate::output::{Output, WrongUsage};
use crate::tables;

pub use args::RehearseArgs;
use progress::Progress;

/// Rehearses. No cluster is needed or touched.
///
/// # Errors
/// The flags make no sense, or a file cannot be written.
pub fn run(args: RehearseArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let files = args.files.clone();
    let config = args.config()?;
    let mut progress = Progress::default();
    let report = nowserving_rehearse::run(&config, |now| progress.tell(now));
    progress.end();
    let report = report.map_err(|error| match error {
        BadConfig::Field(field) => anyhow::Error::from(WrongUsage(field.to_string())),
        other => other.into(),
    })?;
    if let Some(path) = &files.csv {
        write(path, &report.csv())?;
    }
    if let Some(path) = &files.html {
        write(path, &report.html()?)?;
    }
    output.answer(&report.summary(), |_| text(&report, output))?;
    Ok(verdict(&report.real.summary))
}

/// What must never happen fails the command; the article's algorithm may do as it likes.
fn verdict(summary: &Summary) -> ExitCode {
    if summary.overtakes == 0 && summary.over_limit_max == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "FAILED: {} overtakes, {} seats over the limit",
        summary.overtakes, summary.over_limit_max
    );
    ExitCode::FAILURE
}

fn text(report: &Report, output: &Output) -> String {
    let others = report.naive.as_ref().map(|run| run.summary.rows());
    let rows = report.real.summary.rows().into_iter().enumerate();
    let rows = rows.map(|(no, (name, value))| {
        let other = others.as_ref().and_then(|rows| rows.get(no));
        [
            Some(name.to_owned()),
            Some(value),
            other.map(|(_, other)| other.clone()),
        ]
        .into_iter()
        .flatten()
        .collect()
    });
    let mut header = vec!["", "nowserving"];
    header.extend(others.as_ref().map(|_| "the article's"));
    tables::plain(&header, rows.collect(), output)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
