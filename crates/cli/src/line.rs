//! `nowserving line …`: the operations of operators on lines.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use nowserving_client::{
    Admin, AdminLine, Code, Configure, Create, Delete, LIST_LINES_MAX, LaneName, LineList,
    LineName, LineReply, ListLines, SettingsPatch,
};
use nowserving_line::Setting;

use crate::args::Global;
use crate::journal::{self, JournalArgs};
use crate::kick::{self, KickArgs};
use crate::output::{Output, WrongUsage};
use crate::progress::Progress;
use crate::settings::{self, SettingsFlags};
use crate::tables;

/// How often a deletion under way is checked.
const DELETE_POLL: Duration = Duration::from_millis(200);

/// A kick of a long line has at least so much time.
const KICK_TIME: Duration = Duration::from_secs(60);

/// Creates, changes, shows, lists and deletes lines; moves and kicks tokens; shows the journal.
#[derive(Debug, Subcommand)]
pub enum LineCommand {
    /// Creates a line.
    #[command(after_help = "\
Examples:
  nowserving line create shop-1 --seats 50 --queue-limit 10000
  nowserving line create concert --seats 200 --queue-limit 100000 \\
      --claim-timeout 1m --label city=Taipei --label event=tour-7
  nowserving line create concert --seats 200 --queue-limit 100000 --phase pre_open \\
      --lane normal --lane vip:boost=10m:limit=500 --lane staff:absolute \\
      --admission-rate 20/40 --quota 5000 --standby-percent 10 --call-ahead 300")]
    #[command(mut_arg("seats", |arg| arg.required(true)))]
    #[command(mut_arg("queue_limit", |arg| arg.required(true)))]
    Create {
        /// The line's name: 1 to 64 of A-Z a-z 0-9 _ -.
        name: String,
        #[command(flatten)]
        settings: SettingsFlags,
    },
    /// Changes settings of a line, at once and all or none.
    #[command(after_help = "\
Nobody is thrown out when a limit is lowered.

Examples:
  nowserving line set shop-1 --seats 80
  nowserving line set shop-1 --phase paused
  nowserving line set shop-1 --lane normal --lane vip:boost=10m
  nowserving line set shop-1 --admission-rate 0.5/3
  nowserving line set shop-1 --unset claim_timeout,admission_rate,labels
  nowserving line set shop-1 --queue-limit 0 --if-version 4711")]
    Set {
        /// The line's name.
        name: String,
        #[command(flatten)]
        settings: SettingsFlags,
        /// Puts a setting back to its default; several by commas or by repeating.
        #[arg(long, value_name = "SETTING", value_delimiter = ',', value_parser = settings::unset())]
        unset: Vec<&'static Setting>,
        /// Only if the settings have not changed since the line had this version.
        #[arg(long, value_name = "VERSION")]
        if_version: Option<u64>,
    },
    /// Shows a line's settings, board and counts.
    Show {
        /// The line's name.
        name: String,
    },
    /// Moves a waiting token into another lane.
    #[command(after_help = "\
It gets the next number there, behind those who wait there already; what counts against the other
lanes is when it entered. Its holder can go on with the old ticket.

Example:
  nowserving line move shop-1 --lane normal --token 17 --to vip")]
    Move {
        /// The line's name.
        name: String,
        /// The lane that it is in.
        #[arg(long, value_name = "LANE")]
        lane: LaneName,
        /// Its number there.
        #[arg(long, value_name = "N")]
        token: u64,
        /// The lane that it shall be in.
        #[arg(long, value_name = "LANE")]
        to: LaneName,
    },
    Journal(JournalArgs),
    Kick(KickArgs),
    /// Lists lines by name.
    #[command(after_help = "\
Examples:
  nowserving line list --label city=Taipei
  nowserving line list --limit 1000 --after shop-5 --json")]
    List {
        /// Only lines with this label; repeated: with all of them.
        #[arg(long = "label", value_name = "NAME=VALUE", value_parser = settings::label)]
        labels: Vec<(String, String)>,
        /// Begin after this name.
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
        /// How many lines at most.
        #[arg(
            long, value_name = "N", default_value_t = 1_000,
            value_parser = clap::value_parser!(u64).range(1..=1_000_000)
        )]
        limit: u64,
    },
    /// Deletes a line.
    #[command(after_help = "\
Without --force only a line that nobody is in. With --force everybody goes with reason `closed`,
which can take a while in a long line; the command ends when the line is gone.

Examples:
  nowserving line delete shop-1
  nowserving line delete shop-1 --force")]
    Delete {
        /// The line's name.
        name: String,
        /// Also if somebody is in it.
        #[arg(long)]
        force: bool,
    },
}

impl LineCommand {
    /// The line that the command is about, if it must exist.
    pub fn line(&self) -> Option<&str> {
        match self {
            LineCommand::Create { .. } | LineCommand::List { .. } => None,
            LineCommand::Journal(args) => Some(args.line()),
            LineCommand::Kick(args) => Some(args.line()),
            LineCommand::Set { name, .. }
            | LineCommand::Show { name }
            | LineCommand::Move { name, .. }
            | LineCommand::Delete { name, .. } => Some(name),
        }
    }
}

