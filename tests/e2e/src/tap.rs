//! A TCP proxy between a node and its NATS server that reads along.
//!
//! A subscription would see the same messages, and change what is tested: with it, NATS has somebody who listens on every
//! subject, and tells nobody that no node does.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::task::{JoinHandle, JoinSet};

use crate::proxy::{Direction, connected};
use crate::traffic::Traffic;

/// A control line of NATS is shorter; what is longer is not NATS's protocol, but TLS.
const LINE_BYTES_MAX: usize = 65_536;

/// Passes on what one node and its NATS server say to each other, on a free port of 127.0.0.1.
#[derive(Debug)]
pub struct Tap {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Tap {
    /// Starts one that passes on to `upstream`.
    ///
    /// # Errors
    /// No port is free.
    pub fn start(upstream: SocketAddr, traffic: Arc<Traffic>) -> Result<Tap> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let task = runtime()?.spawn(async move {
            let Ok(listener) = TcpListener::from_std(listener) else {
                return;
            };
            // The connections end with this task.
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, upstream, traffic.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Tap { addr, task })
    }

    /// Where to connect instead of the server.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of a server on this port, to connect here instead.
    #[must_use]
    pub fn instead_of(&self, port: u16, url: &str) -> String {
        url.replace(&format!(":{port}"), &format!(":{}", self.addr.port()))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Of a thread of its own: a test that waits for a program blocks the runtime of the test.
fn runtime() -> Result<&'static Handle> {
    static RUNTIME: OnceLock<Result<Handle, String>> = OnceLock::new();
    let started = RUNTIME.get_or_init(|| {
        let made = Builder::new_current_thread().enable_io().build();
        let runtime = made.map_err(|error| error.to_string())?;
        let handle = runtime.handle().clone();
        std::thread::Builder::new()
            .name("tap".to_owned())
            .spawn(move || runtime.block_on(std::future::pending::<()>()))
            .map_err(|error| error.to_string())?;
        Ok(handle)
    });
    started.as_ref().map_err(|error| anyhow!("tap: {error}"))
}

async fn pass(client: TcpStream, upstream: SocketAddr, traffic: Arc<Traffic>) {
    let Some([there, back]) = connected(client, upstream).await else {
        return;
    };
    tokio::select! {
        () = pump(there, &traffic, Side::Node) => {}
        () = pump(back, &traffic, Side::Server) => {}
    }
}

async fn pump((mut from, mut to): Direction, traffic: &Traffic, side: Side) {
    let mut reader = Reader::new(side);
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        // Before it is passed on: a request is known when its answer comes, which may take another connection.
        let read = reader.read(&buffer[..count], &mut |message| traffic.saw(side, &message));
        if let Err(error) = read {
            traffic.lost(side, &error);
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Node,
    Server,
}

/// A message, as either side sends it.
#[derive(Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub subject: &'a str,
    pub reply: Option<&'a str>,
    pub payload: &'a [u8],
}

/// Reads messages out of a stream of NATS's protocol.
struct Reader {
    side: Side,
    unread: Vec<u8>,
    /// It is something else.
    is_lost: bool,
}

impl Reader {
    fn new(side: Side) -> Reader {
        Reader {
            side,
            unread: Vec::new(),
            is_lost: false,
        }
    }

