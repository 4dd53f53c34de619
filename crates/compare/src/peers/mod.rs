//! Other systems. Those that replicate by Raft are three processes on this machine, with the settings that they come
//! with.

mod etcd;
mod jetstream;
pub mod redis;
pub mod resp;

use std::ffi::OsString;
use std::path::Path;

use anyhow::Result;

use nowserving_e2e::Process;

pub use etcd::{Etcd, Puts};
pub use jetstream::{JetStream, STREAM};

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

/// The program that a variable names, or the one in PATH.
pub fn named(variable: &str, program: &str) -> OsString {
    let given = std::env::var_os(variable).filter(|given| !given.is_empty());
    given.unwrap_or_else(|| program.into())
}
