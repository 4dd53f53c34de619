//! NATS subjects of the contract.

use nowserving_line::LineName;

use crate::error::ApiError;
use crate::kv::key_hash;
use crate::operation::{On, Operation};

/// The prefix of all subjects unless configured otherwise.
pub const DEFAULT_PREFIX: &str = "nowserving";

/// Longest prefix, and longest cluster name, in bytes: so that no subject is too long for a server.
const PREFIX_MAX_BYTES: usize = 128;
/// A request's subject has fewer words behind the prefix.
const WORDS_MAX: usize = 7;

/// NATS's own `partition()` hash.
pub fn fnv1a32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// The shard that holds a line, as NATS's `partition(shards, 1)` mapping computes
/// it. `shards` counts from 1; with 0 every line is in shard 0.
pub fn shard_of(line: &str, shards: u32) -> u32 {
    shard_of_bytes(line.as_bytes(), shards)
}

/// The shard of anything else than lines that is spread over the shards by its bytes.
pub fn shard_of_bytes(bytes: &[u8], shards: u32) -> u32 {
    fnv1a32(bytes).checked_rem(shards).unwrap_or(0)
}

/// Builds and reads the subjects under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subjects {
    prefix: String,
}

impl Default for Subjects {
    fn default() -> Subjects {
        Subjects {
            prefix: DEFAULT_PREFIX.to_owned(),
        }
    }
}

/// The parts of a request's subject. Names are checked; the caller checks whether the shard exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The operation.
    pub op: Operation,
    /// The shard, if the request is to its leader and not to any node.
    pub shard: Option<u32>,
    /// The line, bucket or domain, if it is about one.
    pub name: Option<LineName>,
}

impl Subjects {
    /// Subjects under `prefix`: one or more words of `[A-Za-z0-9_-]` joined by
    /// dots, at most 128 bytes. Anything else is a `bad_request`.
    pub fn new(prefix: impl Into<String>) -> Result<Subjects, ApiError> {
        let prefix = prefix.into();
        if prefix.len() > PREFIX_MAX_BYTES || !prefix.split('.').all(is_word) {
            return Err(ApiError::bad_request(format!(
                "prefix: words of [A-Za-z0-9_-] joined by dots, at most {PREFIX_MAX_BYTES} bytes, not {prefix:?}"
            )));
        }
        Ok(Subjects { prefix })
    }

    /// The first tokens of all subjects.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A message that is mapped as a user's request.
    pub fn line(&self, line: &LineName, word: &str) -> String {
        format!("{}.line.{}.{word}", self.prefix, line.as_str())
    }

    /// Where the NATS server maps it: a user's request to the leader of the shard.
    pub fn shard(&self, shard: u32, line: &LineName, word: &str) -> String {
        format!("{}.shard.{shard}.{}.{word}", self.prefix, line.as_str())
    }

    /// A request to any node. `name`: of the line, bucket or domain, if the operation is about one.
    pub fn plain(&self, op: Operation, name: &LineName) -> String {
        let (prefix, name, word) = (&self.prefix, name.as_str(), op.word());
        match op.on() {
            On::AdminLine => format!("{prefix}.admin.line.{name}.{word}"),
            On::Cluster | On::Members => format!("{prefix}.admin.cluster.{word}"),
            On::Kv => format!("{prefix}.kv.{name}.{word}"),
            On::AdminKv => format!("{prefix}.admin.kv.{name}.{word}"),
            On::Limit => format!("{prefix}.limit.{name}.{word}"),
            On::AdminLimit => format!("{prefix}.admin.limit.{word}"),
            On::Line | On::LimitShard | On::LimitLeader | On::Nothing => {
                format!("{prefix}.line.{name}.{word}")
            }
        }
    }

    /// A request of an operator that is about no line.
    pub fn of_cluster(&self, op: Operation) -> String {
        let admin = if op.on() == On::AdminLimit {
            "limit"
        } else {
            "cluster"
        };
        format!("{}.admin.{admin}.{}", self.prefix, op.word())
    }

    /// A request to the leader of a shard.
    pub fn leader(&self, op: Operation, shard: u32, name: &LineName) -> String {
        let (prefix, name) = (&self.prefix, name.as_str());
        match op.on() {
            On::Kv => format!("{prefix}.shard.{shard}.kv.{name}.{}", op.word()),
            On::AdminKv => format!("{prefix}.admin.shard.{shard}.kv.{name}.{}", op.word()),
            On::Limit => format!("{prefix}.leader.{shard}.limit.{name}.{}", op.word()),
            on if on.is_admin() => format!("{prefix}.admin.shard.{shard}.{name}.{}", op.name()),
            _ => format!("{prefix}.shard.{shard}.{name}.{}", op.name()),
        }
    }

    /// All users' requests to any node, also malformed ones, so that these are answered.
    pub fn line_all(&self) -> String {
        format!("{}.line.>", self.prefix)
    }

