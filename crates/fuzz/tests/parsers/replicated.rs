//! Log entries, snapshots and members, as nodes read them from disk and from peers.

use std::path::Path;

use nowserving_fuzz::target;
use nowserving_shard::members::Members;
use nowserving_shard::{command, snapshot};

/// The golden files with this ending.
fn golden(ending: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shard/tests/golden");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut wanted: Vec<_> = files
        .filter(|path| path.to_string_lossy().ends_with(ending))
        .collect();
    wanted.sort();
    assert!(!wanted.is_empty(), "{ending}");
    wanted
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

#[test]
fn entry() {
    target!(golden(".bin"), |bytes| drop(command::decode(
        bytes,
        command::FORMAT
    )));
}

/// A snapshot whose digest holds although its content is wrong, as a faulty release would write it.
#[test]
fn snapshot() {
    let without_digest = |mut file: Vec<u8>| {
        file.truncate(file.len() - blake3::OUT_LEN);
        file
    };
    let seeds = golden(".snap").into_iter().map(without_digest).collect();
    target!(seeds, |bytes| {
        let digest = blake3::hash(bytes);
        let sealed = [bytes, digest.as_bytes()].concat();
        drop(snapshot::decode(sealed.into(), command::FORMAT, "prod", 7));
    });
}

#[test]
fn members() {
    let seeds = vec![Members::begin(&[1, 2, 3], 9).to_bytes()];
    target!(seeds, |bytes| drop(Members::from_bytes(bytes)));
}
