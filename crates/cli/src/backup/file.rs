//! A backup as a file.
//!
//! ```text
//! offset  bytes
//!      0      8  magic
//!      8      4  format, 1, little-endian
//!     12      4  length of the header, little-endian
//!     16      …  the header as JSON, then each shard from 0 on: the length of its snapshot
//!                (8 bytes, little-endian) and the snapshot (crates/shard/src/snapshot.rs)
//!    end−32  32  BLAKE3 over everything before it
//! ```
//!
//! The digest is checked before anything is restored.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use nowserving_shard::state::State;
use nowserving_shard::{command, snapshot};
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"NS-BACK\n";
/// That of builds before the first release.
const EARLIER_MAGIC: &[u8; 8] = b"NSBACKUP";
const FORMAT: u32 = 1;
const DIGEST_BYTES: u64 = 32;
const HEADER_BYTES_MAX: u32 = 65_536;
const PRIVATE: u32 = 0o600;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub cluster: String,
    /// The clock of the machine that made the backup, when it began.
    pub created_at_ms: u64,
    pub shards: u32,
    /// The build that made it.
    pub version: String,
}

/// Writes beside the file, and puts the result in its place at the end: there never is half a backup.
pub struct Writer {
    path: PathBuf,
    part: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl Writer {
    pub fn create(path: &Path, header: &Header) -> anyhow::Result<Writer> {
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = create_private(&part).with_context(|| part.display().to_string())?;
        let mut writer = Writer {
            path: path.to_owned(),
            part,
            file: BufWriter::new(file),
            hasher: blake3::Hasher::new(),
            bytes: 0,
        };
        let header = serde_json::to_vec(header)?;
        writer.write(MAGIC)?;
        writer.write(&FORMAT.to_le_bytes())?;
        writer.write(&u32::try_from(header.len())?.to_le_bytes())?;
        writer.write(&header)?;
        Ok(writer)
    }

    /// Adds the snapshot of the next shard.
    pub fn shard(&mut self, snapshot: &[u8]) -> anyhow::Result<()> {
        self.write(&(snapshot.len() as u64).to_le_bytes())?;
        self.write(snapshot)
    }

    /// Returns the length of the file.
    pub fn finish(mut self) -> anyhow::Result<u64> {
        let digest = self.hasher.finalize();
        self.write(digest.as_bytes())?;
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.part, &self.path).with_context(|| self.path.display().to_string())?;
        let folder = self.path.parent().filter(|it| !it.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(self.bytes)
    }

    fn write(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        let written = self.file.write_all(bytes);
        written.with_context(|| self.part.display().to_string())
    }
}

/// A file for its owner alone: everybody's keys are in it.
fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(PRIVATE)
        .open(path)?;
    // Left behind by an interrupted backup, it may have another mode.
    file.set_permissions(fs::Permissions::from_mode(PRIVATE))?;
    Ok(file)
}

/// Reads a backup whose digest holds.
#[derive(Debug)]
pub struct Reader {
    file: BufReader<File>,
    pub header: Header,
    next: u32,
    left: u64,
}

impl Reader {
    pub fn open(path: &Path) -> anyhow::Result<Reader> {
        open(path).with_context(|| path.display().to_string())
    }

    /// The next shard and its state.
    pub fn shard(&mut self) -> anyhow::Result<Option<(u32, State)>> {
        if self.next == self.header.shards {
            ensure!(self.left == 0, "the backup has more than its shards");
            return Ok(None);
        }
        let length = u64::from_le_bytes(self.take()?);
        ensure!(
            length <= self.left,
            "the backup does not have all of its shards"
        );
        let mut snapshot = vec![0; usize::try_from(length)?];
        self.file.read_exact(&mut snapshot)?;
        self.left -= length;
        let shard = self.next;
        self.next += 1;
        let read = snapshot::decode(
            Bytes::from(snapshot),
            command::FORMAT,
            &self.header.cluster,
            shard,
        );
        let (_, state) = read.with_context(|| format!("shard {shard} of the backup"))?;
        Ok(Some((shard, state)))
    }

    fn take<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        ensure!(N as u64 <= self.left, "the backup ends too early");
        self.file.read_exact(&mut bytes)?;
        self.left -= N as u64;
        Ok(bytes)
    }
}

