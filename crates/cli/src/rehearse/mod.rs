//! `nowserving rehearse`: a simulated crowd against the real line, in virtual time.

mod args;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nowserving_line::BadField;
use nowserving_rehearse::{BadConfig, Report, Summary};

use crate::tables;
use nowserving_terminal::output::{Output, WrongUsage};
use nowserving_terminal::progress::Progress;
use nowserving_terminal::shell;

pub use args::RehearseArgs;

/// Shorter runs show no progress.
const QUIET_FOR: Duration = Duration::from_secs(2);
const PROGRESS: &str = "{wide_bar} {pos}/{len} shoppers  {msg}";

/// Rehearses. No cluster is needed or touched.
///
/// # Errors
/// The flags make no sense, or a file cannot be written.
pub fn run(args: RehearseArgs, output: &Output) -> anyhow::Result<ExitCode> {
    let files = args.files.clone();
    let config = args.config()?;
    let begun = Instant::now();
    let mut progress = None;
    let report = nowserving_rehearse::run(&config, |now| {
        if begun.elapsed() >= QUIET_FOR {
            let new = || Progress::new(Some(now.shoppers), PROGRESS);
            let bar = &progress.get_or_insert_with(new).bar;
            bar.set_position(now.gone_home);
            let minutes = now.virtual_ms / 60_000;
            bar.set_message(format!("{minutes} min of virtual time"));
        }
    });
    drop(progress);
    let report = report.map_err(|error| match error {
        // The flags have checked the line's settings; the other fields are named like their flags.
        BadConfig::Field(BadField { field, limit }) => {
            let flag = field.trim_end_matches("_ms").replace('_', "-");
            anyhow::Error::from(WrongUsage(format!("--{flag}: {limit}")))
        }
        other => other.into(),
    })?;
    if let Some(path) = &files.csv {
        write(path, &report.csv())?;
    }
    if let Some(path) = &files.html {
        write(path, &report.html(&command_line())?)?;
    }
    output.answer(&report.summary(), |_| text(&report, output))?;
    tell_if_spread(&report);
    tell_if_cut_off("the rehearsal", &report.real.summary, &report);
    for change in &report.real.summary.schedule_failed {
        eprintln!("{change}");
    }
    if let Some(naive) = &report.naive {
        tell_if_cut_off("the article's algorithm", &naive.summary, &report);
    }
    if let Some(fixed) = &report.fixed {
        tell_if_cut_off("the one with fixed seats", &fixed.summary, &report);
    }
    for path in [files.csv, files.html].into_iter().flatten() {
        eprintln!("wrote {}", path.display());
    }
    Ok(verdict(&report.real.summary))
}

/// The command as it was typed, but for the path of the program.
fn command_line() -> String {
    let words = std::env::args_os().skip(1);
    let words = words.map(|word| shell::quoted(&word.to_string_lossy()));
    let words: Vec<String> = std::iter::once("nowserving".to_owned())
        .chain(words)
        .collect();
    words.join(" ")
}

/// Says that the crowd was spread evenly: the user did not ask for it and could miss it.
fn tell_if_spread(report: &Report) {
    let lanes = report.config.settings.lanes.len();
    if lanes > 1 && report.config.crowd.lane_mix.is_empty() {
        eprintln!("the crowd was spread evenly over the {lanes} lanes: --lane-mix changes that");
    }
}

/// A summary of half a run is easily taken for one of the whole.
fn tell_if_cut_off(whose: &str, summary: &Summary, report: &Report) {
    if let Some(how) = report.cut_off(summary) {
        eprintln!("{whose} {how}");
    }
}

/// The command fails if the real line broke a rule; the article's algorithm may break them.
fn verdict(summary: &Summary) -> ExitCode {
    if summary.is_sound() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "FAILED: {} overtakes against the rules, {} seats over the limit, {} contradictions",
        summary.overtakes, summary.over_limit_max, summary.contradictions
    );
    ExitCode::FAILURE
}

/// The verdict, then the table.
fn text(report: &Report, output: &Output) -> String {
    let article = report.naive.as_ref().map_or("", |_| ", the article's");
    let fixed = report.fixed.as_ref().map_or("", |_| ", fixed seats");
    let header = format!(", nowserving{article}{fixed}");
    let table = tables::plain(&header, report.rows(), output);
    format!("{}\n{table}", report.headline())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
