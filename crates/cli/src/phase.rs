//! `nowserving line pause|open|drain|close`: the phase of lines.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use nowserving_client::{
    AdminLine, Change, Configure, ConfigureLines, LineReply, Phase, SettingsChanges, SettingsPatch,
};
use nowserving_line::NUMBER_MAX;

use crate::confirm;
use crate::no_such_line;
use crate::{set, settings, tables};
use nowserving_terminal::global::{Global, Why};
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, WrongUsage};

/// More people than so many are not sent away, or let in, without a question.
pub const UNASKED_MAX: u64 = 10;

/// Which lines.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub struct PhaseArgs {
    /// The lines.
    #[arg(value_name = "LINE", group = "which")]
    names: Vec<String>,
    /// All lines with this label; repeated: with all of them.
    #[arg(
        long = "label", value_name = "NAME=VALUE", value_parser = settings::label, group = "which"
    )]
    labels: Vec<(String, String)>,
    /// Only if the settings have not changed since the line had this version.
    #[arg(
        long, value_name = "VERSION", conflicts_with = "labels",
        value_parser = number::between::<u64>(0..=NUMBER_MAX)
    )]
    if_version: Option<u64>,
    /// Only shows what would change.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    why: Why,
}

/// [`PhaseArgs`] of a phase that sends people away.
#[derive(Debug, Args)]
pub struct CloseArgs {
    #[command(flatten)]
    lines: PhaseArgs,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
}

impl PhaseArgs {
    fn set(phase: Phase) -> SettingsPatch {
        SettingsPatch {
            phase: Some(Change::Set(phase)),
            ..SettingsPatch::default()
        }
    }

    /// Several lines have several versions.
    fn check(&self) -> Result<(), WrongUsage> {
        match self.if_version.is_some() && self.names.len() > 1 {
            true => Err(WrongUsage("--if-version: of one line only".to_owned())),
            false => Ok(()),
        }
    }

    fn request(&self, phase: Phase, before: &LineReply) -> Configure {
        Configure {
            if_version: self.if_version,
            incarnation: Some(before.incarnation),
            dry_run: self.dry_run,
            settings: PhaseArgs::set(phase),
        }
    }

    fn request_for_labels(&self, phase: Phase) -> Result<ConfigureLines, WrongUsage> {
        let labels = settings::labels(self.labels.iter().cloned()).map_err(WrongUsage)?;
        Ok(ConfigureLines {
            labels,
            set: SettingsChanges(PhaseArgs::set(phase)),
            dry_run: self.dry_run,
            ..ConfigureLines::default()
        })
    }
}

/// Closes lines: everybody in them goes.
pub async fn close(args: CloseArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    run(args.lines, Phase::Closed, args.yes, global, output).await
}

/// Puts lines into a phase that sends nobody away.
pub async fn change(
    args: PhaseArgs,
    phase: Phase,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    run(args, phase, true, global, output).await
}

async fn run(
    args: PhaseArgs,
    phase: Phase,
    yes: bool,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    args.check()?;
    let admin = global.connect().await?.admin();
    let admin = admin.with_note(global.note(args.why.reason.as_deref()))?;
    if args.names.is_empty() {
        let request = args.request_for_labels(phase)?;
        if !yes && !args.dry_run {
            ask_for_labels(output)?;
        }
        return set::many(&admin, request, output).await;
    }
    let mut found = Vec::new();
    for name in &args.names {
        let line = admin.line(name)?;
        let before = match line.show().await {
            Ok(before) => before,
            Err(error) => return Err(no_such_line::explained(error.into(), name, global).await),
        };
        found.push((line, before));
    }
    if !yes && !args.dry_run {
        let people: u64 = found.iter().map(|(_, before)| people_in(before)).sum();
        ask_to_end(people, output)?;
    }
    for (line, before) in &found {
        let request = args.request(phase, before);
        one(line, before, &request, output).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn one(
    line: &AdminLine,
    before: &LineReply,
    request: &Configure,
    output: &Output,
) -> anyhow::Result<()> {
    let changed = line.configure(request).await?;
    let changed = set::Changed::new(before, changed, request.dry_run);
    output.answer(&changed, |it| format!("{}: {}", it.line.line, it.text()))
}

/// Asks whether to close all lines with some labels.
pub fn ask_for_labels(output: &Output) -> anyhow::Result<()> {
    confirm::ask("close all lines with these labels", output)
}

/// Asks whether to send so many away; not about few.
pub fn ask_to_end(people: u64, output: &Output) -> anyhow::Result<()> {
    match people <= UNASKED_MAX {
        true => Ok(()),
        false => confirm::ask(&sends_away(people), output),
    }
}

/// Asks whether to admit so many who wait; not about few.
pub fn ask_to_admit(waiting: u64, output: &Output) -> anyhow::Result<()> {
    match waiting <= UNASKED_MAX {
        true => Ok(()),
        false => confirm::ask(&admits(waiting), output),
    }
}

/// Tokens that are not gone.
pub fn people_in(line: &LineReply) -> u64 {
    let counts = &line.counts;
    counts.waiting + counts.admitted + counts.in_checkout
}

/// `end 12 tokens`
pub fn sends_away(people: u64) -> String {
    format!("end {}", tables::many(people, "token"))
}

/// `admit all 12 waiting tokens at once`
pub fn admits(waiting: u64) -> String {
    format!(
        "admit all {} at once",
        tables::many(waiting, "waiting token")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser as _;

    use crate::commands::Cli;

    #[test]
    fn lines_are_named_or_chosen_by_labels() {
        for (words, good) in [
            ("line pause shop-1", true),
            ("line open shop-1 shop-2 --reason sale --by ann", true),
            (
                "line drain --label city=Taipei --label event=7 --dry-run",
                true,
            ),
            ("line close shop-1 --if-version 7 --yes", true),
            ("line pause", false),
            ("line pause shop-1 --label city=Taipei", false),
            ("line pause --label city=Taipei --if-version 7", false),
            ("line open shop-1 --yes", false),
        ] {
            let all = ["nowserving"].into_iter().chain(words.split(' '));
            assert_eq!(Cli::try_parse_from(all).is_ok(), good, "{words}");
        }
    }
}
