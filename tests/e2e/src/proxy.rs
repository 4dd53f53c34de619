//! A TCP proxy that can be cut or slowed down.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Chunks under way in one direction of one connection at most; then nothing more is read.
const CHUNKS_MAX: usize = 1_024;

/// The proxy's treatment of its connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    /// Passes everything on in order, later by this time in each direction.
    Slow(Duration),
    /// Passes nothing on and keeps connections open, as when packets are dropped somewhere. Data sent
    /// meanwhile comes through once the link is up again.
    Silent,
    /// Passes on what comes from the server, and keeps back what its client sends.
    Mute,
    /// Closes its connections and each new one at once.
    Closed,
}

/// A proxy in front of one server, on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    link: watch::Sender<Link>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts one that passes on to `upstream`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(upstream: SocketAddr) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let (link, seen) = watch::channel(Link::Up);
        let task = tokio::spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, upstream, seen.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Proxy { port, link, task })
    }

    /// Where to connect instead of the server.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The same, as an address.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, self.port))
    }

    /// Cuts or mends the link, with effect on the connections that are there.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One direction of a connection that is passed on: where its bytes come from, and where they go.
pub(crate) type Direction = (OwnedReadHalf, OwnedWriteHalf);

/// Connects `client` with `upstream`: the direction to it, and back. `None`: it takes no connection.
pub(crate) async fn connected(client: TcpStream, upstream: SocketAddr) -> Option<[Direction; 2]> {
    let server = TcpStream::connect(upstream).await.ok()?;
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    Some([(from_client, to_server), (from_server, to_client)])
}

async fn pass(client: TcpStream, upstream: SocketAddr, mut link: watch::Receiver<Link>) {
    if *link.borrow() == Link::Closed {
        return;
    }
    let Some([there, back]) = connected(client, upstream).await else {
        return;
    };
    tokio::select! {
        () = pump(there, link.clone(), &[Link::Silent, Link::Mute]) => {}
        () = pump(back, link.clone(), &[Link::Silent]) => {}
        // Fails only if the proxy is gone; the connection then goes too.
        _ = link.wait_for(|link| *link == Link::Closed) => {}
    }
}

async fn pump((mut from, mut to): Direction, mut link: watch::Receiver<Link>, holds_back: &[Link]) {
    let (under_way, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let chunk = (Instant::now(), buffer[..count].to_vec());
            if under_way.send(chunk).await.is_err() {
                return;
            }
        }
    };
    let write = async move {
        while let Some((read_at, chunk)) = chunks.recv().await {
            // After reading: bytes in transit when the link went silent stay in transit.
            let passes = link.wait_for(|link| !holds_back.contains(link)).await;
            // Not across an await: `wait_for` returns a lock that `Proxy::set` would wait for.
            let Ok(link) = passes.map(|link| *link) else {
                return;
            };
            if let Link::Slow(delay) = link {
                tokio::time::sleep_until(read_at + delay).await;
            }
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::pin!(read, write);
    tokio::select! {
        () = &mut write => return,
        // Ends the other once it has written the rest.
        () = &mut read => {}
    }
    write.await;
}
