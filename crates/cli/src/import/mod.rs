//! `nowserving line import`: a queue that runs elsewhere goes on in a line.

mod check;
mod csv;
mod rows;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use nowserving_client::{AdminLine, Gate, Import, LineReply};
use serde::Serialize;

use self::rows::{Row, RowFormat};
use crate::{confirm, phase, tables};
use nowserving_terminal::global::Why;
use nowserving_terminal::output::{Output, WrongFile, WrongUsage};
use nowserving_terminal::progress::Progress;

const STDIN: &str = "-";
/// Rows a request.
const ROWS_AT_ONCE: usize = 512;
/// So often a request is tried that found no leader, or whose outcome is not known …
const TRIES: u32 = 20;
/// … with this pause.
const PAUSE: Duration = Duration::from_millis(500);

/// Lets the people of a queue that runs elsewhere enter a line, in their order.
///
/// A key that is in the line already keeps its place there. The line remembers how many rows are done: if an import is broken
/// off, the same command goes on where it was.
///
/// While the line's gate is off or shadow, each row is admitted at once: it asks if that is more than ten; without a
/// terminal it needs --yes for that.
#[derive(Debug, Args)]
#[command(after_help = "\
A CSV file has the names of its columns on the first line: key, entered_at, lane, state. A file of
JSON lines has an object with these fields on each line. All but key are optional. entered_at is a
time, or milliseconds since 1970, and only shown. Rows with the state admitted or in_checkout come
first, all others in the order of the file.

Examples:
  nowserving line import shop-1 queue.csv --dry-run
  nowserving line import shop-1 queue.csv
  old-queue --export | nowserving line import shop-1 - --format jsonl")]
pub struct ImportArgs {
    /// The line's name.
    pub name: String,
    /// The file; `-`: standard input.
    file: PathBuf,
    /// The form of the file (default: by the end of its name, .csv, .jsonl or .ndjson).
    #[arg(long, value_enum)]
    format: Option<RowFormat>,
    /// Names the import, 1 to 64 visible ASCII characters (default: made of the file's content).
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Only reads the file, says how much of it is done, and whether the line takes the rest now.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    pub why: Why,
}

/// How far an import has come.
#[derive(Debug, Serialize)]
struct Done {
    line: String,
    import_id: String,
    dry_run: bool,
    /// Rows of the file.
    rows: u64,
    /// Of these, rows that are done.
    done: u64,
    /// Of the rows that are done, those that got a number.
    entered: u64,
    /// Of the line: with `off` and `shadow` each row is admitted at once.
    gate: String,
}

/// Reads the file and imports its rows.
pub async fn run(args: &ImportArgs, line: &AdminLine, output: &Output) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    let name = args.file.display().to_string();
    let format = args.format.or_else(|| RowFormat::of(&name));
    let unknown = "the file's name does not end in .csv or .jsonl: give --format";
    let format = format.ok_or_else(|| WrongUsage(unknown.to_owned()))?;
    let rows = format.read(&text);
    let rows = rows.map_err(|wrong| WrongFile(format!("{name}: {wrong}")))?;
    if rows.is_empty() {
        return Err(WrongFile(format!("{name}: no rows")).into());
    }
    let id = args.id.clone();
    let id = id.unwrap_or_else(|| blake3::hash(text.as_bytes()).to_hex()[..32].to_owned());
    let shown = line.show().await?;
    let mut done = Done {
        line: args.name.clone(),
        import_id: id,
        dry_run: args.dry_run,
        rows: rows.len() as u64,
        done: 0,
        entered: 0,
        gate: shown.settings.gate.clone(),
    };
    done.note(&shown);
    let rest = rows.get(done.done as usize..).unwrap_or_default();
    check_lanes(rest, &shown, &name)?;
    if args.dry_run {
        if let Some(refused) = check::refusal(rest, &shown, line).await? {
            return Err(refused.into());
        }
    } else {
        if !args.yes && done.admits_at_once() > phase::UNASKED_MAX {
            let what = format!("import {}", done.what_is_admitted());
            confirm::ask(&what, output)?;
        }
        let ask = Import {
            import_id: done.import_id.clone(),
            first_row: 0,
            rows: Vec::new(),
        };
        import(
            line,
            &ask,
            (name.as_str(), rows.as_slice()),
            &mut done,
            output,
        )
        .await?;
    }
    output.answer(&done, Done::text)
}

