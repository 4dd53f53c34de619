//! Takes the links that peers open, and reads frames from them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use nowserving_front::cluster::link::framing::{FRAME_BYTES_MAX, Reader};
use nowserving_front::cluster::link::hello::Acceptor;
use nowserving_front::cluster::link::progress::{Patience, Taken};
use nowserving_security::Security;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Broken, HANDSHAKE_MAX, Stream, random_nonce, read_hello, scheme, write_hello};
use crate::clock::{monotonic_us, until};
use crate::config::{Config, PeerLink};
use crate::keys::Keys;
use crate::nats::peers::PeerList;
use crate::throttle::Throttle;

/// Frames that wait to be taken at most; then their links are not read.
pub const FRAMES_MAX: usize = 256;
/// Connections at once that have not proved yet that they are a peer's.
const UNPROVEN_MAX: usize = 64;
/// After a connection could not be taken, as when the process has no more files.
const PAUSE: Duration = Duration::from_millis(100);

/// A frame that came by a link, still sealed.
#[derive(Debug)]
pub struct LinkFrame {
    /// The peer that has opened the link.
    pub from: u64,
    pub sealed: Bytes,
}

/// This node, as it takes links.
#[derive(Debug, Clone)]
pub struct Accepting {
    pub cluster: String,
    pub me: u64,
    pub patience: Patience,
    pub keys: Keys,
    pub security: Security,
    pub peers: watch::Receiver<PeerList>,
    pub frames: mpsc::Sender<LinkFrame>,
}

/// Opens the port of `peer_listen`, if this node takes links, and returns what it tells its peers of it.
///
/// # Errors
/// The address cannot be listened on.
pub fn listen(config: &Config) -> anyhow::Result<(Option<TcpListener>, String)> {
    let wanted = config.peer_listen;
    let Some(addr) = wanted.filter(|_| config.peer_link == PeerLink::Direct) else {
        return Ok((None, String::new()));
    };
    let listener = std::net::TcpListener::bind(addr);
    let listener = listener.with_context(|| format!("peer_listen {addr}"))?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?.to_string();
    let advertised = config.peer_advertise.clone().unwrap_or(bound);
    let scheme = scheme(config.security().has_tls_for_links());
    let listener = TcpListener::from_std(listener)?;
    Ok((Some(listener), format!("{scheme}{advertised}")))
}

/// Takes links for ever.
///
/// # Errors
/// None.
pub async fn run(accepting: Accepting, listener: TcpListener) -> anyhow::Result<()> {
    let unproven = Arc::new(Semaphore::new(UNPROVEN_MAX));
    let (proven, mut opened) = mpsc::channel(UNPROVEN_MAX);
    // They end with this task.
    let mut handshakes = JoinSet::new();
    let mut links = JoinSet::new();
    let mut of_peers: BTreeMap<u64, AbortHandle> = BTreeMap::new();
    let mut warnings = Throttle::default();
    loop {
        tokio::select! {
            came = listener.accept() => match came {
                // Above the bound the connection is closed.
                Ok((stream, _)) => if let Ok(permit) = unproven.clone().try_acquire_owned() {
                    let (accepting, proven) = (accepting.clone(), proven.clone());
                    handshakes.spawn(async move {
                        let began = Instant::now();
                        let shaken = timeout(HANDSHAKE_MAX, accepting.shake_hands(stream)).await;
                        if !matches!(shaken, Ok(Ok(_))) {
                            // So strangers get few handshakes a second, however fast they try: with TLS each costs
                            // the loop's thread a millisecond.
                            sleep_until(began + HANDSHAKE_MAX).await;
                        }
                        drop(permit);
                        let shaken = shaken.unwrap_or(Err(Broken::Late));
                        let _ = proven.send(shaken).await;
                    });
                },
                Err(error) => {
                    tracing::warn!(%error, "cannot take a direct link");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(shaken) = opened.recv() => match shaken {
                Ok((peer, stream)) => {
                    let link = links.spawn(accepting.clone().read(peer, stream));
                    // The peer has given up the one before, and may not have been able to close it.
                    if let Some(earlier) = of_peers.insert(peer, link) {
                        earlier.abort();
                    }
                }
                Err(error) => if let Some(count) = warnings.count() {
                    tracing::warn!(%error, count, "direct links refused");
                }
            },
            Some(_) = handshakes.join_next() => {}
            Some(_) = links.join_next() => {}
        }
    }
}

impl Accepting {
    async fn shake_hands(&self, stream: TcpStream) -> Result<(u64, Box<dyn Stream>), Broken> {
        stream.set_nodelay(true)?;
        let mut stream: Box<dyn Stream> = match self.security.link_acceptor()? {
            Some(tls) => Box::new(tls.accept(stream).await?),
            None => Box::new(stream),
        };
        let acceptor = Acceptor {
            cluster: self.cluster.clone(),
            me: self.me,
            nonce: random_nonce()?,
        };
        stream.write_all(&acceptor.greeting()).await?;
        stream.flush().await?;
        let hello = read_hello(&mut stream).await?;
        let (peer, answer) = {
            let peers = self.peers.borrow();
            acceptor.accept(hello, &self.keys.in_use().links, &peers)?
        };
        write_hello(&mut stream, &answer).await?;
        Ok((peer, stream))
    }

    async fn read(self, peer: u64, stream: Box<dyn Stream>) {
        if let Err(error) = self.take_frames(peer, stream).await {
            tracing::debug!(peer, %error, "a direct link of a peer has ended");
        }
    }

    async fn take_frames(&self, peer: u64, stream: Box<dyn Stream>) -> Result<(), Broken> {
        let (mut from_peer, mut to_peer) = tokio::io::split(stream);
        let mut reader = Reader::new(FRAME_BYTES_MAX);
        let mut taken = Taken::new(self.patience);
        loop {
            if let Some(word) = taken.word(monotonic_us()) {
                to_peer.write_all(&word).await?;
                to_peer.flush().await?;
            }
            let due = taken.next_due();
            tokio::select! {
                () = until(due.unwrap_or_default()), if due.is_some() => {}
                count = from_peer.read_buf(reader.room()) => {
                    let count = count?;
                    if count == 0 {
                        return Err(Broken::Closed);
                    }
                    taken.add(count);
                    while let Some(sealed) = reader.next_frame()? {
                        let frame = LinkFrame { from: peer, sealed };
                        if self.frames.send(frame).await.is_err() {
                            return Ok(());
                        }
                    }
                }
            }
        }
    }
}