/// Runs one of them.
pub async fn run(
    command: LineCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    match command {
        LineCommand::Create { name, settings } => {
            let settings = settings.patch(&[])?;
            let made = line(global, &name).await?;
            let made = made.create(&Create { settings }).await?;
            output.answer(&made, |made| tables::line(made, output))?;
        }
        LineCommand::Set {
            name,
            settings,
            unset,
            if_version,
        } => {
            let settings = settings.patch(&unset)?;
            if settings == SettingsPatch::default() {
                return Err(WrongUsage("nothing to set or unset".to_owned()).into());
            }
            let line = line(global, &name).await?;
            set(&line, settings, if_version, output).await?;
        }
        LineCommand::Show { name } => {
            let line = line(global, &name).await?.show().await?;
            output.answer(&line, |line| tables::line(line, output))?;
        }
        LineCommand::Move {
            name,
            lane,
            token,
            to,
        } => {
            let line = line(global, &name).await?;
            let status = line.move_token(lane, token, to).await?;
            output.answer(&status, |status| tables::status(status, output))?;
        }
        LineCommand::Journal(args) => {
            let line = line(global, args.line()).await?;
            journal::run(&args, &line, output).await?;
        }
        LineCommand::Kick(args) => {
            let client = global.connect_for(KICK_TIME).await?;
            let line = client.admin().line(args.line())?;
            kick::run(&args, &line, output).await?;
        }
        LineCommand::List {
            labels,
            after,
            limit,
        } => {
            let admin = global.connect().await?.admin();
            let from = ListLines {
                after: after.as_deref().map(line_name).transpose()?,
                limit: None,
                labels: labels.into_iter().collect(),
            };
            let all = all_lines(&admin, from, limit).await?;
            output.answer(&all, |all| tables::lines(all, output))?;
        }
        LineCommand::Delete { name, force } => {
            delete(&line(global, &name).await?, force, output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn line(global: &Global, name: &str) -> anyhow::Result<AdminLine> {
    Ok(global.connect().await?.admin().line(name)?)
}

async fn set(
    line: &AdminLine,
    settings: SettingsPatch,
    if_version: Option<u64>,
    output: &Output,
) -> anyhow::Result<()> {
    let names_lane = settings.default_lane.is_some();
    let before = line.show().await?;
    let request = Configure {
        if_version,
        incarnation: Some(before.incarnation),
        settings,
    };
    let changed = line.configure(&request).await?;
    if !names_lane
        && !output.json
        && let Some(note) = default_lane_note(&before, &changed)
    {
        eprintln!("{note}");
    }
    output.answer(&changed, |changed| tables::line(changed, output))
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

/// Up to `limit` lines, asked for page by page.
pub async fn all_lines(
    admin: &Admin,
    mut page: ListLines,
    limit: u64,
) -> nowserving_client::Result<LineList> {
    let mut all = LineList::default();
    loop {
        let left = limit.saturating_sub(all.lines.len() as u64);
        page.limit = Some(left.min(LIST_LINES_MAX));
        let got = admin.list_lines(&page).await?;
        let is_empty = got.lines.is_empty();
        all.lines.extend(got.lines);
        all.next = got.next;
        page.after.clone_from(&all.next);
        // An empty page that still names a next one must not cause an endless loop.
        if all.next.is_none() || all.lines.len() as u64 >= limit || is_empty {
            return Ok(all);
        }
    }
}

fn line_name(name: &str) -> anyhow::Result<LineName> {
    LineName::try_from(name).map_err(|error| WrongUsage(format!("{name:?}: {error}")).into())
}

async fn delete(line: &AdminLine, force: bool, output: &Output) -> anyhow::Result<()> {
    let incarnation = line.show().await?.incarnation;
    let request = Delete {
        force,
        incarnation: Some(incarnation),
    };
    let mut reply = line.delete(&request).await?;
    if !reply.deleted {
        until_gone(line, incarnation, reply.remaining, output).await?;
        (reply.deleted, reply.remaining) = (true, 0);
    }
    output.answer(&reply, |reply| format!("{} is deleted", reply.line))
}

/// Follows a deletion under way. It goes on by itself: ending this command does not stop it.
pub async fn until_gone(
    line: &AdminLine,
    incarnation: u64,
    tokens: u64,
    output: &Output,
) -> anyhow::Result<()> {
    let template = "{wide_bar} {pos} of {len} tokens ended";
    let progress = output.live.then(|| Progress::new(Some(tokens), template));
    loop {
        tokio::time::sleep(DELETE_POLL).await;
        match line.show().await {
            Ok(shown) if shown.incarnation == incarnation => {
                if let Some(Progress { bar }) = &progress {
                    bar.set_position(tokens.saturating_sub(shown.deleting.unwrap_or_default()));
                }
            }
            // Somebody has created the next line of this name already.
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some(Code::LineNotFound) => return Ok(()),
            Err(error) if error.is_transient() => {}
            Err(error) => return Err(error.into()),
        }
    }
}
