//! `nowserving watch`: a line's board, or one's own place in it, live.

use std::process::ExitCode;

use clap::Args;
use futures::stream::{self, BoxStream, StreamExt as _};
use nowserving_client::{BoardUpdate, Error, Line, Result, StatusReply};

use crate::args::Global;
use crate::output::Output;
use crate::tables;

/// Shows a line's board whenever it changes; with a ticket, where its token stands.
///
/// On a terminal the board is drawn over itself; elsewhere each change is a line (with --json a
/// JSON object). With a ticket it also keeps the token alive, and ends once the token is gone.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving watch shop-1
  nowserving watch shop-1 --json | jq .lanes[0].waiting
  nowserving watch shop-1 --ticket $TICKET")]
pub struct WatchArgs {
    /// The line.
    pub line: String,
    /// What `enter` printed: follow this token.
    #[arg(long)]
    ticket: Option<String>,
}

/// What comes in.
enum Sight {
    Board(BoardUpdate),
    Place(StatusReply),
}

/// Runs until interrupted, or until what is watched is gone.
pub async fn run(args: WatchArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    let line = global.connect().await?.line(&args.line)?;
    let mut sights = look(&line, args.ticket.as_deref(), output.live);
    let mut screen = Screen {
        output,
        board: None,
        place: None,
        drawn: 0,
    };
    while let Some(sight) = sights.next().await {
        match sight {
            Ok(sight) => {
                let is_over = is_over(&sight);
                screen.show(sight)?;
                if is_over {
                    break;
                }
            }
            // The streams go on by themselves after these.
            Err(error) if error.is_transient() => screen.trouble(error)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn look(line: &Line, ticket: Option<&str>, live: bool) -> BoxStream<'static, Result<Sight>> {
    let boards = line.watch().map(|update| update.map(Sight::Board));
    let Some(ticket) = ticket else {
        return boards.boxed();
    };
    let places = line.track(ticket).map(|status| status.map(Sight::Place));
    // Mixed only where both have their place on a screen.
    if live {
        stream::select(boards, places).boxed()
    } else {
        places.boxed()
    }
}

fn is_over(sight: &Sight) -> bool {
    matches!(sight, Sight::Place(status) if status.state == nowserving_client::State::Gone)
}

struct Screen<'a> {
    output: &'a Output,
    board: Option<BoardUpdate>,
    place: Option<StatusReply>,
    /// Lines to draw over.
    drawn: usize,
}

impl Screen<'_> {
    fn show(&mut self, sight: Sight) -> anyhow::Result<()> {
        if !self.output.live {
            return match &sight {
                Sight::Board(update) => {
                    self.output.answer(update, |u| tables::board_line(&u.board))
                }
                Sight::Place(status) => self.output.answer(status, tables::place_line),
            };
        }
        match sight {
            Sight::Board(update) => self.board = Some(update),
            Sight::Place(status) => self.place = Some(status),
        }
        let mut text = String::new();
        if let Some(update) = &self.board {
            text.push_str(&tables::board(&update.board, self.output));
        }
        if let Some(status) = &self.place {
            text.push('\n');
            text.push_str(&tables::place_line(status));
        }
        self.draw(text.trim_matches('\n'))
    }

    fn draw(&mut self, text: &str) -> anyhow::Result<()> {
        let over = match self.drawn {
            0 => String::new(),
            lines => format!("\u{1b}[{lines}F\u{1b}[J"),
        };
        self.drawn = text.lines().count();
        // Without wrapping: in a narrow window lines are cut, and stay as many as were counted.
        self.output
            .line(&format!("{over}\u{1b}[?7l{text}\u{1b}[?7h"))
    }

    fn trouble(&mut self, error: Error) -> anyhow::Result<()> {
        self.drawn = 0;
        if self.output.json {
            return self
                .output
                .line(&crate::output::error_json(&error.into()).to_string());
        }
        eprintln!(
            "{}; still trying",
            crate::output::error_text(&error.into(), false)
        );
        Ok(())
    }
}
