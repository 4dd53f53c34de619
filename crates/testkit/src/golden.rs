//! Golden files: what a build wrote, in `tests/golden` of the crate that writes it, with the format's number in the
//! name. Each later build must read them. For tests only.

use std::path::{Path, PathBuf};

/// Set to any value, it has missing files written. One that is there is never replaced.
pub const WRITE: &str = "NOWSERVING_WRITE_GOLDEN";

/// The path of a golden file of the crate in folder `of`, its `CARGO_MANIFEST_DIR`. If it is missing and [`WRITE`]
/// is set, `write` makes it.
///
/// # Panics
/// It is missing, or cannot be written.
pub fn path(of: &str, name: &str, write: impl FnOnce(&Path)) -> PathBuf {
    let path = Path::new(of).join("tests/golden").join(name);
    if !path.exists() {
        let shown = path.display();
        assert!(
            std::env::var_os(WRITE).is_some(),
            "{shown} is missing: set {WRITE}"
        );
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.unwrap_or_else(|error| panic!("{shown}: {error}"));
        write(&path);
    }
    path
}

/// The content of a golden file, which is also what this build writes.
///
/// # Panics
/// It is not, or the file cannot be read.
pub fn bytes(of: &str, name: &str, written: &[u8]) -> Vec<u8> {
    let path = path(of, name, |path| {
        let done = std::fs::write(path, written);
        done.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    });
    let kept = std::fs::read(&path);
    let kept = kept.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(
        kept == written,
        "{} is not what this build writes: docs/compatibility.md says which changes are allowed",
        path.display()
    );
    kept
}
