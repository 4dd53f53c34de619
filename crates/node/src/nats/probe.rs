//! Sends probes and reads their echoes, as [`nowserving_front::probe`] says.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_nats::Client;
use futures::StreamExt as _;

use super::stats::Stats;
use crate::clock::{monotonic_us, until};
use crate::shards::to_engine::ToEngine;
use nowserving_engine::{Input, Subscription};
use nowserving_front::probe::{Echoes, next_due, probe};
use nowserving_shard::clock::Micros;
use tokio::sync::watch;

/// Sends probes and reports their echoes, until the loop ends.
///
/// # Errors
/// The subscription cannot be made.
pub async fn run(
    client: Client,
    mut subscriptions: watch::Receiver<BTreeMap<u32, Subscription>>,
    control: ToEngine,
    stats: Arc<Stats>,
    probed: watch::Sender<Micros>,
) -> anyhow::Result<()> {
    let mut known = Echoes::default();
    let inbox = client.new_inbox();
    let mut echoes = client.subscribe(inbox.clone()).await?;
    let mut due = monotonic_us();
    loop {
        tokio::select! {
            () = until(due) => {
                due = next_due(monotonic_us());
                // While disconnected a probe would only lie in the buffer and come back late.
                if client.connection_state() == async_nats::connection::State::Connected {
                    let probe = probe(monotonic_us()).to_vec();
                    let _ = client.publish(inbox.clone(), probe.into()).await;
                }
            }
            // A new leader does not take what may have been sent to the last one: its echo shows what was not.
            Ok(()) = subscriptions.changed() => due = monotonic_us(),
            echo = echoes.next() => {
                let Some(echo) = echo else {
                    return Ok(());
                };
                let turned_away = stats.turned_away();
                let Some(echo) = known.read(&echo.payload, turned_away, monotonic_us()) else {
                    continue;
                };
                let sent_at = echo.sent_at;
                // Nobody listens: the node ends.
                let _ = probed.send(sent_at);
                if !echo.is_proof {
                    continue;
                }
                if control.send(Input::ProbeEchoed { sent_at }).is_err() {
                    return Ok(());
                }
            }
        }
    }
}
