//! `nowserving top`: the whole cluster on one screen, live.
//!
//! `model` is the state and how keys and answers change it, `view` makes rows of text of it; both are pure. `fetch` asks
//! the cluster in a task of its own, `screen` is the terminal.

mod cell;
mod fetch;
#[cfg(test)]
mod lines_tests;
mod model;
#[cfg(test)]
mod pace_tests;
mod report;
#[cfg(test)]
pub mod scenes;
mod screen;
#[cfg(test)]
mod svg;
#[cfg(test)]
mod tests;
mod view;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use nowserving_client::Client;
use nowserving_insight::{lines, pace};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use self::cell::Palette;
use self::fetch::Fetcher;
use self::lines::Sort;
use self::model::{Flow, Model, Update};
use self::report::Report;
use self::screen::{Input, Screen};
use nowserving_terminal::duration;
use nowserving_terminal::global::Global;
use nowserving_terminal::output::{Output, WrongUsage};
use nowserving_terminal::signals::HangUps;

pub use nowserving_insight::pace::{completed, gone_from, refused};

/// Ages change between two answers.
const FRAME: Duration = Duration::from_millis(500);
/// Answers that the screen has not taken yet.
const UPDATES: usize = 2;
/// The screen of `--once` without COLUMNS and LINES.
const SIZE: (u16, u16) = (80, 24);
/// The exit code of a command that SIGTERM ended, as shells have it.
const TERMINATED: u8 = 143;
/// And SIGHUP: the terminal was closed.
const HUNG_UP: u8 = 129;

/// Shows all lines by pressure, the nodes and the shards, live.
///
/// The lines that need somebody come first: stuck ones, then those with the most waiting people per seat. Enter looks into
/// one line: its board, lanes, tokens and journal; Tab shows nodes and shards; ? explains keys and columns. It needs a
/// terminal of 60 x 10 or more; --once and --json need none, and take one interval for the rates.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving top
  nowserving top --filter city=Taipei --sort waiting
  nowserving top --once | head
  nowserving top --json | jq '.lines[] | select(.stuck).line'")]
pub struct TopArgs {
    /// How often the cluster is asked.
    #[arg(
        long, value_name = "TIME", default_value = "2s",
        value_parser = duration::between(200..=3_600_000)
    )]
    interval: u64,
    /// Prints one screen as text and ends; its size is that of COLUMNS and LINES, or 80 x 24.
    #[arg(long)]
    once: bool,
    /// The column to sort by at first.
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t)]
    sort: Sort,
    /// Only lines that fit all words: LABEL=VALUE, or a part of the name, the phase or the value of a label.
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        hide_default_value = true
    )]
    filter: String,
}

/// Runs until `q`, or prints once.
pub async fn run(args: TopArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let every = Duration::from_millis(args.interval);
    let mut model = Model::new(args.sort, &args.filter, every);
    if !output.json && !args.once && !output.live {
        let text = "top needs a terminal on stdout; without one: --once or --json".to_owned();
        return Err(WrongUsage(text).into());
    }
    let client = global.connect().await?;
    if !output.json && !args.once {
        return live(&client, model, output.colour).await;
    }
    model.size = size();
    ask_once(&client, &mut model).await?;
    if output.json {
        output.line(&serde_json::to_string(&Report::of(&model))?)?;
    } else {
        output.line(&report::text(&model, Instant::now()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// As the shell that started the command says.
fn size() -> (u16, u16) {
    let variable = |name| std::env::var(name).ok()?.trim().parse::<u16>().ok();
    let or = |name, otherwise| variable(name).filter(|it| *it > 0).unwrap_or(otherwise);
    (or("COLUMNS", SIZE.0), or("LINES", SIZE.1))
}

/// Asks for the lines, for the details of those on the screen, and for these again: rates are differences.
async fn ask_once(client: &Client, model: &mut Model) -> anyhow::Result<()> {
    let mut fetcher = Fetcher::new(client);
    refresh(&mut fetcher, model).await?;
    if model.lines.all().count() > fetch::DETAILS_MAX {
        refresh(&mut fetcher, model).await?;
    }
    tokio::time::sleep(model.every).await;
    refresh(&mut fetcher, model).await
}

async fn refresh(fetcher: &mut Fetcher, model: &mut Model) -> anyhow::Result<()> {
    let refresh = fetcher.refresh(&model.want()).await?;
    model.take(Update::Refreshed(Box::new(refresh)));
    Ok(())
}

/// The screen, until a key or a signal ends it.
async fn live(client: &Client, mut model: Model, colour: bool) -> anyhow::Result<ExitCode> {
    let (wants, wanted) = watch::channel(model.want());
    let (sender, mut updates) = mpsc::channel(UPDATES);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_ups = HangUps::listen()?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let fetching = fetch::run(Fetcher::new(client), model.every, wanted, sender);
    // Ends when `updates` is dropped.
    tokio::spawn(fetching);
    let mut screen = Screen::open()?;
    let mut inputs = screen::inputs();
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let palette = Palette { colour };
    loop {
        model.size = screen.size()?;
        screen.draw(&model, palette)?;
        let want = model.want();
        wants.send_if_modified(|before| {
            let changed = *before != want;
            *before = want;
            changed
        });
        tokio::select! {
            update = updates.recv() => match update {
                Some(update) => model.take(update),
                None => anyhow::bail!("the task that asks the cluster has ended"),
            },
            input = inputs.recv() => match input {
                Some(Input::Key(key)) => {
                    if model.press(key) == Flow::Quit {
                        return Ok(ExitCode::SUCCESS);
                    }
                }
                Some(Input::Resized) => {}
                None => anyhow::bail!("the terminal gives no keys any more"),
            },
            _ = frames.tick() => {}
            code = ended(&mut terminate, &mut hang_ups, &mut interrupt) => return Ok(code),
        }
    }
}

/// The exit code once a signal has come.
async fn ended(terminate: &mut Signal, hang_ups: &mut HangUps, interrupt: &mut Signal) -> ExitCode {
    tokio::select! {
        _ = terminate.recv() => ExitCode::from(TERMINATED),
        () = hang_ups.next() => ExitCode::from(HUNG_UP),
        // Sent by another process: the key is read as any other.
        _ = interrupt.recv() => ExitCode::SUCCESS,
    }
}
