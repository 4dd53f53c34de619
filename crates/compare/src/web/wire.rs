//! A browser's side of HTTP/1.1, as small as thousands of them need it: one connection a request, or a stream.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A gateway that does not answer for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Streams beat each 15 s.
const SILENT: Duration = Duration::from_secs(40);
const BODY_MAX: u64 = 1 << 20;

/// A request as a proxy before the gateway passes it on.
pub struct Wish<'a> {
    pub method: &'a str,
    /// Path and query.
    pub path: &'a str,
    pub headers: Vec<(&'a str, String)>,
    pub body: String,
    /// Other requests follow over the same connection.
    pub keeps: bool,
}

impl<'a> Wish<'a> {
    pub fn get(path: &'a str) -> Wish<'a> {
        Wish {
            method: "GET",
            path,
            headers: Vec::new(),
            body: String::new(),
            keeps: false,
        }
    }

    pub fn with(mut self, name: &'a str, value: impl Into<String>) -> Wish<'a> {
        self.headers.push((name, value.into()));
        self
    }

    fn text(&self) -> String {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.body.is_empty() {
            text.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        text.push_str(if self.keeps {
            "\r\n"
        } else {
            "Connection: close\r\n\r\n"
        });
        text.push_str(&self.body);
        text
    }
}

/// An answer without its body.
#[derive(Debug, Default)]
pub struct Head {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
}

impl Head {
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(other, _)| other == name)
            .map(|(_, value)| value.as_str())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let all = self.headers.iter().filter(move |(other, _)| other == name);
        all.map(|(_, value)| value.as_str())
    }

    fn is_chunked(&self) -> bool {
        self.header("transfer-encoding")
            .is_some_and(|value| value.contains("chunked"))
    }
}

/// A connection to a gateway.
pub struct Wire(BufReader<TcpStream>);

impl Wire {
    pub async fn open(to: SocketAddr) -> io::Result<Wire> {
        let stream = timeout(PATIENCE, TcpStream::connect(to)).await??;
        stream.set_nodelay(true)?;
        Ok(Wire(BufReader::with_capacity(1_024, stream)))
    }

    /// Sends a request, and reads the head of its answer.
    pub async fn ask(&mut self, wish: &Wish<'_>) -> io::Result<Head> {
        self.0.get_mut().write_all(wish.text().as_bytes()).await?;
        timeout(PATIENCE, self.head()).await?
    }

    async fn head(&mut self) -> io::Result<Head> {
        let first = self.line().await?;
        let status = first
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        let mut head = Head {
            status: status.ok_or_else(|| odd("a status line"))?,
            headers: Vec::new(),
        };
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return Ok(head);
            }
            let (name, value) = line.split_once(':').ok_or_else(|| odd("a header"))?;
            head.headers
                .push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    /// The whole body.
    pub async fn body(&mut self, head: &Head) -> io::Result<String> {
        let read = async {
            let mut body = Vec::new();
            if head.is_chunked() {
                while let Some(chunk) = self.chunk().await? {
                    body.extend(chunk);
                }
            } else if let Some(length) = head.header("content-length") {
                let length = length
                    .parse::<u64>()
                    .map_err(|_| odd("a length"))?
                    .min(BODY_MAX);
                body.resize(length as usize, 0);
                self.0.read_exact(&mut body).await?;
            } else if !matches!(head.status, 204 | 304) {
                (&mut self.0).take(BODY_MAX).read_to_end(&mut body).await?;
            }
            String::from_utf8(body).map_err(|_| odd("UTF-8"))
        };
        timeout(PATIENCE, read).await?
    }

    /// What came of a stream; `None` at its end. An error if it is silent for too long.
    pub async fn more(&mut self) -> io::Result<Option<Vec<u8>>> {
        timeout(SILENT, self.chunk()).await?
    }

    async fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let line = self.line().await?;
        let size = line.split(';').next().unwrap_or("").trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| odd("the size of a chunk"))?;
        let mut bytes = vec![0; size.min(BODY_MAX) as usize];
        self.0.read_exact(&mut bytes).await?;
        self.line().await?;
        Ok((size > 0).then_some(bytes))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

fn odd(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("expected {what}"))
}

/// An event of a stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    pub data: String,
}

/// Puts events together, as a browser does.
#[derive(Default)]
pub struct EventReader {
    buffer: String,
    /// The last `retry`.
    pub retry_ms: Option<u64>,
}

impl EventReader {
    pub fn take(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.buffer.push_str(&String::from_utf8_lossy(bytes));
        let mut events = Vec::new();
        while let Some((block, rest)) = self.buffer.split_once("\n\n") {
            let mut event = Event::default();
            for line in block.lines() {
                match line.split_once(": ") {
                    Some(("event", name)) => event.name = name.to_owned(),
                    Some(("data", data)) => event.data.push_str(data),
                    Some(("retry", ms)) => self.retry_ms = ms.parse().ok(),
                    _ => {}
                }
            }
            if !event.data.is_empty() {
                events.push(event);
            }
            self.buffer = rest.to_owned();
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_from_any_pieces() {
        let text = "retry: 3000\n\nevent: phase\ndata: {\"page\":\"waiting\"}\n\nevent: place\ndata: {\ndata: }\n\n";
        for size in [1, 7, 1_000] {
            let mut reader = EventReader::default();
            let events: Vec<Event> = text
                .as_bytes()
                .chunks(size)
                .flat_map(|piece| reader.take(piece))
                .collect();
            assert_eq!(reader.retry_ms, Some(3_000));
            let event = |name: &str, data: &str| Event {
                name: name.to_owned(),
                data: data.to_owned(),
            };
            assert_eq!(
                events,
                [
                    event("phase", "{\"page\":\"waiting\"}"),
                    event("place", "{}")
                ]
            );
        }
    }
}
