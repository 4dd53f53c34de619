//! `nowserving limit`: the rules of rate limits, and what they count.

mod pictures;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use nowserving_client::limits::{
    ApplyRules, Check, CheckReply, DeleteRules, Descriptor, Entry, LimitStatsReply, ResetLimit,
    RulesChanged, RulesReply, ShowRules, TestLimits,
};
use nowserving_client::{LimitFallback, LimiterOptions};
use nowserving_client::{LineName, limits};
use nowserving_limit::Rules;

use crate::args::Global;
use crate::output::{Output, WrongUsage};
use pictures::PicturesArgs;

/// Rate limits: rules in the YAML of Lyft's ratelimit, and their counters.
#[derive(Debug, Subcommand)]
pub enum LimitCommand {
    Apply(ApplyArgs),
    Show(ShowArgs),
    Delete(DeleteArgs),
    /// Shows how many counters all shards have, and how many requests their leaders answered. What each rule lets through is
    /// in the nodes' metrics: `nowserving_rate_limit_total`.
    Stats,
    Reset(DescriptorArgs),
    Test(TestArgs),
    Check(TestArgs),
    Pictures(PicturesArgs),
}

/// Replaces the rules of a domain with those of a file, and shows what changes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nowserving limit apply rules.yaml --dry-run
  nowserving limit apply rules.yaml --by ann --reason \"sale on Friday\"")]
pub struct ApplyArgs {
    /// The file, of one domain.
    file: PathBuf,
    /// Only shows what would change.
    #[arg(long)]
    dry_run: bool,
    /// Only if the rules of the domain have this version; 0: only if it has none.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
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

/// Removes the rules of a domain: its requests are allowed then.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The domain.
    domain: LineName,
    /// Only if its rules have this version.
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    note: Note,
}

