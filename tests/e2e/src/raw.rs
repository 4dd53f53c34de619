//! A NATS connection spelled out by hand, for subjects that a client library would not send.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

#[derive(Debug)]
pub struct RawNats {
    stream: BufReader<TcpStream>,
    asked: u64,
}

/// The server's messages, as far as they matter here.
enum Sent {
    Message { subject: String, payload: String },
    Pong,
    Refusal(String),
}

impl RawNats {
    /// Connects to a server on this machine.
    ///
    /// # Errors
    /// It does not take the connection.
    pub async fn connect(port: u16) -> Result<RawNats> {
        let stream = BufReader::new(TcpStream::connect(("127.0.0.1", port)).await?);
        let mut raw = RawNats { stream, asked: 0 };
        raw.line().await?.strip_prefix("INFO ").context("no INFO")?;
        raw.send(b"CONNECT {\"verbose\":false,\"headers\":true,\"no_responders\":true}\r\n")
            .await?;
        raw.send(b"SUB _INBOX.raw.* 1\r\n").await?;
        raw.sync().await?;
        Ok(raw)
    }

    /// Publishes with any subject and any reply subject, and waits until the server took it.
    ///
    /// # Errors
    /// The server refuses it or closes the connection.
    pub async fn publish(&mut self, subject: &[u8], reply: &str, payload: &[u8]) -> Result<()> {
        self.put(subject, reply, payload).await?;
        self.sync().await
    }

    /// Asks; none if no answer comes within `patience`. The text is the payload; for an answer of the
    /// server itself its headers (no responders) or its text (an invalid subject).
    ///
    /// # Errors
    /// The server refuses it or closes the connection.
    pub async fn ask(
        &mut self,
        subject: &[u8],
        payload: &[u8],
        patience: Duration,
    ) -> Result<Option<String>> {
        self.asked += 1;
        let inbox = format!("_INBOX.raw.{}", self.asked);
        self.put(subject, &inbox, payload).await?;
        let answer = async {
            loop {
                // An answer to an earlier question may come too late.
                match self.sent().await? {
                    Sent::Message { subject, payload } if subject == inbox => {
                        return Ok(Some(payload));
                    }
                    Sent::Refusal(line) => return Ok(Some(line)),
                    Sent::Message { .. } | Sent::Pong => {}
                }
            }
        };
        tokio::time::timeout(patience, answer)
            .await
            .unwrap_or(Ok(None))
    }

    async fn put(&mut self, subject: &[u8], reply: &str, payload: &[u8]) -> Result<()> {
        let mut bytes = b"PUB ".to_vec();
        bytes.extend_from_slice(subject);
        bytes.extend_from_slice(format!(" {reply} {}\r\n", payload.len()).as_bytes());
        bytes.extend_from_slice(payload);
        bytes.extend_from_slice(b"\r\n");
        self.send(&bytes).await
    }

    /// Everything sent so far has been taken.
    async fn sync(&mut self) -> Result<()> {
        self.send(b"PING\r\n").await?;
        while !matches!(self.sent().await?, Sent::Pong) {}
        Ok(())
    }

    async fn sent(&mut self) -> Result<Sent> {
        loop {
            let line = self.line().await?;
            let mut words = line.split_whitespace();
            match words.next() {
                // MSG subject sid length; HMSG subject sid headers length
                Some("MSG" | "HMSG") => {
                    let subject = words.next().context("MSG without subject")?.to_owned();
                    let length: usize = words.next_back().context("MSG without length")?.parse()?;
                    let mut payload = vec![0; length + 2];
                    self.stream.read_exact(&mut payload).await?;
                    payload.truncate(length);
                    let payload = String::from_utf8_lossy(&payload).into_owned();
                    return Ok(Sent::Message { subject, payload });
                }
                Some("PING") => self.send(b"PONG\r\n").await?,
                Some("PONG") => return Ok(Sent::Pong),
                Some("INFO") => {}
                Some("-ERR") => return Ok(Sent::Refusal(line)),
                _ => bail!("the server says {line:?}"),
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes).await?)
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line).await? == 0 {
            bail!("the server has closed the connection");
        }
        Ok(line.trim_end().to_owned())
    }
}
