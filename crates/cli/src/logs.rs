//! Logs go to stderr; stdout has the answers.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, fmt, registry, reload};

/// A longer file is no filter.
const FILTER_BYTES_MAX: u64 = 64 << 10;
/// The filter without `--log` and `RUST_LOG`. `nowserving` means all our crates.
const DEFAULT: &str = "warn,async_nats=off,nowserving=info,nowserving_node=info,nowserving_engine=info,\
    nowserving_log=info";
/// Follows it where a gateway runs inside `dev` or `demo`: there is no configuration to correct. `dev` says at its start
/// whether the line exists, and `demo` creates it.
const GATEWAY_INSIDE: &str = ",nowserving_gateway=warn,nowserving_gateway::lines=off";

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// How a daemon logs.
#[derive(Debug, clap::Args)]
pub struct LogArgs {
    /// How log lines look.
    #[arg(
        long,
        value_enum,
        value_name = "FORMAT",
        default_value = "text",
        env = "NOWSERVING_LOG_FORMAT"
    )]
    log_format: Format,
    /// What is logged, in place of RUST_LOG: a filter such as debug or warn,nowserving_node=info; or @FILE, a file with
    /// one, which is read again on SIGHUP.
    #[arg(long, value_name = "FILTER|@FILE", env = "NOWSERVING_LOG")]
    log: Option<String>,
    /// Follows [`DEFAULT`].
    #[arg(skip)]
    after_default: &'static str,
}

/// Of the commands that do not say.
impl Default for LogArgs {
    fn default() -> LogArgs {
        LogArgs {
            log_format: Format::Text,
            log: None,
            after_default: "",
        }
    }
}

impl LogArgs {
    /// Of `dev` and `demo`, whose messages are not to be lost among a gateway's requests.
    pub fn gateway_inside() -> LogArgs {
        LogArgs {
            after_default: GATEWAY_INSIDE,
            ..LogArgs::default()
        }
    }

    fn file(&self) -> Option<PathBuf> {
        self.log.as_ref()?.strip_prefix('@').map(PathBuf::from)
    }

    fn filter(&self) -> anyhow::Result<EnvFilter> {
        match (self.file(), &self.log) {
            (Some(file), _) => read(&file).context("--log"),
            (None, Some(text)) => parse(text).context("--log"),
            (None, None) => {
                Ok(EnvFilter::try_from_default_env().unwrap_or_else(|_| self.default_filter()))
            }
        }
    }

    fn default_filter(&self) -> EnvFilter {
        EnvFilter::new(format!("{DEFAULT}{}", self.after_default))
    }
}

/// A filter; its lines may be comments.
fn read(path: &Path) -> anyhow::Result<EnvFilter> {
    let read = || {
        let mut text = String::new();
        let bytes = File::open(path)?
            .take(FILTER_BYTES_MAX + 1)
            .read_to_string(&mut text)?;
        ensure!(
            bytes as u64 <= FILTER_BYTES_MAX,
            "more than {FILTER_BYTES_MAX} bytes"
        );
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        parse(&lines.collect::<Vec<_>>().join(","))
    };
    read().with_context(|| path.display().to_string())
}

fn parse(text: &str) -> anyhow::Result<EnvFilter> {
    if text.trim().is_empty() {
        bail!("there is no filter; one that logs nothing is off");
    }
    let filter = EnvFilter::builder().parse(text);
    filter.with_context(|| format!("not a filter: {text:.200}"))
}

/// The running log.
#[derive(Debug)]
pub struct Logs {
    filter: reload::Handle<EnvFilter, Registry>,
    file: Option<PathBuf>,
}

impl Logs {
    /// Reads the file with the filter again, if there is one. One that cannot be used changes nothing.
    pub fn reload(&self) {
        let Some(file) = &self.file else { return };
        let replaced = read(file).and_then(|filter| {
            let text = filter.to_string();
            self.filter.reload(filter)?;
            Ok(text)
        });
        match replaced {
            Ok(filter) => {
                tracing::info!(file = %file.display(), filter, "the log filter was read again");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the log filter stays as it was");
            }
        }
    }
}

