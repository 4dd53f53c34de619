//! The lines that are asked and entered: made, filled and cleared through the SDK.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use async_nats::Subject;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use nowserving_client::{
    Change, Client, Code, Create, Delete, Key, LineName, SettingsPatch, State, StatusRequest,
    TokenBy,
};
use nowserving_protocol::codec::{self, Format};
use nowserving_protocol::subject::{Subjects, shard_of};
use nowserving_protocol::user::{Enter, StatusReply};
use rand::seq::SliceRandom as _;
use tokio::time::Instant;

use super::load::Source;

/// Requests under way while preparing.
const AT_ONCE: usize = 64;
/// No token is recycled, nor loses its seat, while other systems are measured.
const IDLE_MS: u64 = 24 * 3_600_000;
/// Leaders that stayed this long are taken to stay.
const CALM: Duration = Duration::from_secs(3);
const CALM_DEADLINE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
const DELETE_POLL: Duration = Duration::from_millis(20);
const DELETE_DEADLINE: Duration = Duration::from_secs(180);
/// Seats of a line in which nobody waits.
pub const SEATS: u32 = 1_000_000;

/// The cluster's lines. Cheap to clone.
#[derive(Clone)]
pub struct Lines {
    client: Client,
    subjects: Subjects,
    shards: u32,
}

/// A token whose `status` is asked.
#[derive(Debug)]
pub struct Polled {
    /// Where: the leader's subject, as the SDK asks.
    pub subject: Subject,
    /// Size of an answer.
    pub answer_bytes: usize,
    /// Size of a request.
    pub request_bytes: usize,
    /// One request for each token, in no order.
    requests: Arc<Vec<Bytes>>,
}

impl Lines {
    /// # Errors
    /// The cluster does not answer.
    pub async fn new(client: Client) -> anyhow::Result<Lines> {
        let status = client.admin().cluster_status().await?;
        Ok(Lines {
            client,
            subjects: Subjects::default(),
            shards: u32::try_from(status.shards.len())?,
        })
    }

