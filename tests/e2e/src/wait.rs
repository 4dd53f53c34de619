//! Waiting for a condition: with a deadline, never for a guessed time.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::Instant;

const PAUSE: Duration = Duration::from_millis(25);
/// How much slower than a quiet one a machine may be.
const SLOWEST: u32 = 4;

/// Asks again and again until `ask` returns a value. `Ok(None)` and errors mean "not yet"; the last
/// error is returned when the deadline passes. `patience` is more than a quiet machine needs; a slow one
/// gets four times as much.
///
/// # Errors
/// The deadline has passed.
pub async fn eventually<T>(
    what: &str,
    patience: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let patience = patience * SLOWEST;
    let deadline = Instant::now() + patience;
    loop {
        let last = match tokio::time::timeout_at(deadline, ask()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => bail!("not within {patience:?}: {what} (still asking)"),
        };
        if Instant::now() >= deadline {
            let what = format!("not within {patience:?}: {what}");
            return Err(last.unwrap_or_else(|| anyhow::anyhow!("the condition does not hold")))
                .context(what);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A free port of 127.0.0.1.
///
/// Taken from below the range that systems use for outgoing connections: a node that is started
/// again wants its port back, and must not find another connection there.
///
/// # Errors
/// None of them is free.
pub fn free_port() -> Result<u16> {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes run side by side: each begins somewhere else.
    let begin = u64::from(std::process::id()).wrapping_mul(7_919) % u64::from(COUNT);
    for _ in 0..COUNT {
        let step = u64::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + u16::try_from((begin + step) % u64::from(COUNT))?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no free port between {FIRST} and {}", FIRST + COUNT)
}
