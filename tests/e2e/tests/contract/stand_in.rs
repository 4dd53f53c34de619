//! A node that stands between the SDK and the cluster.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::{HeaderMap, Message, Request};
use bytes::Bytes;
use futures::StreamExt;
use nowserving_e2e::Api;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const REQUEST_ID: &str = "Nowserving-Request-Id";
/// A node answers sooner than that.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// A request that it got.
struct Got {
    subject: String,
    request_id: Option<String>,
    body: Bytes,
}

/// Ends when it is dropped.
pub struct StandIn {
    got: Arc<Mutex<Vec<Got>>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl StandIn {
    /// It listens when this returns.
    pub async fn open(
        api: &Api,
        prefix: &str,
        answers: &[Value],
        shards: Option<u64>,
    ) -> Result<StandIn> {
        let got = Arc::<Mutex<Vec<Got>>>::default();
        let client = api.client().clone();
        let mut tasks = Vec::new();
        if let Some(shards) = shards {
            let metadata = json!({"prefix": prefix, "shards": shards.to_string()});
            let info = json!({"name": "nowserving", "metadata": metadata}).to_string();
            let mut asked = api.subscribe("$SRV.INFO.nowserving").await?;
            let client = client.clone();
            tasks.push(tokio::spawn(async move {
                while let Some(message) = asked.next().await {
                    if let Some(reply) = message.reply {
                        // The test fails by itself if nothing is answered.
                        let _ = client.publish(reply, info.clone().into()).await;
                    }
                }
            }));
        }
        let mut requests = api.subscribe(format!("{prefix}.>")).await?;
        let own = Own {
            client,
            prefix: format!("{prefix}."),
            answers: answers.iter().cloned().collect(),
            got: got.clone(),
        };
        tasks.push(tokio::spawn(async move {
            let mut own = own;
            while let Some(message) = requests.next().await {
                if let Err(error) = own.treat(message).await {
                    eprintln!("the stand-in at {}: {error:?}", own.prefix);
                }
            }
        }));
        Ok(StandIn { got, tasks })
    }

    /// What it got so far.
    pub fn seen(&self) -> Value {
        let got = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        let ids: Vec<_> = got.iter().map(|it| &it.request_id).collect();
        let distinct_ids: BTreeSet<_> = ids.iter().copied().flatten().collect();
        let distinct_bodies: BTreeSet<_> = got.iter().map(|it| &it.body).collect();
        let subjects: Vec<_> = got.iter().map(|it| &it.subject).collect();
        json!({
            "subjects": subjects,
            "request_ids": ids,
            "distinct_ids": distinct_ids.len(),
            "distinct_bodies": distinct_bodies.len(),
        })
    }
}

/// What its task has.
struct Own {
    client: async_nats::Client,
    /// With the dot.
    prefix: String,
    answers: VecDeque<Value>,
    got: Arc<Mutex<Vec<Got>>>,
}

impl Own {
    fn note(&self, got: Got) {
        let mut all = self.got.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(got);
    }

    async fn treat(&mut self, message: Message) -> Result<()> {
        let Some(rest) = message.subject.strip_prefix(&self.prefix) else {
            return Ok(());
        };
        let Some(reply) = message
            .reply
            .clone()
            .filter(|_| !rest.starts_with("event."))
        else {
            return Ok(());
        };
        let headers = message.headers.clone().unwrap_or_default();
        let request_id = headers.get(REQUEST_ID).map(|id| id.as_str().to_owned());
        let subject = format!("nowserving.{}", plain(rest));
        self.note(Got {
            subject: message.subject.to_string(),
            request_id,
            body: message.payload.clone(),
        });
        let answer = self.answers.pop_front().unwrap_or_else(|| "pass".into());
        if answer == "silence" {
            return Ok(());
        }
        if answer == "pass" || answer == "lose" || answer["passed_on"] == true {
            let request = Request::new()
                .payload(message.payload)
                .headers(headers)
                .timeout(Some(ANSWERED_WITHIN));
            let answered = self.client.send_request(subject, request).await?;
            if answer == "pass" {
                let headers = answered.headers.unwrap_or_default();
                self.client
                    .publish_with_headers(reply, headers, answered.payload)
                    .await?;
                return Ok(());
            }
            if answer == "lose" {
                return Ok(());
            }
        }
        let mut error = answer.as_object().context("an answer")?.clone();
        error.remove("passed_on");
        let mut headers = HeaderMap::new();
        let text = error.get("message").and_then(Value::as_str);
        headers.insert("Nats-Service-Error", text.unwrap_or_default());
        headers.insert("Nats-Service-Error-Code", "503");
        let body = json!({"error": error}).to_string();
        self.client
            .publish_with_headers(reply, headers, body.into())
            .await?;
        Ok(())
    }
}

/// The plain subject for `line.<line>.<op>`, `shard.<n>.<line>.<op>`, `limit.<domain>.check` or
/// `leader.<n>.limit.<domain>.check`.
fn plain(subject: &str) -> String {
    let after_shard = |rest: &str| rest.split_once('.').map(|(_, rest)| rest.to_owned());
    if let Some(rest) = subject.strip_prefix("shard.").and_then(after_shard) {
        return format!("line.{rest}");
    }
    let rest = subject.strip_prefix("leader.").and_then(after_shard);
    rest.unwrap_or_else(|| subject.to_owned())
}