/// Starts logging as `--log` says, or else `RUST_LOG`; without them a node logs its actions, and the other commands only
/// problems. The NATS library's own log is off: its errors reach their callers, or come as events, and
/// are logged there. Whatever the filter is, [`may_be_logged`] has the last word.
///
/// # Errors
/// `--log` has no filter.
pub fn start(args: &LogArgs) -> anyhow::Result<Logs> {
    let (filter, handle) = reload::Layer::new(args.filter()?);
    // Without the hint every line of `trace` would be asked about.
    let cap = filter_fn(may_be_logged).with_max_level_hint(LevelFilter::TRACE);
    let filter = filter.and(cap);
    let layer = fmt::layer().with_writer(std::io::stderr);
    match args.log_format {
        Format::Json => registry().with(layer.json().with_filter(filter)).init(),
        Format::Text => {
            let colour = nowserving_terminal::output::wants_colour(std::io::stderr().is_terminal());
            let layer = layer.with_ansi(colour).with_filter(filter);
            registry().with(layer).init();
        }
    }
    std::panic::set_hook(Box::new(log_panic));
    Ok(Logs {
        filter: handle,
        file: args.file(),
    })
}

/// Libraries that carry requests print what they carry at their lower levels (the NATS library each header, the
/// subject with its key-value, its messages' bytes), and tickets, keys and logins with it. Our own crates don't.
fn may_be_logged(of: &Metadata<'_>) -> bool {
    *of.level() <= Level::INFO || is_ours(of.target())
}

/// The target is the module by default: `nowserving::user`, `nowserving_node::nats`.
fn is_ours(target: &str) -> bool {
    let package = target.split("::").next().unwrap_or_default();
    package == "nowserving" || package.starts_with("nowserving_")
}

/// A panic is a log line as any other: with its message, where it happened, and in which thread.
fn log_panic(panic: &std::panic::PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    tracing::error!(
        thread = std::thread::current().name(),
        place = panic.location().map(ToString::to_string),
        backtrace,
        "panicked: {}",
        panic.payload_as_str().unwrap_or("no message"),
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tracing::enabled;

    use super::*;

    #[test]
    fn a_filter_comes_from_the_flag_or_from_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("filter");
        let of = |log: &str| LogArgs {
            log: Some(log.to_owned()),
            ..LogArgs::default()
        };
        let by_file = of(&format!("@{}", file.display()));
        assert_eq!(of("debug").filter().unwrap().to_string(), "debug");
        std::fs::write(&file, "# for now\nwarn\n\nnowserving_node=debug\n").unwrap();
        let filter = by_file.filter().unwrap().to_string();
        assert!(
            filter.contains("nowserving_node=debug") && filter.contains("warn"),
            "{filter}"
        );
        let error = |args: &LogArgs| format!("{:#}", args.filter().unwrap_err());
        for text in ["a=b=c", "", "# nothing"] {
            std::fs::write(&file, text).unwrap();
            assert!(
                error(&by_file).contains(&file.display().to_string()),
                "{text}"
            );
        }
        std::fs::write(&file, "x".repeat(70_000)).unwrap();
        assert!(error(&by_file).contains("more than 65536 bytes"));
        std::fs::remove_file(&file).unwrap();
        assert!(error(&by_file).contains("No such file"));
        assert!(error(&of("a=b=c")).starts_with("--log"));
    }

    #[test]
    fn requests_to_a_gateway_are_logged_unless_it_runs_inside_dev_or_demo() {
        for (args, is_inside) in [
            (LogArgs::default(), false),
            (LogArgs::gateway_inside(), true),
        ] {
            let log = registry().with(args.default_filter());
            tracing::subscriber::with_default(log, || {
                let requests = enabled!(target: "nowserving_gateway::access", Level::INFO);
                let line = enabled!(target: "nowserving_gateway::lines", Level::WARN);
                assert_eq!((requests, line), (!is_inside, !is_inside));
                assert!(enabled!(target: "nowserving_gateway::serve", Level::WARN));
                assert!(enabled!(target: "nowserving_node", Level::INFO));
            });
        }
    }

    #[test]
    fn only_our_own_crates_log_at_low_levels() {
        for ours in ["nowserving", "nowserving::user", "nowserving_node::nats"] {
            assert!(is_ours(ours), "{ours}");
        }
        for theirs in [
            "async_nats::connection",
            "rustls",
            "h2::codec",
            "log",
            "nowservingly",
            "",
        ] {
            assert!(!is_ours(theirs), "{theirs}");
        }
    }
}