    /// Makes a line in which so many tokens wait.
    ///
    /// # Errors
    /// The cluster refuses, or answers what does not fit.
    pub async fn fill_polled(&self, name: &LineName, tokens: u64) -> anyhow::Result<Polled> {
        self.create(std::slice::from_ref(name), 1).await?;
        let line = self.client.line(name.as_str())?;
        // The first of them takes the seat: one more, so that the rest wait.
        let entered: Vec<StatusReply> = stream::iter(0..=tokens)
            .map(|i| {
                let line = line.clone();
                async move { line.enter(format!("polled-{i}").as_str()).await }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
            .context("filling the line")?;
        let mut requests: Vec<Bytes> = entered
            .into_iter()
            .filter(|status| status.state == State::Waiting)
            .filter_map(|status| status.ticket)
            .map(|ticket| status_request(ticket).into())
            .collect();
        ensure!(
            requests.len() as u64 == tokens,
            "{} tokens wait instead of {tokens}",
            requests.len()
        );
        requests.shuffle(&mut rand::rng());
        let subject = self.subject(name, "status");
        Ok(Polled {
            answer_bytes: self.try_status(&subject, &requests[0]).await?,
            request_bytes: requests[0].len(),
            subject,
            requests: Arc::new(requests),
        })
    }

    /// The size of an answer, which must be a waiting token's status.
    async fn try_status(&self, subject: &Subject, request: &Bytes) -> anyhow::Result<usize> {
        let nats = self.client.nats();
        let answer = nats.request(subject.clone(), request.clone()).await?;
        let status: StatusReply = codec::decode(&answer.payload)?;
        ensure!(
            status.state == State::Waiting,
            "a status says {}",
            status.state.as_str()
        );
        Ok(answer.payload.len())
    }

    /// Makes lines with so many seats.
    ///
    /// # Errors
    /// The cluster refuses.
    pub async fn create(&self, names: &[LineName], seats: u32) -> anyhow::Result<()> {
        let idle_ms = Some(Change::Set(IDLE_MS));
        let settings = &SettingsPatch {
            seats: Some(Change::Set(seats)),
            queue_limit: Some(Change::Set(nowserving_line::QUEUE_LIMIT_MAX)),
            waiting_idle_timeout_ms: idle_ms.clone(),
            claim_timeout_ms: idle_ms,
            ..SettingsPatch::default()
        };
        stream::iter(names)
            .map(|name| async move {
                let settings = settings.clone();
                let line = self.client.admin().line(name.as_str())?;
                let create = Create { settings };
                line.create(&create).await
            })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await
            .context("making lines")
    }

    /// Deletes lines with everybody in them, and waits until they are gone.
    ///
    /// # Errors
    /// The cluster refuses, or takes too long.
    pub async fn delete(&self, names: &[LineName]) -> anyhow::Result<()> {
        let deadline = Instant::now() + DELETE_DEADLINE;
        stream::iter(names)
            .map(|name| self.delete_one(name, deadline))
            .buffer_unordered(AT_ONCE)
            .try_for_each(|()| async { Ok(()) })
            .await
            .context("clearing lines")
    }

    async fn delete_one(&self, name: &LineName, deadline: Instant) -> anyhow::Result<()> {
        let line = self.client.admin().line(name.as_str())?;
        let request = Delete {
            force: true,
            ..Delete::default()
        };
        let mut gone = line.delete(&request).await?.deleted;
        while !gone {
            ensure!(
                Instant::now() < deadline,
                "{} is still not gone",
                name.as_str()
            );
            tokio::time::sleep(DELETE_POLL).await;
            gone = match line.show().await {
                Ok(_) => false,
                Err(error) if error.code() == Some(Code::LineNotFound) => true,
                Err(error) => return Err(error.into()),
            };
        }
        Ok(())
    }

    /// Requests to enter these lines in turn, each under a key of its own.
    pub fn enter_source(&self, names: &[LineName]) -> Source {
        let subjects: Vec<Subject> = names
            .iter()
            .map(|name| self.subject(name, "enter"))
            .collect();
        Arc::new(move |number| {
            let subject = subjects[position(number, subjects.len())].clone();
            (subject, enter_request(number).into())
        })
    }

    /// The subject on which only the leader listens: the SDK uses it too.
    pub fn subject(&self, name: &LineName, op: &str) -> Subject {
        let shard = shard_of(name.as_str(), self.shards);
        self.subjects.shard(shard, name, op).into()
    }
}

/// So many names of lines.
pub fn names(count: u64) -> Vec<LineName> {
    let names = (0..count).map(|i| LineName::try_from(format!("bench-{i}").as_str()));
    names.flatten().collect()
}

/// Waits until no shard has changed its leader for a while: after a start, they are spread over
/// the nodes, and a request that meets a hand-over may fail.
///
/// # Errors
/// The cluster does not answer, or never comes to rest.
pub async fn settle(client: &Client) -> anyhow::Result<()> {
    let deadline = Instant::now() + CALM_DEADLINE;
    let mut since = Instant::now();
    let mut before = Vec::new();
    while since.elapsed() < CALM {
        ensure!(
            Instant::now() < deadline,
            "shards keep changing their leaders"
        );
        let status = client.admin().cluster_status().await?;
        let now: Vec<_> = status.shards.iter().map(|s| (s.leader, s.term)).collect();
        if now != before || now.iter().any(|(leader, _)| leader.is_none()) {
            before = now;
            since = Instant::now();
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(())
}

impl Polled {
    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// The requests, one token after the other, to `subject`: the echo gets the very same.
    pub fn source(&self, subject: Subject) -> Source {
        let requests = self.requests.clone();
        Arc::new(move |number| {
            let request = requests[position(number, requests.len())].clone();
            (subject.clone(), request)
        })
    }
}

pub fn status_request(ticket: String) -> Vec<u8> {
    let body = StatusRequest::new(TokenBy::Ticket(ticket));
    codec::encode(&body, Format::MsgPack)
}

/// Ten bytes, as an order's number.
pub fn key(number: u64) -> String {
    format!("{number:010}")
}

pub fn enter_request(number: u64) -> Vec<u8> {
    let body = Enter {
        key: Key::new(key(number).as_bytes()).ok(),
        lane: None,
    };
    codec::encode(&body, Format::MsgPack)
}

fn position(number: u64, len: usize) -> usize {
    (number % len.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_enter_has_a_key_of_its_own() {
        let key = |number| -> Enter { codec::decode(&enter_request(number)).unwrap() };
        assert!(key(1).key.is_some());
        assert_ne!(key(1).key, key(2).key);
    }

    #[test]
    fn the_echo_is_asked_the_very_same() {
        let requests = Arc::new(vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")]);
        let polled = Polled {
            subject: "s".into(),
            answer_bytes: 1,
            request_bytes: 1,
            requests,
        };
        let (status, echo) = (polled.source("s".into()), polled.source("e".into()));
        for number in 0..5 {
            assert_eq!(status(number).1, echo(number).1);
            assert_eq!(echo(number).0.as_str(), "e");
        }
    }
}