fn open(path: &Path) -> anyhow::Result<Reader> {
    let mut file = BufReader::new(File::open(path)?);
    let mut magic = [0; 8];
    let read = file.read_exact(&mut magic);
    ensure!(
        magic != *EARLIER_MAGIC,
        "a backup of a build before the first release, which no later build reads"
    );
    ensure!(
        read.is_ok() && magic == *MAGIC,
        "not a backup: its first bytes are not a backup's"
    );
    let mut format = [0; 4];
    file.read_exact(&mut format)
        .context("the backup is cut off")?;
    match u32::from_le_bytes(format) {
        FORMAT => {}
        other => bail!("a backup of format {other}, and this build reads {FORMAT}"),
    }
    let length = file.get_ref().metadata()?.len();
    check_digest(&mut file, length)?;
    file.seek(SeekFrom::Start(12))?;
    let mut reader = Reader {
        file,
        header: Header {
            cluster: String::new(),
            created_at_ms: 0,
            shards: 0,
            version: String::new(),
        },
        next: 0,
        left: length - DIGEST_BYTES - 12,
    };
    let header = u32::from_le_bytes(reader.take()?);
    let fits = header <= HEADER_BYTES_MAX && u64::from(header) <= reader.left;
    ensure!(fits, "the header of the backup is too long");
    let mut bytes = vec![0; usize::try_from(header)?];
    reader.file.read_exact(&mut bytes)?;
    reader.left -= u64::from(header);
    reader.header = serde_json::from_slice(&bytes).context("the header of the backup")?;
    Ok(reader)
}

fn check_digest(file: &mut BufReader<File>, length: u64) -> anyhow::Result<()> {
    const BAD: &str = "the backup is cut off or altered: its digest does not hold";
    ensure!(length >= 16 + DIGEST_BYTES, BAD);
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file.by_ref().take(length - DIGEST_BYTES))?;
    let mut digest = [0; DIGEST_BYTES as usize];
    file.read_exact(&mut digest)?;
    ensure!(*hasher.finalize().as_bytes() == digest, BAD);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use nowserving_line::{LineName, Op, Settings};

    use super::*;

    fn header() -> Header {
        Header {
            cluster: "prod".to_owned(),
            created_at_ms: 5,
            shards: 2,
            version: "1".to_owned(),
        }
    }

    /// Of a shard with a line.
    fn snapshot(shard: u32) -> Vec<u8> {
        let header = snapshot::Header {
            cluster: "prod".to_owned(),
            shard,
            ..snapshot::Header::default()
        };
        let create = Op::Create {
            line: LineName::try_from("shop").unwrap(),
            settings: Settings::new(3, 9),
        };
        let entry = command::Entry {
            commands: vec![command::Command::Line(create)],
            ..command::Entry::default()
        };
        let mut state = State::default();
        state.apply_entry(1, &entry, &mut ());
        snapshot::encode(&header, &state)
    }

    fn written(path: &Path) {
        let mut writer = Writer::create(path, &header()).unwrap();
        for shard in 0..2 {
            writer.shard(&snapshot(shard)).unwrap();
        }
        assert!(!path.exists(), "it is there when it is whole");
        let bytes = writer.finish().unwrap();
        let metadata = fs::metadata(path).unwrap();
        assert_eq!(metadata.len(), bytes);
        assert_eq!(metadata.permissions().mode() & 0o777, PRIVATE);
    }

    #[test]
    fn a_backup_of_an_earlier_build_is_read() {
        let of = env!("CARGO_MANIFEST_DIR");
        let path = nowserving_golden::path(of, "backup-1.bin", written);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.header, header());
        for shard in 0..2 {
            let (found, state) = reader.shard().unwrap().unwrap();
            assert_eq!(found, shard);
            let line = state.lines().iter().next().unwrap();
            assert_eq!(line.settings().seats, 3);
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        written(&path);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let mut reader = Reader::open(&path).unwrap();
        assert_eq!(reader.header, header());
        for shard in 0..2 {
            assert_eq!(reader.shard().unwrap().unwrap().0, shard);
        }
        assert!(reader.shard().unwrap().is_none());
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        written(&path);
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            format!("{:#}", Reader::open(&path).expect_err("it is refused"))
        };
        for length in 0..whole.len() {
            refused(&whole[..length]);
        }
        for bit in 0..whole.len() * 8 {
            let mut altered = whole.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let error = refused(&altered);
            let clear = match bit / 8 {
                0..8 => "not a backup",
                8..12 => "and this build reads 1",
                _ => "its digest does not hold",
            };
            assert!(error.contains(clear), "bit {bit}: {error}");
        }
        assert!(refused(&[&whole[..], &[0]].concat()).contains("digest"));
    }

    /// Its digest holds, as if a faulty release had written it.
    #[test]
    fn fuzz_a_backup() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backup");
        written(&path);
        let mut whole = fs::read(&path).unwrap();
        whole.truncate(whole.len() - DIGEST_BYTES as usize);
        nowserving_fuzz::target!(vec![whole], |bytes| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("backup");
            let digest = blake3::hash(bytes);
            fs::write(&path, [bytes, digest.as_bytes()].concat()).unwrap();
            if let Ok(mut reader) = Reader::open(&path) {
                while let Ok(Some(_)) = reader.shard() {}
            }
        });
    }
}
