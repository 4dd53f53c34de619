//! Files of secrets: read only if nobody else can.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Larger than any bundle of certificates.
const BYTES_MAX: u64 = 4 << 20;

/// The content of a file that may be public.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    let (file, _) = open(path)?;
    content(file)
}

/// The content of a file that holds a secret.
///
/// The file must belong to its reader alone. One that belongs to root may be readable by its group, too: so Kubernetes
/// mounts Secrets for a pod that has an `fsGroup`.
pub fn read_text(path: &Path) -> Result<String, String> {
    let (file, metadata) = open(path)?;
    // Asked of the open file, not of the path: nobody can swap it in between.
    let mode = metadata.mode() & 0o7777;
    if !is_private(mode, metadata.uid()) {
        return Err(format!(
            "mode {mode:04o} lets others than its owner in; make it 0600 (chmod 600), or 0640 if it belongs to root"
        ));
    }
    String::from_utf8(content(file)?).map_err(|_| "not text".to_owned())
}

fn is_private(mode: u32, owner: u32) -> bool {
    let not_allowed = match owner {
        0 => 0o037,
        _ => 0o077,
    };
    mode & not_allowed == 0
}

fn open(path: &Path) -> Result<(File, Metadata), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err("not a regular file".to_owned()),
    }
}

fn content(file: File) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = file.take(BYTES_MAX + 1).read_to_end(&mut bytes);
    match read.map_err(|error| error.to_string())? as u64 {
        0..=BYTES_MAX => Ok(bytes),
        _ => Err(format!("more than {BYTES_MAX} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_its_owners_and_of_roots_group() {
        for (mode, of_anybody, of_root) in [
            (0o600, true, true),
            (0o400, true, true),
            (0o440, false, true),
            (0o640, false, true),
            (0o660, false, false),
            (0o604, false, false),
            (0o644, false, false),
            (0o610, false, false),
        ] {
            assert_eq!(is_private(mode, 1000), of_anybody, "{mode:o}");
            assert_eq!(is_private(mode, 0), of_root, "{mode:o}");
        }
    }
}
