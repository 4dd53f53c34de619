//! `nowserving line draw`: the draw at the opening of a line, and whether archived events bear it out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use data_encoding::HEXLOWER;
use nowserving_client::LineName;
use nowserving_line::{Hash, Lots, commitment, digest_of, digest_with};
use nowserving_terminal::global::Global;
use nowserving_terminal::number;
use nowserving_terminal::output::Output;
use serde::Serialize;

use crate::archive::events::{Archive, DrawTold, Id, LineEvents, What};
use crate::archive::waited::Waited;
use crate::archive::{gaps, input, stream_name};
use crate::tables;

/// Shows the draw at the opening of a line, or recomputes it from archived events.
///
/// With --verify it needs no cluster but for --stream. It reads events as `archive report` does, and checks that the seed is the
/// one to which the line had committed itself, who took part, and the number that each was given. It cannot tell if
/// events are missing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving line draw concert
  nowserving line draw concert --verify events.jsonl
  nowserving line draw concert --verify --stream NOWSERVING_EVENTS --beacon '7 12 40'

Exit codes: 0 the draw holds; 1 it does not, or the events cannot tell.")]
pub struct DrawArgs {
    /// The line's name.
    pub name: LineName,
    /// Recomputes the draw from these files with events; `-` or none: standard input.
    #[arg(long)]
    pub verify: bool,
    /// Files with events.
    #[arg(requires = "verify")]
    files: Vec<PathBuf>,
    /// Reads all events of this JetStream stream instead.
    #[arg(
        long, value_name = "NAME", requires = "verify", conflicts_with = "files",
        value_parser = stream_name
    )]
    stream: Option<String>,
    /// The beacon that was announced: the draw must have used it.
    #[arg(long, value_name = "TEXT", requires = "verify")]
    beacon: Option<String>,
    /// Which creation of the line; by default the newest one.
    #[arg(
        long, value_name = "N", requires = "verify",
        value_parser = number::between::<u64>(1..=nowserving_line::NUMBER_MAX)
    )]
    incarnation: Option<u64>,
}

