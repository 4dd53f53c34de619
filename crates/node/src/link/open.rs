//! Opens links to all peers that take them, keeps them open, and writes frames to them.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bytes::BytesMut;
use nowserving_front::cluster::link::LinkError;
use nowserving_front::cluster::link::framing::push;
use nowserving_front::cluster::link::hello::{GREETING_BYTES, Opener};
use nowserving_front::cluster::link::progress::{Patience, Sent, WORD_BYTES};
use nowserving_security::Security;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::{Broken, HANDSHAKE_MAX, Links, Stream, random_nonce, read_hello, scheme, write_hello};
use crate::clock::{monotonic_us, until};
use crate::keys::Keys;
use crate::nats::peers::PeerList;

/// Between two attempts to open a link, at first and later. A peer that starts again has a new [`Address`], to which
/// the first attempt is made at once.
const DELAY_MIN: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(10);
/// A link that was open for so long was good: the next attempts are made soon again. Otherwise one that opens and then
/// carries nothing, as on a way that loses large packets, would hold up frames again and again.
const GOOD_AFTER: Duration = Duration::from_secs(30);
/// So much is written at a time, or one frame.
const WRITE_BYTES: usize = 256 << 10;

/// Where a start of a peer takes links, from its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The random number of that start.
    pub start: u64,
    pub addr: String,
}

/// The newest of each peer that takes links.
pub type Addresses = BTreeMap<u64, Address>;

/// This node, as it opens links.
#[derive(Debug, Clone)]
pub struct Opening {
    pub cluster: String,
    pub me: u64,
    pub patience: Patience,
    pub keys: Keys,
    pub security: Security,
    pub links: Links,
}

/// Keeps a link open to each peer with an address, until the node ends.
///
/// # Errors
/// None.
pub async fn run(
    opening: Opening,
    mut addresses: watch::Receiver<Addresses>,
    mut peers: watch::Receiver<PeerList>,
) -> anyhow::Result<()> {
    let mut open: BTreeMap<u64, (Address, JoinSet<()>)> = BTreeMap::new();
    loop {
        let mut wanted = addresses.borrow_and_update().clone();
        {
            let peers = peers.borrow_and_update();
            wanted.retain(|peer, _| peers.ids.contains(peer));
        }
        metrics::gauge!("nowserving_direct_links_wanted").set(wanted.len() as f64);
        open.retain(|peer, (address, _)| wanted.get(peer) == Some(&*address));
        for (peer, address) in wanted {
            open.entry(peer).or_insert_with(|| {
                let mut task = JoinSet::new();
                task.spawn(opening.clone().keep_open(peer, address.addr.clone()));
                (address, task)
            });
        }
        let changed = tokio::select! {
            changed = addresses.changed() => changed,
            changed = peers.changed() => changed,
        };
        if changed.is_err() {
            return Ok(());
        }
    }
}

