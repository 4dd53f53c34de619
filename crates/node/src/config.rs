//! The configuration of a node: flags and a TOML file use the same names.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use nowserving_engine::LOOPS_MAX;
use nowserving_engine::LoopPlace;
use nowserving_log::LogOptions;
use nowserving_protocol::codec::MAX_PAYLOAD_MIN;
use nowserving_security::{Security, SecurityError};
use nowserving_shard::command;
use nowserving_shard::members::Members;
use serde::{Deserialize, Serialize};

/// Settings of one node. Every field can stand in the TOML file under its own name.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This node's number, 1 to 65,535, unique in the cluster.
    pub id: u64,
    /// The numbers of all nodes, this one among them; odd counts make sense, 1 to 7.
    pub nodes: Vec<u64>,
    /// The cluster's name, `[A-Za-z0-9_-]{1,64}`; frames of another cluster are refused.
    pub cluster: String,
    /// The number of shards (Raft groups), 1 to 256. Fixed at the cluster's birth.
    #[serde(default = "default_shards")]
    pub shards: u32,
    /// How many threads run the shards, each with its part of them, 1 to 8 and no more than shards. If absent: one on up
    /// to four cores, and half of the cores on more. May change at each start.
    #[serde(default)]
    pub loops: Option<u32>,
    /// The directory of log, snapshots and identity; made if missing.
    pub data_dir: PathBuf,
    /// The cluster's key file, readable by its owner alone.
    pub key_file: PathBuf,
    /// NATS server(s) for requests and events, comma-separated.
    pub nats: String,
    /// NATS server(s) for Raft between the nodes; by default the same as `nats`. The connection is
    /// always one of its own, so that neither kind of traffic can hold up the other.
    #[serde(default)]
    pub peer_nats: Option<String>,
    /// How frames reach peers.
    #[serde(default)]
    pub peer_link: PeerLink,
    /// Where this node takes direct links of its peers, for example `10.0.0.5:7422`; nowhere if absent: then its peers
    /// send it frames over NATS. Port 0: a free one.
    #[serde(default)]
    pub peer_listen: Option<SocketAddr>,
    /// Where its peers reach that address, as `HOST:PORT`, if not under it.
    #[serde(default)]
    pub peer_advertise: Option<String>,
    /// The address for Prometheus, for example `127.0.0.1:9464`; no endpoint if absent.
    #[serde(default)]
    pub metrics_addr: Option<SocketAddr>,
    /// The collector that spans of traced requests are sent to, by OTLP over gRPC, for example
    /// `http://127.0.0.1:4317`; none are recorded if absent.
    #[serde(default)]
    pub otlp: Option<String>,
    /// First token of every subject.
    #[serde(default = "default_prefix")]
    pub prefix: String,
    /// Time between Raft heartbeats in milliseconds, 10 to 10,000.
    #[serde(default = "default_heartbeat_ms")]
    pub heartbeat_ms: u64,
    /// A follower that has no leader for this long (or a little longer: the nodes wait for each other in turn)
    /// stands for election; milliseconds, at least 4 heartbeats, up to 60,000.
    #[serde(default = "default_election_ms")]
    pub election_ms: u64,
    /// A shard's state is written to disk, and its log cut, each time this many entries were
    /// applied; 100 to 10,000,000.
    #[serde(default = "default_snapshot_entries")]
    pub snapshot_entries: u64,
    /// Once the log takes more disk than this, entries in snapshots are dropped although a node that is away
    /// lacks them: that node gets the snapshot instead, and while it catches up, up to twice as much is kept.
    /// Bytes, 1 MiB to 1 TiB.
    #[serde(default = "default_log_bytes_max")]
    pub log_bytes_max: u64,
    /// For a start with which a node that joined, or has lost `peers.toml`, accepts peers that it has never seen, though
    /// no quorum has accepted them. An old copy of a disk, which it does not know to be one, can then vote.
    #[serde(default)]
    pub accept_unseen_peers: bool,
    /// Takes the user in the header `Nats-Request-Info` for who asks, in place of `by`. Only for a NATS server that writes
    /// that header itself: operators import the nodes' subjects as services with `share: true`.
    #[serde(default)]
    pub trust_request_info: bool,
    /// A NATS credentials file (`.creds`), for all connections; readable by its owner alone.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// A file with the seed of an nkey, instead of credentials; readable by its owner alone.
    #[serde(default)]
    pub nkey_file: Option<PathBuf>,
    /// The roots (PEM) for the certificates of NATS servers, instead of the system's.
    #[serde(default)]
    pub tls_ca_file: Option<PathBuf>,
    /// This node's certificate (PEM) for NATS servers that demand one, with `tls_key_file`.
    #[serde(default)]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of that certificate (PEM); readable by its owner alone.
    #[serde(default)]
    pub tls_key_file: Option<PathBuf>,
    /// Encrypts before the server's first word, for servers with `handshake_first`.
    #[serde(default)]
    pub tls_first: bool,
}

