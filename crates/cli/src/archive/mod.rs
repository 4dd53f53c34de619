//! `nowserving archive report`: what happened on a day, from the archived events alone.

pub mod events;
pub mod gaps;
pub mod input;
mod report;
mod text;
mod visits;
pub mod waited;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use nowserving_client::LineName;

use self::events::Archive;
use self::report::{Report, Scope};
use nowserving_terminal::global::Global;
use nowserving_terminal::output::{Output, WrongUsage};

/// Reads archives of events.
#[derive(Debug, Subcommand)]
pub enum ArchiveCommand {
    Report(ReportArgs),
}

/// Rebuilds from archived events who entered, waited, was admitted, and how it ended.
///
/// Reads events as they were published, one a row, as `nats consumer next --raw` prints them; the subject may stand before
/// the event. With --stream it reads them from JetStream. Doubles are dropped, and gaps are named; rows that are no events are
/// counted on standard error, and it fails if nothing else is there. A token belongs to the
/// day on which it entered, whenever it ended.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving archive report 2026-01-31.jsonl --day 2026-01-31 --zone Asia/Taipei
  zcat *.jsonl.gz | nowserving archive report --line shop-1 --tokens --json
  nowserving archive report --stream NOWSERVING_EVENTS --day 2026-01-31")]
pub struct ReportArgs {
    /// Files with events; `-` or none: standard input.
    files: Vec<PathBuf>,
    /// Reads all events of this JetStream stream instead.
    #[arg(long, value_name = "NAME", conflicts_with = "files", value_parser = stream_name)]
    stream: Option<String>,
    /// Only the tokens that entered on this day.
    #[arg(long, value_name = "YYYY-MM-DD")]
    day: Option<Date>,
    /// The time zone of the day, and of the times that are shown.
    #[arg(long, value_name = "ZONE", default_value = "UTC", value_parser = zone)]
    zone: TimeZone,
    /// Only this line; may be repeated.
    #[arg(long = "line", value_name = "NAME")]
    lines: Vec<LineName>,
    /// Also lists every token.
    #[arg(long)]
    tokens: bool,
}

fn zone(name: &str) -> Result<TimeZone, String> {
    let unknown = || "the name of a time zone, such as Asia/Taipei or UTC".to_owned();
    TimeZone::get(name).map_err(|_| unknown())
}

pub fn stream_name(name: &str) -> Result<String, String> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || "*>./\\".contains(c);
    match name.is_empty() || name.contains(bad) {
        true => Err("the name of a JetStream stream".to_owned()),
        false => Ok(name.to_owned()),
    }
}

pub async fn run(command: ArchiveCommand, global: &Global, output: &Output) -> anyhow::Result<()> {
    let ArchiveCommand::Report(args) = command;
    // A day that does not exist is said before millions of events are read.
    let within_ms = args.day.map(|day| day_of(day, &args.zone)).transpose()?;
    let mut archive = Archive::default();
    match &args.stream {
        Some(stream) => input::stream(stream, &args.lines, global, &mut archive).await?,
        None => input::files(&args.files, &mut archive)?,
    }
    let scope = Scope {
        within_ms,
        lines: args.lines,
        tokens: args.tokens,
    };
    let report = Report {
        day: args.day.map(|day| day.to_string()),
        zone: args.zone.iana_name().unwrap_or("UTC").to_owned(),
        ..Report::new(&archive, &scope)
    };
    if let Some(warning) = text::unreadable(&report) {
        if archive.is_unreadable() {
            bail!("nothing could be read: {warning}");
        }
        eprintln!("{warning}");
    }
    output.answer(&report, |report| text::report(report, &args.zone, output))
}

/// When a day begins and ends, in milliseconds since 1970. It can have 23 or 25 hours.
fn day_of(day: Date, zone: &TimeZone) -> anyhow::Result<(u64, u64)> {
    let begin = |day: Date| -> anyhow::Result<u64> {
        let at = day.to_zoned(zone.clone())?.timestamp().as_millisecond();
        u64::try_from(at).context("before 1970")
    };
    let both = || anyhow::Ok((begin(day)?, begin(day.tomorrow()?)?));
    both().map_err(|error| WrongUsage(format!("--day: {error:#}")).into())
}
