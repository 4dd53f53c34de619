//! `nowserving cluster backup` and `restore`.

mod file;
mod keys;
mod question;
mod rules;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use nowserving_client::{Admin, AdminLine, Client, Code, Delete, Error, LineReply};
use nowserving_line::{Line, OperatorNote};
use nowserving_protocol::backup::{Backup, BackupChunk, Blob, Hex, RestoreLine, RestorePart};
use nowserving_protocol::subject::shard_of;
use nowserving_shard::command::FORMAT;
use nowserving_shard::restore::parts_of;
use nowserving_shard::snapshot;
use serde::Serialize;

use self::file::{Header, Reader, Writer};
use self::keys::Keys;
use self::rules::RestoredRules;
use crate::confirm;
use crate::line::until_gone;
use crate::phase::people_in;
use crate::tables::many;
use nowserving_terminal::global::{Global, Why};
use nowserving_terminal::output::{Output, WrongUsage};
use nowserving_terminal::progress::{self, Progress};

/// How often a snapshot that is being made is asked for.
const SNAPSHOT_POLL: Duration = Duration::from_millis(100);
/// A snapshot that is not made in this time will not be made.
const SNAPSHOT_MAX: Duration = Duration::from_secs(120);
/// A shard or line is begun anew so often, if its leader changes on the way.
const ANEW_MAX: u32 = 20;
/// The last command is repeated so often at most, if it does not end within its timeout.
const FINISH_MAX: u32 = 100;

/// Saves all lines and key-values to a file.
#[derive(Debug, Args)]
#[command(after_help = "\
Each shard is saved as of one moment, under load too. The file is in its place only when it is whole; what an
interrupted backup leaves is FILE.part. It has the keys that callers gave to enter, and all key-values, which may be
personal data. It does not have the cluster's key file: keep a copy of that elsewhere, tickets are good only with it.

Examples:
  nowserving cluster backup /backups/shop-$(date +%F).nsb")]
pub struct BackupArgs {
    /// The file to write; an existing one is replaced.
    file: PathBuf,
}

/// Puts lines and key-values back from a file, into this or another cluster.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Lines come back as they were, with everybody in line, and with what was left of their times. Numbers, versions and
epochs never go back: a number that was issued after the backup counts as gone (kicked). Tickets stay good if the
cluster has the same key. The cluster may have another number of shards.

A line that exists is left alone, and the exit code is then 1. With --overwrite it is replaced, and what was claimed,
completed or left since the backup is forgotten, except how many units of a --quota were completed. If the line was deleted and
created again since the backup, it is deleted first, and its tokens end. If there is anything to be replaced, the command asks
first; without a terminal it needs --yes. Interrupted, it can be repeated.

Key-values come back unless --line is given, with revisions that are larger than any in the backup. One that exists is
left alone, as a line is. So do the rules of rate limits; what was counted does not.

A line that the cluster refuses is reported at the end, and the exit code is then 1, too: the others are restored.

Examples:
  nowserving cluster restore backup.nsb --dry-run
  nowserving cluster restore backup.nsb
  nowserving cluster restore backup.nsb --line shop-1 --overwrite")]
pub struct RestoreArgs {
    /// The file.
    file: PathBuf,
    /// Only this line, and no key-values; may be repeated.
    #[arg(long = "line", value_name = "NAME")]
    lines: Vec<String>,
    /// Replaces lines, rules of rate limits and key-values that exist. Asks first.
    #[arg(long)]
    overwrite: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// Shows what would be done, and does nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    why: Why,
}

#[derive(Debug, Serialize)]
struct BackupDone {
    cluster: String,
    shards: u32,
    lines: u64,
    keys: u64,
    bytes: u64,
}

