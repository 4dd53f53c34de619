//! A request on its way in. Its place is asked for before it is read, and it is read apart from the requests under way, so
//! that others need not wait meanwhile.

use nowserving_engine::{Now, ReplyTo};
use nowserving_protocol::error::ApiError;
use nowserving_protocol::header::TraceContext;
use nowserving_protocol::operation::Operation;
use nowserving_protocol::subject::Target;

use super::{Config, Work, many_lines};
use crate::Message;
use crate::limits::work_of_limits;
use crate::parse::reply_to;
use crate::routes::Route;

/// Requests at the same time: others are refused. Operators have places of their own: one who looks for the cause of too many
/// checks is not refused because of them.
pub(super) const CHECKS_AT_ONCE: usize = 8_192;
pub(super) const OPERATORS_AT_ONCE: usize = 256;
const MANY_LINES_AT_ONCE: usize = 4;

#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Check,
    Operator,
    ManyLines,
}

/// A request that was routed here.
#[derive(Debug)]
pub struct Arrived {
    pub(super) to: ReplyTo,
    pub(super) kind: Kind,
    target: Result<Target, ApiError>,
}

/// It has a place.
#[derive(Debug)]
pub struct Admitted {
    pub(super) arrived: Arrived,
    /// No other one of this start has it.
    pub(super) number: u64,
}

/// It is read.
pub struct Read {
    pub(super) to: ReplyTo,
    pub(super) kind: Kind,
    pub(super) number: u64,
    pub(super) work: Result<Box<dyn Work>, ApiError>,
}

impl Arrived {
    #[must_use]
    pub fn of(
        config: &Config,
        message: &Message<'_>,
        route: Route,
        now: Now,
        trace: Option<Box<TraceContext>>,
    ) -> Arrived {
        let mut to = reply_to(message, now.us, trace);
        let target = config.subjects.parse(message.subject);
        to.op = target.as_ref().map_or(Operation::Unknown, |it| it.op);
        let kind = match route {
            Route::ManyLines => Kind::ManyLines,
            _ if to.op.is_admin() => Kind::Operator,
            _ => Kind::Check,
        };
        Arrived { to, kind, target }
    }
}

impl Admitted {
    /// Reads the same message.
    #[must_use]
    pub fn read(self, config: &Config, message: &Message<'_>, now: Now) -> Read {
        let Arrived { to, kind, target } = self.arrived;
        let work = target.and_then(|target| match kind {
            Kind::ManyLines => many_lines::read(message, now, config.trust),
            _ => work_of_limits(target, message, now, (config, self.number)),
        });
        Read {
            to,
            kind,
            number: self.number,
            work,
        }
    }
}

impl Kind {
    pub(super) fn at_once(self) -> usize {
        match self {
            Kind::Check => CHECKS_AT_ONCE,
            Kind::Operator => OPERATORS_AT_ONCE,
            Kind::ManyLines => MANY_LINES_AT_ONCE,
        }
    }
}
