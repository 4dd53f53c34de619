//! When an embedded cluster may be used: every shard has a leader, and each of them answers.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use nowserving_line::LineName;
use nowserving_protocol::admin::ClusterStatus;
use nowserving_protocol::subject::{Subjects, shard_of};
use tokio::time::Instant;

use super::{Cluster, NODES, node_logs};

const DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(2);
/// A start takes a second or two; progress is reported only if it takes longer.
const QUIET_FOR: Duration = Duration::from_secs(3);

/// Waits until every shard is led and its leader answers a read confirmed by a quorum: a leader
/// that is merely believed in could still turn the first request away.
pub(super) async fn wait(
    cluster: &mut Cluster,
    progress: &mut dyn FnMut(String),
) -> anyhow::Result<()> {
    let client = async_nats::connect(cluster.url()).await?;
    let mut probe = Probe {
        client,
        subjects: Subjects::default(),
        lines: Vec::new(),
    };
    let begun = Instant::now();
    let deadline = begun + DEADLINE;
    let mut said = String::new();
    loop {
        let missing = match probe.missing().await {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing,
            Err(error) if is_unheard(&error) => "waiting for nodes".to_owned(),
            Err(error) => format!("no node answers yet ({error})"),
        };
        if missing != said {
            if begun.elapsed() >= QUIET_FOR {
                progress(missing.clone());
            }
            said = missing;
        }
        if !cluster.nats_is_alive() {
            bail!("nats-server ended while the nodes were starting");
        }
        let live = cluster.live_nodes();
        if live <= NODES.len() / 2 {
            bail!(
                "only {live} of {} nodes run, too few to serve:\n{}",
                NODES.len(),
                node_logs(cluster.dir(), 5)
            );
        }
        if Instant::now() > deadline {
            bail!(
                "not ready after {DEADLINE:?}: {said}\n{}",
                node_logs(cluster.dir(), 5)
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

struct Probe {
    client: async_nats::Client,
    subjects: Subjects,
    /// One name per shard that hashes there; such a line need not exist.
    lines: Vec<LineName>,
}

impl Probe {
    /// What is still missing, in words; `None` if nothing is.
    async fn missing(&mut self) -> anyhow::Result<Option<String>> {
        let reply = self
            .ask(self.subjects.admin_cluster("status"), "{}")
            .await?;
        let status: ClusterStatus = serde_json::from_slice(&reply)?;
        let shards = status.shards.len();
        let led = status
            .shards
            .iter()
            .filter(|shard| shard.leader.is_some())
            .count();
        if led < shards || shards == 0 {
            return Ok(Some(format!("{led} of {shards} shards have a leader")));
        }
        if self.lines.len() != shards {
            self.lines = one_line_per_shard(shards)?;
        }
        let requests = self.lines.iter().enumerate().map(|(shard, line)| {
            let subject =
                self.subjects
                    .shard(u32::try_from(shard).unwrap_or(u32::MAX), line, "info");
            self.ask(subject, r#"{"consistency":"linearizable"}"#)
        });
        let answers = futures::future::join_all(requests).await;
        let silent = answers.iter().filter(|answer| !is_served(answer)).count();
        if silent > 0 {
            return Ok(Some(format!(
                "{silent} of {shards} leaders do not answer yet"
            )));
        }
        Ok(None)
    }

    async fn ask(&self, subject: String, payload: &'static str) -> anyhow::Result<Vec<u8>> {
        let reply = self.client.request(subject, payload.into());
        Ok(tokio::time::timeout(PATIENCE, reply).await??.payload.into())
    }
}

/// No node listens yet.
fn is_unheard(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<async_nats::RequestError>();
    error.is_some_and(|error| error.kind() == async_nats::RequestErrorKind::NoResponders)
}

/// A leader that can serve answers "no such line", because the line does not exist.
fn is_served(answer: &anyhow::Result<Vec<u8>>) -> bool {
    let Ok(reply) = answer else { return false };
    let reply: serde_json::Value = serde_json::from_slice(reply).unwrap_or_default();
    let code = &reply["error"]["code"];
    code.is_null() && !reply.is_null() || code == "line_not_found"
}

fn one_line_per_shard(shards: usize) -> anyhow::Result<Vec<LineName>> {
    let count = u32::try_from(shards)?;
    let mut lines = BTreeMap::new();
    for i in 0u64.. {
        if lines.len() == shards {
            break;
        }
        let line = format!("ready-{i}");
        lines.entry(shard_of(&line, count)).or_insert(line);
    }
    lines
        .values()
        .map(|line| Ok(LineName::try_from(line.as_str())?))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_shard_gets_a_line_that_hashes_to_it() {
        for shards in [1, 16, 256] {
            for (shard, line) in one_line_per_shard(shards).unwrap().iter().enumerate() {
                assert_eq!(
                    shard_of(line.as_str(), u32::try_from(shards).unwrap()) as usize,
                    shard
                );
            }
        }
    }

    #[test]
    fn only_an_answer_of_the_leader_counts() {
        let answer = |text: &str| is_served(&Ok(text.as_bytes().to_vec()));
        assert!(answer(
            r#"{"error":{"code":"line_not_found","message":"x"}}"#
        ));
        assert!(answer(r#"{"line":"ready-1"}"#));
        assert!(!answer(r#"{"error":{"code":"unavailable","message":"x"}}"#));
        assert!(!answer(""));
        assert!(!is_served(&Err(anyhow::anyhow!("no responders"))));
    }
}
