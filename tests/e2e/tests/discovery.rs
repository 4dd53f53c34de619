//! NATS's service discovery: the requests of `nats micro` and similar tools.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use nowserving_e2e::{Cluster, eventually};
use serde_json::Value;

/// `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, to all, to the name and to one instance.
pub async fn nats_services(cluster: &Cluster) -> Result<()> {
    for verb in ["PING", "INFO", "STATS"] {
        let kind = format!("io.nats.micro.v1.{}_response", verb.to_lowercase());
        let all = ask_all(cluster, &format!("$SRV.{verb}")).await?;
        let named = ask_all(cluster, &format!("$SRV.{verb}.nowserving")).await?;
        for answer in all.iter().chain(&named) {
            ensure!(answer["type"] == kind.as_str(), "{verb}: {answer}");
            ensure!(answer["name"] == "nowserving", "{verb}: {answer}");
            ensure!(
                answer["version"]
                    .as_str()
                    .is_some_and(|v| v.split('.').count() == 3)
            );
        }
        let ids = |answers: &[Value]| -> Vec<String> {
            let mut ids: Vec<_> = answers
                .iter()
                .map(|answer| answer["id"].to_string())
                .collect();
            ids.sort();
            ids.dedup();
            ids
        };
        ensure!(
            ids(&all).len() == 3,
            "{verb}: not one instance a node: {all:?}"
        );
        ensure!(ids(&all) == ids(&named), "{verb}: {all:?} {named:?}");

        let id = all[0]["id"].as_str().context("id")?;
        let reply = cluster
            .api()
            .client()
            .request(format!("$SRV.{verb}.nowserving.{id}"), "".into());
        let one: Value = serde_json::from_slice(&reply.await?.payload)?;
        ensure!(one["id"] == id, "{verb}: {one}");
        // A client that knows the number of shards can find a line's shard.
        let shards = one["metadata"]["shards"].as_str();
        ensure!(verb == "STATS" || shards == Some("16"), "{verb}: {one}");
        let endpoints = one["endpoints"].as_array().into_iter().flatten();
        let names: Vec<_> = endpoints.filter_map(|it| it["name"].as_str()).collect();
        ensure!(
            verb == "PING" || names == ["line", "admin", "kv", "limit"],
            "{one}"
        );
    }
    Ok(())
}

/// The answers of all three nodes.
async fn ask_all(cluster: &Cluster, subject: &str) -> Result<Vec<Value>> {
    let client = cluster.api().client();
    eventually(
        &format!("three answers to {subject}"),
        Duration::from_secs(10),
        async || {
            let inbox = client.new_inbox();
            let mut answers = client.subscribe(inbox.clone()).await?;
            client
                .publish_with_reply(subject.to_owned(), inbox, "".into())
                .await?;
            let mut got: Vec<Value> = Vec::new();
            while got.len() < 3
                && let Ok(Some(answer)) =
                    tokio::time::timeout(Duration::from_secs(1), answers.next()).await
            {
                got.push(serde_json::from_slice(&answer.payload)?);
            }
            Ok((got.len() == 3).then_some(got))
        },
    )
    .await
}
