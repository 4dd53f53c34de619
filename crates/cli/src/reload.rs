//! Files that a daemon reads again on SIGHUP.

use std::path::Path;

use nowserving_security::Security;

use crate::logs::Logs;

/// What a daemon reads again on SIGHUP. What it found is logged, and a file that cannot be used changes nothing.
#[derive(Debug)]
pub struct Reload {
    pub logs: Logs,
    /// Its files are read for each connection, so they are checked here alone.
    pub security: Security,
}

impl Reload {
    pub fn run(&self) {
        tracing::info!("SIGHUP: reading files again");
        self.logs.reload();
        let files: Vec<_> = self.security.files().map(Path::display).collect();
        match self.security.options() {
            Ok(_) if files.is_empty() => {}
            Ok(_) => tracing::info!(?files, "the next connection to NATS uses these files"),
            Err(error) => tracing::error!(%error, "connections to NATS stay as they are"),
        }
    }
}
