//! What is known of a line from its events. No I/O.

use std::sync::Arc;

use nowserving_client::{
    AnyEvent, BoardEvent, BoardReply, InfoReply, LaneName, LineEvent, PlacesFromEvents, Standing,
    TokenEvent,
};

/// A change in a line that others than watchers of places react to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// Of a token, under the number that it had before.
    Token {
        lane: LaneName,
        token: u64,
        what: TokenChange,
    },
    /// Events are missing: any token may have changed.
    Missed,
    /// The line was made anew or put back: tickets of before are void, or name other tokens.
    Anew,
}

/// What happened to a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenChange {
    Admitted,
    Claimed,
    Gone,
    CallAhead,
    /// It has this number now.
    Moved {
        lane: LaneName,
        token: u64,
    },
}

/// The consequences of an event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// In the order in which they are to be told.
    pub changes: Vec<Change>,
    /// Settings, the phase or the draw may have changed: ask `info`.
    pub ask_info: bool,
}

/// What events of a line have told so far.
#[derive(Debug, Default)]
pub(super) struct Known {
    places: PlacesFromEvents,
    board: Option<Arc<BoardReply>>,
    /// Incarnation and version of the newest token event. No line begins with it: `None`.
    newest_token: Option<(u64, u64)>,
}

impl Known {
    pub fn take(&mut self, event: &AnyEvent) -> News {
        match event {
            AnyEvent::Board(event) => self.board(event),
            AnyEvent::Token(event) => self.token(event),
            AnyEvent::Line(event) => self.line(event),
            // Later kinds of events, too: they are not known to matter.
            _ => News {
                changes: vec![Change::Missed],
                ask_info: true,
            },
        }
    }

    /// The answer to `info`. Its board has no holes. It is enough where nobody has stopped waiting out of turn, and is taken
    /// only while nothing else is known: a later one would take the holes away that are known.
    pub fn info(&mut self, info: &InfoReply) -> News {
        let mut news = News::default();
        if self.is_anew(&info.board) {
            news.changes.push(Change::Anew);
        }
        if self.places.version() == 0 {
            self.places.board(&BoardEvent {
                board: info.board.clone(),
                prev_version: info.board.version,
                whole: false,
            });
        }
        self.keep(&info.board);
        news
    }

    fn board(&mut self, event: &BoardEvent) -> News {
        let anew = self.is_anew(&event.board);
        let was_undrawn = self.board.as_ref().is_some_and(|board| board.undrawn);
        if !self.places.board(event) {
            return News::default();
        }
        self.keep(&event.board);
        let drawn = was_undrawn != event.board.undrawn;
        News {
            changes: anew.then_some(Change::Anew).into_iter().collect(),
            ask_info: anew || drawn,
        }
    }

    fn token(&mut self, event: &TokenEvent) -> News {
        self.places.token(event);
        let mut news = News::default();
        let newest = self
            .newest_token
            .replace((event.incarnation, event.version));
        if let Some((incarnation, version)) = newest {
            if incarnation == event.incarnation && event.prev_version > version {
                news.changes.push(Change::Missed);
            }
            // A late one of an earlier leader.
            self.newest_token = newest.max(self.newest_token);
        }
        let what = match (event.event.as_str(), &event.to_lane, event.to_token) {
            ("admitted", ..) => TokenChange::Admitted,
            ("claimed", ..) => TokenChange::Claimed,
            ("gone", ..) => TokenChange::Gone,
            ("call_ahead", ..) => TokenChange::CallAhead,
            ("moved", Some(lane), Some(token)) => TokenChange::Moved {
                lane: lane.clone(),
                token,
            },
            _ => return news,
        };
        news.changes.push(Change::Token {
            lane: event.lane.clone(),
            token: event.token,
            what,
        });
        news
    }

    fn line(&mut self, event: &LineEvent) -> News {
        self.places.line(event);
        let anew = matches!(event.event.as_str(), "restored" | "deleted" | "created");
        News {
            changes: anew.then_some(Change::Anew).into_iter().collect(),
            ask_info: true,
        }
    }

    /// Whether it is of a later creation of the line than what is known.
    fn is_anew(&self, board: &BoardReply) -> bool {
        let known = self.board.as_ref();
        known.is_some_and(|known| known.incarnation < board.incarnation)
    }

    fn keep(&mut self, board: &BoardReply) {
        let age = |board: &BoardReply| (board.incarnation, board.version, board.at_ms);
        if self
            .board
            .as_ref()
            .is_none_or(|known| age(known) <= age(board))
        {
            let mut board = board.clone();
            board.lanes.iter_mut().for_each(|lane| lane.holes = None);
            self.board = Some(Arc::new(board));
        }
    }

