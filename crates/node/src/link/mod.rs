//! Direct links between nodes, beside NATS: [`nowserving_front::cluster::link`] over TCP.
//!
//! All of it runs in the loop's runtime, so a frame crosses no thread. A link's tasks wait for their peer alone: one that
//! takes nothing, or sends half a frame, holds up nobody else.

pub mod accept;
pub mod open;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nowserving_front::cluster::link::LinkError;
use nowserving_front::cluster::link::framing::{Reader, push};
use nowserving_front::cluster::link::hello::{HELLO_BYTES_MAX, Nonce};
use nowserving_security::SecurityError;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;

/// A link is open after this time, or it is tried again.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);
/// Frames that wait to be written to a link at most; more are dropped, Raft repeats them.
const OUT_MAX: usize = 1_024;

/// Why a link could not be opened, or ends.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Security(#[from] SecurityError),
    #[error(
        "the peer's links do not begin with {0}, as this node's do: give all nodes, or none, a certificate"
    )]
    Scheme(&'static str),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no answer within {} s", HANDSHAKE_MAX.as_secs())]
    Late,
    #[error("closed by the peer")]
    Closed,
}

/// How the address of a node begins whose links are encrypted, or not.
fn scheme(encrypted: bool) -> &'static str {
    match encrypted {
        true => "tls://",
        false => "tcp://",
    }
}

/// A connection that carries a link.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The open links by which this node sends, by peer.
#[derive(Debug, Clone, Default)]
pub struct Links(Arc<Mutex<BTreeMap<u64, mpsc::Sender<Bytes>>>>);

impl Links {
    /// Whether a link to this peer is open.
    #[must_use]
    pub fn has(&self, peer: u64) -> bool {
        self.open().contains_key(&peer)
    }

    /// Sends a frame by the link to a peer. Returns false if there is none, or too much waits there: the frame is
    /// lost.
    #[must_use]
    pub fn send(&self, peer: u64, frame: Bytes) -> bool {
        let sent = self.open().get(&peer).map(|link| link.try_send(frame));
        matches!(sent, Some(Ok(())))
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, mpsc::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames to this peer take the link from now on, until what is returned is dropped.
    fn enter(&self, peer: u64) -> (Open, mpsc::Receiver<Bytes>) {
        let (frames, waiting) = mpsc::channel(OUT_MAX);
        self.open().insert(peer, frames);
        metrics::gauge!("nowserving_direct_links").increment(1.0);
        let links = self.clone();
        (Open { links, peer }, waiting)
    }
}

/// An open link.
struct Open {
    links: Links,
    peer: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.links.open().remove(&self.peer);
        metrics::gauge!("nowserving_direct_links").decrement(1.0);
    }
}

/// The metrics begin at 0.
pub fn begin_metrics() {
    metrics::gauge!("nowserving_direct_links_wanted").set(0.0);
    metrics::gauge!("nowserving_direct_links").set(0.0);
    metrics::counter!("nowserving_peer_frames_direct_total").increment(0);
}

/// Reads one message of a handshake.
async fn read_hello(stream: &mut impl Stream) -> Result<Bytes, Broken> {
    let mut reader = Reader::new(HELLO_BYTES_MAX);
    loop {
        if let Some(hello) = reader.next_frame()? {
            return Ok(hello);
        }
        if stream.read_buf(reader.room()).await? == 0 {
            return Err(Broken::Closed);
        }
    }
}

/// Writes one message of a handshake.
async fn write_hello(stream: &mut impl Stream, hello: &[u8]) -> Result<(), Broken> {
    let mut out = BytesMut::new();
    push(&mut out, hello);
    stream.write_all(&out).await?;
    Ok(stream.flush().await?)
}

/// From the operating system.
fn random_nonce() -> io::Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}
