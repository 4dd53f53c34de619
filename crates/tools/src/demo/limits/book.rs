//! What the clients saw: counts by limit and time, and what the killed leader knew that the next one did not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nowserving_client::limits::CheckReply;

use super::plan::{SHOW, Shown};
use super::verdict::{Hit, Kill};

/// Of a column on the screen.
pub const COLUMN: Duration = Duration::from_millis(250);
/// A leaking bucket lets requests go on later; nothing is drawn behind that.
const COLUMNS_MAX: usize = 2 * (SHOW.as_millis() / COLUMN.as_millis()) as usize;
/// Of one limit, more than are asked for: each is remembered for the verdict.
const HITS_MAX: usize = 16_384;
/// Answers with counts that are remembered: those of some seconds.
const ACKNOWLEDGED_MAX: usize = 4_096;

/// The answers of one limit.
#[derive(Debug, Clone, Default)]
pub struct Track {
    pub asked: u64,
    pub allowed: u64,
    pub refused: u64,
    /// Those that were allowed, in the order of their answers.
    pub hits: Vec<Hit>,
    /// How many went on in each column.
    pub went_on: Vec<u32>,
    /// How many were refused in each.
    pub turned_back: Vec<u32>,
}

/// Shared by all clients.
#[derive(Debug)]
pub struct Book {
    started: Instant,
    pages: Mutex<Pages>,
}

/// What the book says at one moment.
#[derive(Debug, Clone)]
pub struct Pages {
    /// In the order of [`Shown::ALL`].
    pub tracks: Vec<Track>,
    /// Errors by message.
    pub errors: Vec<String>,
    /// Hits that the leader had counted by its own answers, and when each answer came; before the kill.
    acknowledged: Vec<(u64, Duration)>,
    killed_at: Option<Duration>,
    /// The least count that an answer after the kill told.
    least_after: Option<u64>,
    /// From the kill to the first answer to a request that was sent after it.
    pub failover: Option<Duration>,
}

/// The hits that the next leader did not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    pub hits: u64,
    /// All of them were answered within this time before the kill.
    pub within: Duration,
}

