//! What processes take of the machine: memory and open files.

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::process::Process;

impl Process {
    /// What it has in memory, in KiB.
    ///
    /// # Errors
    /// It has ended.
    pub fn memory_kib(&self) -> Result<u64> {
        self.status_kib("VmRSS:")
    }

    /// The most that it has had in memory since [`Process::begin_memory_peak`], in KiB.
    ///
    /// # Errors
    /// It has ended.
    pub fn memory_peak_kib(&self) -> Result<u64> {
        self.status_kib("VmHWM:")
    }

    /// Forgets how much it has had in memory.
    ///
    /// # Errors
    /// It has ended.
    pub fn begin_memory_peak(&self) -> Result<()> {
        // See proc_pid_clear_refs(5).
        Ok(std::fs::write(self.of_kernel("clear_refs")?, "5")?)
    }

    fn status_kib(&self, field: &str) -> Result<u64> {
        let status = std::fs::read_to_string(self.of_kernel("status")?)?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        Ok(kib.with_context(|| field.to_owned())?.parse()?)
    }

    fn of_kernel(&self, file: &str) -> Result<String> {
        let pid = self.pid().context("it has ended")?;
        Ok(format!("/proc/{pid}/{file}"))
    }
}

/// Allows this process as many open files, or as many as it may have. Whether that is enough.
///
/// # Errors
/// The system refuses it.
pub fn allow_open_files(needed: u64) -> Result<bool> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(true);
    }
    let allowed = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = Rlimit {
        current: Some(allowed),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised)?;
    Ok(allowed == needed)
}
