#![allow(clippy::unwrap_used)]
use nowserving_line::{LineName, Op, Settings};
use nowserving_log::MemoryLog;
use nowserving_replica::Write;
use nowserving_shard::command::{Command, Entry};
use tempfile::TempDir;

use super::*;

/// A log of one shard, and the state that its entries make.
struct World {
    log: Arc<MemoryLog>,
    state: State,
    last: u64,
    dir: TempDir,
}

fn world() -> World {
    let log = Arc::new(MemoryLog::new());
    log.write(&[Write::bootstrap(0, &[1])]).unwrap();
    World {
        log,
        state: State::default(),
        last: BOOTSTRAP_INDEX,
        dir: tempfile::tempdir().unwrap(),
    }
}

fn job(index: u64) -> Make {
    Make {
        shard: 0,
        index,
        members: ConfState::of_voters(&[1]),
    }
}

impl World {
    fn maker(&self) -> Maker {
        Maker {
            dir: self.dir.path().to_owned(),
            cluster: "test".to_owned(),
            log: self.log.clone(),
        }
    }

    fn append(&mut self, op: Op) {
        self.last += 1;
        let entry = Entry {
            format: nowserving_shard::command::FORMAT,
            now_ms: 1_000 + self.last,
            wall_ms: 2_000 + self.last,
            compact_floor: 0,
            commands: vec![Command::Line(op)],
        };
        self.state.apply_entry(self.last, &entry, &mut ());
        let mut raft = raft::eraftpb::Entry::default();
        (raft.term, raft.index) = (3, self.last);
        raft.data = command::encode(&entry).into();
        self.log
            .write(&[Write {
                shard: 0,
                number: self.last,
                entries: vec![raft],
                hard_state: None,
                must_sync: true,
                start: None,
            }])
            .unwrap();
    }

    fn enter(&mut self, keys: std::ops::Range<u32>) {
        let line = LineName::try_from("shop").unwrap();
        for key in keys {
            self.append(Op::Enter {
                line: line.clone(),
                key: Some(key.to_string().as_bytes().into()),
                lane: None,
            });
        }
        // One that is refused, so that a refusal is met again in the log.
        self.append(Op::Enter {
            line,
            key: Some([].into()),
            lane: None,
        });
    }
}

#[test]
fn the_state_made_from_disk_is_the_one_in_memory() {
    let mut world = world();
    let (line, settings) = (LineName::try_from("shop").unwrap(), Settings::new(3, 2_000));
    world.append(Op::Create { line, settings });
    // From nothing, then from the one before it and a log that was cut; over several reads.
    for keys in [0..10, 10..1_500] {
        world.enter(keys);
        world.maker().make(job(world.last)).unwrap();
        world.log.compact(0, world.last).unwrap();
        let Found { meta, state, .. } = read(world.dir.path(), "test", 0).unwrap().unwrap();
        assert_eq!((meta.index, meta.term), (world.last, 3));
        assert_eq!(meta.conf_state.voters, [1]);
        let header = header_of("test", 0, meta);
        let in_memory = snapshot::encode(&header, &world.state);
        assert!(snapshot::encode(&header, &state) == in_memory);
    }
}

#[test]
fn a_log_with_a_gap_makes_none() {
    let mut world = world();
    world.enter(0..10);
    world.log.compact(0, world.last).unwrap();
    assert!(world.maker().make(job(world.last)).is_err());
    assert!(read(world.dir.path(), "test", 0).unwrap().is_none());
}

#[test]
fn a_peers_snapshot_is_taken_if_it_is_the_one_that_was_offered() {
    let (mut peer, own) = (world(), world());
    peer.enter(0..10);
    let (meta, file) = peer.maker().make(job(peer.last)).unwrap();
    let bytes = fs::read(peer.dir.path().join(file_name(0))).unwrap();
    let incoming = own.dir.path().join(transfers::incoming_name(0, &file));
    let install = |bytes: &[u8], meta: &SnapshotMeta| {
        fs::write(&incoming, bytes).unwrap();
        match own.maker().install(0, meta, file).unwrap() {
            Input::SnapshotReceived { state, .. } => state.map(drop),
            other => panic!("{other:?}"),
        }
    };
    let mut altered = bytes.clone();
    altered[20] ^= 1;
    let refused = Err(NotInstalled::Refused);
    assert_eq!(install(&altered, &meta), refused);
    assert_eq!(install(&bytes[..bytes.len() - 1], &meta), refused);
    let older = SnapshotMeta {
        index: meta.index - 1,
        ..meta.clone()
    };
    assert_eq!(install(&bytes, &older), refused);
    assert!(read(own.dir.path(), "test", 0).unwrap().is_none());
    assert!(!incoming.exists(), "another try begins anew");
    assert_eq!(install(&bytes, &meta), Ok(()));
    let found = read(own.dir.path(), "test", 0).unwrap().unwrap();
    assert_eq!((&found.meta, found.file), (&meta, file));
    // One that this node was about to make is there already.
    assert_eq!(own.maker().make(job(meta.index)).unwrap(), (meta, file));
}