pub async fn run(args: DrawArgs, global: &Global, output: &Output) -> anyhow::Result<ExitCode> {
    if !args.verify {
        let line = global.connect().await?.admin().line(args.name.as_str())?;
        let shown = line.show().await?;
        output.answer(&shown.draw, |draw| match draw {
            Some(draw) => tables::draw(draw),
            None => "the line opens, or has opened, in order".to_owned(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut archive = Archive::default();
    match &args.stream {
        Some(stream) => {
            let lines = std::slice::from_ref(&args.name);
            input::stream(stream, lines, global, &mut archive).await?;
        }
        None => input::files(&args.files, &mut archive)?,
    }
    let lines = archive.lines.iter().rev();
    let mut lines = lines.filter(|((name, incarnation), _)| {
        *name == args.name && args.incarnation.is_none_or(|it| it == *incarnation)
    });
    let Some(((name, incarnation), events)) = lines.next() else {
        let others = archive.lines.keys().filter(|(name, _)| *name == args.name);
        let others: Vec<String> = others
            .map(|(_, incarnation)| incarnation.to_string())
            .collect();
        let of = match (others.is_empty(), archive.unreadable) {
            (false, _) => format!("; of the incarnations {} there are", others.join(", ")),
            (true, 0) => String::new(),
            (true, rows) => format!("; {rows} rows are no events"),
        };
        bail!("no events of the line {} are there{of}", args.name);
    };
    let check = Check::new(name, *incarnation, events, args.beacon.as_deref());
    output.answer(&check, Check::text)?;
    Ok(match check.verdict {
        Verdict::Holds => ExitCode::SUCCESS,
        Verdict::DoesNotHold | Verdict::CannotTell => ExitCode::FAILURE,
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Holds,
    DoesNotHold,
    CannotTell,
}

/// What archived events say of a draw.
#[derive(Debug, Serialize)]
struct Check {
    line: String,
    incarnation: u64,
    verdict: Verdict,
    /// Why it does not hold, or cannot be told; the first of them.
    why: Option<String>,
    took_part: Option<u64>,
    commitment: Option<String>,
    seed: Option<String>,
    beacon: Option<String>,
    digest: Option<String>,
}

/// Why a draw is not borne out.
#[derive(Debug, PartialEq)]
enum Wrong {
    No(String),
    Unknown(String),
}

use Wrong::{No, Unknown};

impl Check {
    fn new(name: &LineName, incarnation: u64, events: &LineEvents, beacon: Option<&str>) -> Check {
        let told = Told::of(events);
        let checked = check((name, incarnation), events, &told, beacon);
        let begun = told.begun.map(|(_, it)| it);
        let (verdict, why) = match checked {
            Ok(_) => (Verdict::Holds, None),
            Err(No(why)) => (Verdict::DoesNotHold, Some(why)),
            Err(Unknown(why)) => (Verdict::CannotTell, Some(why)),
        };
        Check {
            line: name.to_string(),
            incarnation,
            verdict,
            why,
            took_part: begun.and_then(|it| it.took_part),
            commitment: told.sealed.and_then(|(_, it)| it.commitment.clone()),
            seed: begun.and_then(|it| it.seed.clone()),
            beacon: begun.and_then(|it| it.beacon.clone()),
            digest: told.drawn.and_then(|(_, it)| it.digest.clone()),
        }
    }

    fn text(&self) -> String {
        let why = self.why.as_deref().unwrap_or_default();
        let verdict = match self.verdict {
            Verdict::Holds => format!(
                "the draw holds: {} took part, and all have the number that the seed gives",
                nowserving_rehearse::count(self.took_part.unwrap_or_default())
            ),
            Verdict::DoesNotHold => format!("the draw DOES NOT HOLD: {why}"),
            Verdict::CannotTell => format!("cannot tell: {why}"),
        };
        let parts = [
            ("commitment", &self.commitment),
            ("seed", &self.seed),
            ("beacon", &self.beacon),
            ("digest", &self.digest),
        ];
        let parts = parts.iter().filter_map(|(name, value)| {
            let value = value.as_ref()?;
            Some(format!("\n{name}: {value}"))
        });
        format!(
            "line {}, incarnation {}\n{verdict}{}",
            self.line,
            self.incarnation,
            parts.collect::<String>()
        )
    }
}

fn number_of(count: usize) -> String {
    nowserving_rehearse::count(count as u64)
}

/// The line's events of the draw, with their versions.
#[derive(Debug, Default)]
struct Told<'a> {
    sealed: Option<(u64, &'a DrawTold)>,
    begun: Option<(u64, &'a DrawTold)>,
    drawn: Option<(u64, &'a DrawTold)>,
}

impl<'a> Told<'a> {
    fn of(events: &'a LineEvents) -> Told<'a> {
        let mut told = Told::default();
        for (version, it) in &events.line {
            let Some(draw) = &it.draw else { continue };
            let place = match &*it.event {
                "draw_sealed" if told.begun.is_none() => &mut told.sealed,
                "draw_begun" => &mut told.begun,
                "drawn" => &mut told.drawn,
                _ => continue,
            };
            *place = Some((*version, draw));
        }
        told
    }
}

/// Returns how many took part.
fn check(
    (name, incarnation): (&LineName, u64),
    events: &LineEvents,
    told: &Told<'_>,
    beacon: Option<&str>,
) -> Result<usize, Wrong> {
    let missing = |event: &str| Unknown(format!("no event `{event}` is there"));
    let (begun_at, begun) = told.begun.ok_or_else(|| missing("draw_begun"))?;
    let (sealed_at, sealed) = told.sealed.ok_or_else(|| missing("draw_sealed"))?;
    let (drawn_at, drawn) = told.drawn.ok_or_else(|| missing("drawn"))?;
    let seed = hash(begun.seed.as_deref()).ok_or_else(|| No("the seed is none".to_owned()))?;
    if hash(sealed.commitment.as_deref()) != Some(commitment(&seed)) {
        return Err(No("the seed is not that of the commitment".to_owned()));
    }
    let used = begun.beacon.as_deref().unwrap_or_default();
    if let Some(announced) = beacon.filter(|announced| *announced != used) {
        let what = format!("the beacon is {used:?}, and {announced:?} was announced");
        return Err(No(what));
    }
    is_as_it_was(events, drawn_at)?;
    is_sealed_in_time(events, sealed_at, begun_at)?;
    let gap = first_gap((name, incarnation), events, drawn_at);
    let waited = Waited::until(begun_at, events);
    let count: usize = waited.by_lane.values().map(BTreeSet::len).sum();
    let told = begun.took_part.unwrap_or_default();
    let is_told = told == count as u64;
    // The digest alone says who took part, also if events of them are missing.
    if !is_told || hash(drawn.digest.as_deref()) != Some(waited.digest(events)) {
        let is_empty = events.tokens.range(..begun_at).next().is_none();
        let is_complete = gap.is_none_or(|(after, _)| after >= begun_at) && !is_empty;
        return Err(match (is_complete, is_told) {
            (false, _) => Unknown(missing_events(gap)),
            (true, true) => No("the digest is not that of those who waited".to_owned()),
            (true, false) => No(format!("{told} took part, and {count} waited")),
        });
    }
    let expected = waited.drawn(&Lots::new(&seed, used, incarnation), events);
    let without = numbers_missing(events, (begun_at, drawn_at), &expected)?;
    let Some(first) = without.first() else {
        return Ok(count);
    };
    let first = format!("{}:{}", events.lanes[first.0], first.1);
    Err(match gap {
        None => No(format!("{first} took part, and is not drawn")),
        Some(_) => Unknown(format!(
            "of {} of the {told} that took part no event says which number they got, and the others have that which the \
             seed gives; {}",
            number_of(without.len()),
            missing_events(gap)
        )),
    })
}

fn missing_events(gap: Option<(u64, u64)>) -> String {
    match gap {
        Some((after, through)) => {
            format!("events are missing after version {after}, up to version {through}")
        }
        None => "the events of its tokens are missing (`token_events`)".to_owned(),
    }
}

fn hash(hex: Option<&str>) -> Option<Hash> {
    HEXLOWER.decode(hex?.as_bytes()).ok()?.try_into().ok()
}

/// Not if it was put back meanwhile, or events were altered.
fn is_as_it_was(events: &LineEvents, drawn_at: u64) -> Result<(), Wrong> {
    let mut line = events.line.range(..=drawn_at);
    if let Some((version, _)) = line.find(|(_, it)| &*it.event == "restored") {
        return Err(Unknown(format!(
            "the line was put back from a backup at version {version}"
        )));
    }
    match events.differing.range(..=drawn_at).next() {
        None => Ok(()),
        Some(version) => Err(Unknown(format!("two events of version {version} differ"))),
    }
}

/// The first versions, up to the end of the draw, of which events are missing, as far as the others show it.
fn first_gap(
    (name, incarnation): (&LineName, u64),
    events: &LineEvents,
    drawn_at: u64,
) -> Option<(u64, u64)> {
    let of_tokens = gaps::of_line(name, incarnation, events).into_iter();
    let of_tokens = of_tokens.map(|gap| (gap.after_version, gap.through_version));
    let of_tokens = of_tokens.filter(|(after, _)| *after < drawn_at);
    let has_begin = events.line.values().any(|it| &*it.event == "created");
    let begin = (!has_begin).then_some((0, 0));
    of_tokens
        .chain(line_gap(events, drawn_at))
        .chain(begin)
        .max()
}

/// Versions up to this one of which the line's own events may be missing, as far as `prev_version` shows it.
fn line_gap(events: &LineEvents, through: u64) -> Option<(u64, u64)> {
    let mut last = None;
    for (version, it) in events.line.range(..=through) {
        let after = last.replace(*version).unwrap_or(*version);
        // A new leader names the version that it found.
        let between = after + 1..=it.prev_version;
        if it.prev_version > after {
            let explained = events.tokens.range(between).count() as u64;
            let drawn = it.draw.as_ref().and_then(|draw| draw.took_part);
            if explained + drawn.unwrap_or(0) < it.prev_version - after {
                return Some((after, it.prev_version));
            }
        }
    }
    None
}

/// What was committed to once the line had opened, or anew, proves nothing: the result could have been chosen.
fn is_sealed_in_time(events: &LineEvents, sealed_at: u64, begun_at: u64) -> Result<(), Wrong> {
    let before = events.line.range(..begun_at);
    let sealed = before.filter(|(_, it)| &*it.event == "draw_sealed").count();
    if sealed > 1 {
        return Err(No(format!(
            "the line has committed itself to {sealed} seeds"
        )));
    }
    let mut phases = events.line.range(..sealed_at).rev();
    let phase = phases.find_map(|(_, it)| it.phase.as_deref());
    match phase {
        Some(phase @ ("open" | "draining")) => Err(Unknown(format!(
            "the line was {phase} before it committed itself to a seed"
        ))),
        _ => Ok(()),
    }
}

impl Waited {
    fn digest(&self, events: &LineEvents) -> Hash {
        let of_lane = |tokens: &BTreeSet<u64>| {
            let tokens = tokens.iter();
            tokens.fold(Hash::default(), |digest, token| {
                digest_with(&digest, *token)
            })
        };
        let lanes = self.by_lane.iter();
        digest_of(lanes.map(|(lane, tokens)| (&events.lanes[*lane], of_lane(tokens))))
    }

    /// The number that each gets.
    fn drawn(&self, lots: &Lots, events: &LineEvents) -> BTreeMap<Id, Id> {
        let mut drawn = BTreeMap::new();
        for (lane, tokens) in &self.by_lane {
            let name = &events.lanes[*lane];
            let by_lot = tokens.iter().map(|token| (lots.lot(name, *token), *token));
            let mut by_lot: Vec<_> = by_lot.collect();
            by_lot.sort_unstable();
            for ((_, token), new) in by_lot.into_iter().zip(self.numbers(*lane)) {
                drawn.insert((*lane, token), (*lane, new));
            }
        }
        drawn
    }
}

/// Those of whom no event says that they have that number, or were gone when their turn came.
fn numbers_missing(
    events: &LineEvents,
    (begun_at, drawn_at): (u64, u64),
    expected: &BTreeMap<Id, Id>,
) -> Result<Vec<Id>, Wrong> {
    let mut left = expected.clone();
    let of = |(lane, token): Id| format!("{}:{token}", events.lanes[lane]);
    for happened in events.tokens.range(begun_at..drawn_at).map(|(_, it)| it) {
        match &happened.what {
            What::Moved { to, by } if by.as_deref() == Some("draw") => {
                let new = left.remove(&happened.id);
                if new != Some(*to) {
                    let new = new.map_or("no number".to_owned(), of);
                    let (id, to) = (of(happened.id), of(*to));
                    return Err(No(format!(
                        "{id} is drawn as {to}, and the seed gives {new}"
                    )));
                }
            }
            What::Moved { .. } | What::Gone { .. } => drop(left.remove(&happened.id)),
            What::Admitted { .. } => {
                let id = of(happened.id);
                return Err(No(format!("{id} is admitted before the draw is done")));
            }
            What::Entered { .. } | What::Claimed | What::Other => {}
        }
    }
    Ok(left.into_keys().collect())
}

#[cfg(test)]
mod tests;