    /// All users' requests to the leader of one shard.
    pub fn shard_all(&self, shard: u32) -> String {
        format!("{}.shard.{shard}.>", self.prefix)
    }

    /// All operators' requests about lines.
    pub fn admin_line_all(&self) -> String {
        format!("{}.admin.line.>", self.prefix)
    }

    /// All operators' requests to the leader of one shard.
    pub fn admin_shard_all(&self, shard: u32) -> String {
        format!("{}.admin.shard.{shard}.>", self.prefix)
    }

    /// All of them to the leader of one shard.
    pub fn limit_leader_all(&self, shard: u32) -> String {
        format!("{}.leader.{shard}.limit.>", self.prefix)
    }

    /// All requests about rate limits to any node.
    pub fn limit_all(&self) -> String {
        format!("{}.limit.>", self.prefix)
    }

    /// All operators' requests about rate limits.
    pub fn admin_limit_all(&self) -> String {
        format!("{}.admin.limit.>", self.prefix)
    }

    /// What a node has counted of the rules of rate limits, asked by another node. Below the subjects of forwards, which belong to
    /// nodes alone.
    pub fn limit_hits(&self, node: u64) -> String {
        format!("{}.node.{node}.limit_hits", self.prefix)
    }

    /// All operators' requests about the cluster.
    pub fn admin_cluster_all(&self) -> String {
        format!("{}.admin.cluster.>", self.prefix)
    }

    /// All requests about key-values to any node.
    pub fn kv_all(&self) -> String {
        format!("{}.kv.>", self.prefix)
    }

    /// All operators' requests about key-values to any node.
    pub fn admin_kv_all(&self) -> String {
        format!("{}.admin.kv.>", self.prefix)
    }

    /// Where the events of a key are published.
    pub fn kv_event(&self, bucket: &str, key: &str) -> String {
        format!("{}.event.kv.{bucket}.{}", self.prefix, key_hash(key))
    }

    /// The events of all keys of a bucket.
    pub fn kv_events(&self, bucket: &LineName) -> String {
        format!("{}.event.kv.{}.*", self.prefix, bucket.as_str())
    }

    /// The line of a NATS server's configuration that maps plain requests to their shards.
    pub fn mapping_line(&self, shards: u32) -> String {
        let prefix = &self.prefix;
        format!(
            "mappings = {{ \"{prefix}.line.*.*\": \"{prefix}.shard.\
             {{{{partition({shards},1)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}\" }}"
        )
    }

    /// Where a line's boards are published.
    pub fn board(&self, line: &LineName) -> String {
        format!("{}.event.{}.board", self.prefix, line.as_str())
    }

    /// Where the events of one token are published. `lane` is the lane's name.
    pub fn token_event(&self, line: &LineName, lane: &str, token: u64) -> String {
        format!(
            "{}.event.{}.token.{lane}.{token}",
            self.prefix,
            line.as_str()
        )
    }

    /// The events of all tokens of a line.
    pub fn token_events(&self, line: &LineName) -> String {
        format!("{}.event.{}.token.*.*", self.prefix, line.as_str())
    }

    /// Where events of the line itself are published: created, configured, deleted.
    pub fn line_event(&self, line: &LineName) -> String {
        format!("{}.event.{}.line", self.prefix, line.as_str())
    }

    /// Frames from node `from` to node `to`. `cluster` is one word.
    pub fn raft(&self, cluster: &str, to: u64, from: u64) -> String {
        format!("{}.raft.{cluster}.{to}.{from}", self.prefix)
    }

    /// The frames of all nodes to node `to`.
    pub fn raft_to(&self, cluster: &str, to: u64) -> String {
        format!("{}.raft.{cluster}.{to}.*", self.prefix)
    }

    /// Where a node without a number asks the cluster for one.
    pub fn join(&self) -> String {
        format!("{}.raft.join", self.prefix)
    }

    /// Where the cluster answers the node with this disk.
    pub fn welcome(&self, disk_id: u64) -> String {
        format!("{}.raft.welcome.{disk_id:016x}", self.prefix)
    }

    /// Where a node with an empty disk asks whether its cluster exists.
    pub fn found(&self) -> String {
        format!("{}.raft.found", self.prefix)
    }

    /// Where the cluster answers the node with this disk.
    pub fn found_answer(&self, disk_id: u64) -> String {
        format!("{}.raft.found.{disk_id:016x}", self.prefix)
    }

    /// Where node `node` listens by one of its service connections: the `number`-th of its start `start`.
    pub fn connection(&self, cluster: &str, node: u64, start: u64, number: u64) -> String {
        let prefix = &self.prefix;
        format!("{prefix}.raft.{cluster}.{node}.connection.{start:016x}.{number}")
    }

