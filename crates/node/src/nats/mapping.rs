//! Checks that NATS maps plain requests to the leader of their shard.
//!
//! This node sends itself some plain requests that nobody answers, and looks on which subjects they
//! arrive. It sees the mappings of the server that it is connected to.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::shards::to_engine::ToEngine;
use async_nats::connection::State;
use async_nats::{Client, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use nowserving_engine::Input;
use nowserving_front::mapping::MappingProbe;
use nowserving_protocol::admin::Mapping;
use nowserving_protocol::subject::Subjects;

/// Repeated, as the server can reload its configuration.
const INTERVAL: Duration = Duration::from_secs(10);
/// While nothing is known yet, or the server is away.
const INTERVAL_UNKNOWN: Duration = Duration::from_millis(500);
/// A request that does not come back within this time says nothing about mappings.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks now and then, warns, and tells the loop, until the loop ends.
///
/// # Errors
/// A subscription cannot be made.
pub async fn run(
    client: Client,
    subjects: Subjects,
    shards: u32,
    node: u64,
    control: ToEngine,
) -> anyhow::Result<()> {
    let requests = MappingProbe::new(subjects.clone(), shards, node);
    let mut probe = Probe::new(client, requests).await?;
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
    requests: MappingProbe,
    arrivals: [Subscriber; 2],
    /// Comes back after the requests, as all are sent over one connection.
    fence: String,
    fences: Subscriber,
    rounds: u64,
}

impl Probe {
    async fn new(client: Client, requests: MappingProbe) -> anyhow::Result<Self> {
        let [plain, mapped] = requests.arrivals();
        let plain = client.subscribe(plain).await?;
        let mapped = client.subscribe(mapped).await?;
        let fence = client.new_inbox();
        let fences = client.subscribe(fence.clone()).await?;
        Ok(Probe {
            client,
            requests,
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
        for subject in self.requests.plain() {
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
        Some(self.requests.judge(&arrived))
    }
}
