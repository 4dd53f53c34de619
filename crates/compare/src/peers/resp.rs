//! A connection to Redis that many tasks share: their commands leave together, and replies come in order.
//!
//! So pipelining is what Lyft's server does with its connections, and what the requester does to NATS. Two commands and
//! four kinds of reply are all that is needed here, hence no client library.

use std::str;

use anyhow::{Context as _, anyhow, bail, ensure};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

/// Requests that wait to be written.
const QUEUE: usize = 4_096;
/// Arrays in arrays in a reply.
const DEPTH_MAX: usize = 4;

/// Commands that are sent together.
#[derive(Debug)]
pub struct Request {
    pub bytes: Bytes,
    /// How many commands these are.
    pub commands: usize,
}

/// One reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Integer(i64),
    Text(String),
    Nil,
    Array(Vec<Reply>),
    Error(String),
}

/// Cheap to clone.
#[derive(Clone)]
pub struct Redis {
    queue: mpsc::Sender<(Request, Waiting)>,
}

/// Gets the last reply of a request, or the first error.
type Waiting = oneshot::Sender<Reply>;

impl Redis {
    /// Connects to a port of this machine.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn connect(port: u16) -> anyhow::Result<Redis> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let (read, write) = stream.into_split();
        let (queue, requests) = mpsc::channel(QUEUE);
        let (sent, awaited) = mpsc::unbounded_channel();
        // Both end with the connection; who still waits then is told by a dropped channel.
        tokio::spawn(write_all(write, requests, sent));
        tokio::spawn(read_all(read, awaited));
        Ok(Redis { queue })
    }

    /// The last reply.
    ///
    /// # Errors
    /// The first error reply, or the connection is closed.
    pub async fn ask(&self, request: Request) -> anyhow::Result<Reply> {
        let (done, reply) = oneshot::channel();
        let gone = || anyhow!("Redis has closed the connection");
        self.queue.send((request, done)).await.map_err(|_| gone())?;
        match reply.await.map_err(|_| gone())? {
            Reply::Error(text) => bail!("Redis: {text}"),
            reply => Ok(reply),
        }
    }

    /// [`Redis::ask`] with one command.
    ///
    /// # Errors
    /// As its.
    pub async fn command(&self, words: &[&str]) -> anyhow::Result<Reply> {
        let request = Request {
            bytes: encode(words).into(),
            commands: 1,
        };
        self.ask(request).await
    }
}

/// One command, as Redis reads it.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

async fn write_all(
    mut write: OwnedWriteHalf,
    mut requests: mpsc::Receiver<(Request, Waiting)>,
    sent: mpsc::UnboundedSender<(usize, Waiting)>,
) {
    let mut batch = Vec::new();
    let mut bytes = BytesMut::new();
    while requests.recv_many(&mut batch, QUEUE).await > 0 {
        for (request, waiting) in batch.drain(..) {
            bytes.extend_from_slice(&request.bytes);
            if sent.send((request.commands, waiting)).is_err() {
                return;
            }
        }
        if write.write_all_buf(&mut bytes).await.is_err() {
            return;
        }
    }
}

async fn read_all(mut read: OwnedReadHalf, mut awaited: mpsc::UnboundedReceiver<(usize, Waiting)>) {
    let mut buffer = BytesMut::with_capacity(64 << 10);
    while let Some((commands, waiting)) = awaited.recv().await {
        let mut last = Reply::Nil;
        for _ in 0..commands {
            let Ok(reply) = next(&mut read, &mut buffer).await else {
                return;
            };
            if !matches!(last, Reply::Error(_)) {
                last = reply;
            }
        }
        // Who has gone does not want it.
        let _ = waiting.send(last);
    }
}

async fn next(read: &mut OwnedReadHalf, buffer: &mut BytesMut) -> anyhow::Result<Reply> {
    loop {
        if let Some((reply, length)) = parse(buffer, 0)? {
            buffer.advance(length);
            return Ok(reply);
        }
        ensure!(read.read_buf(buffer).await? > 0, "closed");
    }
}

