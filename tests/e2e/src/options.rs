//! How a test's cluster is.

use std::ffi::OsString;

/// How a test's cluster differs from the default.
#[derive(Clone, Debug)]
pub struct Options {
    pub nodes: u64,
    pub shards: u32,
    /// The loops of each node, in order. Those that are not named have as many as `NOWSERVING_E2E_LOOPS` says, one without
    /// that: tests must not depend on how many cores the machine has.
    pub loops: &'static [u32],
    /// After how many entries a node makes a snapshot of a shard.
    pub snapshot_entries: u64,
    /// Past this size a log keeps nothing for nodes that are away.
    pub log_bytes_max: u64,
    /// Whether the nats-server maps plain subjects to shards.
    pub mapping: bool,
    /// What the nats-server takes in one message, if not its default of 1 MiB.
    pub max_payload: Option<usize>,
    /// The `authorization` block of the nats-server's configuration; `nodes` and `tests` must be among
    /// the users. Without it every connection has all rights.
    pub authorization: Option<String>,
    /// Whether each node reaches nats-server through two proxies: one for clients' requests, one for
    /// its peers.
    pub proxied: bool,
    /// Whether nodes take direct links of their peers, if `proxied` each through a proxy.
    pub direct_links: bool,
    /// Nodes and clients connect to all of these; [`Cluster::nats`] is the first.
    pub nats_servers: usize,
    /// The binary of another build, with which all nodes begin.
    pub other_build: Option<OsString>,
    /// The size of each node's own [`SmallDisk`]; none: they have folders on the machine's disk.
    pub disk_bytes: Option<u64>,
    /// The collector that nodes send spans to.
    pub otlp: Option<String>,
    /// Whether each node has a key file of its own: [`Cluster::key_file_of`].
    pub own_key_files: bool,
    /// How long a follower hears nothing before it stands for election, if not for the default time.
    pub election: Option<&'static str>,
    /// Whether all that clients and nodes say to each other is checked against docs/asyncapi.yaml, of one nats-server and
    /// nodes of this build. Not in release builds, which measure.
    pub reads_along: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 3,
            shards: 16,
            loops: &[],
            snapshot_entries: 20_000,
            log_bytes_max: 256 << 20,
            mapping: true,
            max_payload: None,
            authorization: None,
            proxied: false,
            direct_links: false,
            nats_servers: 1,
            other_build: None,
            disk_bytes: None,
            otlp: None,
            own_key_files: false,
            election: None,
            reads_along: cfg!(debug_assertions),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_read_along() {
        let why = "this crate has no debug assertions: see the profiles in Cargo.toml";
        assert!(Options::default().reads_along, "{why}");
    }
}