/// How a node's frames reach its peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerLink {
    /// By direct links to those that take them, over NATS to others and while a link is broken.
    #[default]
    Direct,
    /// Over NATS alone.
    Nats,
}

/// Without the URLs, which may have a password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("id", &self.id)
            .field("nodes", &self.nodes)
            .field("cluster", &self.cluster)
            .field("shards", &self.shards)
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}

fn default_shards() -> u32 {
    16
}
fn default_prefix() -> String {
    "nowserving".to_owned()
}
fn default_heartbeat_ms() -> u64 {
    100
}
// A leader that falls silent is replaced after this and a bit (one that dies, sooner). Half of it was tried and
// gave elections for nothing when two cores carried a whole cluster and its crowd.
fn default_election_ms() -> u64 {
    750
}
fn default_snapshot_entries() -> u64 {
    20_000
}

// Each start reads all of the log, while the lines of a node fit into some hundred MiB.
fn default_log_bytes_max() -> u64 {
    256 << 20
}

/// Why a configuration was refused: always names the field and its limit.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("configuration {path}: {source}")]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Not TOML, an unknown field, or a field of the wrong type.
    #[error("configuration {path}: {message}")]
    Malformed {
        path: PathBuf,
        /// Line, field and expectation.
        message: String,
    },
    /// A field out of its range.
    #[error("{field} {limit}")]
    OutOfRange {
        field: &'static str,
        /// The condition that the value breaks.
        limit: String,
    },
    /// The settings of the login and of TLS do not go together.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// A TOML error with its line and setting. Its own text shows the whole line, which may have a password.
fn without_values(error: &toml::de::Error, text: &str) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let Some(before) = before else {
        return error.message().to_owned();
    };
    let number = before.matches('\n').count();
    let line = text.split('\n').nth(number).unwrap_or_default();
    let setting = line.split_once('=').map(|(setting, _)| setting.trim());
    let is_name = |name: &&str| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    let setting = setting.filter(is_name).unwrap_or("no setting");
    format!("line {} ({setting}): {}", number + 1, error.message())
}

/// Where `/metrics` and the probes are served, of a configuration that is not complete yet.
pub(crate) fn metrics_addr_of(table: &toml::Table) -> Result<Option<SocketAddr>, ConfigError> {
    let text = table.get("metrics_addr").and_then(toml::Value::as_str);
    let addr = text.map(str::parse).transpose();
    addr.map_err(|_| ConfigError::OutOfRange {
        field: "metrics_addr",
        limit: "an address and a port, such as 127.0.0.1:9464".to_owned(),
    })
}

