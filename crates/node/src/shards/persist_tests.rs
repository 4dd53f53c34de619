#![allow(clippy::unwrap_used)]
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;

use nowserving_log::{LogStats, MemoryLog};
use nowserving_replica::{EntryReader, LogState, ReadFailed};

use super::*;

/// A log that knows who wrote, and whose writes can be long.
#[derive(Default)]
struct Spied {
    log: MemoryLog,
    is_long: AtomicBool,
    /// The numbers of the writes, and the threads that made them.
    written: Mutex<Vec<(u64, ThreadId)>>,
}

impl Spied {
    fn written(&self) -> Vec<(u64, ThreadId)> {
        let written = self.written.lock();
        written.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl EntryReader for Spied {
    fn entries(
        &self,
        shard: u32,
        low: u64,
        high: u64,
        max_bytes: u64,
    ) -> Result<Vec<raft::eraftpb::Entry>, ReadFailed> {
        self.log.entries(shard, low, high, max_bytes)
    }

    fn term(&self, shard: u32, index: u64) -> Result<u64, ReadFailed> {
        self.log.term(shard, index)
    }
}

impl LogStore for Spied {
    fn load(&self, shard: u32) -> Result<LogState, LogError> {
        self.log.load(shard)
    }

    fn write(&self, writes: &[Write]) -> Result<(), LogError> {
        let me = std::thread::current().id();
        let mut written = self.written.lock().unwrap();
        written.extend(writes.iter().map(|it| (it.number, me)));
        Ok(())
    }

    fn write_if_short(&self, writes: &[Write]) -> Result<bool, LogError> {
        let is_short = !self.is_long.load(Ordering::Relaxed);
        if is_short {
            self.write(writes)?;
        }
        Ok(is_short)
    }

    fn compact(&self, _: u32, _: u64) -> Result<(), LogError> {
        Ok(())
    }

    fn purge(&self) -> Result<Vec<u32>, LogError> {
        Ok(Vec::new())
    }

    fn stats(&self) -> LogStats {
        LogStats::default()
    }
}

struct Test {
    log: Arc<Spied>,
    persister: Persister,
    done: mpsc::UnboundedReceiver<Done>,
}

fn start() -> Test {
    let log = Arc::new(Spied::default());
    let (done_in, done) = mpsc::unbounded_channel();
    let persister = Persister::start(log.clone(), done_in).unwrap();
    Test {
        log,
        persister,
        done,
    }
}

/// As if syncs had taken so long.
fn expect(test: &Test, took: Duration) {
    let us = u64::try_from(took.as_micros()).unwrap();
    test.persister.sync_time.0.store(us, Ordering::Relaxed);
}

fn write(number: u64) -> Vec<Write> {
    vec![Write {
        number,
        ..Write::bootstrap(0, &[1])
    }]
}

fn count(input: &Input) -> usize {
    let Input::Persisted { numbers, writes } = input else {
        panic!("{input:?}");
    };
    assert_eq!(numbers.len(), 1);
    *writes
}

impl Test {
    /// What the thread has written, in the order in which it says so.
    fn by_thread(&mut self) -> usize {
        let done = self.done.blocking_recv().unwrap().unwrap();
        let writes = count(&done);
        self.persister.note_written(writes);
        writes
    }
}

#[test]
fn the_thread_writes_until_syncs_are_known_to_be_short() {
    let mut test = start();
    test.persister.write(write(1)).unwrap();
    assert!(!test.persister.has_own());
    assert_eq!(test.by_thread(), 1);

    expect(&test, SHORT_SYNC);
    test.persister.write(write(2)).unwrap();
    test.persister.write(write(3)).unwrap();
    assert!(test.persister.has_own());
    assert_eq!(test.log.written().len(), 1, "only when it is told to");
    let written = test.persister.write_own().unwrap().unwrap();
    assert_eq!(count(&written), 2);
    assert!(!test.persister.has_own());
    let me = std::thread::current().id();
    assert_eq!(test.log.written()[1..], [(2, me), (3, me)]);

    expect(&test, SHORT_SYNC + Duration::from_micros(1));
    test.persister.write(write(4)).unwrap();
    assert!(!test.persister.has_own());
    assert_eq!(test.by_thread(), 1);
}

/// Or the disk would have them in another order.
#[test]
fn the_loop_writes_nothing_while_the_thread_does() {
    let mut test = start();
    expect(&test, SHORT_SYNC * 2);
    test.persister.write(write(1)).unwrap();
    expect(&test, Duration::ZERO);
    test.persister.write(write(2)).unwrap();
    assert!(!test.persister.has_own());
    let mut by_thread = 0;
    while by_thread < 2 {
        by_thread += test.by_thread();
    }
    expect(&test, Duration::ZERO);
    test.persister.write(write(3)).unwrap();
    assert!(test.persister.has_own());
}

#[test]
fn what_takes_long_is_left_to_the_thread_in_order() {
    let mut test = start();
    expect(&test, Duration::ZERO);
    test.log.is_long.store(true, Ordering::Relaxed);
    test.persister.write(write(1)).unwrap();
    test.persister.write(write(2)).unwrap();
    assert!(test.persister.write_own().unwrap().is_none());
    assert!(!test.persister.has_own());
    test.persister.write(write(3)).unwrap();
    let mut by_thread = 0;
    while by_thread < 3 {
        by_thread += test.by_thread();
    }
    let numbers: Vec<_> = test.log.written().iter().map(|it| it.0).collect();
    assert_eq!(numbers, [1, 2, 3]);

    // The loop's own go with the last.
    test.log.is_long.store(false, Ordering::Relaxed);
    expect(&test, Duration::ZERO);
    test.persister.write(write(4)).unwrap();
    assert!(test.persister.has_own());
    test.persister.stop();
    test.persister.join();
    assert_eq!(test.log.written().last().unwrap().0, 4);
}

#[test]
fn one_long_sync_is_remembered_for_some_short_ones() {
    let time = SyncTime(AtomicU64::new(0));
    let [short, long] = [50, 1_000].map(Duration::from_micros);
    time.note(short);
    assert!(time.is_short());
    time.note(long);
    assert!(!time.is_short());
    let mut notes = 0;
    while !time.is_short() {
        time.note(short);
        notes += 1;
    }
    assert!((5..50).contains(&notes), "{notes}");
    // It comes down to what syncs take.
    (0..1_000).for_each(|_| time.note(short));
    assert_eq!(time.0.load(Ordering::Relaxed), 50);
}