impl Book {
    pub fn new() -> Book {
        Book {
            started: Instant::now(),
            pages: Mutex::new(Pages {
                tracks: vec![Track::default(); Shown::ALL.len()],
                errors: Vec::new(),
                acknowledged: Vec::new(),
                killed_at: None,
                least_after: None,
                failover: None,
            }),
        }
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Notes an answer to a request that was sent at `asked_at`.
    pub fn answered(&self, nth: usize, asked_at: Duration, reply: &CheckReply) {
        let mut pages = self.lock();
        // Under the lock, so that answers and the kill are in order.
        let at = self.now();
        pages.answered(nth, asked_at, at, reply);
    }

    pub fn failed(&self, nth: usize, error: String) {
        let mut pages = self.lock();
        pages.tracks[nth].asked += 1;
        pages.errors.push(error);
    }

    /// Kills, and notes when. No answer is noted meanwhile.
    ///
    /// # Errors
    /// That of `kill`.
    pub fn kill(&self, kill: impl FnOnce() -> anyhow::Result<Instant>) -> anyhow::Result<()> {
        let mut pages = self.lock();
        let at = kill()?;
        pages.killed_at = Some(at.saturating_duration_since(self.started));
        Ok(())
    }

    pub fn read(&self) -> Pages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn answered(&mut self, nth: usize, asked_at: Duration, at: Duration, reply: &CheckReply) {
        let track = &mut self.tracks[nth];
        track.asked += 1;
        match reply.allowed {
            true => {
                track.allowed += 1;
                let delay = Duration::from_millis(reply.delay_ms.unwrap_or(0));
                count(&mut track.went_on, at + delay);
                if track.hits.len() < HITS_MAX {
                    track.hits.push(Hit {
                        asked_at,
                        answered_at: at,
                        delay,
                    });
                }
            }
            false => {
                track.refused += 1;
                count(&mut track.turned_back, at);
            }
        }
        if let Some(killed_at) = self.killed_at
            && asked_at >= killed_at
        {
            self.failover.get_or_insert(at - killed_at);
        }
        let counted = reply.limit.zip(reply.remaining);
        if let Some((limit, remaining)) = counted.filter(|_| Shown::ALL[nth] == Shown::Counted) {
            self.counted(u64::from(limit - remaining), at);
        }
    }

    /// The leader has so many hits, the one that was answered included.
    fn counted(&mut self, hits: u64, at: Duration) {
        if self.killed_at.is_some() {
            let least = self.least_after.get_or_insert(hits);
            *least = hits.min(*least);
            return;
        }
        if self.acknowledged.len() >= ACKNOWLEDGED_MAX {
            self.acknowledged.drain(..ACKNOWLEDGED_MAX / 2);
        }
        self.acknowledged.push((hits, at));
    }

    /// `None` before the kill.
    pub fn kill(&self) -> Option<Kill> {
        let forgotten = self.forgotten();
        self.killed_at.map(|at| Kill { at, forgotten })
    }

    /// `None` before the next leader has answered.
    pub fn forgotten(&self) -> Option<Forgotten> {
        let (killed_at, least_after) = (self.killed_at?, self.least_after?);
        let most_before = self.acknowledged.iter().map(|(hits, _)| *hits).max()?;
        let lost = self
            .acknowledged
            .iter()
            .filter(|(hits, _)| *hits >= least_after);
        let since = lost.map(|(_, at)| *at).min().unwrap_or(killed_at);
        Some(Forgotten {
            hits: (most_before + 1).saturating_sub(least_after),
            within: killed_at.saturating_sub(since),
        })
    }
}

fn count(columns: &mut Vec<u32>, at: Duration) {
    let column = (at.as_millis() / COLUMN.as_millis()) as usize;
    if column < COLUMNS_MAX {
        columns.resize(columns.len().max(column + 1), 0);
        columns[column] += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const COUNTED: usize = Shown::ALL.len() - 1;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn counts(hits: u32) -> CheckReply {
        CheckReply {
            allowed: true,
            limit: Some(1_000),
            remaining: Some(1_000 - hits),
            ..CheckReply::default()
        }
    }

    #[test]
    fn the_next_leader_forgot_what_its_first_count_lacks() {
        let mut pages = Book::new().read();
        for hits in 1..=100 {
            let at = ms(u64::from(hits) * 10);
            pages.answered(COUNTED, at, at, &counts(hits));
        }
        assert_eq!(pages.forgotten(), None);
        pages.killed_at = Some(ms(1_005));
        // Sent before the kill, answered by the old leader.
        pages.answered(COUNTED, ms(1_000), ms(1_006), &counts(101));
        assert_eq!(pages.failover, None);
        pages.answered(COUNTED, ms(1_010), ms(1_200), &counts(91));
        pages.answered(COUNTED, ms(1_010), ms(1_201), &counts(90));
        let forgotten = pages.forgotten().unwrap();
        assert_eq!((forgotten.hits, forgotten.within), (11, ms(105)));
        assert_eq!(pages.failover, Some(ms(195)));
    }

    #[test]
    fn a_leader_that_knows_all_has_forgotten_nothing() {
        let mut pages = Book::new().read();
        pages.answered(COUNTED, ms(1), ms(2), &counts(7));
        pages.killed_at = Some(ms(3));
        pages.answered(COUNTED, ms(4), ms(5), &counts(9));
        let forgotten = pages.forgotten().unwrap();
        assert_eq!((forgotten.hits, forgotten.within), (0, Duration::ZERO));
    }

    #[test]
    fn a_delayed_request_goes_on_later() {
        let mut pages = Book::new().read();
        let delayed = CheckReply {
            allowed: true,
            delay_ms: Some(600),
            ..CheckReply::default()
        };
        pages.answered(0, ms(0), ms(1), &delayed);
        pages.answered(0, ms(0), ms(1), &CheckReply::default());
        let track = &pages.tracks[0];
        assert_eq!(
            (&track.went_on[..], &track.turned_back[..]),
            (&[0, 0, 1][..], &[1][..])
        );
        assert_eq!((track.asked, track.allowed, track.refused), (2, 1, 1));
    }
}
