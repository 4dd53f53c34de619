//! Checks that NATS maps plain requests to the leader of their shard.
//!
//! This node sends itself some plain requests that nobody answers, and looks on which subjects they
//! arrive. It sees the mappings of the server that it is connected to.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, Subscriber};
use crossbeam_channel::Sender;
use futures::{FutureExt as _, StreamExt as _};
use nowserving_line::LineName;
use nowserving_protocol::admin::Mapping;
use nowserving_protocol::subject::{Subjects, shard_of};

use nowserving_engine::Input;
use nowserving_front::routes::MAPPING_PROBE;

/// Repeated, as the server can reload its configuration.
const INTERVAL: Duration = Duration::from_secs(10);
/// While nothing is known yet, or the server is away.
const INTERVAL_UNKNOWN: Duration = Duration::from_millis(500);
/// A request that does not come back within this time says nothing about mappings.
const PATIENCE: Duration = Duration::from_secs(5);
/// A mapping to another number of shards agrees on some lines by chance, and not on all of these.
const LINES: u32 = 16;
/// Looks now and then, warns, and tells the loop, until the loop ends.
///
/// # Errors
/// A subscription cannot be made.
pub async fn run(
    client: Client,
    subjects: Subjects,
    shards: u32,
    node: u64,
    control: Sender<Input>,
) -> anyhow::Result<()> {
    let mut probe = Probe::new(client, subjects.clone(), shards, node).await?;
    let mut known = None;
    loop {
        let mut mapping = probe.look().await;
        if mapping == Some(Mapping::Wrong) {
            // Or the connection was lost in the middle of it.
            tokio::time::sleep(INTERVAL_UNKNOWN).await;
            mapping = probe.look().await;
        }
        let Some(mapping) = mapping else {
            tokio::time::sleep(INTERVAL_UNKNOWN).await;
            continue;
        };
        if known.replace(mapping) != Some(mapping) {
            tell(mapping, &subjects.mapping_line(shards));
        }
        if control.send(Input::Mapping(mapping)).is_err() {
            return Ok(());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn tell(mapping: Mapping, line: &str) {
    match mapping {
        Mapping::Ok => tracing::info!("the NATS server maps plain requests to their shards"),
        // In the message and not as a field: a field's quotes are escaped, and the line is to be copied.
        Mapping::Missing => tracing::warn!(
            "the NATS server does not map plain requests to their shards: while a node stands still, those that \
             NATS gives to it are lost; put this line into its configuration: {line}"
        ),
        Mapping::Wrong => tracing::warn!(
            "the NATS server maps plain requests elsewhere than to their shards, so that they are refused or \
             lost; its configuration should have this line: {line}"
        ),
    }
}

struct Probe {
    client: Client,
    subjects: Subjects,
    shards: u32,
    op: String,
    lines: Vec<LineName>,
    arrivals: [Subscriber; 2],
    /// Comes back after the requests, as all are sent over one connection.
    fence: String,
    fences: Subscriber,
    rounds: u64,
}

impl Probe {
    async fn new(
        client: Client,
        subjects: Subjects,
        shards: u32,
        node: u64,
    ) -> anyhow::Result<Self> {
        let op = format!("{MAPPING_PROBE}{node}");
        let prefix = subjects.prefix();
        let plain = client.subscribe(format!("{prefix}.line.*.{op}")).await?;
        let mapped = client.subscribe(format!("{prefix}.shard.*.*.{op}")).await?;
        let fence = client.new_inbox();
        let fences = client.subscribe(fence.clone()).await?;
        let lines = lines()?;
        Ok(Probe {
            client,
            subjects,
            shards,
            op,
            lines,
            arrivals: [plain, mapped],
            fence,
            fences,
            rounds: 0,
        })
    }

    /// One round; `None` if the server is away.
    async fn look(&mut self) -> Option<Mapping> {
        if self.client.connection_state() != State::Connected {
            return None;
        }
        self.rounds += 1;
        let round = self.rounds.to_le_bytes();
        for line in &self.lines {
            let subject = self.subjects.line(line, &self.op);
            let sent = self.client.publish(subject, round.to_vec().into()).await;
            sent.ok()?;
        }
        let fence = self
            .client
            .publish(self.fence.clone(), round.to_vec().into());
        fence.await.ok()?;
        let fence = async {
            while let Some(message) = self.fences.next().await {
                if message.payload[..] == round {
                    return Some(());
                }
            }
            None
        };
        tokio::time::timeout(PATIENCE, fence).await.ok()??;
        // All messages before the fence have arrived by now.
        let mut arrived = BTreeSet::new();
        for arrivals in &mut self.arrivals {
            while let Some(Some(message)) = arrivals.next().now_or_never() {
                if message.payload[..] == round {
                    arrived.insert(message.subject.to_string());
                }
            }
        }
        let Probe {
            subjects,
            op,
            lines,
            ..
        } = self;
        Some(judge(subjects, self.shards, op, lines, &arrived))
    }
}

fn lines() -> anyhow::Result<Vec<LineName>> {
    let names = (0..LINES).map(|nth| format!("mapping-probe-{nth}"));
    names
        .map(|name| Ok(LineName::try_from(name.as_str())?))
        .collect()
}

/// `arrived`: the subjects on which the requests of one round came.
fn judge(
    subjects: &Subjects,
    shards: u32,
    op: &str,
    lines: &[LineName],
    arrived: &BTreeSet<String>,
) -> Mapping {
    let plain = lines.iter().map(|line| subjects.line(line, op));
    let mapped = lines.iter().map(|line| {
        let shard = shard_of(line.as_str(), shards);
        subjects.shard(shard, line, op)
    });
    if *arrived == mapped.collect() {
        Mapping::Ok
    } else if *arrived == plain.collect() {
        Mapping::Missing
    } else {
        Mapping::Wrong
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn judged(shards: u32, arrived: impl IntoIterator<Item = String>) -> Mapping {
        let (subjects, lines) = (Subjects::default(), lines().unwrap());
        judge(
            &subjects,
            shards,
            "op",
            &lines,
            &arrived.into_iter().collect(),
        )
    }

    #[test]
    fn every_other_number_of_shards_is_found_out() {
        let (subjects, lines) = (Subjects::default(), lines().unwrap());
        let mapped =
            |line: &LineName, count| subjects.shard(shard_of(line.as_str(), count), line, "op");
        for count in 1..=300 {
            let arrived: Vec<String> = lines.iter().map(|line| mapped(line, count)).collect();
            for shards in [1, 2, 3, 4, 8, 16, 17, 64, 128, 256] {
                let want = match shards == count {
                    true => Mapping::Ok,
                    false => Mapping::Wrong,
                };
                assert_eq!(judged(shards, arrived.clone()), want, "{shards} {count}");
            }
        }
    }

    #[test]
    fn none_and_half_a_mapping_are_told_apart() {
        let subjects = Subjects::default();
        let lines = lines().unwrap();
        let plain: Vec<String> = lines.iter().map(|line| subjects.line(line, "op")).collect();
        assert_eq!(judged(16, plain.clone()), Mapping::Missing);
        assert_eq!(judged(16, plain[1..].to_vec()), Mapping::Wrong);
        assert_eq!(judged(16, []), Mapping::Wrong);
    }
}
