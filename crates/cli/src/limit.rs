//! `nowserving limit`: the rules of rate limits, and what they count.

mod nearest;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Args, Subcommand};
use nowserving_client::limits::{
    ApplyRules, Check, DeleteRules, Descriptor, Entry, ListLimitChanges, ResetLimit, RulesChanged,
    TestLimits,
};
use nowserving_client::{ApiError, LimitFallback, LimiterOptions, LineName, limits};
use nowserving_limit::Rules;
use nowserving_line::NUMBER_MAX;

use crate::confirm;
use nowserving_terminal::global::Global;
use nowserving_terminal::number;
use nowserving_terminal::output::{Output, UNREACHABLE, WrongFile, WrongUsage};
use nowserving_tools::pictures::{self, PicturesArgs};

/// In place of a file.
const STDIN: &str = "-";

/// Rate limits: rules in the YAML of Lyft's ratelimit, and their counters.
#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    Apply(ApplyArgs),
    Show(ShowArgs),
    Delete(DeleteArgs),
    /// Shows how many counters all shards have, how many requests their leaders answered, and how many hits each rule allowed and
    /// refused since the nodes started. Exit code 3 if a shard does not answer: it is named then.
    Stats,
    Changes(ChangesArgs),
    Reset(ResetArgs),
    /// Shows what a check would answer, and by which rules. Counts nothing.
    #[command(after_help = "\
Example:
  nowserving limit test shop remote_address=127.0.0.1 plan=free,path=/search")]
    Test(CheckArgs),
    /// Asks as a service does whether a request may pass, and counts it. The exit code is 0 also if it is refused: `allowed`
    /// tells with --json.
    #[command(after_help = "\
Examples:
  nowserving limit check shop remote_address=127.0.0.1
  nowserving limit check shop plan=free,path=/search --hits 5")]
    Check(CheckArgs),
    Pictures(PicturesArgs),
}

impl LimitCommand {
    /// The domain that the command is about, if it must exist.
    pub fn domain(&self) -> Option<&str> {
        match self {
            LimitCommand::Show(args) => args.domain.as_ref().map(LineName::as_str),
            LimitCommand::Delete(args) => Some(args.domain.as_str()),
            LimitCommand::Reset(args) => Some(args.domain.as_str()),
            LimitCommand::Test(args) | LimitCommand::Check(args) => Some(args.domain.as_str()),
            // Changes of a domain whose rules are gone are shown, too.
            LimitCommand::Apply(_)
            | LimitCommand::Changes(_)
            | LimitCommand::Stats
            | LimitCommand::Pictures(_) => None,
        }
    }
}

/// Replaces the rules of a domain with those of a file, and shows what changes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving limit apply rules.yaml --dry-run
  nowserving limit apply rules.yaml --by ann --reason \"sale on Friday\"

A file:
  domain: shop
  descriptors:
    - key: remote_address
      rate_limit: {unit: minute, requests_per_unit: 100}

docs/rate-limits/rules.md has all fields.")]
pub struct ApplyArgs {
    /// The file, of one domain; `-` reads standard input.
    file: PathBuf,
    /// Only shows what would change.
    #[arg(long)]
    dry_run: bool,
    /// Only if the rules of the domain have this version; 0: only if it has none.
    #[arg(long, value_name = "VERSION", value_parser = number::between::<u64>(0..=NUMBER_MAX))]
    if_version: Option<u64>,
    /// Does not ask before the last limits of the domain go; without a terminal it is needed for that.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    note: Note,
}

/// Shows the rules: all domains, or those of one in full.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// The domain.
    domain: Option<LineName>,
    /// Prints the YAML as it was applied, and nothing else.
    #[arg(long, requires = "domain")]
    yaml: bool,
}

/// Removes the rules of a domain: its requests are allowed then. Asks first; without a terminal it needs --yes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving limit delete shop --dry-run
  nowserving limit delete shop --reason \"the sale is over\"")]
pub struct DeleteArgs {
    /// The domain.
    domain: LineName,
    /// Only shows which rules there are.
    #[arg(long)]
    dry_run: bool,
    /// Does not ask.
    #[arg(long)]
    yes: bool,
    /// Only if its rules have this version.
    #[arg(long, value_name = "VERSION", value_parser = number::between::<u64>(0..=NUMBER_MAX))]
    if_version: Option<u64>,
    #[command(flatten)]
    note: Note,
}

/// Shows the newest changes that operators made of rules and counters: what, when, by whom and why. Exit code 3 if a shard does
/// not answer: it is named then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving limit changes
  nowserving limit changes shop --json")]
