//! Whether what is shown is still so: the line is asked at intervals, as boards come only when it
//! changes.

use std::time::{Duration, Instant};

use futures::stream::{self, Stream};
use nowserving_client::{InfoReply, Line};

/// Between two questions.
const INTERVAL: Duration = Duration::from_secs(1);
/// An answer that takes longer is none.
const PATIENCE: Duration = Duration::from_secs(1);
/// What is shown is old after so long without an answer.
const OLD: Duration = Duration::from_secs(3);

/// Why there was no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Silence {
    Nats,
    Nodes,
    Leader,
}

impl Silence {
    fn words(self) -> &'static str {
        match self {
            Silence::Nats => "the connection to NATS is lost",
            Silence::Nodes => "no node answers",
            Silence::Leader => "no answer from the line's leader",
        }
    }
}

/// When the line was last heard from.
#[derive(Debug)]
pub struct Contact {
    last: Instant,
    why: Option<Silence>,
}

impl Contact {
    pub fn new(now: Instant) -> Contact {
        Contact {
            last: now,
            why: None,
        }
    }

    /// An answer or a board came.
    pub fn heard(&mut self, now: Instant) {
        *self = Contact::new(now);
    }

    /// No answer came.
    pub fn unheard(&mut self, why: Silence) {
        self.why = Some(why);
    }

    /// Why what is shown is old, in words; `None` if it is not.
    pub fn old(&self, now: Instant) -> Option<String> {
        let since = now.duration_since(self.last);
        let why = self.why.map_or("no answer", Silence::words);
        (since >= OLD).then(|| format!("no contact for {} s: {why}", since.as_secs()))
    }
}

/// Asks the line again and again.
pub fn ask(line: &Line) -> impl Stream<Item = Result<InfoReply, Silence>> + use<> {
    let client = line.client().with_deadline(PATIENCE);
    let asked = client.line(line.name().as_str()).ok();
    stream::unfold((asked, true), |(line, first)| async move {
        let asked = line.as_ref()?;
        if !first {
            tokio::time::sleep(INTERVAL).await;
        }
        let answer = match asked.info().await {
            Ok(info) => Ok(info),
            // Refusals end the watch from elsewhere.
            Err(_) => Err(silence(asked).await),
        };
        Some((answer, (line, false)))
    })
}

/// Any node answers NATS's service discovery, the leader or not.
async fn silence(line: &Line) -> Silence {
    let nats = line.client().nats();
    if nats.connection_state() != async_nats::connection::State::Connected {
        return Silence::Nats;
    }
    let node = nats.request("$SRV.INFO.nowserving", bytes::Bytes::new());
    match tokio::time::timeout(PATIENCE, node).await {
        Ok(Ok(_)) => Silence::Leader,
        _ => Silence::Nodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_old_after_three_seconds_without_contact() {
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut contact = Contact::new(start);
        contact.unheard(Silence::Leader);
        assert_eq!(contact.old(at(2)), None);
        assert_eq!(
            contact.old(at(3)).as_deref(),
            Some("no contact for 3 s: no answer from the line's leader")
        );
        contact.heard(at(4));
        assert_eq!(contact.old(at(6)), None);
        assert_eq!(
            contact.old(at(8)).as_deref(),
            Some("no contact for 4 s: no answer")
        );
    }
}
