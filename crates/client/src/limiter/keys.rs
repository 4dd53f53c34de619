//! What a process remembers of lists of descriptors: at most so many, of any length.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use nowserving_protocol::limits::Descriptor;
use tokio::time::Instant;

/// No more keys than this are remembered.
pub(super) const KEYS_MAX: usize = 16_384;
/// When there is no room, those that are no longer in use are looked for at most so often: looking at all of them takes
/// about a millisecond.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A list of descriptors: a hash, because the values of entries may come from clients and be long. Its seed is the
/// process's own, so that no client can look for two lists with the same key.
pub(super) type Key = [u64; 2];

static SEEDS: LazyLock<[RandomState; 2]> =
    LazyLock::new(|| [RandomState::new(), RandomState::new()]);

/// Different lists have different bytes.
pub(super) fn key_of(descriptors: &[Descriptor]) -> Key {
    SEEDS.each_ref().map(|seed| {
        let mut hasher = seed.build_hasher();
        for descriptor in descriptors {
            hasher.write_usize(descriptor.len());
            for text in descriptor.iter().flat_map(|it| [&it.key, &it.value]) {
                hasher.write_usize(text.len());
                hasher.write(text.as_bytes());
            }
        }
        hasher.finish()
    })
}

/// A bounded map.
#[derive(Debug)]
pub(super) struct Keyed<V> {
    values: HashMap<Key, V>,
    sweep_at: Option<Instant>,
}

impl<V> Default for Keyed<V> {
    fn default() -> Keyed<V> {
        Keyed {
            values: HashMap::new(),
            sweep_at: None,
        }
    }
}

impl<V> Keyed<V> {
    pub(super) fn get(&self, key: &Key) -> Option<&V> {
        self.values.get(key)
    }

    pub(super) fn insert(&mut self, key: Key, value: V) {
        self.values.insert(key, value);
    }

    /// Whether the key is known, or there is room for it.
    pub(super) fn has_room(
        &mut self,
        key: &Key,
        now: Instant,
        mut is_in_use: impl FnMut(&V) -> bool,
    ) -> bool {
        if self.values.len() < KEYS_MAX || self.values.contains_key(key) {
            return true;
        }
        if self.sweep_at.is_none_or(|at| at <= now) {
            self.sweep_at = Some(now + SWEEP_EVERY);
            self.values.retain(|_, value| is_in_use(value));
        }
        self.values.len() < KEYS_MAX
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use nowserving_protocol::limits::Entry;

    use super::*;

    #[test]
    fn keys_of_different_descriptors_differ() {
        let lists = [
            vec![],
            vec![vec![Entry::new("a", "b")]],
            vec![vec![Entry::new("ab", "")]],
            vec![vec![Entry::new("a", "")], vec![Entry::new("b", "")]],
            vec![vec![Entry::new("a", ""), Entry::new("b", "")]],
        ];
        let keys: BTreeSet<_> = lists.iter().map(|it| key_of(it)).collect();
        assert_eq!(keys.len(), lists.len());
    }

    /// With all keys in use, a check of another one does not look at each of them.
    #[tokio::test(start_paused = true)]
    async fn a_full_map_is_swept_once_a_second() {
        let mut keyed = Keyed::default();
        for nth in 0..KEYS_MAX as u64 {
            assert!(keyed.has_room(&[nth, 0], Instant::now(), |_| true));
            keyed.insert([nth, 0], nth);
        }
        let mut looked_at = 0;
        for nth in 0..1_000 {
            let has_room = keyed.has_room(&[nth, 1], Instant::now(), |_| {
                looked_at += 1;
                true
            });
            assert!(!has_room);
            assert!(keyed.has_room(&[nth, 0], Instant::now(), |_| true), "known");
        }
        assert_eq!(looked_at, KEYS_MAX);
        tokio::time::advance(SWEEP_EVERY).await;
        assert!(keyed.has_room(&[0, 1], Instant::now(), |nth| *nth != 7));
        assert_eq!((keyed.len(), keyed.get(&[7, 0])), (KEYS_MAX - 1, None));
    }
}
