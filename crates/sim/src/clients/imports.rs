//! Operators let queues that run elsewhere go on in their lines: a few rows at a time, sometimes the same ones again.

use nowserving_engine::{Outcome, ReplyBody};
use nowserving_line::{ImportRow, LaneSettings, LineName, Op};
use nowserving_protocol::error::Code;

use super::{Clients, Shop};
use crate::calls::{Ended, Query, What};
use crate::clock::wall_ms;
use crate::env::Env;
use crate::random::Random;

/// The rows of a queue.
const ROWS_MAX: u64 = 40;
/// Those of a request.
const ROWS_AT_A_TIME: u64 = 8;

/// A queue that runs elsewhere.
#[derive(Debug)]
pub(super) struct Import {
    id: Box<str>,
    rows: Vec<ImportRow>,
    /// So many of its first rows are done, as far as its operator knows.
    done: u64,
}

impl Import {
    /// Most keys are its own; of others the shoppers come, or have come, and some come twice.
    fn new(env: &Env, lanes: &[LaneSettings], visits: u64, random: &mut Random) -> Import {
        let number = env.calls.all.len();
        let now_ms = wall_ms(env.timeline.now(), 0);
        let rows = (0..random.between(1, ROWS_MAX)).map(|row| {
            let key = match random.below(8) {
                0 => format!("visit-{}", (visits + random.below(30)).saturating_sub(15)),
                1 => format!("import-{number}-{}", random.below(row + 1)),
                _ => format!("import-{number}-{row}"),
            };
            let named = random.below(3) == 0;
            let lane = random.pick(lanes).filter(|_| named);
            ImportRow {
                key: key.into_bytes().into(),
                lane: lane.map(|lane| lane.name.clone()),
                entered_at_ms: (random.below(2) == 0)
                    .then(|| now_ms.saturating_sub(random.below(60_000))),
            }
        });
        Import {
            rows: rows.collect(),
            id: format!("import-{number}").into(),
            done: 0,
        }
    }
}

impl Clients {
    /// The next rows of a queue. If it is not known what came of the last ones, these again.
    pub(super) fn import(&mut self, env: &Env, line: LineName, shop: usize) -> Option<Op> {
        let (visits, random) = (self.visits, &mut self.random);
        let place = self.shops.get_mut(shop)?;
        let lanes = &place.settings.lanes;
        let import = place.import.take();
        let import = import.unwrap_or_else(|| Import::new(env, lanes, visits, random));
        let first_row = match random.below(12) {
            // More than are done: it is refused.
            0 => import.done + random.between(1, 3),
            1..5 => import.done.saturating_sub(random.below(ROWS_AT_A_TIME)),
            _ => import.done,
        };
        let count = random.between(1, ROWS_AT_A_TIME) as usize;
        let rows = import.rows.iter().skip(first_row as usize).take(count);
        let rows: Vec<ImportRow> = rows.cloned().collect();
        if rows.is_empty() {
            // It is over: the next one is another queue.
            return None;
        }
        let import_id = import.id.clone();
        place.import = Some(import);
        Some(Op::Import {
            line,
            import_id,
            first_row,
            rows,
        })
    }
}

impl Shop {
    /// Takes note of a call that ended so.
    pub(super) fn import_ended(&mut self, query: &Query, ended: &Ended) {
        let (What::Write(Op::Import { import_id, .. }), Some(import)) =
            (&query.what, &mut self.import)
        else {
            return;
        };
        if *import_id != import.id {
            return;
        }
        match ended {
            Ended::Ok(answer) => {
                if let Ok(Outcome::Reply(ReplyBody::Line(line))) = answer.as_ref()
                    && let Some(imported) = &line.imported
                    && *imported.import_id == *import.id
                {
                    import.done = imported.rows;
                }
            }
            // Less is done than it thought: the line is another one, or the rows were too many.
            Ended::Refused(Code::BadRequest) => import.done = 0,
            Ended::Refused(_) | Ended::Unknown | Ended::Unavailable => {}
        }
    }
}
