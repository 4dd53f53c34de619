//! A line's board as a stream.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt};
use nowserving_protocol::event::BoardEvent;
use nowserving_protocol::user::BoardReply;
use serde::Serialize;

use crate::error::Result;
use crate::feed::{FeedEvent, Watcher};
use crate::line::Line;
use crate::place::is_gap;

/// After a transient error the line is asked again after this long.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// One board of a watched line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BoardUpdate {
    /// The whole board; it is complete after a gap too. Its lanes list `holes`, the tokens that stopped
    /// waiting since the previous update, except where these are not known: on the first update, after a
    /// gap, and if the cluster lists holes from before the previous update among them.
    #[serde(flatten)]
    pub board: BoardReply,
    /// Boards between the previous update and this one were missed: a caller that counts holes must
    /// ask `status` again. Never set on the first update.
    pub gap: bool,
}

/// The boards of a line, each newer than the previous one; see [`Line::watch`].
///
/// The stream yields transient errors and continues. It ends after any other error, such as the
/// deletion of the line (`line_not_found`). Dropping it unsubscribes.
pub type BoardStream = BoxStream<'static, Result<BoardUpdate>>;

/// The stream behind [`Line::watch`].
pub(crate) fn boards(line: Line) -> BoardStream {
    let watch = Watch {
        line,
        watcher: None,
        sequence: Sequence::default(),
        ask: true,
        failed: false,
        over: false,
    };
    stream::unfold(watch, Watch::step).boxed()
}

/// Decides whether a board is newer than the last one, and whether boards between them are missing.
#[derive(Debug, Default)]
struct Sequence {
    seen: Option<u64>,
}

impl Sequence {
    /// `None` if the board is not newer than the last one; else whether boards before it are missing.
    fn take(&mut self, version: u64, prev_version: u64, whole: bool) -> Option<Gap> {
        let gap = match self.seen {
            None => Gap::First,
            Some(seen) if version <= seen => return None,
            Some(seen) if is_gap(seen, prev_version) => Gap::Yes,
            Some(seen) if whole || prev_version < seen => Gap::Overlap,
            Some(_) => Gap::No,
        };
        self.seen = Some(version);
        Some(gap)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gap {
    /// This is the first board.
    First,
    Yes,
    /// Nothing is missing, and holes from before the last board are listed again.
    Overlap,
    No,
}

struct Watch {
    line: Line,
    /// Made on the first poll: a stream that nobody polls costs nothing.
    watcher: Option<Watcher>,
    sequence: Sequence,
    /// The next board must be asked for.
    ask: bool,
    /// The last item was an error.
    failed: bool,
    over: bool,
}

impl Watch {
    async fn step(mut self) -> Option<(Result<BoardUpdate>, Watch)> {
        if self.over {
            return None;
        }
        let result = self.next().await;
        self.failed = result.is_err();
        self.over = matches!(&result, Err(error) if !error.is_transient());
        Some((result, self))
    }

    async fn next(&mut self) -> Result<BoardUpdate> {
        if self.failed {
            tokio::time::sleep(RETRY_DELAY).await;
        }
        loop {
            let watcher = match &mut self.watcher {
                Some(watcher) => watcher,
                none => none.insert(self.line.boards().await?),
            };
            if self.ask {
                let board = self.line.info().await?.board;
                self.ask = false;
                if let Some(gap) = self.sequence.take(board.version, board.version, false) {
                    return Ok(BoardUpdate {
                        board,
                        gap: gap == Gap::Yes,
                    });
                }
            }
            match watcher.next().await? {
                FeedEvent::Resync => self.ask = true,
                FeedEvent::Board(event) => {
                    let (version, prev_version) = (event.board.version, event.prev_version);
                    if let Some(gap) = self.sequence.take(version, prev_version, event.whole) {
                        return Ok(update(&event, gap));
                    }
                }
            }
        }
    }
}

fn update(event: &BoardEvent, gap: Gap) -> BoardUpdate {
    let mut board = event.board.clone();
    if gap != Gap::No {
        board.lanes.iter_mut().for_each(|lane| lane.holes = None);
    }
    BoardUpdate {
        board,
        gap: gap == Gap::Yes,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn duplicates_are_dropped_and_gaps_are_reported() {
        let mut sequence = Sequence::default();
        let mut take = |version, prev_version| sequence.take(version, prev_version, false);
        assert_eq!(take(10, 10), Some(Gap::First));
        assert_eq!(take(10, 9), None);
        assert_eq!(take(9, 8), None);
        assert_eq!(take(12, 10), Some(Gap::No));
        // Builds on an older board: part of it is known, nothing is missing.
        assert_eq!(take(13, 11), Some(Gap::Overlap));
        assert_eq!(take(20, 15), Some(Gap::Yes));
        assert_eq!(take(21, 20), Some(Gap::No));
        // The sender does not know which board was published before.
        assert_eq!(take(22, 0), Some(Gap::Yes));
        // All holes that there are.
        assert_eq!(sequence.take(23, 22, true), Some(Gap::Overlap));
        assert_eq!(sequence.take(26, 25, true), Some(Gap::Yes));
        let mut sequence = Sequence { seen: Some(21) };
        // Asked for after a reconnect: the same board is not new, a newer one has a gap before it.
        assert_eq!(sequence.take(21, 21, false), None);
        assert_eq!(sequence.take(25, 25, false), Some(Gap::Yes));
    }

    /// A board was asked for between two that were published: the second one lists what the first has counted.
    #[test]
    fn holes_of_an_update_are_those_since_the_update_before() {
        let event: BoardEvent = serde_json::from_value(serde_json::json!({
            "line": "shop-1", "incarnation": 7, "version": 1454, "prev_version": 1447, "at_ms": 0, "phase": "open",
            "seats": 1, "admitted": 0, "in_checkout": 1, "lanes": [{
                "lane": "normal", "next_token": 200, "done_through": 0, "admitted_through": 5, "accepts_through": 300,
                "waiting": 80, "holes": [[66, 66], [91, 91]],
            }],
        }))
        .unwrap();
        for (asked_at, known) in [(1447, true), (1450, false)] {
            let mut sequence = Sequence {
                seen: Some(asked_at),
            };
            let gap = sequence.take(event.board.version, event.prev_version, event.whole);
            let update = update(&event, gap.unwrap());
            assert_eq!(update.board.lanes[0].holes.is_some(), known, "{asked_at}");
            assert!(!update.gap);
        }
    }
}