    /// Whether answers may be sent to `reply`: not to subjects under the prefix, where an
    /// answer would be a request, a frame or a forged event in the node's name, and not to the
    /// server's own (`$SYS`, `$JS` …).
    pub fn may_reply_to(&self, reply: &str) -> bool {
        let ours = reply
            .strip_prefix(self.prefix.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let sendable = reply
            .split('.')
            .all(|word| !word.is_empty() && word != "*" && word != ">");
        sendable && !ours && !reply.starts_with('$') && !reply.contains(char::is_whitespace)
    }

    /// Reads a request's subject. A malformed one is a `bad_request` that names the wrong part.
    pub fn parse(&self, subject: &str) -> Result<Target, ApiError> {
        use Operation as Op;
        let rest = subject
            .strip_prefix(self.prefix.as_str())
            .and_then(|rest| rest.strip_prefix('.'));
        let mut all = [""; WORDS_MAX];
        let mut count = 0;
        let words = rest.unwrap_or_default().splitn(WORDS_MAX, '.');
        for (place, word) in all.iter_mut().zip(words) {
            *place = word;
            count += 1;
        }
        let (admin, words) = match &all[..count] {
            [first, rest @ ..] if *first == "admin" => (true, rest),
            words => (false, words),
        };
        let of_line = if admin { On::AdminLine } else { On::Line };
        let of_kv = if admin { On::AdminKv } else { On::Kv };
        let of_shard: &[On] = match admin {
            true => &[On::AdminLine, On::Members, On::AdminLimit],
            false => &[On::Line, On::LimitShard, On::LimitLeader],
        };
        let (shard, name, op) = match *words {
            ["line", line, op] => (
                None,
                Some(name_of("line", line)?),
                Op::with_word(&[of_line], op)?,
            ),
            ["shard", shard, "kv", bucket, op] => (
                Some(shard_number(shard)?),
                Some(name_of("bucket", bucket)?),
                Op::with_word(&[of_kv], op)?,
            ),
            ["shard", shard, line, op] => (
                Some(shard_number(shard)?),
                Some(name_of("line", line)?),
                Op::with_name(of_shard, op)?,
            ),
            ["kv", bucket, op] => (
                None,
                Some(name_of("bucket", bucket)?),
                Op::with_word(&[of_kv], op)?,
            ),
            ["cluster", op] if admin => {
                (None, None, Op::with_word(&[On::Cluster, On::Members], op)?)
            }
            ["limit", op] if admin => (None, None, Op::with_word(&[On::AdminLimit], op)?),
            ["leader", shard, "limit", domain, op] if !admin => (
                Some(shard_number(shard)?),
                Some(name_of("domain", domain)?),
                Op::with_word(&[On::Limit], op)?,
            ),
            // A domain with dots is refused as such.
            ["limit", ref domain @ .., op] if !admin && !domain.is_empty() => (
                None,
                Some(name_of("domain", &domain.join("."))?),
                Op::with_word(&[On::Limit], op)?,
            ),
            _ => {
                return Err(ApiError::bad_request(format!(
                    "subject: not one of {0}.line.<line>.<op>, {0}.shard.<n>.<line>.<op>, \
                     {0}.admin.line.<line>.<op>, {0}.admin.shard.<n>.<line>.<op>, {0}.admin.cluster.<op>, \
                     {0}.kv.<bucket>.<op>, {0}.shard.<n>.kv.<bucket>.<op>, \
                     {0}.admin.kv.<bucket>.<op>, {0}.admin.shard.<n>.kv.<bucket>.<op>, \
                     {0}.limit.<domain>.<op>, {0}.leader.<n>.limit.<domain>.<op>, {0}.admin.limit.<op>",
                    self.prefix
                )));
            }
        };
        Ok(Target { op, shard, name })
    }
}

/// Whether `text` is a name, `[A-Za-z0-9_-]{1,64}`: of a line, a lane, a cluster.
pub fn is_name(text: &str) -> bool {
    text.len() <= 64 && is_word(text)
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn name_of(what: &str, text: &str) -> Result<LineName, ApiError> {
    LineName::try_from(text).map_err(|_| {
        ApiError::bad_request(format!(
            "{what}: 1 to 64 of [A-Za-z0-9_-] are needed in the subject, not {:?}",
            start_of(text)
        ))
    })
}

/// The `bad_request` for an operation that does not exist.
pub fn unknown_op(op: &str) -> ApiError {
    ApiError::bad_request(format!("op: there is no operation {:?}", start_of(op)))
}

/// One spelling only: no sign, no leading zeros.
fn shard_number(text: &str) -> Result<u32, ApiError> {
    let is_plain = text == "0" || !text.starts_with(['0', '+']);
    text.parse::<u32>()
        .ok()
        .filter(|_| is_plain)
        .ok_or_else(|| {
            ApiError::bad_request(format!(
                "shard: a number is needed in the subject, not {:?}",
                start_of(text)
            ))
        })
}

/// The part of a request's text that an error message quotes.
fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

#[cfg(test)]
mod tests;
