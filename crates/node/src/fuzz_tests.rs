//! Fuzz targets of the small files of a data directory. Their checksum holds, or no change would come past it.

#![allow(clippy::unwrap_used)]

use nowserving_fuzz::target;
use tempfile::TempDir;

use crate::known_peers::KnownPeers;
use crate::{checked_file, identity, members_file};

/// A data directory with this file.
fn with_file(name: &str, content: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let sealed = checked_file::sealed(&String::from_utf8_lossy(content));
    std::fs::write(dir.path().join(name), sealed).unwrap();
    dir
}

#[test]
fn an_identity() {
    let seeds = vec![include_bytes!("../tests/golden/files-1/identity.toml").to_vec()];
    target!(seeds, |bytes| {
        let dir = with_file("identity.toml", bytes);
        drop(identity::look_at(dir.path()));
    });
}

#[test]
fn known_peers() {
    let seeds = vec![include_bytes!("../tests/golden/files-1/peers.toml").to_vec()];
    target!(seeds, |bytes| {
        let dir = with_file("peers.toml", bytes);
        drop(KnownPeers::open(dir.path()));
    });
}

#[test]
fn members() {
    let seeds = vec![include_bytes!("../tests/golden/files-1/members.toml").to_vec()];
    target!(seeds, |bytes| {
        let dir = with_file("members.toml", bytes);
        drop(members_file::read(dir.path()));
    });
}

#[test]
fn a_file_whose_checksum_may_not_hold() {
    let seeds = vec![include_bytes!("../tests/golden/files-1/identity.toml").to_vec()];
    target!(seeds, |bytes| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("identity.toml"), bytes).unwrap();
        drop(identity::look_at(dir.path()));
    });
}
