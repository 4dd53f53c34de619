//! HTTP/1.1 as bytes: what a test sends through a proxy must be just what it says.

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncReadExt as _};

const HEAD_BYTES_MAX: usize = 64 * 1024;
const BODY_BYTES_MAX: usize = 4 << 20;

/// The first line and the headers of a request or response; names in lower case.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub first: String,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The first header of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        let found = headers.find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub fn is(&self, name: &str, value: &str) -> bool {
        self.get(name)
            .is_some_and(|it| it.eq_ignore_ascii_case(value))
    }
}

/// The head of the next message; none if the connection ends before one. `bytes`: what was read before, and then what was
/// read beyond the head.
pub async fn head(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut Vec<u8>,
) -> Result<Option<Head>> {
    loop {
        if let Some(at) = find(bytes, b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..at]).into_owned();
            let mut lines = text.split("\r\n");
            let first = lines.next().unwrap_or_default().to_owned();
            let headers = lines.filter_map(|line| line.split_once(':'));
            let headers = headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
                .collect();
            bytes.drain(..at + 4);
            return Ok(Some(Head { first, headers }));
        }
        ensure!(bytes.len() < HEAD_BYTES_MAX, "a head without an end");
        if !more(stream, bytes).await? {
            ensure!(bytes.is_empty(), "the connection ends within a head");
            return Ok(None);
        }
    }
}

/// The body that belongs to a head. Without a length, a request has none, and a response lasts until the connection ends.
/// `bytes`: as of [`head`].
pub async fn body(
    stream: &mut (impl AsyncRead + Unpin),
    head: &Head,
    bytes: &mut Vec<u8>,
    is_request: bool,
) -> Result<Vec<u8>> {
    if head.is("transfer-encoding", "chunked") {
        return chunks(stream, bytes).await;
    }
    if let Some(length) = head.get("content-length") {
        let length: usize = length.parse().context("Content-Length")?;
        while bytes.len() < length {
            ensure!(more(stream, bytes).await?, "a body without its end");
        }
        return Ok(bytes.drain(..length).collect());
    }
    if is_request {
        return Ok(Vec::new());
    }
    while more(stream, bytes).await? {}
    Ok(std::mem::take(bytes))
}

async fn chunks(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let at = loop {
            match find(bytes, b"\r\n") {
                Some(at) => break at,
                None => ensure!(more(stream, bytes).await?, "a chunk without a size"),
            }
        };
        let size = String::from_utf8_lossy(&bytes[..at]).into_owned();
        let size = size.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(size, 16).context("a chunk's size")?;
        let end = at + 2 + size + 2;
        while bytes.len() < end {
            ensure!(more(stream, bytes).await?, "a chunk that is not all there");
        }
        body.extend_from_slice(&bytes[at + 2..at + 2 + size]);
        bytes.drain(..end);
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Reads once; false at the end.
pub async fn more(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> Result<bool> {
    if bytes.len() > BODY_BYTES_MAX {
        bail!("too much");
    }
    // Not into an array: futures would have it within themselves, and their callers' theirs.
    bytes.reserve(16 * 1024);
    Ok(stream.read_buf(bytes).await? > 0)
}

pub fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