#[derive(Debug, Args)]
struct Note {
    /// Who asks, to be shown: at most 128 bytes.
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Why, to be shown: at most 512 bytes.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Forgets what was counted of one descriptor.
#[derive(Debug, Args)]
pub struct DescriptorArgs {
    /// The domain.
    domain: LineName,
    /// Its entries, KEY=VALUE, separated by commas.
    #[arg(value_parser = descriptor)]
    descriptor: Entries,
}

/// Asks what limits say: `test` counts nothing and shows the rules, `check` counts.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  nowserving limit test shop remote_address=127.0.0.1 plan=free,path=/search")]
pub struct TestArgs {
    /// The domain.
    domain: LineName,
    /// Descriptors, each KEY=VALUE, or several of them separated by commas.
    #[arg(required = true, value_parser = descriptor)]
    descriptors: Vec<Entries>,
    /// How many hits [default: 1].
    #[arg(long, value_name = "N")]
    hits: Option<u32>,
}

/// One descriptor: clap would take a plain list for several arguments.
#[derive(Debug, Clone)]
struct Entries(Descriptor);

fn descriptor(text: &str) -> Result<Entries, String> {
    let entry = |text: &str| match text.split_once('=') {
        Some(("", _)) => Err(format!("{text:?} has no key")),
        Some((key, value)) => Ok(Entry::new(key, value)),
        None => Ok(Entry::new(text, "")),
    };
    let entries: Descriptor = text.split(',').map(entry).collect::<Result<_, _>>()?;
    limits::check_descriptor("descriptor", &entries).map_err(|error| error.message)?;
    Ok(Entries(entries))
}

pub async fn run(
    command: LimitCommand,
    global: &Global,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    match command {
        LimitCommand::Apply(args) => apply(args, global, output).await?,
        LimitCommand::Show(args) => show(args, global, output).await?,
        LimitCommand::Delete(args) => {
            let request = DeleteRules {
                domain: args.domain,
                if_version: args.if_version,
                by: args.note.by,
                reason: args.note.reason,
            };
            let admin = global.connect().await?.admin();
            let changed = admin.delete_limits(&request).await?;
            output.answer(&changed, changed_text)?;
        }
        LimitCommand::Stats => {
            let stats = global.connect().await?.admin().limit_stats().await?;
            output.answer(&stats, stats_text)?;
        }
        LimitCommand::Reset(args) => {
            let request = ResetLimit {
                domain: args.domain,
                descriptor: args.descriptor.0,
            };
            let admin = global.connect().await?.admin();
            let reset = admin.reset_limit(&request).await?;
            output.answer(&reset, |_| "counted anew".to_owned())?;
        }
        LimitCommand::Test(args) => {
            let request = TestLimits {
                domain: args.domain,
                descriptors: args.descriptors.into_iter().map(|it| it.0).collect(),
                hits: args.hits,
            };
            let admin = global.connect().await?.admin();
            let tested = admin.test_limits(&request).await?;
            output.answer(&tested, check_text)?;
        }
        LimitCommand::Pictures(args) => pictures::run(&args, output)?,
        LimitCommand::Check(args) => {
            let client = global.connect().await?;
            let mut options = LimiterOptions::default();
            options.on_unavailable = LimitFallback::Fail;
            options.patience = client.deadline();
            let limiter = client.limiter_with(args.domain.as_str(), options)?;
            let request = Check {
                descriptors: args.descriptors.into_iter().map(|it| it.0).collect(),
                hits: args.hits,
                dry_run: false,
            };
            let checked = limiter.check_with(&request).await?;
            output.answer(&checked, check_text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn apply(args: ApplyArgs, global: &Global, output: &Output) -> anyhow::Result<()> {
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file).with_context(|| format!("{file}"))?;
    // All mistakes at once, and without a cluster.
    Rules::parse_one(&text, limits::RULES_BYTES_MAX, str::parse::<LineName>)
        .map_err(|errors| WrongUsage(format!("{file}:\n{errors}")))?;
    let admin = global.connect().await?.admin();
    let mut request = ApplyRules {
        rules: text,
        dry_run: true,
        if_version: args.if_version,
        by: args.note.by,
        reason: args.note.reason,
    };
    let tried = admin.apply_limits(&request).await?;
    if args.dry_run {
        return output.answer(&tried, changed_text);
    }
    // What is applied is what was compared.
    request.dry_run = false;
    request.if_version = Some(tried.version);
    let applied = admin.apply_limits(&request).await?;
    let applied = RulesChanged {
        changes: tried.changes,
        ..applied
    };
    output.answer(&applied, changed_text)
}

async fn show(args: ShowArgs, global: &Global, output: &Output) -> anyhow::Result<()> {
    let admin = global.connect().await?.admin();
    let request = ShowRules {
        domain: args.domain,
    };
    let shown = admin.show_limits(&request).await?;
    match shown.domains.first().and_then(|it| it.text.as_deref()) {
        Some(text) if args.yaml && !output.json => output.line(text.trim_end()),
        _ => output.answer(&shown, show_text),
    }
}

fn changed_text(changed: &RulesChanged) -> String {
    let mut lines = changed.changes.clone();
    if lines.is_empty() {
        lines.push("no differences".to_owned());
    }
    let (domain, version) = (changed.domain.as_str(), changed.version);
    lines.push(match (changed.dry_run, version) {
        (true, 0) => format!("domain {domain} has no rules yet; nothing was changed"),
        (true, _) => format!("domain {domain} has version {version}; nothing was changed"),
        (false, _) => format!("domain {domain}: version {version}"),
    });
    lines.join("\n")
}

fn show_text(shown: &RulesReply) -> String {
    if shown.domains.is_empty() {
        return "no rules".to_owned();
    }
    let mut lines = Vec::new();
    for domain in &shown.domains {
        let by = match domain.by.as_str() {
            "" => String::new(),
            by => format!(", by {by}"),
        };
        let (name, version, rules) = (domain.domain.as_str(), domain.version, domain.rules_total);
        lines.push(format!("{name}: version {version}, {rules} rules{by}"));
        lines.extend(domain.rules.iter().map(|rule| format!("  {rule}")));
    }
    lines.join("\n")
}

fn check_text(checked: &CheckReply) -> String {
    let mut lines = vec![match (checked.unmatched, checked.allowed) {
        (true, _) => "allowed: the domain has no rules".to_owned(),
        (false, true) => "allowed".to_owned(),
        (false, false) => match checked.retry_after_ms {
            Some(ms) => format!("refused, for {ms} ms"),
            None => "refused, for good".to_owned(),
        },
    }];
    for (nth, descriptor) in checked.descriptors.iter().enumerate() {
        let says = match (descriptor.limit, descriptor.remaining) {
            (Some(limit), Some(left)) => {
                let unit = descriptor.unit.as_deref().unwrap_or("unit");
                let over = if descriptor.allowed { "" } else { ", over it" };
                format!("{left} left of {limit} per {unit}{over}")
            }
            _ if descriptor.unlimited => "unlimited".to_owned(),
            _ if descriptor.replaced => "another rule counts instead".to_owned(),
            _ => "no rule".to_owned(),
        };
        let rule = descriptor.rule.iter().map(|rule| format!(" ({rule})"));
        let number = nth + 1;
        lines.push(format!("  {number}: {says}{}", rule.collect::<String>()));
    }
    lines.join("\n")
}

fn stats_text(stats: &LimitStatsReply) -> String {
    let sum = |of: fn(&limits::ShardLimitStats) -> u64| stats.shards.iter().map(of).sum::<u64>();
    let (counters, changed, saved) = (
        sum(|it| it.counters),
        sum(|it| it.changed),
        sum(|it| it.saved),
    );
    let (checks, refused) = (sum(|it| it.checks), sum(|it| it.refused));
    let kib = sum(|it| it.key_bytes).div_ceil(1_024);
    let shards = stats.shards.len();
    let longest = stats.shards.iter().map(|it| it.changed_for_ms).max();
    let longest = longest.unwrap_or_default();
    let (untracked, not_kept) = (sum(|it| it.untracked), sum(|it| it.not_kept));
    let mut text = format!(
        "{counters} counters in {shards} shards (keys: {kib} KiB), {changed} changed since the last checkpoint ({longest} ms)\n\
         {saved} counters on all nodes\n\
         {checks} requests answered by the present leaders, {refused} of them refused"
    );
    if untracked + not_kept > 0 {
        let _ = write!(
            text,
            "\nno room for counters: {untracked} requests not counted everywhere, {not_kept} changes not in checkpoints"
        );
    }
    if !stats.unanswered.is_empty() {
        let missing: Vec<_> = stats.unanswered.iter().map(u32::to_string).collect();
        let _ = write!(text, "\nno answer from shards: {}", missing.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn descriptors_are_keys_and_values() {
        let Entries(entries) = descriptor("plan=free,path=/a=b,any").unwrap();
        let expected = [
            Entry::new("plan", "free"),
            Entry::new("path", "/a=b"),
            Entry::new("any", ""),
        ];
        assert_eq!(entries, expected);
        for bad in ["=x", "a,=x", ""] {
            assert!(descriptor(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shards_that_did_not_answer_are_named() {
        let mut stats = LimitStatsReply::default();
        assert!(!stats_text(&stats).contains("no answer"));
        stats.unanswered = vec![2, 7];
        assert!(stats_text(&stats).ends_with("no answer from shards: 2, 7"));
    }
}
