//! Logs go to stderr; stdout has the answers.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, registry};

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line, for programs.
    Json,
}

/// Starts logging as `RUST_LOG` says; without it a node logs its actions, and the other commands only
/// problems. The NATS library's own log is off: its errors reach their callers, or come as events, and
/// are logged there. Whatever `RUST_LOG` says, [`may_be_logged`] has the last word.
pub fn start(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(
            "warn,async_nats=off,nowserving=info,nowserving_node=info,nowserving_engine=info,\
             nowserving_log=info",
        )
    });
    // Without the hint every line of `trace` would be asked about.
    let cap = filter_fn(may_be_logged).with_max_level_hint(LevelFilter::TRACE);
    let filter = filter.and(cap);
    let layer = fmt::layer().with_writer(std::io::stderr);
    match format {
        Format::Json => registry().with(layer.json().with_filter(filter)).init(),
        Format::Text => {
            let colour = crate::output::wants_colour(std::io::stderr().is_terminal());
            let layer = layer.with_ansi(colour).with_filter(filter);
            registry().with(layer).init();
        }
    }
    std::panic::set_hook(Box::new(log_panic));
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
    use super::*;

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
