//! `nowserving line set`: changes the settings of one line, or of all lines with some labels.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use nowserving_client::{
    Admin, AdminLine, Change, Configure, ConfigureLines, ConfigureLinesReply, ConfiguredLine, Gate,
    LineReply, ListLines, Phase, SettingChangeReply, SettingsChanges, SettingsPatch,
};
use nowserving_line::{NUMBER_MAX, Setting};
use nowserving_protocol::error::{ApiError, Code};
use serde::Serialize;

use crate::settings::{self, SettingsFlags};
use crate::{no_such_line, past, phase, tables};
use nowserving_insight::pages::all_lines;
use nowserving_terminal::global::{Global, Why};
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, REFUSED, UNREACHABLE, WrongUsage};
use nowserving_terminal::progress::Progress;

/// Changes settings of a line, or of all lines with some labels, at once and all or none.
#[derive(Debug, Args)]
#[command(after_help = "\
Nobody is thrown out when a limit is lowered. `--phase closed` ends all tokens: it asks as `line close` does.
`--gate off` and `--gate shadow` admit all who wait at once: they ask if these are more than ten.
A change of --schedule whose time is past is made at once: that is asked about. The schedule is
replaced whole, changes to come included.

Without a line's name, --label selects the lines: all that have these labels. Each of them is
changed whole or not at all; the exit code is 1 if one was refused, or if there is none.
Repeating it is safe.

Examples:
  nowserving line set shop-1 --seats 80
  nowserving line set shop-1 --phase paused --reason \"payment is down\"
  nowserving line set shop-1 --lane normal --lane vip:boost=10m
  nowserving line set shop-1 --admission-rate 0.5/3 --dry-run
  nowserving line set shop-1 --unset claim_timeout,admission_rate,labels
  nowserving line set shop-1 --queue-limit 0 --if-version 4711
  nowserving line set --label city=Taipei --phase paused --dry-run")]
pub struct SetArgs {
    /// The line's name.
    pub name: Option<String>,
    #[command(flatten)]
    settings: SettingsFlags,
    /// Puts a setting back to its default; several by commas or by repeating.
    #[arg(long, value_name = "SETTING", value_delimiter = ',', value_parser = settings::unset())]
    unset: Vec<&'static Setting>,
    /// Only if the settings have not changed since the line had this version.
    #[arg(
        long, value_name = "VERSION", requires = "name",
        value_parser = number::between::<u64>(0..=NUMBER_MAX)
    )]
    if_version: Option<u64>,
    /// Only shows what would change. With --json, `settings` are those that the line would have, and its board, counts
    /// and all else are as they are now.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    why: Why,
}

/// What a change does to people beside what it sets. It is asked about, unless the user said not to.
#[derive(Clone, Copy, Debug)]
struct Asks {
    /// Everybody goes.
    closes: bool,
    /// All who wait are admitted.
    admits: bool,
}

impl Asks {
    fn of(set: &SettingsPatch, unasked: bool) -> Asks {
        let closes = |it: &SettingsPatch| it.phase == Some(Change::Set(Phase::Closed));
        let admits =
            |it: &SettingsPatch| matches!(it.gate, Some(Change::Set(gate)) if !gate.holds_back());
        Asks {
            closes: !unasked && past::made_at_once(set).any(closes),
            admits: !unasked && past::made_at_once(set).any(admits),
        }
    }
}

