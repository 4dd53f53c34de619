//! Direct links: connections between two nodes that carry frames beside NATS.
//!
//! A node opens a link to each peer that takes them, and sends frames by it; what the peer sends comes by a link that the
//! peer has opened. A link begins with a handshake ([`hello`]): the acceptor sends a random number, the opener proves with
//! the cluster's key that it is a peer and knows that number, and the acceptor proves the same. Then each frame follows
//! with its length before it ([`framing`]), sealed as over NATS. In the other direction the acceptor says how many bytes
//! it has taken ([`progress`]): without such word for a while the opener takes the link for broken.
//!
//! Whether a frame goes by a link or over NATS makes no difference to what it means. Their numbers grow over both, so a
//! frame that is overtaken by a later one on the other way is refused as late, and Raft repeats its messages.

pub mod framing;
pub mod hello;
pub mod progress;

use nowserving_engine::envelope::{FrameError, FrameKeys};

/// The keys of a link's handshake.
#[derive(Debug)]
pub struct LinkKeys {
    pub hellos: FrameKeys,
    pub answers: FrameKeys,
}

/// Why a link ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    #[error("it does not begin as a nowserving node's direct link does")]
    Greeting,
    #[error("a direct link of version {0}, and this build speaks {version}", version = hello::VERSION)]
    Version(u8),
    #[error(
        "the handshake fails authentication: the key files differ, or the address is not the node's"
    )]
    Seal,
    #[error("in the handshake: {0}")]
    Frame(FrameError),
    /// Authentic, and not meant so.
    #[error("the handshake {0}")]
    NotMeant(String),
    #[error("{0} bytes are announced, and at most {1} are taken")]
    TooLong(usize, usize),
    #[error("the peer has taken nothing for {0} ms")]
    Silent(u64),
    #[error("the peer claims to have taken more than was sent")]
    TakenMore,
}

impl From<FrameError> for LinkError {
    fn from(error: FrameError) -> LinkError {
        match error {
            FrameError::Seal => LinkError::Seal,
            other => LinkError::Frame(other),
        }
    }
}
