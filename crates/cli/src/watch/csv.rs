//! `nowserving watch --csv`: a line over time as a table, with the first columns of a rehearsal's.

use std::pin::pin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nowserving_client::{AdminLine, LineReply};
use tokio::time::MissedTickBehavior;

use crate::{gauge, top};
use nowserving_terminal::output::{Output, error_text};

/// docs/operations/watching.md explains each column.
pub const HEADER: &str = "elapsed_ms,next_token,done_through,admitted_through,accepts_through,waiting,in_checkout,\
    completed,gone_from_seats,gone_waiting,refused,people";

/// The names of the same columns in a rehearsal's table, which are those of the seed article.
pub const ARTICLE_HEADER: &str =
    "SN,SEED,SINCE,UNTIL,LIMIT,ITEMS,CHECKIN,ORDER,ABORTCHECKIN,ABORTQUEUE,NOENTRY,THREAD";

/// A line that has a leader answers sooner.
const HEADER_AFTER: Duration = Duration::from_secs(1);

/// Prints the header, and a row each interval, until the line is gone or the reader of stdout is. An interval without an
/// answer has no row.
pub async fn run(
    line: &AdminLine,
    header: &str,
    every: Duration,
    output: &Output,
) -> anyhow::Result<ExitCode> {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks.tick().await;
    let start = Instant::now();
    let mut shown = first(line, header, output).await?;
    loop {
        match shown {
            Ok(reply) => output.line(&row(elapsed_ms(start), &reply))?,
            Err(error) if error.is_transient() => {
                eprintln!("{}; still trying", error_text(&error.into(), false));
            }
            Err(error) => return Err(error.into()),
        }
        ticks.tick().await;
        shown = line.show().await;
    }
}

/// Prints the header: at once after the first answer, as a line that does not exist has none, and soon without one.
async fn first(
    line: &AdminLine,
    header: &str,
    output: &Output,
) -> anyhow::Result<nowserving_client::Result<LineReply>> {
    let mut answer = pin!(line.show());
    let shown = match tokio::time::timeout(HEADER_AFTER, &mut answer).await {
        Ok(shown) => shown,
        Err(_) => {
            output.line(header)?;
            eprintln!("the line has not answered yet; still trying");
            return Ok(answer.await);
        }
    };
    if !matches!(&shown, Err(error) if !error.is_transient()) {
        output.line(header)?;
    }
    Ok(shown)
}

fn elapsed_ms(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// The pointers are those of the first lane, the numbers of tokens those of all lanes.
fn row(at_ms: u64, shown: &LineReply) -> String {
    let (board, counts) = (&shown.board, &shown.counts);
    let completed = top::completed(counts);
    let from_seats = top::gone_from(counts, "admitted") + top::gone_from(counts, "in_checkout");
    let waiting = gauge::waiting(board);
    let first = board.lanes.first();
    let pointers = first.map_or([0; 4], |lane| {
        [
            lane.next_token,
            lane.done_through,
            lane.admitted_through,
            lane.accepts_through,
        ]
    });
    let [next, done, admitted, accepts] = pointers;
    let numbers = [
        at_ms,
        next,
        done,
        admitted,
        accepts,
        waiting,
        board.in_checkout,
        completed,
        from_seats.saturating_sub(completed),
        top::gone_from(counts, "waiting"),
        top::refused(counts),
        waiting + board.admitted + board.in_checkout,
    ];
    numbers.map(|number| number.to_string()).join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_a_number_for_each_column() {
        let shown: LineReply = serde_json::from_value(json!({
            "line": "shop-1", "incarnation": 1, "version": 9, "settings_version": 1,
            "created_at_ms": 1, "shard": 3, "leader": 1, "held_back_by": {"by": "seats"},
            "settings": {"seats": 7, "queue_limit": 15},
            "board": {"line": "shop-1", "incarnation": 1, "version": 9, "at_ms": 1, "phase": "open",
                "seats": 7, "admitted": 2, "in_checkout": 5, "lanes": [
                    {"lane": "normal", "next_token": 26, "done_through": 3,
                     "admitted_through": 10, "accepts_through": 32, "waiting": 15},
                    {"lane": "vip", "next_token": 9, "done_through": 8,
                     "admitted_through": 8, "accepts_through": 20, "waiting": 1}]},
            "counts": {"issued": 33, "waiting": 16, "admitted": 2, "in_checkout": 5,
                "gone": {"completed": 3, "no_show": 2, "checkout_expired": 1, "left": 4},
                "gone_from": {"waiting": {"left": 4}, "admitted": {"no_show": 2},
                    "in_checkout": {"completed": 3, "checkout_expired": 1}},
                "refused": {"line_full": 5, "sold_out": 1}}
        }))
        .unwrap();
        let row = row(1_500, &shown);
        assert_eq!(row, "1500,26,3,10,32,16,5,3,3,4,6,23");
        for header in [HEADER, ARTICLE_HEADER] {
            assert_eq!(row.split(',').count(), header.split(',').count());
        }
    }
}