pub struct ChangesArgs {
    /// Only of this domain.
    domain: Option<LineName>,
}

#[derive(Debug, Args)]
struct Note {
    /// Why, to be shown: at most 128 bytes.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Forgets what was counted of one descriptor.
#[derive(Debug, Args)]
pub struct ResetArgs {
    /// The domain.
    domain: LineName,
    /// Its entries, KEY=VALUE, separated by commas; `\,` is a comma in a value, `\\` a backslash.
    #[arg(value_parser = descriptor)]
    descriptor: Entries,
    #[command(flatten)]
    note: Note,
}

// `test` and `check` have their help where they are listed.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The domain.
    domain: LineName,
    /// Descriptors, each KEY=VALUE, or several of them separated by commas; `\,` is a comma in a value, `\\` a backslash.
    #[arg(required = true, value_parser = descriptor)]
    descriptors: Vec<Entries>,
    /// How many hits [default: 1].
    #[arg(long, value_name = "N", value_parser = number::between::<u32>(0..=u32::MAX.into()))]
    hits: Option<u32>,
}

impl CheckArgs {
    fn check(self) -> Result<(LineName, Check), WrongUsage> {
        let descriptors = self.descriptors.into_iter().map(|it| it.0).collect();
        let check = Check {
            hits: self.hits,
            ..Check::new(descriptors)
        };
        check.check().map_err(wrong)?;
        Ok((self.domain, check))
    }
}

/// One descriptor: clap would take a plain list for several arguments.
#[derive(Debug, Clone)]
struct Entries(Descriptor);

fn descriptor(text: &str) -> Result<Entries, String> {
    let entry = |text: String| match text.split_once('=') {
        Some(("", _)) => Err(format!("{text:?} has no key")),
        Some((key, value)) => Ok(Entry::new(key, value)),
        // All requests would share its counter.
        None => Err(format!("{text:?} has no =VALUE; an empty one is {text}=")),
    };
    let entries = split(text).into_iter().map(entry);
    let entries: Descriptor = entries.collect::<Result<_, _>>()?;
    limits::check_descriptor("descriptor", &entries).map_err(|error| error.message)?;
    Ok(Entries(entries))
}

/// At commas, but for those after a backslash.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let escaped = chars.next_if(|next| c == '\\' && matches!(next, ',' | '\\'));
        match escaped {
            Some(escaped) => part.push(escaped),
            None if c == ',' => parts.push(std::mem::take(&mut part)),
            None => part.push(c),
        }
    }
    parts.push(part);
    parts
}

