//! A node's part in its cluster: to which cluster its disk belongs, which disks of its peers it knows, what their frames
//! say, founding, joining.
//!
//! Each machine takes what has come with the time, and pushes what is to be done ([`Out`]). Files are bytes: the caller
//! reads and writes them.

pub mod checked_file;
pub mod founding;
#[cfg(test)]
mod fuzz_tests;
pub mod identity;
pub mod joining;
pub mod known_peers;
pub mod link;
pub mod members_file;
pub mod neighbours;
pub mod peers;
pub mod witness;

use bytes::Bytes;
use nowserving_engine::Input;
use nowserving_replica::Connection;

/// What a machine asks of its caller, to be done in this order.
#[derive(Debug)]
pub enum Out {
    /// Replace a file, durably. If that fails, the rest of what the machine has asked for with it is not done, and the
    /// machine is told.
    Write(File, Vec<u8>),
    /// From now on take messages on this subject.
    Subscribe(String),
    /// Publish a message. It may be lost: a machine that needs an answer asks again.
    Publish { subject: String, payload: Bytes },
    /// Ask a peer by its service connection, with an inbox that ends with the number.
    AskForConnection {
        peer: u64,
        connection: Connection,
        number: u64,
    },
    /// Give the engine this.
    Engine(Input),
    /// A frame is not taken. The engine gets it all the same if it has to know of its sender.
    NotTaken(String),
}

/// The small files of a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum File {
    /// [`identity::Identity`].
    Identity,
    /// [`known_peers::KnownPeers`].
    Peers,
    /// [`members_file`].
    Members,
}

impl File {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            File::Identity => "identity.toml",
            File::Peers => "peers.toml",
            File::Members => "members.toml",
        }
    }
}