/// Changes them, or shows what would change.
pub async fn run(args: SetArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let mut set = args.settings.patch(&args.unset)?;
    let nothing = || WrongUsage("nothing to set or unset".to_owned());
    let asks = Asks::of(&set, args.yes || args.dry_run);
    past::ask(&set, args.yes, args.dry_run, output)?;
    if let Some(name) = &args.name {
        if set == SettingsPatch::default() {
            return Err(nothing().into());
        }
        let line = global.connect().await?.admin().line(name)?;
        let line = line.with_note(global.note(args.why.reason.as_deref()))?;
        let request = Configure {
            if_version: args.if_version,
            incarnation: None,
            dry_run: args.dry_run,
            settings: set,
        };
        return one(&line, request, asks, output).await;
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
    let admin = global.connect().await?.admin();
    let admin = admin.with_note(global.note(args.why.reason.as_deref()))?;
    if asks.closes {
        phase::ask_for_labels(output)?;
    }
    if asks.admits {
        let such = ListLines {
            labels: request.labels.clone(),
            ..ListLines::default()
        };
        let such = all_lines(&admin, such, u64::MAX).await?;
        let waiting = such.lines.iter().map(|line| line.waiting).sum();
        phase::ask_to_admit(waiting, output)?;
    }
    many(&admin, request, output).await
}

async fn one(
    line: &AdminLine,
    mut request: Configure,
    asks: Asks,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let names_lane = request.settings.default_lane.is_some();
    let before = line.show().await?;
    if asks.closes {
        phase::ask_to_end(phase::people_in(&before), output)?;
    }
    past::note_dropped(&request.settings, &before.settings.schedule, output);
    let holds_back = before.settings.gate == Gate::On.as_str();
    if asks.admits && holds_back {
        phase::ask_to_admit(before.counts.waiting, output)?;
    }
    request.incarnation = Some(before.incarnation);
    let changed = line.configure(&request).await?;
    if !names_lane
        && !output.json
        && let Some(note) = default_lane_note(&before, &changed)
    {
        eprintln!("{note}");
    }
    let changed = Changed::new(&before, changed, request.dry_run);
    output.answer(&changed, Changed::text)?;
    Ok(ExitCode::SUCCESS)
}

/// The answer to a change of one line.
#[derive(Debug, Serialize)]
pub struct Changed {
    /// Nothing was changed. `settings` of the line are those that it would have; its board, counts and all else are as
    /// they are now.
    pub dry_run: bool,
    /// What differs from before.
    changes: Vec<SettingChangeReply>,
    #[serde(flatten)]
    pub line: LineReply,
}

impl Changed {
    pub fn new(before: &LineReply, line: LineReply, dry_run: bool) -> Changed {
        Changed {
            dry_run,
            changes: SettingChangeReply::between(&before.settings, &line.settings),
            line,
        }
    }

    /// `changed: seats 5 → 7`
    pub fn text(&self) -> String {
        let changes = tables::changes(&self.changes);
        match self.dry_run {
            true => format!("would change: {changes}{}", self.effects()),
            false => format!("changed: {changes}"),
        }
    }

    /// What a dry run says of the people in the line.
    fn effects(&self) -> String {
        let changes = |setting: &str, such: &dyn Fn(&SettingChangeReply) -> bool| {
            let mut of_it = self.changes.iter().filter(|it| it.setting == setting);
            of_it.any(such)
        };
        let (people, waiting) = (phase::people_in(&self.line), self.line.counts.waiting);
        let mut effects = String::new();
        if people > 0 && changes("phase", &|it| it.to == Phase::Closed.as_str()) {
            effects += &format!("; this would {}", phase::sends_away(people));
        }
        if waiting > 0 && changes("gate", &|it| it.from == Gate::On.as_str()) {
            effects += &format!("; this would {}", phase::admits(waiting));
        }
        effects
    }
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

/// Changes all lines with the labels of the request, page by page.
pub async fn many(
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
    if all.lines.is_empty() {
        return Err(no_such_line::no_line_with(&page.labels, admin).await.into());
    }
    output.answer(&all, |all| text(all, output))?;
    Ok(ExitCode::from(ending(&all.lines)))
}

/// One line that refused is a refusal; if the others only were not answered in time, a repetition can do.
fn ending(lines: &[ConfiguredLine]) -> u8 {
    let errors = lines.iter().filter_map(|line| line.error.as_ref());
    let codes = errors.map(|error| match is_refusal(error) {
        true => REFUSED,
        false => UNREACHABLE,
    });
    codes.min().unwrap_or(0)
}

fn is_refusal(error: &ApiError) -> bool {
    !matches!(
        error.code,
        Code::Unavailable | Code::Overloaded | Code::OutcomeUnknown
    )
}

fn text(all: &ConfigureLinesReply, output: &Output) -> String {
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
        Some(error) if is_refusal(error) => format!("refused: {error}"),
        Some(error) => format!("failed: {error}"),
        None => tables::changes(&line.changes),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn line(code: Option<Code>) -> ConfiguredLine {
        ConfiguredLine {
            line: "shop-1".try_into().unwrap(),
            settings_version: None,
            changes: Vec::new(),
            error: code.map(|code| ApiError::new(code, "why")),
        }
    }

    #[test]
    fn a_line_that_did_not_answer_in_time_is_not_one_that_refused() {
        let late = Some(Code::Unavailable);
        for (codes, exit_code) in [
            (vec![], 0),
            (vec![None], 0),
            (vec![None, late], UNREACHABLE),
            (vec![Some(Code::OutcomeUnknown), late], UNREACHABLE),
            (vec![late, Some(Code::BadRequest), None], REFUSED),
        ] {
            let lines: Vec<_> = codes.iter().copied().map(line).collect();
            assert_eq!(ending(&lines), exit_code, "{codes:?}");
        }
        assert_eq!(what(&line(late)), "failed: unavailable: why");
        let refused = line(Some(Code::BadRequest));
        assert_eq!(what(&refused), "refused: bad_request: why");
    }
}