    /// Fails once, where the stream cannot be read; what comes after that is passed by.
    fn read(&mut self, bytes: &[u8], see: &mut impl FnMut(Message<'_>)) -> Result<()> {
        if self.is_lost {
            return Ok(());
        }
        self.unread.extend_from_slice(bytes);
        let mut done = 0;
        loop {
            match next(self.side, &self.unread[done..], see) {
                Ok(Some(length)) => done += length,
                Ok(None) => break,
                Err(error) => {
                    self.is_lost = true;
                    self.unread = Vec::new();
                    return Err(error);
                }
            }
        }
        self.unread.drain(..done);
        Ok(())
    }
}

/// The length of what stands first, once all of it is there.
fn next(side: Side, bytes: &[u8], see: &mut impl FnMut(Message<'_>)) -> Result<Option<usize>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return match bytes.len() > LINE_BYTES_MAX {
            true => Err(anyhow!("no line")),
            false => Ok(None),
        };
    };
    // A client can send subjects that are no text.
    let line = String::from_utf8_lossy(&bytes[..end]);
    let begin = end + 1;
    // As NATS splits it: subjects may contain all else.
    let mut words = line.split([' ', '\t', '\r']).filter(|it| !it.is_empty());
    let verb = words.next().unwrap_or_default().to_ascii_uppercase();
    let (has_headers, has_id) = match (side, verb.as_str()) {
        (Side::Node, "PUB") => (false, false),
        (Side::Node, "HPUB") => (true, false),
        (Side::Server, "MSG") => (false, true),
        (Side::Server, "HMSG") => (true, true),
        _ => return Ok(Some(begin)),
    };
    let words: Vec<&str> = words.collect();
    let (fixed, lengths) = (1 + usize::from(has_id), 1 + usize::from(has_headers));
    let reply = match words.len().checked_sub(fixed + lengths) {
        Some(0) => None,
        Some(1) => words.get(fixed).copied(),
        _ => return Err(anyhow!("no message: {line}")),
    };
    let length = |nth: usize| -> Result<usize> {
        let word = words
            .get(words.len().wrapping_sub(nth))
            .context("no length")?;
        Ok(word.parse()?)
    };
    let total = length(1)?;
    let headers = if has_headers { length(2)? } else { 0 };
    let Some(content) = bytes.get(begin..begin + total + 2) else {
        return Ok(None);
    };
    let payload = content
        .get(headers..total)
        .context("longer headers than content")?;
    let subject = words.first().copied().unwrap_or_default();
    see(Message {
        subject,
        reply,
        payload,
    });
    Ok(Some(begin + total + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_wherever_the_stream_is_cut() -> Result<()> {
        let node =
            b"CONNECT {}\r\nPUB a 2\r\nhi\r\nPING\r\nHPUB _INBOX.1 12 14\r\nNATS/1.0\r\n\r\n{}\r\n";
        let server =
            b"INFO {}\r\nMSG a.b 7 _INBOX.1 0\r\n\r\nMSG \xff\x0c 7 0\r\n\r\nHMSG c 8 12 12\r\nNATS/1.0\r\n\r\n\r\n+OK\r\n";
        for cut in 1..node.len() {
            let mut seen = Vec::new();
            let mut reader = Reader::new(Side::Node);
            for part in node.chunks(cut) {
                reader.read(part, &mut |it| {
                    seen.push((
                        it.subject.to_owned(),
                        it.reply.map(str::to_owned),
                        it.payload.to_vec(),
                    ));
                })?;
            }
            let expected = [
                ("a".to_owned(), None, b"hi".to_vec()),
                ("_INBOX.1".to_owned(), None, b"{}".to_vec()),
            ];
            assert_eq!(seen, expected, "{cut}");
            assert!(reader.unread.is_empty());
        }
        let mut seen = Vec::new();
        Reader::new(Side::Server).read(server, &mut |it| {
            seen.push((
                it.subject.to_owned(),
                it.reply.map(str::to_owned),
                it.payload.len(),
            ));
        })?;
        let expected = [
            ("a.b".to_owned(), Some("_INBOX.1".to_owned()), 0),
            ("\u{fffd}\u{c}".to_owned(), None, 0),
            ("c".to_owned(), None, 0),
        ];
        assert_eq!(seen, expected);
        Ok(())
    }

    #[tokio::test]
    async fn what_is_not_nats_is_passed_by_and_told() -> Result<()> {
        const MESSAGE: &[u8] = b"PUB a 0\r\n\r\n";
        const NO_MESSAGE: &[u8] = b"PUB too many words here 5\r\n";
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let traffic = Arc::new(Traffic::new()?);
        let tap = Tap::start(server.local_addr()?, traffic.clone())?;
        let mut node = TcpStream::connect(tap.addr()).await?;
        let (mut passed, _) = server.accept().await?;
        for (sent, is_lost) in [(MESSAGE, false), (NO_MESSAGE, true), (MESSAGE, true)] {
            node.write_all(sent).await?;
            let mut got = vec![0; sent.len()];
            passed.read_exact(&mut got).await?;
            assert_eq!(got, sent);
            assert_eq!(traffic.checked().is_err(), is_lost);
        }
        let told = traffic.checked().map_err(|error| error.to_string());
        assert!(told.is_err_and(|it| it.contains("too many words")));
        Ok(())
    }
}
