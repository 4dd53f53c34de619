//! NATS subjects and headers of the contract.

use nowserving_line::LineName;

use crate::error::ApiError;

/// Until when a request wants its answer: milliseconds from its arrival.
pub const TIMEOUT_HEADER: &str = "Nowserving-Timeout-Ms";
/// The deadline of a request without [`TIMEOUT_HEADER`], in milliseconds.
pub const TIMEOUT_DEFAULT_MS: u64 = 2_000;
/// On an error reply: what went wrong, for NATS's own tools.
pub const ERROR_HEADER: &str = "Nats-Service-Error";
/// On an error reply: [`crate::error::Code::http`].
pub const ERROR_CODE_HEADER: &str = "Nats-Service-Error-Code";
/// The prefix of all subjects unless configured otherwise.
pub const DEFAULT_PREFIX: &str = "nowserving";

/// Longest prefix, and longest cluster name, in bytes: so that no subject gets too long for a server.
const PREFIX_MAX_BYTES: usize = 128;

/// NATS's own `partition()` hash.
pub fn fnv1a32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// The shard that holds a line, as NATS's `partition(shards, 1)` mapping computes
/// it. `shards` counts from 1; with 0 every line is in shard 0.
pub fn shard_of(line: &str, shards: u32) -> u32 {
    fnv1a32(line.as_bytes()).checked_rem(shards).unwrap_or(0)
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

/// What a request's subject asks for. Names are checked; whether `op` exists and
/// `shard` is one of ours is for the reader to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// `line.<line>.<op>`: a user's request, to any node.
    Line {
        /// The line.
        line: LineName,
        /// The operation.
        op: &'a str,
    },
    /// `shard.<n>.<line>.<op>`: a user's request, to the leader of the shard.
    Shard {
        /// The shard.
        shard: u32,
        /// The line.
        line: LineName,
        /// The operation.
        op: &'a str,
    },
    /// `admin.line.<line>.<op>`: an operator's request, to any node.
    AdminLine {
        /// The line.
        line: LineName,
        /// The operation.
        op: &'a str,
    },
    /// `admin.shard.<n>.<line>.<op>`: an operator's request, to the leader of the shard.
    AdminShard {
        /// The shard.
        shard: u32,
        /// The line.
        line: LineName,
        /// The operation.
        op: &'a str,
    },
    /// `admin.cluster.<op>`: an operator's request about the cluster.
    AdminCluster {
        /// The operation.
        op: &'a str,
    },
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

    /// The prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A user's request, to any node.
    pub fn line(&self, line: &LineName, op: &str) -> String {
        format!("{}.line.{}.{op}", self.prefix, line.as_str())
    }

    /// Every user's request to any node, malformed ones too, so that they get an answer.
    pub fn line_all(&self) -> String {
        format!("{}.line.>", self.prefix)
    }

    /// A user's request, to the leader of the shard.
    pub fn shard(&self, shard: u32, line: &LineName, op: &str) -> String {
        format!("{}.shard.{shard}.{}.{op}", self.prefix, line.as_str())
    }

    /// Every user's request to the leader of one shard.
    pub fn shard_all(&self, shard: u32) -> String {
        format!("{}.shard.{shard}.>", self.prefix)
    }

    /// An operator's request about a line, to any node.
    pub fn admin_line(&self, line: &LineName, op: &str) -> String {
        format!("{}.admin.line.{}.{op}", self.prefix, line.as_str())
    }

    /// Every operator's request about lines.
    pub fn admin_line_all(&self) -> String {
        format!("{}.admin.line.>", self.prefix)
    }

    /// An operator's request about a line, to the leader of the shard.
    pub fn admin_shard(&self, shard: u32, line: &LineName, op: &str) -> String {
        format!("{}.admin.shard.{shard}.{}.{op}", self.prefix, line.as_str())
    }

    /// Every operator's request to the leader of one shard.
    pub fn admin_shard_all(&self, shard: u32) -> String {
        format!("{}.admin.shard.{shard}.>", self.prefix)
    }

    /// An operator's request about the cluster.
    pub fn admin_cluster(&self, op: &str) -> String {
        format!("{}.admin.cluster.{op}", self.prefix)
    }

    /// Every operator's request about the cluster.
    pub fn admin_cluster_all(&self) -> String {
        format!("{}.admin.cluster.>", self.prefix)
    }

    /// Where a line's boards are published.
    pub fn board(&self, line: &LineName) -> String {
        format!("{}.event.{}.board", self.prefix, line.as_str())
    }

    /// Where the boards of all lines are published.
    pub fn board_all(&self) -> String {
        format!("{}.event.*.board", self.prefix)
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
    pub fn token_event_all(&self, line: &LineName) -> String {
        format!("{}.event.{}.token.>", self.prefix, line.as_str())
    }

    /// Where events of the line itself are published: created, configured, deleted.
    pub fn line_event(&self, line: &LineName) -> String {
        format!("{}.event.{}.line", self.prefix, line.as_str())
    }

    /// The line events of all lines.
    pub fn line_event_all(&self) -> String {
        format!("{}.event.*.line", self.prefix)
    }

    /// Every event of one line.
    pub fn event_all(&self, line: &LineName) -> String {
        format!("{}.event.{}.>", self.prefix, line.as_str())
    }

    /// Frames from node `from` to node `to`. `cluster` is one word.
    pub fn raft(&self, cluster: &str, to: u64, from: u64) -> String {
        format!("{}.raft.{cluster}.{to}.{from}", self.prefix)
    }

    /// The frames of all nodes to node `to`.
    pub fn raft_to(&self, cluster: &str, to: u64) -> String {
        format!("{}.raft.{cluster}.{to}.*", self.prefix)
    }

    /// Whether answers may be sent to `reply`. Not into our own subjects, where an
    /// answer would be a request, a frame or a forged event in the node's name; and
    /// not to the server's own (`$SYS`, `$JS` …).
    pub fn may_reply_to(&self, reply: &str) -> bool {
        let ours = reply
            .strip_prefix(self.prefix.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let sendable = reply
            .split('.')
            .all(|word| !word.is_empty() && word != "*" && word != ">");
        sendable && !ours && !reply.starts_with('$') && !reply.contains(char::is_whitespace)
    }

    /// What a request's subject asks for; a malformed one is a `bad_request` that
    /// says which part is wrong.
    pub fn parse<'a>(&self, subject: &'a str) -> Result<Target<'a>, ApiError> {
        let rest = subject
            .strip_prefix(self.prefix.as_str())
            .and_then(|rest| rest.strip_prefix('.'));
        let words: Vec<&str> = rest.unwrap_or_default().splitn(7, '.').collect();
        match words[..] {
            ["line", line, op] => Ok(Target::Line {
                line: line_name(line)?,
                op: op_name(op)?,
            }),
            ["shard", shard, line, op] => Ok(Target::Shard {
                shard: shard_number(shard)?,
                line: line_name(line)?,
                op: op_name(op)?,
            }),
            ["admin", "line", line, op] => Ok(Target::AdminLine {
                line: line_name(line)?,
                op: op_name(op)?,
            }),
            ["admin", "shard", shard, line, op] => Ok(Target::AdminShard {
                shard: shard_number(shard)?,
                line: line_name(line)?,
                op: op_name(op)?,
            }),
            ["admin", "cluster", op] => Ok(Target::AdminCluster { op: op_name(op)? }),
            _ => Err(ApiError::bad_request(format!(
                "subject: not one of {0}.line.<line>.<op>, {0}.shard.<n>.<line>.<op>, \
                 {0}.admin.line.<line>.<op>, {0}.admin.cluster.<op>",
                self.prefix
            ))),
        }
    }
}

