//! Stylesheet, script and pictures. Their hash is part of their path, so browsers keep them for good.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{ROOT, files};

/// Of the hash of all files; enough that no two versions have the same.
const HASH_CHARS: usize = 16;

pub struct Assets {
    files: BTreeMap<String, Bytes>,
    hash: String,
}

/// A file that a browser asked for.
#[derive(Debug, Clone)]
pub(crate) struct Asset {
    pub bytes: Bytes,
    pub content_type: &'static str,
    /// The hash in its path is that of these files: it never changes. Otherwise another gateway, with another version, made
    /// the page.
    pub is_for_good: bool,
}

impl Assets {
    /// Ours, and a shop's before them.
    pub fn new(of_shop: BTreeMap<String, Bytes>) -> Assets {
        let ours = files::ASSETS.iter();
        let ours = ours.map(|(name, bytes)| ((*name).to_owned(), Bytes::from_static(bytes)));
        let mut files: BTreeMap<String, Bytes> = ours.collect();
        files.extend(of_shop);
        let mut hasher = blake3::Hasher::new();
        for (name, bytes) in &files {
            hasher.update(&(name.len() as u64).to_be_bytes());
            hasher.update(name.as_bytes());
            hasher.update(blake3::hash(bytes).as_bytes());
        }
        let hash = hasher.finalize().to_hex()[..HASH_CHARS].to_owned();
        Assets { files, hash }
    }

    /// The folder of all of them.
    pub fn root(&self) -> String {
        format!("{ROOT}page/{}/", self.hash)
    }

    /// `path`: `<hash>/<name>`.
    pub fn find(&self, path: &str) -> Option<Asset> {
        let (hash, name) = path.split_once('/')?;
        Some(Asset {
            bytes: self.files.get(name)?.clone(),
            content_type: content_type(name),
            is_for_good: hash == self.hash,
        })
    }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, end)| end) {
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "gif" => "image/gif",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "woff" => "font/woff",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}
