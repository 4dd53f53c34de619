//! Logs go to stderr; stdout has the answers.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

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
/// are logged there.
pub fn start(format: Format) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        EnvFilter::new(
            "warn,async_nats=off,nowserving=info,nowserving_node=info,nowserving_engine=info,\
             nowserving_log=info",
        )
    });
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format {
        Format::Json => subscriber.json().init(),
        Format::Text => {
            let colour = crate::output::wants_colour(std::io::stderr().is_terminal());
            subscriber.with_ansi(colour).init();
        }
    }
    std::panic::set_hook(Box::new(log_panic));
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