/// `ask`: a request without rows. `name`: the file's.
async fn import(
    line: &AdminLine,
    ask: &Import,
    (name, rows): (&str, &[Row]),
    done: &mut Done,
    output: &Output,
) -> anyhow::Result<()> {
    let template = "{wide_bar} {pos} of {len} rows";
    let progress = output
        .live
        .then(|| Progress::new(Some(done.rows), template));
    let mut tries = 0;
    while let Some(rest) = rows.get(done.done as usize..)
        && let Some(next) = rest.first()
    {
        let some = rest.iter().take(ROWS_AT_ONCE);
        let request = Import {
            first_row: done.done,
            rows: some.map(|row| row.row.clone()).collect(),
            ..ask.clone()
        };
        match line.import(&request).await {
            Ok(reply) => {
                let before = done.done;
                done.note(&reply);
                if done.done <= before {
                    anyhow::bail!("another import of this line is under way");
                }
                tries = 0;
            }
            Err(error) if error.is_transient() && tries < TRIES => {
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => {
                drop(progress);
                eprintln!(
                    "{}; line {} of {name} is not: repeat the command to go on",
                    done.text(),
                    next.line
                );
                return Err(error.into());
            }
        }
        if let Some(Progress { bar }) = &progress {
            bar.set_position(done.done);
        }
    }
    Ok(())
}

impl Done {
    /// What the line says of this import.
    fn note(&mut self, line: &LineReply) {
        let imported = line.imported.as_ref();
        if let Some(imported) = imported.filter(|it| it.import_id == self.import_id) {
            self.done = imported.rows;
            self.entered = imported.entered;
        }
    }

    fn text(&self) -> String {
        let Done {
            rows,
            done,
            entered,
            ..
        } = self;
        let known = done.saturating_sub(*entered);
        let so_far =
            format!("{done} of {rows} rows are done: {entered} entered, {known} were in the line");
        if !self.dry_run {
            return so_far;
        }
        let would = match self.admits_at_once() {
            0 => tables::many(rows.saturating_sub(*done), "row"),
            _ => self.what_is_admitted(),
        };
        match done {
            0 => format!("this would import {would}"),
            _ => format!("{so_far}\nthis would import {would}"),
        }
    }

    /// How many rows are to come that do not wait.
    fn admits_at_once(&self) -> u64 {
        match self.gate == Gate::On.as_str() {
            true => 0,
            false => self.rows.saturating_sub(self.done),
        }
    }

    fn what_is_admitted(&self) -> String {
        let rows = tables::many(self.admits_at_once(), "row");
        let gate = &self.gate;
        format!("{rows} that are admitted at once, as the gate is {gate}")
    }
}

/// The line refuses such rows, too, when their turn comes.
fn check_lanes(rows: &[Row], line: &LineReply, name: &str) -> Result<(), WrongFile> {
    for row in rows {
        let Some(lane) = &row.row.lane else { continue };
        let mut listed = line.settings.lanes.iter();
        if !listed.any(|it| it.name == *lane) {
            let (line, wrong) = (
                row.line,
                format!(
                    "lane: the line has no lane {lane} (`line set --lane` names all lanes of a line, also those that are there)"
                ),
            );
            return Err(WrongFile(format!("{name}: line {line}: {wrong}")));
        }
    }
    Ok(())
}

/// `-`: standard input.
fn read(file: &Path) -> anyhow::Result<String> {
    let text = match file == Path::new(STDIN) {
        true => io::read_to_string(io::stdin().lock()),
        false => fs::read_to_string(file),
    };
    let shown = file.display();
    text.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => WrongFile(format!("{shown}: not UTF-8")).into(),
        _ => anyhow::Error::new(error).context(shown.to_string()),
    })
}
