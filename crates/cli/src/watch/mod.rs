//! `nowserving watch`: a line's board, or one's own place in it, live.

mod contact;
mod csv;
mod happened;
mod rates;
mod scene;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use futures::stream::{self, BoxStream, StreamExt as _};
use nowserving_client::{BoardReply, BoardUpdate, Error, InfoReply, Line, Result, StatusReply};

use self::contact::{Contact, NoAnswer};
use self::happened::{Events, Happened, Recent};
use self::rates::Rates;
use self::scene::Scene;
use crate::{secret, tables};
use nowserving_terminal::duration;
use nowserving_terminal::global::Global;
use nowserving_terminal::output::{Output, WrongUsage};

/// Rates and ages change between two boards.
const FRAME: Duration = Duration::from_millis(500);

/// Shows a line's board whenever it changes; with a ticket, where its token stands.
///
/// On a terminal it is a screen with the seats, the lanes, the pace of the last ten seconds, the
/// wait of a newcomer and the newest events, marked OLD after 3 s without contact to the line; elsewhere
/// each change is a line (with --json a JSON object). With a ticket it also keeps the token alive, and
/// ends once the token is gone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving watch shop-1
  nowserving watch shop-1 --json | jq .lanes[0].waiting
  nowserving watch shop-1 --ticket $TICKET
  nowserving watch shop-1 --events --json | jq 'select(.keys).keys'
  nowserving watch shop-1 --csv --interval 300ms > shop-1.csv")]
pub struct WatchArgs {
    /// The line.
    pub line: String,
    /// What `enter` printed: follow this token. `-` reads it from standard input, where other users of the machine cannot see it.
    // Base64url: may begin with a dash.
    #[arg(long, allow_hyphen_values = true)]
    ticket: Option<String>,
    /// Without a terminal: also prints the line's events (room, phase, …) and, with a ticket, those of
    /// its token (position, moved, …). A screen always shows them.
    #[arg(long)]
    events: bool,
    /// Prints a table instead: a header, then a row each --interval. It takes the rights of an operator.
    #[arg(long, conflicts_with_all = ["ticket", "events"])]
    csv: bool,
    /// With --csv: the time between two rows.
    #[arg(
        long, requires = "csv", value_name = "TIME", default_value = "1s",
        value_parser = duration::between(100..=3_600_000)
    )]
    interval: u64,
    /// With --csv: names the columns as `rehearse --csv` does, after the article whose test that repeats.
    #[arg(long, requires = "csv")]
    article_header: bool,
}

enum Update {
    Board(BoardUpdate),
    Place(Box<StatusReply>),
}

