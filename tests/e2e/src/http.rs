//! HTTP by hand: a request now and then is no reason for an HTTP client.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A slow machine stands still for some seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// The answer to a GET: status and text.
///
/// # Errors
/// No answer in time, or not one of HTTP.
pub async fn get(addr: SocketAddr, path: &str) -> Result<(u16, String)> {
    ask(addr, "GET", path, "").await
}

/// The answer to a POST of JSON: status and text.
///
/// # Errors
/// No answer in time, or not one of HTTP.
pub async fn post(addr: SocketAddr, path: &str, json: &str) -> Result<(u16, String)> {
    ask(addr, "POST", path, json).await
}

async fn ask(addr: SocketAddr, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
    let exchange = async {
        let mut stream = TcpStream::connect(addr).await?;
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {addr}\r\nConnection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(PATIENCE, exchange)
        .await
        .with_context(|| format!("{path} does not answer"))??;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .context("not an HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.with_context(|| format!("no status: {head}"))?;
    Ok((status, body.to_owned()))
}
