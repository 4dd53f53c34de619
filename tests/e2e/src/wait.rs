//! Waiting for a condition: with a deadline, never for a guessed time.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

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
    let (mut last, mut is_asking) = (None, false);
    let asked = async {
        loop {
            is_asking = true;
            match ask().await {
                Ok(Some(value)) => return value,
                Ok(None) => last = None,
                Err(error) => last = Some(error),
            }
            is_asking = false;
            tokio::time::sleep(PAUSE).await;
        }
    };
    match tokio::time::timeout(patience, asked).await {
        Ok(value) => Ok(value),
        Err(_) => {
            let last = last.unwrap_or_else(|| anyhow!("the condition does not hold"));
            let state = if is_asking { " (still asking)" } else { "" };
            Err(last).context(format!("not within {patience:?}: {what}{state}"))
        }
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