/// The settings of the login and of TLS in a table that has others, too.
pub fn security_of(table: &toml::Table) -> Result<Security, ConfigError> {
    let fields = table
        .iter()
        .filter(|(name, _)| nowserving_security::FIELDS.contains(&name.as_str()));
    let fields: toml::Table = fields.map(|(k, v)| (k.clone(), v.clone())).collect();
    let security: Security =
        fields
            .try_into()
            .map_err(|error: toml::de::Error| ConfigError::Malformed {
                path: "of the flags".into(),
                message: explained(&error.to_string().trim().replace('\n', " ")),
            })?;
    security.check()?;
    Ok(security)
}

/// Adds that a missing field can be given in the file or on the command line.
fn explained(message: &str) -> String {
    let field = message.split('`').nth(1);
    match field.filter(|_| message.starts_with("missing field")) {
        Some(field) => format!("{message} (or flag --{})", field.replace('_', "-")),
        None => message.to_owned(),
    }
}

impl Config {
    /// In how many loops the shards are.
    #[must_use]
    pub fn loops(&self) -> u32 {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let loops = self.loops.unwrap_or_else(|| loops_on(cores));
        loops.min(self.shards)
    }

    /// The part of it for the engine at this place. `seed`, `draw_secret`: random for each start; `members`: the newest
    /// known.
    #[must_use]
    pub fn engine(
        &self,
        place: LoopPlace,
        seed: u64,
        draw_secret: nowserving_line::Secret,
        members: Members,
    ) -> nowserving_engine::Config {
        nowserving_engine::Config {
            id: self.id,
            nodes: self.nodes.clone(),
            members,
            cluster: self.cluster.clone(),
            shards: self.shards,
            place,
            prefix: self.prefix.clone(),
            heartbeat_ms: self.heartbeat_ms,
            election_ms: self.election_ms,
            snapshot_entries: self.snapshot_entries,
            log_bytes_max: self.log().bytes_max,
            metrics_addr: self.metrics_addr.map(|addr| addr.to_string()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            entry_format: command::FORMAT,
            max_payload_min: MAX_PAYLOAD_MIN,
            seed,
            draw_secret,
        }
    }

    /// What each part of the log may take. Space is given back segment by segment, and a torn write can only be in the
    /// newest.
    #[must_use]
    pub fn log(&self) -> LogOptions {
        let bytes_max = self.log_bytes_max / u64::from(self.loops().max(1));
        LogOptions {
            segment_bytes: (bytes_max / 16).clamp(64 << 10, 16 << 20),
            bytes_max,
        }
    }

    /// Reads a TOML file as a table; the caller lays flags over it and calls [`Config::from_table`].
    ///
    /// # Errors
    /// The file cannot be read or is not TOML.
    pub fn read_table(path: &Path) -> Result<toml::Table, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        text.parse()
            .map_err(|error: toml::de::Error| ConfigError::Malformed {
                path: path.to_owned(),
                message: without_values(&error, &text),
            })
    }

    /// Makes a checked configuration of a node that joined its cluster: it is none of the first nodes.
    pub(crate) fn joined(table: toml::Table) -> Result<Self, ConfigError> {
        Config::read(table, Path::new("of the flags"))
    }

    /// Makes a checked configuration from a table; `origin` is named in errors.
    ///
    /// # Errors
    /// A field is missing, unknown, mistyped or out of range.
    pub fn from_table(table: toml::Table, origin: &Path) -> Result<Self, ConfigError> {
        let config = Config::read(table, origin)?;
        if !config.nodes.contains(&config.id) {
            return Err(ConfigError::OutOfRange {
                field: "nodes",
                limit: "must contain this node's own id".to_owned(),
            });
        }
        Ok(config)
    }

