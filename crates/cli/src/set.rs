//! `nowserving line set`: changes the settings of one line, or of all lines with some labels.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use nowserving_client::{
    Admin, AdminLine, Change, Configure, ConfigureLines, ConfigureLinesReply, ConfiguredLine,
    LineReply, SettingChangeReply, SettingsChanges, SettingsPatch,
};
use nowserving_line::Setting;

use crate::args::Global;
use crate::output::{Output, REFUSED, WrongUsage};
use crate::progress::Progress;
use crate::settings::{self, SettingsFlags};
use crate::tables;

/// Changes settings of a line, or of all lines with some labels, at once and all or none.
#[derive(Debug, Args)]
#[command(after_help = "\
Nobody is thrown out when a limit is lowered.

Without a line's name, --label selects the lines: all that have these labels. Each of them is
changed whole or not at all; the exit code is 1 if one was refused. Repeating it is safe.

Examples:
  nowserving line set shop-1 --seats 80
  nowserving line set shop-1 --phase paused
  nowserving line set shop-1 --lane normal --lane vip:boost=10m
  nowserving line set shop-1 --admission-rate 0.5/3 --dry-run
  nowserving line set shop-1 --unset claim_timeout,admission_rate,labels
  nowserving line set shop-1 --queue-limit 0 --if-version 4711
  nowserving line set --label city=Taipei --phase paused --dry-run")]
pub struct SetArgs {
    /// The line's name.
    name: Option<String>,
    #[command(flatten)]
    settings: SettingsFlags,
    /// Puts a setting back to its default; several by commas or by repeating.
    #[arg(long, value_name = "SETTING", value_delimiter = ',', value_parser = settings::unset())]
    unset: Vec<&'static Setting>,
    /// Only if the settings have not changed since the line had this version.
    #[arg(long, value_name = "VERSION", requires = "name")]
    if_version: Option<u64>,
    /// Only shows what would change.
    #[arg(long)]
    dry_run: bool,
}

impl SetArgs {
    /// The line's name, if it is about one.
    pub fn line(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Changes them, or shows what would change.
pub async fn run(args: SetArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let mut set = args.settings.patch(&args.unset)?;
    let nothing = || WrongUsage("nothing to set or unset".to_owned());
    if let Some(name) = &args.name {
        if set == SettingsPatch::default() {
            return Err(nothing().into());
        }
        let line = global.connect().await?.admin().line(name)?;
        let request = Configure {
            if_version: args.if_version,
            incarnation: None,
            dry_run: args.dry_run,
            settings: set,
        };
        return one(&line, request, output).await;
    }
    let Some(Change::Set(labels)) = set.labels.take() else {
        let what = "give the line's name, or --label NAME=VALUE for all lines with that label";
        return Err(WrongUsage(what.to_owned()).into());
    };
    if set == SettingsPatch::default() {
        return Err(nothing().into());
    }
    let request = ConfigureLines {
        labels: labels.into_iter().collect::<BTreeMap<_, _>>(),
        set: SettingsChanges(set),
        dry_run: args.dry_run,
        ..ConfigureLines::default()
    };
    many(&global.connect().await?.admin(), request, output).await
}

async fn one(
    line: &AdminLine,
    mut request: Configure,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let names_lane = request.settings.default_lane.is_some();
    let before = line.show().await?;
    request.incarnation = Some(before.incarnation);
    let changed = line.configure(&request).await?;
    if !names_lane
        && !output.json
        && let Some(note) = default_lane_note(&before, &changed)
    {
        eprintln!("{note}");
    }
    output.answer(&changed, |changed| {
        let changes = SettingChangeReply::between(&before.settings, &changed.settings);
        let changes = tables::changes(&changes);
        match request.dry_run {
            true => format!("would change: {changes}"),
            false => format!("changed: {changes}\n{}", tables::line(changed, output)),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The first of a new list of lanes can become the default lane without `--default-lane`.
fn default_lane_note(before: &LineReply, changed: &LineReply) -> Option<String> {
    let (old, new) = (
        before.default_lane.as_ref()?,
        changed.default_lane.as_ref()?,
    );
    (old != new).then(|| {
        format!(
            "note: entrants that name no lane now get lane {new}, the first listed; it was {old} \
             (--default-lane sets it)"
        )
    })
}

async fn many(
    admin: &Admin,
    mut page: ConfigureLines,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let progress = output
        .live
        .then(|| Progress::new(None, "{spinner} {pos} lines"));
    let mut all = ConfigureLinesReply {
        dry_run: page.dry_run,
        ..ConfigureLinesReply::default()
    };
    loop {
        let got = match admin.configure_lines(&page).await {
            Ok(got) => got,
            Err(error) => {
                // What was done stays done: it must not be lost with the error.
                drop(progress);
                all.next = page.after;
                if !all.lines.is_empty() {
                    output.answer(&all, |all| text(all, output))?;
                }
                return Err(error.into());
            }
        };
        all.lines.extend(got.lines);
        if let Some(Progress { bar }) = &progress {
            bar.set_position(all.lines.len() as u64);
        }
        page.after = got.next;
        if page.after.is_none() {
            break;
        }
    }
    drop(progress);
    output.answer(&all, |all| text(all, output))?;
    Ok(match all.lines.iter().any(|line| line.error.is_some()) {
        true => ExitCode::from(REFUSED),
        false => ExitCode::SUCCESS,
    })
}

fn text(all: &ConfigureLinesReply, output: &Output) -> String {
    if all.lines.is_empty() {
        return "no line has these labels".to_owned();
    }
    let header = match all.dry_run {
        true => "line, would change",
        false => "line, changed",
    };
    let rows = all
        .lines
        .iter()
        .map(|it| vec![it.line.to_string(), what(it)]);
    tables::plain(header, rows.collect(), output)
}

fn what(line: &ConfiguredLine) -> String {
    match &line.error {
        Some(error) => format!("refused: {error}"),
        None => tables::changes(&line.changes),
    }
}