impl Opening {
    async fn keep_open(self, peer: u64, addr: String) {
        let delays = ExponentialBuilder::default()
            .with_min_delay(DELAY_MIN)
            .with_max_delay(DELAY_MAX)
            .with_jitter()
            .without_max_times();
        let mut next = delays.build();
        let mut last_error = String::new();
        loop {
            let opened = timeout(HANDSHAKE_MAX, self.open(peer, &addr)).await;
            match opened.unwrap_or(Err(Broken::Late)) {
                Ok(stream) => {
                    tracing::info!(peer, addr, "a direct link is open");
                    let since = Instant::now();
                    let Err(error) = self.carry(peer, stream).await;
                    tracing::info!(peer, addr, %error, "the direct link is lost: frames go over NATS");
                    last_error.clear();
                    if since.elapsed() >= GOOD_AFTER {
                        next = delays.build();
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    if error != last_error {
                        tracing::warn!(peer, addr, error, "no direct link: frames go over NATS");
                        last_error = error;
                    }
                }
            }
            tokio::time::sleep(next.next().unwrap_or(DELAY_MAX)).await;
        }
    }

    async fn open(&self, to: u64, addr: &str) -> Result<Box<dyn Stream>, Broken> {
        let mut stream = self.connect(addr).await?;
        let opener = Opener {
            cluster: self.cluster.clone(),
            me: self.me,
            to,
            nonce: random_nonce()?,
        };
        let mut greeting = [0; GREETING_BYTES];
        stream.read_exact(&mut greeting).await?;
        let hello = opener.hello(&greeting, &self.keys.in_use().links)?;
        write_hello(&mut stream, &hello).await?;
        let answer = read_hello(&mut stream).await?;
        opener.check(answer, &self.keys.in_use().links)?;
        Ok(stream)
    }

    /// Encrypted if this node's links are. The peer's must be, too, or must not: nothing is sent in the clear that
    /// should not be.
    async fn connect(&self, addr: &str) -> Result<Box<dyn Stream>, Broken> {
        let tls = self.security.link_connector()?;
        let scheme = scheme(tls.is_some());
        let addr = addr.strip_prefix(scheme).ok_or(Broken::Scheme(scheme))?;
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else {
            return Ok(Box::new(stream));
        };
        let host = addr.rsplit_once(':').map_or(addr, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }

    /// Carries frames to the peer until the link breaks.
    async fn carry(&self, peer: u64, stream: Box<dyn Stream>) -> Result<Never, Broken> {
        let (_open, mut waiting) = self.links.enter(peer);
        let (mut from_peer, mut to_peer) = tokio::io::split(stream);
        let mut words = Words::default();
        let mut sent = Sent::new(self.patience);
        let mut out = BytesMut::new();
        let mut unflushed = false;
        loop {
            tokio::select! {
                // Words that came while this node stood still count before the time is looked at.
                biased;
                taken = words.next(&mut from_peer) => sent.on_word(monotonic_us(), taken?)?,
                () = until_some(sent.broken_at()) => {
                    return Err(LinkError::Silent(self.patience.silent_us / 1_000).into());
                }
                written = write_some(&mut to_peer, &mut out, &mut unflushed),
                    if unflushed || !out.is_empty() => match written? {
                    0 => {}
                    bytes => sent.add(monotonic_us(), bytes),
                },
                Some(frame) = waiting.recv(), if out.is_empty() => {
                    let mut next = Some(frame);
                    while let Some(frame) = next {
                        push(&mut out, &frame);
                        next = match out.len() < WRITE_BYTES {
                            true => waiting.try_recv().ok(),
                            false => None,
                        };
                    }
                }
            }
        }
    }
}

/// Writes a part of what waits, or flushes what was written. Returns how many bytes were written. Dropped before it is
/// done, it has done nothing.
async fn write_some(
    to: &mut WriteHalf<Box<dyn Stream>>,
    out: &mut BytesMut,
    unflushed: &mut bool,
) -> io::Result<usize> {
    if out.is_empty() {
        to.flush().await?;
        *unflushed = false;
        return Ok(0);
    }
    let count = to.write_buf(out).await?;
    *unflushed = true;
    Ok(count)
}

/// It ends by an error only.
enum Never {}

async fn until_some(due: Option<u64>) {
    match due {
        Some(due) => until(due).await,
        None => pending().await,
    }
}

/// What a peer says of the bytes that it has taken.
#[derive(Default)]
struct Words {
    bytes: [u8; WORD_BYTES],
    len: usize,
}

impl Words {
    /// The next one. Dropped in the middle of one, it goes on there.
    async fn next(&mut self, from: &mut ReadHalf<Box<dyn Stream>>) -> Result<u64, Broken> {
        while self.len < WORD_BYTES {
            let count = from.read(&mut self.bytes[self.len..]).await?;
            if count == 0 {
                return Err(Broken::Closed);
            }
            self.len += count;
        }
        self.len = 0;
        Ok(u64::from_le_bytes(self.bytes))
    }
}
