//! The cluster's keys that this node uses. The operator puts them into the key file, which the node looks at every few
//! seconds; the cluster decides which of them is in force. A key never travels over NATS.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use nowserving_engine::Input;
use nowserving_front::keys::InUse;
use nowserving_protocol::keys::{KeyPrint, KeyRing, LacksKey, LoadedKeys, Rotation};
use tokio::sync::watch;

use crate::clock::now;
use crate::key_file::{self, KeyFileError};
use crate::nats::peers::PeerList;
use crate::shards::to_engine::ToEngine;

/// The key file is looked at this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// The keys in use, shared by everything that signs, seals and checks.
#[derive(Debug, Clone)]
pub struct Keys(Arc<RwLock<State>>);

#[derive(Debug)]
struct State {
    loaded: LoadedKeys,
    rotation: Option<Rotation>,
    in_use: Arc<InUse>,
}

impl Keys {
    /// The keys of a node that starts and knows of this rotation.
    ///
    /// # Errors
    /// The key in force is not among them. If all of them are newer than that one, the cluster has rotated its key
    /// while the node was away.
    pub fn new(loaded: LoadedKeys, rotation: Option<Rotation>) -> Result<Keys, LacksKey> {
        let rotation = not_outdated(&loaded, rotation);
        let ring = KeyRing::new(&loaded, rotation)?;
        let in_use = Arc::new(InUse::new(ring, now().wall_ms));
        Ok(Keys(Arc::new(RwLock::new(State {
            loaded,
            rotation,
            in_use,
        }))))
    }

    /// What to sign, seal and check with now.
    pub fn in_use(&self) -> Arc<InUse> {
        let in_use = self.read(|state| state.in_use.clone());
        let now_ms = now().wall_ms;
        if in_use.is_current(now_ms) {
            return in_use;
        }
        let fresh = Arc::new(InUse::new(in_use.ring.clone(), now_ms));
        self.write(|state| {
            // Otherwise it has changed meanwhile.
            if Arc::ptr_eq(&state.in_use, &in_use) {
                state.in_use = fresh;
            }
            state.in_use.clone()
        })
    }

    /// The keys in the key file.
    pub fn prints(&self) -> Vec<KeyPrint> {
        self.read(|state| state.loaded.prints())
    }

    /// Takes what is in the key file now. Returns true if that is something else.
    ///
    /// # Errors
    /// The key in force would be another one: only the cluster decides that. Nothing has changed.
    fn load(&self, loaded: LoadedKeys) -> Result<bool, LacksKey> {
        self.write(|state| {
            if state.loaded == loaded {
                return Ok(false);
            }
            let ring = KeyRing::new(&loaded, state.rotation)?;
            let current = state.in_use.ring.current();
            if ring.current() != current {
                return Err(LacksKey(current.print()));
            }
            state.in_use = Arc::new(InUse::new(ring, now().wall_ms));
            state.loaded = loaded;
            Ok(true)
        })
    }

    /// Takes note of the cluster's newest rotation. Returns true if it was not known.
    ///
    /// # Errors
    /// The key in force is not loaded. The node goes on with the keys that it has.
    fn rotate(&self, rotation: Option<Rotation>) -> Result<bool, LacksKey> {
        self.write(|state| {
            let rotation = not_outdated(&state.loaded, rotation);
            if rotation.is_none() || state.rotation == rotation {
                return Ok(false);
            }
            let ring = KeyRing::new(&state.loaded, rotation)?;
            state.rotation = rotation;
            state.in_use = Arc::new(InUse::new(ring, now().wall_ms));
            Ok(true)
        })
    }

