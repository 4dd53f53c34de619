//! The machine's clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nowserving_engine::Now;
use nowserving_shard::clock::Micros;

/// Reads both clocks.
#[must_use]
pub fn now() -> Now {
    Now {
        us: monotonic_us(),
        wall_ms: wall_ms(),
    }
}

/// Reads the clock behind [`Micros`].
#[must_use]
pub fn monotonic_us() -> Micros {
    #[cfg(target_os = "linux")]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Boottime;
    // macOS counts sleep in its CLOCK_MONOTONIC already.
    #[cfg(not(target_os = "linux"))]
    const ID: rustix::time::ClockId = rustix::time::ClockId::Monotonic;
    let now = rustix::time::clock_gettime(ID);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000
        + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}

/// Waits for a time on that clock.
pub async fn until(due: Micros) {
    let wait = due.saturating_sub(monotonic_us());
    tokio::time::sleep(Duration::from_micros(wait)).await;
}

/// The CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// The CPU time that all threads of this process have used.
#[must_use]
pub fn process_cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(used).unwrap_or_default()
}

/// Milliseconds since 1970, for the birth of a shard's service clock and for display only.
#[must_use]
pub fn wall_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
