//! A browser, as far as a gate can tell: it keeps cookies and says what it wants. Its requests come from an address that is
//! no trusted proxy.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};

use super::shop::{HELLO, HELLO_BACK, KEY};
use super::wire::{self, Head};

/// A slow machine stands still for some seconds.
const PATIENCE: Duration = Duration::from_secs(40);
pub const FROM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
pub const HOST: &str = "shop.example";
/// Of Chromium.
const HTML: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const FORM: &str = "application/x-www-form-urlencoded";

/// A visitor of the shop behind a proxy.
#[derive(Clone, Debug)]
pub struct Visitor {
    proxy: SocketAddr,
    /// From where its requests come.
    pub from: Ipv4Addr,
    /// As it names the shop.
    pub host: String,
    pub cookies: BTreeMap<String, String>,
    pub keeps_cookies: bool,
    /// Sent along with each request.
    pub headers: Vec<(String, String)>,
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: Head,
    pub body: String,
}

impl Answer {
    /// Whether the shop itself has answered.
    pub fn is_shops(&self) -> bool {
        self.status == 200 && self.head.get("x-shop").is_some()
    }

    /// What the shop was asked.
    pub fn asked(&self) -> Result<Value> {
        ensure!(self.is_shops(), "not of the shop: {self:?}");
        Ok(serde_json::from_str(&self.body)?)
    }

    /// The state of the waiting page, if it is that.
    pub fn page(&self) -> Option<String> {
        let (_, data) = self.body.split_once("data-page='")?;
        let (data, _) = data.split_once('\'')?;
        let data: Value = serde_json::from_str(data).ok()?;
        Some(data["page"].as_str()?.to_owned())
    }

    pub fn is_problem(&self) -> bool {
        let content_type = self.head.get("content-type").unwrap_or_default();
        content_type.starts_with("application/problem+json")
            && serde_json::from_str::<Value>(&self.body).is_ok_and(|it| it.is_object())
    }
}

impl Visitor {
    pub fn new(proxy: SocketAddr) -> Visitor {
        Visitor {
            proxy,
            from: FROM,
            host: HOST.to_owned(),
            cookies: BTreeMap::new(),
            keeps_cookies: true,
            headers: Vec::new(),
        }
    }

    /// The same, by another proxy.
    pub fn at(&self, proxy: SocketAddr) -> Visitor {
        Visitor {
            proxy,
            ..self.clone()
        }
    }

    /// The same, who also sends this.
    pub fn sending(&self, name: &str, value: &str) -> Visitor {
        let mut other = self.clone();
        other.headers.push((name.to_owned(), value.to_owned()));
        other
    }

    /// Goes to a page.
    pub async fn page(&mut self, path: &str) -> Result<Answer> {
        self.ask("GET", path, &navigation(), b"").await
    }

    pub async fn head(&mut self, path: &str) -> Result<Answer> {
        self.ask("HEAD", path, &navigation(), b"").await
    }

    /// Sends a form.
    pub async fn post(&mut self, path: &str, form: &str) -> Result<Answer> {
        let mut headers = navigation();
        headers.push(("Content-Type", FORM));
        self.ask("POST", path, &headers, form.as_bytes()).await
    }

    /// `fetch` of a script: with a body, as POST of JSON.
    pub async fn fetch(&mut self, path: &str, json: Option<&str>) -> Result<Answer> {
        let mut headers = vec![
            ("Accept", "*/*"),
            ("Sec-Fetch-Dest", "empty"),
            ("Sec-Fetch-Mode", "cors"),
            ("Sec-Fetch-Site", "same-origin"),
        ];
        match json {
            None => self.ask("GET", path, &headers, b"").await,
            Some(json) => {
                headers.push(("Content-Type", "application/json"));
                self.ask("POST", path, &headers, json.as_bytes()).await
            }
        }
    }

    /// Enters in two steps, as the page does: gets the pre-cookie, then sends the form.
    pub async fn enter(&mut self, line: &str, to: &str) -> Result<Answer> {
        let first = self.page(to).await?;
        ensure!(
            first.page().as_deref() == Some("enter"),
            "no first step: {first:?}"
        );
        let form = format!("line={line}&to={}", encoded(to));
        self.post("/_nowserving/enter", &form).await
    }

    /// Opens a WebSocket and says hello. The answer, if it is none.
    pub async fn web_socket(&mut self, path: &str) -> Result<Option<Answer>> {
        let talk = async {
            let mut stream = self.connect().await?;
            let headers = [
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", KEY),
                ("Sec-Fetch-Dest", "websocket"),
            ];
            let request = self.request("GET", path, &headers, b"");
            stream.write_all(&request).await?;
            let mut bytes = Vec::new();
            let head = wire::head(&mut stream, &mut bytes).await?;
            let head = head.context("no answer to the handshake")?;
            let status = status(&head)?;
            if status != 101 {
                let body = wire::body(&mut stream, &head, &mut bytes, false).await?;
                let body = String::from_utf8_lossy(&body).into_owned();
                return Ok(Some(Answer { status, head, body }));
            }
            stream.write_all(&HELLO).await?;
            while bytes.len() < HELLO_BACK.len() {
                ensure!(wire::more(&mut stream, &mut bytes).await?, "no hello");
            }
            ensure!(bytes == HELLO_BACK, "not hello: {bytes:?}");
            Ok(None)
        };
        within(path, talk).await
    }

