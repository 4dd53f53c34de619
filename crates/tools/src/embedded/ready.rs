//! When an embedded cluster may be used: every shard has a leader, and each of them answers.

use std::time::Duration;

use anyhow::bail;
use futures::future::join_all;
use nowserving_client::{Client, Code, Consistency, Error, Kind};
use nowserving_protocol::subject::shard_of;
use tokio::time::Instant;

use super::{Cluster, NODES, node_logs};

const DEADLINE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(2);
/// A start takes a second or two; progress is reported only if it takes longer.
const QUIET_FOR: Duration = Duration::from_secs(3);

impl Cluster {
    /// Waits until every shard is led and its leader answers a read confirmed by a quorum: a leader
    /// that is merely believed in could still turn the first request away. Reports to `progress` what is
    /// missing.
    ///
    /// # Errors
    /// Too few nodes live, or the deadline (60 s) has passed.
    pub async fn wait_ready(&mut self, progress: &mut dyn FnMut(String)) -> anyhow::Result<()> {
        let client = Client::connect(self.url()).await?.with_deadline(PATIENCE);
        let begun = Instant::now();
        let deadline = begun + DEADLINE;
        let mut said = String::new();
        loop {
            let missing = match missing(&client).await {
                Ok(None) => return Ok(()),
                Ok(Some(missing)) => missing,
                Err(error) if error.kind() == Kind::Unavailable => "waiting for nodes".to_owned(),
                Err(error) => format!("no node answers yet ({error})"),
            };
            if missing != said {
                if begun.elapsed() >= QUIET_FOR {
                    progress(missing.clone());
                }
                said = missing;
            }
            if !self.nats_is_alive() {
                bail!("nats-server ended while the nodes were starting");
            }
            let live = self.live_nodes();
            if live <= NODES.len() / 2 {
                bail!(
                    "only {live} of {} nodes run, too few to serve:\n{}",
                    NODES.len(),
                    node_logs(self.dir(), 5)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "not ready after {DEADLINE:?}: {said}\n{}",
                    node_logs(self.dir(), 5)
                );
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// The first condition that does not hold yet, in words; `None` if the cluster is ready.
async fn missing(client: &Client) -> Result<Option<String>, Error> {
    let status = client.admin().cluster_status().await?;
    let shards = status.shards.len();
    let led = status.shards.iter().filter(|shard| shard.leader.is_some());
    let led = led.count();
    if led < shards || shards == 0 {
        return Ok(Some(format!("{led} of {shards} shards have a leader")));
    }
    let lines = one_line_per_shard(shards as u32);
    let serve = lines.iter().map(|line| is_served(client, line));
    let silent = join_all(serve).await.into_iter().filter(|served| !served);
    Ok(match silent.count() {
        0 => None,
        silent => Some(format!("{silent} of {shards} leaders do not answer yet")),
    })
}

/// A leader that can serve answers "no such line", because the line does not exist.
async fn is_served(client: &Client, line: &str) -> bool {
    let Ok(line) = client.line(line) else {
        return false;
    };
    let answer = line.info_with(Consistency::Linearizable).await;
    answer.map_or_else(|error| error.code() == Some(Code::LineNotFound), |_| true)
}

/// One name per shard that hashes there.
fn one_line_per_shard(shards: u32) -> Vec<String> {
    let name_in = |shard| {
        let mut names = (0u64..).map(|i| format!("ready-{i}"));
        names.find(|name| shard_of(name, shards) == shard)
    };
    (0..shards).filter_map(name_in).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_gets_a_line_that_hashes_to_it() {
        for shards in [1, 16, 256] {
            let lines = one_line_per_shard(shards);
            let homes: Vec<u32> = lines.iter().map(|line| shard_of(line, shards)).collect();
            assert!(homes.into_iter().eq(0..shards));
        }
    }
}
