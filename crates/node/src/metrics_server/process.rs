//! Metrics of the process, by the names that Prometheus's client libraries use.

use super::text::Text;
use crate::clock::{process_cpu_time, wall_ms};

/// What does not change.
#[derive(Debug, Clone)]
pub struct ProcessMetrics {
    version: &'static str,
    started_s: f64,
}

impl ProcessMetrics {
    /// It begins now.
    pub fn begin(version: &'static str) -> Self {
        ProcessMetrics {
            version,
            started_s: wall_ms() as f64 / 1_000.0,
        }
    }

    pub fn write(&self, text: &mut Text) {
        let mut family = text.family("nowserving_build_info");
        family.sample(&[("version", self.version)], 1);
        let mut family = text.family("process_start_time_seconds");
        family.sample(&[], self.started_s);
        let mut family = text.family("process_cpu_seconds_total");
        family.sample(&[], process_cpu_time().as_secs_f64());
        if let Some(bytes) = resident_bytes() {
            let mut family = text.family("process_resident_memory_bytes");
            family.sample(&[], bytes);
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            // One of them reads the folder.
            let count = open.count().saturating_sub(1);
            text.family("process_open_fds").sample(&[], count);
        }
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    resident_in(&status)
}

/// From a line such as `VmRSS:     5312 kB`.
fn resident_in(status: &str) -> Option<u64> {
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = size.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        let status = "Name:\tnowserving\nVmHWM:\t    9000 kB\nVmRSS:\t    5312 kB\nThreads:\t9\n";
        assert_eq!(resident_in(status), Some(5_439_488));
        assert_eq!(resident_in("Name:\tnowserving\n"), None);
    }

    #[test]
    fn a_process_has_its_metrics() {
        let mut text = Text::default();
        ProcessMetrics::begin("1.2.3").write(&mut text);
        let Text(text) = text;
        assert!(text.contains("nowserving_build_info{version=\"1.2.3\"} 1\n"));
        assert!(text.contains("\nprocess_cpu_seconds_total "));
        if cfg!(target_os = "linux") {
            assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
            assert!(text.contains("\nprocess_open_fds "), "{text}");
        }
    }
}
