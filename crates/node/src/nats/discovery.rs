//! NATS service discovery (`$SRV.PING`, `$SRV.INFO`, `$SRV.STATS`, as in NATS ADR-32): each node is
//! one instance of the service `nowserving`.
//!
//! By hand and not with async-nats's service API: that one owns its endpoints' subscriptions and
//! answers, and ours come and go with leadership and are answered by the shard loop.

use std::sync::Arc;

use async_nats::{Client, HeaderMap, Message, Subscriber};
use futures::StreamExt as _;
use futures::stream::SelectAll;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::peers::PeerList;
use super::respond::Responder;
use super::stats::{Stats, totals};
use crate::config::Config;
use nowserving_engine::Standing;

const SERVICE: &str = "nowserving";

/// An instance's description of itself.
#[derive(Debug)]
pub struct Discovery {
    id: String,
    metadata: Value,
    /// They have the cluster's identity.
    list: watch::Receiver<PeerList>,
    endpoints: Vec<(&'static str, String)>,
    started: String,
    /// Of each loop.
    stats: Vec<Arc<Stats>>,
}

impl Discovery {
    /// For this node.
    #[must_use]
    pub fn new(
        config: &Config,
        boots: u64,
        list: watch::Receiver<PeerList>,
        stats: Vec<Arc<Stats>>,
    ) -> Self {
        let prefix = &config.prefix;
        Discovery {
            id: format!("{}-{}-{boots}", config.cluster, config.id),
            metadata: json!({
                "cluster": config.cluster,
                "node": config.id.to_string(),
                "shards": config.shards.to_string(),
                "prefix": prefix,
            }),
            list,
            endpoints: vec![
                ("line", format!("{prefix}.line.>")),
                ("admin", format!("{prefix}.admin.>")),
                ("kv", format!("{prefix}.kv.>")),
                ("limit", format!("{prefix}.limit.>")),
            ],
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            stats,
        }
    }

    /// Answers while the node takes part, until the loop ends.
    ///
    /// # Errors
    /// A subscription cannot be made.
    pub async fn run(
        self,
        client: Client,
        responder: Responder,
        mut standing: watch::Receiver<Standing>,
    ) -> anyhow::Result<()> {
        while standing.wait_for(Standing::is_in_touch).await.is_ok() {
            let mut asked = self.subscribe(&client).await?;
            loop {
                tokio::select! {
                    biased;
                    ended = async { standing.wait_for(|it| !it.is_in_touch()).await.is_err() } => {
                        match ended {
                            true => return Ok(()),
                            false => break,
                        }
                    },
                    message = asked.next() => match message {
                        Some(message) => {
                            let payload = self.answer(&message).to_string();
                            let reply = message.reply.as_deref();
                            responder.send(reply, HeaderMap::new(), payload.into()).await;
                        }
                        None => return Ok(()),
                    },
                }
            }
        }
        Ok(())
    }

    async fn subscribe(&self, client: &Client) -> anyhow::Result<SelectAll<Subscriber>> {
        let mut streams = Vec::new();
        for verb in ["PING", "INFO", "STATS"] {
            for subject in [
                format!("$SRV.{verb}"),
                format!("$SRV.{verb}.{SERVICE}"),
                format!("$SRV.{verb}.{SERVICE}.{}", self.id),
            ] {
                streams.push(client.subscribe(subject).await?);
            }
        }
        Ok(futures::stream::select_all(streams))
    }

    fn answer(&self, message: &Message) -> Value {
        let verb = message.subject.split('.').nth(1).unwrap_or_default();
        let mut body = json!({
            "name": SERVICE,
            "id": self.id,
            "version": env!("CARGO_PKG_VERSION"),
            "metadata": self.metadata,
        });
        if let Some(identity) = self.list.borrow().members.identity() {
            body["metadata"]["cluster_id"] = identity.into();
        }
        match verb {
            "INFO" => {
                body["type"] = json!("io.nats.micro.v1.info_response");
                body["description"] = json!("virtual-queue coordinator");
                body["endpoints"] = self.endpoints(|name, subject| {
                    json!({"name": name, "subject": subject, "queue_group": SERVICE})
                });
            }
            "STATS" => {
                body["type"] = json!("io.nats.micro.v1.stats_response");
                body["started"] = json!(self.started);
                // In the order of the endpoints.
                let mut totals = totals(&self.stats).into_iter();
                body["endpoints"] = self.endpoints(|name, subject| {
                    let totals = totals.next().unwrap_or_default();
                    let processing_ns = totals.processing_us.saturating_mul(1_000);
                    json!({
                        "name": name, "subject": subject, "queue_group": SERVICE,
                        "num_requests": totals.requests, "num_errors": totals.errors,
                        "last_error": "", "processing_time": processing_ns,
                        "average_processing_time": processing_ns / totals.requests.max(1),
                    })
                });
            }
            _ => body["type"] = json!("io.nats.micro.v1.ping_response"),
        }
        body
    }

    fn endpoints(&self, mut each: impl FnMut(&str, &str) -> Value) -> Value {
        let all = self.endpoints.iter();
        Value::Array(all.map(|(name, subject)| each(name, subject)).collect())
    }
}