    fn read<T>(&self, with: impl FnOnce(&State) -> T) -> T {
        with(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, with: impl FnOnce(&mut State) -> T) -> T {
        with(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// `None` also if all loaded keys are newer than the one of this rotation.
fn not_outdated(loaded: &LoadedKeys, rotation: Option<Rotation>) -> Option<Rotation> {
    rotation.filter(|it| loaded.iter().any(|key| key.id() <= it.current.id))
}

/// Keeps the keys as the key file has them and as the cluster decides, until the loop ends, and tells the engine which
/// ones are loaded. On a change of `reload` it says what the file has, also if that is nothing new.
///
/// # Errors
/// The thread that reads files is gone.
pub async fn watch(
    keys: Keys,
    path: PathBuf,
    mut list: watch::Receiver<PeerList>,
    engine: ToEngine,
    mut reload: watch::Receiver<()>,
) -> anyhow::Result<()> {
    // An error: the node ends.
    let _ = engine.send(Input::Keys(keys.prints()));
    let mut complained = String::new();
    let mut ticks = tokio::time::interval(LOOK_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let in_force = keys.in_use().ring.current().id();
        metrics::gauge!("nowserving_key_in_force").set(f64::from(in_force));
        let (mut reads, mut asked) = (true, false);
        tokio::select! {
            changed = list.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                reads = false;
            }
            _ = ticks.tick() => {}
            Ok(()) = reload.changed() => asked = true,
        }
        let read = match reads {
            true => {
                let path = path.clone();
                let loaded = tokio::task::spawn_blocking(move || key_file::load(&path)).await?;
                loaded
                    .map_err(|error| error.to_string())
                    .and_then(|loaded| look(&keys, loaded, &engine))
            }
            false => Ok(()),
        };
        let rotation = list.borrow_and_update().members.rotation;
        // A key that was lacking may be there now.
        let followed = read.and_then(|()| follow(&keys, rotation));
        let complaint = followed.err().unwrap_or_default();
        let key_file = path.display();
        if !complaint.is_empty() && (asked || complaint != complained) {
            tracing::error!(%key_file, "{complaint}; the node goes on with the keys that it has");
        } else if asked {
            tracing::info!(%key_file, keys = named(&keys.prints()), "the key file was read again");
        }
        complained = complaint;
    }
}

fn look(keys: &Keys, loaded: LoadedKeys, engine: &ToEngine) -> Result<(), String> {
    if keys.load(loaded).map_err(|error| error.to_string())? {
        let prints = keys.prints();
        tracing::info!(keys = named(&prints), "the key file has changed");
        // An error: the node ends.
        let _ = engine.send(Input::Keys(prints));
    }
    Ok(())
}

fn follow(keys: &Keys, rotation: Option<Rotation>) -> Result<(), String> {
    if keys.rotate(rotation).map_err(|error| error.to_string())?
        && let Some(rotation) = rotation
    {
        let (current, old) = (rotation.current.to_string(), rotation.old.to_string());
        let until_ms = rotation.old_until_ms;
        tracing::info!(current, old, until_ms, "the key was rotated");
    }
    Ok(())
}

fn named(prints: &[KeyPrint]) -> String {
    let prints = prints.iter().map(ToString::to_string);
    prints.collect::<Vec<_>>().join(", ")
}

/// The keys of a node that starts, as it has read them from this file.
///
/// # Errors
/// The file lacks the key in force.
pub fn at_start(
    path: &Path,
    loaded: LoadedKeys,
    rotation: Option<Rotation>,
) -> Result<Keys, KeyFileError> {
    Keys::new(loaded, rotation).map_err(|error| KeyFileError::Lacks {
        path: path.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use nowserving_line::{LineName, TokenRef};
    use nowserving_protocol::keys::ClusterKey;
    use nowserving_protocol::ticket::Ticket;

    use super::*;

    fn first() -> LoadedKeys {
        ClusterKey::new([1; 32]).into()
    }

    fn both() -> LoadedKeys {
        first().with_next([2; 32]).unwrap()
    }

    fn only_second() -> LoadedKeys {
        let text = both().to_text();
        let lines: Vec<&str> = text.lines().collect();
        let text = format!("{}\n{}\n", lines[0], lines[2]);
        LoadedKeys::from_text(text.as_bytes()).unwrap()
    }

    fn rotation(old_until_ms: u64) -> Option<Rotation> {
        let prints = both().prints();
        Some(Rotation {
            current: prints[1],
            old: prints[0],
            old_until_ms,
        })
    }

    fn ticket(keys: &Keys) -> String {
        keys.in_use().tickets.sign(&Ticket {
            line: LineName::try_from("shop").unwrap(),
            at: TokenRef {
                incarnation: 1,
                lane: 0,
                token: 2,
            },
        })
    }

    fn accepts(keys: &Keys, ticket: &str) -> bool {
        keys.in_use().tickets.verify(ticket).is_ok()
    }

    #[test]
    fn old_tickets_are_good_until_the_stated_time_and_new_ones_everywhere_at_once() {
        let [a, b] = [first(), first()].map(|it| Keys::new(it, None).unwrap());
        let old = ticket(&a);
        for keys in [&a, &b] {
            assert_eq!(keys.load(both()), Ok(true));
            assert_eq!(keys.load(both()), Ok(false));
            assert_eq!(ticket(keys), old, "signed as before");
        }
        let later = now().wall_ms + 3_600_000;
        assert_eq!(a.rotate(rotation(later)), Ok(true));
        assert_eq!(a.rotate(rotation(later)), Ok(false));
        let new = ticket(&a);
        assert!(new != old && accepts(&a, &old) && accepts(&a, &new));
        assert!(accepts(&b, &new), "also before it hears of the rotation");
        assert_eq!(a.rotate(rotation(now().wall_ms + 50)), Ok(true));
        while now().wall_ms <= rotation_end(&a) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!accepts(&a, &old) && accepts(&a, &new));
        assert!(accepts(&b, &old));
    }

    fn rotation_end(keys: &Keys) -> u64 {
        keys.in_use().ring.other_until_ms().unwrap()
    }

    #[test]
    fn the_key_in_force_never_goes_by_the_file() {
        let keys = Keys::new(both(), None).unwrap();
        let old = ticket(&keys);
        assert!(keys.load(only_second()).is_err());
        assert_eq!(ticket(&keys), old);
        assert_eq!(keys.load(first()), Ok(true), "the next one was withdrawn");
        assert!(keys.rotate(rotation(u64::MAX)).is_err());
        assert_eq!(keys.load(both()), Ok(true));
        assert_eq!(keys.rotate(rotation(u64::MAX)), Ok(true));
        assert_eq!(keys.load(only_second()), Ok(true));
        assert!(!accepts(&keys, &old), "its line is gone");
    }

    #[test]
    fn a_node_starts_only_with_the_key_in_force_or_with_newer_ones() {
        let lacks = Keys::new(first(), rotation(0)).unwrap_err();
        assert!(lacks.to_string().contains("key 2"), "{lacks}");
        for (loaded, rotation) in [
            (both(), rotation(0)),
            (only_second(), rotation(0)),
            // It was away when the key was rotated.
            (only_second(), None),
        ] {
            let keys = Keys::new(loaded, rotation).unwrap();
            assert_eq!(keys.in_use().ring.current().id(), 2);
        }
        let earlier = rotation(0).map(|it| Rotation {
            current: it.old,
            ..it
        });
        assert!(Keys::new(only_second(), earlier).is_ok());
    }
}