/// The first reply and its length; `None` if it is not whole yet.
fn parse(bytes: &[u8], depth: usize) -> anyhow::Result<Option<(Reply, usize)>> {
    ensure!(depth <= DEPTH_MAX, "a reply is too deep");
    let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
        return Ok(None);
    };
    let after = end + 2;
    let (kind, line) = bytes[..end].split_first().context("an empty reply")?;
    let line = str::from_utf8(line)?;
    let reply = match kind {
        b'+' => Reply::Text(line.to_owned()),
        b'-' => Reply::Error(line.to_owned()),
        b':' => Reply::Integer(line.parse()?),
        b'$' | b'*' if line == "-1" => Reply::Nil,
        b'$' => return bulk(bytes, after, line.parse()?),
        b'*' => return array(bytes, after, line.parse()?, depth),
        other => bail!("a reply begins with byte {other}"),
    };
    Ok(Some((reply, after)))
}

fn bulk(bytes: &[u8], from: usize, length: usize) -> anyhow::Result<Option<(Reply, usize)>> {
    let end = from.saturating_add(length);
    let whole = end.saturating_add(2);
    if bytes.len() < whole {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&bytes[from..end]).into_owned();
    Ok(Some((Reply::Text(text), whole)))
}

fn array(
    bytes: &[u8],
    mut from: usize,
    count: usize,
    depth: usize,
) -> anyhow::Result<Option<(Reply, usize)>> {
    let mut replies = Vec::new();
    for _ in 0..count {
        let Some((reply, length)) = parse(&bytes[from..], depth + 1)? else {
            return Ok(None);
        };
        replies.push(reply);
        from += length;
    }
    Ok(Some((Reply::Array(replies), from)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn replies_are_read_once_they_are_whole() {
        let text = |text: &str| Reply::Text(text.to_owned());
        for (bytes, reply) in [
            ("+OK\r\n", text("OK")),
            (":-7\r\n", Reply::Integer(-7)),
            ("$3\r\na\r\n\r\n", text("a\r\n")),
            ("$-1\r\n", Reply::Nil),
            ("-ERR no\r\n", Reply::Error("ERR no".to_owned())),
            (
                "*2\r\n:1\r\n$1\r\nx\r\n",
                Reply::Array(vec![Reply::Integer(1), text("x")]),
            ),
        ] {
            let more = format!("{bytes}+next\r\n");
            let whole = Some((reply, bytes.len()));
            assert_eq!(parse(more.as_bytes(), 0).unwrap(), whole);
            for end in 0..bytes.len() {
                assert_eq!(parse(&bytes.as_bytes()[..end], 0).unwrap(), None, "{bytes}");
            }
        }
    }

    #[test]
    fn other_bytes_are_an_error() {
        let deep = "*1\r\n".repeat(9);
        for bytes in [
            "\r\n",
            "?\r\n",
            ":x\r\n",
            "$-2\r\n",
            "*x\r\n",
            deep.as_str(),
        ] {
            assert!(parse(bytes.as_bytes(), 0).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn a_command_says_how_long_its_words_are() {
        assert_eq!(
            encode(&["GET", "é"]),
            "*2\r\n$3\r\nGET\r\n$2\r\né\r\n".as_bytes()
        );
    }

    /// A server that answers each command with its number.
    async fn counting_server() -> u16 {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = BytesMut::new();
            for number in 0.. {
                while parse(&buffer, 0).unwrap().is_none() {
                    if stream.read_buf(&mut buffer).await.unwrap() == 0 {
                        return;
                    }
                }
                let (_, length) = parse(&buffer, 0).unwrap().unwrap();
                buffer.advance(length);
                let reply = match number {
                    3 => "-ERR third\r\n".to_owned(),
                    _ => format!(":{number}\r\n"),
                };
                stream.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        port
    }

    #[tokio::test]
    async fn each_request_gets_its_own_reply_and_errors_are_errors() {
        let redis = Redis::connect(counting_server().await).await.unwrap();
        assert_eq!(redis.command(&["A"]).await.unwrap(), Reply::Integer(0));
        let two = || Request {
            bytes: [encode(&["B"]), encode(&["C"])].concat().into(),
            commands: 2,
        };
        assert_eq!(redis.ask(two()).await.unwrap(), Reply::Integer(2));
        let error = redis.ask(two()).await.unwrap_err().to_string();
        assert_eq!(error, "Redis: ERR third");
        assert_eq!(redis.command(&["F"]).await.unwrap(), Reply::Integer(5));
    }
}
