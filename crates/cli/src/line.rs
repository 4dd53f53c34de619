//! `nowserving line …`: the operations of operators on lines.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Subcommand};
use nowserving_client::{
    AdminLine, CapacityTold, Code, Create, Delete, LaneName, LineName, ListLines, Phase,
};
use nowserving_line::{SEATS_MAX, TIMEOUT_MS_MAX, TIMEOUT_MS_MIN};

use crate::calls::{self, CallNextArgs, TakeArgs};
use crate::confirm;
use crate::draw::{self, DrawArgs};
use crate::import::{self, ImportArgs};
use crate::journal::{self, JournalArgs};
use crate::kick::{self, KickArgs};
use crate::phase::{self, CloseArgs, PhaseArgs};
use crate::set::{self, SetArgs};
use crate::settings::{self, SettingsFlags};
use crate::token_name::{self, TokenArg};
use crate::tokens::{self, TokensArgs};
use crate::{past, tables};
use nowserving_insight::pages::all_lines;
use nowserving_terminal::duration;
use nowserving_terminal::global::{Global, Why};
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, WrongUsage};
use nowserving_terminal::progress::Progress;

/// How often a deletion under way is checked.
const DELETE_POLL: Duration = Duration::from_millis(200);

/// A kick of a long line has at least so much time.
const KICK_TIME: Duration = Duration::from_secs(60);

/// Creates, changes, shows, lists and deletes lines; lists, calls, moves and kicks tokens; shows the journal.
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
        /// Does not ask: changes of --schedule whose times are past are made at once.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        why: Why,
    },
    Set(SetArgs),
    /// Pauses lines: they issue numbers and admit nobody.
    #[command(after_help = "\
Examples:
  nowserving line pause shop-1 --reason \"payment is down\"
  nowserving line pause --label city=Taipei --dry-run")]
    Pause(PhaseArgs),
    /// Opens lines: they issue numbers and admit.
    #[command(
        after_help = "Example:\n  nowserving line open shop-1 shop-2 --reason \"payment is back\""
    )]
    Open(PhaseArgs),
    /// Drains lines: they admit those who wait, and issue no numbers.
    #[command(after_help = "Example:\n  nowserving line drain shop-1 --reason \"end of the sale\"")]
    Drain(PhaseArgs),
    /// Closes lines: everybody in them goes with the reason `closed`.
    ///
    /// Asks if that is more than ten; without a terminal it needs --yes for that, and always with --label.
    #[command(after_help = "\
Examples:
  nowserving line close shop-1 --reason \"sold out\" --dry-run
  nowserving line close shop-1 --reason \"sold out\" --yes")]
    Close(CloseArgs),
    /// Shows a line's settings, board and counts.
    Show {
        /// The line's name.
        name: String,
    },
    /// Tells how many tokens may hold seats, as a backend that knows its capacity does every few seconds.
    ///
    /// That is in force instead of the setting --seats, until another number is told. When none is told for that time, the
    /// seats fall to --seats-when-silent, if that is set.
    #[command(
        group = ArgGroup::new("capacity").args(["seats", "forget"]).required(true),
        after_help = "\
Examples:
  nowserving line capacity shop-1 --seats 40 --for 10s
  nowserving line capacity shop-1 --forget"
    )]
    Capacity {
        /// The line's name.
        name: String,
        /// How many tokens may hold seats, 0 to 1,000,000.
        #[arg(
            long, value_name = "N", requires = "for_ms",
            value_parser = number::between::<u32>(0..=SEATS_MAX.into())
        )]
        seats: Option<u32>,
        /// After so long without another number the backend counts as silent, 100ms to 7d.
        #[arg(
            long = "for", value_name = "TIME",
            value_parser = duration::between(TIMEOUT_MS_MIN..=TIMEOUT_MS_MAX)
        )]
        for_ms: Option<u64>,
        /// The setting --seats is in force again.
        #[arg(long, conflicts_with = "for_ms")]
        forget: bool,
        #[command(flatten)]
        why: Why,
    },
    /// Moves a waiting token into another lane.
    #[command(after_help = "\
It gets the next number there, behind those who wait there already; what counts against the other
lanes is when it entered. Its holder can go on with the old ticket.

Example:
  nowserving line move shop-1 --token normal:17 --to vip")]
    Move {
        /// The line's name.
        name: String,
        /// The lane that it is in, if --token does not say it.
        #[arg(long, value_name = "LANE")]
        lane: Option<LaneName>,
        /// The token, as LANE:NUMBER, or its number with --lane.
        #[arg(long, value_name = "LANE:N", value_parser = token_name::any)]
        token: TokenArg,
        /// The lane that it shall be in.
        #[arg(long, value_name = "LANE")]
        to: LaneName,
        #[command(flatten)]
        why: Why,
    },
    Draw(DrawArgs),
    Import(ImportArgs),
    Journal(JournalArgs),
    Kick(KickArgs),
    Tokens(TokensArgs),
    CallNext(CallNextArgs),
    Take(TakeArgs),
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
            value_parser = number::between::<u64>(1..=1_000_000)
        )]
        limit: u64,
    },
    /// Deletes a line.
    #[command(after_help = "\
Without --force only a line that nobody is in. With --force everybody goes with reason `closed`,
which can take a while in a long line; the command ends when the line is gone. The line's journal
goes with it: who deleted it, and why, is in the log of the node that led its shard.

Examples:
  nowserving line delete shop-1
  nowserving line delete shop-1 --force --reason \"the sale is over\"")]
    Delete {
        /// The line's name.
        name: String,
        /// Also if somebody is in it. Asks if these are more than ten.
        #[arg(long)]
        force: bool,
        /// Does not ask.
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        why: Why,
    },
}

