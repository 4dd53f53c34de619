//! How much processor time servers took, as Linux tells it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nowserving_e2e::Process;

/// Where the processor time of a process stands.
pub fn of_pid(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/stat"))
}

/// The same of a process that was started here.
///
/// # Errors
/// It has ended.
pub fn of(process: &Process) -> Result<PathBuf> {
    Ok(of_pid(process.pid().context("a server has ended")?))
}

/// User and system time together, up to now. `None` if one of them cannot be read.
pub fn spent(stats: &[PathBuf]) -> Option<Duration> {
    let ticks = stats
        .iter()
        .map(|stat| ticks(&fs::read_to_string(stat).ok()?));
    let ticks = ticks.sum::<Option<u64>>()?;
    let a_second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_secs_f64(ticks as f64 / a_second as f64))
}

/// `utime` and `stime` of a line of /proc/PID/stat. Its second field is a name, which may hold anything.
fn ticks(line: &str) -> Option<u64> {
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn user_and_system_time_are_read_behind_any_name() {
        let line = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0";
        assert_eq!(ticks(line), Some(300));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_tells() {
        let own = [of_pid(std::process::id())];
        assert!(spent(&own).is_some());
        assert_eq!(spent(&[PathBuf::from("/proc/none/stat")]), None);
    }
}