    fn read(table: toml::Table, origin: &Path) -> Result<Self, ConfigError> {
        let config: Config =
            table
                .try_into()
                .map_err(|error: toml::de::Error| ConfigError::Malformed {
                    path: origin.to_owned(),
                    message: explained(&error.to_string().trim().replace('\n', " ")),
                })?;
        config.check()?;
        Ok(config)
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let refuse = |field, limit: &str| {
            Err(ConfigError::OutOfRange {
                field,
                limit: limit.to_owned(),
            })
        };
        if !(1..=65_535).contains(&self.id) {
            return refuse("id", "must be 1 to 65535");
        }
        if self.nodes.is_empty() || self.nodes.len() > 7 {
            return refuse("nodes", "must list 1 to 7 node numbers");
        }
        if self.nodes.iter().any(|id| !(1..=65_535).contains(id)) {
            return refuse("nodes", "must be numbers from 1 to 65535");
        }
        let mut sorted = self.nodes.clone();
        sorted.sort_unstable();
        sorted.dedup();
        if sorted.len() != self.nodes.len() {
            return refuse("nodes", "must not name a node twice");
        }
        if !is_name(&self.cluster) {
            return refuse("cluster", "must match [A-Za-z0-9_-]{1,64}");
        }
        let is_http = |url: &String| url.strip_prefix("http://").is_some_and(|it| !it.is_empty());
        if !self.otlp.as_ref().is_none_or(is_http) {
            return refuse("otlp", "must be http://HOST:PORT");
        }
        if !self.prefix.split('.').all(is_name) {
            return refuse(
                "prefix",
                "must be tokens of [A-Za-z0-9_-]{1,64} joined by dots",
            );
        }
        if !(1..=256).contains(&self.shards) {
            return refuse("shards", "must be 1 to 256");
        }
        if let Some(loops) = self.loops
            && !(1..=LOOPS_MAX.min(self.shards)).contains(&loops)
        {
            return refuse("loops", "must be 1 to 8, and no more than shards");
        }
        if !(10..=10_000).contains(&self.heartbeat_ms) {
            return refuse("heartbeat_ms", "must be 10 to 10000");
        }
        if self.election_ms > 60_000 || self.election_ms < 4 * self.heartbeat_ms {
            return refuse(
                "election_ms",
                "must be at least 4 × heartbeat_ms and at most 60000",
            );
        }
        if !(100..=10_000_000).contains(&self.snapshot_entries) {
            return refuse("snapshot_entries", "must be 100 to 10000000");
        }
        if !(1 << 20..=1 << 40).contains(&self.log_bytes_max) {
            return refuse("log_bytes_max", "must be 1048576 to 1099511627776");
        }
        self.check_peer_listen()?;
        self.security().check()?;
        Ok(())
    }

    fn check_peer_listen(&self) -> Result<(), ConfigError> {
        let refuse = |field, limit: &str| {
            Err(ConfigError::OutOfRange {
                field,
                limit: limit.to_owned(),
            })
        };
        if self.peer_link == PeerLink::Nats {
            return Ok(());
        }
        match (self.peer_listen, &self.peer_advertise) {
            (None, Some(_)) => refuse("peer_advertise", "needs peer_listen"),
            (Some(addr), None) if addr.ip().is_unspecified() => refuse(
                "peer_listen",
                "is the address of every interface: peer_advertise must say under which one peers reach this node",
            ),
            (Some(_), Some(addr)) if !is_host_and_port(addr) => refuse(
                "peer_advertise",
                "must be HOST:PORT, such as node-1.example.com:7422",
            ),
            (Some(_), _) if self.encrypts() && !self.security().has_tls_for_links() => refuse(
                "peer_listen",
                "needs tls_ca_file and tls_cert_file, as the connections to NATS are encrypted (or peer_link nats)",
            ),
            _ => Ok(()),
        }
    }

    /// Whether this node sends by direct links: never in the clear what goes to NATS encrypted.
    #[must_use]
    pub fn opens_links(&self) -> bool {
        let in_clear = self.encrypts() && !self.security().has_tls_for_links();
        self.peer_link == PeerLink::Direct && !in_clear
    }