/// Runs `backup`.
pub async fn back_up(
    admin: &Admin,
    args: &BackupArgs,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let status = admin.cluster_status().await?;
    let header = Header {
        cluster: status.cluster,
        created_at_ms: wall_ms(),
        shards: u32::try_from(status.shards.len())?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let mut writer = Writer::create(&args.file, &header)?;
    let (mut lines, mut keys) = (0, 0);
    let progress = Progress::new(None, "{spinner} shard {msg}: {bytes}");
    let began = Instant::now();
    progress::note(&format!(
        "saving the {} shards of {} to {}",
        header.shards,
        header.cluster,
        args.file.display()
    ));
    for shard in 0..header.shards {
        let at = format!("{shard} of {}", header.shards);
        progress.bar.set_message(at);
        let bytes = download(admin, &header, shard, &progress).await?;
        // A whole download that makes no sense must not become a backup.
        let read = snapshot::decode(bytes.clone().into(), FORMAT, &header.cluster, shard);
        let (_, state) = read.with_context(|| format!("shard {shard}"))?;
        lines += state.lines().len() as u64;
        keys += state.kv().len() as u64;
        writer.shard(&bytes)?;
    }
    let done = BackupDone {
        bytes: writer.finish()?,
        cluster: header.cluster,
        shards: header.shards,
        lines,
        keys,
    };
    drop(progress);
    progress::note(&ended("the backup", began));
    output.answer(&done, |done| {
        format!(
            "{} has {} and {} in {} of {}, {} bytes",
            args.file.display(),
            many(done.lines, "line"),
            many(done.keys, "key-value"),
            many(u64::from(done.shards), "shard"),
            done.cluster,
            done.bytes
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

/// `the backup has ended after 4.2 s`
fn ended(what: &str, began: Instant) -> String {
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    format!(
        "{what} has ended after {}",
        nowserving_rehearse::duration(ms)
    )
}

/// A name that belongs to the shard: requests about a shard are sent as if about a line.
fn name_in(shard: u32, shards: u32) -> String {
    let mut names = (0_u64..).map(|n| format!("shard-{n}"));
    let found = names.find(|name| shard_of(name, shards) == shard);
    found.unwrap_or_default()
}

async fn download(
    admin: &Admin,
    header: &Header,
    shard: u32,
    progress: &Progress,
) -> anyhow::Result<Vec<u8>> {
    let line = admin.line(&name_in(shard, header.shards))?;
    for _ in 0..ANEW_MAX {
        if let Some(bytes) = download_once(&line, shard, progress).await? {
            return Ok(bytes);
        }
    }
    bail!("shard {shard}: its leader changed too often; nothing was saved")
}

/// `None`: another node leads now.
async fn download_once(
    line: &AdminLine,
    shard: u32,
    progress: &Progress,
) -> anyhow::Result<Option<Vec<u8>>> {
    let (began, mut index) = (Instant::now(), None);
    let (id, length) = loop {
        let reply = line.backup(&Backup { index }).await?;
        ensure!(
            reply.shard == shard,
            "the number of shards changed while the backup was made"
        );
        if let (Some(id), Some(length)) = (reply.id, reply.bytes) {
            break (id, length);
        }
        ensure!(
            began.elapsed() < SNAPSHOT_MAX,
            "shard {shard}: its leader made no snapshot in {SNAPSHOT_MAX:?} (is its disk full?)"
        );
        index = Some(reply.index);
        tokio::time::sleep(SNAPSHOT_POLL).await;
    };
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let chunk = BackupChunk {
            id: id.clone(),
            offset: bytes.len() as u64,
        };
        // The last request, for nothing, says that it is here.
        match line.backup_chunk(&chunk).await?.data {
            None => return Ok(None),
            Some(Blob(data)) if data.is_empty() => break,
            Some(Blob(data)) => bytes.extend(data),
        }
        progress.bar.set_position(bytes.len() as u64);
    }
    ensure!(
        bytes.len() as u64 == length,
        "shard {shard}: {} bytes came, not {length}",
        bytes.len()
    );
    Ok(Some(bytes))
}

#[derive(Debug, Default, Serialize)]
struct RestoreDone {
    cluster: String,
    created_at_ms: u64,
    lines: Vec<RestoredLine>,
    keys: Keys,
    /// Of rate limits, by domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rules: Vec<RestoredRules>,
}

#[derive(Debug, Serialize)]
struct RestoredLine {
    line: String,
    /// Live tokens in the backup.
    live: u64,
    /// Live tokens in the line that exists; missing if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    live_before: Option<u64>,
    outcome: LineOutcome,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum LineOutcome {
    Restored,
    Replaced,
    /// It was left alone.
    Exists,
    /// It was being deleted when the backup was made.
    WasDeleted,
    /// The cluster did not take it.
    Refused,
    WouldRestore,
    WouldReplace,
}

impl LineOutcome {
    fn text(self, dry_run: bool) -> &'static str {
        match self {
            LineOutcome::Exists if dry_run => {
                "exists, would be left alone (--overwrite replaces it)"
            }
            LineOutcome::Restored => "restored",
            LineOutcome::Replaced => "replaced",
            LineOutcome::Exists => "exists, left alone (--overwrite replaces it)",
            LineOutcome::WasDeleted => "left out: it was being deleted",
            LineOutcome::Refused => "refused",
            LineOutcome::WouldRestore => "would be restored",
            LineOutcome::WouldReplace => "would be replaced",
        }
    }
}

/// Runs `restore`.
pub async fn restore(
    client: &Client,
    admin: &Admin,
    args: &RestoreArgs,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    check_names(&args.file, &args.lines)?;
    let mut args = args.clone();
    let note = global.note(args.why.reason.as_deref());
    let admin = &admin.with_note(note.clone())?;
    if args.overwrite && !args.yes && !args.dry_run {
        let dry = RestoreArgs {
            dry_run: true,
            overwrite: false,
            ..args.clone()
        };
        let counted = put_all_back(client, admin, &dry, &note, output).await?;
        // What comes by the time of the restore is left alone.
        args.overwrite = counted.exist_some();
        if args.overwrite {
            let here = admin.cluster_status().await?.cluster;
            confirm::ask(&question::of(&counted, &here), output)?;
        }
    }
    let done = put_all_back(client, admin, &args, &note, output).await?;
    output.answer(&done, |done| table(done, args.dry_run))?;
    Ok(ExitCode::from(u8::from(lacks_some(&done))))
}

/// Puts back what `args` name; in a dry run finds out what would become of it.
async fn put_all_back(
    client: &Client,
    admin: &Admin,
    args: &RestoreArgs,
    note: &OperatorNote,
    output: &Output,
) -> anyhow::Result<RestoreDone> {
    let mut reader = Reader::open(&args.file)?;
    let mut done = RestoreDone {
        cluster: reader.header.cluster.clone(),
        created_at_ms: reader.header.created_at_ms,
        ..RestoreDone::default()
    };
    let what = match args.dry_run {
        true => "the dry run of the restore",
        false => "the restore",
    };
    let began = Instant::now();
    progress::note(&format!("{what} of {} begins", args.file.display()));
    // Without key-values the backup is read once.
    let with_keys = args.lines.is_empty();
    let above_revision = match with_keys {
        true => keys::newest_revision(Reader::open(&args.file)?)?,
        false => 0,
    };
    while let Some((_, state)) = reader.shard()? {
        for line in state.lines().iter() {
            let name = line.name().as_str();
            if !args.lines.is_empty() && !args.lines.iter().any(|it| it == name) {
                continue;
            }
            let put = put_back(admin, line, state.now_ms(), args, output).await;
            let (put, error) = match put {
                Ok(put) => (put, None),
                // Of this line: the next one may be taken.
                Err(error) if is_refusal(&error) => (
                    Put::new(LineOutcome::Refused, None),
                    Some(format!("{error:#}")),
                ),
                Err(error) => {
                    let restored = restored(&done);
                    let what = format!("line {name} is not restored, {restored} lines were");
                    return Err(error.context(what));
                }
            };
            done.lines.push(RestoredLine {
                line: name.to_owned(),
                live: line.counts().live(),
                live_before: put.live_before,
                outcome: put.outcome,
                error,
            });
        }
        if with_keys {
            let put = keys::restore(client, &state, above_revision, args, &mut done.keys).await;
            put.with_context(|| {
                let (lines, keys) = (restored(&done), done.keys.restored());
                format!("{lines} lines and {keys} key-values were restored, and then")
            })?;
        }
        // With --line only lines come back.
        let rules = state.limits().rules().domains();
        for (domain, rules) in rules.filter(|_| args.lines.is_empty()) {
            let restored = rules::put_back(admin, domain, rules, args, note.by.clone()).await;
            let restored = restored.with_context(|| {
                let domain = domain.as_str();
                format!("the rules of domain {domain} are not restored")
            })?;
            done.rules.push(restored);
        }
    }
    progress::note(&ended(what, began));
    Ok(done)
}

/// The cluster has answered, and would answer so again.
fn is_refusal(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Error>();
    error.is_some_and(|error| error.code().is_some())
}

/// Whether something was left alone or refused.
fn lacks_some(done: &RestoreDone) -> bool {
    let lines = done.lines.iter().map(|it| it.outcome);
    let mut outcomes = lines.chain(done.rules.iter().map(|it| it.outcome));
    outcomes.any(|it| matches!(it, LineOutcome::Exists | LineOutcome::Refused))
        || done.keys.lacks_some()
}

fn restored(done: &RestoreDone) -> usize {
    let outcomes = done.lines.iter().map(|it| it.outcome);
    let restored =
        outcomes.filter(|it| matches!(it, LineOutcome::Restored | LineOutcome::Replaced));
    restored.count()
}

fn table(done: &RestoreDone, dry_run: bool) -> String {
    let mut text: Vec<String> = done
        .lines
        .iter()
        .map(|it| {
            let outcome = it.outcome.text(dry_run);
            let error = it.error.iter().map(|error| format!(": {error}"));
            let error: String = error.collect();
            let before = it.live_before.map(|live| format!(", {live} before"));
            let before = before.unwrap_or_default();
            format!(
                "{}: {outcome} ({} in line{before}){error}",
                it.line, it.live
            )
        })
        .collect();
    if !done.keys.is_empty() {
        text.push(done.keys.text(dry_run));
    }
    text.extend(done.rules.iter().map(|it| {
        let (domain, outcome) = (&it.domain, it.outcome.text(dry_run));
        let error = it.error.iter().map(|error| format!(": {error}"));
        format!(
            "rate limits of {domain}: {outcome}{}",
            error.collect::<String>()
        )
    }));
    if text.is_empty() {
        text.push("the backup has no lines".to_owned());
    }
    text.join("\n")
}

/// All lines that were named are in the backup: else nothing is done.
fn check_names(file: &Path, names: &[String]) -> anyhow::Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    let mut missing: Vec<&String> = names.iter().collect();
    let mut reader = Reader::open(file)?;
    while let Some((_, state)) = reader.shard()? {
        let has = |name: &str| {
            state
                .lines()
                .iter()
                .any(|line| line.name().as_str() == name)
        };
        missing.retain(|name| !has(name));
    }
    match missing.first() {
        Some(name) => Err(WrongUsage(format!("--line: the backup has no line {name:?}")).into()),
        None => Ok(()),
    }
}

/// What became of a line.
struct Put {
    outcome: LineOutcome,
    /// Live tokens in the line that existed.
    live_before: Option<u64>,
}

impl Put {
    fn new(outcome: LineOutcome, present: Option<&LineReply>) -> Put {
        Put {
            outcome,
            live_before: present.map(people_in),
        }
    }
}

async fn put_back(
    admin: &Admin,
    line: &Line,
    clock_ms: u64,
    args: &RestoreArgs,
    output: &Output,
) -> anyhow::Result<Put> {
    if line.deleting().is_some() {
        return Ok(Put::new(LineOutcome::WasDeleted, None));
    }
    let target = admin.line(line.name().as_str())?;
    let present = match target.show().await {
        Ok(shown) => Some(shown),
        Err(error) if error.code() == Some(Code::LineNotFound) => None,
        Err(error) => return Err(error.into()),
    };
    let became = |outcome| Put::new(outcome, present.as_ref());
    match &present {
        Some(_) if !args.overwrite => return Ok(became(LineOutcome::Exists)),
        Some(_) if args.dry_run => return Ok(became(LineOutcome::WouldReplace)),
        None if args.dry_run => return Ok(became(LineOutcome::WouldRestore)),
        _ => {}
    }
    let sent = send(&target, line, clock_ms, args.overwrite).await?;
    if let Some(present) = &present
        && present.incarnation != line.incarnation()
    {
        // As late as can be: all of the other one is here already.
        let request = Delete {
            force: true,
            incarnation: Some(present.incarnation),
        };
        let reply = target.delete(&request).await?;
        if !reply.deleted {
            until_gone(&target, present.incarnation, reply.remaining, output).await?;
        }
    }
    let mut put = target.restore(&sent).await;
    for _ in 0..FINISH_MAX {
        match &put {
            // The times of its tokens are shifted page by page.
            Err(error) if error.code() == Some(Code::Overloaded) => {
                put = target.restore(&sent).await;
            }
            _ => break,
        }
    }
    match put {
        Ok(_) => {}
        // Somebody created it since.
        Err(error) if error.code() == Some(Code::LineExists) => {
            return Ok(became(LineOutcome::Exists));
        }
        Err(error) => return Err(error.into()),
    }
    Ok(became(match present {
        Some(_) => LineOutcome::Replaced,
        None => LineOutcome::Restored,
    }))
}

/// Sends all parts of a line.
async fn send(
    target: &AdminLine,
    line: &Line,
    clock_ms: u64,
    overwrite: bool,
) -> anyhow::Result<RestoreLine> {
    let (parts, digest) = parts_of(line);
    let count = u32::try_from(parts.len())?;
    let template = "{prefix} {wide_bar} part {pos} of {len}";
    let progress = Progress::new(Some(count.into()), template);
    progress.bar.set_prefix(line.name().as_str().to_owned());
    for _ in 0..ANEW_MAX {
        let upload = Hex(rand::random());
        let mut next = 0;
        while let Some(part) = parts.get(next as usize) {
            let part = RestorePart {
                upload,
                part: next,
                data: Blob(part.to_vec()),
            };
            let staged = target.restore_part(&part).await?.parts;
            if staged == 0 {
                break;
            }
            next = staged;
            progress.bar.set_position(next.into());
        }
        if next >= count {
            return Ok(RestoreLine {
                upload,
                parts: count,
                digest: Hex(digest),
                clock_ms,
                overwrite,
            });
        }
    }
    bail!("its parts were dropped again and again; is another restore of it running?")
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |it| it.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_that_is_refused_is_told_of_and_fails_the_command() {
        let line = |line: &str, outcome, error: Option<&str>| RestoredLine {
            line: line.to_owned(),
            live: 2,
            live_before: None,
            outcome,
            error: error.map(str::to_owned),
        };
        let mut done = RestoreDone {
            cluster: "prod".to_owned(),
            created_at_ms: 1,
            lines: vec![line("b", LineOutcome::Restored, None)],
            keys: Keys::default(),
            rules: Vec::new(),
        };
        assert!(!lacks_some(&done));
        let refused = line("a", LineOutcome::Refused, Some("bad_request: too long"));
        done.lines.insert(0, refused);
        assert!(lacks_some(&done));
        let shown = "a: refused (2 in line): bad_request: too long\nb: restored (2 in line)";
        assert_eq!(table(&done, false), shown);
        assert!(!is_refusal(&anyhow::anyhow!("no answer")));
    }

    #[test]
    fn every_shard_has_a_name() {
        for shards in [1, 2, 7, 16, 64] {
            for shard in 0..shards {
                assert_eq!(shard_of(&name_in(shard, shards), shards), shard);
            }
        }
    }
}
