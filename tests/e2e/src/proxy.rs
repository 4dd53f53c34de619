//! A TCP proxy that can be cut.

use std::net::SocketAddr;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// What the proxy does with its connections.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Passes everything on.
    Up,
    /// Passes nothing on, and tells nobody: as when packets are dropped somewhere. What was sent
    /// meanwhile comes through once the link is up again.
    Silent,
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

async fn pass(client: TcpStream, upstream: SocketAddr, mut link: watch::Receiver<Link>) {
    if *link.borrow() == Link::Closed {
        return;
    }
    let Ok(server) = TcpStream::connect(upstream).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = pump(from_client, to_server, link.clone()) => {}
        () = pump(from_server, to_client, link.clone()) => {}
        // Fails only if the proxy is gone; the connection then goes too.
        _ = link.wait_for(|link| *link == Link::Closed) => {}
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut link: watch::Receiver<Link>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // After reading: what was under way when the link went silent stays under way. In a step of
        // its own, since what `wait_for` returns is a lock that `Proxy::set` would wait for.
        let is_gone = link.wait_for(|link| *link == Link::Up).await.is_err();
        if is_gone || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
