//! Fuzz targets of the small files of a data directory. Their checksum holds, or no change would come past it.

use nowserving_testkit::target;

use super::checked_file;
use super::identity::Identity;
use super::known_peers::KnownPeers;
use super::members_file;

/// The file with this content.
fn sealed(content: &[u8]) -> Vec<u8> {
    checked_file::sealed(&String::from_utf8_lossy(content)).into_bytes()
}

#[test]
fn an_identity() {
    let seeds = vec![include_bytes!("../../tests/golden/files-1/identity.toml").to_vec()];
    target!(seeds, |bytes| drop(Identity::read(Some(&sealed(bytes)))));
}

#[test]
fn known_peers() {
    let seeds = vec![include_bytes!("../../tests/golden/files-1/peers.toml").to_vec()];
    target!(seeds, |bytes| drop(KnownPeers::read(Some(&sealed(bytes)))));
}

#[test]
fn members() {
    let seeds = vec![include_bytes!("../../tests/golden/files-1/members.toml").to_vec()];
    target!(seeds, |bytes| drop(members_file::read(Some(&sealed(
        bytes
    )))));
}

#[test]
fn a_file_whose_checksum_may_not_hold() {
    let seeds = vec![include_bytes!("../../tests/golden/files-1/identity.toml").to_vec()];
    target!(seeds, |bytes| drop(Identity::read(Some(bytes))));
}