impl LineCommand {
    /// The line that the command is about, if it must exist.
    pub fn line(&self) -> Option<&str> {
        match self {
            LineCommand::Create { .. } | LineCommand::List { .. } => None,
            // Of several lines: they say themselves which does not exist.
            LineCommand::Pause(_)
            | LineCommand::Open(_)
            | LineCommand::Drain(_)
            | LineCommand::Close(_) => None,
            LineCommand::Set(args) => args.name.as_deref(),
            // Archived events can be of a line that is gone.
            LineCommand::Draw(args) => (!args.verify).then_some(args.name.as_str()),
            LineCommand::Import(ImportArgs { name, .. })
            | LineCommand::Journal(JournalArgs { name, .. })
            | LineCommand::Kick(KickArgs { name, .. })
            | LineCommand::Tokens(TokensArgs { name, .. })
            | LineCommand::CallNext(CallNextArgs { name, .. })
            | LineCommand::Take(TakeArgs { name, .. })
            | LineCommand::Show { name }
            | LineCommand::Capacity { name, .. }
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
        LineCommand::Create {
            name,
            settings,
            yes,
            why,
        } => {
            let settings = settings.patch(&[])?;
            past::ask(&settings, yes, false, output)?;
            let line = noted(global, &name, &why).await?;
            let made = line.create(&Create { settings }).await?;
            output.answer(&made, tables::created)?;
        }
        LineCommand::Set(args) => return set::run(args, global, output).await,
        LineCommand::Pause(args) => {
            return phase::change(args, Phase::Paused, global, output).await;
        }
        LineCommand::Open(args) => {
            return phase::change(args, Phase::Open, global, output).await;
        }
        LineCommand::Drain(args) => {
            return phase::change(args, Phase::Draining, global, output).await;
        }
        LineCommand::Close(args) => return phase::close(args, global, output).await,
        LineCommand::Show { name } => {
            let line = line(global, &name).await?.show().await?;
            output.answer(&line, |line| tables::line(line, output))?;
        }
        LineCommand::Capacity {
            name,
            seats,
            for_ms,
            forget: _,
            why,
        } => {
            let told = CapacityTold { seats, for_ms };
            let line = noted(global, &name, &why).await?;
            let line = line.capacity_told(&told).await?;
            output.answer(&line, |line| tables::line(line, output))?;
        }
        LineCommand::Move {
            name,
            lane,
            token,
            to,
            why,
        } => {
            let (lane, token) = token.in_lane(lane)?;
            let no_lane = || WrongUsage("--token: LANE:NUMBER, such as vip:3".to_owned());
            let lane = lane.ok_or_else(no_lane)?;
            let line = noted(global, &name, &why).await?;
            let status = line.move_token(lane, token, to).await?;
            output.answer(&status, |status| tables::status(status, output))?;
        }
        LineCommand::Draw(args) => return draw::run(args, global, output).await,
        LineCommand::Import(args) => {
            let line = noted(global, &args.name, &args.why).await?;
            import::run(&args, &line, output).await?;
        }
        LineCommand::Journal(args) => {
            let place = args.place()?;
            let line = line(global, &args.name).await?;
            journal::run(&args, place, &line, output).await?;
        }
        LineCommand::Kick(args) => {
            let client = global.connect_for(KICK_TIME).await?;
            let admin = client
                .admin()
                .with_note(global.note(args.why.reason.as_deref()))?;
            kick::run(&args, &admin.line(&args.name)?, output).await?;
        }
        LineCommand::CallNext(args) => {
            let line = noted(global, &args.name, &args.why).await?;
            calls::call_next(args, &line, output).await?;
        }
        LineCommand::Take(args) => {
            let line = noted(global, &args.name, &args.why).await?;
            calls::take(args, &line, output).await?;
        }
        LineCommand::Tokens(args) => {
            let line = line(global, &args.name).await?;
            tokens::run(&args, &line, output).await?;
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
                labels: settings::labels(labels).map_err(WrongUsage)?,
            };
            let all = all_lines(&admin, from, limit).await?;
            output.answer(&all, |all| tables::lines(all, output))?;
        }
        LineCommand::Delete {
            name,
            force,
            yes,
            why,
        } => {
            let request = Delete {
                force,
                incarnation: None,
            };
            let line = noted(global, &name, &why).await?;
            delete(&line, request, yes, output).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// For changes: with who asks, and why.
async fn noted(global: &Global, name: &str, why: &Why) -> anyhow::Result<AdminLine> {
    let note = global.note(why.reason.as_deref());
    Ok(line(global, name).await?.with_note(note)?)
}

async fn line(global: &Global, name: &str) -> anyhow::Result<AdminLine> {
    Ok(global.connect().await?.admin().line(name)?)
}

fn line_name(name: &str) -> anyhow::Result<LineName> {
    LineName::try_from(name).map_err(|error| WrongUsage(format!("{name:?}: {error}")).into())
}

async fn delete(
    line: &AdminLine,
    request: Delete,
    yes: bool,
    output: &Output,
) -> anyhow::Result<()> {
    let shown = line.show().await?;
    let people = phase::people_in(&shown);
    if request.force && !yes && people > phase::UNASKED_MAX {
        let what = format!("delete {} with {people} tokens in it", shown.line);
        confirm::ask(&what, output)?;
    }
    let incarnation = shown.incarnation;
    let request = Delete {
        incarnation: Some(incarnation),
        ..request
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
