//! Other systems that replicate by Raft, to measure their failover beside ours: three processes on this machine,
//! with the settings that they come with.

mod etcd;
mod jetstream;

use std::path::Path;

use anyhow::Result;

use nowserving_e2e::Process;

pub use etcd::Etcd;
pub use jetstream::JetStream;

/// How many members a cluster has.
pub const MEMBERS: usize = 3;

/// A cluster of [`MEMBERS`] members, numbered from 0.
pub trait Peer: Sized {
    /// Starts it in an empty folder and waits until it takes writes.
    ///
    /// # Errors
    /// Its program is missing, or it does not come up.
    fn start(folder: &Path) -> impl Future<Output = Result<Self>>;

    /// The leader of what is written to.
    ///
    /// # Errors
    /// There is none at the moment.
    fn leader(&self) -> impl Future<Output = Result<usize>>;

    /// One write, acknowledged by a majority, asked of a member other than `not_by`.
    ///
    /// # Errors
    /// It was not acknowledged.
    fn write(&self, not_by: usize) -> impl Future<Output = Result<()>>;

    /// The process of a member.
    fn process(&mut self, member: usize) -> &mut Process;

    /// Starts a member again that was killed.
    ///
    /// # Errors
    /// It does not come up.
    fn start_again(&mut self, member: usize) -> impl Future<Output = Result<()>>;
}

/// The member after this one.
fn next(member: usize) -> usize {
    (member + 1) % MEMBERS
}
