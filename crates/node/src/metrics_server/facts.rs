//! The metrics of lines, lanes and labels: written at each scrape from the newest facts that the engine has gathered.
//!
//! The loop's thread only puts a shard's facts in their place. A scrape sorts and sums, which takes some milliseconds for
//! 10,000 lines, on a thread of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nowserving_engine::facts::{Gathered, ShardFacts};

use super::counted::Counted;
use super::shown::Shown;
use super::text::Text;

/// What has no metrics of its own. No line or lane has this name.
pub const OTHERS: &str = "(others)";

/// Written by the loops, read by the HTTP server.
#[derive(Debug, Default)]
pub struct Facts {
    wanted: AtomicBool,
    /// The newest, of the shards that this node leads.
    shards: Mutex<Shards>,
    /// By peer, as each loop has found it.
    peer_lag: Mutex<BTreeMap<u32, BTreeMap<u64, u64>>>,
    counted: Mutex<Counted>,
}

pub type Shards = BTreeMap<u32, Arc<ShardFacts>>;

impl Facts {
    /// Somebody shows them.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    pub fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Takes what the engine of the loop with this index has found.
    pub fn take(&self, index: u32, gathered: Gathered) {
        // What they replace is dropped after the lock.
        match gathered {
            Gathered::Shard(shard, Some(facts)) => {
                let facts = Arc::new(facts);
                let old = lock(&self.shards).insert(shard, facts);
                drop(old);
            }
            Gathered::Shard(shard, None) => {
                let old = lock(&self.shards).remove(&shard);
                drop(old);
            }
            Gathered::PeerLag(lag) => drop(lock(&self.peer_lag).insert(index, lag)),
        }
    }

    pub fn write(&self, text: &mut Text) {
        let mut family = text.family("nowserving_peer_lag_entries");
        let mut most = BTreeMap::new();
        for (peer, lag) in lock(&self.peer_lag).values().flatten() {
            let known: &mut u64 = most.entry(*peer).or_default();
            *known = (*lag).max(*known);
        }
        for (peer, lag) in most {
            family.sample(&[("peer", peer.to_string().as_str())], lag);
        }
        // Locked first: of two scrapes at once, the later one must not count older facts than the other.
        let mut counted = lock(&self.counted);
        let shards = lock(&self.shards).clone();
        let shown = Shown::of(&shards);
        let counts = counted.count(&shards, &shown);
        drop(counted);
        shown.write(text);
        counts.write(text);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
