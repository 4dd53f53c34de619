//! How the opener of a link learns that it is broken, if nothing closes it: the acceptor says now and then how many bytes
//! it has taken. Bytes, and not frames: a large frame on a slow line makes progress, too.

use nowserving_shard::clock::Micros;

use super::LinkError;

/// How long the nodes of a cluster wait for each other on a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Without a word of progress for so long a link is broken.
    pub silent_us: Micros,
    /// An acceptor says its word this often at most.
    pub word_us: Micros,
}

impl Patience {
    /// With this election timeout. Frames take the way over NATS long before a follower misses its leader.
    #[must_use]
    pub fn of(election_ms: u64) -> Patience {
        let silent_us = (election_ms * 400).min(SILENT_US_MAX);
        Patience {
            silent_us,
            word_us: silent_us / 6,
        }
    }
}

const SILENT_US_MAX: Micros = 1_000_000;
/// The bytes of such a word: a count, the lowest byte first.
pub const WORD_BYTES: usize = 8;

/// What the opener has sent, and what of that was taken.
#[derive(Debug)]
pub struct Sent {
    patience: Patience,
    sent: u64,
    taken: u64,
    /// Since when nothing more was taken, while something is under way.
    waits_since: Option<Micros>,
}

impl Sent {
    /// Nothing yet.
    #[must_use]
    pub fn new(patience: Patience) -> Sent {
        Sent {
            patience,
            sent: 0,
            taken: 0,
            waits_since: None,
        }
    }

    /// So many bytes were handed to the connection.
    pub fn add(&mut self, now: Micros, bytes: usize) {
        self.sent += bytes as u64;
        self.waits_since.get_or_insert(now);
    }

    /// The acceptor's word.
    ///
    /// # Errors
    /// It cannot be right.
    pub fn on_word(&mut self, now: Micros, taken: u64) -> Result<(), LinkError> {
        if taken > self.sent {
            return Err(LinkError::TakenMore);
        }
        if taken > self.taken {
            self.taken = taken;
            self.waits_since = Some(now);
        }
        if self.taken == self.sent {
            self.waits_since = None;
        }
        Ok(())
    }

    /// When the link is broken unless there is a word before.
    #[must_use]
    pub fn broken_at(&self) -> Option<Micros> {
        self.waits_since
            .map(|since| since + self.patience.silent_us)
    }
}

/// What the acceptor has taken, and what it has said of that.
#[derive(Debug)]
pub struct Taken {
    patience: Patience,
    taken: u64,
    said: u64,
    says_at: Micros,
}

impl Taken {
    /// Nothing yet.
    #[must_use]
    pub fn new(patience: Patience) -> Taken {
        Taken {
            patience,
            taken: 0,
            said: 0,
            says_at: 0,
        }
    }

    /// So many bytes more were taken.
    pub fn add(&mut self, bytes: usize) {
        self.taken += bytes as u64;
    }

    /// When the next word is due, if there is anything to say.
    #[must_use]
    pub fn next_due(&self) -> Option<Micros> {
        (self.taken > self.said).then_some(self.says_at)
    }

    /// The word to send now, if it is due.
    pub fn word(&mut self, now: Micros) -> Option<[u8; WORD_BYTES]> {
        if self.next_due().is_none_or(|due| now < due) {
            return None;
        }
        self.said = self.taken;
        self.says_at = now + self.patience.word_us;
        Some(self.taken.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PATIENCE: Patience = Patience {
        silent_us: 300_000,
        word_us: 50_000,
    };

    #[test]
    fn patience_follows_the_election_timeout() {
        assert_eq!(Patience::of(750), PATIENCE);
        for election_ms in [40, 750, 60_000] {
            let Patience { silent_us, word_us } = Patience::of(election_ms);
            assert!(2 * silent_us < election_ms * 1_000 && 4 * word_us < silent_us);
        }
    }

    #[test]
    fn a_link_is_broken_only_while_something_under_way_makes_no_progress() {
        let mut sent = Sent::new(PATIENCE);
        assert_eq!(sent.broken_at(), None);
        sent.add(1_000, 10);
        sent.add(2_000, 10);
        assert_eq!(sent.broken_at(), Some(1_000 + PATIENCE.silent_us));
        sent.on_word(3_000, 15).unwrap();
        assert_eq!(sent.broken_at(), Some(3_000 + PATIENCE.silent_us));
        // Nothing new in it.
        sent.on_word(4_000, 15).unwrap();
        assert_eq!(sent.broken_at(), Some(3_000 + PATIENCE.silent_us));
        sent.on_word(5_000, 20).unwrap();
        assert_eq!(sent.broken_at(), None);
        sent.add(6_000, 1);
        assert_eq!(sent.broken_at(), Some(6_000 + PATIENCE.silent_us));
        assert_eq!(sent.on_word(7_000, 22), Err(LinkError::TakenMore));
    }

    #[test]
    fn a_word_is_said_at_once_then_now_and_then_and_the_last_one_says_all() {
        let mut taken = Taken::new(PATIENCE);
        assert_eq!((taken.next_due(), taken.word(5)), (None, None));
        taken.add(7);
        assert_eq!(taken.word(5), Some(7_u64.to_le_bytes()));
        taken.add(1);
        assert_eq!(taken.next_due(), Some(5 + PATIENCE.word_us));
        assert_eq!(taken.word(6), None);
        taken.add(2);
        let due = 5 + PATIENCE.word_us;
        assert_eq!(taken.word(due), Some(10_u64.to_le_bytes()));
        assert_eq!(taken.next_due(), None);
    }

    /// Whatever is said and lost in which order: a link whose acceptor takes all is never broken.
    #[test]
    fn a_link_that_works_is_never_taken_for_broken() {
        let (mut sent, mut taken) = (Sent::new(PATIENCE), Taken::new(PATIENCE));
        for step in 0..1_000_u64 {
            let now = step * 7_000;
            if step % 97 < 40 {
                sent.add(now, 100);
                taken.add(100);
            }
            if let Some(word) = taken.word(now) {
                sent.on_word(now, u64::from_le_bytes(word)).unwrap();
            }
            assert!(sent.broken_at().is_none_or(|at| now < at));
        }
    }
}
