#![allow(clippy::unwrap_used)]
use super::*;

const SHARD: u32 = 3;
const PART_BYTES: usize = CHUNK_BYTES as usize / 2;

/// A node's folder with a snapshot of so many bytes, and its description.
fn with_snapshot(bytes: usize) -> (tempfile::TempDir, Vec<u8>, SnapshotFile) {
    let dir = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..bytes).map(|at| (at / 7) as u8).collect();
    fs::write(dir.path().join(file_name(SHARD)), &content).unwrap();
    let file = SnapshotFile::of(&content).unwrap();
    (dir, content, file)
}

fn request(file: &SnapshotFile, offset: u64) -> SnapshotRequest {
    SnapshotRequest {
        shard: SHARD,
        digest: file.digest.to_vec().into(),
        offset,
        refused: false,
    }
}

fn of(dir: &tempfile::TempDir) -> Transfers {
    Transfers {
        dir: dir.path().to_owned(),
    }
}

fn stored(transfers: &Transfers, job: Job) -> Option<u64> {
    match transfers.carry_out(job) {
        Some(Input::SnapshotStored { offset, .. }) => offset,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_copied_part_by_part_and_goes_on_after_a_restart() {
    let (from, content, file) = with_snapshot(2 * CHUNK_BYTES as usize + 100);
    let to = tempfile::tempdir().unwrap();
    let mut parts = 0;
    loop {
        // Each time as after a restart.
        let receiver = of(&to);
        let offset = stored(&receiver, Job::Open { shard: SHARD, file }).unwrap();
        if offset == file.bytes {
            break;
        }
        let chunk = of(&from)
            .read(&request(&file, offset), PART_BYTES)
            .unwrap()
            .unwrap();
        let after = offset + chunk.data.len() as u64;
        let job = || Job::Store {
            file,
            chunk: chunk.clone(),
        };
        assert_eq!(stored(&receiver, job()), Some(after));
        assert_eq!(stored(&receiver, job()), None, "the same part again");
        parts += 1;
    }
    assert_eq!(parts, 5);
    let whole = to.path().join(incoming_name(SHARD, &file));
    assert_eq!(fs::read(whole).unwrap(), content);
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 1);
}

#[test]
fn another_file_is_begun_anew() {
    let (dir, _, file) = with_snapshot(1_000);
    let transfers = of(&dir);
    assert_eq!(
        stored(&transfers, Job::Open { shard: SHARD, file }),
        Some(0)
    );
    let other = SnapshotFile {
        digest: [9; DIGEST_BYTES],
        ..file
    };
    let open = Job::Open {
        shard: SHARD,
        file: other,
    };
    assert_eq!(stored(&transfers, open), Some(0));
    let kept = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(kept, 2, "the node's own, and one that comes in");
    assert!(
        transfers
            .read(&request(&other, 0), PART_BYTES)
            .unwrap()
            .is_none()
    );
    assert!(
        transfers
            .read(&request(&file, file.bytes), PART_BYTES)
            .unwrap()
            .is_none()
    );
    // More than there is to come: garbage.
    fs::write(dir.path().join(incoming_name(SHARD, &other)), [0; 1_001]).unwrap();
    let open = Job::Open {
        shard: SHARD,
        file: other,
    };
    assert_eq!(stored(&transfers, open), Some(0));
    assert!(transfers.carry_out(Job::Drop { shard: SHARD }).is_none());
    let kept = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(kept, 1, "the node's own");
}
