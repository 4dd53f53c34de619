//! Events for subscribers, not yet encoded.

use nowserving_protocol::event::{BoardEvent, LineEvent, TokenEvent};
use nowserving_protocol::kv::KvEvent;

/// One event for subscribers.
#[derive(Debug, PartialEq)]
pub enum OutEvent {
    Board(Box<BoardEvent>),
    /// A change of a token.
    Token(TokenEvent),
    /// A change of a line.
    Line(LineEvent),
    /// A change of a key-value.
    Kv(KvEvent),
}

impl OutEvent {
    /// The same for an event that a new leader publishes again, and no other event has it.
    pub fn id(&self) -> String {
        let (line, incarnation, kind, version) = match self {
            OutEvent::Board(it) => {
                let board = &it.board;
                (&board.line, board.incarnation, "board", board.version)
            }
            OutEvent::Token(it) => (&it.line, it.incarnation, "token", it.version),
            OutEvent::Line(it) => (&it.line, it.incarnation, "line", it.version),
            OutEvent::Kv(it) => return it.id(),
        };
        format!("{line}/{incarnation}/{kind}/{version}")
    }
}