pub async fn run(
    command: LimitCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    match command {
        LimitCommand::Apply(args) => apply(args, global, output).await?,
        LimitCommand::Show(args) => show(args, global, output).await?,
        LimitCommand::Delete(args) => delete(args, global, output).await?,
        LimitCommand::Stats => {
            let stats = global.connect().await?.admin().limit_stats().await?;
            output.answer(&stats, |stats| text::stats(stats, output))?;
            if !stats.unanswered.is_empty() {
                return Ok(ExitCode::from(UNREACHABLE));
            }
        }
        LimitCommand::Changes(args) => {
            let request = ListLimitChanges {
                domain: args.domain,
            };
            let admin = global.connect().await?.admin();
            let changes = admin.limit_changes(&request).await?;
            output.answer(&changes, |changes| text::history(changes, output))?;
            if !changes.unanswered.is_empty() {
                return Ok(ExitCode::from(UNREACHABLE));
            }
        }
        LimitCommand::Reset(args) => {
            let request = ResetLimit {
                domain: args.domain,
                descriptor: args.descriptor.0,
            };
            request.check().map_err(wrong)?;
            let admin = global.connect().await?.admin();
            let admin = admin.with_note(global.note(args.note.reason.as_deref()))?;
            let reset = admin.reset_limit(&request).await?;
            output.answer(&reset, text::reset)?;
        }
        LimitCommand::Test(args) => {
            let (domain, check) = args.check()?;
            let request = TestLimits {
                domain,
                descriptors: check.descriptors,
                hits: check.hits,
            };
            let admin = global.connect().await?.admin();
            let tested = admin.test_limits(&request).await?;
            let hints = nearest::hints(
                &admin,
                &request.domain,
                &request.descriptors,
                &tested,
                output,
            );
            let hints = hints.await;
            output.answer(&tested, |tested| text::check(tested, &hints))?;
        }
        LimitCommand::Pictures(args) => pictures::run(&args, output)?,
        LimitCommand::Check(args) => check(args, global, output).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn apply(args: ApplyArgs, global: &Global, output: &Output) -> anyhow::Result<()> {
    let text = read(&args.file)?;
    // All mistakes at once, and without a cluster.
    let (domain, rules) = parse(&args.file, &text)?;
    let mut request = ApplyRules {
        rules: text,
        dry_run: true,
        if_version: args.if_version,
    };
    request.check().map_err(wrong)?;
    if rules.rules().is_empty() && !output.json {
        let domain = domain.as_str();
        eprintln!(
            "note: there are no limits in the file: all requests of domain {domain} are allowed"
        );
    }
    let admin = global.connect().await?.admin();
    let admin = admin.with_note(global.note(args.note.reason.as_deref()))?;
    let tried = admin.apply_limits(&request).await?;
    if !output.json {
        tried
            .notes
            .iter()
            .for_each(|note| eprintln!("note: {note}"));
    }
    if args.dry_run {
        return output.answer(&tried, text::applied);
    }
    if rules.rules().is_empty() && tried.version > 0 && !tried.changes.is_empty() && !args.yes {
        ask(&tried, output)?;
    }
    // What is applied is what was compared.
    request.dry_run = false;
    request.if_version = Some(tried.version);
    let applied = admin.apply_limits(&request).await?;
    let applied = RulesChanged {
        changes: tried.changes,
        ..applied
    };
    output.answer(&applied, text::applied)
}

/// Asks whether all limits of a domain may go. `dry`: the dry run, with what goes.
fn ask(dry: &RulesChanged, output: &Output) -> anyhow::Result<()> {
    if !output.json {
        dry.changes.iter().for_each(|change| eprintln!("{change}"));
    }
    confirm::ask(&text::deletes(dry), output)
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

fn parse(file: &Path, text: &str) -> Result<(LineName, Rules), WrongFile> {
    let parsed = Rules::parse_one(text, limits::RULES_BYTES_MAX, str::parse::<LineName>);
    parsed.map_err(|errors| {
        let file = file.display();
        WrongFile(format!(
            "{file}:\n{errors}\n(docs/rate-limits/rules.md has the fields)"
        ))
    })
}

fn wrong(error: ApiError) -> WrongUsage {
    WrongUsage(error.message)
}

async fn delete(args: DeleteArgs, global: &Global, output: &Output) -> anyhow::Result<()> {
    let mut request = DeleteRules {
        domain: args.domain,
        dry_run: args.dry_run,
        if_version: args.if_version,
    };
    let admin = global.connect().await?.admin();
    let admin = admin.with_note(global.note(args.note.reason.as_deref()))?;
    if !args.yes && !args.dry_run {
        let dry = DeleteRules {
            dry_run: true,
            ..request.clone()
        };
        let shown = admin.delete_limits(&dry).await?;
        ask(&shown, output)?;
        request.if_version.get_or_insert(shown.version);
    }
    let changed = admin.delete_limits(&request).await?;
    output.answer(&changed, text::deleted)
}

async fn check(args: CheckArgs, global: &Global, output: &Output) -> anyhow::Result<()> {
    let (domain, request) = args.check()?;
    let client = global.connect().await?;
    let mut options = LimiterOptions::default();
    options.on_unavailable = LimitFallback::Fail;
    options.patience = client.deadline();
    let limiter = client.limiter_with(domain.as_str(), options)?;
    let checked = limiter.check_with(&request).await?;
    let admin = client.admin();
    let hints = nearest::hints(&admin, &domain, &request.descriptors, &checked, output).await;
    output.answer(&checked, |checked| text::check(checked, &hints))
}

async fn show(args: ShowArgs, global: &Global, output: &Output) -> anyhow::Result<()> {
    let admin = global.connect().await?.admin();
    let shown = admin.show_limits(args.domain.as_ref()).await?;
    match shown.domains.first().and_then(|it| it.text.as_deref()) {
        Some(text) if args.yaml && !output.json => output.line(text.trim_end()),
        _ => output.answer(&shown, text::rules),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn descriptors_are_keys_and_values() {
        let Entries(entries) =
            descriptor(r"plan=free,path=/a=b,any=,list=a\,b\\,dir=C:\x\").unwrap();
        let expected = [
            Entry::new("plan", "free"),
            Entry::new("path", "/a=b"),
            Entry::new("any", ""),
            Entry::new("list", r"a,b\"),
            Entry::new("dir", r"C:\x\"),
        ];
        assert_eq!(entries, expected);
        for (bad, says) in [
            ("=x", "no key"),
            ("a=1,=x", "no key"),
            ("", "no =VALUE"),
            ("a=1,daily", "an empty one is daily="),
        ] {
            let error = descriptor(bad).unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
