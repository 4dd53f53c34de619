//! What users do, through their backends: one command per operation.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use nowserving_client::{Consistency, Key, LaneName, Line, Result, StatusReply, StatusRequest};

use crate::args::Global;
use crate::output::{Output, WrongUsage};
use crate::tables;

/// Takes a number in a line; prints the ticket.
///
/// With a key that has a live token already, that token is answered again: running this twice is
/// the same as running it once.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving enter shop-1 --key order-4711
  TICKET=$(nowserving enter shop-1 --key order-4711 --json | jq -r .ticket)")]
pub struct EnterArgs {
    /// The line.
    pub line: String,
    /// Identifies the user in your own terms (a user or order id), 1 to 128 bytes.
    #[arg(long, required_unless_present = "anonymous")]
    key: Option<String>,
    /// Instead of --key: enters without one. Each run takes another number.
    #[arg(long, conflicts_with = "key")]
    anonymous: bool,
    /// The lane; by default the line's default lane.
    #[arg(long)]
    lane: Option<String>,
}

/// Finds the live token of a key, without entering.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nowserving find shop-1 --key order-4711")]
pub struct FindArgs {
    /// The line.
    pub line: String,
    /// The key it entered with.
    #[arg(long)]
    key: String,
}

/// Shows the status of a token, and marks it as seen.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving status shop-1 $TICKET
  nowserving status shop-1 $TICKET --consistency local")]
pub struct StatusArgs {
    #[command(flatten)]
    pub token: TokenArgs,
    /// How fresh the answer must be. `local` does not mark the token as seen.
    #[arg(long, value_enum, default_value_t)]
    consistency: Freshness,
}

/// Claims the seat of an admitted token: goes into checkout. Prints the epoch.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nowserving claim shop-1 $TICKET")]
pub struct ClaimArgs {
    #[command(flatten)]
    pub token: TokenArgs,
}

/// Keeps a claimed seat for longer.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nowserving renew shop-1 $TICKET --epoch 17")]
pub struct RenewArgs {
    #[command(flatten)]
    pub token: TokenArgs,
    /// What `claim` printed.
    #[arg(long)]
    epoch: u64,
}

/// Completes a checkout: the seat is free for the next one.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nowserving complete shop-1 $TICKET --epoch 17")]
pub struct CompleteArgs {
    #[command(flatten)]
    pub token: TokenArgs,
    /// What `claim` printed; if given, it must still be the current one.
    #[arg(long)]
    epoch: Option<u64>,
}

/// Leaves the line, waiting or in checkout.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nowserving leave shop-1 $TICKET")]
pub struct LeaveArgs {
    #[command(flatten)]
    pub token: TokenArgs,
}

/// Shows a line's board and the settings that users may see.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  nowserving info shop-1")]
pub struct InfoArgs {
    /// The line.
    pub line: String,
    /// How fresh the answer has to be.
    #[arg(long, value_enum, default_value_t)]
    consistency: Freshness,
}

/// A token, as users name it.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// The line.
    pub line: String,
    /// What `enter` printed.
    // Base64url: may begin with a dash.
    #[arg(allow_hyphen_values = true)]
    ticket: String,
}

/// [`Consistency`] as a flag.
#[derive(Debug, Clone, Copy, Default, ValueEnum)]
enum Freshness {
    /// The leader's state.
    #[default]
    Leader,
    /// Confirmed by a majority first.
    Linearizable,
    /// Any node's, possibly behind.
    Local,
}

impl From<Freshness> for Consistency {
    fn from(freshness: Freshness) -> Consistency {
        match freshness {
            Freshness::Leader => Consistency::Leader,
            Freshness::Linearizable => Consistency::Linearizable,
            Freshness::Local => Consistency::Local,
        }
    }
}

pub async fn enter(args: EnterArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let key = args.key.filter(|_| !args.anonymous);
    let key = key.map(|key| Key::new(key.into_bytes())).transpose();
    let key = key.map_err(|error| WrongUsage(format!("--key: {}", error.message)))?;
    let lane = args.lane.as_deref().map(LaneName::try_from).transpose();
    let lane = lane.map_err(|error| WrongUsage(format!("--lane: {error}")))?;
    let line = open(global, &args.line).await?;
    tell(line.enter_with(key, lane).await, output)
}

pub async fn find(args: FindArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.line).await?;
    tell(line.find(args.key).await, output)
}

pub async fn status(
    args: StatusArgs,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.token.line).await?;
    let request = StatusRequest {
        ticket: args.token.ticket,
        consistency: Some(args.consistency.into()),
        holes: false,
    };
    tell(line.status_with(request).await, output)
}

pub async fn claim(args: ClaimArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.token.line).await?;
    tell(line.claim(&args.token.ticket).await, output)
}

pub async fn renew(args: RenewArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.token.line).await?;
    tell(line.renew(&args.token.ticket, args.epoch).await, output)
}

pub async fn complete(
    args: CompleteArgs,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.token.line).await?;
    tell(line.complete(&args.token.ticket, args.epoch).await, output)
}

pub async fn leave(args: LeaveArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.token.line).await?;
    tell(line.leave(&args.token.ticket).await, output)
}

pub async fn info(args: InfoArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let line = open(global, &args.line).await?;
    let info = line.info_with(args.consistency.into()).await?;
    output.answer(&info, |info| tables::info(info, output))?;
    Ok(ExitCode::SUCCESS)
}

async fn open(global: &Global, line: &str) -> anyhow::Result<Line> {
    Ok(global.connect().await?.line(line)?)
}

fn tell(answer: Result<StatusReply>, output: &Output) -> anyhow::Result<ExitCode> {
    output.answer(&answer?, |status| tables::status(status, output))?;
    Ok(ExitCode::SUCCESS)
}