/// Runs until interrupted, or until the line or token is gone.
pub async fn run(args: WatchArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    if args.csv && output.json {
        return Err(WrongUsage("--csv: not with --json".to_owned()).into());
    }
    let ticket = args.ticket.map(secret::ticket).transpose()?;
    let client = global.connect().await?;
    if args.csv {
        let line = client.admin().line(&args.line)?;
        let header = match args.article_header {
            true => csv::ARTICLE_HEADER,
            false => csv::HEADER,
        };
        return csv::run(&line, header, Duration::from_millis(args.interval), output).await;
    }
    let line = client.line(&args.line)?;
    let mut events = match args.events || output.live {
        true => Some(Events::of(&line).await?),
        false => None,
    };
    let mut updates = follow(&line, ticket.as_deref(), output.live);
    let mut answers = contact::ask(&line).boxed();
    let mut frames = tokio::time::interval(FRAME);
    frames.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut screen = Screen::new(output);
    loop {
        tokio::select! {
            update = updates.next() => match update {
                Some(Ok(update)) => {
                    if let (Update::Place(place), Some(events)) = (&update, &mut events)
                        && let Err(error) = events.follow(place).await
                    {
                        // The next place tries again after a transient error.
                        screen.trouble(error)?;
                    }
                    let is_over = is_over(&update);
                    screen.show(update)?;
                    if is_over {
                        break;
                    }
                }
                // The streams continue after transient errors.
                Some(Err(error)) => screen.trouble(error)?,
                None => break,
            },
            Some(event) = next_event(&mut events) => screen.happened(&event?)?,
            Some(answer) = answers.next() => screen.answer(answer),
            _ = frames.tick() => screen.frame()?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn follow(line: &Line, ticket: Option<&str>, live: bool) -> BoxStream<'static, Result<Update>> {
    let boards = line.watch().map(|update| update.map(Update::Board));
    let Some(ticket) = ticket else {
        return boards.boxed();
    };
    let places = line
        .track(ticket)
        .map(|status| status.map(|status| Update::Place(Box::new(status))));
    // Only a screen has a place for both.
    if live {
        stream::select(boards, places).boxed()
    } else {
        places.boxed()
    }
}

/// Never, if they are not wanted.
async fn next_event(events: &mut Option<Events>) -> Option<Result<Happened>> {
    match events {
        Some(events) => events.next().await,
        None => std::future::pending().await,
    }
}

fn is_over(update: &Update) -> bool {
    matches!(update, Update::Place(status) if status.state == nowserving_client::State::Gone)
}

/// The terminal, or the lines printed in its place.
struct Screen<'a> {
    output: &'a Output,
    scene: Scene,
    /// The text on the terminal now.
    drawn: String,
    /// Without a screen: the lost contact has been reported.
    reported_old: bool,
}

impl<'a> Screen<'a> {
    fn new(output: &'a Output) -> Screen<'a> {
        let scene = Scene {
            board: None,
            info: None,
            place: None,
            rates: Rates::default(),
            contact: Contact::new(Instant::now()),
            recent: Recent::default(),
        };
        Screen {
            output,
            scene,
            drawn: String::new(),
            reported_old: false,
        }
    }

    fn show(&mut self, update: Update) -> anyhow::Result<()> {
        let now = Instant::now();
        self.scene.contact.answered(now);
        if !self.output.live {
            return match &update {
                Update::Board(board) => self.output.answer(board, |u| tables::board_line(&u.board)),
                Update::Place(status) => self.output.answer(&**status, tables::place_line),
            };
        }
        match update {
            Update::Board(board) => {
                self.scene.rates.take(&board.board, board.gap, now);
                self.scene.board = Some(board.board);
            }
            Update::Place(status) => self.scene.place = Some(*status),
        }
        self.draw()
    }

    fn happened(&mut self, event: &Happened) -> anyhow::Result<()> {
        if !self.output.live {
            return self.output.answer(event, Happened::text);
        }
        self.scene.recent.add(event, Instant::now());
        self.draw()
    }

    /// Takes the line's answer, or the reason why there is none.
    fn answer(&mut self, answer: std::result::Result<InfoReply, NoAnswer>) {
        match answer {
            Ok(info) => {
                let now = Instant::now();
                let scene = &mut self.scene;
                scene.contact.answered(now);
                // A newer board is usually on its way. If the previous answer was newer already, that
                // board was lost: events come at most once.
                let newer = |board: &BoardReply| {
                    let before = scene.info.as_ref().map(|before| &before.board);
                    before.is_some_and(|before| before.version > board.version)
                };
                if scene.board.as_ref().is_some_and(newer) {
                    scene.rates.take(&info.board, true, now);
                    scene.board = Some(info.board.clone());
                }
                scene.info = Some(info);
            }
            Err(why) => self.scene.contact.unanswered(why),
        }
    }

    /// Redraws, for what changes with time alone.
    fn frame(&mut self) -> anyhow::Result<()> {
        if self.output.live {
            return self.draw();
        }
        let old = self.scene.contact.old(Instant::now());
        if !self.output.json && old.is_some() != self.reported_old {
            self.reported_old = old.is_some();
            eprintln!("{}", old.as_deref().unwrap_or("in contact again"));
        }
        Ok(())
    }

    fn draw(&mut self) -> anyhow::Result<()> {
        let (rows, columns) = console::Term::stdout().size();
        let text = self.scene.text(Instant::now(), columns.into());
        // Lines that do not fit could not be overwritten later.
        let fits = usize::from(rows).saturating_sub(1);
        let text = text.lines().take(fits).collect::<Vec<_>>().join("\n");
        if text == self.drawn {
            return Ok(());
        }
        let over = match self.drawn.lines().count() {
            0 => String::new(),
            lines => format!("\u{1b}[{lines}F\u{1b}[J"),
        };
        // Without wrapping, so that a narrow window cuts lines and their number stays as counted.
        let drawing = format!("{over}\u{1b}[?7l{text}\u{1b}[?7h");
        self.drawn = text;
        self.output.line(&drawing)
    }

    /// A screen shows its mark instead of an error that passes.
    fn trouble(&mut self, error: Error) -> anyhow::Result<()> {
        if !error.is_transient() {
            return Err(error.into());
        }
        if self.output.json {
            let error = nowserving_terminal::output::error_json(&error.into());
            return self.output.line(&error.to_string());
        }
        if !self.output.live {
            let error = nowserving_terminal::output::error_text(&error.into(), false);
            eprintln!("{error}; still trying");
        }
        Ok(())
    }
}