    /// Whether the connections to NATS are encrypted, as far as this node's settings say it.
    fn encrypts(&self) -> bool {
        let urls = [self.nats.as_str(), self.peer_nats()];
        let tls = |url: &str| url.split(',').any(|it| it.trim().starts_with("tls://"));
        self.security().wants_tls() || urls.into_iter().any(tls)
    }

    /// How all connections log in and encrypt.
    #[must_use]
    pub fn security(&self) -> Security {
        Security {
            credentials_file: self.credentials_file.clone(),
            nkey_file: self.nkey_file.clone(),
            tls_ca_file: self.tls_ca_file.clone(),
            tls_cert_file: self.tls_cert_file.clone(),
            tls_key_file: self.tls_key_file.clone(),
            tls_first: self.tls_first,
        }
    }

    /// The server for Raft frames.
    #[must_use]
    pub fn peer_nats(&self) -> &str {
        self.peer_nats.as_deref().unwrap_or(&self.nats)
    }
}

/// How many loops a node has on so many cores, unless it is told. NATS and the node's own threads need the other half.
fn loops_on(cores: usize) -> u32 {
    match cores {
        0..=4 => 1,
        _ => u32::try_from(cores / 2).map_or(LOOPS_MAX, |half| half.min(LOOPS_MAX)),
    }
}

