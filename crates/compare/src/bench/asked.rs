//! What is asked of a system, and how its answer is judged.

use std::sync::Arc;

use async_nats::Subject;
use bytes::Bytes;
use nowserving_protocol::codec::{self, Format};
use nowserving_protocol::user::{Claim, Complete, StatusReply};

use super::lines::{enter_request, key, status_request};
use super::load::{Ask, Requests, failure};
use crate::peers::redis::Commands;
use crate::peers::resp::Redis;
use crate::peers::{Puts, STREAM};

/// Polls of a visit.
const POLLS: usize = 5;

/// The requests of one system.
#[derive(Clone)]
pub enum Asked {
    Nats(Requests),
    /// Publishes to a stream, which acknowledges.
    JetStream(async_nats::Client),
    Redis {
        redis: Redis,
        commands: Commands,
    },
    Etcd(Puts),
    /// Enters, polls, claims and completes.
    Visit {
        nats: async_nats::Client,
        subjects: Arc<VisitSubjects>,
    },
}

/// Where the requests of a visit go.
#[derive(Debug)]
pub struct VisitSubjects {
    pub enter: Subject,
    pub status: Subject,
    pub claim: Subject,
    pub complete: Subject,
}

impl Ask for Asked {
    async fn ask(&self, number: u64) -> Option<String> {
        match self {
            Asked::Nats(requests) => requests.ask(number).await,
            Asked::JetStream(nats) => {
                let answer = nats.request(STREAM, enter_request(number).into()).await;
                not_acknowledged(&answer.map(|it| it.payload))
            }
            Asked::Redis { redis, commands } => {
                let answer = redis.ask(commands(number)).await;
                answer.err().map(|error| error.to_string())
            }
            Asked::Etcd(puts) => {
                let answer = puts.put(&key(number)).await;
                answer.err().map(|error| error.to_string())
            }
            Asked::Visit { nats, subjects } => visit(nats, subjects, number).await.err(),
        }
    }
}

/// JetStream's errors are JSON as its acknowledgements are.
fn not_acknowledged(answer: &Result<Bytes, async_nats::RequestError>) -> Option<String> {
    match answer {
        Err(error) => Some(error.to_string()),
        Ok(json) if json.starts_with(b"{\"error\"") => {
            Some(String::from_utf8_lossy(json).into_owned())
        }
        Ok(_) => None,
    }
}

async fn visit(
    nats: &async_nats::Client,
    subjects: &VisitSubjects,
    number: u64,
) -> Result<(), String> {
    let ask = async |subject: &Subject, body: Bytes| {
        let answer = nats.request(subject.clone(), body).await;
        let answer = answer.map_err(|error| error.to_string())?;
        match failure(&answer) {
            Some(failure) => Err(failure),
            None => Ok(answer.payload),
        }
    };
    let entered = ask(&subjects.enter, enter_request(number).into()).await?;
    let entered: StatusReply = codec::decode(&entered).map_err(|error| error.to_string())?;
    let ticket = entered.ticket.ok_or("no ticket")?;
    let status: Bytes = status_request(ticket.clone()).into();
    for _ in 0..POLLS {
        ask(&subjects.status, status.clone()).await?;
    }
    let claim = Claim {
        ticket: ticket.clone(),
        pass: false,
    };
    let claim = codec::encode(&claim, Format::MsgPack);
    ask(&subjects.claim, claim.into()).await?;
    let complete = Complete {
        ticket,
        epoch: None,
        units: None,
    };
    let complete = codec::encode(&complete, Format::MsgPack);
    ask(&subjects.complete, complete.into()).await.map(drop)
}
