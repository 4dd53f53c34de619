//! A shop that knows nothing of nowserving: it answers what it was asked, and echoes over WebSocket.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::wire::{self, Head};

/// The key of RFC 6455's example, and what answers it.
pub const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// "Hello" in a frame of a client, masked as in RFC 6455, and of a server.
pub const HELLO: [u8; 11] = [
    0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
];
pub const HELLO_BACK: [u8; 7] = [0x81, 0x05, b'H', b'e', b'l', b'l', b'o'];

/// The running shop. It ends with this value.
pub struct Shop {
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Shop {
    pub async fn start() -> Result<Shop> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let sees = seen.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, sees.clone()));
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Shop { addr, seen, task })
    }

    /// `METHOD path` of all requests since the last call.
    pub fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    // What was read beyond a request: a second one may have come with it, also one that its client had no right to.
    let mut unread = Vec::new();
    // A proxy that ends a connection is no failure of the shop.
    while let Ok(true) = one(&mut stream, &mut unread, &seen).await {}
}

/// Answers one request; false at the connection's end.
async fn one(
    stream: &mut TcpStream,
    unread: &mut Vec<u8>,
    seen: &Mutex<Vec<String>>,
) -> Result<bool> {
    let Some(head) = wire::head(stream, unread).await? else {
        return Ok(false);
    };
    let mut words = head.first.split(' ');
    let method = words.next().context("a method")?.to_owned();
    let path = words.next().context("a path")?.to_owned();
    let what = format!("{method} {path}");
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(what);
    if head.is("upgrade", "websocket") {
        let switch = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
        );
        stream.write_all(switch.as_bytes()).await?;
        let mut frame = std::mem::take(unread);
        while frame.len() < HELLO.len() {
            let mut buffer = [0; 64];
            match stream.read(&mut buffer).await? {
                0 => return Ok(false),
                count => frame.extend_from_slice(&buffer[..count]),
            }
        }
        if frame == HELLO {
            stream.write_all(&HELLO_BACK).await?;
        }
        return Ok(false);
    }
    let body = wire::body(stream, &head, unread, true).await?;
    let answer = said(&head, &method, &path, &body).to_string();
    let length = answer.len();
    let is_head = method == "HEAD";
    let answer = if is_head { "" } else { &answer };
    let response = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Shop: yes\r\nContent-Length: {length}\r\n\r\n{answer}"
    );
    stream.write_all(response.as_bytes()).await?;
    Ok(true)
}

/// What the shop was asked. `passes`: under every name that a shop could take for the pass.
fn said(head: &Head, method: &str, path: &str, body: &[u8]) -> Value {
    let passes = head.headers.iter().filter(|(name, _)| {
        let name = name.replace('_', "-");
        name == "nowserving-pass"
    });
    let passes: Vec<&String> = passes.map(|(_, value)| value).collect();
    json!({
        "shop": "unchanged",
        "method": method,
        "path": path,
        "passes": passes,
        "body_bytes": body.len(),
        "body_begins": String::from_utf8_lossy(&body[..body.len().min(32)]),
    })
}
