//! After the crowd is through: every acknowledged token is asked about once more.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use nowserving_client::{Consistency, Error, State, StatusReply, StatusRequest, TokenBy};

use super::{Crowd, Verdict, Visit, number};

/// Requests at a time.
const IN_FLIGHT: usize = 32;
/// How long after its timeouts the token of a shopper that vanished may still live.
const RECYCLE_SLACK: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(250);

/// Waits until the tokens of shoppers that vanished are recycled, then compares every token's end with
/// the answers that its shopper received.
pub async fn audit(crowd: Arc<Crowd>) {
    let crowd = &*crowd;
    wait_for_vanished(crowd).await;
    let verdicts = futures::stream::iter(crowd.visits())
        .map(|visit| async move {
            // Confirmed by a quorum: nothing that was acknowledged may be missing from the answer.
            let answer = ask(crowd, &visit, Consistency::Linearizable).await;
            (visit, answer)
        })
        .buffer_unordered(IN_FLIGHT);
    verdicts
        .for_each(async |(visit, answer)| judge(crowd, &visit, answer))
        .await;
}

/// Asked in a way that does not mark them as seen, or they would live on.
async fn wait_for_vanished(crowd: &Crowd) {
    let times = crowd.times;
    let most = times.waiting_idle + times.claim + times.checkout + RECYCLE_SLACK;
    let deadline = crowd.now() + most;
    let mut open = crowd.visits();
    loop {
        let answers = futures::stream::iter(open)
            .filter(|visit| {
                let known = crowd.note(|book, _| book.is_gone(&visit.number));
                async move { !known }
            })
            .map(|visit| async move {
                let answer = ask(crowd, &visit, Consistency::Local).await;
                (visit, answer)
            })
            .buffer_unordered(IN_FLIGHT);
        let still_open = answers.filter_map(async |(visit, answer)| {
            let status = answer.ok().filter(|status| status.state == State::Gone);
            let Some(status) = status else {
                return Some(visit);
            };
            note_gone(crowd, &visit, &status);
            None
        });
        open = still_open.collect().await;
        if open.is_empty() || crowd.now() > deadline {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn ask(crowd: &Crowd, visit: &Visit, consistency: Consistency) -> Result<StatusReply, Error> {
    let request = StatusRequest {
        token: TokenBy::Ticket(visit.ticket.clone()),
        consistency: Some(consistency),
        holes: false,
        pass: false,
    };
    crowd.line.status_with(request).await
}

fn judge(crowd: &Crowd, visit: &Visit, answer: Result<StatusReply, Error>) {
    let Visit {
        number: expected, ..
    } = visit;
    match answer.as_ref().map_err(Verdict::from) {
        Ok(status) if number(status) != *expected => {
            crowd.note(|book, at| book.lost(at, expected));
        }
        Ok(status) if status.state == State::Gone => note_gone(crowd, visit, status),
        // It lives, though its end was acknowledged.
        Ok(_) if crowd.note(|book, _| book.is_gone(expected)) => {
            crowd.note(|book, at| book.lost(at, expected));
        }
        Ok(status) => crowd.trouble(format!(
            "token {} is still {} though nobody has been heard from for longer than its timeouts",
            expected.token,
            status.state.as_str()
        )),
        Err(Verdict::Gone(reason)) => crowd.note(|book, _| book.gone(expected, &reason)),
        Err(Verdict::Unknown) => crowd.note(|book, at| book.lost(at, expected)),
        Err(Verdict::Trouble(text)) => {
            crowd.trouble(format!("asking about token {}: {text}", expected.token));
        }
    }
}

fn note_gone(crowd: &Crowd, visit: &Visit, status: &StatusReply) {
    let reason = status.reason.as_deref().unwrap_or("unknown");
    crowd.note(|book, _| book.gone(&visit.number, reason));
}