/// Whether others can connect to this.
fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    !host.is_empty() && host.bytes().all(is_host) && port.parse::<u16>().is_ok_and(|it| it != 0)
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// Node 1 of these nodes, with one shard.
#[cfg(test)]
pub(crate) fn for_tests(nodes: &[u64], data_dir: PathBuf) -> Config {
    Config {
        id: 1,
        nodes: nodes.to_vec(),
        cluster: "test".into(),
        shards: 1,
        loops: None,
        key_file: data_dir.join("key"),
        data_dir,
        nats: String::new(),
        peer_nats: None,
        peer_link: PeerLink::Direct,
        peer_listen: None,
        peer_advertise: None,
        metrics_addr: None,
        otlp: None,
        prefix: default_prefix(),
        heartbeat_ms: default_heartbeat_ms(),
        election_ms: default_election_ms(),
        snapshot_entries: default_snapshot_entries(),
        log_bytes_max: default_log_bytes_max(),
        accept_unseen_peers: false,
        trust_request_info: false,
        credentials_file: None,
        nkey_file: None,
        tls_ca_file: None,
        tls_cert_file: None,
        tls_key_file: None,
        tls_first: false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn load(text: &str) -> Result<Config, ConfigError> {
        Config::from_table(text.parse().unwrap(), Path::new("test.toml"))
    }

    const GOOD: &str = r#"
        id = 1
        nodes = [1, 2, 3]
        cluster = "c"
        data_dir = "d"
        key_file = "k"
        nats = "nats://127.0.0.1:4222"
    "#;

    #[test]
    fn defaults_are_filled_in() {
        let config = load(GOOD).unwrap();
        assert_eq!(config.shards, 16);
        assert_eq!(config.peer_nats(), config.nats);
        assert!(!config.accept_unseen_peers && !config.trust_request_info);
    }

    #[test]
    fn a_node_has_as_many_loops_as_it_is_told_or_half_of_many_cores() {
        let loops = [1, 2, 4, 5, 8, 15, 16, 64].map(loops_on);
        assert_eq!(loops, [1, 1, 1, 2, 4, 7, 8, 8]);
        let config = load(&format!("{GOOD}\nloops = 3\nlog_bytes_max = 6291456")).unwrap();
        assert_eq!((config.loops(), config.log().bytes_max), (3, 2 << 20));
        let few = load(&format!("{GOOD}\nshards = 1")).unwrap();
        assert_eq!(few.loops(), 1);
    }

    #[test]
    fn bad_input_names_the_field() {
        for (line, named) in [
            ("shard = 3", "shard"),
            ("shards = 0", "shards"),
            ("shards = \"many\"", "shards"),
            ("loops = 0", "loops"),
            ("loops = 9", "loops"),
            ("shards = 2\nloops = 3", "loops"),
            ("heartbeat_ms = 0", "heartbeat_ms"),
            ("heartbeat_ms = 300", "election_ms"),
            ("election_ms = 18446744073709551615", "election_ms"),
            ("metrics_addr = \"nowhere\"", "metrics_addr"),
            ("peer_listen = \"0.0.0.0:7422\"", "peer_advertise"),
            ("peer_advertise = \"node-1:7422\"", "peer_listen"),
            ("peer_link = \"carrier pigeon\"", "peer_link"),
            ("otlp = \"collector:4317\"", "otlp"),
            ("prefix = \"a b\"", "prefix"),
        ] {
            let Err(error) = format!("{GOOD}\n{line}")
                .parse::<toml::Table>()
                .map_or_else(
                    |e| Err(e.to_string()),
                    |t| Config::from_table(t, Path::new("t")).map_err(|e| e.to_string()),
                )
            else {
                panic!("{line} was taken");
            };
            assert!(error.contains(named), "{line}: {error}");
        }
    }

    #[test]
    fn links_are_encrypted_where_nats_is_or_refused() {
        let listens = format!("{GOOD}\npeer_listen = '10.0.0.1:7422'");
        assert!(load(&listens).unwrap().peer_listen.is_some());
        let encrypted = format!("{listens}\ntls_ca_file = 'ca'");
        let error = load(&encrypted).unwrap_err().to_string();
        assert!(error.contains("tls_cert_file"), "{error}");
        let by_url = listens.replace("nats://", "tls://");
        assert!(load(&by_url).is_err());
        load(&format!(
            "{encrypted}\ntls_cert_file = 'c'\ntls_key_file = 'k'"
        ))
        .unwrap();
        load(&format!("{encrypted}\npeer_link = 'nats'")).unwrap();
    }

    #[test]
    fn passwords_are_in_no_text() {
        let secret = GOOD.replace("//127", "//nodes:between-us@127");
        let config = load(&secret).unwrap();
        assert!(!format!("{config:?}").contains("between-us"));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.toml");
        std::fs::write(&file, secret.replace("4222\"", "4222")).unwrap();
        let error = Config::read_table(&file).unwrap_err().to_string();
        assert!(error.contains("line "), "{error}");
        assert!(!error.contains("between-us"), "{error}");
    }

    #[test]
    fn the_login_and_tls_have_settings() {
        let config = load(&format!("{GOOD}\ntls_ca_file = 'ca'\nnkey_file = 'n'")).unwrap();
        let security = config.security();
        assert_eq!(security.tls_ca_file.as_deref(), Some(Path::new("ca")));
        assert_eq!(security.nkey_file.as_deref(), Some(Path::new("n")));
        let table = format!("{GOOD}\ntls_ca_file = 'ca'\nnkey_file = 'n'");
        assert_eq!(security_of(&table.parse().unwrap()).unwrap(), security);
        let error = load(&format!("{GOOD}\ntls_cert_file = 'c'")).unwrap_err();
        assert_eq!(error.to_string(), "tls_cert_file needs tls_key_file");
    }

    #[test]
    fn two_nodes_with_one_id_are_refused() {
        let text = GOOD.replace("[1, 2, 3]", "[1, 2, 2]");
        assert!(load(&text).unwrap_err().to_string().contains("twice"));
        let text = GOOD.replace("[1, 2, 3]", "[2, 3]");
        assert!(load(&text).unwrap_err().to_string().contains("own id"));
    }

    #[test]
    fn fuzz_a_file() {
        let seeds = vec![GOOD.as_bytes().to_vec()];
        nowserving_testkit::target!(seeds, |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(table) = text.parse() {
                drop(Config::from_table(table, Path::new("test.toml")));
            }
        });
    }
}
