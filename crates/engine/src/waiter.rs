//! A request that waits for its answer.

use bytes::Bytes;
use nowserving_line::{LineName, OperatorNote};
use nowserving_shard::clock::Micros;
use nowserving_shard::command::Command;
use nowserving_shard::requests::RequestId;

use crate::delivery::Delivery;
use crate::request::{Ask, Effect, ReplyTo, Request};

/// The parts of a request that are needed to answer or forward it.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub shard: u32,
    /// Or the bucket.
    pub line: LineName,
    pub effect: Effect,
    pub delivery: Delivery,
    pub reply: ReplyTo,
    pub deadline: Micros,
    pub id: Option<RequestId>,
    pub note: Option<Box<OperatorNote>>,
    pub payload: Bytes,
}

impl Waiter {
    pub fn of(request: Request, delivery: Delivery) -> (Self, Ask) {
        // The time that a forwarded request spent on its way counts.
        let timeout_us = request.deadline.saturating_sub(request.reply.taken);
        let sent_with = delivery
            .forwarded_at
            .map(|at| at.us.saturating_add(timeout_us));
        let waiter = Waiter {
            shard: request.shard,
            effect: request.ask.effect(),
            line: request.line,
            delivery,
            reply: request.reply,
            deadline: sent_with.map_or(request.deadline, |it| it.min(request.deadline)),
            id: request.id,
            note: request.note,
            payload: request.payload,
        };
        (waiter, request.ask)
    }

    /// The command of its request, with the operator's note if there is one. Those of members and limits have it in them.
    pub fn noted(&self, command: Command) -> Command {
        match (&self.note, &command) {
            (Some(note), Command::Line(_) | Command::Restore(_)) => {
                Command::Noted(note.clone(), Box::new(command))
            }
            _ => command,
        }
    }
}