/// Whether `text` is a name of the alphabet that all names have, `[A-Za-z0-9_-]{1,64}`:
/// also what a cluster may be called.
pub fn is_name(text: &str) -> bool {
    text.len() <= 64 && is_word(text)
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

fn line_name(text: &str) -> Result<LineName, ApiError> {
    LineName::try_from(text).map_err(|_| {
        ApiError::bad_request(format!(
            "line: 1 to 64 of [A-Za-z0-9_-] are needed in the subject, not {:?}",
            start_of(text)
        ))
    })
}

fn op_name(text: &str) -> Result<&str, ApiError> {
    if is_name(text)
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    {
        return Ok(text);
    }
    Err(unknown_op(text))
}

/// The `bad_request` for an operation that does not exist.
pub fn unknown_op(op: &str) -> ApiError {
    ApiError::bad_request(format!("op: there is no operation {:?}", start_of(op)))
}

/// One spelling only: no sign, no leading zeros.
fn shard_number(text: &str) -> Result<u32, ApiError> {
    text.parse::<u32>()
        .ok()
        .filter(|shard| shard.to_string() == text)
        .ok_or_else(|| {
            ApiError::bad_request(format!(
                "shard: a number is needed in the subject, not {:?}",
                start_of(text)
            ))
        })
}

/// As much of a stranger's word as an error message should repeat.
fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(80)]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::error::Code;

    fn line(name: &str) -> LineName {
        LineName::try_from(name).unwrap()
    }

    #[test]
    fn the_hash_is_fnv1a32() {
        // The vectors of the hash's authors.
        for (text, hash) in [
            ("", 0x811c_9dc5),
            ("a", 0xe40c_292c),
            ("foobar", 0xbf9c_f968),
        ] {
            assert_eq!(fnv1a32(text.as_bytes()), hash);
        }
        assert_eq!(shard_of("foobar", 16), 0xbf9c_f968 % 16);
        assert_eq!(shard_of("foobar", 1), 0);
        assert_eq!(shard_of("foobar", 0), 0);
    }

    #[test]
    fn what_is_built_is_read_back() {
        for prefix in ["nowserving", "a.b-c"] {
            let subjects = Subjects::new(prefix).unwrap();
            let shop = line("shop-1");
            let cases = [
                (
                    subjects.line(&shop, "enter"),
                    Target::Line {
                        line: shop.clone(),
                        op: "enter",
                    },
                ),
                (
                    subjects.shard(15, &shop, "status"),
                    Target::Shard {
                        shard: 15,
                        line: shop.clone(),
                        op: "status",
                    },
                ),
                (
                    subjects.admin_line(&shop, "show"),
                    Target::AdminLine {
                        line: shop.clone(),
                        op: "show",
                    },
                ),
                (
                    subjects.admin_shard(0, &shop, "create"),
                    Target::AdminShard {
                        shard: 0,
                        line: shop.clone(),
                        op: "create",
                    },
                ),
                (
                    subjects.admin_cluster("list_lines"),
                    Target::AdminCluster { op: "list_lines" },
                ),
            ];
            for (subject, target) in cases {
                assert_eq!(subjects.parse(&subject), Ok(target), "{subject}");
                assert!(!subjects.may_reply_to(&subject), "{subject}");
            }
        }
    }

    #[test]
    fn the_contract_s_words() {
        let subjects = Subjects::default();
        let shop = line("shop-1");
        assert_eq!(subjects.board(&shop), "nowserving.event.shop-1.board");
        assert_eq!(
            subjects.token_event(&shop, "normal", 18),
            "nowserving.event.shop-1.token.normal.18"
        );
        assert_eq!(subjects.line_event(&shop), "nowserving.event.shop-1.line");
        assert_eq!(subjects.raft("prod", 2, 1), "nowserving.raft.prod.2.1");
        assert_eq!(subjects.raft_to("prod", 2), "nowserving.raft.prod.2.*");
        assert_eq!(subjects.shard_all(3), "nowserving.shard.3.>");
    }

    #[test]
    fn malformed_subjects_say_what_is_wrong() {
        let long = "x".repeat(65);
        let cases = [
            ("nowserving.line.*.enter", "line:"),
            ("nowserving.line.>.enter", "line:"),
            ("nowserving.line..enter", "line:"),
            ("nowserving.line.票.enter", "line:"),
            ("nowserving.line.a b.enter", "line:"),
            ("nowserving.line.shop.", "op:"),
            ("nowserving.line.shop.*", "op:"),
            ("nowserving.line.shop.Enter", "op:"),
            ("nowserving.line.shop", "subject:"),
            ("nowserving.line.shop.enter.now", "subject:"),
            ("nowserving.shard.x.shop.enter", "shard:"),
            ("nowserving.shard.-1.shop.enter", "shard:"),
            ("nowserving.shard.+1.shop.enter", "shard:"),
            ("nowserving.shard.01.shop.enter", "shard:"),
            ("nowserving.shard.4294967296.shop.enter", "shard:"),
            ("nowserving.admin.cluster", "subject:"),
            ("nowserving.raft.prod.1.2", "subject:"),
            ("nowserving.event.shop.board", "subject:"),
            ("nowservingline.shop.enter", "subject:"),
            ("other.line.shop.enter", "subject:"),
            ("nowserving", "subject:"),
            ("", "subject:"),
        ];
        let over_long = format!("nowserving.line.{long}.enter");
        for (subject, field) in cases.into_iter().chain([(over_long.as_str(), "line:")]) {
            let error = Subjects::default().parse(subject).unwrap_err();
            assert_eq!(error.code, Code::BadRequest);
            assert!(
                error.message.starts_with(field),
                "{subject}: {}",
                error.message
            );
        }
    }

    #[test]
    fn bad_prefixes_are_refused() {
        for prefix in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "a.*",
            "a.>",
            "a b",
            "票",
            &"a".repeat(129),
        ] {
            assert!(Subjects::new(prefix).is_err(), "{prefix:?}");
        }
    }

    #[test]
    fn replies_go_to_inboxes_only() {
        let subjects = Subjects::default();
        for good in ["_INBOX.abc.1", "my.own.inbox", "nowservingx.inbox"] {
            assert!(subjects.may_reply_to(good), "{good}");
        }
        for bad in [
            "",
            "nowserving",
            "nowserving.raft.prod.1.2",
            "nowserving.admin.line.shop.delete",
            "nowserving.event.shop.board",
            "nowserving.line.shop.enter",
            "$SYS.REQ.SERVER.PING",
            "$JS.API.STREAM.DELETE.x",
            "a..b",
            "a.*",
            ">",
            "a b",
        ] {
            assert!(!subjects.may_reply_to(bad), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_subject_is_answered(subject in "(nowserving)?[.a-z*>0-9 票]{0,60}") {
            let _ = Subjects::default().parse(&subject);
            let _ = Subjects::default().may_reply_to(&subject);
        }
    }
}