    /// The newest board, without holes.
    pub fn newest_board(&self) -> Option<Arc<BoardReply>> {
        self.board.clone()
    }

    pub fn standing(&self, lane: &LaneName, token: u64) -> Standing {
        self.places.standing(lane, token)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn board(version: u64, incarnation: u64) -> serde_json::Value {
        json!({
            "line": "shop", "incarnation": incarnation, "version": version, "at_ms": version, "phase": "open", "seats": 1,
            "admitted": 0, "in_checkout": 1, "prev_version": version - 1,
            "lanes": [{
                "lane": "normal", "next_token": 11, "done_through": 0, "admitted_through": 1, "accepts_through": 99,
                "waiting": 8, "holes": [[4, 4]],
            }],
        })
    }

    fn board_event(version: u64, incarnation: u64) -> AnyEvent {
        AnyEvent::Board(serde_json::from_value(board(version, incarnation)).unwrap())
    }

    fn token_event(version: u64, prev_version: u64, event: &str) -> AnyEvent {
        let event = json!({
            "line": "shop", "incarnation": 1, "version": version, "prev_version": prev_version, "at_ms": 1,
            "event": event, "lane": "normal", "token": 5,
        });
        AnyEvent::Token(serde_json::from_value(event).unwrap())
    }

    fn normal() -> LaneName {
        LaneName::default()
    }

    #[test]
    fn places_come_from_boards_and_the_newest_board_is_kept_without_holes() {
        let mut known = Known::default();
        assert_eq!(known.standing(&normal(), 5), Standing::Unknown);
        assert_eq!(known.take(&board_event(7, 1)), News::default());
        assert_eq!(known.standing(&normal(), 5), Standing::Position(3));
        assert_eq!(known.standing(&normal(), 4), Standing::Passed);
        let newest = known.newest_board().unwrap();
        assert_eq!((newest.version, &newest.lanes[0].holes), (7, &None));
        // An older one changes nothing.
        known.take(&board_event(6, 1));
        assert_eq!(known.newest_board().unwrap().version, 7);
    }

    #[test]
    fn an_info_tells_places_only_while_nothing_is_known() {
        let mut info = board(7, 1);
        let more = json!({
            "shard": 0, "leader": 1, "held_back_by": {"by": "seats"}, "settings": {
                "seats": 1, "queue_limit": 9, "waiting_idle_timeout_ms": 1, "claim_timeout_ms": 1,
                "checkout_timeout_ms": 1, "checkout_max_ms": 1, "token_events": true,
            },
        });
        info.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        info["lanes"][0]["waiting"] = json!(9);
        info["lanes"][0]["holes"] = json!(null);
        let mut info: InfoReply = serde_json::from_value(info).unwrap();
        let mut known = Known::default();
        known.info(&info);
        assert_eq!(known.standing(&normal(), 5), Standing::Position(4));
        known.take(&board_event(8, 1));
        assert_eq!(known.standing(&normal(), 5), Standing::Position(3));
        info.board.version = 20;
        known.info(&info);
        assert_eq!(
            known.standing(&normal(), 5),
            Standing::Position(3),
            "its holes stay known"
        );
        assert_eq!(known.newest_board().unwrap().version, 20);
    }

    #[test]
    fn a_gap_in_token_events_is_told_before_the_event() {
        let mut known = Known::default();
        let gone = Change::Token {
            lane: normal(),
            token: 5,
            what: TokenChange::Gone,
        };
        // What came before the first one is not known to be missing.
        let changes = |news: News| news.changes;
        assert_eq!(
            changes(known.take(&token_event(9, 8, "gone"))),
            std::slice::from_ref(&gone)
        );
        assert_eq!(changes(known.take(&token_event(12, 9, "entered"))), []);
        assert_eq!(
            changes(known.take(&token_event(20, 15, "gone"))),
            [Change::Missed, gone.clone()]
        );
        // Late: no gap, and what comes after it has none either.
        assert_eq!(
            changes(known.take(&token_event(11, 10, "gone"))),
            std::slice::from_ref(&gone)
        );
        assert_eq!(changes(known.take(&token_event(21, 20, "gone"))), [gone]);
    }

    #[test]
    fn a_later_line_of_the_name_is_another_one() {
        let mut known = Known::default();
        known.take(&board_event(7, 1));
        let news = known.take(&board_event(9, 2));
        assert_eq!(news.changes, [Change::Anew]);
        assert!(news.ask_info);
        assert_eq!(known.take(&AnyEvent::Missed).changes, [Change::Missed]);
    }
}
