//! Detects a lost contact to the line. Boards come only when the line changes, so the line is also asked
//! at intervals.

use std::time::{Duration, Instant};

use futures::stream::{self, Stream};
use nowserving_client::{InfoReply, Line};

/// The pause between two requests.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The screen is marked as old after this long without an answer.
const OLD: Duration = Duration::from_secs(3);

/// Why there was no answer.
pub type NoAnswer = &'static str;
const NO_NATS: NoAnswer = "the connection to NATS is lost";
const NO_NODE: NoAnswer = "no node answers";
const NO_LEADER: NoAnswer = "no answer from the line's leader";

/// The time of the last answer from the line.
#[derive(Debug)]
pub struct Contact {
    last: Instant,
    why: Option<NoAnswer>,
}

impl Contact {
    pub fn new(now: Instant) -> Contact {
        Contact {
            last: now,
            why: None,
        }
    }

    /// An answer or a board has arrived.
    pub fn answered(&mut self, now: Instant) {
        *self = Contact::new(now);
    }

    /// A request was not answered.
    pub fn unanswered(&mut self, why: NoAnswer) {
        self.why = Some(why);
    }

    /// The reason why the screen is old, in words; `None` if it is not.
    pub fn old(&self, now: Instant) -> Option<String> {
        let since = now.duration_since(self.last);
        let why = self.why.unwrap_or("no answer");
        (since >= OLD).then(|| format!("no contact for {} s: {why}", since.as_secs()))
    }
}

/// Asks the line at intervals.
pub fn ask(line: &Line) -> impl Stream<Item = Result<InfoReply, NoAnswer>> + use<> {
    let client = line.client().with_deadline(PATIENCE);
    let asked = client.line(line.name().as_str()).ok();
    stream::unfold((asked, true), |(line, first)| async move {
        let asked = line.as_ref()?;
        if !first {
            tokio::time::sleep(INTERVAL).await;
        }
        let answer = match asked.info().await {
            Ok(info) => Ok(info),
            // A refusal also ends the board stream, which ends the watch.
            Err(_) => Err(diagnose(asked).await),
        };
        Some((answer, (line, false)))
    })
}

/// Distinguishes the causes: any node answers NATS's service discovery, not only the leader.
async fn diagnose(line: &Line) -> NoAnswer {
    let nats = line.client().nats();
    if nats.connection_state() != async_nats::connection::State::Connected {
        return NO_NATS;
    }
    let node = nats.request("$SRV.INFO.nowserving", bytes::Bytes::new());
    match tokio::time::timeout(PATIENCE, node).await {
        Ok(Ok(_)) => NO_LEADER,
        _ => NO_NODE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_is_old_after_three_seconds_without_contact() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut contact = Contact::new(start);
        contact.unanswered(NO_LEADER);
        assert_eq!(contact.old(at(2)), None);
        assert_eq!(
            contact.old(at(3)).as_deref(),
            Some("no contact for 3 s: no answer from the line's leader")
        );
        contact.answered(at(4));
        assert_eq!(contact.old(at(6)), None);
        assert_eq!(
            contact.old(at(8)).as_deref(),
            Some("no contact for 4 s: no answer")
        );
    }
}