    /// Opens a stream of events.
    pub async fn stream(&self, path: &str) -> Result<Stream> {
        let open = async {
            let mut stream = self.connect().await?;
            let headers = [("Accept", "text/event-stream"), ("Sec-Fetch-Dest", "empty")];
            let request = self.request("GET", path, &headers, b"");
            stream.write_all(&request).await?;
            let mut bytes = Vec::new();
            let head = wire::head(&mut stream, &mut bytes).await?;
            let head = head.context("no answer")?;
            ensure!(
                head.get("content-type")
                    .is_some_and(|it| it.starts_with("text/event-stream")),
                "not a stream: {head:?}"
            );
            Ok(Stream { stream, bytes })
        };
        within(path, open).await
    }

    /// One request, with just these headers and the visitor's own.
    pub async fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer> {
        let exchange = async {
            let mut stream = self.connect().await?;
            let mut headers = headers.to_vec();
            headers.push(("Connection", "close"));
            let request = self.request(method, path, &headers, body);
            // A proxy may answer before it has read all of the body, and then not read it.
            let (mut reads, mut writes) = stream.split();
            let send = writes.write_all(&request);
            let receive = async {
                let mut rest = Vec::new();
                let head = wire::head(&mut reads, &mut rest).await?;
                let head = head.with_context(|| format!("no answer: {method} {path}"))?;
                let body = match method {
                    "HEAD" => rest,
                    _ => wire::body(&mut reads, &head, &mut rest, false).await?,
                };
                anyhow::Ok((head, body))
            };
            tokio::pin!(send, receive);
            let (head, body) = tokio::select! {
                received = &mut receive => received?,
                _ = &mut send => receive.await?,
            };
            let status = status(&head)?;
            let body = String::from_utf8_lossy(&body).into_owned();
            Ok(Answer { status, head, body })
        };
        let answer = within(path, exchange).await?;
        if self.keeps_cookies {
            for (name, value) in &answer.head.headers {
                if name == "set-cookie" {
                    self.take_cookie(value);
                }
            }
        }
        Ok(answer)
    }

    async fn connect(&self) -> Result<TcpStream> {
        connect(self.from, self.proxy).await
    }

    fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        let own = self.headers.iter();
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in headers.iter().copied().chain(own) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.cookies.is_empty() {
            let cookies = self.cookies.iter();
            let cookies: Vec<_> = cookies.map(|(name, it)| format!("{name}={it}")).collect();
            head.push_str(&format!("Cookie: {}\r\n", cookies.join("; ")));
        }
        if !body.is_empty() || method == "POST" {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        [head.as_bytes(), body].concat()
    }

    fn take_cookie(&mut self, set: &str) {
        let pair = set.split(';').next().unwrap_or_default();
        let Some((name, value)) = pair.split_once('=') else {
            return;
        };
        match set.to_ascii_lowercase().contains("max-age=0") {
            true => drop(self.cookies.remove(name)),
            false => drop(self.cookies.insert(name.to_owned(), value.to_owned())),
        }
    }
}

/// An open stream of events.
pub struct Stream {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Stream {
    /// Waits until this was sent, while the stream stays open.
    pub async fn until(&mut self, text: &str) -> Result<()> {
        let waits = async {
            while wire::find(&self.bytes, text.as_bytes()).is_none() {
                let goes_on = wire::more(&mut self.stream, &mut self.bytes).await?;
                ensure!(goes_on, "the stream has ended");
            }
            Ok(())
        };
        within(text, waits).await.with_context(|| {
            let seen = String::from_utf8_lossy(&self.bytes).into_owned();
            format!("{text:?} did not come: {seen}")
        })
    }
}

/// A connection from one of the addresses of loopback.
pub async fn connect(from: Ipv4Addr, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    Ok(socket.connect(to).await?)
}

/// For a form or a query.
pub fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn navigation() -> Vec<(&'static str, &'static str)> {
    vec![
        ("Accept", HTML),
        ("Accept-Language", "en"),
        ("Sec-Fetch-Dest", "document"),
        ("Sec-Fetch-Mode", "navigate"),
        ("Sec-Fetch-Site", "none"),
    ]
}

fn status(head: &Head) -> Result<u16> {
    let status = head.first.split(' ').nth(1);
    let status = status.and_then(|status| status.parse().ok());
    status.with_context(|| format!("no status: {}", head.first))
}

async fn within<T>(what: &str, exchange: impl Future<Output = Result<T>>) -> Result<T> {
    let done = tokio::time::timeout(PATIENCE, exchange).await;
    done.with_context(|| format!("no answer within {PATIENCE:?}: {what}"))?
}
